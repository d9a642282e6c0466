//! From events to members of pools: the tests of cloud-provider-azure that apply to desired-state operations, and its known
//! defects, which must be absent.

use headgate_controller::local_pools::EventReason::Updated;
use headgate_controller::local_pools::{Node, PoolKey, Updater, UpdaterSettings};
use headgate_core::service::{IpFamily, Service};
use serde_json::json;

use crate::world::{Call, NETWORK, World, name, node, service, slice};

fn world() -> World {
    World::with_pending_update(UpdaterSettings::default())
}

fn draining(name: &str, addresses: &[&str]) -> Node {
    Node {
        is_draining: true,
        ..node(name, addresses)
    }
}

#[test]
fn one_put_adds_and_removes_members() {
    let mut world = world();
    world.set_endpoints(&["n2", "n3"]);
    world.tick();
    assert_eq!(world.take_calls(), [Call::Get, Call::Put]);
    assert_eq!(world.members(), ["10.0.0.2", "10.0.0.3"]);
    assert_eq!(world.take_events(), [("default/web".to_owned(), Updated)]);
    let document = &world.pools[&PoolKey::new("lb", "default-web")];
    assert_eq!(document["properties"]["virtualNetwork"]["id"], NETWORK);
}

#[test]
fn changes_within_one_interval_are_one_put_for_each_pool() {
    let mut world = world();
    world.add_service("default/other", &[], "lb2");
    for nodes in [&["n1"][..], &["n2", "n3"], &["n4"]] {
        world.set_endpoints(nodes);
        world.updater.apply_slice(&slice("default/other-1", "other", nodes));
    }
    world.observe();
    world.tick();
    assert_eq!(world.take_calls(), [Call::Get, Call::Put, Call::Get, Call::Put]);
    assert_eq!(world.members(), ["10.0.0.4"]);
    assert_eq!(world.addresses("lb2", "default-other"), ["10.0.0.4"]);
    world.set_endpoints(&["n5"]);
    world.tick();
    assert_eq!(
        world.take_calls(),
        [Call::Get, Call::Put],
        "the next interval is another update"
    );
}

#[test]
fn nothing_is_done_and_nothing_reported_without_a_difference() {
    let mut world = world();
    world.set_endpoints(&["n1", "n1", "N1"]);
    world.ticks(3);
    assert!(world.take_calls().is_empty() && world.take_events().is_empty());
    assert_eq!(
        (world.leases, world.outcomes()),
        (0, (0, 0)),
        "an empty queue needs no Lease"
    );
}

/// cloud-provider-azure reports an update that changed nothing, and counts it as a success.
#[test]
fn a_pool_that_another_writer_has_updated_is_neither_reported_nor_counted() {
    let mut world = world();
    world.compare_all();
    world.set_addresses("lb", "default-web", &["10.0.0.2"]);
    world.tick();
    assert_eq!(world.take_calls(), [Call::Get]);
    assert_eq!((world.take_events(), world.outcomes()), (vec![], (0, 0)));
    assert!(world.updater.queue().is_empty());
}

/// Without a slice cloud-provider-azure adds every node of the cluster.
#[test]
fn a_service_without_slices_keeps_its_pool_and_an_empty_slice_empties_it() {
    let mut world = world();
    // Also where an update is queued already.
    world.compare_all();
    world.updater.delete_slice(&name("default/web-1"));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.1"]);
    world.set_endpoints(&[]);
    world.tick();
    assert!(world.members().is_empty());
    assert_eq!(world.take_events(), [("default/web".to_owned(), Updated)]);
}

/// cloud-provider-azure acts on changed slices only, not on new or deleted ones.
#[test]
fn new_and_deleted_slices_change_the_members() {
    let mut world = world();
    world.updater.apply_slice(&slice("default/web-9", "web", &["n9"]));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2", "10.0.0.9"]);
    world.updater.delete_slice(&name("default/web-1"));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.9"]);
}

#[test]
fn a_slice_that_loses_its_service_no_longer_counts() {
    for service in [None, Some("other"), Some("")] {
        let mut world = world();
        world.updater.apply_slice(&slice("default/web-2", "web", &["n3"]));
        world.updater.apply_slice(&slice("default/web-1", service, &["n2"]));
        world.tick();
        assert_eq!(world.members(), ["10.0.0.3"]);
    }
}

