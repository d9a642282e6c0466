use serde_json::json;

use super::*;
use crate::local_pools::fixtures::{PoolFixture, observation};

/// UIDs with different base names.
const UID_A: &str = "aaaaaaaa-0000-0000-0000-000000000000";
const UID_B: &str = "bbbbbbbb-0000-0000-0000-000000000000";

fn service(namespace: &str, name: &str, uid: &str, families: &[IpFamily]) -> Service {
    Service {
        uid: uid.into(),
        is_local: true,
        ip_families: families.to_vec(),
        name: NamespacedName::new(namespace, name),
        ..Service::default()
    }
}

fn rule(uid: &str) -> String {
    format!("{}-TCP-80", base_name(uid).unwrap())
}

fn pool(name: &str, rules: &[String]) -> PoolFixture {
    (name.to_owned(), json!([]), rules.to_vec())
}

fn found(services: &[Service], load_balancers: &[Observation]) -> (Vec<String>, Vec<PoolUnavailable>) {
    let placement = place(services, load_balancers, PreConfigured::None);
    let pools = placement
        .pools
        .values()
        .flatten()
        .map(|pool| format!("{} {} {}", pool.key.service, pool.key.pool, pool.family));
    let reasons = placement.skipped().iter().map(|skip| skip.reason.clone());
    (pools.collect(), reasons.collect())
}

#[test]
fn pools_are_found_by_name_and_family() {
    use IpFamily::{IPv4, IPv6};
    let all = [observation(
        "LB1",
        &[
            pool("Default-Web", &[rule(UID_A)]),
            pool("default-web-IPv6", &[rule(UID_A)]),
        ],
    )];
    for (families, pools) in [
        (&[][..], &["default/web lb1/default-web IPv4"][..]),
        (&[IPv4], &["default/web lb1/default-web IPv4"]),
        (&[IPv6], &["default/web lb1/default-web-ipv6 IPv6"]),
        (
            &[IPv6, IPv4],
            &[
                "default/web lb1/default-web IPv4",
                "default/web lb1/default-web-ipv6 IPv6",
            ],
        ),
    ] {
        let (shown, reasons) = found(&[service("default", "web", UID_A, families)], &all);
        assert_eq!(shown, pools, "{families:?}");
        assert!(reasons.is_empty());
    }
}

#[test]
fn services_without_local_pools_have_none() {
    let web = service("default", "web", UID_A, &[]);
    let all = [observation("lb", &[pool("default-web", &[rule(UID_A)])])];
    for other in [
        Service {
            is_local: false,
            ..web.clone()
        },
        Service {
            has_class: true,
            ..web.clone()
        },
        Service {
            is_deleting: true,
            ..web.clone()
        },
    ] {
        assert_eq!(found(std::slice::from_ref(&other), &all), (vec![], vec![]), "{other:?}");
    }
    assert_eq!(found(&[web], &all).0.len(), 1);
}

#[test]
fn a_pool_that_is_not_there_or_unused_is_reported_and_not_taken() {
    let web = [service("default", "web", UID_A, &[])];
    let (pools, reasons) = found(&web, &[observation("lb", &[])]);
    assert_eq!(
        (pools.len(), &reasons[..]),
        (0, &[PoolUnavailable::NotFound("default-web".into())][..])
    );
    let orphan = observation("lb", &[pool("default-web", &[])]);
    let (pools, reasons) = found(&web, &[orphan]);
    assert_eq!(
        (pools.len(), &reasons[..]),
        (0, &[PoolUnavailable::Unused("default-web".into())][..])
    );
}

#[test]
fn an_orphan_beside_the_used_pool_is_left_alone() {
    let web = [service("default", "web", UID_A, &[])];
    let orphan = observation("lb1", &[pool("default-web", &[])]);
    let used = observation("lb2", &[pool("default-web", &["some-rule".into()])]);
    assert_eq!(found(&web, &[orphan, used]).0, ["default/web lb2/default-web IPv4"]);
}

#[test]
fn of_several_used_pools_the_one_with_the_base_name_counts() {
    let web = [service("default", "web", UID_A, &[])];
    let one = observation("lb1", &[pool("default-web", &["some-rule".into()])]);
    let own = observation("lb2", &[pool("default-web", &["other".into(), rule(UID_A)])]);
    assert_eq!(found(&web, &[one.clone(), own]).0, ["default/web lb2/default-web IPv4"]);
    let two = observation("lb2", &[pool("default-web", &["other".into()])]);
    let (pools, reasons) = found(&web, &[one, two]);
    assert!(pools.is_empty());
    assert_eq!(
        reasons[0].to_string(),
        "the load balancers lb1, lb2 have a backend pool default-web, and no rule shows which is the Service's"
    );
}

