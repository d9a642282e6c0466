//! Small clusters and load balancers for the tables of this module.

use headgate_azure::{LoadBalancer, LoadBalancerId, PoolId};
use headgate_core::clock::Moment;
use headgate_core::node::SignalRules;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerStage};
use super::target_states::TargetStates;
use crate::pool::{ClusterNode, EntryKey, LoadBalancerView, Taint};

pub(super) const DRAIN: &str = "drain";
const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/lb";

fn rules() -> SignalRules {
    SignalRules::new([DRAIN, "node.kubernetes.io/out-of-service"], &[])
}

pub(super) fn node(number: u8, taints: &[&str]) -> ClusterNode {
    let node = ClusterNode {
        name: format!("n{number}"),
        uid: format!("u{number}"),
        addresses: vec![format!("10.0.0.{number}").parse().unwrap()],
        taints: taints.iter().map(|key| Taint::new(key, "NoExecute")).collect(),
        ready: true,
        ends: taints.contains(&"node.kubernetes.io/out-of-service"),
        ..ClusterNode::default()
    };
    node.with_signals(&rules())
}

pub(super) fn target_states(nodes: &[ClusterNode], now: Moment) -> TargetStates {
    let mut states = TargetStates::default();
    for node in nodes {
        states.apply(node.clone(), now);
    }
    states
}

pub(super) fn pool_id(name: &str) -> PoolId {
    LoadBalancerId::parse(ID).unwrap().pool(name).unwrap()
}

/// A pool's name, its entries, and whether its rule has a probe.
pub(super) type PoolFixture<'a> = (&'a str, &'a [(u8, &'a str)], bool);

/// A load balancer with these pools. An entry is the number of its node and its admin state, `-` for no admin state.
pub(super) fn view(pools: &[PoolFixture<'_>]) -> LoadBalancerView {
    let entry = |(number, state): &(u8, &str)| {
        let mut entry = json!({"name": format!("n{number}"), "properties": {"ipAddress": format!("10.0.0.{number}")}});
        if *state != "-" {
            entry["properties"]["adminState"] = json!(state);
        }
        entry
    };
    let rule = |name: &str, probed: bool| {
        let mut rule = json!({"name": name, "properties": {"backendAddressPool": {"id": format!("{ID}/backendAddressPools/{name}")}}});
        if probed {
            rule["properties"]["probe"] = json!({"id": format!("{ID}/probes/p")});
        }
        rule
    };
    let document = json!({"id": ID, "properties": {
        "probes": [{"name": "p", "properties": {"protocol": "Tcp", "port": 80}}],
        "backendAddressPools": pools.iter().map(|(name, entries, _)| json!({"name": name, "properties": {
            "loadBalancerBackendAddresses": entries.iter().map(entry).collect::<Vec<Value>>()}})).collect::<Vec<_>>(),
        "loadBalancingRules": pools.iter().map(|(name, _, probed)| rule(name, *probed)).collect::<Vec<_>>()}});
    LoadBalancerView::new(&LoadBalancer {
        id: LoadBalancerId::parse(ID).unwrap(),
        etag: None,
        document,
    })
}

pub(super) fn ledger_change(pool: &str, number: u8, stage: LedgerStage) -> LedgerChange {
    let entry = LedgerEntry {
        stage,
        since: Timestamp::UNIX_EPOCH,
    };
    LedgerChange::new(
        &pool_id(pool),
        &EntryKey::from_text(&format!("10.0.0.{number}")),
        Some(entry),
    )
}

pub(super) fn ledger(entries: &[(&str, u8, LedgerStage)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (pool, number, stage) in entries {
        ledger.apply(ledger_change(pool, *number, *stage));
    }
    ledger
}
