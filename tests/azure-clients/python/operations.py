"""Long-running operations, polled until they end. The emulator's operations must take a second."""

import time
from urllib.parse import parse_qs, urlsplit

from azure.core.polling import LROPoller

from world import GROUP, NODES, POOL_ID, WEB, World, content, refused, same, set_state, states


def down(world: World, name: str) -> LROPoller:
    """Starts a write without If-Match that sets one address Down."""
    return world.put(set_state(world.pool(), name, "Down"))


def down_after(world: World, delay: str, name: str) -> LROPoller:
    """The same with another time that the operation takes."""
    world.control("PUT", "settings", {"operationDelay": delay})
    poller = down(world, name)
    world.control("PUT", "settings", {"operationDelay": "1s"})
    return poller


def an_operation_is_polled_until_it_ends(world: World) -> None:
    before = world.pool()
    world.wire.answers.clear()
    started = time.monotonic()
    # The first poll has to come within this time.
    poller = down_after(world, "3s", "node-1")
    answer = world.wire.last("PUT")
    same(answer.status_code, 200, "the status of the PUT")
    for header in ("Location", "ETag"):
        assert header not in answer.headers, f"a PUT is answered without {header}"
    same(answer.headers.get("Retry-After"), "1", "the Retry-After of the PUT")
    accepted = answer.json()
    same(accepted["properties"]["provisioningState"], "Updating", "the state when accepted")
    for entry in accepted["properties"]["loadBalancerBackendAddresses"]:
        same(entry["properties"]["provisioningState"], "Updating", "the state of an address when accepted")
    after = poller.result()
    took = time.monotonic() - started
    same(after.properties.provisioning_state, "Succeeded", "the state at the end")
    same(states(after)["node-1"], "Down", "the admin state at the end")
    same(len({before.etag, accepted["etag"], after.etag}), 3, "etags: before, when accepted, at the end")
    assert took > 2.9, f"an operation of three seconds took {took:.1f} s"


def its_url_is_absolute_long_and_answers_as_recorded(world: World) -> None:
    url = world.wire.last("PUT").headers["Azure-AsyncOperation"]
    parts = urlsplit(url)
    assert parts.scheme in ("http", "https"), url
    assert "/providers/Microsoft.Network/locations/eastus/operations/" in parts.path, url
    same(set(parse_qs(parts.query)), {"api-version", "t", "c", "s", "h"}, "the query of the operation's URL")
    assert len(url) > 1024, f"signed URLs are long, this one has {len(url)} characters"
    polls = [answer for answer in world.wire.answers if answer.request.url == url]
    statuses = [poll.json()["status"] for poll in polls]
    same((statuses[0], statuses[-1]), ("InProgress", "Succeeded"), "the first and the last status")
    for poll in polls[:-1]:
        same(poll.headers.get("Retry-After"), "1", "the Retry-After while in progress")
    assert "Retry-After" not in polls[-1].headers, "no Retry-After at the end"


def a_poller_can_be_resumed_elsewhere(world: World) -> None:
    token = down(world, "node-2").continuation_token()
    pools = world.client.load_balancer_backend_address_pools
    resumed = pools.begin_create_or_update(GROUP, WEB, NODES, world.pool(), continuation_token=token)
    same(states(resumed.result())["node-2"], "Down", "the result of the resumed poller")


def a_failed_operation_is_reported(world: World) -> None:
    world.fault("PUT", {"operation": "fail"}, path="/backendAddressPools/")
    poller = down(world, "node-3")
    same(world.wire.last("PUT").status_code, 200, "the status of the PUT, which was accepted")
    try:
        poller.result()
    except Exception as error:
        same(poller.status(), "Failed", f"the poller's status after {error}")
        assert getattr(error, "error", None) is not None and error.error.code, f"no code in {error!r}"
    else:
        raise AssertionError("the operation should have failed")
    same(world.pool().properties.provisioning_state, "Failed", "the state of the pool")
    down(world, "node-3").result()
    same(world.pool().properties.provisioning_state, "Succeeded", "the state after another write")


