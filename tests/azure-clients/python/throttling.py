"""Throttling and conflicts: reported, waited for, and recovered from by a new read."""

import time

from azure.core.exceptions import HttpResponseError

from world import GROUP, NODES, POOL_ID, WEB, World, content, refused, same, set_state, states

POOLS = "/backendAddressPools/"


def too_many(retry_after: str | None) -> dict:
    """The fault of a service that throttles."""
    error = {"code": "RetryableError", "message": "A retryable error occurred.", "details": []}
    answer: dict = {"status": 429, "body": {"error": error}}
    if retry_after is not None:
        answer["headers"] = {"Retry-After": retry_after}
    return {"answer": answer}


def a_429_is_reported(world: World) -> None:
    world.fault("GET", too_many("7"), path=POOLS)
    pools = world.client.load_balancer_backend_address_pools
    error = refused(429, "RetryableError", lambda: pools.get(GROUP, WEB, NODES, retry_total=0))
    same(error.response.headers["Retry-After"], "7", "Retry-After")


def the_client_waits_after_a_429(world: World) -> None:
    world.wire.answers.clear()
    world.fault("GET", too_many("1"), path=POOLS)
    started = time.monotonic()
    same(world.pool().name, NODES, "the pool")
    took = time.monotonic() - started
    same(world.wire.statuses("GET"), [429, 200], "the statuses that the client got")
    assert took > 0.9, f"a Retry-After of a second took {took:.1f} s"


def the_client_waits_after_a_429_on_a_put(world: World) -> None:
    world.wire.answers.clear()
    world.fault("PUT", too_many("1"), path=POOLS)
    world.put(set_state(world.pool(), "node-1", "Down")).result()
    same(world.wire.statuses("PUT"), [429, 200], "the statuses that the client got")
    same(states(world.pool())["node-1"], "Down", "the state")


def write_until_accepted(world: World, name: str, state: str) -> int:
    """Reads, edits, writes with If-Match, and starts again after a conflict; returns the number of attempts."""
    for attempt in range(1, 6):
        pool = world.pool()
        try:
            world.put(set_state(pool, name, state), if_match=pool.etag, retry_total=0).result()
            return attempt
        except HttpResponseError as error:
            if error.status_code not in (409, 412, 429):
                raise
    raise AssertionError("never accepted")


def a_new_read_recovers_from_409_and_429(world: World) -> None:
    world.reset()
    conflict = {"error": {"code": "AnotherOperationInProgress", "message": "Another operation is in progress."}}
    world.fault("PUT", {"answer": {"status": 409, "body": conflict}}, path=POOLS)
    same(write_until_accepted(world, "node-1", "Down"), 2, "attempts with a 409 in between")
    world.fault("PUT", too_many(None), path=POOLS)
    same(write_until_accepted(world, "node-2", "Down"), 2, "attempts with a 429 in between")
    same(states(world.pool()), {"node-1": "Down", "node-2": "Down", "node-3": "None"}, "the admin states")


def a_concurrent_write_is_not_overwritten(world: World) -> None:
    world.reset()
    theirs = content(set_state(world.pool(), "node-3", "Up"))
    world.fault("PUT", {"write": {"method": "PUT", "path": POOL_ID, "body": theirs}}, path=POOLS)
    same(write_until_accepted(world, "node-1", "Down"), 2, "attempts with another writer in between")
    same(states(world.pool()), {"node-1": "Down", "node-2": "None", "node-3": "Up"}, "the admin states")


def remaining_requests_are_counted(world: World) -> None:
    header = "x-ms-ratelimit-remaining-subscription-reads"
    left = []
    for _ in range(2):
        world.pool()
        left.append(int(world.wire.last("GET").headers[header]))
    assert 0 <= left[0] < 250 and 0 <= left[1] < 250, f"remaining reads: {left}"
    same(world.wire.last("GET").headers["x-ms-ratelimit-remaining-subscription-global-reads"].isdigit(), True, "global")


def a_token_bucket_is_exhausted_and_refills(world: World) -> None:
    world.control("PUT", "settings", {"throttle": {"reads": {"capacity": 1, "refillPerSecond": 1}}})
    pools = world.client.load_balancer_backend_address_pools

    def read_until_refused() -> None:
        for _ in range(50):
            pools.get(GROUP, WEB, NODES, retry_total=0)

    error = refused(429, "SubscriptionRequestsThrottled", read_until_refused)
    assert "Number of 'read' requests for subscription '" in error.error.message, error.error.message
    same(error.response.headers["Retry-After"], "1", "Retry-After")
    world.wire.answers.clear()
    for _ in range(3):
        same(world.pool().name, NODES, "the pool, after a wait")
    assert 429 in world.wire.statuses("GET"), "the client was never throttled"
    same(world.wire.statuses("GET")[-1], 200, "the last answer")


STEPS = [
    a_429_is_reported,
    the_client_waits_after_a_429,
    the_client_waits_after_a_429_on_a_put,
    a_new_read_recovers_from_409_and_429,
    a_concurrent_write_is_not_overwritten,
    remaining_requests_are_counted,
    a_token_bucket_is_exhausted_and_refills,
]
