use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use headgate_core::node::Signal;
use headgate_core::settings::IntOrPercent;

use super::super::fixtures::{
    DRAIN, OUT, add_interface, guarded_by, ledger, local_services as index, lookups, node, plan_inputs, pool_id,
    probed_view as view, target_states,
};
use super::super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::super::ledger::LedgerStage;
use super::super::plan::{Plan, PlanInputs, plan};
use super::*;
use crate::local_pools::fixtures::ipv6_slice;
use crate::pool::{ClusterNode, InterfaceCache, LoadBalancerView};

mod sequences;

struct Scene<'a> {
    nodes: Vec<ClusterNode>,
    entries: &'a [(u8, &'a str)],
    probes: &'a [(&'a str, u16)],
    services: ServiceIndex,
    held: HeldEntries,
    minimum: u32,
    now: Moment,
}

const SHARED: &[(&str, u16)] = &[("Http", 10456), ("Http", 32000)];
const ALL_UP: &[(u8, &str)] = &[(1, "None"), (2, "None"), (3, "None")];

impl Scene<'_> {
    /// Three nodes in one pool; rule A probes headgate, rule B the Service `web`, which `serving` serve.
    fn new(taints: [&[&str]; 3], serving: &[u8]) -> Self {
        let now = Clock::System.now();
        Self {
            nodes: (1..).zip(taints).map(|(number, taints)| node(number, taints)).collect(),
            entries: ALL_UP,
            probes: SHARED,
            services: index(&[("web", 32000, serving)], now),
            held: HeldEntries::new(),
            minimum: 1,
            now,
        }
    }

    fn plan(&self) -> Plan {
        self.plan_of(&view(self.entries, self.probes), &InterfaceCache::default())
    }

    fn plan_of(&self, view: &LoadBalancerView, interfaces: &InterfaceCache) -> Plan {
        let down = self.entries.iter().filter(|(_, state)| *state == "Down");
        let down: Vec<_> = down.map(|(number, _)| ("p", *number, LedgerStage::Down)).collect();
        let settings = GuardSettings {
            minimum_in_service: IntOrPercent::Int(self.minimum),
            health_port: 10456,
            ..GuardSettings::DISABLED
        };
        plan(
            view,
            &PlanInputs {
                interfaces,
                guard: GuardInputs {
                    held: &self.held,
                    services: Some(&self.services),
                    ..guarded_by(&settings)
                },
                ..plan_inputs(&target_states(&self.nodes, self.now), &ledger(&down), self.now)
            },
        )
    }

    /// The changes of the plan, such as `n1 Down`.
    fn changes(&self) -> Vec<String> {
        let plan = self.plan();
        let changes = plan.edits.iter().flat_map(|edit| &edit.admin_states);
        changes
            .map(|change| format!("{} {}", change.node.name, change.to.as_str()))
            .collect()
    }

    /// The nodes that are held back, and for which Services.
    fn held(&self) -> Vec<(String, Vec<String>)> {
        let plan = self.plan();
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        held.map(|entry| {
            (
                entry.node.name.clone(),
                entry.held_for.services.iter().cloned().collect(),
            )
        })
        .collect()
    }
}

fn held(node: &str, services: &[&str]) -> Vec<(String, Vec<String>)> {
    vec![(
        node.to_owned(),
        services.iter().map(|name| format!("default/{name}")).collect(),
    )]
}

#[test]
fn last_serving_node_of_a_local_service_stays_for_a_revocable_signal() {
    let scene = Scene::new([&[DRAIN], &[], &[]], &[1]);
    assert_eq!(scene.changes(), [""; 0]);
    assert_eq!(scene.held(), held("n1", &["web"]));
    assert_eq!(scene.plan().pools[0].held_back, 1);
    assert!(!scene.plan().entries[0].held_for.minimum, "the pool has others");
    // Another node serves it, or no node does.
    for serving in [&[1, 2][..], &[3], &[]] {
        let scene = Scene::new([&[DRAIN], &[], &[]], serving);
        assert_eq!(
            (scene.changes(), scene.held()),
            (vec!["n1 Down".to_owned()], vec![]),
            "{serving:?}"
        );
    }
}

