//! Carries out the actions of a plan, in their order. Those about Nodes are published to the writer of Nodes.
//!
//! Invariants: each write fails if its object has changed since the plan was made. No Evacuation is created on a node before the cache
//! shows the cordon that the plan asks for. Events are recorded once the status is written
//! that shows the same. A failure keeps back what depends on it: no Evacuation is created on a node of a maintenance whose
//! status could not be written. Everything else goes on, so that one object that is refused does not stop all others; the next
//! turn plans the rest again.

mod automatic_writes;
mod evacuation_writes;
mod spans;
mod turn;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_core::clock::Clock;
use headgate_core::node::Node;
use headgate_kubernetes::{Decoded, FieldIntents};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::caches::Caches;
use super::metrics::Metrics;
use super::node_edits::{ConditionsEdit, IsolationEdit, UpgradeStatusEdit, intent};
use super::writer::{WriteError, Writer};
use crate::api::names::{COMPLETION_FINALIZER, is_completion_finalizer};
use crate::api::{NodeMaintenance, NodeMaintenanceStatus, Stage};
use crate::cordon_race::{CordonRaceDetector, is_revert};
use crate::plan::action::{Action, Event};
use crate::plan::conditions::{self, COMPLETED, PROGRESSING};
use crate::plan::isolation::orphaned_taint;
use crate::plan::status_changes::is_urgent;
use crate::snapshot::Snapshot;

use evacuation_writes::{change_evacuation, name_of};
use spans::{action_span, evacuation_span, finalizer_span, turn_span};
use turn::Turn;

/// Between two writes of a status in which only counters and messages have changed.
const COUNTER_INTERVAL: Duration = Duration::from_secs(5);
/// Evacuations that are created or cancelled at the same time.
const MAX_CONCURRENT_WRITES: usize = 8;

/// What became of the actions of a plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Executed {
    /// How many failed.
    pub(super) failures: usize,
    /// When a status is to be written that waits.
    pub(super) next_write_at: Option<Instant>,
}

