"""What the steps share: the emulator's addresses, Microsoft's client for it, the recorded answers, faults."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

from azure.core.credentials import TokenCredential
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.identity import ManagedIdentityCredential
from azure.mgmt.network import NetworkManagementClient

# As in seed.json.
SUBSCRIPTION = "5b0c0de0-0000-4000-8000-000000000005"
GROUP = "traffic"
NETWORK = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Network"
COMPUTE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute"
WEB = "web"
NODES = "nodes"
POOL_ID = f"{NETWORK}/loadBalancers/{WEB}/backendAddressPools/{NODES}"

Document = dict[str, Any]


class PlainHttp(SansIOHTTPPolicy):
    """Allows tokens over plain HTTP, as `enforce_https=False` on every call does."""

    def on_request(self, request: PipelineRequest) -> None:
        request.context.options["enforce_https"] = False


class Wire(SansIOHTTPPolicy):
    """Records every answer that the client got, including retried ones."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def on_response(self, request: PipelineRequest, response: PipelineResponse) -> None:
        self.answers.append(response.http_response)

    def statuses(self, method: str) -> list[int]:
        return [answer.status_code for answer in self.answers if answer.request.method == method]

    def last(self, method: str) -> Any:
        return [answer for answer in self.answers if answer.request.method == method][-1]


class World:
    """An emulator, and a client for it with Microsoft's defaults."""

    def __init__(self, addresses: dict[str, str], ca_file: str, tls: bool) -> None:
        self.plain_url = f"http://{addresses['arm']}"
        self.tls_url = f"https://{addresses['armTls']}"
        self.ca_file = ca_file
        self.tls = tls
        self.control_url = f"http://{addresses['control']}/emulator/v1"
        self.wire = Wire()
        self.client = self.make_client(per_retry_policies=[self.wire])

    def make_client(
        self, credential: TokenCredential | None = None, tls: bool | None = None, **options: Any
    ) -> NetworkManagementClient:
        """Microsoft's client; without a credential, as the machine's managed identity."""
        policies = [*options.pop("per_call_policies", []), PlainHttp()]
        encrypted = self.tls if tls is None else tls
        return NetworkManagementClient(
            credential or ManagedIdentityCredential(),
            SUBSCRIPTION,
            base_url=self.tls_url if encrypted else self.plain_url,
            credential_scopes=["https://management.azure.com/.default"],
            connection_verify=self.ca_file,
            per_call_policies=policies,
            **options,
        )

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request to the control API."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.control_url}/{path}", data=content, method=method)
        request.add_header("Content-Type", "application/json")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def fault(self, method: str, action: Document, path: str = ".*", times: int = 1) -> None:
        """Adds a fault for the next `times` requests that match."""
        self.control("POST", "faults", {"match": {"method": method, "path": path}, "times": times, "action": action})

    def reset(self) -> None:
        """Returns to the seed and removes all faults."""
        self.control("POST", "reset")
        self.wire.answers.clear()

    def pool(self, name: str = NODES, load_balancer: str = WEB) -> Any:
        """Reads a pool."""
        return self.client.load_balancer_backend_address_pools.get(GROUP, load_balancer, name)

    def put(self, pool: Any, load_balancer: str = WEB, if_match: str | None = None, **options: Any) -> Any:
        """Starts the write of a pool; returns its poller."""
        if if_match is not None:
            options["headers"] = {"If-Match": if_match}
        pools = self.client.load_balancer_backend_address_pools
        return pools.begin_create_or_update(GROUP, load_balancer, pool.name, pool, **options)


def set_state(pool: Any, name: str, state: str) -> Any:
    """Sets the admin state of one address, and returns the pool."""
    address(pool, name).properties.admin_state = state
    return pool


def address(pool: Any, name: str) -> Any:
    found = [entry for entry in pool.properties.load_balancer_backend_addresses if entry.name == name]
    assert len(found) == 1, f"one address named {name} was expected, there are {len(found)}"
    return found[0]


def states(pool: Any) -> dict[str, str]:
    """Admin states by address; absent is the same as None."""
    return {
        entry.name: entry.properties.admin_state or "None" for entry in pool.properties.load_balancer_backend_addresses
    }


def content(document: Any, keep_none: bool = False) -> Any:
    """A document without etags at any level; `"adminState": "None"` counts as no admin state."""
    if hasattr(document, "as_dict"):
        document = document.as_dict()
    if isinstance(document, dict):
        left = {key: content(value, keep_none) for key, value in document.items() if key != "etag"}
        if not keep_none and left.get("adminState") == "None":
            del left["adminState"]
        return left
    if isinstance(document, list):
        return [content(value, keep_none) for value in document]
    return document


def etags(document: Any) -> set[str]:
    """Every etag in a document, at any level."""
    if hasattr(document, "as_dict"):
        document = document.as_dict()
    found: set[str] = set()
    if isinstance(document, dict):
        if "etag" in document:
            found.add(document["etag"])
        for value in document.values():
            found |= etags(value)
    if isinstance(document, list):
        for value in document:
            found |= etags(value)
    return found


def same(have: Any, want: Any, what: str) -> None:
    assert have == want, f"{what}:\n  have {have!r}\n  want {want!r}"


def refused(status: int | None, code: str, call: Callable[[], Any]) -> HttpResponseError:
    """Calls what must fail with this status (None: in the operation, not in HTTP) and error code."""
    try:
        result = call()
    except HttpResponseError as error:
        if status is not None:
            same(error.status_code, status, f"the status of {error}")
        assert error.error is not None, f"no error envelope in {error}"
        same(error.error.code, code, f"the code of {error}")
        return error
    raise AssertionError(f"{status} {code} was expected, not {type(result).__name__}")
