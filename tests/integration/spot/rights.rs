//! The permissions that eviction notices need, with a token bound to the own Node: only the taint can be written.

use headgate_test_kubernetes::kubectl;
use headgate_test_kubernetes::{eventually, met, own_cluster};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use super::imds::{Fault, Imds, document, event};
use super::{LATER, LATER_STILL, SOON, answers, boot, create, metric, options, tainted};
use crate::harness::{objects, succeed};
use crate::manifests::rendering::folder;
use crate::node::with_token;

/// A token for the service account `headgate`, bound to a Pod on `node`, as kubelet asks for it.
async fn pod_token(client: &Client, node: &str) -> String {
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
    let pod = json!({"metadata": {"name": "headgate-x"}, "spec": {"nodeName": node, "serviceAccountName": "headgate",
        "automountServiceAccountToken": false, "containers": [{"name": "agent", "image": "headgate"}]}});
    let pod = objects::create(&pods, pod).await;
    let request = json!({"spec": {"audiences": [], "boundObjectRef":
        {"apiVersion": "v1", "kind": "Pod", "name": "headgate-x", "uid": pod.metadata.uid}}});
    let request: TokenRequest = serde_json::from_value(request).unwrap();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "kube-system");
    let granted = accounts
        .create_token_request("headgate", &PostParams::default(), &request)
        .await
        .unwrap();
    granted.status.unwrap().token
}

#[tokio::test]
async fn eviction_notices_allow_only_the_draining_taint() {
    let (control_plane, client) = own_cluster().await;
    let imds = Imds::start().await;
    create(&client, "spot-rights").await;
    let example = folder(&json!({"evictionNotices": {"enabled": true}}));
    succeed(kubectl(control_plane.kubeconfig()).args(["apply", "-k"]).arg(example));
    let token = pod_token(&client, "spot-rights").await;
    let kubeconfig = with_token(control_plane.kubeconfig(), &token);
    // The policy is enforced once the API server has compiled it.
    let mut number = 0;
    eventually(SOON, "a label is refused", async || {
        number += 1;
        let label = format!("try={number}");
        let mut command = kubectl(&kubeconfig);
        let tried = command
            .args(["label", "node", "spot-rights", &label, "--overwrite"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        met(said.contains("headgate may change only annotations and taints"), said)
    })
    .await;
    let agent = options("spot-rights", &kubeconfig, &imds).start().await;
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-rights_3"])],
    )));
    tainted(&client, "spot-rights", true).await;
    boot(&client, "spot-rights", "boot-2").await;
    tainted(&client, "spot-rights", false).await;

    // Without the right: one log message, a counter, and the signal still counts.
    let mut command = kubectl(control_plane.kubeconfig());
    let deleted = command
        .args(["delete", "clusterrolebinding", "headgate-spot"])
        .output()
        .unwrap();
    assert!(deleted.status.success());
    imds.set(Fault::None(document(
        3,
        &[event("b", "Preempt", LATER_STILL, &["spot-rights_3"])],
    )));
    eventually(SOON, "refused", async || {
        let count = metric(
            &agent,
            "headgate_node_writes_total{field=\"draining_taint\",outcome=\"refused\"}",
        )
        .await;
        met(count >= 2, count)
    })
    .await;
    answers(&agent, SOON, &["preempt"]).await;
    assert_eq!(
        agent
            .log()
            .matches("evictionNotices.enabled of the chart grants")
            .count(),
        1,
        "{}",
        agent.log()
    );
    drop(agent);
    control_plane.stop().await;
}
