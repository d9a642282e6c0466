//! The writes of maintenances and Machines that a plan asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_kubernetes::{Decoded, EventKind};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::super::events::MAINTAIN_NODE;
use super::super::writer::WriteError;
use super::Executor;
use super::evacuation_writes::change_evacuation;
use super::turn::Turn;
use crate::api::names::{COMPLETION_FINALIZER, is_completion_finalizer};
use crate::api::{NodeMaintenance, NodeMaintenanceStatus, Stage};
use crate::machine::{DeletedMachine, HOOKS, MachineObject};
use crate::plan::action::Action;
use crate::plan::phase::is_completed;

/// A Node is taken.
const MAINTENANCE_CREATED: EventKind = EventKind::normal("MaintenanceCreated", MAINTAIN_NODE);

impl Executor {
    /// One write, of an object that has not changed since the plan was made.
    pub(super) async fn write(&self, turn: &Turn<'_>, action: &Action, now: Timestamp) -> Result<(), WriteError> {
        let find = |name: &str| turn.maintenances.get(name).copied().ok_or(WriteError::Gone);
        let outcome = match action {
            Action::CreateMaintenance { node, maintenance } => return self.create_maintenance(node, maintenance).await,
            Action::UpdateStatus { maintenance, status } => {
                return self.update_status(turn, find(maintenance)?, status, now).await;
            }
            Action::SetDeadline { maintenance, deadline } => {
                let change = json!({"spec": {"deadline": Time(*deadline)}});
                self.patch_maintenance(find(maintenance)?, change).await
            }
            Action::DeleteMaintenance { maintenance } => self.delete_maintenance(find(maintenance)?).await,
            Action::ReleaseMachine(machine) => self.release_machine(machine).await,
            Action::AddFinalizer { maintenance } => {
                let object = find(maintenance)?;
                let has = object.finalizers().iter().map(String::as_str);
                self.set_finalizers(object, has.chain([COMPLETION_FINALIZER]).collect())
                    .await
            }
            Action::RemoveFinalizer { maintenance } => {
                let object = find(maintenance)?;
                let has = object.finalizers().iter().map(String::as_str);
                self.set_finalizers(object, has.filter(|one| !is_completion_finalizer(one)).collect())
                    .await
            }
            Action::SetStageComplete { maintenance } => {
                let change = json!({"spec": {"stage": Stage::Complete}});
                self.patch_maintenance(find(maintenance)?, change).await
            }
            Action::ChangeEvacuation { change, evacuation } => {
                return change_evacuation(&self.writer, &turn.pods, *change, evacuation).await;
            }
            Action::UpdateNode { .. }
            | Action::UpdateNodeConditions { .. }
            | Action::SetUpgradePaused { .. }
            | Action::RecordEvent(_) => Ok(()),
        };
        match outcome {
            Err(WriteError::Gone) => Ok(()),
            outcome => outcome,
        }
    }

    fn maintenance_api(&self) -> Api<Decoded<NodeMaintenance>> {
        Api::all(self.writer.client.clone())
    }

    /// Merges a change into a maintenance.
    async fn patch_maintenance(&self, object: &NodeMaintenance, mut change: Value) -> Result<(), WriteError> {
        change["metadata"]["resourceVersion"] = json!(object.resource_version());
        change["metadata"]["uid"] = json!(object.uid());
        let (api, params, patch) = (self.maintenance_api(), PatchParams::default(), Patch::Merge(&change));
        self.writer
            .send(api.patch(&object.name_any(), &params, &patch))
            .await
            .map(drop)
    }

    async fn set_finalizers(&self, object: &NodeMaintenance, finalizers: Vec<&str>) -> Result<(), WriteError> {
        let change = json!({"metadata": {"finalizers": finalizers}});
        self.patch_maintenance(object, change).await
    }

