//! Small clusters and load balancers for this room's tables.

use headgate_azure::{LoadBalancer, LoadBalancerId, PoolId};
use headgate_clock::Moment;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::desired::Desired;
use super::ledger::{Book, Line, Record, Stage};
use crate::pool::{ClusterNode, Key, Taint, View};

pub(super) const DRAIN: &str = "drain";
const ID: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/lb";

pub(super) fn keys() -> Vec<String> {
    vec![DRAIN.to_owned(), "node.kubernetes.io/out-of-service".to_owned()]
}

pub(super) fn node(number: u8, taints: &[&str]) -> ClusterNode {
    let taint = |key: &&str| Taint {
        key: (*key).to_owned(),
        effect: "NoExecute".to_owned(),
    };
    ClusterNode {
        name: format!("n{number}"),
        uid: format!("u{number}"),
        created: Timestamp::UNIX_EPOCH,
        addresses: vec![format!("10.0.0.{number}").parse().unwrap()],
        machine: String::new(),
        excluded: None,
        taints: taints.iter().map(taint).collect(),
        ready: true,
    }
}

pub(super) fn desired(nodes: &[ClusterNode], now: Moment) -> Desired {
    let mut desired = Desired::default();
    for node in nodes {
        desired.apply(node.clone(), &keys(), now);
    }
    desired
}

pub(super) fn pool_id(name: &str) -> PoolId {
    LoadBalancerId::parse(ID).unwrap().pool(name).unwrap()
}

/// A pool's name, its entries, and whether a rule of it is probed.
pub(super) type PoolOf<'a> = (&'a str, &'a [(u8, &'a str)], bool);

/// A load balancer of pools of entries by number with admin states, `-` for none at all.
pub(super) fn view(pools: &[PoolOf<'_>]) -> View {
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
    View::of(LoadBalancer {
        id: LoadBalancerId::parse(ID).unwrap(),
        etag: None,
        document,
    })
}

pub(super) fn line(pool: &str, number: u8, stage: Stage) -> Line {
    let record = Record {
        stage,
        since: Timestamp::UNIX_EPOCH,
    };
    Line::new(&pool_id(pool), &Key::written(&format!("10.0.0.{number}")), Some(record))
}

pub(super) fn book(lines: &[(&str, u8, Stage)]) -> Book {
    let mut book = Book::default();
    for (pool, number, stage) in lines {
        book.write(line(pool, *number, *stage));
    }
    book
}
