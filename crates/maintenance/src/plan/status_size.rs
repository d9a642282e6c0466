//! What keeps the status of a maintenance of many nodes short (ST-01): API objects have to stay below 1.5 MiB.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use crate::api::names::{MAX_NODE_TARGETS_BYTES, MAX_STATUS_BYTES};
use crate::api::{NodeMaintenanceNodeStatus, NodeMaintenanceStatus, TargetSet};

/// Moves long targets of nodes into sets, one for all nodes with the same.
pub(super) fn share_long_targets(nodes: &mut [NodeMaintenanceNodeStatus]) -> Vec<TargetSet> {
    let mut sets = Vec::new();
    let mut positions: BTreeMap<String, Option<i32>> = BTreeMap::new();
    for node in nodes {
        // Targets without a selector are never long.
        if node.drain_targets.iter().all(|entry| entry.pod_selector.is_none()) {
            continue;
        }
        let text = serde_json::to_string(&node.drain_targets).unwrap_or_default();
        if text.len() <= MAX_NODE_TARGETS_BYTES {
            continue;
        }
        let targets = std::mem::take(&mut node.drain_targets);
        node.target_set = *positions.entry(text).or_insert_with(|| {
            sets.push(TargetSet { drain_targets: targets });
            i32::try_from(sets.len() - 1).ok()
        });
    }
    sets
}

/// Leaves out blockers, from the last nodes on, beyond [`MAX_STATUS_BYTES`]. How many there are stays.
pub(super) fn list_blockers_while_there_is_room(status: &mut NodeMaintenanceStatus) {
    if status.node_statuses.iter().all(|node| node.blockers.is_empty()) {
        return;
    }
    let lengths = status.node_statuses.iter().map(|node| length(&node.blockers));
    let lengths: Vec<_> = lengths.collect();
    let brackets = 2 * lengths.len();
    let others = (length(&*status) + brackets).saturating_sub(lengths.iter().sum());
    let mut room = MAX_STATUS_BYTES.saturating_sub(others);
    for (node, length) in status.node_statuses.iter_mut().zip(lengths) {
        if node.blockers.is_empty() {
            continue;
        }
        if length > room {
            node.blockers.clear();
        }
        room = room.saturating_sub(length);
    }
}

/// The length in JSON.
fn length(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // A counter fails nothing, and these types have no keys that JSON lacks.
    drop(serde_json::to_writer(&mut counter, value));
    counter.0
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::{
        BlockedPod, Blocker, BlockerReason, DrainPlanEntry, LoadBalancerState, LoadBalancerStatus, PodType,
    };
    use crate::drain_plan::PodSelector;

    fn entries(selectors: usize) -> Vec<DrainPlanEntry> {
        let selector = |n| PodSelector::label("app.kubernetes.io/name", &format!("{n}{}", "x".repeat(50)));
        let entry = |n| DrainPlanEntry::new(PodType::Default, 1000, Some(selector(n)));
        (0..selectors).map(entry).collect()
    }

    fn node(number: usize, selectors: usize, blockers: usize) -> NodeMaintenanceNodeStatus {
        let time = || Time("2026-11-25T10:00:00Z".parse().unwrap());
        let blocker = |n| Blocker {
            pod_ref: BlockedPod {
                namespace: "n".repeat(63),
                name: format!("{}{n}", "p".repeat(62)),
                uid: "0b6e1f52-4c1d-4d53-9d0a-7a3c5f3f9a11".to_owned(),
            },
            reason: BlockerReason::MultipleDisruptionBudgets,
            message: "m".repeat(256),
            first_observed_time: time(),
        };
        let mut status = NodeMaintenanceNodeStatus {
            drain_targets: entries(selectors),
            drain_message: "m".repeat(256),
            load_balancer: Some(LoadBalancerStatus {
                state: LoadBalancerState::Draining,
                wait_start_time: Some(time()),
                kept_in_service_time: Some(time()),
                down_time: Some(time()),
                confirmed_time: Some(time()),
            }),
            blockers: (0..blockers).map(blocker).collect(),
            blockers_total: 7,
            ..NodeMaintenanceNodeStatus::default()
        };
        status.node_ref.name = format!("{}{number:03}", "n".repeat(60));
        status
    }

    #[test]
    fn a_status_of_500_nodes_with_blockers_and_long_plans_is_short() {
        let nodes: Vec<_> = (0..500).map(|number| node(number, 20, 5)).collect();
        let targets = nodes[0].drain_targets.clone();
        let mut status = NodeMaintenanceStatus {
            node_statuses: nodes,
            ..NodeMaintenanceStatus::default()
        };
        let before = length(&status);
        assert!(before > 2 * 1024 * 1024, "{before}");
        status.target_sets = share_long_targets(&mut status.node_statuses);
        list_blockers_while_there_is_room(&mut status);
        let after = length(&status);
        assert!(after <= MAX_STATUS_BYTES, "{after}");
        assert_eq!(status.target_sets.len(), 1);
        for node in &status.node_statuses {
            assert_eq!(status.targets_of(node), targets);
            assert_eq!(node.blockers_total, 7);
        }
        assert!(!status.node_statuses[0].blockers.is_empty());
    }

    #[test]
    fn blockers_are_left_out_from_the_first_byte_too_many_on() {
        let status = |padding: usize| {
            let mut nodes = [node(0, 0, 1), node(1, 0, 1), node(2, 0, 1)];
            nodes[0].drain_message = "m".repeat(1 + padding);
            NodeMaintenanceStatus {
                node_statuses: nodes.into(),
                ..NodeMaintenanceStatus::default()
            }
        };
        // A list that becomes empty keeps its two brackets.
        let padding = MAX_STATUS_BYTES - length(&status(0)) - 3 * 2;
        for (padding, listed) in [(padding, [1, 1, 1]), (padding + 1, [1, 1, 0])] {
            let mut status = status(padding);
            list_blockers_while_there_is_room(&mut status);
            let found: Vec<_> = status.node_statuses.iter().map(|node| node.blockers.len()).collect();
            assert_eq!(found, listed);
        }
    }

    #[test]
    fn short_targets_stay_where_they_are() {
        let mut nodes = [node(0, 1, 0), node(1, 9, 0), node(2, 8, 0), node(3, 9, 0)];
        let sets = share_long_targets(&mut nodes);
        assert_eq!(
            nodes.each_ref().map(|node| node.target_set),
            [None, Some(0), Some(1), Some(0)]
        );
        assert_eq!(
            (nodes[0].drain_targets.len(), nodes[1].drain_targets.len(), sets.len()),
            (1, 0, 2)
        );
    }
}
