//! The conditions of a NodeMaintenance, and those of KEP-5683 on its Nodes (ST-02, ST-03).

use std::collections::BTreeSet;

use headgate_core::node::{MAINTENANCE_CONDITIONS, Node};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::action::{Action, NodeConditionChange};

/// The controller works with the nodes that the selector matches.
pub const ACCEPTED: &str = "Accepted";
/// Something keeps pods or load balancers from going on, and needs someone.
pub(crate) const BLOCKED: &str = "Blocked";
/// All pods have left all nodes, and all nodes are out of their load balancers.
pub const DRAINED: &str = "Drained";
/// Reads confirm that all nodes are out of their load balancers.
pub(crate) const LOAD_BALANCER_OUT: &str = "LoadBalancerOut";
/// The controller works on the maintenance.
pub const PROGRESSING: &str = "Progressing";
/// The selector matches every node.
pub(crate) const ALL_NODES_SELECTED: &str = "AllNodesSelected";

/// The reason of [`PROGRESSING`] in the `Idle` stage.
pub(super) const IDLE: &str = "Idle";
/// The reason of [`PROGRESSING`] from `Idle` to `Complete`, until the nodes are schedulable.
pub(super) const UNCORDON: &str = "Uncordon";
/// The reason of [`PROGRESSING`] once a maintenance is over.
pub(crate) const COMPLETED: &str = "Completed";

/// The reason of [`ACCEPTED`], [`DRAINED`] and [`LOAD_BALANCER_OUT`] if the selector matches no node.
pub const NO_NODES: &str = "NoNodes";

/// The messages of the Node conditions that the controller wrote begin with this. It removes no others.
const NODE_MESSAGE_PREFIX: &str = "NodeMaintenance ";

/// Conditions that keep the time of their last transition.
#[derive(Debug)]
pub struct Conditions<'a> {
    previous: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    current: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// None yet; `previous` are those in the status before.
    pub fn new(previous: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self {
            previous,
            generation,
            now,
            current: Vec::new(),
        }
    }

    /// Keeps the conditions of the status before that are not set.
    pub(crate) fn keep_others(mut self) -> Self {
        self.current = self.previous.to_vec();
        self
    }

    /// Sets the condition of type `kind`, with the time of its last transition where its status is as before.
    pub fn set(&mut self, kind: &str, holds: bool, reason: &str, message: String) {
        let status = if holds { "True" } else { "False" };
        let since = find(self.previous, kind)
            .filter(|condition| condition.status == status)
            .map_or(Time(self.now), |condition| condition.last_transition_time.clone());
        self.current.retain(|condition| condition.type_ != kind);
        self.current.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since,
            observed_generation: self.generation,
        });
    }

    /// All of them, by type.
    pub fn finish(mut self) -> Vec<Condition> {
        self.current.sort_by(|a, b| a.type_.cmp(&b.type_));
        self.current
    }
}

/// A condition by type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether a condition is `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// What maintenances do with a Node, for its conditions.
#[derive(Clone, Debug, Default)]
pub struct NodePhase<'a> {
    /// The maintenances in the `Cordon` stage.
    pub cordoned_by: Vec<&'a str>,
    /// The maintenances in the `Drain` stage that go on: a pod has to leave, or their gate is closed.
    pub draining: Vec<&'a str>,
    /// The maintenances in the `Drain` stage that have drained it.
    pub drained: Vec<&'a str>,
    /// Undecodable maintenances that the conditions of the Node name. They stay named: that is all that is known of what they want.
    pub unknown: Vec<&'a str>,
}

/// Whether a condition of a Node with this message was set by a maintenance.
pub(crate) fn is_own_condition(message: &str) -> bool {
    message.starts_with(NODE_MESSAGE_PREFIX)
}

/// The conditions of maintenances that are `True` on a Node: type and message.
fn true_conditions(node: &Node) -> impl Iterator<Item = (&str, &str)> {
    let conditions = node.conditions.iter();
    let of_maintenance = conditions
        .filter(|(kind, condition)| MAINTENANCE_CONDITIONS.contains(&kind.as_str()) && condition.status == "True");
    of_maintenance.map(|(kind, condition)| (kind.as_str(), condition.message.as_str()))
}

/// The conditions of a Node that a maintenance set: type and message.
pub(crate) fn own_conditions(node: &Node) -> impl Iterator<Item = (&str, &str)> {
    true_conditions(node).filter(|(_, message)| is_own_condition(message))
}

/// The types of the conditions of a Node that name this maintenance.
fn naming<'a>(node: &'a Node, maintenance: &str) -> impl Iterator<Item = &'a str> {
    own_conditions(node).filter_map(move |(kind, message)| {
        let mut names = message.strip_prefix(NODE_MESSAGE_PREFIX)?.split(", ");
        names.any(|name| name == maintenance).then_some(kind)
    })
}

/// Whether a condition of a Node names this maintenance.
pub(super) fn is_named(node: &Node, maintenance: &str) -> bool {
    naming(node, maintenance).next().is_some()
}

/// Whether a Node shows that this maintenance has drained it.
pub(super) fn shows_drained(node: &Node, maintenance: &str) -> bool {
    naming(node, maintenance).any(|kind| matches!(kind, "Drained" | "MaintenanceInProgress"))
}