/// As where the pod on n1 is older than the second family of its Service.
#[test]
fn node_serves_only_the_rules_of_its_endpoints_family() {
    for (pool, rule, prefix, is_held) in [
        ("p", "Http-32000", Some("fd00::"), true),
        ("kubernetes-IPv6", "aweb-TCP-80-IPv6", None, true),
        ("kubernetes-IPv6", "Http-32000", Some("10.0.0."), false),
        ("kubernetes", "aweb-TCP-80", None, false),
        // Of an administrator: neither name tells the family.
        ("web-v6", "Http-32000", None, true),
    ] {
        let mut scene = Scene::new([&[DRAIN], &[], &[]], &[2, 1]);
        let slice = ipv6_slice("web-v6", Some("web"), &[("n1", None)]);
        scene.services.apply_slice(&slice, scene.now.mono);
        let mut view = view(scene.entries, scene.probes);
        let changed = Arc::make_mut(&mut view.pools[0]);
        changed.id = pool_id(pool);
        changed.rules[1].name = rule.to_owned();
        for (number, (node, entry)) in (1..).zip(scene.nodes.iter_mut().zip(&mut changed.entries)) {
            node.addresses.push(format!("fd00::{number}").parse().unwrap());
            entry.matcher = match prefix {
                Some(prefix) => NodeMatcher::Address(format!("{prefix}{number}").parse().unwrap()),
                None => NodeMatcher::Name(node.name.clone()),
            };
        }
        let plan = scene.plan_of(&view, &InterfaceCache::default());
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        assert_eq!(held.count(), usize::from(is_held), "{pool} {rule} {prefix:?}");
    }
}

#[test]
fn rule_that_probes_the_health_of_a_service_at_headgate_is_such_a_rule() {
    let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1]);
    scene.probes = &[("HTTP", 10456)];
    assert_eq!((scene.changes(), scene.held()), (vec![], held("n1", &["web"])));
    scene.services.set_stale(Some("services"));
    assert_eq!((scene.changes(), scene.held()), (vec![], held("n1", &[])));
    let scene = Scene {
        probes: &[("HTTP", 10456)],
        ..Scene::new([&[DRAIN], &[], &[]], &[1, 2])
    };
    assert_eq!(scene.changes(), ["n1 Down"]);
}

/// As where a Private Link Service with the PROXY protocol makes an administrator choose the `NodePort`.
#[test]
fn rule_of_a_local_service_that_probes_another_port_is_such_a_rule_by_its_name() {
    for (name, probe, is_needed) in [
        ("aweb-TCP-443", ("Tcp", 31000), true),
        ("AWEB-TCP-443", ("Https", 31000), true),
        ("aweb-TCP-443", ("Http", 10256), true),
        ("aweb-TCP-443", ("Tcp", 10456), true),
        // Each node with a signal fails it, wherever the endpoints are.
        ("aweb-TCP-443", ("Http", 10456), false),
        ("aother-TCP-443", ("Tcp", 31000), false),
        ("Tcp-31000", ("Tcp", 31000), false),
    ] {
        for stale in [None, Some("services")] {
            let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1]);
            scene.services.set_stale(stale);
            let mut view = view(scene.entries, &[probe]);
            Arc::make_mut(&mut view.pools[0]).rules[0].name = name.to_owned();
            let plan = scene.plan_of(&view, &InterfaceCache::default());
            let held: Vec<_> = plan.entries.iter().filter(|entry| entry.is_held_back).collect();
            assert_eq!(held.len(), usize::from(is_needed), "{name} {probe:?} {stale:?}");
            let is_web = |entry: &&EntryStatus| entry.held_for.services.contains("default/web");
            assert_eq!(
                held.iter().any(is_web),
                is_needed && stale.is_none(),
                "{name} {probe:?}"
            );
        }
    }
}

#[test]
fn terminal_signal_is_never_held_back() {
    let scene = Scene::new([&[DRAIN, OUT], &[], &[]], &[1]);
    assert_eq!((scene.changes(), scene.held()), (vec!["n1 Down".to_owned()], vec![]));
    // Of two, the one that is not about to end stays, although the other has served longer.
    let scene = Scene::new([&[OUT], &[DRAIN], &[]], &[1, 2]);
    assert_eq!(
        (scene.changes(), scene.held()),
        (vec!["n1 Down".to_owned()], held("n2", &["web"]))
    );
}

