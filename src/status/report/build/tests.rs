use std::net::IpAddr;

use headgate_azure::{ArmError, LoadBalancerId, NetworkInterfaceId};
use headgate_controller::admin_state::{AdminStateMode, ForeignDown, GuardSettings};
use headgate_controller::admin_state::{LedgerChange, LedgerStage, Policy, TargetStates};
use headgate_controller::pool::{LastError, Listing, Taint};
use headgate_controller::service_index::ServiceIndex;
use headgate_core::clock::Clock;
use headgate_core::node::{KnownSignal, Signal, SignalSettings, Unproved};
use headgate_core::service::{NamespacedName, Service};
use headgate_core::settings::IntOrPercent;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::report::{Detail, Report as _};
use crate::status::report::Selection;

const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/kubernetes";
const KEY: &str = "drain";

fn node(number: u8, tainted: bool) -> ClusterNode {
    let taint = tainted.then(|| Taint::new(KEY, "NoSchedule"));
    ClusterNode {
        name: format!("n{number}"),
        uid: format!("u{number}"),
        addresses: vec![IpAddr::from([10, 0, 0, number])],
        taints: taint.into_iter().collect(),
        signals: (tainted
            .then(|| (Signal::Taint(KEY.to_owned()), std::time::Duration::ZERO))
            .into_iter())
        .collect(),
        ready: true,
        ..ClusterNode::default()
    }
}

/// A load balancer with one pool of these entries, by the number of their node, and a pool that no rule uses.
fn view(states: &[(u8, &str)]) -> LoadBalancerView {
    view_with(states, &[])
}

/// The same, with these entries in the pool that no rule uses.
fn view_with(states: &[(u8, &str)], outbound: &[(u8, &str)]) -> LoadBalancerView {
    let entry = |(number, state): &(u8, &str)| json!({"name": format!("n{number}"), "properties": {"ipAddress": format!("10.0.0.{number}"), "adminState": state}});
    let entries: Vec<Value> = states.iter().map(entry).collect();
    let outbound: Vec<Value> = outbound.iter().map(entry).collect();
    let pool = json!({"id": format!("{ID}/backendAddressPools/Main")});
    let document = json!({"id": ID, "properties": {
        "backendAddressPools": [
            {"name": "Main", "properties": {"loadBalancerBackendAddresses": entries}},
            {"name": "outbound", "properties": {"loadBalancerBackendAddresses": outbound}}],
        "probes": [{"name": "p", "properties": {"protocol": "Http", "port": 10456, "requestPath": "/healthz"}}],
        "loadBalancingRules": [
            {"name": "probed", "properties": {"backendAddressPool": pool, "probe": {"id": format!("{ID}/probes/p")}}},
            {"name": "bare", "properties": {"backendAddressPool": pool}}]}});
    LoadBalancerView::new(&document).unwrap()
}

fn pool_id() -> PoolId {
    PoolId::parse(&format!("{ID}/backendAddressPools/main")).unwrap()
}

/// A snapshot of four nodes, of which 1 and 2 are tainted.
fn snapshot(azure: Result<LoadBalancerView, &str>, lines: &[(&str, LedgerStage)]) -> ClusterSnapshot {
    let now = Clock::System.now();
    let mut desired = TargetStates::default();
    for number in 1..=4 {
        let mut node = node(number, number <= 2);
        match number {
            1 => node.health_signals = BTreeSet::from([Signal::Taint(KEY.to_owned())]),
            3 => node.health_signals = BTreeSet::from([Signal::Deletion]),
            _ => {}
        }
        desired.apply(node, now);
    }
    let mut ledger = Ledger::default();
    for (key, stage) in lines {
        let entry = LedgerEntry {
            stage: *stage,
            since: Timestamp::UNIX_EPOCH,
        };
        ledger.apply(LedgerChange::new(&pool_id(), &EntryKey::from_text(key), Some(entry)));
    }
    ClusterSnapshot {
        now,
        desired,
        leader: Ok(None),
        ledger: Ok(ledger),
        azure: azure.map_err(str::to_owned).map(|view| AzureSnapshot {
            listing: Listing {
                requested_at: Some(now.mono),
                load_balancers: BTreeMap::from([(view.id.clone(), Arc::new(view))]),
                ..Listing::default()
            },
            recorded: Listing::default(),
            interfaces: InterfaceCache::default(),
        }),
        policy: Policy {
            mode: AdminStateMode::Enforce,
            foreign_down: ForeignDown::Keep,
        },
        guard: GuardSettings {
            health_port: 10456,
            ..GuardSettings::DISABLED
        },
        services: Ok(ServiceIndex::default()),
        local_pools: crate::status::LocalPoolsSnapshot::default(),
        maintenances: Ok(Vec::new()),
    }
}