    /// Replaces the status, and records the events that it shows.
    async fn update_status(
        &self,
        turn: &Turn<'_>,
        object: &NodeMaintenance,
        status: &NodeMaintenanceStatus,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let (name, mut changed) = (object.name_any(), object.clone());
        changed.status = Some(status.clone());
        let (api, params, changed) = (self.maintenance_api(), PostParams::default(), Decoded::Object(changed));
        self.writer.send(api.replace_status(&name, &params, &changed)).await?;
        for event in turn.events.get(&name).into_iter().flatten() {
            let kind = EventKind {
                reason: event.reason.as_str(),
                action: MAINTAIN_NODE,
                is_warning: event.reason.is_warning(),
            };
            let events = &self.writer.events;
            events.about_maintenance(object, kind, &event.note);
            if let Some(node) = &event.node {
                let text = format!("NodeMaintenance {name}: {}", event.note);
                let node = (node.as_str(), &*self.node_uid(node));
                events.about_maintained_node(object, node, kind, &text);
            }
        }
        self.measure_stages(object.status.as_ref(), status, now);
        Ok(())
    }

    /// Observes the stages that ended with a new status.
    fn measure_stages(&self, before: Option<&NodeMaintenanceStatus>, after: &NodeMaintenanceStatus, now: Timestamp) {
        let known = before.map_or(0, |before| before.stage_statuses.len());
        for pair in after.stage_statuses.windows(2).skip(known.saturating_sub(1)) {
            if let [stage, next] = pair {
                let took = next.start_timestamp.0.duration_since(stage.start_timestamp.0);
                self.writer.metrics.observe_stage(stage.name, unsigned(took));
            }
        }
        if let Some(last) = after.stage_statuses.last()
            && is_completed(after)
            && !before.is_some_and(is_completed)
        {
            let took = now.duration_since(last.start_timestamp.0);
            self.writer.metrics.observe_stage(last.name, unsigned(took));
        }
    }

    /// Creates the maintenance of a node.
    async fn create_maintenance(&self, node: &str, object: &NodeMaintenance) -> Result<(), WriteError> {
        let (api, params) = (self.maintenance_api(), PostParams::default());
        let created = Decoded::Object(object.clone());
        self.writer.send(api.create(&params, &created)).await?;
        let (name, reason) = (object.name_any(), &object.spec.reason);
        let deadline = object.spec.deadline.as_ref();
        let gone_at = deadline.map_or_else(String::new, |Time(at)| {
            format!("; it is expected to be gone at {at:.0}")
        });
        let text = format!("NodeMaintenance {name} drains the node, because {reason}{gone_at}");
        let events = &self.writer.events;
        events.about_node(node, &self.node_uid(node), MAINTENANCE_CREATED, &text);
        Ok(())
    }

    /// Removes the hooks from a Machine.
    async fn release_machine(&self, machine: &DeletedMachine) -> Result<(), WriteError> {
        let hooks: BTreeMap<_, Option<&str>> = HOOKS.into_iter().map(|hook| (hook, None)).collect();
        let change = json!({"metadata": {"resourceVersion": machine.resource_version, "annotations": hooks}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        let machines = Api::<MachineObject>::namespaced(self.writer.client.clone(), &machine.namespace);
        self.writer.send(machines.patch(&machine.name, &params, &patch)).await?;
        tracing::info!(
            namespace = machine.namespace,
            machine = machine.name,
            node = machine.node,
            "hooks removed from machine"
        );
        Ok(())
    }

    /// Deletes a maintenance. It stays until everything is undone.
    async fn delete_maintenance(&self, object: &NodeMaintenance) -> Result<(), WriteError> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version(),
        });
        let (name, api) = (object.name_any(), self.maintenance_api());
        self.writer.send(api.delete(&name, &params)).await.map(drop)
    }
}

pub(super) fn unsigned(duration: SignedDuration) -> Duration {
    Duration::try_from(duration).unwrap_or_default()
}
