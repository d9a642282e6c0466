use std::time::Duration;

use headgate_core::service::IpFamily::{IPv4, IPv6};

use crate::local_pools::fixtures::{ipv6_slice, slice};

use super::*;

fn name(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn web(port: u16) -> Service {
    Service {
        health_check_port: port,
        name: name("web"),
        ..Service::default()
    }
}

/// The Nodes that serve the Service with this port.
fn serving(index: &ServiceIndex, port: u16) -> Option<Vec<String>> {
    let service = index.service_with_port(port)?;
    let nodes: BTreeSet<_> = service.nodes(IPv4).map(str::to_owned).collect();
    Some(nodes.into_iter().collect())
}

#[test]
fn ready_endpoints_serve_in_whatever_order_the_objects_come() {
    let now = Instant::now();
    let endpoints = [
        ("n1", Some(true)),
        ("n2", None),
        ("n3", Some(false)),
        ("n1", Some(false)),
    ];
    let service_first = |index: &mut ServiceIndex| {
        assert!(index.apply_service(&web(32000)));
        assert!(index.apply_slice(&slice("web-1", Some("web"), &endpoints), now));
    };
    let slice_first = |index: &mut ServiceIndex| {
        assert!(!index.apply_slice(&slice("web-1", Some("web"), &endpoints), now));
        assert!(index.service("default", "web").is_none(), "only a slice is known");
        assert!(index.apply_service(&web(0)));
        assert!(index.service("default", "web").is_none(), "nothing probes it");
        assert!(index.apply_service(&web(32000)));
    };
    for order in [&service_first as &dyn Fn(&mut ServiceIndex), &slice_first] {
        let mut index = ServiceIndex::default();
        order(&mut index);
        assert_eq!(serving(&index, 32000).unwrap(), ["n1", "n2"]);
        assert!(index.service_with_port(32001).is_none() && index.service_with_port(0).is_none());
        assert!(index.service("default", "web").is_some());
        assert!(
            !index.apply_slice(&slice("web-1", Some("web"), &endpoints), now),
            "the same again"
        );
        // As where the Service names a port that the pods no longer have; kube-proxy uses no such endpoint.
        let mut without_port = slice("web-2", Some("web"), &[("n4", None)]);
        without_port.ports = None;
        assert!(!index.apply_slice(&without_port, now));
        assert_eq!(serving(&index, 32000).unwrap(), ["n1", "n2"]);
    }
}

#[test]
fn what_is_gone_serves_nothing() {
    let now = Instant::now();
    let mut index = ServiceIndex::default();
    index.apply_service(&web(32000));
    index.apply_slice(&slice("web-1", Some("web"), &[("n1", None)]), now);
    index.apply_slice(&slice("web-2", Some("web"), &[("n1", None), ("n2", None)]), now);
    assert!(!index.delete_slice(&name("web-1")), "n1 is in the other slice, too");
    assert!(index.apply_slice(&slice("web-2", Some("other"), &[("n2", None)]), now));
    assert_eq!(
        serving(&index, 32000).unwrap(),
        [""; 0],
        "the slice is another Service's"
    );
    index.apply_slice(&slice("web-2", Some("web"), &[("n2", None)]), now);
    assert!(index.apply_service(&web(32001)), "the port has changed");
    assert!(index.service_with_port(32000).is_none());
    assert_eq!(serving(&index, 32001).unwrap(), ["n2"]);
    index.retain_slices(&[name("web-3")].into());
    assert_eq!(serving(&index, 32001).unwrap(), [""; 0]);
    assert!(index.retain_services(&HashSet::new()) && !index.retain_services(&HashSet::new()));
    assert!(index.service_with_port(32001).is_none());
    assert!(index.services.is_empty() && index.service_of_slice.is_empty() && index.node_names.is_empty());
}

#[test]
fn service_is_found_by_the_name_of_its_rule_for_as_long_as_it_has_the_uid() {
    let mut index = ServiceIndex::default();
    let found = |index: &ServiceIndex, rule: &str| index.service_of_rule(rule).is_some();
    let with_uid = |uid: &str, port| Service {
        uid: uid.to_owned(),
        ..web(port)
    };
    assert!(index.apply_service(&with_uid("u-1", 32000)));
    assert!(found(&index, "au1-TCP-443") && found(&index, "AU1") && !found(&index, "au11-TCP-443"));
    assert!(
        index.apply_service(&with_uid("u-2", 32000)),
        "deleted and created again"
    );
    assert!(!found(&index, "au1-TCP-443") && found(&index, "au2-TCP-443"));
    index.apply_service(&with_uid("u-2", 0));
    assert!(!found(&index, "au2-TCP-443"), "not Local any more");
    index.apply_service(&with_uid("u-2", 32000));
    index.retain_services(&HashSet::new());
    assert!(index.base_names.is_empty());
}

#[test]
fn endpoint_keeps_its_time_while_it_serves() {
    let start = Instant::now();
    let later = start + Duration::from_secs(9);
    let mut index = ServiceIndex::default();
    index.apply_service(&web(32000));
    index.apply_slice(&slice("web-1", Some("web"), &[("n1", None)]), start);
    index.apply_slice(&slice("web-1", Some("web"), &[("n1", None), ("n2", None)]), later);
    let service = index.service_with_port(32000).unwrap();
    assert_eq!(
        (service.serves_since("n1", IPv4), service.serves_since("n2", IPv4)),
        (Some(start), Some(later))
    );
    assert_eq!(service.serves_since("n3", IPv4), None);
    // Another family is another endpoint.
    assert!(index.apply_slice(&ipv6_slice("web-2", Some("web"), &[("n1", None)]), later));
    let service = index.service_with_port(32000).unwrap();
    assert_eq!(
        (service.serves_since("n1", IPv6), service.serves_since("n2", IPv6)),
        (Some(later), None)
    );
    assert!(index.delete_slice(&name("web-2")));
    // Created again with this name.
    assert!(index.apply_slice(&ipv6_slice("web-1", Some("web"), &[("n1", None), ("n2", None)]), later));
    assert_eq!(serving(&index, 32000).unwrap(), [""; 0]);
}

#[test]
fn nothing_is_known_before_both_lists_and_while_one_is_stale() {
    let mut index = ServiceIndex::default();
    assert_eq!(index.unknown(), Some(Unknown::Listing));
    assert_eq!(index.has_no_load_balancer_service(), None);
    index.retain_services(&HashSet::new());
    index.set_overdue();
    assert_eq!(index.unknown(), Some(Unknown::NotListed));
    assert_eq!(index.has_no_load_balancer_service(), Some(false));
    index.retain_slices(&HashSet::new());
    assert_eq!(index.unknown(), None);
    assert_eq!(index.has_no_load_balancer_service(), Some(true));
    for (frontends, is_none) in [(0, true), (1, false), (0, true)] {
        index.apply_service(&Service { frontends, ..web(0) });
        assert_eq!(index.has_no_load_balancer_service(), Some(is_none), "{frontends}");
    }
    index.set_stale(Some("services"));
    assert_eq!(index.unknown(), Some(Unknown::Stale("services")));
    assert_eq!(index.has_no_load_balancer_service(), Some(false));
}

/// The bytes per Service are counted by what a slice leaves: two names and a pointer per Node.
#[test]
fn names_of_nodes_are_in_memory_once() {
    let now = Instant::now();
    let mut index = ServiceIndex::default();
    for number in 0..100 {
        let endpoints = [("n1", None), ("n2", None)];
        index.apply_slice(&slice(&format!("s-{number}"), Some("web"), &endpoints), now);
    }
    index.retain_slices(&index.slice_names());
    assert_eq!(index.node_names.len(), 2);
    assert_eq!(index.node_names.keys().map(Arc::strong_count).sum::<usize>(), 2 * 101);
    for number in 0..100 {
        let node = format!("other-{number}");
        index.apply_slice(&slice("s-0", Some("web"), &[(&node, None)]), now);
    }
    assert_eq!(
        index.node_names.len(),
        3,
        "those of the slice before are forgotten without a list"
    );
}