#[test]
fn another_node_counts_only_if_it_serves_and_is_in_service() {
    let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1, 2]);
    scene.entries = &[(1, "None"), (2, "Down"), (3, "None")];
    assert_eq!(scene.changes(), ["n2 None"], "n2 comes back first");
    assert_eq!(scene.held(), held("n1", &["web"]));
    scene.entries = &[(1, "None"), (3, "None")];
    assert_eq!(scene.held(), held("n1", &["web"]), "n2 is not in the pool");
    scene.entries = ALL_UP;
    scene.nodes[1].ready = false;
    assert_eq!(scene.held(), held("n1", &["web"]), "n2 is not Ready");
    scene.nodes[1].ready = true;
    scene.nodes[1].excluded = Some("label");
    assert_eq!(scene.held(), held("n1", &["web"]), "n2 leaves the pool");
}

/// kube-proxy answers on its port of the Service.
#[test]
fn node_without_an_agent_serves_only_rules_that_kube_proxy_answers() {
    let (agents, kube_proxy) = (("HTTP", 10456), ("Http", 32000));
    for (probes, is_held) in [
        (vec![agents], true),
        (vec![kube_proxy], false),
        (vec![kube_proxy, agents], true),
        (vec![agents, kube_proxy], true),
    ] {
        for taints in [&[][..], &[DRAIN]] {
            let mut scene = Scene::new([taints, &[DRAIN], &[]], &[1, 2]);
            scene.nodes[0].lacks_agent = true;
            scene.probes = &probes;
            let expected = match (is_held, taints.is_empty()) {
                (true, _) => held("n2", &["web"]),
                (false, true) => vec![],
                (false, false) => held("n1", &["web"]),
            };
            assert_eq!(scene.held(), expected, "{probes:?} {taints:?}");
        }
    }
}

/// Its agent answers 503 about every Service at once.
#[test]
fn node_that_is_about_to_end_by_a_signal_of_health_alone_does_not_serve() {
    let ends = || [Signal::Condition("condition:Gone=True".to_owned())].into();
    for probes in [&[("HTTP", 10456)], &[("Http", 32000)]] {
        let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1, 2]);
        scene.probes = probes;
        scene.nodes[1].health_signals = [Signal::Unschedulable].into();
        assert_eq!(scene.changes(), ["n1 Down"], "n2 stays as the last one that serves");
        scene.nodes[1].health_signals = ends();
        assert_eq!((scene.changes(), scene.held()), (vec![], held("n1", &["web"])));
        scene.entries = &[(1, "Down"), (2, "None"), (3, "None")];
        assert_eq!(
            (scene.changes(), scene.held()),
            (vec!["n1 None".to_owned()], held("n1", &["web"]))
        );
        // Of two whose entries would go, the other one stays, although it has served less long.
        let mut scene = Scene::new([&[DRAIN], &[DRAIN], &[]], &[1, 2]);
        scene.probes = probes;
        scene.nodes[0].health_signals = ends();
        assert_eq!(
            (scene.changes(), scene.held()),
            (vec!["n1 Down".to_owned()], held("n2", &["web"]))
        );
        scene.entries = &[(1, "None"), (2, "Down"), (3, "None")];
        assert_eq!(scene.changes(), ["n1 Down", "n2 None"], "{:?}", scene.held());
    }
}

#[test]
fn of_several_signalled_nodes_one_stays_the_longest_serving_or_the_present_choice() {
    let mut scene = Scene::new([&[DRAIN], &[DRAIN], &[]], &[2, 1]);
    assert_eq!(
        (scene.changes(), scene.held()),
        (vec!["n1 Down".to_owned()], held("n2", &["web"]))
    );
    scene.held = [(pool_id("p"), "u1".to_owned())].into();
    assert_eq!(
        (scene.changes(), scene.held()),
        (vec!["n2 Down".to_owned()], held("n1", &["web"]))
    );
    // One that is in service goes before one that has to come back.
    scene.entries = &[(1, "Down"), (2, "None"), (3, "None")];
    assert_eq!((scene.changes(), scene.held()), (vec![], held("n2", &["web"])));
    // One that is Ready goes before one that serves longer.
    let mut scene = Scene::new([&[DRAIN], &[DRAIN], &[]], &[2, 1]);
    scene.nodes[1].ready = false;
    assert_eq!(scene.held(), held("n1", &["web"]));
}

