//! Maintenances of nodes that are about to be taken (`maintenance.automatic`): which exist, and until when. Pure.
//!
//! A node that is taken for a chosen cause has one maintenance in the stage `Drain`, whose deadline is the time that the cause announces,
//! or that the settings give it. It is deleted when the Node is gone or no chosen cause is left. The objects are the only state: the label
//! says that headgate created one, the owner which Node it is for. Maintenances of others are never touched, whatever their name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::clock::whole_seconds;
use headgate_core::node::{AUTOSCALER_TAINT, AzureNotice, KARPENTER_TAINT, Node};
use headgate_core::telemetry::words;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::api::names::AUTOMATIC_LABEL;
use crate::api::{LoadBalancerConfirmation, LoadBalancerGate, NodeMaintenance, NodeMaintenanceSpec, Stage};
use crate::machine::DeletedMachine;
use crate::plan::action::Action;
use crate::snapshot::Snapshot;

/// What an eviction gives at least, for a notice without a time: the event has started.
const STARTED_NOTICE: SignedDuration = SignedDuration::from_secs(30);
/// The longest name of an object.
const MAX_NAME_BYTES: usize = 253;
/// Bytes of the Node's UID in the second name of its maintenance.
const UID_BYTES: usize = 8;

words! {
    /// Why a node is taken.
    #[derive(PartialOrd, Ord)]
    pub enum Cause {
        /// Azure evicts the spot VM.
        Preempt = "preempt",
        /// The scale set deletes the VM.
        Terminate = "terminate",
        /// kubelet shuts the node down.
        Shutdown = "shutdown",
        /// Cluster Autoscaler or Karpenter removes the node.
        Autoscaler = "autoscaler",
        /// Cluster API deletes the Machine of the node.
        Machine = "machine",
    }
}

/// Which nodes get a maintenance, and how long it has where nothing announces the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutomaticMaintenances {
    /// The causes that count, each with the time that it has from the creation of its maintenance on, if that is not the default.
    pub causes: BTreeMap<Cause, Option<Duration>>,
}

impl Cause {
    /// The time that a cause has unless the settings give it another; `None` where the notice has the time.
    pub const fn default_timeout(self) -> Option<Duration> {
        match self {
            Self::Preempt | Self::Terminate => None,
            Self::Shutdown => Some(Duration::from_secs(30)),
            // The default of Cluster Autoscaler's --max-graceful-termination-sec.
            Self::Autoscaler | Self::Machine => Some(Duration::from_mins(10)),
        }
    }
}

impl AutomaticMaintenances {
    /// Why the node is taken, for the causes that count.
    pub fn causes_of(&self, node: &Node, machines: &[DeletedMachine]) -> impl Iterator<Item = Cause> {
        self.causes.keys().copied().filter(|cause| cause.takes(node, machines))
    }

    /// The time that a cause has; `None` where it says so itself.
    fn time_of(&self, cause: Cause) -> SignedDuration {
        let Some(default) = cause.default_timeout() else {
            return STARTED_NOTICE;
        };
        let configured = self.causes.get(&cause).copied().flatten();
        SignedDuration::try_from(configured.unwrap_or(default)).unwrap_or(SignedDuration::MAX)
    }
}

impl Cause {
    fn takes(self, node: &Node, machines: &[DeletedMachine]) -> bool {
        let is_announced = |wanted| node.present_notice().is_some_and(|notice| notice.event_type == wanted);
        match self {
            Self::Preempt => is_announced(AzureNotice::Preempt),
            Self::Terminate => is_announced(AzureNotice::Terminate),
            Self::Shutdown => node.shutting_down,
            // Karpenter's taint comes before the replacement, and goes where there is none: it drains once it has deleted the Node.
            Self::Autoscaler => {
                node.has_taint(AUTOSCALER_TAINT) || (node.has_taint(KARPENTER_TAINT) && node.is_deleting)
            }
            Self::Machine => machines.iter().any(|machine| machine.is_of(node)),
        }
    }

    /// The time that the cause itself announces.
    fn announced(self, node: &Node) -> Option<Timestamp> {
        match self {
            Self::Preempt | Self::Terminate => node.eviction_deadline(),
            Self::Shutdown | Self::Autoscaler | Self::Machine => None,
        }
    }

    fn reason(self, node: &Node) -> &'static str {
        match self {
            Self::Preempt => "Azure evicts the VM",
            Self::Terminate => "the scale set deletes the VM",
            Self::Shutdown => "kubelet shuts the node down",
            Self::Autoscaler if node.has_taint(KARPENTER_TAINT) => "Karpenter removes the node",
            Self::Autoscaler => "Cluster Autoscaler removes the node",
            Self::Machine => "Cluster API deletes the Machine",
        }
    }
}

/// Whether headgate created the maintenance for a node that is taken.
pub fn is_automatic(maintenance: &NodeMaintenance) -> bool {
    cause_label(maintenance).is_some() && owner(maintenance).is_some()
}

/// Whether headgate created the maintenance for this Node, and not for one of the same name before.
pub(crate) fn is_automatic_of(maintenance: &NodeMaintenance, node: &Node) -> bool {
    let is_node = |owner: &OwnerReference| owner.name == node.name && owner.uid == node.uid;
    is_automatic(maintenance) && owner(maintenance).is_some_and(is_node)
}