#[test]
fn slices_of_other_namespaces_and_services_do_not_count() {
    let mut world = world();
    world.updater.apply_slice(&slice("other/web-1", "web", &["n7"]));
    world.updater.apply_slice(&slice("default/webs-1", "webs", &["n8"]));
    world.updater.apply_slice(&slice("default/x", None::<&str>, &["n9"]));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
}

/// On dual-stack nodes cloud-provider-azure finds a difference each time, because it compares addresses of both families.
#[test]
fn each_family_has_its_pool_and_nothing_is_done_twice() {
    let mut world = World::new();
    world.add_service("default/web", &[IpFamily::IPv4, IpFamily::IPv6], "lb");
    world.set_endpoints(&["n1", "n2"]);
    world.observe();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(world.addresses("lb", "default-web-ipv6"), ["fd00::1", "fd00::2"]);
    world.take_calls();
    world.set_endpoints(&["n2", "n1"]);
    world.tick();
    assert!(world.take_calls().is_empty());
}

/// cloud-provider-azure adds an entry without a name for a node that it does not know.
#[test]
fn unknown_nodes_are_skipped_until_they_are_known() {
    let mut world = world();
    world.set_endpoints(&["n2", "new"]);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    let status = world.updater.service_status(&name("default/web")).unwrap();
    let skipped = &status.pools[0].desired.as_ref().unwrap().skipped;
    assert_eq!(skipped[0].reason.to_string(), "there is no Node of this name");
    world.updater.apply_node(node("new", &["10.0.1.1"]));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2", "10.0.1.1"]);
}

#[test]
fn nodes_that_leave_the_load_balancers_leave_the_pool_and_come_back() {
    let mut world = world();
    world.set_endpoints(&["n2", "n3"]);
    let mut left = node("n3", &["10.0.0.3"]);
    left.excluded_by = Some("kubernetes.azure.com/managed");
    world.updater.apply_node(left);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
    world.updater.apply_node(node("n3", &["10.0.0.3"]));
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2", "10.0.0.3"]);
}

