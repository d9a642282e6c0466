"""Refused requests and failing connections, and how Microsoft's client reports or retries them."""

import time

from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy

from world import GROUP, NETWORK, NODES, WEB, World, refused, same, set_state, states


class Fixed:
    """A credential with one token for everything."""

    def __init__(self, token: str) -> None:
        self.token = token

    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return AccessToken(self.token, int(time.time()) + 3600)


class NoToken(SansIOHTTPPolicy):
    """Replaces the policy that sends a token, and consumes its option."""

    def on_request(self, request: PipelineRequest) -> None:
        request.context.options.pop("enforce_https", None)


def a_missing_pool_is_not_found(world: World) -> None:
    error = refused(404, "NotFound", lambda: world.pool("nothing"))
    same(
        error.error.message,
        f"Resource {NETWORK}/loadBalancers/{WEB}/backendAddressPools/nothing not found.",
        "the message",
    )
    same(error.response.json()["error"]["details"], [], "the details")


def a_missing_load_balancer_is_another_kind_of_not_found(world: World) -> None:
    error = refused(404, "ResourceNotFound", lambda: world.client.load_balancers.get(GROUP, "nothing"))
    same(
        error.error.message,
        f"The Resource 'Microsoft.Network/loadBalancers/nothing' under resource group '{GROUP}' was not found. "
        "For more details please go to https://aka.ms/ARMResourceNotFoundFix",
        "the message",
    )
    same(error.response.headers["x-ms-failure-cause"], "gateway", "the cause in the header")


def a_missing_resource_group_is_a_third_kind(world: World) -> None:
    for call in (
        lambda: world.client.load_balancers.get("nowhere", WEB),
        lambda: list(world.client.load_balancers.list("nowhere")),
    ):
        error = refused(404, "ResourceGroupNotFound", call)
        same(error.error.message, "Resource group 'nowhere' could not be found.", "the message")


def a_rule_cannot_refer_to_a_missing_pool(world: World) -> None:
    before = world.client.load_balancers.get(GROUP, WEB)
    changed = world.client.load_balancers.get(GROUP, WEB)
    changed.properties.backend_address_pools.pop()
    try:
        world.client.load_balancers.begin_create_or_update(GROUP, WEB, changed).result()
    except Exception as error:
        same(getattr(error, "status_code", None), 400, f"the status of {error}")
    else:
        raise AssertionError("a pool was removed although a rule refers to it")
    same(world.client.load_balancers.get(GROUP, WEB).as_dict(), before.as_dict(), "the load balancer")


def a_request_without_a_token_is_refused(world: World) -> None:
    client = world.make_client(authentication_policy=NoToken())
    error = refused(401, "AuthenticationFailed", lambda: client.load_balancers.get(GROUP, WEB))
    assert isinstance(error, ClientAuthenticationError), type(error)
    challenge = error.response.headers["WWW-Authenticate"]
    assert challenge.startswith("Bearer authorization_uri="), challenge


def an_invalid_token_is_refused(world: World) -> None:
    client = world.make_client(Fixed("nonsense"))
    refused(401, "InvalidAuthenticationToken", lambda: client.load_balancers.get(GROUP, WEB))


def server_errors_are_retried(world: World) -> None:
    client = world.make_client(per_retry_policies=[world.wire], retry_backoff_factor=0.05)
    pools = client.load_balancer_backend_address_pools
    for status in (500, 502, 503, 504):
        world.wire.answers.clear()
        world.fault("GET", {"answer": {"status": status}}, path="/backendAddressPools/", times=2)
        same(pools.get(GROUP, WEB, NODES).name, NODES, "the pool")
        same(world.wire.statuses("GET"), [status, status, 200], "the statuses that the client got")


def a_connection_cut_before_the_write_is_retried(world: World) -> None:
    write_with_cut(world, "before")


def a_connection_cut_after_the_write_is_retried(world: World) -> None:
    write_with_cut(world, "after")


def write_with_cut(world: World, when: str) -> None:
    world.reset()
    before = world.pool()
    world.fault("PUT", {"cut": when}, path="/backendAddressPools/")
    after = world.put(set_state(world.pool(), "node-1", "Down")).result()
    same(states(after)["node-1"], "Down", "the state")
    assert after.etag != before.etag, "a write has to change the etag"
    same(world.wire.statuses("PUT"), [200], "answers to the PUT")


def a_stalled_answer_arrives(world: World) -> None:
    world.fault("GET", {"stall": "1s"}, path="/backendAddressPools/")
    started = time.monotonic()
    same(world.pool().name, NODES, "the pool")
    took = time.monotonic() - started
    assert took > 0.9, f"a stall of a second took {took:.1f} s"


STEPS = [
    a_missing_pool_is_not_found,
    a_missing_load_balancer_is_another_kind_of_not_found,
    a_missing_resource_group_is_a_third_kind,
    a_rule_cannot_refer_to_a_missing_pool,
    a_request_without_a_token_is_refused,
    an_invalid_token_is_refused,
    server_errors_are_retried,
    a_connection_cut_before_the_write_is_retried,
    a_connection_cut_after_the_write_is_retried,
    a_stalled_answer_arrives,
]
