//! A snapshot with its indexes: the same data by node, by pod and by name, in an order that does not depend on its arrival.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::node::{Node, NodeTraffic, Unproved};
use jiff::Timestamp;

use crate::api::{Evacuation, NodeMaintenanceNodeStatus};
use crate::deadline;
use crate::drain_plan::DrainTargets;
use crate::snapshot::{PodFacts, Snapshot};

use super::concurrency::maintenances;
use super::conditions::{DRAINED, is_true, shows_drained};
use super::evacuations::by_pod;
use super::gate::{Gate, GateInput};
use super::phase::{Maintenance, Phase};
use super::progress::{Participant, Progress};
use super::starting::Starting;

/// A snapshot with its indexes.
#[derive(Debug)]
pub(super) struct View<'a> {
    /// The snapshot that is indexed.
    pub(super) snapshot: &'a Snapshot,
    /// The time of the plan, in whole seconds.
    pub(super) now: Timestamp,
    /// The maintenances, older ones first.
    pub(super) maintenances: Vec<Maintenance<'a>>,
    /// The Nodes by name.
    pub(super) nodes: BTreeMap<&'a str, &'a Node>,
    /// The pods of each node that it has, finished ones left out, by namespace and name.
    pub(super) pods: BTreeMap<&'a str, Vec<&'a PodFacts>>,
    /// The Evacuations by the UID of their pod.
    pub(super) evacuations: BTreeMap<&'a str, &'a Evacuation>,
    /// The cursors and targets of all drains, after every move that is possible now.
    pub(super) progress: Progress,
    /// The nodes with pods left at their targets.
    pub(super) busy: BTreeSet<String>,
    /// When the first maintenance that is about to start delays others no more.
    pub(super) starting_until: Option<Timestamp>,
    /// When nodes are gone, for those that have a deadline that is not long over.
    pub(super) deadlines: BTreeMap<&'a str, Timestamp>,
    /// The last deadlines of nodes that are over, also for long.
    pub(super) overdue: BTreeMap<&'a str, Timestamp>,
    /// The nodes that all pods leave at once, because their deadline is near.
    pub(super) hurried: BTreeSet<&'a str>,
    /// The gate of each node of each maintenance in the `Drain` stage, by node and maintenance.
    pub(super) gates: BTreeMap<(&'a str, &'a str), Gate>,
}

impl<'a> View<'a> {
    /// Indexes a snapshot, advances the drains and decides the gates.
    pub(super) fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let maintenances = maintenances(&snapshot.maintenances, &snapshot.nodes, snapshot.max_concurrent_nodes);
        let nodes: BTreeMap<_, _> = snapshot
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), &**node))
            .collect();
        let mut pods: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
        for pod in snapshot.pods.iter().filter(|pod| !pod.is_finished) {
            pods.entry(&pod.node).or_default().push(pod);
        }
        for of_node in pods.values_mut() {
            of_node.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        let starting = Starting::new(&maintenances, &nodes, snapshot, now);
        let starting_until = starting.until;
        let mut progress = resume(&maintenances, &starting, now);
        let has_targeted = |node: &str, targets: &DrainTargets| {
            pods.get(node).into_iter().flatten().any(|pod| pod.is_targeted(targets))
        };
        let busy = progress.settle(has_targeted);
        let drained = || progress.nodes().filter_map(|(name, _)| nodes.get_key_value(name));
        let deadlines = drained()
            .filter_map(|(name, node)| {
                let at = deadline::pending_for_node(node, &snapshot.maintenances, now)?;
                Some((*name, at))
            })
            .collect();
        let overdue = drained()
            .filter_map(|(name, node)| Some((*name, deadline::over_for_node(node, &snapshot.maintenances, now)?)))
            .collect();
        let hurried = drained()
            .filter(|(_, node)| deadline::hurries(node, &snapshot.maintenances, now))
            .map(|(name, _)| *name)
            .collect();
        let mut view = Self {
            snapshot,
            now,
            maintenances,
            nodes,
            pods,
            evacuations: by_pod(&snapshot.evacuations, &snapshot.pods),
            progress,
            busy,
            starting_until,
            deadlines,
            overdue,
            hurried,
            gates: BTreeMap::new(),
        };
        view.gates = view.decide_gates();
        view
    }

    /// The pods of a node, finished ones left out.
    pub(super) fn pods_of(&self, node: &str) -> impl Iterator<Item = &'a PodFacts> {
        self.pods.get(node).into_iter().flatten().copied()
    }

    /// Whether every maintenance that drains a node lets Evacuations be created; where its pods leave at once, whether one does.
    pub(super) fn is_open(&self, node: &str) -> bool {
        let mut gates = self.gates_of(node);
        if self.hurried.contains(node) {
            gates.any(|gate| gate.is_open)
        } else {
            gates.all(|gate| gate.is_open)
        }
    }

    /// The gates of a node.
    pub(super) fn gates_of<'b>(&'b self, node: &'b str) -> impl Iterator<Item = &'b Gate> {
        let gates = self.gates.range((node, "")..);
        gates.take_while(move |((of, _), _)| *of == node).map(|(_, gate)| gate)
    }

    /// Whether a pod has to leave its node now.
    pub(super) fn is_targeted(&self, pod: &PodFacts) -> bool {
        let targets = self.progress.targets(&pod.node);
        targets.is_some_and(|targets| pod.is_targeted(targets))
            || (self.hurried.contains(pod.node.as_str()) && pod.has_to_leave())
    }

    /// Whether a maintenance has drained a node: no pod has to leave, and its own gate is open. A node that was drained stays so while
    /// nothing but a read is missing, as in the first turn of a leader.
    pub(super) fn is_drained(&self, node: &str, maintenance: &str) -> bool {
        // Of several maintenances the Node names none as drained while one goes on.
        let says_drained = |one: &Maintenance<'_>| {
            let status = one.object.status.as_ref();
            one.name == maintenance && status.is_some_and(|status| is_true(&status.conditions, DRAINED))
        };
        let was_drained = || {
            let node = self.nodes.get(node);
            node.is_some_and(|node| shows_drained(node, maintenance)) || self.maintenances.iter().any(says_drained)
        };
        let gate = self.gates.get(&(node, maintenance));
        gate.is_some_and(|gate| gate.is_open || (gate.lost_its_read() && was_drained()))
            && !self.pods_of(node).any(PodFacts::has_to_leave)
    }

    fn decide_gates(&self) -> BTreeMap<(&'a str, &'a str), Gate> {
        let unknown = NodeTraffic::Unknown(Unproved::NotConfirmed("none has been made yet".to_owned()));
        let draining = self.maintenances.iter().filter(|one| one.phase == Phase::Drain);
        let mut gates = BTreeMap::new();
        for maintenance in draining {
            for name in &maintenance.nodes {
                let Some((name, node)) = self.nodes.get_key_value(name.as_str()) else {
                    continue;
                };
                let previous = previous_status(maintenance, name).and_then(|status| status.load_balancer.as_ref());
                let gate = Gate::decide(&GateInput {
                    settings: maintenance.object.spec.load_balancer,
                    previous,
                    observation: self.snapshot.load_balancers.get(*name).unwrap_or(&unknown),
                    is_isolated: is_isolated(node),
                    refused: self.snapshot.refused_nodes.get(*name).map(String::as_str),
                    connections: node.open_connections(),
                    deadline: self.deadlines.get(*name).copied(),
                    overdue: self.overdue.get(*name).copied(),
                    now: self.now,
                });
                gates.insert((*name, maintenance.name), gate);
            }
        }
        gates
    }
}

