//! Carries out the actions of a plan: first the writes of maintenances and Machines, then those of Evacuations, then finalizers; several
//! objects at the same time, and of each the first one that is not refused. What is about Nodes is published to the writer of Nodes.
//!
//! Invariants: each write fails if its object has changed since the plan was made. No Evacuation is created on a node before the cache
//! shows the cordon that the plan asks for. Events are recorded once the status is written that shows the same. A failure keeps back what
//! depends on it: no Evacuation is created on a node of a maintenance whose status could not be written. Everything else goes on, so that
//! one object that is refused does not stop all others; the next turn plans the rest again.

mod evacuation_writes;
mod maintenance_writes;
mod spans;
mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_core::node::Node;
use headgate_kubernetes::{FieldIntents, NodeEdit, NodeIntent};
use jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::caches::Caches;
use super::cordon_edit::IsolationEdit;
use super::node_edits::{ConditionsEdit, RecordedEdit, RefusedNodes, UpgradeStatusEdit, intent};
use super::writer::{WriteError, Writer};
use crate::api::NodeMaintenanceStatus;
use crate::plan::action::{Action, EvacuationChange};
use crate::plan::isolation::orphaned_taint;
use crate::plan::status_changes::is_urgent;
use crate::reverted_cordons::RevertedCordons;
use crate::snapshot::Snapshot;

use maintenance_writes::unsigned;
pub(super) use spans::{EVACUATION, write_key};
use spans::{action_span, turn_span, written_object};
use turn::Turn;

/// Between two writes of a status in which only counters and messages have changed.
const COUNTER_INTERVAL: Duration = Duration::from_secs(5);
/// Objects that are written at the same time.
const MAX_CONCURRENT_WRITES: usize = 8;
/// After this time a turn begins no further write of an Evacuation: what does not depend on these is planned again.
const EVACUATION_WRITES_LIMIT: Duration = Duration::from_secs(1);
/// Until a write that failed once is repeated.
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The same for one that failed again, or was refused, as by a quota or a policy: both may last.
const LATER_RETRY: Duration = Duration::from_secs(5);

/// What became of the actions of a plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Executed {
    /// How many failed.
    pub(super) failures: usize,
    /// When something is to be written that waits.
    pub(super) next_write_at: Option<Instant>,
}

/// Carries out plans, and remembers what only events and metrics need.
pub(super) struct Executor {
    pub(super) caches: Caches,
    pub(super) writer: Writer,
    /// What cordons, taints and their annotations should be.
    pub(super) isolations: FieldIntents,
    /// What conditions of Nodes should be.
    pub(super) conditions: FieldIntents,
    /// What AKS' labels of Nodes should be.
    pub(super) upgrade_statuses: FieldIntents,
    pub(super) reverted: Arc<Mutex<RevertedCordons>>,
    /// When the status of each maintenance was written last, by UID.
    pub(super) written_at: HashMap<String, Instant>,
    /// When these controllers began. They measure no Evacuation on a node that was confirmed before: it need not be the first.
    pub(super) started_at: Timestamp,
    /// Nodes of maintenances, by UID and name, whose first Evacuation is measured.
    pub(super) evacuated: BTreeSet<(String, String)>,
    /// When the last write for which the plan still asks is repeated, and why it failed, by `write_key`.
    pub(super) refused: BTreeMap<(&'static str, String), (Instant, String)>,
    /// Why the last write of a Node failed for which the plan still asks.
    pub(super) refused_nodes: RefusedNodes,
}

impl Executor {
    /// Carries out all actions.
    pub(super) async fn execute(&mut self, snapshot: &Snapshot, actions: Vec<Action>, now: Timestamp) -> Executed {
        let span = turn_span(&self.writer.term, &actions);
        let turn = span.run(self.execute_in_span(snapshot, actions, now)).await;
        if turn.errors > 0 {
            span.fail("WriteFailed", &format_args!("{} writes failed", turn.errors));
        }
        Executed {
            failures: turn.failures,
            next_write_at: turn.next_write_at,
        }
    }