def a_canceled_operation_is_reported(world: World) -> None:
    world.fault("PUT", {"operation": "cancel"}, path="/backendAddressPools/")
    poller = down(world, "node-3")
    refused(None, "Canceled", poller.result)
    same(poller.status(), "Canceled", "the poller's status")


def a_newer_write_of_the_pool_supersedes_the_older(world: World) -> None:
    world.reset()
    # Not over before the second write, however long that takes to begin.
    first = down_after(world, "1m", "node-1")
    second = world.put(set_state(set_state(world.pool(), "node-1", "None"), "node-2", "Down"))
    same(states(second.result()), {"node-1": "None", "node-2": "Down", "node-3": "None"}, "the second write")
    error = refused(None, "Canceled", first.result)
    same(error.error.message, "Operation was canceled.", "the message")
    same([detail.code for detail in error.error.details], ["CanceledAndSupersededDueToAnotherOperation"], "the details")
    message = error.error.details[0].message
    assert message.startswith("Operation PutLoadBalancerBackendAddressPoolOperation ("), message
    assert " was canceled and superseded by operation PutLoadBalancerBackendAddressPoolOperation (" in message, message
    same(states(world.pool()), {"node-1": "None", "node-2": "Down", "node-3": "None"}, "the pool")


def a_write_of_the_load_balancer_supersedes_one_of_its_pool(world: World) -> None:
    found = world.client.load_balancers.get(GROUP, WEB)
    first = down_after(world, "1m", "node-3")
    found.properties.probes[0].properties.probe_threshold = 3
    second = world.client.load_balancers.begin_create_or_update(GROUP, WEB, found)
    want = content(found)
    have = content(second.result())
    same(have["properties"]["probes"][0]["properties"]["probeThreshold"], 3, "the second write")
    same(have, want, "the load balancer as its writer sent it")
    error = refused(None, "Canceled", first.result)
    message = error.error.details[0].message
    assert " was canceled and superseded by operation PutLoadBalancerOperation (" in message, message


def writers_of_two_pools_conflict_on_their_load_balancer(world: World) -> None:
    world.reset()
    other = world.pool("nodes-ipv6")
    down(world, "node-1").result()
    stale = set_state(other, "node-1", "Down")
    refused(412, "PreconditionFailed", lambda: world.put(stale, if_match=other.etag).result())


def a_write_that_changes_nothing_succeeds_at_once(world: World) -> None:
    world.wire.answers.clear()
    world.put(world.pool()).result()
    answer = world.wire.last("PUT")
    same(answer.json()["properties"]["provisioningState"], "Succeeded", "the state when accepted")
    assert "Azure-AsyncOperation" in answer.headers, "there is an operation nevertheless"


def a_deletion_is_polled_by_its_location(world: World) -> None:
    pools = world.client.load_balancer_backend_address_pools
    pools.begin_create_or_update(GROUP, WEB, "extra", {"name": "extra", "properties": {}}).result()
    world.wire.answers.clear()
    pools.begin_delete(GROUP, WEB, "extra").result()
    answer = world.wire.last("DELETE")
    same((answer.status_code, answer.text()), (202, ""), "the answer to a DELETE")
    assert "/operationResults/" in answer.headers["Location"], answer.headers["Location"]
    assert "/operations/" in answer.headers["Azure-AsyncOperation"], answer.headers["Azure-AsyncOperation"]
    refused(404, "NotFound", lambda: world.pool("extra"))
    same(world.pool().id, POOL_ID, "the pool beside it")


STEPS = [
    an_operation_is_polled_until_it_ends,
    its_url_is_absolute_long_and_answers_as_recorded,
    a_poller_can_be_resumed_elsewhere,
    a_failed_operation_is_reported,
    a_canceled_operation_is_reported,
    a_newer_write_of_the_pool_supersedes_the_older,
    a_write_of_the_load_balancer_supersedes_one_of_its_pool,
    writers_of_two_pools_conflict_on_their_load_balancer,
    a_write_that_changes_nothing_succeeds_at_once,
    a_deletion_is_polled_by_its_location,
]