fn report(snapshot: &ClusterSnapshot) -> StatusReport {
    StatusReport::from_snapshot(snapshot)
}

/// Of each entry the name of its node, its admin state, owner, stage, and what it becomes.
fn entries(report: &StatusReport) -> Value {
    let rows = report.nodes.iter().flat_map(|node| {
        let row = |entry: &EntryRow| json!([node.name, entry.admin_state, entry.owner, entry.stage, entry.becomes]);
        node.entries.iter().map(row).collect::<Vec<_>>()
    });
    rows.collect()
}

#[test]
fn owners_and_pending_changes_follow_from_plan_and_ledger() {
    let (intended, restored) = (LedgerStage::Intended, LedgerStage::Restored);
    for (states, lines, expected) in [
        // Nothing is written yet: both tainted nodes are pending.
        (
            ["None", "None", "None"],
            vec![],
            json!([
                ["n1", "None", null, null, "Down"],
                ["n2", "None", null, null, "Down"],
                ["n3", "None", null, null, null]
            ]),
        ),
        // headgate's, not yet confirmed; foreign; headgate's without a signal any more.
        (
            ["Down", "Down", "Down"],
            vec![("10.0.0.1", intended), ("10.0.0.3", LedgerStage::Down)],
            json!([
                ["n1", "Down", "headgate", "intended", null],
                ["n2", "Down", "foreign", null, null],
                ["n3", "Down", "headgate", "down", "None"]
            ]),
        ),
        // A Down that is back after it was restored is headgate's and is restored again; with a new signal it is foreign.
        (
            ["Down", "Up", "Down"],
            vec![("10.0.0.1", restored), ("10.0.0.3", restored)],
            json!([
                ["n1", "Down", "foreign", "restored", null],
                ["n2", "Up", "foreign", null, null],
                ["n3", "Down", "headgate", "restored", "None"]
            ]),
        ),
        // A foreign Down without a signal stays.
        (
            ["None", "None", "Down"],
            vec![("10.0.0.2", intended)],
            json!([
                ["n1", "None", null, null, "Down"],
                ["n2", "None", null, "intended", "Down"],
                ["n3", "Down", "foreign", null, null]
            ]),
        ),
    ] {
        let found = snapshot(Ok(view(&[(1, states[0]), (2, states[1]), (3, states[2])])), &lines);
        let report = report(&found);
        assert_eq!(entries(&report), expected, "{states:?} {lines:?}");
        let mut all = report.nodes.iter().flat_map(|node| &node.entries);
        assert!(all.all(|entry| entry.pending == entry.becomes.is_some()));
    }
}

#[test]
fn maintenance_is_planned_as_the_leader_plans_it() {
    let few = Some("too few others can serve");
    let last = Some(
        "no other node in service without a signal has a ready endpoint of default/web in the rule's IP family (externalTrafficPolicy: Local)",
    );
    // Node 5 is Ready, and node 6 is not.
    for (minimum, state, endpoint, is_signal, becomes, held_reason) in [
        (1, "None", 5, true, Some("Down"), None),
        (1, "None", 5, false, None, None),
        (1, "Up", 5, true, None, None),
        (2, "None", 5, true, None, few),
        (1, "None", 4, true, None, last),
    ] {
        let mut found = snapshot(Ok(view(&[(4, state), (5, "None"), (6, "None")])), &[]);
        for number in [5, 6] {
            let node = ClusterNode {
                ready: number == 5,
                ..node(number, false)
            };
            found.desired.apply(node, found.now);
        }
        // The probe's port is the Service's.
        found.guard.health_port = 1;
        found.guard.minimum_in_service = IntOrPercent::Int(minimum);
        found.services = Ok(service_index(endpoint, found.now.mono));
        let disabled = (!is_signal).then_some(KnownSignal::Maintenance);
        let settings = SignalSettings {
            disabled: disabled.into_iter().collect(),
            ..SignalSettings::default()
        };
        found.begin_maintenance(&BTreeSet::from(["n4".to_owned()]), &settings);
        let report = report(&found);
        let entry = &report.nodes.iter().find(|node| node.name == "n4").unwrap().entries[0];
        assert_eq!((entry.becomes, entry.held_reason.as_deref()), (becomes, held_reason));
    }
}