    async fn execute_in_span<'a>(&mut self, snapshot: &'a Snapshot, actions: Vec<Action>, now: Timestamp) -> Turn<'a> {
        let mut turn = Turn::new(snapshot);
        let mut objects: BTreeMap<_, Vec<Action>> = BTreeMap::new();
        let (mut cancellations, mut requests, mut finalizers) = (Vec::new(), Vec::new(), Vec::new());
        for action in actions {
            if self.is_paused(&mut turn, &action) {
                continue;
            }
            match action {
                Action::RecordEvent(event) => turn.events.entry(event.maintenance.clone()).or_default().push(event),
                Action::RemoveFinalizer { .. } => finalizers.push(vec![action]),
                Action::ChangeEvacuation { ref change, .. } => match change {
                    EvacuationChange::Delete | EvacuationChange::RemoveInstigator => cancellations.push(vec![action]),
                    EvacuationChange::Create | EvacuationChange::AddInstigator => requests.push(vec![action]),
                },
                // Published; its pods could come back to a node that is not cordoned yet.
                Action::UpdateNode { node, change } => {
                    if change.unschedulable == Some(true) {
                        turn.blocked_nodes.insert(node);
                    }
                }
                Action::UpdateNodeConditions { .. } | Action::SetUpgradePaused { .. } => {}
                Action::UpdateStatus { maintenance, status } if self.is_postponed(&mut turn, &maintenance, &status) => {
                }
                action => {
                    let is_machine = matches!(action, Action::ReleaseMachine(_));
                    let object = (is_machine, written_object(&action).1.to_owned());
                    objects.entry(object).or_default().push(action);
                }
            }
        }
        self.write_all(&mut turn, objects.into_values().collect(), now, Duration::MAX)
            .await;
        for mut evacuations in [cancellations, requests] {
            evacuations.retain(|actions| !actions.iter().any(|action| turn.is_blocked(action)));
            // Those that failed come last, the latest at the end, so that none whose requests hang keeps others from their turn.
            evacuations.sort_by_cached_key(|actions| self.repeated_at(actions.first()?));
            self.write_all(&mut turn, evacuations, now, EVACUATION_WRITES_LIMIT)
                .await;
        }
        self.write_all(&mut turn, finalizers, now, Duration::MAX).await;
        turn
    }

    /// Carries out the writes of objects, several objects at the same time: none waits long for others whose requests hang. A write that
    /// succeeds gives its object another version, so the object's next write is for another turn; after a refusal it comes at once.
    /// Objects that are not begun with before the limit are for the next turn, which follows at once where any write succeeded.
    async fn write_all(&mut self, turn: &mut Turn<'_>, objects: Vec<Vec<Action>>, now: Timestamp, limit: Duration) {
        let (this, known) = (&*self, &*turn);
        let (count, begun) = (objects.len(), Instant::now());
        let outcomes: Vec<_> = stream::iter(objects.into_iter().take_while(|_| begun.elapsed() < limit))
            .map(|actions| async move {
                let (mut outcomes, mut actions) = (Vec::new(), actions.into_iter());
                for action in actions.by_ref() {
                    let span = action_span(&this.writer.term, &action, &known.pods);
                    let outcome = span.run(this.write(known, &action, now)).await;
                    let is_refused = matches!(outcome, Err(WriteError::Refused(_)));
                    outcomes.push((action, span, outcome));
                    if !is_refused {
                        break;
                    }
                }
                (outcomes, actions)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .collect()
            .await;
        let is_cut = outcomes.len() < count;
        for (outcomes, left) in outcomes {
            for (action, span, outcome) in outcomes {
                match outcome {
                    Ok(()) => {
                        self.written(turn, &action, now);
                        if is_cut {
                            turn.next_write_at = Some(Instant::now());
                        }
                    }
                    Err(error) => {
                        let is_known = self.remember_refusal(turn, &action, &error);
                        turn.failed(&action, &span, &error, is_known);
                    }
                }
            }
            left.for_each(|action| turn.keep_back(&action));
        }
    }

    /// When a write that failed is repeated.
    fn repeated_at(&self, action: &Action) -> Option<Instant> {
        Some(self.refused.get(&write_key(action))?.0)
    }

    /// Whether a write waits, because it failed shortly before. What depends on it waits as well.
    fn is_paused(&self, turn: &mut Turn<'_>, action: &Action) -> bool {
        let later = self.repeated_at(action).filter(|at| *at > Instant::now());
        if let Some(at) = later {
            turn.write_at(at);
            turn.keep_back(action);
        }
        later.is_some()
    }

    /// Remembers that something could not be written, and that it is tried again, but for what another turn resolves. Gives whether it failed
    /// so before.
    fn remember_refusal(&mut self, turn: &mut Turn<'_>, action: &Action, error: &WriteError) -> bool {
        let (WriteError::Refused(why) | WriteError::Failed(why)) = error else {
            return false;
        };
        let key = write_key(action);
        let is_first = matches!(error, WriteError::Failed(_)) && !self.refused.contains_key(&key);
        let at = Instant::now() + if is_first { FIRST_RETRY } else { LATER_RETRY };
        turn.write_at(at);
        let before = self.refused.insert(key, (at, why.clone()));
        before.is_some_and(|(_, before)| before == *why)
    }

    /// Remembers what a write did.
    fn written(&mut self, turn: &Turn<'_>, action: &Action, now: Timestamp) {
        self.refused.remove(&write_key(action));
        match action {
            Action::UpdateStatus { maintenance, .. } => {
                let object = turn.maintenances.get(maintenance.as_str());
                let uid = object.and_then(|object| object.uid());
                self.written_at.insert(uid.unwrap_or_default(), Instant::now());
            }
            Action::ChangeEvacuation {
                change: EvacuationChange::Create,
                evacuation,
            } => {
                if let Some(node) = turn.node_of(evacuation) {
                    self.measure_first_evacuation(turn, node, now);
                }
            }
            _ => {}
        }
    }

    /// Whether a status waits: only counters and messages have changed, and it was written shortly before.
    fn is_postponed(&self, turn: &mut Turn<'_>, name: &str, status: &NodeMaintenanceStatus) -> bool {
        let Some(object) = turn.maintenances.get(name) else {
            return false;
        };
        let written_at = object.metadata.uid.as_ref().and_then(|uid| self.written_at.get(uid));
        let due_at = written_at
            .map(|at| *at + COUNTER_INTERVAL)
            .filter(|at| *at > Instant::now());
        let Some(due_at) = due_at.filter(|_| !is_urgent(object.status.as_ref(), status)) else {
            return false;
        };
        turn.write_at(due_at);
        true
    }

    /// Publishes what the plan makes of Nodes. What it no longer asks for is no longer written.
    pub(super) fn publish_nodes(&self, snapshot: &Snapshot, actions: &[Action]) {
        let nodes = snapshot.nodes.iter().map(|node| (node.name.as_str(), node));
        let nodes: BTreeMap<&str, &Arc<Node>> = nodes.collect();
        let uids = snapshot
            .maintenances
            .iter()
            .filter_map(|one| one.metadata.uid.as_deref());
        let uids: BTreeSet<_> = uids.collect();
        let (mut isolations, mut conditions, mut upgrade_statuses) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for action in actions {
            match action {
                Action::UpdateNode { node, change } => {
                    let Some(planned) = nodes.get(node.as_str()).copied() else {
                        continue;
                    };
                    let orphan = change.taint.as_ref().and_then(|_| orphaned_taint(planned, &uids));
                    let edit = IsolationEdit {
                        planned: Arc::clone(planned),
                        change: change.clone(),
                        orphan: orphan.map(ToOwned::to_owned),
                        reverted: Arc::clone(&self.reverted),
                        events: self.writer.events.clone(),
                        clock: self.writer.clock.clone(),
                    };
                    isolations.insert(node.clone(), self.intent(node, format!("{change:?}"), edit));
                }
                Action::UpdateNodeConditions { node, set, remove } => {
                    let (set, remove) = (set.clone(), remove.clone());
                    let key = format!("{set:?} {remove:?}");
                    let edit = ConditionsEdit { set, remove };
                    conditions.insert(node.clone(), self.intent(node, key, edit));
                }
                Action::SetUpgradePaused { node, is_paused } => {
                    let edit = UpgradeStatusEdit { is_paused: *is_paused };
                    upgrade_statuses.insert(node.clone(), self.intent(node, is_paused.to_string(), edit));
                }
                _ => {}
            }
        }
        self.isolations.publish(isolations);
        self.conditions.publish(conditions);
        self.upgrade_statuses.publish(upgrade_statuses);
    }

    fn intent(&self, node: &str, key: String, edit: impl NodeEdit + 'static) -> NodeIntent {
        let edit = RecordedEdit {
            node: node.to_owned(),
            refused: self.refused_nodes.clone(),
            edit,
        };
        intent(&self.node_uid(node), key, edit)
    }

    /// The UID of a Node for events; its name where it is not known.
    pub(super) fn node_uid(&self, name: &str) -> String {
        let nodes = self.caches.nodes.borrow();
        let node = nodes.as_ref().and_then(|nodes| nodes.get(name));
        node.map_or_else(|| name.to_owned(), |node| node.uid.clone())
    }

    /// Observes the time from a node's confirmation to its first Evacuation, for each maintenance that drains it.
    fn measure_first_evacuation(&mut self, turn: &Turn<'_>, node: &str, now: Timestamp) {
        for object in &turn.snapshot.maintenances {
            let statuses = object.status.iter().flat_map(|status| &status.node_statuses);
            let Some(status) = statuses.into_iter().find(|status| status.node_ref.name == node) else {
                continue;
            };
            let confirmed = status
                .load_balancer
                .as_ref()
                .and_then(|status| status.confirmed_time.as_ref())
                .filter(|confirmed| confirmed.0 >= self.started_at);
            let is_first = status.pods_evacuating == 0
                && self
                    .evacuated
                    .insert((object.uid().unwrap_or_default(), node.to_owned()));
            if let (Some(confirmed), true) = (confirmed, is_first) {
                self.writer
                    .metrics
                    .observe_out_to_evacuation(unsigned(now.duration_since(confirmed.0)));
            }
        }
    }
}
