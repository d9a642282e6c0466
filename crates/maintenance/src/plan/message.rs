//! `drainMessage`: what happens on a node, or what a maintenance waits for there (DT-07).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use headgate_core::settings::IntOrPercent;
use jiff::Timestamp;

use crate::api::names::MAX_NODES;
use crate::drain_plan::{DrainTargets, Position};

use super::phase::Maintenance;
use super::progress::{Participant, Progress};

/// The message of one maintenance about one of its nodes, in the words of KEP-4212. Empty once nothing is waited for.
pub fn drain_message(progress: &Progress, own: &Participant, node: &str, busy: &BTreeSet<String>) -> String {
    let Some(target) = progress.targets(node).and_then(DrainTargets::position) else {
        return String::new();
    };
    if busy.contains(node) {
        return evacuating(progress, own, node, target);
    }
    if let Some(other) = own.nodes.intersection(busy).next() {
        return format!("Waiting for node {other}.");
    }
    let others = progress.participants().iter().filter(|other| other.name != own.name);
    others
        .filter(|other| !other.nodes.is_disjoint(&own.nodes))
        .find_map(|other| {
            let node = other.nodes.intersection(busy).next()?;
            Some(format!("Waiting for node {node} ({}).", other.name))
        })
        .unwrap_or_default()
}

fn evacuating(progress: &Progress, own: &Participant, node: &str, target: Position) -> String {
    let others = || progress.on(node).filter(|other| other.name != own.name);
    let at = |position| -> Vec<&str> {
        others()
            .filter(|other| other.position() == position)
            .map(|other| other.name.as_str())
            .collect()
    };
    match target.cmp(&own.position()) {
        Ordering::Equal => "Evacuating".to_owned(),
        Ordering::Less => {
            let mut holders = at(target);
            if holders.is_empty() {
                // The maintenance that raised the targets is gone; what holds the node now is the lowest cursor.
                holders = others().map(Participant::position).min().map(at).unwrap_or_default();
            }
            format!("Evacuating (limited by {})", holders.join(", "))
        }
        Ordering::Greater => {
            // The maintenance that raised the targets may be further on in its plan, or gone; and the own plan begins anew with a new node.
            let reached = others()
                .map(Participant::position)
                .filter(|position| *position >= target);
            let Some(first) = reached.min() else {
                return "Evacuating".to_owned();
            };
            let ahead: Vec<_> = others().filter(|other| other.position() == first).collect();
            format!("Evacuating (fast-forwarded by {})", named(&ahead, own))
        }
    }
}

/// The names of others that are further on, "older" where all of them are.
pub(super) fn named(others: &[&Participant], own: &Participant) -> String {
    let names: Vec<_> = others.iter().map(|other| other.name.as_str()).collect();
    let older = if others.iter().all(|other| other.age() < own.age()) {
        "older "
    } else {
        ""
    };
    format!("{older}{}", names.join(", "))
}

/// That all pods of a node leave at once.
pub(super) fn hurried_message(deadline: Timestamp) -> String {
    format!("Evacuating all pods at once: the node is expected to be gone at {deadline:.0}")
}

/// Why nodes of a maintenance wait for room. It does not count nodes, so that it stays while others come and go.
pub(super) fn room_message(max: Option<IntOrPercent>, maintenance: &Maintenance<'_>) -> String {
    match max {
        Some(max) if maintenance.nodes.len() < MAX_NODES => {
            format!("Waiting for room: maintenance.maxConcurrentNodes is {max}")
        }
        _ => format!("Waiting for room: a maintenance has {MAX_NODES} nodes at once at most"),
    }
}

/// A number of pods in words.
pub(super) fn counted(pods: usize) -> String {
    format!("{pods} {}", if pods == 1 { "pod" } else { "pods" })
}
