//! The Pods of the sandbox's agents and controllers, which are processes of this machine: as kubelet reports static pods, which nothing
//! evicts, with the labels of the chart's.

use headgate_core::telemetry::VERSION;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::nodes::RegisteredNode;

const NAMESPACE: &str = "kube-system";

/// A Pod cannot be created, or its status not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the Pod {NAMESPACE}/{name}: {source}")]
pub struct PodsError {
    name: String,
    source: Box<kube::Error>,
}

/// What a process is of headgate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    Agent,
    Controller,
}

/// Creates the Pod of a process on a node, and reports it as running and ready.
pub(super) async fn create(client: &Client, component: Component, node: &RegisteredNode) -> Result<(), PodsError> {
    let (name, pod) = pod(component, &node.name);
    let failed = |source| PodsError {
        name: name.clone(),
        source: Box::new(source),
    };
    let pod: Pod = serde_json::from_value(pod).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &pod).await.map_err(failed)?;
    let ip = node.addresses.first().map(ToString::to_string);
    let patch = Patch::Merge(json!({"status": status(ip.as_deref(), Timestamp::now())}));
    let written = api.patch_status(&name, &PatchParams::default(), &patch).await;
    written.map(|_| ()).map_err(failed)
}

/// The name, and the object.
fn pod(component: Component, node: &str) -> (String, Value) {
    let (prefix, component) = match component {
        Component::Agent => ("headgate", "agent"),
        Component::Controller => ("headgate-controller", "controller"),
    };
    let name = format!("{prefix}-{node}");
    let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": VERSION, "app.kubernetes.io/part-of": "headgate"});
    let pod = json!({
        "metadata": {"name": name, "labels": labels, "annotations": {"kubernetes.io/config.mirror": "headgate-lab"}},
        "spec": {"nodeName": node, "hostNetwork": true, "tolerations": [{"operator": "Exists"}], "containers": [container()]},
    });
    (name, pod)
}

fn container() -> Value {
    json!({"name": "headgate", "image": format!("headgate:{VERSION}")})
}

/// The status that kubelet writes of a pod that is ready.
fn status(ip: Option<&str>, now: Timestamp) -> Value {
    let now = Time(now);
    let mut running = container();
    running["imageID"] = "".into();
    running["ready"] = true.into();
    running["started"] = true.into();
    running["restartCount"] = 0.into();
    running["state"] = json!({"running": {"startedAt": now}});
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let ips: Vec<_> = ip.into_iter().map(|ip| json!({"ip": ip})).collect();
    json!({"phase": "Running", "startTime": now, "hostIP": ip, "podIP": ip, "podIPs": ips, "conditions": conditions,
        "containerStatuses": [running]})
}