/// Carries out plans, and remembers what only events and metrics need.
pub(super) struct Executor {
    pub(super) caches: Caches,
    pub(super) writer: Writer,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// What cordons, taints and their annotations should be.
    pub(super) isolations: FieldIntents,
    /// What conditions of Nodes should be.
    pub(super) conditions: FieldIntents,
    /// What AKS' labels of Nodes should be.
    pub(super) upgrade_statuses: FieldIntents,
    pub(super) races: Arc<Mutex<CordonRaceDetector>>,
    /// When the status of each maintenance was written last, by UID.
    pub(super) written: HashMap<String, Instant>,
    /// Nodes of maintenances, by UID and name, whose first Evacuation is measured.
    pub(super) evacuated: BTreeSet<(String, String)>,
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
        let mut events: Vec<Event> = Vec::new();
        let (mut parallel, mut last) = (Vec::new(), Vec::new());
        for action in actions {
            let action = match action {
                Action::RecordEvent(event) => {
                    events.push(event);
                    continue;
                }
                Action::RemoveFinalizer { maintenance } => {
                    last.push(maintenance);
                    continue;
                }
                Action::CreateEvacuation { .. }
                | Action::AddInstigator { .. }
                | Action::RemoveInstigator { .. }
                | Action::DeleteEvacuation { .. } => {
                    parallel.push(action);
                    continue;
                }
                Action::UpdateNode { node, change } => {
                    // Its pods could come back to a node that is not cordoned yet.
                    if change.unschedulable == Some(true) {
                        turn.blocked_nodes.insert(node);
                    }
                    continue;
                }
                Action::UpdateNodeConditions { .. } | Action::SetUpgradePaused { .. } => continue,
                Action::UpdateStatus { maintenance, status } => {
                    if self.is_postponed(&mut turn, &maintenance, &status) {
                        continue;
                    }
                    Action::UpdateStatus { maintenance, status }
                }
                action => action,
            };
            let span = action_span(&self.writer.term, &action);
            turn.span = Some(span.clone());
            match action {
                Action::CreateMaintenance { node, maintenance } => {
                    span.run(self.create_maintenance(&mut turn, &node, *maintenance)).await;
                }
                Action::SetDeadline { maintenance, deadline } => {
                    let change = json!({"spec": {"deadline": Time(deadline)}});
                    span.run(self.change_maintenance(&mut turn, &maintenance, "deadline", change))
                        .await;
                }
                Action::DeleteMaintenance { maintenance } => {
                    span.run(self.delete_maintenance(&mut turn, &maintenance)).await;
                }
                Action::ReleaseMachine(machine) => span.run(self.release_machine(&mut turn, &machine)).await,
                Action::AddFinalizer { maintenance } => span.run(self.add_finalizer(&mut turn, &maintenance)).await,
                Action::SetStageComplete { maintenance } => {
                    let change = json!({"spec": {"stage": Stage::Complete}});
                    span.run(self.change_maintenance(&mut turn, &maintenance, "stage", change))
                        .await;
                }
                Action::UpdateStatus { maintenance, status } => {
                    let own;
                    (own, events) = events.into_iter().partition(|event| event.maintenance == maintenance);
                    span.run(self.update_status(&mut turn, &maintenance, *status, own, now))
                        .await;
                }
                // Published, or collected above.
                Action::UpdateNode { .. }
                | Action::UpdateNodeConditions { .. }
                | Action::SetUpgradePaused { .. }
                | Action::RecordEvent(_)
                | Action::RemoveFinalizer { .. }
                | Action::CreateEvacuation { .. }
                | Action::AddInstigator { .. }
                | Action::RemoveInstigator { .. }
                | Action::DeleteEvacuation { .. } => {}
            }
        }
        self.change_evacuations(&mut turn, parallel, now).await;
        for maintenance in last {
            let span = finalizer_span(&self.writer.term, &maintenance);
            turn.span = Some(span.clone());
            span.run(self.remove_finalizer(&mut turn, &maintenance)).await;
        }
        turn
    }

    /// Whether a status waits: only counters and messages have changed, and it was written shortly before.
    fn is_postponed(&self, turn: &mut Turn<'_>, name: &str, status: &NodeMaintenanceStatus) -> bool {
        let Some(object) = turn.maintenances.get(name) else {
            return false;
        };
        let written_at = object.metadata.uid.as_ref().and_then(|uid| self.written.get(uid));
        let due_at = written_at
            .map(|at| *at + COUNTER_INTERVAL)
            .filter(|at| *at > Instant::now());
        let Some(due_at) = due_at.filter(|_| !is_urgent(object.status.as_ref(), status)) else {
            return false;
        };
        turn.next_write_at = Some(turn.next_write_at.map_or(due_at, |at| at.min(due_at)));
        true
    }

    fn maintenance_api(&self) -> Api<Decoded<NodeMaintenance>> {
        Api::all(self.writer.client.clone())
    }

    /// Merges a change into a maintenance that has not changed since the plan was made.
    async fn patch_maintenance(&self, object: &NodeMaintenance, mut change: Value) -> Result<(), WriteError> {
        change["metadata"]["resourceVersion"] = json!(object.resource_version());
        change["metadata"]["uid"] = json!(object.uid());
        let (api, params, patch) = (self.maintenance_api(), PatchParams::default(), Patch::Merge(&change));
        self.writer
            .send(api.patch(&object.name_any(), &params, &patch))
            .await
            .map(drop)
    }

    async fn add_finalizer(&self, turn: &mut Turn<'_>, name: &str) {
        let Some(object) = turn.maintenances.get(name).copied() else {
            return;
        };
        let mut finalizers = object.finalizers().to_vec();
        finalizers.push(COMPLETION_FINALIZER.to_owned());
        let change = json!({"metadata": {"finalizers": finalizers}});
        if let Err(error) = self.patch_maintenance(object, change).await {
            turn.failed("finalizer", name, &error);
        }
    }

    async fn remove_finalizer(&self, turn: &mut Turn<'_>, name: &str) {
        let Some(object) = turn.maintenances.get(name).copied() else {
            return;
        };
        let is_foreign = |finalizer: &&String| !is_completion_finalizer(finalizer);
        let finalizers: Vec<_> = object.finalizers().iter().filter(is_foreign).collect();
        let change = json!({"metadata": {"finalizers": finalizers}});
        match self.patch_maintenance(object, change).await {
            Ok(()) | Err(WriteError::Gone) => {}
            Err(error) => turn.failed("finalizer", name, &error),
        }
    }

    async fn change_maintenance(&self, turn: &mut Turn<'_>, name: &str, what: &str, change: Value) {
        let Some(object) = turn.maintenances.get(name).copied() else {
            return;
        };
        if let Err(error) = self.patch_maintenance(object, change).await {
            turn.failed(what, name, &error);
        }
    }

    async fn update_status(
        &mut self,
        turn: &mut Turn<'_>,
        name: &str,
        status: NodeMaintenanceStatus,
        events: Vec<Event>,
        now: Timestamp,
    ) {
        let Some(object) = turn.maintenances.get(name).copied() else {
            return;
        };
        let mut changed = object.clone();
        changed.status = Some(status);
        let (api, params) = (self.maintenance_api(), PostParams::default());
        let replacement = Decoded::Object(changed.clone());
        if let Err(error) = self.writer.send(api.replace_status(name, &params, &replacement)).await {
            let nodes = changed.status.iter().flat_map(|status| &status.node_statuses);
            turn.blocked_nodes.extend(nodes.map(|node| node.node_ref.name.clone()));
            turn.failed("status", name, &error);
            return;
        }
        self.written.insert(object.uid().unwrap_or_default(), Instant::now());
        for event in events {
            let (is_warning, reason) = (event.reason.is_warning(), event.reason.as_str());
            self.writer
                .events
                .about_maintenance(object, is_warning, reason, &event.note);
            if let Some(node) = &event.node {
                let text = format!("NodeMaintenance {name}: {}", event.note);
                let node = (node.as_str(), &*self.node_uid(node));
                self.writer
                    .events
                    .about_maintained_node(object, node, is_warning, reason, &text);
            }
        }
        self.measure_stages(object.status.as_ref(), changed.status.as_ref(), now);
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
                        is_revert: is_revert(action, planned),
                        races: Arc::clone(&self.races),
                        events: self.writer.events.clone(),
                        clock: self.clock.clone(),
                    };
                    let intent = intent(&self.node_uid(node), format!("{change:?}"), edit);
                    isolations.insert(node.clone(), intent);
                }
                Action::UpdateNodeConditions { node, set, remove } => {
                    let (set, remove) = (set.clone(), remove.clone());
                    let key = format!("{set:?} {remove:?}");
                    let intent = intent(&self.node_uid(node), key, ConditionsEdit { set, remove });
                    conditions.insert(node.clone(), intent);
                }
                Action::SetUpgradePaused { node, is_paused } => {
                    let edit = UpgradeStatusEdit { is_paused: *is_paused };
                    let intent = intent(&self.node_uid(node), is_paused.to_string(), edit);
                    upgrade_statuses.insert(node.clone(), intent);
                }
                _ => {}
            }
        }
        self.isolations.publish(isolations);
        self.conditions.publish(conditions);
        self.upgrade_statuses.publish(upgrade_statuses);
    }

    /// The UID of a Node for events; its name where it is not known.
    fn node_uid(&self, name: &str) -> String {
        let nodes = self.caches.nodes.borrow();
        let node = nodes.as_ref().and_then(|nodes| nodes.get(name));
        node.map_or_else(|| name.to_owned(), |node| node.uid.clone())
    }

    /// Observes the stages that ended with a new status.
    fn measure_stages(
        &self,
        before: Option<&NodeMaintenanceStatus>,
        after: Option<&NodeMaintenanceStatus>,
        now: Timestamp,
    ) {
        let Some(after) = after else { return };
        let known = before.map_or(0, |before| before.stage_statuses.len());
        for pair in after.stage_statuses.windows(2).skip(known.saturating_sub(1)) {
            if let [stage, next] = pair {
                let took = next.start_timestamp.0.duration_since(stage.start_timestamp.0);
                self.metrics.observe_stage(stage.name, unsigned(took));
            }
        }
        let is_completed = |status: &NodeMaintenanceStatus| {
            conditions::find(&status.conditions, PROGRESSING).is_some_and(|condition| condition.reason == COMPLETED)
        };
        if let Some(last) = after.stage_statuses.last()
            && is_completed(after)
            && !before.is_some_and(is_completed)
        {
            self.metrics
                .observe_stage(last.name, unsigned(now.duration_since(last.start_timestamp.0)));
        }
    }

    /// Creates and cancels Evacuations, several at the same time.
    async fn change_evacuations(&mut self, turn: &mut Turn<'_>, actions: Vec<Action>, now: Timestamp) {
        let node_of = |action: &Action, turn: &Turn<'_>| match action {
            Action::CreateEvacuation { evacuation } => turn
                .pods
                .get(evacuation.spec.pod_ref.uid.as_str())
                .map(|pod| pod.node.clone()),
            _ => None,
        };
        let due = actions.into_iter().filter_map(|action| {
            let node = node_of(&action, turn);
            let is_blocked = node.as_ref().is_some_and(|node| turn.blocked_nodes.contains(node));
            (!is_blocked).then_some((node, action))
        });
        let due: Vec<_> = due.collect();
        let (writer, evacuations, pods) = (&self.writer, &turn.evacuations, &turn.pods);
        let outcomes: Vec<_> = stream::iter(due)
            .map(|(node, action)| async move {
                let span = evacuation_span(&writer.term, &action, pods);
                let outcome = span.run(change_evacuation(writer, evacuations, pods, &action)).await;
                (node, action, span, outcome)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .collect()
            .await;
        for (node, action, span, outcome) in outcomes {
            turn.span = Some(span);
            match (outcome, node) {
                (Ok(()), Some(node)) => self.measure_first_evacuation(turn, &node, now),
                (Ok(()), None) => {}
                (Err(error), _) => turn.failed("evacuation", name_of(&action), &error),
            }
        }
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
                .and_then(|status| status.confirmed_time.as_ref());
            let is_first = status.pods_evacuating == 0
                && self
                    .evacuated
                    .insert((object.uid().unwrap_or_default(), node.to_owned()));
            if let (Some(confirmed), true) = (confirmed, is_first) {
                self.metrics
                    .observe_out_to_evacuation(unsigned(now.duration_since(confirmed.0)));
            }
        }
    }
}

fn unsigned(duration: jiff::SignedDuration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}
