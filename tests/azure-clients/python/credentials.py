"""Each kind of credential that azure-identity has for a program in a cluster, used to read over plain HTTP and TLS."""

import base64
import json
import os
import tempfile
from pathlib import Path

from azure.core.credentials import TokenCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.identity import ClientSecretCredential, ManagedIdentityCredential, WorkloadIdentityCredential

from world import GROUP, WEB, World, same

TENANT = "7e4a0000-0000-4000-8000-000000000001"
CLIENT = "c11e0000-0000-4000-8000-000000000002"
SCOPE = "https://management.azure.com/.default"


def reads(world: World, credential: TokenCredential) -> None:
    """Reads with this credential, over both transports."""
    for tls in (False, True):
        found = world.make_client(credential, tls=tls).load_balancers.get(GROUP, WEB)
        same(found.name, WEB, f"what was read, TLS: {tls}")


def claims(token: str) -> dict:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def authority(world: World) -> dict:
    """Options for the classes that ask Entra; they insist on TLS."""
    return {"authority": world.tls_url, "disable_instance_discovery": True, "connection_verify": world.ca_file}


def a_client_secret(world: World) -> None:
    credential = ClientSecretCredential(TENANT, CLIENT, "a secret", **authority(world))
    said = claims(credential.get_token(SCOPE).token)
    same(said["tid"], TENANT, "the token's tenant")
    same(said["appid"], CLIENT, "the token's client")
    reads(world, credential)


def a_workload_identity(world: World) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "token"
        # A projected service account token; with the newline that such files may end with.
        parts = [{"alg": "none"}, {"sub": "system:serviceaccount:kube-system:headgate", "iss": "https://issuer"}]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        file.write_text(".".join([*encoded, "c2lnbmF0dXJl"]) + "\n")
        variables = {
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": CLIENT,
            "AZURE_FEDERATED_TOKEN_FILE": str(file),
            "AZURE_AUTHORITY_HOST": world.tls_url,
        }
        os.environ.update(variables)
        try:
            reads(world, WorkloadIdentityCredential(**authority(world)))
        finally:
            for name in variables:
                del os.environ[name]


def a_managed_identity_of_the_machine(world: World) -> None:
    reads(world, ManagedIdentityCredential())


def a_managed_identity_by_its_client_id(world: World) -> None:
    credential = ManagedIdentityCredential(client_id=CLIENT)
    same(claims(credential.get_token(SCOPE).token)["appid"], CLIENT, "the token's client")
    reads(world, credential)


def a_managed_identity_of_app_service(world: World) -> None:
    variables = {"IDENTITY_ENDPOINT": f"{world.plain_url}/msi/token", "IDENTITY_HEADER": "emulator"}
    os.environ.update(variables)
    try:
        reads(world, ManagedIdentityCredential())
    finally:
        for name in variables:
            del os.environ[name]


def a_wrong_audience_is_refused_by_arm(world: World) -> None:
    token = ManagedIdentityCredential().get_token("https://vault.azure.net/.default")

    class Vault:
        def get_token(self, *scopes: str, **options: object) -> object:
            return token

    other = world.make_client(Vault())
    try:
        other.load_balancers.get(GROUP, WEB)
    except ClientAuthenticationError as error:
        same(error.error.code, "InvalidAuthenticationTokenAudience", "the code")
    else:
        raise AssertionError("a token for another audience was taken")


STEPS = [
    a_client_secret,
    a_workload_identity,
    a_managed_identity_of_the_machine,
    a_managed_identity_by_its_client_id,
    a_managed_identity_of_app_service,
    a_wrong_audience_is_refused_by_arm,
]