/// The Service `default/web` with an endpoint on this node.
fn service_index(node: u8, now: tokio::time::Instant) -> ServiceIndex {
    let name = NamespacedName::new("default", "web");
    let mut index = ServiceIndex::default();
    index.apply_service(&Service {
        uid: "web".to_owned(),
        health_check_port: 10456,
        name: name.clone(),
        ..Service::default()
    });
    index.retain_services(&[name].into());
    let slice = json!({"metadata": {"namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 80}],
        "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": format!("n{node}")}]});
    index.apply_slice(&serde_json::from_value(slice).unwrap(), now);
    index.retain_slices(&[NamespacedName::new("default", "web-1")].into());
    index
}

#[test]
fn what_is_not_enforced_is_not_pending_down() {
    let mut found = snapshot(
        Ok(view(&[(1, "None"), (2, "Down")])),
        &[("10.0.0.2", LedgerStage::Down)],
    );
    found.policy.mode = AdminStateMode::Disabled;
    let report = report(&found);
    let expected = json!([
        ["n1", "None", null, null, null],
        ["n2", "Down", "headgate", "down", "None"]
    ]);
    assert_eq!(entries(&report), expected, "off restores what headgate set");
    assert_eq!(report.down_by_headgate().count(), 1);
}

#[test]
fn without_the_ledger_owners_are_unknown() {
    let mut found = snapshot(Ok(view(&[(1, "Down"), (4, "None")])), &[]);
    found.ledger = Err("forbidden".to_owned());
    let report = report(&found);
    let entries = entries(&report);
    assert_eq!([&entries[0][2], &entries[1][2]], [&json!("unknown"), &Value::Null]);
    assert_eq!(report.ledger_error.as_deref(), Some("forbidden"));
    assert_eq!(report.down_by_headgate().count(), 0);
}

#[test]
fn without_azure_entries_come_from_the_ledger() {
    let lines = [
        ("10.0.0.1", LedgerStage::Down),
        ("10.0.0.9", LedgerStage::Down),
        ("name:n4", LedgerStage::Intended),
    ];
    let mut report = report(&snapshot(Err("no file"), &lines));
    let expected = json!([
        ["n1", null, "headgate", "down", null],
        ["n4", null, "headgate", "intended", null]
    ]);
    assert_eq!(entries(&report), expected);
    assert_eq!(report.unmatched_ledger[0].entry, "10.0.0.9");
    assert!(report.load_balancers.is_empty() && report.probed_by_headgate.is_none());
    report.retain_notable();
    let names: Vec<_> = report.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3", "n4"]);
}

#[test]
fn rules_probes_and_entries_without_node() {
    let lines = [("10.0.0.9", LedgerStage::Down), ("10.0.0.8", LedgerStage::Restored)];
    let report = report(&snapshot(Ok(view(&[(1, "Down"), (9, "Down"), (10, "None")])), &lines));
    let load_balancer = &report.load_balancers[0];
    assert_eq!(load_balancer.not_considered, ["outbound"]);
    let pool = &load_balancer.pools[0];
    assert_eq!((pool.entries, pool.down, pool.desired_down), (3, 2, 1));
    assert_eq!(pool.down_without_node, ["10.0.0.9"]);
    let targets: Vec<_> = pool.rules.iter().map(|rule| rule.target).collect();
    assert_eq!(targets, [ProbeTarget::Headgate, ProbeTarget::NoProbe]);
    assert_eq!(report.probed_by_headgate, Some(true));
    let unmatched: Vec<_> = report
        .unmatched_ledger
        .iter()
        .map(|line| (line.entry.as_str(), line.admin_state))
        .collect();
    assert_eq!(unmatched, [("10.0.0.9", Some("Down")), ("10.0.0.8", None)]);
}