/// Whether its deadline is a guess: nothing announces when the machine ends, and it may stay for longer.
pub(crate) fn is_deadline_guessed(maintenance: &NodeMaintenance) -> bool {
    let is_guess = |cause: Cause| matches!(cause, Cause::Autoscaler | Cause::Machine);
    let mut guesses = Cause::ALL.into_iter().filter(|cause| is_guess(*cause));
    guesses.any(|cause| cause_label(maintenance) == Some(cause.as_str()))
}

fn cause_label(maintenance: &NodeMaintenance) -> Option<&str> {
    maintenance
        .metadata
        .labels
        .as_ref()?
        .get(AUTOMATIC_LABEL)
        .map(String::as_str)
}

fn owner(maintenance: &NodeMaintenance) -> Option<&OwnerReference> {
    let mut owners = maintenance.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.kind == "Node")
}

/// What is missing, has another deadline, or is left.
pub(crate) fn changes(snapshot: &Snapshot, nodes: &BTreeMap<&str, &Node>, now: Timestamp) -> Vec<Action> {
    let (settings, machines) = (&snapshot.automatic, snapshot.machines.as_deref());
    let maintenances = &snapshot.maintenances;
    let mut known: BTreeMap<(&str, &str), &NodeMaintenance> = maintenances
        .iter()
        .filter(|one| is_automatic(one))
        .filter_map(|one| Some((owner(one)?, one)))
        .map(|(node, one)| ((node.name.as_str(), node.uid.as_str()), one))
        .collect();
    let undecodable = snapshot.undecodable_maintenances.values().map(String::as_str);
    let names = maintenances.iter().filter_map(|one| one.metadata.name.as_deref());
    let taken: BTreeSet<_> = names.chain(undecodable).collect();
    let mut actions = Vec::new();
    for node in nodes.values() {
        let causes: Vec<_> = settings.causes_of(node, machines.unwrap_or_default()).collect();
        if causes.is_empty() {
            continue;
        }
        let existing = known.remove(&(node.name.as_str(), node.uid.as_str()));
        actions.extend(match existing {
            None => Some(Action::CreateMaintenance {
                node: node.name.clone(),
                maintenance: Box::new(maintenance(settings, node, &causes, &taken, now)),
            }),
            // One that somebody deletes is created again once it is gone.
            Some(existing) => deadline_change(existing, node, &causes),
        });
    }
    let is_kept = |(name, uid): &(&str, &str), one: &NodeMaintenance| {
        let is_for = |cause: Cause| settings.causes.contains_key(&cause) && cause_label(one) == Some(cause.as_str());
        let node = nodes.get(name).filter(|node| node.uid == *uid);
        // The label has the first cause only: Cluster Autoscaler may have come before the Machine that it deletes.
        let may_be_for_machine = || {
            let has_machine = node.is_some_and(|node| node.cluster_api_machine.is_some());
            is_for(Cause::Machine)
                || (settings.causes.contains_key(&Cause::Machine) && is_deadline_guessed(one) && has_machine)
        };
        // What is not listed yet may still be there; and kubelet does not say any more that it has shut down.
        (machines.is_none() && may_be_for_machine())
            || (is_for(Cause::Shutdown) && node.is_some_and(|node| !node.ready))
    };
    let left = known.into_iter().filter(|(node, one)| !is_kept(node, one));
    let left = left.filter(|(_, one)| one.metadata.deletion_timestamp.is_none());
    actions.extend(left.filter_map(|(_, one)| end(settings, one)));
    actions
}

/// The end of a maintenance whose cause is gone. With the setting goes the right to delete it, but not the one to give the node back.
fn end(settings: &AutomaticMaintenances, object: &NodeMaintenance) -> Option<Action> {
    let maintenance = object.metadata.name.clone().unwrap_or_default();
    if !settings.causes.is_empty() {
        return Some(Action::DeleteMaintenance { maintenance });
    }
    (object.spec.stage != Stage::Complete).then_some(Action::SetStageComplete { maintenance })
}

/// The deadline that is announced now, where the maintenance has another one. A cause without a time keeps the deadline from moving away.
fn deadline_change(existing: &NodeMaintenance, node: &Node, causes: &[Cause]) -> Option<Action> {
    let present = existing.spec.deadline.as_ref().map(|deadline| deadline.0);
    let kept = causes.iter().any(|cause| cause.announced(node).is_none());
    // The API server keeps whole seconds.
    let announced = causes
        .iter()
        .filter_map(|cause| cause.announced(node))
        .map(whole_seconds);
    let deadline = announced.chain(present.filter(|_| kept)).min()?;
    let is_over = existing.spec.stage == Stage::Complete || existing.metadata.deletion_timestamp.is_some();
    (!is_over && present != Some(deadline)).then(|| Action::SetDeadline {
        maintenance: existing.metadata.name.clone().unwrap_or_default(),
        deadline,
    })
}

