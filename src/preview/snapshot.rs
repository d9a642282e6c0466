//! Reads what a preview needs: Nodes, `NodeMaintenance`s, `PodDisruptionBudget`s, the pods of the nodes that would be drained, and the
//! load balancers as `status` reads them.

use std::collections::BTreeSet;

use anyhow::anyhow;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_controller::admin_state::ClusterTarget;
use headgate_core::node::{Node, NodeDetail, NodeObject, NodeReader};
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::plan::concurrency::maintenances;
use headgate_maintenance::plan::phase::Maintenance;
use headgate_maintenance::snapshot::{BudgetFacts, PodFacts, PodObject};
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api_error::RequestError;
use crate::config::Settings;
use crate::failure::no_such_node;
use crate::readable_objects::list_all;
use crate::status::{self, StatusReport};
use crate::why::list_maintenances;

/// Nodes whose pods are listed at the same time.
const MAX_CONCURRENT_LISTS: usize = 8;

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
    /// The pools as the leader would plan them once the nodes have the signal of the maintenance, or why they are not known.
    pub load_balancers: Result<StatusReport, String>,
    /// How many entries of each pool stay in service, by the given settings.
    pub minimum_in_service: IntOrPercent,
    /// How many leave at a time.
    pub max_new_down: IntOrPercent,
    /// How many nodes may be under maintenance at once.
    pub max_concurrent_nodes: IntOrPercent,
}

impl PreviewSnapshot {
    /// The nodes that would wait for room: the maintenance is the newest one.
    pub(crate) fn waiting_for_room(&self) -> BTreeSet<String> {
        let mut new = self.maintenance.clone();
        new.metadata.creation_timestamp = Some(Time(self.now));
        let is_other = |one: &&NodeMaintenance| one.metadata.name != new.metadata.name;
        let mut all: Vec<_> = self.maintenances.iter().filter(is_other).cloned().collect();
        all.push(new.clone());
        let all = maintenances(&all, &self.nodes, Some(self.max_concurrent_nodes));
        let mut own = all
            .into_iter()
            .filter(|one| Some(one.name) == new.metadata.name.as_deref());
        own.next().map(|own| own.waiting_for_room).unwrap_or_default()
    }
}

/// Takes a snapshot for the `NodeMaintenance` that a drain would create; `named` are the nodes on the command line. The rest is as for
/// [`status::take_snapshot`].
///
/// # Errors
/// When Nodes, pods or budgets cannot be listed, or a node that is named does not exist.
pub(crate) async fn take_snapshot(
    client: &Client,
    azure: Result<ClusterTarget, String>,
    settings: &Settings,
    maintenance: NodeMaintenance,
    named: &[String],
) -> anyhow::Result<PreviewSnapshot> {
    let objects = async {
        let reader = NodeReader {
            detail: NodeDetail::Maintenance,
            ..NodeReader::default()
        };
        let all = ListParams::default();
        let nodes = list::<NodeObject>(client, "Nodes", all.clone()).await?;
        let nodes: Vec<Node> = nodes.into_iter().map(|object| reader.read(object)).collect();
        if let Some(missing) = named.iter().find(|name| !nodes.iter().any(|node| node.name == **name)) {
            return Err(no_such_node(missing));
        }
        let selected = Maintenance::new(&maintenance, &nodes).nodes;
        let pods: Vec<Vec<PodObject>> = stream::iter(selected)
            .map(|node| async move {
                let own = ListParams::default().fields(&format!("spec.nodeName={node}"));
                list::<PodObject>(client, "pods", own).await
            })
            .buffered(MAX_CONCURRENT_LISTS)
            .try_collect()
            .await?;
        let budgets = list::<PodDisruptionBudget>(client, "PodDisruptionBudgets", all).await?;
        let maintenances = list_maintenances(client).await;
        let maintenances = maintenances.map_err(|error| not_listed("NodeMaintenances", &error))?;
        Ok((nodes, pods, budgets, maintenances))
    };
    let (objects, report) = futures::join!(objects, status::take_snapshot(client, azure, settings));
    let (nodes, pods, budgets, maintenances) = objects?;
    let mut preview = PreviewSnapshot {
        now: Timestamp::now(),
        maintenance,
        maintenances,
        nodes,
        pods: pods.into_iter().flatten().map(PodFacts::from).collect(),
        budgets: budgets.iter().filter_map(BudgetFacts::read).collect(),
        load_balancers: Err(String::new()),
        minimum_in_service: settings.guard.minimum_in_service,
        max_new_down: settings.guard.max_new_down,
        max_concurrent_nodes: settings.maintenance.max_concurrent_nodes,
    };
    // The others get the signal later.
    let selected = Maintenance::new(&preview.maintenance, &preview.nodes).nodes;
    let begun = &selected - &preview.waiting_for_room();
    preview.load_balancers = match report {
        Ok(mut snapshot) => {
            snapshot.begin_maintenance(&begun, &settings.signals);
            Ok(StatusReport::from_snapshot(&snapshot))
        }
        Err(failure) => Err(failure.error.to_string()),
    };
    Ok(preview)
}

/// All objects of a kind that a field selector matches.
async fn list<K>(client: &Client, kind: &str, params: ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let listed = list_all(&Api::<Decoded<K>>::all(client.clone()), params).await;
    listed.map_err(|error| not_listed(kind, &error))
}

fn not_listed(kind: &str, error: &RequestError) -> anyhow::Error {
    anyhow!("the {kind} cannot be listed: {error}")
}