/// `n1` to `n3` have endpoints and are members.
fn world_of_three() -> World {
    let mut world = world();
    let nodes = ["n1", "n2", "n3"];
    world.set_endpoints(&nodes);
    world.set_addresses("lb", "default-web", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    world.observe();
    world
}

#[test]
fn node_that_leaves_stays_a_member_for_five_minutes() {
    let leaves: [fn(&mut World); 2] = [
        |world| world.updater.delete_node("n3"),
        |world| {
            world.updater.apply_node(Node {
                is_deleting: true,
                ..node("n3", &["10.0.0.3"])
            });
        },
    ];
    for leave in leaves {
        let mut world = world_of_three();
        leave(&mut world);
        // The time begins with the first tick.
        for _ in 0..10 {
            world.tick();
            assert_eq!(world.members(), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        }
        assert!(world.take_calls().is_empty());
        world.tick();
        assert_eq!(world.members(), ["10.0.0.1", "10.0.0.2"]);
    }
}

#[test]
fn pool_is_not_emptied_because_nodes_are_unknown() {
    let mut world = world_of_three();
    world.updater.retain_nodes(&[].into());
    world.ticks(100);
    assert!(world.take_calls().is_empty() && world.take_events().is_empty());
    world.updater.apply_node(node("n1", &["10.0.0.1"]));
    world.ticks(100);
    assert!(world.take_calls().is_empty(), "two of three are unknown");
    world.updater.apply_node(node("n2", &["10.0.0.2"]));
    world.set_endpoints(&["n2", "n3"]);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"], "only one of two is unknown");
    world.updater.delete_node("n2");
    world.set_endpoints(&["n1"]);
    world.tick();
    assert_eq!(world.members(), ["10.0.0.1"], "no endpoint names it any more");
}

#[test]
fn node_that_has_no_address_any_more_leaves_as_one_that_is_gone() {
    // As where its object was deleted and its kubelet registers before the cloud provider gives it addresses.
    let registered: [fn(&mut World, &str); 2] = [
        |world, name| world.updater.apply_node(node(name, &[])),
        |world, name| {
            world.updater.delete_node(name);
            world.updater.apply_node(node(name, &[]));
            world.updater.apply_node(draining(name, &["fd00::9"]));
        },
    ];
    for register in registered {
        let mut world = world_of_three();
        register(&mut world, "n3");
        world.ticks(10);
        assert!(world.take_calls().is_empty());
        world.tick();
        assert_eq!(world.members(), ["10.0.0.1", "10.0.0.2"]);
        world.updater.apply_node(node("n3", &["10.0.0.3"]));
        world.tick();
        world.observe();
        assert_eq!(world.members(), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        for name in ["n1", "n2", "n3"] {
            register(&mut world, name);
        }
        world.ticks(100);
        world.updater.delete_node("n2");
        world.tick();
        assert_eq!(
            world.members(),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
            "none has an address"
        );
    }
}

#[test]
fn entries_of_nodes_that_a_new_leader_finds_without_addresses_stay_until_they_have_one() {
    let mut world = world_of_three();
    world.updater = Updater::new(UpdaterSettings::default());
    for name in ["n1", "n2", "n3"] {
        world.updater.apply_node(node(name, &["fd00::1"]));
    }
    world.complete_lists();
    world.updater.apply_service(&service("default/web", &[]).into());
    let slice = slice("default/web-1", "web", &["n1", "n2", "n3"]);
    world.updater.apply_slice(&slice);
    world.observe();
    world.ticks(100);
    assert!(world.take_calls().is_empty() && world.take_events().is_empty());
    world.updater.apply_node(node("n2", &["10.0.0.2"]));
    world.updater.apply_node(node("n3", &["10.0.0.33"]));
    world.tick();
    let addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.33"];
    assert_eq!(world.members(), addresses);
    world.updater.apply_node(Node {
        excluded_by: Some("kubernetes.azure.com/managed"),
        ..node("n1", &[])
    });
    world.tick();
    assert_eq!(world.members(), addresses[1..]);
}

#[test]
fn pool_with_a_rule_of_a_service_that_is_not_local_is_left_alone() {
    let mut world = world();
    let other = Service {
        is_local: false,
        ..service("default/other", &[])
    };
    world.add_pool("lb", "default-web", &other.uid);
    world.updater.apply_service(&other.clone().into());
    world.observe();
    world.set_endpoints(&["n2"]);
    world.tick();
    assert!(world.take_calls().is_empty());
    world.updater.delete_service(&other.name);
    world.observe();
    world.tick();
    assert_eq!(world.members(), ["10.0.0.2"]);
}

#[test]
fn node_that_leaves_does_not_join() {
    let mut world = world_of_three();
    world.updater.delete_node("n3");
    world.tick();
    world.set_addresses("lb", "default-web", &["10.0.0.1", "10.0.0.2"]);
    world.observe();
    world.tick();
    assert!(world.take_calls().is_empty());
}

#[test]
fn node_gives_four_addresses_of_a_family() {
    let mut world = world();
    let addresses = ["10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4", "10.0.1.5", "fd00::9"];
    world.updater.apply_node(node("many", &addresses));
    world.set_endpoints(&["many"]);
    world.tick();
    assert_eq!(world.members(), addresses[..4]);
}

#[test]
fn a_node_that_is_draining_joins_as_down_and_a_present_one_is_not_touched() {
    let mut world = world();
    world.set_addresses("lb", "default-web", &["10.0.0.2"]);
    world.updater.apply_node(draining("n2", &["10.0.0.2"]));
    world.updater.apply_node(draining("n3", &["10.0.0.3"]));
    world.set_endpoints(&["n2", "n3"]);
    world.observe();
    world.tick();
    let entries = json!([
        {"name": "n2", "properties": {"ipAddress": "10.0.0.2"}},
        {"name": "n3", "properties": {"ipAddress": "10.0.0.3", "adminState": "Down"}},
    ]);
    let document = &world.pools[&PoolKey::new("lb", "default-web")];
    assert_eq!(document["properties"]["loadBalancerBackendAddresses"], entries);
}

#[test]
fn a_signal_between_the_event_and_the_tick_counts() {
    let mut world = world();
    world.compare_all();
    world.updater.apply_node(draining("n2", &["10.0.0.2"]));
    world.tick();
    let document = &world.pools[&PoolKey::new("lb", "default-web")];
    assert_eq!(
        document["properties"]["loadBalancerBackendAddresses"][0]["properties"]["adminState"],
        "Down"
    );
}

#[test]
fn a_pool_is_never_created() {
    let mut world = World::new();
    world.updater.apply_service(&service("default/web", &[]).into());
    world.set_endpoints(&["n1"]);
    world.observe();
    world.tick();
    assert!(world.take_calls().is_empty() && world.pools.is_empty());
    world.add_pool("lb", "default-web", &service("default/web", &[]).uid);
    world.observe();
    world.tick();
    assert_eq!(
        world.members(),
        ["10.0.0.1"],
        "once cloud-controller-manager has made it"
    );
}

#[test]
fn nothing_is_done_before_the_load_balancers_were_read() {
    let mut world = World::new();
    world.updater.apply_service(&service("default/web", &[]).into());
    world.set_endpoints(&["n1"]);
    assert!(!world.prepare_tick());
    assert!(world.updater.placement().skipped().is_empty());
}

#[test]
fn nothing_is_done_before_everything_was_listed() {
    for missing in ["services", "slices", "nodes"] {
        let mut world = World::new();
        world.updater = Updater::new(UpdaterSettings::default());
        world.updater.apply_node(node("n1", &["10.0.0.1"]));
        world.add_service("default/web", &[], "lb");
        world.set_addresses("lb", "default-web", &["10.0.0.2"]);
        world.set_endpoints(&["n1"]);
        world.observe();
        if missing != "services" {
            world.updater.retain_services(&[name("default/web")].into());
        }
        if missing != "slices" {
            world.updater.retain_slices(&[name("default/web-1")].into());
        }
        if missing != "nodes" {
            world.updater.retain_nodes(&["n1".to_owned()].into());
        }
        world.tick();
        assert!(world.take_calls().is_empty(), "{missing}");
        world.updater.retain_services(&[name("default/web")].into());
        world.updater.retain_slices(&[name("default/web-1")].into());
        world.updater.retain_nodes(&["n1".to_owned()].into());
        world.tick();
        assert_eq!(world.take_calls(), [Call::Get, Call::Put], "{missing}");
    }
}

#[test]
fn a_moved_service_is_updated_where_it_is_now() {
    let mut world = world();
    world.compare_all();
    world.rules.clear();
    world.add_pool("lb2", "default-web", &service("default/web", &[]).uid);
    world.observe();
    world.tick();
    assert_eq!(world.addresses("lb2", "default-web"), ["10.0.0.2"]);
    assert_eq!(world.members(), ["10.0.0.1"], "an orphan is left alone");
}

#[test]
fn a_service_that_becomes_local_finds_its_slices() {
    let mut world = World::new();
    world.set_endpoints(&["n3"]);
    world.add_service("default/web", &[], "lb");
    let mut cluster = service("default/web", &[]);
    cluster.is_local = false;
    world.updater.apply_service(&cluster.into());
    world.observe();
    world.tick();
    assert!(world.members().is_empty());
    world.updater.apply_service(&service("default/web", &[]).into());
    world.tick();
    assert_eq!(world.members(), ["10.0.0.3"]);
}

#[test]
fn objects_missing_from_a_new_list_are_removed() {
    let mut world = world();
    world.updater.apply_slice(&slice("default/web-2", "web", &["n3"]));
    world.compare_all();
    world.updater.retain_slices(&[name("default/web-2")].into());
    world.tick();
    assert_eq!(world.members(), ["10.0.0.3"]);
    world.updater.retain_nodes(&["n1".to_owned()].into());
    world.tick();
    assert_eq!(world.members(), ["10.0.0.3"], "its node is unknown");
    world.updater.apply_slice(&slice("default/web-2", "web", &["n1"]));
    world.compare_all();
    assert_eq!(world.updater.queue().len(), 1);
    world.updater.retain_services(&[].into());
    assert!(world.updater.queue().is_empty());
    assert_eq!(world.updater.service_status(&name("default/web")), None);
}

#[test]
fn status_shows_desired_and_actual() {
    let mut world = world();
    world.updater.begin_tick(world.now);
    let status = world.updater.service_status(&name("default/web")).unwrap();
    let [pool] = status.pools.as_slice() else {
        panic!("{status:?}")
    };
    assert_eq!(pool.actual, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(pool.desired.as_ref().unwrap().members.as_slice()[0].node.as_ref(), "n2");
    assert!(status.skipped.is_empty());
}
