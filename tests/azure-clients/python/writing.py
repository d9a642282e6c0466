"""Changes of pools and load balancers, each followed by a read: only the intended change is there."""

from world import GROUP, NETWORK, NODES, POOL_ID, WEB, World, address, content, etags, refused, same, set_state, states

ALL_NONE = {"node-1": "None", "node-2": "None", "node-3": "None"}


def change(world: World, name: str, state: str, if_match: str | None = None) -> None:
    """Sets one admin state: read, edit, write."""
    world.put(set_state(world.pool(), name, state), if_match=if_match).result()


def a_pool_is_changed_with_if_match(world: World) -> None:
    before, neighbour = world.pool(), world.pool("nodes-ipv6")
    wanted = content(set_state(world.pool(), "node-1", "Down"))
    written = world.put(set_state(world.pool(), "node-1", "Down"), if_match=before.etag).result()
    after = world.pool()
    same(written.as_dict(), after.as_dict(), "the result of the poller")
    same(content(after), wanted, "the pool, but for the address set Down")
    assert after.etag != before.etag, "a write has to change the etag"
    same(etags(after), {after.etag}, "one etag for the pool and its addresses")
    same(content(world.pool("nodes-ipv6")), content(neighbour), "the pool beside it")
    same(world.pool("nodes-ipv6").etag, after.etag, "its etag, which it shares")
    same(world.wire.last("PUT").status_code, 200, "the status of an update")


def a_pool_is_changed_without_if_match(world: World) -> None:
    before = world.pool()
    change(world, "node-2", "Up")
    same(states(world.pool()), {"node-1": "Down", "node-2": "Up", "node-3": "None"}, "the admin states")
    assert world.pool().etag != before.etag, "a write has to change the etag"


def the_journal_shows_who_wrote_what(world: World) -> None:
    etag = world.pool().etag
    wanted = set_state(world.pool(), "node-2", "Down")
    world.put(wanted, if_match=etag).result()
    sent = world.wire.last("PUT").request
    entries = world.control("GET", "journal?method=PUT&limit=1000")["entries"]
    written = [entry for entry in entries if entry["kind"] == "request"][-1]
    same((written["method"], written["path"], written["status"]), ("PUT", POOL_ID, 200), "the request")
    same(written["ifMatch"], etag, "its If-Match")
    same(written["apiVersion"], "2026-03-01", "its api-version")
    same(written["clientRequestId"], sent.headers["x-ms-client-request-id"], "its id")
    same(written["userAgent"], sent.headers["User-Agent"], "its user agent")
    assert written["arrived"] <= written["completed"], written


def any_spelling_of_the_etag_is_the_etag(world: World) -> None:
    opaque = world.pool().etag.removeprefix("W/")
    change(world, "node-3", "Down", if_match=opaque)
    change(world, "node-3", "Up", if_match=world.pool().etag.removeprefix("W/").strip('"'))
    change(world, "node-3", "None", if_match="*")
    same(states(world.pool())["node-3"], "None", "the state last set")


def a_stale_etag_is_refused_and_changes_nothing(world: World) -> None:
    stale = world.pool().etag
    change(world, "node-3", "Down")
    before = world.client.load_balancers.get(GROUP, WEB)
    wanted = set_state(world.pool(), "node-3", "Up")
    error = refused(412, "PreconditionFailed", lambda: world.put(wanted, if_match=stale).result())
    same(error.error.message, "Precondition failed.", "the message")
    same([detail.code for detail in error.error.details], ["PreconditionFailedEtagMismatch"], "the details' code")
    message = error.error.details[0].message
    assert message.startswith(f"Etag provided in if-match header {stale} does not match etag "), message
    assert message.endswith(" in NRP data store."), message
    same("Retry-After" in error.response.headers, False, "a Retry-After, which would make the client retry blindly")
    after = world.client.load_balancers.get(GROUP, WEB)
    same(after.as_dict(), before.as_dict(), "the load balancer")


def an_invalid_if_match_is_refused_alike(world: World) -> None:
    error = refused(412, "PreconditionFailed", lambda: world.put(world.pool(), if_match="invalid").result())
    assert 'W/"invalid"' in error.error.details[0].message, error.error.details[0].message


def an_admin_state_may_be_in_any_case(world: World) -> None:
    change(world, "node-3", "DOWN")
    same(states(world.pool())["node-3"], "Down", "the state as it is answered")