#[test]
fn node_that_headgate_took_out_comes_back_if_no_other_serves_any_more() {
    let mut scene = Scene::new([&[DRAIN], &[OUT], &[]], &[1, 2]);
    scene.entries = &[(1, "Down"), (2, "None"), (3, "None")];
    assert_eq!(scene.changes(), ["n1 None", "n2 Down"]);
    assert_eq!(scene.held(), held("n1", &["web"]));
}

#[test]
fn it_stays_out_beside_an_interface_whose_node_is_unknown() {
    let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1]);
    scene.entries = &[(1, "Down"), (2, "None"), (3, "None")];
    for (lookup, is_unknown) in lookups() {
        let mut view = view(scene.entries, scene.probes);
        let case = format!("{lookup:?}");
        let interfaces = add_interface(&mut view, lookup);
        let plan = scene.plan_of(&view, &interfaces);
        assert_eq!(plan.edits.is_empty(), is_unknown, "{case}");
    }
}

#[test]
fn entry_is_held_for_every_rule_that_needs_it_and_each_service_counts_once() {
    let mut scene = Scene::new([&[DRAIN], &[DRAIN], &[]], &[]);
    scene.services = index(
        &[("api", 32001, &[1, 2]), ("web", 32000, &[2]), ("www", 32002, &[3])],
        scene.now,
    );
    scene.probes = &[("Http", 32000), ("http", 32000), ("Http", 32001), ("Http", 32002)];
    let both = [held("n1", &["api"]), held("n2", &["web"])].concat();
    assert_eq!(scene.held(), both, "api takes the one that serves longest");
    // Where `web` has chosen already, `api` takes the same node.
    scene.held = [(pool_id("p"), "u2".to_owned())].into();
    assert_eq!(scene.held(), held("n2", &["api", "web"]));
    // And so it does in one plan, although the other node serves it longer.
    scene.held.clear();
    scene.services = index(&[("api", 32001, &[2]), ("web", 32000, &[1, 2])], scene.now);
    assert_eq!(scene.held(), held("n2", &["api", "web"]));
}

#[test]
fn unknown_services_keep_revocable_signals_out_of_pools_with_such_rules_only() {
    let mut scene = Scene::new([&[DRAIN], &[OUT], &[]], &[3]);
    scene.services.set_stale(Some("services"));
    assert_eq!(scene.changes(), ["n2 Down"], "a terminal signal does not wait");
    assert_eq!(scene.held(), held("n1", &[]));
    let plan = scene.plan();
    let entry = plan.entries.iter().find(|entry| entry.is_held_back).unwrap();
    assert_eq!(entry.held_for.unknown, Some(Unknown::Stale("services")));
    // What is Down stays so.
    scene.entries = &[(1, "Down"), (2, "Down"), (3, "None")];
    assert_eq!((scene.changes(), scene.held()), (vec![], vec![]));
    scene.entries = ALL_UP;
    for (probes, may_need) in [
        (&[("Http", 10456), ("Tcp", 31000), ("Https", 31001)][..], false),
        (&[("Http", 10256), ("Http", 10356), ("Http", 10456)], false),
        (&[("Tcp", 31000), ("Http", 31001)], true),
        (&[("unknown", 0)], true),
    ] {
        scene.probes = probes;
        assert_eq!(!scene.held().is_empty(), may_need, "{probes:?}");
    }
}

#[test]
fn disabled_guard_holds_for_no_rule() {
    let mut scene = Scene::new([&[DRAIN], &[], &[]], &[1]);
    scene.minimum = 0;
    assert_eq!((scene.changes(), scene.held()), (vec!["n1 Down".to_owned()], vec![]));
}

#[test]
fn contested_entry_is_held_if_one_claimant_serves() {
    let mut scene = Scene::new([&[DRAIN], &[DRAIN], &[]], &[1]);
    // Both claim the address of the entry, which names neither.
    scene.nodes[1].addresses = scene.nodes[0].addresses.clone();
    scene.nodes[0].name = "n7".to_owned();
    scene.nodes[1].name = "n8".to_owned();
    scene.services = index(&[("web", 32000, &[7])], scene.now);
    assert_eq!(scene.held().len(), 1);
    assert_eq!(scene.changes(), [""; 0]);
}
