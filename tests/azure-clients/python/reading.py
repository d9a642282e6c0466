"""Lists in pages, and single resources. The emulator's pages must have one item."""

from world import COMPUTE, GROUP, NETWORK, NODES, POOL_ID, WEB, World, content, etags, same


def the_group_list_is_paged(world: World) -> None:
    pages = [list(page) for page in world.client.load_balancers.list(GROUP).by_page()]
    same([[entry.name for entry in page] for page in pages], [["machines"], [WEB]], "the pages of the group's list")


def the_subscription_list_is_paged(world: World) -> None:
    world.wire.answers.clear()
    names = [entry.name for entry in world.client.load_balancers.list_all()]
    same(sorted(names), ["machines", "spare", WEB], "the subscription's list")
    same(world.wire.statuses("GET"), [200, 200, 200], "one request for each page of one")
    assert all("ETag" not in answer.headers for answer in world.wire.answers), "lists have no ETag header"


def the_pool_list_is_paged(world: World) -> None:
    pools = world.client.load_balancer_backend_address_pools
    pages = [[pool.name for pool in page] for page in pools.list(GROUP, WEB).by_page()]
    same(pages, [[NODES], ["nodes-ipv6"]], "the pages of the pools' list")


def a_listed_load_balancer_is_the_one_that_get_shows(world: World) -> None:
    listed = next(entry for entry in world.client.load_balancers.list(GROUP) if entry.name == WEB)
    same(listed.as_dict(), world.client.load_balancers.get(GROUP, WEB).as_dict(), "the listed load balancer")


def a_load_balancer_has_its_children(world: World) -> None:
    found = world.client.load_balancers.get(GROUP, WEB)
    same(found.id, f"{NETWORK}/loadBalancers/{WEB}", "its id")
    same(found.type, "Microsoft.Network/loadBalancers", "its type")
    same(found.properties.provisioning_state, "Succeeded", "its state")
    same((found.sku.name, found.tags), ("Standard", {"owner": "headgate"}), "its SKU and tags")
    kinds = {
        "frontendIPConfigurations": (found.properties.frontend_ip_configurations, ["front-ipv4", "front-ipv6"]),
        "backendAddressPools": (found.properties.backend_address_pools, [NODES, "nodes-ipv6"]),
        "loadBalancingRules": (found.properties.load_balancing_rules, ["http", "https", "http-ipv6"]),
        "probes": (found.properties.probes, ["healthz"]),
    }
    for kind, (children, names) in kinds.items():
        same([child.name for child in children], names, kind)
        for child in children:
            same(child.id, f"{found.id}/{kind}/{child.name}", "the id of a child")
            same(child.type, f"Microsoft.Network/loadBalancers/{kind}", "the type of a child")
            same(child.properties.provisioning_state, "Succeeded", f"the state of {child.id}")
    same(etags(found), {found.etag}, "one etag for the load balancer and all its children")
    assert found.etag.startswith('W/"') and len(found.etag) == len('W/""') + 36, f"not a weak GUID: {found.etag}"


def children_refer_to_each_other(world: World) -> None:
    found = world.client.load_balancers.get(GROUP, WEB)
    rules = {rule.name: rule for rule in found.properties.load_balancing_rules}
    pools = {pool.name: pool for pool in found.properties.backend_address_pools}
    same(rules["https"].properties.backend_address_pool.id, POOL_ID, "the pool of a rule")
    used = [reference.id for reference in pools[NODES].properties.load_balancing_rules]
    same(used, [rules["http"].id, rules["https"].id], "the rules of a pool")
    front = found.properties.frontend_ip_configurations[0].properties.load_balancing_rules
    same([reference.id for reference in front], used, "the rules of a frontend")
    probe = found.properties.probes[0].properties.load_balancing_rules
    same(len(probe), 3, "the rules of the probe")


def a_pool_by_itself_is_the_one_in_its_load_balancer(world: World) -> None:
    found = world.client.load_balancers.get(GROUP, WEB)
    world.wire.answers.clear()
    pool = world.pool()
    same(world.wire.last("GET").headers["ETag"], pool.etag, "the ETag header of a GET")
    same(pool.as_dict(), found.properties.backend_address_pools[0].as_dict(), "the pool")
    same((pool.id, pool.type), (POOL_ID, "Microsoft.Network/loadBalancers/backendAddressPools"), "its id and type")
    for entry in pool.as_dict()["properties"]["loadBalancerBackendAddresses"]:
        same(entry["id"], f"{POOL_ID}/loadBalancerBackendAddresses/{entry['name']}", "the id of an address")
        same(entry["etag"], pool.etag, "the etag of an address")
        same(entry["properties"]["provisioningState"], "Succeeded", "the state of an address")
        kind = "Microsoft.Network/loadBalancers/backendAddressPools/loadBalancerBackendAddresses"
        same(entry["type"], kind, "the type of an address")


def a_dual_stack_pool_has_its_own_addresses(world: World) -> None:
    entries = world.pool("nodes-ipv6").properties.load_balancer_backend_addresses
    same([entry.name for entry in entries], ["node-1", "node-2", "node-3"], "the same nodes")
    same(entries[0].properties.ip_address, "fd00:db8::4", "with other addresses")


def names_in_paths_may_be_in_any_case(world: World) -> None:
    pools = world.client.load_balancer_backend_address_pools
    same(pools.get(GROUP.upper(), WEB.title(), NODES.upper()).as_dict(), world.pool().as_dict(), "the pool")


def children_have_clients_of_their_own(world: World) -> None:
    found = world.client.load_balancers.get(GROUP, WEB).properties
    clients = world.client
    probe = clients.load_balancer_probes.get(GROUP, WEB, "healthz")
    same(content(probe), content(found.probes[0]), "the probe")
    front = clients.load_balancer_frontend_ip_configurations.get(GROUP, WEB, "front-ipv6")
    same(content(front), content(found.frontend_ip_configurations[1]), "the frontend")
    rules = [rule.name for rule in clients.load_balancer_load_balancing_rules.list(GROUP, WEB)]
    same(rules, ["http", "https", "http-ipv6"], "the rules")


def other_resources_are_there_too(world: World) -> None:
    clients = world.client
    addresses = {entry.name: entry.properties.ip_address for entry in clients.public_ip_addresses.list(GROUP)}
    same(addresses, {"front-ipv4": "203.0.113.10", "front-ipv6": "2001:db8::10"}, "public IP addresses")
    subnet = clients.subnets.get(GROUP, "nodes", "default")
    same(subnet.id, f"{NETWORK}/virtualNetworks/nodes/subnets/default", "a subnet")
    same([entry.name for entry in clients.network_interfaces.list(GROUP)], ["alone-nic"], "interfaces")
    ours = clients.network_interfaces.list_virtual_machine_scale_set_vm_network_interfaces(GROUP, "fleet", "0")
    want = [f"{COMPUTE}/virtualMachineScaleSets/fleet/virtualMachines/0/networkInterfaces/fleet-nic"]
    same([entry.id for entry in ours], want, "a scale set's interfaces")


STEPS = [
    the_group_list_is_paged,
    the_subscription_list_is_paged,
    the_pool_list_is_paged,
    a_listed_load_balancer_is_the_one_that_get_shows,
    a_load_balancer_has_its_children,
    children_refer_to_each_other,
    a_pool_by_itself_is_the_one_in_its_load_balancer,
    a_dual_stack_pool_has_its_own_addresses,
    names_in_paths_may_be_in_any_case,
    children_have_clients_of_their_own,
    other_resources_are_there_too,
]
