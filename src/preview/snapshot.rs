//! Reads what a preview needs: Nodes, `NodeMaintenance`s, `PodDisruptionBudget`s, the pods of the nodes that would be drained, and the
//! load balancers as `status` reads them.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_core::node::{Node, NodeDetail, NodeObject, NodeReader};
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::plan::phase::Maintenance;
use headgate_maintenance::snapshot::{BudgetFacts, PodFacts};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api_error::api_error_text;
use crate::readable_objects::readable_objects;
use crate::status::{SnapshotRequest, StatusReport};

/// Objects in one response.
const PAGE_SIZE: u32 = 500;
/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Nodes whose pods are listed at the same time.
const MAX_CONCURRENT_LISTS: usize = 8;

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PreviewError {
    /// A node that is named does not exist.
    #[error("there is no Node {0:?}; `kubectl get nodes` lists them")]
    NoSuchNode(String),
    /// Objects cannot be listed.
    #[error("the {kind} cannot be listed: {error}")]
    List {
        /// The kind of the objects.
        kind: &'static str,
        /// The answer.
        error: String,
    },
}

/// What a preview is made from.
pub(crate) struct PreviewRequest<'a> {
    /// The `NodeMaintenance` that a drain would create.
    pub maintenance: NodeMaintenance,
    /// The nodes that are named on the command line.
    pub nodes: &'a [String],
    /// Reads the load balancers.
    pub status: SnapshotRequest<'a>,
}

/// The state of the cluster that a drain would meet.
#[derive(Clone, Debug)]
pub(crate) struct PreviewSnapshot {
    /// The time of the snapshot.
    pub now: Timestamp,
    /// The `NodeMaintenance` that a drain would create.
    pub maintenance: NodeMaintenance,
    /// All `NodeMaintenance`s of the cluster.
    pub maintenances: Vec<NodeMaintenance>,
    /// All Nodes.
    pub nodes: Vec<Node>,
    /// The pods of the nodes that would be drained.
    pub pods: Vec<PodFacts>,
    /// The `PodDisruptionBudget`s.
    pub budgets: Vec<BudgetFacts>,
    /// The pools, or why they are not known.
    pub load_balancers: Result<StatusReport, String>,
    /// How many entries of each pool stay in service, by the given settings.
    pub minimum_in_service: IntOrPercent,
    /// How many leave at a time.
    pub max_new_down: IntOrPercent,
    /// How many nodes may be under maintenance at once.
    pub max_concurrent_nodes: IntOrPercent,
}

/// Takes a snapshot.
///
/// # Errors
/// When Nodes, pods or budgets cannot be listed, or a node that is named does not exist.
pub(crate) async fn take_snapshot(request: PreviewRequest<'_>) -> Result<PreviewSnapshot, PreviewError> {
    let PreviewRequest {
        maintenance,
        nodes: named,
        status,
    } = request;
    let (client, settings) = (status.client, status.settings);
    let objects = async {
        let reader = NodeReader {
            detail: NodeDetail::Maintenance,
            ..NodeReader::default()
        };
        let nodes = list::<NodeObject>(client, "Nodes", "").await?;
        let nodes: Vec<Node> = nodes.into_iter().map(|object| reader.read(object)).collect();
        if let Some(missing) = named.iter().find(|name| !nodes.iter().any(|node| node.name == **name)) {
            return Err(PreviewError::NoSuchNode(missing.clone()));
        }
        let selected = Maintenance::new(&maintenance, &nodes).nodes;
        let pods: Vec<Vec<Pod>> = stream::iter(selected)
            .map(|node| async move { list::<Pod>(client, "pods", &format!("spec.nodeName={node}")).await })
            .buffered(MAX_CONCURRENT_LISTS)
            .try_collect()
            .await?;
        let budgets = list::<PodDisruptionBudget>(client, "PodDisruptionBudgets", "").await?;
        let maintenances = list_or_none(client).await?;
        Ok((nodes, pods, budgets, maintenances))
    };
    let (objects, report) = futures::join!(objects, crate::status::take_snapshot(status));
    let (nodes, pods, budgets, maintenances) = objects?;
    Ok(PreviewSnapshot {
        now: Timestamp::now(),
        maintenance,
        maintenances,
        nodes,
        pods: pods.iter().flatten().map(PodFacts::from).collect(),
        budgets: budgets.iter().filter_map(BudgetFacts::read).collect(),
        load_balancers: report
            .map(|snapshot| StatusReport::from_snapshot(&snapshot))
            .map_err(|error| error.to_string()),
        minimum_in_service: settings.guard.minimum_in_service,
        max_new_down: settings.guard.max_new_down,
        max_concurrent_nodes: settings.maintenance.max_concurrent_nodes,
    })
}

/// The `NodeMaintenance`s; none in a cluster that does not have the kind yet.
async fn list_or_none(client: &Client) -> Result<Vec<NodeMaintenance>, PreviewError> {
    let api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    match timeout(PAGE_TIMEOUT, api.list(&ListParams::default().limit(1))).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(Vec::new()),
        _ => list::<NodeMaintenance>(client, "NodeMaintenances", "").await,
    }
}

/// All objects of a kind that a field selector matches, page by page.
async fn list<K>(client: &Client, kind: &'static str, fields: &str) -> Result<Vec<K>, PreviewError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<Decoded<K>>::all(client.clone());
    let mut found = Vec::new();
    let mut params = ListParams::default().limit(PAGE_SIZE);
    if !fields.is_empty() {
        params = params.fields(fields);
    }
    loop {
        let failed = |error| PreviewError::List { kind, error };
        let page = timeout(PAGE_TIMEOUT, api.list(&params)).await;
        let page = page
            .map_err(|_| failed(format!("no answer within {} s", PAGE_TIMEOUT.as_secs())))?
            .map_err(|error| failed(api_error_text(&error)))?;
        let next = page.metadata.continue_.clone();
        found.extend(readable_objects(page));
        match next.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}
