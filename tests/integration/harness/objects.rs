//! Objects of the API server, as a test writes them.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// Merges a change into an object.
pub(crate) async fn merge<K>(api: &Api<K>, name: &str, change: Value) -> K
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let change = Patch::Merge(change);
    api.patch(name, &PatchParams::default(), &change).await.unwrap()
}

/// Merges a change into what a controller or kubelet writes of an object.
pub(crate) async fn merge_status<K>(api: &Api<K>, name: &str, change: Value)
where
    K: DeserializeOwned,
{
    let change = Patch::Merge(change);
    api.patch_status(name, &PatchParams::default(), &change).await.unwrap();
}

/// A Pod of headgate on the network of its node.
pub(crate) async fn create_headgate_pod(client: &Client, [name, component, version]: [&str; 3], node: &str, ip: &str) {
    let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": version});
    let pod = json!({"metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "hostNetwork": true, "serviceAccountName": "headgate", "automountServiceAccountToken": false,
            "containers": [{"name": "headgate", "image": format!("headgate:{version}")}]}});
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
    create(&pods, pod).await;
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": ip}});
    merge_status(&pods, name, status).await;
}
