//! `NodeMaintenance`s as `headgate status` and `headgate why` show them: rows that are a pure function of the objects, and the list.

use headgate_maintenance::api::{Blocker, NodeMaintenance, NodeMaintenanceNodeStatus};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use crate::api_error::RequestError;
use crate::drain::EndedBy;
use crate::readable_objects::list_all;
use crate::status::{Word, word};

/// The row of a `NodeMaintenance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MaintenanceRow {
    /// The name of the `NodeMaintenance`.
    pub name: String,
    /// `spec.stage`.
    #[serde(deserialize_with = "word")]
    pub stage: Word,
    /// The start of the newest stage that was started.
    pub stage_since: Option<Timestamp>,
    /// `spec.reason`.
    pub reason: String,
    /// Whether it only shows what would be done.
    pub dry_run: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// How many nodes it selects.
    pub nodes_total: i32,
    /// How many pods have to leave.
    pub pods_left: i32,
    /// The conditions, by type.
    pub conditions: Vec<ConditionRow>,
    /// The nodes that are shown, by name.
    pub nodes: Vec<MaintainedNodeRow>,
    /// What ends it for one of its nodes; for text only.
    #[serde(skip)]
    pub ended_by: EndedBy,
}

/// A condition of a `NodeMaintenance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionRow {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The time of the last change of its status.
    pub since: Timestamp,
}

/// A node of a `NodeMaintenance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MaintainedNodeRow {
    /// The name of the Node.
    pub node: String,
    /// What happens there, or what is waited for.
    pub message: String,
    /// Pods that have to leave and have no Evacuation yet.
    pub pods_pending: i32,
    /// Pods that have to leave and have an Evacuation.
    pub pods_evacuating: i32,
    /// How far the node is on its way out of the load balancers.
    pub load_balancer: Option<GateRow>,
    /// What keeps pods on the node; the first five.
    pub blockers: Vec<BlockerRow>,
    /// How many blockers there are.
    pub blockers_total: i32,
}

/// How far a node is on its way out of the load balancers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GateRow {
    /// `Pending`, `Draining`, `Out` or `TimedOut`.
    #[serde(deserialize_with = "word")]
    pub state: Word,
    /// Since when the load balancers send no new connections.
    pub down_since: Option<Timestamp>,
    /// When a read confirmed that first.
    pub confirmed_at: Option<Timestamp>,
}

/// What keeps a pod on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockerRow {
    /// The pod, as namespace/name.
    pub pod: String,
    /// In words.
    pub message: String,
    /// Since when the pod is listed with it.
    pub since: Timestamp,
}

impl MaintenanceRow {
    /// The row of an object.
    pub(crate) fn new(object: &NodeMaintenance) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let conditions = status.conditions.iter().map(|condition| ConditionRow {
            kind: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0,
        });
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            stage: object.spec.stage.as_str(),
            stage_since: status.stage_statuses.iter().map(|stage| stage.start_timestamp.0).max(),
            reason: object.spec.reason.clone(),
            dry_run: object.spec.dry_run,
            deleting: object.metadata.deletion_timestamp.is_some(),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            nodes_total: status.selected_nodes,
            pods_left: status.pods_left,
            conditions: conditions.collect(),
            nodes: status.node_statuses.iter().map(MaintainedNodeRow::new).collect(),
            ended_by: EndedBy::of(object),
        }
    }

    /// A condition by its type.
    pub(crate) fn condition(&self, kind: &str) -> Option<&ConditionRow> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The stage with what qualifies it.
    pub(crate) fn stage_text(&self) -> String {
        let mut text = self.stage.to_owned();
        if self.dry_run {
            text.push_str(", dry run");
        }
        if self.deleting {
            text.push_str(", being deleted");
        }
        text
    }

    /// Retains the nodes with these names; gives whether any is left.
    pub(crate) fn retain_nodes(&mut self, names: &[String]) -> bool {
        self.nodes.retain(|node| names.contains(&node.node));
        !self.nodes.is_empty()
    }
}

impl MaintainedNodeRow {
    fn new(status: &NodeMaintenanceNodeStatus) -> Self {
        let time = |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| time.0;
        let load_balancer = status.load_balancer.as_ref().map(|gate| GateRow {
            state: gate.state.as_str(),
            down_since: gate.down_time.as_ref().map(time),
            confirmed_at: gate.confirmed_time.as_ref().map(time),
        });
        Self {
            node: status.node_ref.name.clone(),
            message: status.drain_message.clone(),
            pods_pending: status.pods_pending_evacuation,
            pods_evacuating: status.pods_evacuating,
            load_balancer,
            blockers: status.blockers.iter().map(BlockerRow::new).collect(),
            blockers_total: status.blockers_total,
        }
    }

    /// Pods that have to leave.
    pub(crate) fn pods_left(&self) -> i32 {
        self.pods_pending + self.pods_evacuating
    }

    /// Where the node is: one sentence about its load balancers.
    pub(crate) fn load_balancer_text(&self) -> String {
        match &self.load_balancer {
            None => "not asked to leave its load balancers yet".to_owned(),
            Some(gate) => match (gate.state, gate.down_since) {
                ("Pending", _) => "not confirmed out of its load balancers".to_owned(),
                ("TimedOut", _) => "pods leave without a confirmation by the load balancers".to_owned(),
                (_, Some(since)) => format!("out of its load balancers since {since:.0}"),
                (_, None) => "in no load balancer".to_owned(),
            },
        }
    }
}

impl BlockerRow {
    fn new(blocker: &Blocker) -> Self {
        Self {
            pod: blocker.pod_ref.to_string(),
            message: blocker.message.clone(),
            since: blocker.first_observed_time.0,
        }
    }
}

/// Lists the `NodeMaintenance`s, by name. A cluster that does not have the kind has none.
///
/// # Errors
/// A page is missing.
pub(crate) async fn list_maintenances(client: &Client) -> Result<Vec<NodeMaintenance>, RequestError> {
    match list_all(&Api::all(client.clone()), ListParams::default()).await {
        Err(error) if error.code() == 404 => Ok(Vec::new()),
        listed => listed,
    }
}

/// Their rows.
///
/// # Errors
/// A text that says why they are not known.
pub(crate) async fn maintenance_rows(client: &Client) -> Result<Vec<MaintenanceRow>, String> {
    let listed = list_maintenances(client).await.map_err(|error| error.to_string())?;
    Ok(listed.iter().map(MaintenanceRow::new).collect())
}
