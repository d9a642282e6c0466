//! Workloads to drain, for `headgate-lab sandbox --workloads`: kube-controller-manager, kube-scheduler and kwok in place of kubelets,
//! two `Deployments` with `PodDisruptionBudgets` and a `DaemonSet` in the namespace `shop`, and the manifests of two maintenances that
//! have one node in common.
//!
//! Two controllers lead instead of the agents, because only they may write other Nodes. They are on the first and the last
//! node, so the one that leads hands over when its node is drained.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_maintenance::api::{Evacuation, NodeMaintenance, definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::files::{WriteError, create_private_directory, unwritable};
use super::nodes::{RegisteredNode, SANDBOX_LABEL};

mod objects;

/// The fewest nodes: three that are drained, and one for their pods.
pub(super) const MIN_NODES: u8 = 4;
/// The namespace of the workloads.
pub(super) const NAMESPACE: &str = "shop";
/// The names of the maintenances, as in KEP-4212.
pub(super) const MAINTENANCES: [&str; 2] = ["maintenance-a", "maintenance-b"];
/// The Nodes whose kubelets kwok plays: all of a sandbox.
pub(super) const KWOK_LABEL: &str = SANDBOX_LABEL;
/// The controllers' settings. Of a few nodes, `adminState.maxNewDown` would let one go in five minutes by default.
pub(super) const CONTROLLER_SETTINGS: &str = "maintenance: {enabled: true}\nadminState: {maxNewDown: 100%}\n";
/// For all pods to run.
const START_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The workloads cannot be created, or do not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadsError {
    /// An object cannot be created or read.
    #[error("cannot create or read {what}: {source}")]
    Api {
        /// The kind and the name of the object.
        what: String,
        /// The error of the client.
        source: Box<kube::Error>,
    },
    /// The pods do not run in time.
    #[error(
        "the workloads do not run after {} s ({missing}); the logs of kube-controller-manager, kube-scheduler and kwok may say why",
        START_TIMEOUT.as_secs()
    )]
    NotRunning {
        /// What is missing.
        missing: String,
    },
    /// A manifest cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// There are too few nodes.
    #[error("--workloads needs at least {MIN_NODES} nodes, so that the pods of drained ones have a place; given: {0}")]
    TooFewNodes(u8),
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> WorkloadsError {
    move |source| WorkloadsError::Api {
        what: what.into(),
        source: Box::new(source),
    }
}

/// Creates the kinds of maintenances, and waits until they are served.
pub(super) async fn create_definitions(client: &Client) -> Result<(), WorkloadsError> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for definition in definitions() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &definition)
            .await
            .map_err(failed(name))?;
    }
    let served = async {
        let one = ListParams::default().limit(1);
        let (maintenances, evacuations) = (
            Api::<NodeMaintenance>::all(client.clone()),
            Api::<Evacuation>::all(client.clone()),
        );
        while maintenances.list(&one).await.is_err() || evacuations.list(&one).await.is_err() {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(START_TIMEOUT, served)
        .await
        .map_err(|_| WorkloadsError::NotRunning {
            missing: "the kinds NodeMaintenance and Evacuation are not served".to_owned(),
        })
}

/// Creates the workloads, and waits until all their pods run.
pub(super) async fn create(client: &Client, nodes: usize) -> Result<(), WorkloadsError> {
    for object in objects::all() {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("{kind} {name}");
        let parsed = |error| failed(what.clone())(kube::Error::SerdeError(error));
        let object: DynamicObject = serde_json::from_value(object.clone()).map_err(parsed)?;
        objects::api(client, &object)
            .create(&PostParams::default(), &object)
            .await
            .map_err(failed(what))?;
    }
    let mut missing = String::new();
    let running = async {
        loop {
            missing = objects::missing(client, nodes)
                .await
                .unwrap_or_else(|error| error.to_string());
            if missing.is_empty() {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    let is_running = timeout(START_TIMEOUT, running).await.is_ok();
    is_running.then_some(()).ok_or(WorkloadsError::NotRunning { missing })
}

/// Writes the manifests of two maintenances of the first three nodes; the first node is in both.
pub(super) fn write_manifests(directory: &Path, nodes: &[RegisteredNode]) -> Result<Vec<PathBuf>, WorkloadsError> {
    create_private_directory(directory).map_err(unwritable(directory))?;
    let name = |index: usize| nodes.get(index).map_or("", |node| node.name.as_str());
    let [a, b] = MAINTENANCES;
    let mut files = Vec::new();
    for (maintenance, names, priority) in [(a, [name(0), name(1)], 5000), (b, [name(0), name(2)], 10_000)] {
        let path = directory.join(format!("{maintenance}.yaml"));
        // JSON is valid YAML.
        let text = format!("{:#}\n", manifest(maintenance, &names, priority));
        std::fs::write(&path, text).map_err(unwritable(&path))?;
        files.push(path);
    }
    Ok(files)
}

/// A maintenance in the stage `Drain` whose plan begins with the pods up to `priority`.
fn manifest(name: &str, nodes: &[&str], priority: i32) -> Value {
    let term = |node: &&str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    json!({
        "apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"nodeSelectorTerms": nodes.iter().map(term).collect::<Vec<_>>()},
            "stage": "Drain", "reason": "kernel update",
            "drainPlan": [{"podPriority": priority}, {"podPriority": 15_000}],
            "loadBalancer": {"connectionsDrainSeconds": 5},
        },
    })
}
