//! Which nodes of a maintenance wait for room: those for which `maintenance.maxConcurrentNodes` has no room. Pure.
//!
//! Nothing is remembered. A node takes a place as long as a maintenance keeps it cordoned, or has begun with it. It keeps the place
//! whatever the limit has become, so neither a smaller limit nor a new leader gives a node back. A node whose machine goes anyway,
//! by a notice or by the deadline of a maintenance, never waits, and takes a place. A maintenance that is starting takes no place from
//! others, because it may never start; where a node is cordoned already, the place goes with the node.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use headgate_core::node::Node;
use headgate_core::settings::IntOrPercent;

use crate::api::NodeMaintenance;
use crate::api::names::MAX_NODES;
use crate::selection::possible_names;

use super::phase::{Maintenance, Phase};

/// The maintenances with the nodes that each has and holds back, older ones first. Places that are free go to the older ones.
pub fn maintenances<'a>(
    objects: &'a [NodeMaintenance],
    nodes: &[impl Borrow<Node>],
    max_concurrent_nodes: Option<IntOrPercent>,
) -> Vec<Maintenance<'a>> {
    let by_name = nodes.iter().map(Borrow::borrow);
    let by_name: BTreeMap<&str, &Node> = by_name.map(|node: &Node| (node.name.as_str(), node)).collect();
    // Those that headgate makes are one for each Node: not each of them looks at every Node.
    let with_nodes = |object: &'a NodeMaintenance| match possible_names(&object.spec.node_selector) {
        Some(names) => Maintenance::among(object, names.iter().filter_map(|name| by_name.get(name).copied())),
        None => Maintenance::among(object, by_name.values().copied()),
    };
    let mut maintenances: Vec<_> = objects.iter().map(with_nodes).collect();
    maintenances.sort_by(|a, b| a.age().cmp(&b.age()));
    let limit = max_concurrent_nodes.map_or(usize::MAX, |max| max.rounded_down(nodes.len()));
    let named = |holds: fn(&Node) -> bool| -> BTreeSet<String> {
        let nodes = nodes.iter().map(Borrow::borrow).filter(|node| holds(node));
        nodes.map(|node: &Node| node.name.clone()).collect()
    };
    let leaving = named(|node| node.eviction_deadline().is_some());
    let mut placed = named(|node| node.was_unschedulable.is_some());
    let in_progress = maintenances
        .iter()
        .filter(|one| matches!(one.phase, Phase::Cordon | Phase::Drain));
    for maintenance in in_progress {
        // Nodes that are gone at a known time take their places before all others.
        if maintenance.object.spec.deadline.is_some() {
            placed.extend(maintenance.nodes.iter().cloned());
        }
        placed.extend(
            begun(maintenance)
                .filter(|node| maintenance.nodes.contains(*node))
                .cloned(),
        );
    }
    for maintenance in &mut maintenances {
        match maintenance.phase {
            Phase::DryRun => admit(maintenance, &placed, |_, _| true),
            Phase::Starting | Phase::Cordon | Phase::Drain => {
                let has_deadline = maintenance.object.spec.deadline.is_some();
                let mut taken = placed.clone();
                admit(maintenance, &placed, |node, is_placed| {
                    let never_waits = is_placed || has_deadline || leaving.contains(node);
                    let is_admitted = never_waits || taken.len() < limit;
                    if is_admitted {
                        taken.insert(node.to_owned());
                    }
                    is_admitted
                });
                if maintenance.phase != Phase::Starting {
                    placed = taken;
                }
            }
            Phase::Idle | Phase::Complete => {}
        }
    }
    maintenances
}

/// The nodes whose drain has begun, by the status.
fn begun<'a>(maintenance: &Maintenance<'a>) -> impl Iterator<Item = &'a String> + use<'a> {
    let status = maintenance.object.status.iter();
    let nodes = status.flat_map(|status| &status.node_statuses);
    let begun = nodes.filter(|node| node.load_balancer.is_some());
    begun.map(|node| &node.node_ref.name)
}

/// Holds back every node that is not admitted, and those beyond [`MAX_NODES`]: first those without a place.
fn admit(
    maintenance: &mut Maintenance<'_>,
    placed: &BTreeSet<String>,
    mut is_admitted: impl FnMut(&str, bool) -> bool,
) {
    let own: BTreeSet<_> = begun(maintenance).collect();
    let mut selected: Vec<_> = std::mem::take(&mut maintenance.nodes).into_iter().collect();
    selected.sort_by_key(|node| (!own.contains(node), !placed.contains(node)));
    for node in selected {
        if maintenance.nodes.len() < MAX_NODES && is_admitted(&node, placed.contains(&node)) {
            maintenance.nodes.insert(node);
        } else {
            maintenance.waiting_for_room.insert(node);
        }
    }
}