def drain_is_not_an_admin_state(world: World) -> None:
    before = world.pool()
    try:
        change(world, "node-3", "Drain")
    except Exception as error:
        same(getattr(error, "status_code", None), 400, f"the status of {error}")
    else:
        raise AssertionError("Drain was accepted")
    same(world.pool().as_dict(), before.as_dict(), "the pool")


def after_a_return_to_none_the_pool_is_as_before(world: World) -> None:
    for name in ALL_NONE:
        change(world, name, "None")
    now = world.pool()
    same(states(now), ALL_NONE, "the admin states")
    have = content(now)
    world.reset()
    same(have, content(world.pool()), "the pool as it was seeded")


def what_a_write_leaves_out_is_removed(world: World) -> None:
    pool = world.pool()
    set_state(pool, "node-1", "Down")
    pool.properties.load_balancer_backend_addresses = [address(pool, "node-1"), address(pool, "node-2")]
    pool.properties.drain_period_in_seconds = None
    world.put(pool).result()
    after = world.pool()
    same(states(after), {"node-1": "Down", "node-2": "None"}, "the addresses and their states")
    same(after.properties.drain_period_in_seconds, None, "a setting that was not sent")
    same(len(after.properties.load_balancing_rules), 2, "the rules, which are not the writer's")
    world.reset()


def a_pool_is_created_and_deleted(world: World) -> None:
    pools = world.client.load_balancer_backend_address_pools
    world.wire.answers.clear()
    made = pools.begin_create_or_update(GROUP, WEB, "extra", {"name": "extra", "properties": {}}).result()
    same(world.wire.last("PUT").status_code, 201, "the status of a creation")
    same(made.as_dict()["properties"]["loadBalancerBackendAddresses"], [], "the addresses of an empty pool")
    pools.begin_delete(GROUP, WEB, "extra").result()
    refused(404, "NotFound", lambda: world.pool("extra"))
    same([pool.name for pool in pools.list(GROUP, WEB)], [NODES, "nodes-ipv6"], "the pools that are left")


def a_load_balancer_is_changed_with_if_match(world: World) -> None:
    change(world, "node-1", "Down")
    clients = world.client.load_balancers
    found = clients.get(GROUP, WEB)
    before, stale = content(found), found.etag
    found.properties.probes[0].properties.interval_in_seconds = 15
    headers = {"If-Match": stale}
    after = clients.begin_create_or_update(GROUP, WEB, found, headers=headers).result()
    before["properties"]["probes"][0]["properties"]["intervalInSeconds"] = 15
    same(content(after), before, "the load balancer, but for the probe")
    same(states(world.pool())["node-1"], "Down", "an admin state that was sent back")
    assert world.pool().etag != stale, "a write of the load balancer has to change its pools' etag"
    refused(
        412,
        "PreconditionFailed",
        lambda: clients.begin_create_or_update(GROUP, WEB, found, headers=headers).result(),
    )
    world.reset()


def tags_are_changed_separately(world: World) -> None:
    clients = world.client.load_balancers
    before = content(clients.get(GROUP, WEB))
    clients.update_tags(GROUP, WEB, {"tags": {"owner": "another"}})
    before["tags"] = {"owner": "another"}
    same(content(clients.get(GROUP, WEB)), before, "the load balancer, but for the tags")
    world.reset()


def a_public_ip_gets_an_address(world: World) -> None:
    clients = world.client.public_ip_addresses
    body = {
        "location": "eastus",
        "sku": {"name": "Standard"},
        "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"},
    }
    made = clients.begin_create_or_update(GROUP, "made", body).result()
    same(made.id, f"{NETWORK}/publicIPAddresses/made", "its id")
    assert made.properties.ip_address, f"no address: {made}"
    again = clients.begin_create_or_update(GROUP, "made", body).result()
    same(again.properties.ip_address, made.properties.ip_address, "its address after another write")
    clients.begin_delete(GROUP, "made").result()
    refused(404, "ResourceNotFound", lambda: clients.get(GROUP, "made"))


STEPS = [
    a_pool_is_changed_with_if_match,
    a_pool_is_changed_without_if_match,
    the_journal_shows_who_wrote_what,
    any_spelling_of_the_etag_is_the_etag,
    a_stale_etag_is_refused_and_changes_nothing,
    an_invalid_if_match_is_refused_alike,
    an_admin_state_may_be_in_any_case,
    drain_is_not_an_admin_state,
    after_a_return_to_none_the_pool_is_as_before,
    what_a_write_leaves_out_is_removed,
    a_pool_is_created_and_deleted,
    a_load_balancer_is_changed_with_if_match,
    tags_are_changed_separately,
    a_public_ip_gets_an_address,
]
