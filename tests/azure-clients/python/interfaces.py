"""Pools of network interfaces: the members come from the interfaces, and a write of the pool may only set admin states."""

from world import COMPUTE, GROUP, NETWORK, World, address, content, refused, same, set_state, states

MACHINES = "machines"
MEMBERS = "members"
ALONE = f"{GROUP}_alone-nicipconfig1"
ALONE_ID = f"{NETWORK}/networkInterfaces/alone-nic/ipConfigurations/ipconfig1"
FLEET_NIC = f"{COMPUTE}/virtualMachineScaleSets/fleet/virtualMachines/0/networkInterfaces/fleet-nic"
FLEET_ID = f"{FLEET_NIC}/ipConfigurations/ipconfig1"
CODE = "ModificationOfNICIpConfigBackendPoolNotSupported"


def members(world: World) -> dict[str, str]:
    """The names of the pool's addresses by the interface configurations behind them."""
    entries = world.pool(MEMBERS, MACHINES).properties.load_balancer_backend_addresses
    return {entry.properties.network_interface_ip_configuration.id: entry.name for entry in entries}


def members_come_from_their_interfaces(world: World) -> None:
    pool = world.pool(MEMBERS, MACHINES)
    same(sorted(members(world)), sorted([ALONE_ID, FLEET_ID]), "the members")
    same(members(world)[ALONE_ID], ALONE, "the name of a single machine's member")
    same(len(members(world)[FLEET_ID]), 36, "the length of a scale set member's name, a GUID")
    shown = sorted(entry.id for entry in pool.properties.backend_ip_configurations)
    same(shown, sorted([ALONE_ID, FLEET_ID]), "the pool's configurations")
    for entry in pool.properties.load_balancer_backend_addresses:
        same(entry.properties.ip_address, None, "the IP address, which only the interface has")


def only_admin_states_are_written(world: World) -> None:
    before = world.pool(MEMBERS, MACHINES)
    fleet = members(world)[FLEET_ID]
    pool = set_state(world.pool(MEMBERS, MACHINES), ALONE, "Down")
    wanted = content(set_state(pool, fleet, "Up"))
    world.put(pool, MACHINES, if_match=before.etag).result()
    after = world.pool(MEMBERS, MACHINES)
    same(content(after), wanted, "the pool, but for its admin states")
    assert after.etag != before.etag, "a write has to change the etag"


def after_a_return_to_none_the_pool_is_as_before(world: World) -> None:
    pool = world.pool(MEMBERS, MACHINES)
    for name in states(pool):
        set_state(pool, name, "None")
    world.put(pool, MACHINES).result()
    have = content(world.pool(MEMBERS, MACHINES))
    world.reset()
    same(have, content(world.pool(MEMBERS, MACHINES)), "the pool as it was seeded")


def a_pool_write_cannot_change_the_members(world: World) -> None:
    before = world.pool(MEMBERS, MACHINES)
    left, none, added = (world.pool(MEMBERS, MACHINES) for _ in range(3))
    left.properties.load_balancer_backend_addresses = [address(left, ALONE)]
    none.properties.load_balancer_backend_addresses = []
    third = {"name": "third", "properties": {"ipAddress": "10.0.0.77"}}
    added.properties.load_balancer_backend_addresses = [*added.properties.load_balancer_backend_addresses, third]
    for pool in (left, none, added):
        error = refused(400, CODE, lambda pool=pool: world.put(pool, MACHINES).result())
        same(
            error.error.message,
            f"Operation on backend pool {before.id} not allowed since it adds/modifies/deletes backend address pool "
            "members that are specified with a network interface IP configuration.",
            "the message",
        )
    same(world.pool(MEMBERS, MACHINES).as_dict(), before.as_dict(), "the pool")


def an_interface_that_returns_has_no_state(world: World) -> None:
    world.put(set_state(world.pool(MEMBERS, MACHINES), ALONE, "Down"), MACHINES).result()
    clients = world.client.network_interfaces
    interface = clients.get(GROUP, "alone-nic")
    configuration = interface.properties.ip_configurations[0].properties
    pools = configuration.load_balancer_backend_address_pools
    same([pool.id for pool in pools], [world.pool(MEMBERS, MACHINES).id], "the interface's pools")
    configuration.load_balancer_backend_address_pools = []
    clients.begin_create_or_update(GROUP, "alone-nic", interface).result()
    same(sorted(members(world)), [FLEET_ID], "the members that are left")
    configuration.load_balancer_backend_address_pools = pools
    clients.begin_create_or_update(GROUP, "alone-nic", interface).result()
    same(states(world.pool(MEMBERS, MACHINES))[ALONE], "None", "the state of the member that returned")


STEPS = [
    members_come_from_their_interfaces,
    only_admin_states_are_written,
    after_a_return_to_none_the_pool_is_as_before,
    a_pool_write_cannot_change_the_members,
    an_interface_that_returns_has_no_state,
]
