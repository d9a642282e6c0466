//! Nodes with pods under maintenance, on the benchmark's API server. It has no kubelets: a pod without a grace period is gone as
//! soon as it is evicted.

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use headgate_maintenance::api::{Evacuation, NodeMaintenance, definitions};
use headgate_maintenance::snapshot::PodObject;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::azure_emulator::node_name;

const NAMESPACE: &str = "default";
/// Concurrent requests to the API server.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The values of the label `tier`; a plan has an entry for each but the last.
const TIERS: usize = 3;

/// Maintenances of neighbouring nodes. Where `step` is less than `nodes_each`, each has nodes in common with the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaintainedNodes {
    pub(crate) maintenances: usize,
    pub(crate) nodes_each: usize,
    /// Between the first nodes of two maintenances.
    pub(crate) step: usize,
    pub(crate) pods_each: usize,
}

impl MaintainedNodes {
    /// How many nodes are under maintenance. The last maintenance has nodes in common with the first one.
    pub(crate) fn nodes(self) -> usize {
        self.maintenances * self.step
    }

    /// Creates the kinds, once for an API server, and waits until they are served.
    pub(crate) async fn create_kinds(client: &Client) -> anyhow::Result<()> {
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        for definition in definitions() {
            exists(api.create(&PostParams::default(), &definition).await).context("creating a kind")?;
        }
        let one = ListParams::default().limit(1);
        in_time("the kinds are served", async || {
            let is_served = maintenances(client).list(&one).await.is_ok()
                && Api::<Evacuation>::all(client.clone()).list(&one).await.is_ok();
            Ok(is_served)
        })
        .await
    }

    /// Creates the pods of all nodes.
    pub(crate) async fn create_pods(self, client: &Client) -> anyhow::Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
        let account: ServiceAccount = parsed(json!({"metadata": {"name": "bench"}}))?;
        exists(accounts.create(&PostParams::default(), &account).await).context("creating a ServiceAccount")?;
        let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
        stream::iter((0..self.nodes() * self.pods_each).map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, async |number| {
                let pod: Pod = parsed(json!({
                    "metadata": {"name": format!("pod-{number}"),
                        "labels": {"app": format!("app-{}", number % 100), "tier": format!("{}", number % TIERS)}},
                    "spec": {"nodeName": node_name(number / self.pods_each), "serviceAccountName": "bench",
                        "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "none"}]},
                }))?;
                pods.create(&PostParams::default(), &pod).await?;
                Ok(())
            })
            .await
            .context("creating pods")
    }

    /// Creates the maintenances, all in the stage `Drain`; `load_balancer` is the field of that name.
    pub(crate) async fn create_maintenances(self, client: &Client, load_balancer: &Value) -> anyhow::Result<()> {
        for number in 0..self.maintenances {
            let node = |offset: usize| node_name((number * self.step + offset) % self.nodes());
            let names = (0..self.nodes_each).map(node);
            let terms: Vec<_> = names
                .map(|name| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}))
                .collect();
            let tiers = (0..TIERS - 1).map(|tier| {
                json!({"podPriority": 1000 * (tier + 1), "podSelector": {"matchLabels": {"tier": format!("{tier}")}}})
            });
            let maintenance: NodeMaintenance = parsed(json!({
                "apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
                "metadata": {"name": format!("maintenance-{number}")},
                "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, "stage": "Drain",
                    "drainPlan": tiers.collect::<Vec<_>>(), "loadBalancer": load_balancer},
            }))?;
            maintenances(client)
                .create(&PostParams::default(), &maintenance)
                .await?;
        }
        Ok(())
    }

    /// Waits until the statuses of all maintenances are as expected.
    pub(crate) async fn until(
        self,
        client: &Client,
        what: &str,
        is_so: impl Fn(&NodeMaintenance) -> bool,
    ) -> anyhow::Result<()> {
        in_time(what, async || {
            let all = maintenances(client).list(&ListParams::default()).await?.items;
            Ok(all.len() == self.maintenances && all.iter().all(&is_so))
        })
        .await
    }

    /// Deletes the maintenances, and waits until they are gone.
    pub(crate) async fn end(self, client: &Client) -> anyhow::Result<()> {
        maintenances(client)
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        in_time("the maintenances are gone", async || {
            Ok(maintenances(client)
                .list(&ListParams::default())
                .await?
                .items
                .is_empty())
        })
        .await
    }
}

/// Whether all pods have left the nodes of a maintenance.
pub(crate) fn is_drained(maintenance: &NodeMaintenance) -> bool {
    let mut conditions = maintenance.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| condition.type_ == "Drained" && condition.status == "True")
}

pub(crate) fn maintenances(client: &Client) -> Api<NodeMaintenance> {
    Api::all(client.clone())
}

/// All objects that a plan is made from.
pub(crate) async fn list(
    client: &Client,
) -> anyhow::Result<(Vec<NodeMaintenance>, Vec<Node>, Vec<PodObject>, Vec<Evacuation>)> {
    let all = ListParams::default();
    Ok((
        maintenances(client).list(&all).await?.items,
        Api::all(client.clone()).list(&all).await?.items,
        Api::all(client.clone()).list(&all).await?.items,
        Api::all(client.clone()).list(&all).await?.items,
    ))
}

fn parsed<T: DeserializeOwned>(object: Value) -> anyhow::Result<T> {
    Ok(serde_json::from_value(object)?)
}

/// An object that exists already is as good as a new one.
fn exists<T>(created: kube::Result<T>) -> anyhow::Result<()> {
    match created {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => Ok(created.map(drop)?),
    }
}

async fn in_time<F>(what: &str, is_so: impl Fn() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let waiting = async {
        while !is_so().await? {
            sleep(POLL_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, waiting)
        .await
        .with_context(|| format!("not in time: {what}"))?
}
