//! Writes for nodes that are taken: the maintenances that headgate creates, and the Machines that it holds.

use std::collections::BTreeMap;

use headgate_kubernetes::Decoded;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::super::writer::WriteError;
use super::Executor;
use super::turn::Turn;
use crate::api::NodeMaintenance;
use crate::machine::{DeletedMachine, HOOKS, MachineObject};

/// The reason of the event about a Node that is taken.
const MAINTENANCE_CREATED: &str = "MaintenanceCreated";

impl Executor {
    /// Creates the maintenance of a node.
    pub(super) async fn create_maintenance(&self, turn: &mut Turn<'_>, node: &str, object: NodeMaintenance) {
        let (name, reason) = (object.name_any(), object.spec.reason.clone());
        let deadline = object.spec.deadline.as_ref().map(|deadline| deadline.0);
        let (api, params) = (self.maintenance_api(), PostParams::default());
        if let Err(error) = self.writer.send(api.create(&params, &Decoded::Object(object))).await {
            turn.failed("creation", &name, &error);
            return;
        }
        let gone_at = deadline.map_or_else(String::new, |at| format!("; it is expected to be gone at {at:.0}"));
        let text = format!("NodeMaintenance {name} drains the node, because {reason}{gone_at}");
        let events = &self.writer.events;
        events.about_node(node, &self.node_uid(node), false, MAINTENANCE_CREATED, &text);
    }

    /// Removes the hooks from a Machine that has not changed since it was read.
    pub(super) async fn release_machine(&self, turn: &mut Turn<'_>, machine: &DeletedMachine) {
        let hooks: BTreeMap<_, Option<&str>> = HOOKS.into_iter().map(|hook| (hook, None)).collect();
        let change = json!({"metadata": {"resourceVersion": machine.resource_version, "annotations": hooks}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        let machines = Api::<MachineObject>::namespaced(self.writer.client.clone(), &machine.namespace);
        match self.writer.send(machines.patch(&machine.name, &params, &patch)).await {
            Ok(_) => tracing::info!(
                namespace = machine.namespace,
                machine = machine.name,
                node = machine.node,
                "hooks removed from machine"
            ),
            Err(WriteError::Gone) => {}
            Err(error) => turn.failed("machine", &machine.name, &error),
        }
    }

    /// Deletes a maintenance that has not changed since the plan was made. It stays until everything is undone.
    pub(super) async fn delete_maintenance(&self, turn: &mut Turn<'_>, name: &str) {
        let Some(object) = turn.maintenances.get(name).copied() else {
            return;
        };
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version: object.resource_version(),
        });
        match self.writer.send(self.maintenance_api().delete(name, &params)).await {
            Ok(_) | Err(WriteError::Gone) => {}
            Err(error) => turn.failed("deletion", name, &error),
        }
    }
}