#[test]
fn a_service_that_is_being_moved_has_both_pools() {
    let web = [service("default", "web", UID_A, &[])];
    let all = ["lb1", "lb2"].map(|name| observation(name, &[pool("default-web", &[rule(UID_A)])]));
    assert_eq!(found(&web, &all).0.len(), 2);
}

#[test]
fn services_that_share_a_pool_are_reported_and_skipped() {
    for (one, other, name) in [
        (
            service("a", "b-c", UID_A, &[]),
            service("a-b", "c", UID_B, &[]),
            "a-b-c",
        ),
        (
            service("x", "foo-ipv6", UID_A, &[]),
            service("x", "foo", UID_B, &[IpFamily::IPv6]),
            "x-foo-ipv6",
        ),
    ] {
        let services = [one.clone(), other.clone()];
        for rules in [vec![rule(UID_A), rule(UID_B)], vec!["unknown".to_owned()]] {
            let (pools, reasons) = found(&services, &[observation("lb", &[pool(name, &rules)])]);
            assert!(pools.is_empty(), "{pools:?}");
            let [
                PoolUnavailable::Collision { others: first, .. },
                PoolUnavailable::Collision { others: second, .. },
            ] = &reasons[..]
            else {
                panic!("{reasons:?}")
            };
            assert_eq!((first, second), (&other.name.to_string(), &one.name.to_string()));
        }
    }
}

#[test]
fn base_names_tell_services_with_one_pool_name_apart() {
    let services = [service("a", "b-c", UID_A, &[]), service("a-b", "c", UID_B, &[])];
    let all = [
        observation("lb1", &[pool("a-b-c", &[rule(UID_A)])]),
        observation("lb2", &[pool("a-b-c", &[rule(UID_B)])]),
    ];
    assert_eq!(
        found(&services, &all).0,
        ["a/b-c lb1/a-b-c IPv4", "a-b/c lb2/a-b-c IPv4"]
    );
    let (pools, reasons) = found(&services, &all[..1]);
    assert_eq!(
        pools,
        ["a/b-c lb1/a-b-c IPv4"],
        "not yet placed, the second has no pool"
    );
    assert_eq!(reasons, [PoolUnavailable::UsedByOther("a-b-c".into())]);
}

/// The cluster's own pool, which many Services use, may have the name of a Local Service's pool.
#[test]
fn a_pool_with_a_rule_of_another_service_is_left_alone() {
    let other = Service {
        is_local: false,
        ..service("default", "other", UID_B, &[])
    };
    let services = [service("team", "web", UID_A, &[]), other];
    for (rules, is_shared) in [
        (vec![rule(UID_B)], true),
        (vec![rule(UID_B).to_ascii_uppercase()], true),
        (vec![rule(UID_A), rule(UID_B)], true),
        (vec![rule(UID_A), rule(UID_A)], false),
        (vec!["other".to_owned()], false),
        // Of a Service that is gone, as where this one was made again.
        (vec![rule("cccccccc-0000-0000-0000-000000000000")], false),
    ] {
        let (pools, reasons) = found(&services, &[observation("lb", &[pool("team-web", &rules)])]);
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let shared = "the backend pool lb/team-web also belongs to default/other; rename one of the Services";
        assert_eq!(
            (pools.len(), reasons),
            if is_shared {
                (0, vec![shared.to_owned()])
            } else {
                (1, Vec::new())
            },
            "{rules:?}"
        );
    }
}

#[test]
fn a_name_that_ends_with_ipv6_does_not_hide_the_ipv4_pool() {
    let services = [service("x", "foo-ipv6", UID_A, &[])];
    let all = [observation("lb", &[pool("x-foo-ipv6", &[rule(UID_A)])])];
    assert_eq!(found(&services, &all).0, ["x/foo-ipv6 lb/x-foo-ipv6 IPv4"]);
}

#[test]
fn pools_of_network_interfaces_and_pre_configured_ones_are_reported() {
    let web = [service("default", "web", UID_A, &[])];
    let id = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic/ipConfigurations/c";
    let mut used = pool("default-web", &[rule(UID_A)]);
    used.1 = json!([{"name": "nic", "properties": {"networkInterfaceIPConfiguration": {"id": id}}}]);
    let (pools, reasons) = found(&web, &[observation("lb", &[used])]);
    assert!(pools.is_empty());
    assert!(
        matches!(reasons[..], [PoolUnavailable::NetworkInterfaces(_)]),
        "{reasons:?}"
    );

    let all = [observation("lb-internal", &[pool("default-web", &[rule(UID_A)])])];
    let placement = place(&web, &all, PreConfigured::Internal);
    assert!(matches!(
        placement.skipped()[0].reason,
        PoolUnavailable::PreConfigured(_)
    ));
    let placement = place(&web, &all, PreConfigured::External);
    assert!(placement.skipped().is_empty() && placement.pools(&web[0].name).len() == 1);
}
