//! The own Node on a real API server: taints, deletion, re-creation, a missing Node, an API server that is down, and the
//! remembered state across a restart. The cases are those of kube-proxy's node manager and some that upstream does not test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_test_kubernetes::{control_plane, create_node, eventually, met, patch_node, scratch, set_taints};
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, SOON, http, objects};

mod api_server;

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Logged when the health port opens after 5 s without an observation of the Node.
const UNKNOWN: &str = "state of the Node unknown and no remembered state found";

async fn taint(client: &Client, node: &str, key: &str) {
    set_taints(
        client,
        node,
        json!([{"key": key, "value": "1", "effect": "NoSchedule"}]),
    )
    .await;
}

async fn untaint(client: &Client, node: &str) {
    set_taints(client, node, json!(null)).await;
}

async fn create(client: &Client, node: &str, taints: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": taints}});
    objects::create(&Api::<Node>::all(client.clone()), node).await;
}

/// Waits for `/healthz` to answer `status`, with these signals and from this source.
async fn answers(agent: &Agent, status: u16, signals: &[&str], source: &str) {
    let what = format!("{status} {signals:?} {source}");
    let is_expected = |answer: &http::Response| {
        let body = answer.json();
        answer.status == status && body["signals"] == json!(signals) && body["source"] == source
    };
    agent.healthz_becomes(SOON, &what, is_expected).await;
    let eligible = agent.healthz().await.json()["nodeEligible"] == json!(signals.is_empty());
    assert!(eligible, "nodeEligible says the same");
    let livez = http::get(agent.healthz_address(), "/livez").await.unwrap();
    assert_eq!(livez.status, 200, "/livez never depends on the node");
}

async fn object(agent: &Agent, state: &str) {
    eventually(SOON, state, async || {
        let object = agent.statusz().await["node"]["object"].clone();
        met(object == state, object)
    })
    .await;
    let line = format!("headgate_node_object{{state=\"{state}\"}} 1");
    assert!(agent.metrics().await.contains(&line), "{line}");
}

#[tokio::test]
async fn each_signal_turns_healthz_503_and_its_end_turns_it_200() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "signals").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    answers(&agent, 200, &[], "watch").await;
    for key in headgate_core::node::DEFAULT_SIGNAL_TAINTS {
        taint(&client, &node, key).await;
        answers(&agent, 503, &[key], "watch").await;
        let line = format!("headgate_node_signal{{signal=\"{key}\"}} 1");
        assert!(agent.metrics().await.contains(&line), "{line}");
        untaint(&client, &node).await;
        answers(&agent, 200, &[], "watch").await;
    }
    for other in ["DeletionCandidateOfClusterAutoscaler", "node.kubernetes.io/not-ready"] {
        taint(&client, &node, other).await;
    }
    patch_node(&client, &node, json!({"spec": {"unschedulable": true}})).await;
    // One more signal shows that the events before it were observed.
    let taints = json!([{"key": "karpenter.sh/disrupted", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
    set_taints(&client, &node, taints).await;
    answers(&agent, 503, &["karpenter.sh/disrupted"], "watch").await;
}

#[tokio::test]
async fn configured_signal_lists_replace_the_defaults() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "own-list").await;
    let settings = "kubeProxyHealthzUrl: Disabled\nsignals: {disabled: [cluster-autoscaler], extra: [{taint: example.com/going, for: [health]}]}\n";
    let agent = AgentOptions::new(&node, &cluster.kubeconfig)
        .settings(settings)
        .start()
        .await;
    taint(&client, &node, TAINT).await;
    taint(&client, &node, "example.com/going").await;
    answers(&agent, 503, &["example.com/going"], "watch").await;
}

#[tokio::test]
async fn a_missing_node_is_eligible_until_it_is_created() {
    let cluster = control_plane();
    let client = cluster.client();
    let agent = AgentOptions::new("missing-at-first", &cluster.kubeconfig).start().await;
    // The API server answers that the Node does not exist, so the agent does not wait.
    assert!(!agent.log().contains(UNKNOWN), "{}", agent.log());
    answers(&agent, 200, &[], "none").await;
    object(&agent, "missing").await;
    create(
        &client,
        "missing-at-first",
        json!([{"key": TAINT, "effect": "NoSchedule"}]),
    )
    .await;
    answers(&agent, 503, &[TAINT], "watch").await;
    object(&agent, "present").await;
}

#[tokio::test]
async fn a_deleted_node_keeps_its_verdict_until_it_is_created_again() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "deleted").await;
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    patch_node(&client, &node, held).await;
    let mut agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    answers(&agent, 200, &[], "watch").await;
    let first = agent.statusz().await["node"]["uid"].clone();
    Api::<Node>::all(client.clone())
        .delete(&node, &DeleteParams::default())
        .await
        .unwrap();
    answers(&agent, 503, &["deletionTimestamp"], "watch").await;
    patch_node(&client, &node, json!({"metadata": {"finalizers": null}})).await;
    object(&agent, "deleted").await;
    answers(&agent, 503, &["deletionTimestamp"], "watch").await;
    assert_eq!(
        agent.wait(Duration::from_millis(500)).await,
        None,
        "the process does not exit"
    );
    create(&client, &node, json!([])).await;
    answers(&agent, 200, &[], "watch").await;
    assert_ne!(agent.statusz().await["node"]["uid"], first);
}

/// The kubeconfig with another token.
pub(crate) fn with_token(kubeconfig: &Path, token: &str) -> PathBuf {
    let mut file: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    file["users"][0]["user"] = serde_yaml::to_value(json!({"token": token})).unwrap();
    let path = scratch("kubeconfig").join("kubeconfig");
    std::fs::write(&path, serde_yaml::to_string(&file).unwrap()).unwrap();
    path
}
