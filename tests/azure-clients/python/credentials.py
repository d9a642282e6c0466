"""Each credential of azure-identity for a program in a cluster, used to read over plain HTTP and TLS."""

import base64
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from azure.core.credentials import AccessToken, TokenCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential, ManagedIdentityCredential, WorkloadIdentityCredential

from world import GROUP, SUBSCRIPTION, WEB, World, refused, same

# The accounts of seed.json: an application's and a machine's.
TENANT = "7e4a0000-0000-4000-8000-000000000001"
CLIENT = "c11e0000-0000-4000-8000-000000000002"
MACHINE = "ac41e000-0000-4000-8000-000000000003"
MACHINE_ID = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}"
    "/providers/Microsoft.ManagedIdentity/userAssignedIdentities/machine"
)
SCOPE = "https://management.azure.com/.default"


def reads(world: World, credential: TokenCredential, client: str) -> None:
    """Reads with this credential over both transports; the token must be that client's."""
    payload = claims(credential.get_token(SCOPE).token)
    same((payload["tid"], payload["appid"]), (TENANT, client), "the token's tenant and client")
    for tls in (False, True):
        found = world.make_client(credential, tls=tls).load_balancers.get(GROUP, WEB)
        same(found.name, WEB, f"what was read, TLS: {tls}")


def not_signed_in(code: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ClientAuthenticationError as error:
        assert code in str(error), f"no {code} in {error}"
    else:
        raise AssertionError(f"a token was given where {code} was expected")


def encoded(document: dict) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def claims(token: str) -> dict:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def authority(world: World) -> dict:
    """Options for the credentials that use Entra, which require TLS."""
    return {"authority": world.tls_url, "disable_instance_discovery": True, "connection_verify": world.ca_file}


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextmanager
def projected(world: World, expires: float) -> Iterator[WorkloadIdentityCredential]:
    """Sets up the environment as the webhook of workload identity does: a projected service account token, and its path."""
    payload = {
        "aud": ["api://AzureADTokenExchange"],
        "exp": int(expires),
        "iat": int(expires) - 3600,
        "iss": "https://issuer.example",
        "sub": "system:serviceaccount:kube-system:headgate",
    }
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "token"
        # Such files may end with a newline.
        file.write_text(f"{encoded({'alg': 'RS256'})}.{encoded(payload)}.c2lnbmF0dXJl\n")
        with environment(
            AZURE_TENANT_ID=TENANT,
            AZURE_CLIENT_ID=CLIENT,
            AZURE_FEDERATED_TOKEN_FILE=str(file),
            AZURE_AUTHORITY_HOST=world.tls_url,
        ):
            yield WorkloadIdentityCredential(**authority(world))


def a_client_secret(world: World) -> None:
    reads(world, ClientSecretCredential(TENANT, CLIENT, "a secret", **authority(world)), CLIENT)


def a_wrong_client_secret_is_refused(world: World) -> None:
    credential = ClientSecretCredential(TENANT, CLIENT, "another", **authority(world))
    not_signed_in("AADSTS7000215", lambda: credential.get_token(SCOPE))


def a_workload_identity(world: World) -> None:
    with projected(world, time.time() + 3600) as credential:
        reads(world, credential, CLIENT)


def an_old_assertion_is_refused(world: World) -> None:
    with projected(world, time.time() - 60) as credential:
        not_signed_in("AADSTS700024", lambda: credential.get_token(SCOPE))


def a_managed_identity_of_the_machine(world: World) -> None:
    reads(world, ManagedIdentityCredential(), MACHINE)


def a_managed_identity_by_its_ids(world: World) -> None:
    reads(world, ManagedIdentityCredential(client_id=MACHINE), MACHINE)
    reads(world, ManagedIdentityCredential(identity_config={"resource_id": MACHINE_ID}), MACHINE)


def a_missing_managed_identity_is_refused(world: World) -> None:
    credential = ManagedIdentityCredential(client_id="unknown")
    not_signed_in("Identity not found", lambda: credential.get_token(SCOPE))


def a_managed_identity_of_app_service(world: World) -> None:
    with environment(IDENTITY_ENDPOINT=f"{world.plain_url}/msi/token", IDENTITY_HEADER="emulator"):
        reads(world, ManagedIdentityCredential(), MACHINE)
        reads(world, ManagedIdentityCredential(client_id=MACHINE), MACHINE)


def a_token_for_another_audience_is_refused(world: World) -> None:
    class Elsewhere:
        def get_token(self, *scopes: str, **options: object) -> AccessToken:
            return ManagedIdentityCredential().get_token("https://vault.azure.net/.default")

    client = world.make_client(Elsewhere())
    error = refused(401, "InvalidAuthenticationTokenAudience", lambda: client.load_balancers.get(GROUP, WEB))
    assert error.response.headers["WWW-Authenticate"].startswith("Bearer "), error.response.headers


STEPS = [
    a_client_secret,
    a_wrong_client_secret_is_refused,
    a_workload_identity,
    an_old_assertion_is_refused,
    a_managed_identity_of_the_machine,
    a_managed_identity_by_its_ids,
    a_missing_managed_identity_is_refused,
    a_managed_identity_of_app_service,
    a_token_for_another_audience_is_refused,
]