#[test]
fn what_may_have_an_entry_of_no_known_node_is_named() {
    let group = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network";
    let configuration = format!("{group}/networkInterfaces/i/ipConfigurations/c");
    let pool = json!({"id": format!("{ID}/backendAddressPools/main")});
    let document = |is_used: bool| {
        json!({"id": ID, "properties": {
            "backendAddressPools": [{"name": "main", "properties": {"loadBalancerBackendAddresses": [
                {"name": "x", "properties": {"networkInterfaceIPConfiguration": {"id": configuration}, "adminState": "None"}}]}}],
            "loadBalancingRules": if is_used { vec![json!({"name": "r", "properties": {"backendAddressPool": pool}})] } else { Vec::new() }}})
    };
    let interface = NetworkInterfaceId::parse(&configuration).unwrap();
    let forbidden = Unproved::InterfaceUnreadable(String::new()).to_string();
    let unknown = Unproved::InterfaceUnknown.to_string();
    let cases = [
        (true, None, Some(unknown)),
        (true, Some(Err(ArmError::DeadlineExceeded)), Some(forbidden)),
        (true, Some(Ok(Some("/vm".to_owned()))), None),
        (true, Some(Ok(None)), None),
        (false, Some(Err(ArmError::DeadlineExceeded)), None),
    ];
    for (is_used, looked_up, expected) in cases {
        let mut found = snapshot(Ok(LoadBalancerView::new(&document(is_used)).unwrap()), &[]);
        // Without a machine, the entry of an interface may be its own.
        let identified = ClusterNode {
            machine: "/m".to_owned(),
            ..node(2, true)
        };
        found.desired.apply(identified, found.now);
        if let (Some(result), Ok(azure)) = (looked_up, &mut found.azure) {
            azure
                .interfaces
                .store(interface.clone(), tokio::time::Instant::now(), result);
        }
        let report = report(&found);
        let unidentified: Vec<_> = report.nodes.iter().map(|node| node.unidentified).collect();
        assert_eq!(unidentified, [is_used, false, false, false], "{expected:?}");
        match (report.unattributed.as_slice(), expected) {
            ([], None) => {}
            ([why], Some(expected)) => assert!(why.starts_with(&expected), "{why}"),
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn ledger_entries_in_a_pool_without_rules_are_shown_with_their_nodes() {
    let states = [(1, "Down"), (2, "Down"), (3, "Down"), (4, "Down"), (9, "Down")];
    let mut found = snapshot(Ok(view_with(&[], &states)), &[]);
    let outbound = PoolId::parse(&format!("{ID}/backendAddressPools/outbound")).unwrap();
    let ledger = found.ledger.as_mut().unwrap();
    for (number, stage) in [
        (1, LedgerStage::Down),
        (3, LedgerStage::Down),
        (4, LedgerStage::Restored),
        (9, LedgerStage::Down),
    ] {
        let since = Timestamp::UNIX_EPOCH;
        let key = EntryKey::from_text(&format!("10.0.0.{number}"));
        ledger.apply(LedgerChange::new(&outbound, &key, Some(LedgerEntry { stage, since })));
    }
    let report = report(&found);
    // The signal of the first has not ended, so the entry stays Down; nothing new is set Down in this pool.
    let expected = json!([
        ["n1", "Down", "headgate", "down", null],
        ["n3", "Down", "headgate", "down", "None"],
        ["n4", "Down", "headgate", "restored", "None"]
    ]);
    assert_eq!(entries(&report), expected, "foreign entries are not shown");
    let listed: Vec<_> = report
        .down_by_headgate()
        .map(|(node, entry)| (&*node.name, &*entry.pool))
        .collect();
    assert_eq!(listed, [("n1", "outbound"), ("n3", "outbound"), ("n4", "outbound")]);
    let unmatched: Vec<_> = report
        .unmatched_ledger
        .iter()
        .map(|line| (&*line.entry, line.admin_state))
        .collect();
    assert_eq!(unmatched, [("10.0.0.9", Some("Down"))]);
    assert_eq!(report.load_balancers[0].not_considered, ["outbound"]);
}

#[test]
fn of_a_load_balancer_that_is_not_configured_only_ledger_entries_are_shown() {
    let states = [(1, "Down"), (2, "None"), (3, "Down"), (4, "Down")];
    let lines = [("10.0.0.1", LedgerStage::Down), ("10.0.0.3", LedgerStage::Down)];
    let mut found = snapshot(Ok(view(&states)), &lines);
    let Ok(azure) = &mut found.azure else { unreachable!() };
    std::mem::swap(&mut azure.listing, &mut azure.recorded);
    let unread = LoadBalancerId::parse(&format!("{ID}2")).unwrap();
    let error = ArmError::Busy("x".to_owned());
    azure
        .recorded
        .unreadable
        .insert(unread, LastError::from_arm(&error, None));
    let report = report(&found);
    let expected = json!([
        ["n1", "Down", "headgate", "down", null],
        ["n3", "Down", "headgate", "down", "None"]
    ]);
    assert_eq!(entries(&report), expected);
    let row = &report.load_balancers[0];
    assert!(!row.configured && row.pools.is_empty(), "{row:?}");
    assert_eq!(row.not_considered, ["Main", "outbound"]);
    assert_eq!(report.down_by_headgate().count(), 2);
    let text = report.text(Detail::Narrow);
    for expected in [
        "not configured: headgate restores its own entries",
        "kubernetes is not one of the load balancers",
        "The ledger has entries of /subscriptions",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn nodes_without_signal_state_and_ledger_entry_are_left_out() {
    let found = snapshot(Ok(view(&[(1, "None"), (2, "None"), (3, "None"), (4, "None")])), &[]);
    let mut notable = report(&found);
    notable.retain_notable();
    let names: Vec<_> = notable.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["n1", "n2", "n3"], "n3 is being deleted");
    assert_eq!((notable.nodes_total, notable.selection), (4, Selection::Notable));
    let signals: Vec<_> = notable
        .nodes
        .iter()
        .map(|node| {
            (
                &*node.signals[0].name,
                node.signals[0].health,
                node.signals[0].admin_state,
            )
        })
        .collect();
    assert_eq!(
        signals,
        [
            (KEY, true, true),
            (KEY, false, true),
            ("deletionTimestamp", true, false)
        ]
    );
    let codes: Vec<_> = notable.nodes.iter().map(|node| node.verdict.healthz).collect();
    assert_eq!(codes, [Some(503), Some(200), Some(503)]);

    let mut chosen = report(&found);
    let missing = chosen.retain_named(&["n4".to_owned(), "n5".to_owned()]).unwrap_err();
    let words = "there is no Node \"n5\"; `kubectl get nodes` lists them";
    assert_eq!((missing.code, &*missing.error.to_string()), (1, words));
    chosen.retain_named(&["n4".to_owned()]).unwrap();
    assert_eq!((chosen.nodes.len(), chosen.selection), (1, Selection::Named));
}

/// So many nodes, each in eight pools.
fn many_nodes(count: u32) -> ClusterSnapshot {
    let states: Vec<(u8, &str)> = Vec::new();
    let mut found = snapshot(Ok(view(&states)), &[]);
    let address = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number));
    for number in 0..count {
        let mut one = node(0, false);
        one.name = format!("big-{number}");
        one.uid.clone_from(&one.name);
        one.addresses = vec![address(number)];
        found.desired.apply(one, found.now);
    }
    let entries: Vec<Value> = (0..count)
        .map(|number| json!({"properties": {"ipAddress": address(number)}}))
        .collect();
    let Ok(azure) = &mut found.azure else { unreachable!() };
    for number in 0..8 {
        let id = format!("{ID}{number}");
        let pool = json!({"id": format!("{id}/backendAddressPools/p")});
        let document = json!({"id": id, "properties": {
            "backendAddressPools": [{"name": "p", "properties": {"loadBalancerBackendAddresses": entries}}],
            "loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": pool}}]}});
        let view = LoadBalancerView::new(&document).unwrap();
        azure.listing.load_balancers.insert(view.id.clone(), Arc::new(view));
    }
    found
}

/// The time that this thread has computed, whatever else the machine does.
fn computed() -> std::time::Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)
        .unwrap()
        .into()
}

#[test]
fn ten_times_the_nodes_are_not_a_hundred_times_the_work() {
    let work = |count: u32| {
        let found = many_nodes(count);
        let before = computed();
        let mut report = report(&found);
        let work = computed().saturating_sub(before);
        let entries = report.nodes.iter().map(|node| node.entries.len()).sum::<usize>();
        assert_eq!(entries, usize::try_from(count).unwrap() * 8);
        report.retain_notable();
        assert!(report.nodes.len() <= 4);
        work
    };
    let (few, many) = (work(500), work(5000));
    println!("{few:?} and {many:?}");
    assert!(many < 40 * few, "{few:?} and {many:?}");
}
