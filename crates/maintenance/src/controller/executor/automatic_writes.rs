//! Writes of maintenances that headgate creates for nodes that are taken.

use headgate_kubernetes::Decoded;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams, Preconditions};

use super::super::writer::WriteError;
use super::Executor;
use super::turn::Turn;
use crate::api::NodeMaintenance;

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
        let note = format!("NodeMaintenance {name} drains the node, because {reason}{gone_at}");
        let events = &self.writer.events;
        events.about_node(node, &self.node_uid(node), false, MAINTENANCE_CREATED, &note);
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