/// What has to change in the conditions of a Node, if anything has. One that another writer has made `True` stays as it is.
///
/// The types mean what KEP-5683 says: a maintenance is planned until its pods have left, and in progress from then on, once that is so for all
/// maintenances of the node. Others act on that:
/// the Job controller does not wait for pods of a node whose maintenance is in progress, and autoscalers remove such a node first.
pub fn node_conditions(node: &Node, phase: &NodePhase<'_>) -> Option<Action> {
    let message = |names: &[&str]| format!("{NODE_MESSAGE_PREFIX}{}", [names, &phase.unknown].concat().join(", "));
    let is_drained = phase.draining.is_empty();
    let drained = if is_drained { phase.drained.as_slice() } else { &[] };
    let drains = if is_drained {
        Vec::new()
    } else {
        [phase.draining.as_slice(), &phase.drained].concat()
    };
    let planned = [drains.as_slice(), &phase.cordoned_by].concat();
    let mut wanted = Vec::new();
    for (kind, reason, names) in [
        ("Drained", "DrainCompleted", drained),
        ("MaintenanceInProgress", "AdminRequested", drained),
        ("MaintenancePlanned", "AdminRequested", &planned),
        ("DrainInProgress", "AdminRequested", &drains),
    ] {
        if !names.is_empty() {
            let message = message(names);
            wanted.push(NodeConditionChange { kind, reason, message });
        }
    }
    let kinds: BTreeSet<_> = wanted.iter().map(|condition| condition.kind).collect();
    let remove: Vec<_> = own_conditions(node)
        .filter(|(kind, _)| !kinds.contains(kind))
        .map(|(kind, _)| kind.to_owned())
        .collect();
    let is_set = |wanted: &NodeConditionChange| {
        true_conditions(node)
            .any(|(kind, message)| kind == wanted.kind && (message == wanted.message || !is_own_condition(message)))
    };
    let set: Vec<_> = wanted.into_iter().filter(|wanted| !is_set(wanted)).collect();
    (!set.is_empty() || !remove.is_empty()).then(|| Action::UpdateNodeConditions {
        node: node.name.clone(),
        set,
        remove,
    })
}

#[cfg(test)]
mod tests {
    use headgate_core::node::Condition as NodeCondition;

    use super::*;

    fn changes(has: &[(&str, &str)], phase: &NodePhase<'_>) -> Option<(Vec<&'static str>, Vec<String>)> {
        let condition = |message: &str| NodeCondition {
            status: "True".to_owned(),
            message: message.to_owned(),
            ..NodeCondition::default()
        };
        let conditions = has
            .iter()
            .map(|(kind, message)| ((*kind).to_owned(), condition(message)));
        let node = Node {
            conditions: conditions.collect(),
            ..Node::default()
        };
        match node_conditions(&node, phase)? {
            Action::UpdateNodeConditions { set, remove, .. } => {
                Some((set.iter().map(|condition| condition.kind).collect(), remove))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_shows_the_stage_and_nothing_after_the_end() {
        let cordon = NodePhase {
            cordoned_by: vec!["a"],
            ..NodePhase::default()
        };
        let drain = NodePhase {
            draining: vec!["a"],
            ..NodePhase::default()
        };
        let drained = NodePhase {
            drained: vec!["a"],
            ..NodePhase::default()
        };
        let none = NodePhase::default();
        let ours = "NodeMaintenance a";
        let planned = ("MaintenancePlanned", ours);
        let (draining, in_progress) = (("DrainInProgress", ours), ("MaintenanceInProgress", ours));
        let (drained_already, ready) = (("Drained", ours), ("Ready", ""));
        // What the Node has, its phase, and what is set and removed.
        for (has, phase, expected) in [
            (&[][..], &none, None),
            (&[], &cordon, Some(("MaintenancePlanned", ""))),
            (&[planned], &drain, Some(("DrainInProgress", ""))),
            (
                &[planned, draining],
                &drained,
                Some(("Drained MaintenanceInProgress", "DrainInProgress MaintenancePlanned")),
            ),
            (&[in_progress, drained_already], &drained, None),
            (
                &[in_progress, drained_already, ready],
                &none,
                Some(("", "Drained MaintenanceInProgress")),
            ),
        ] {
            let found = changes(has, phase).map(|(set, remove)| (set.join(" "), remove.join(" ")));
            let expected = expected.map(|(set, remove)| (set.to_owned(), remove.to_owned()));
            assert_eq!(found, expected, "{has:?}");
        }
    }

    #[test]
    fn the_conditions_of_others_stay() {
        let none = NodePhase::default();
        let (by_hand, ready) = (("Drained", "drained by hand"), ("Ready", "NodeMaintenance a"));
        assert_eq!(changes(&[by_hand, ready], &none), None);
        let drained = NodePhase {
            drained: vec!["a"],
            ..NodePhase::default()
        };
        let in_progress = Some((vec!["MaintenanceInProgress"], Vec::new()));
        assert_eq!(changes(&[by_hand], &drained), in_progress);
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let early: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let late: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let mut first = Conditions::new(&[], Some(1), early);
        first.set(DRAINED, false, "PodsLeft", "5 pods".to_owned());
        let first = first.finish();
        let mut second = Conditions::new(&first, Some(2), late);
        second.set(DRAINED, false, "PodsLeft", "4 pods".to_owned());
        let second = second.finish();
        assert_eq!(second[0].last_transition_time, Time(early));
        let mut third = Conditions::new(&second, Some(2), late);
        third.set(DRAINED, true, "DrainCompleted", String::new());
        assert_eq!(third.finish()[0].last_transition_time, Time(late));
    }
}