/// Whether a node is as a drain wants it before it waits for the load balancers.
pub(super) fn is_isolated(node: &Node) -> bool {
    node.unschedulable && node.maintenance_taint.is_some()
}

/// What the status says about a node.
pub(super) fn previous_status<'a>(maintenance: &Maintenance<'a>, node: &str) -> Option<&'a NodeMaintenanceNodeStatus> {
    let mut statuses = maintenance.object.status.as_ref()?.node_statuses.iter();
    statuses.find(|status| status.node_ref.name == node)
}

/// The drains as the statuses have them.
///
/// A step moves the cursors of maintenances that intersect together, but each status is a write of its own. Where a leader dies
/// between two of them, one status has higher targets for a shared node than the other. A node's targets rise only once every
/// maintenance that drains it has reached them, so the maintenance with the older status continues from there.
fn resume(maintenances: &[Maintenance<'_>], starting: &Starting<'_>, now: Timestamp) -> Progress {
    let draining = || maintenances.iter().filter(|one| one.phase == Phase::Drain);
    let mut reached: BTreeMap<String, DrainTargets> = BTreeMap::new();
    for (node, targets) in draining().flat_map(recorded_targets) {
        reached.entry(node.to_owned()).or_default().join(&targets);
    }
    let has_reached_any = |node: &str| reached.get(node).and_then(DrainTargets::position).is_some();
    let participants = draining().map(|maintenance| {
        let cursor = maintenance
            .object
            .status
            .as_ref()
            .and_then(|status| status.drain_plan_index);
        // A node that joins begins at the first entry, and not with all entries that the others have passed; also where another maintenance
        // drains it, which may end first.
        let own: BTreeSet<_> = recorded_targets(maintenance)
            .filter_map(|(node, targets)| targets.position().map(|_| node))
            .collect();
        let has_new_nodes = maintenance.nodes.iter().any(|node| !own.contains(node.as_str()));
        let cursor = cursor.filter(|_| !has_new_nodes).unwrap_or(0);
        let cursor = usize::try_from(cursor).unwrap_or(0).min(maintenance.plan.last());
        let missed = recorded_targets(maintenance).filter_map(|(node, targets)| {
            // Without targets of its own it is new on the node, and is fast-forwarded only there.
            let own = targets.position()?;
            let joined = reached.get(node)?.position()?;
            (own < joined).then(|| maintenance.plan.first_at(joined))
        });
        let created = maintenance.object.metadata.creation_timestamp.as_ref();
        let is_drained = |node: &&String| has_reached_any(node) || !starting.delay(maintenance, node);
        Participant {
            name: maintenance.name.to_owned(),
            created: created.map_or(now, |time| time.0),
            cursor: missed.fold(cursor, usize::max),
            plan: maintenance.plan.clone(),
            nodes: maintenance.nodes.iter().filter(is_drained).cloned().collect(),
        }
    });
    let participants = participants.collect();
    Progress::new(participants, reached)
}

/// The targets of each node in the status of a maintenance.
fn recorded_targets<'a>(maintenance: &'a Maintenance<'_>) -> impl Iterator<Item = (&'a str, DrainTargets)> {
    let status = maintenance.object.status.iter();
    let nodes = status.flat_map(|status| status.node_statuses.iter().map(move |node| (status, node)));
    nodes.map(|(status, node)| (node.node_ref.name.as_str(), status.targets_of(node).iter().collect()))
}