/// The maintenance of a node that is taken.
fn maintenance(
    settings: &AutomaticMaintenances,
    node: &Node,
    causes: &[Cause],
    taken: &BTreeSet<&str>,
    now: Timestamp,
) -> NodeMaintenance {
    let deadlines = causes.iter().map(|cause| {
        let in_time = || now.checked_add(settings.time_of(*cause)).unwrap_or(Timestamp::MAX);
        cause.announced(node).unwrap_or_else(in_time)
    });
    let deadline = deadlines.min().unwrap_or(now);
    let reasons: Vec<_> = causes.iter().map(|cause| cause.reason(node)).collect();
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.name.clone()]),
        }]),
        ..NodeSelectorTerm::default()
    };
    let cause = causes.first().map_or("", |cause| cause.as_str());
    NodeMaintenance {
        metadata: ObjectMeta {
            name: Some(name(node, taken)),
            labels: Some(BTreeMap::from([(AUTOMATIC_LABEL.to_owned(), cause.to_owned())])),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: node.name.clone(),
                uid: node.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: NodeMaintenanceSpec {
            node_selector: NodeSelector {
                node_selector_terms: vec![term],
            },
            stage: Stage::Drain,
            reason: reasons.join("; "),
            load_balancer: gate(deadline.duration_since(now)),
            deadline: Some(Time(deadline)),
            ..NodeMaintenanceSpec::default()
        },
        status: None,
    }
}

/// The name of the Node's maintenance: `automatic-NODE`, cut to the limit of a name. If another maintenance has that name, such as somebody's
/// or that of the Node before of the same name, a part of the Node's UID follows.
fn name(node: &Node, taken: &BTreeSet<&str>) -> String {
    let name = joined(&node.name, "");
    if !taken.contains(name.as_str()) {
        return name;
    }
    let uid = &node.uid[..node.uid.floor_char_boundary(UID_BYTES)];
    joined(&node.name, &format!("-{uid}"))
}

fn joined(node: &str, suffix: &str) -> String {
    let mut name = format!("automatic-{node}");
    name.truncate(name.floor_char_boundary(MAX_NAME_BYTES - suffix.len()));
    name.truncate(name.trim_end_matches(['-', '.']).len());
    name + suffix
}

/// How long the load balancers and the connections may take: a quarter and two tenths of the time, and no more than usual. Pods have the
/// rest.
fn gate(time: SignedDuration) -> LoadBalancerGate {
    let usual = LoadBalancerGate::default();
    let seconds = i32::try_from(time.as_secs().max(0)).unwrap_or(i32::MAX);
    LoadBalancerGate {
        confirmation: LoadBalancerConfirmation::BestEffort,
        confirmation_timeout_seconds: usual.confirmation_timeout_seconds.min(seconds / 4),
        connections_drain_seconds: usual.connections_drain_seconds.min(seconds / 10),
        connections_timeout_seconds: usual.connections_timeout_seconds.min(seconds / 10),
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_to_a_valid_one_and_is_no_other_maintenances() {
        let short = "aks-spot-1-vmss000003".to_owned();
        let long = format!("{}.rest", "n".repeat(242));
        let cut = format!("automatic-{}", "n".repeat(242));
        let rows = [
            (&short, None, format!("automatic-{short}")),
            (
                &short,
                Some("automatic-aks-spot-1-vmss000003"),
                format!("automatic-{short}-0f0e7d2c"),
            ),
            (&long, None, cut.clone()),
            (
                &long,
                Some(cut.as_str()),
                format!("automatic-{}-0f0e7d2c", "n".repeat(234)),
            ),
        ];
        for (node, taken, expected) in rows {
            let node = Node {
                name: node.clone(),
                uid: "0f0e7d2c-3b6a-4c8e-9a51-1d2e3f405162".to_owned(),
                ..Node::default()
            };
            assert_eq!(name(&node, &taken.into_iter().collect()), expected);
            assert!(expected.len() <= MAX_NAME_BYTES);
        }
    }

    #[test]
    fn an_automatic_maintenance_has_the_label_and_an_owner() {
        let node = Node::default();
        let made = maintenance(
            &AutomaticMaintenances::default(),
            &node,
            &[],
            &BTreeSet::new(),
            Timestamp::UNIX_EPOCH,
        );
        let (mut unlabelled, mut unowned) = (made.clone(), made.clone());
        unlabelled.metadata.labels = None;
        unowned.metadata.owner_references = None;
        let found = [&made, &unlabelled, &unowned].map(is_automatic);
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn the_gate_leaves_more_than_half_of_the_time() {
        for (seconds, expected) in [
            (-5, (0, 0, 0)),
            (0, (0, 0, 0)),
            (30, (7, 3, 3)),
            (300, (75, 30, 30)),
            (600, (150, 30, 60)),
            (86_400, (600, 30, 300)),
        ] {
            let gate = gate(SignedDuration::from_secs(seconds));
            let waits = (
                gate.confirmation_timeout_seconds,
                gate.connections_drain_seconds,
                gate.connections_timeout_seconds,
            );
            assert_eq!(waits, expected, "{seconds}");
            assert_eq!(gate.confirmation, LoadBalancerConfirmation::BestEffort);
        }
    }
}
