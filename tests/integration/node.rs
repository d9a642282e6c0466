//! The own Node on a real API server: taints, deletion, re-creation, a missing Node, an API server that is down
//! or refuses requests, and the remembered state across a restart. The cases are those of kube-proxy's node manager
//! and some that upstream does not test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_test_kubernetes::{control_plane, create_node, eventually, scratch};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, http};

mod api_server;

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Timeout of every wait, long enough for a busy machine.
const SOON: Duration = Duration::from_mins(1);

/// Logged when the health port opens after 5 s without an observation of the Node.
const UNKNOWN: &str = "state of the Node unknown and no remembered state found";

async fn patch(client: &Client, node: &str, patch: Value) {
    let nodes = Api::<Node>::all(client.clone());
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

async fn taint(client: &Client, node: &str, key: &str) {
    patch(
        client,
        node,
        json!({"spec": {"taints": [{"key": key, "value": "1", "effect": "NoSchedule"}]}}),
    )
    .await;
}

async fn untaint(client: &Client, node: &str) {
    patch(client, node, json!({"spec": {"taints": null}})).await;
}

async fn delete(client: &Client, node: &str) {
    Api::<Node>::all(client.clone())
        .delete(node, &DeleteParams::default())
        .await
        .unwrap();
}

async fn create(client: &Client, node: &str, taints: Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": taints}});
    let node: Node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(client.clone())
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
}

/// Waits for `/healthz` to answer `status`, with these signals and from this source.
async fn answers(agent: &Agent, status: u16, signals: &[&str], source: &str) {
    let what = format!("{status} {signals:?} {source}");
    eventually(SOON, &what, async || {
        let answer = agent.healthz().await;
        let body = answer.json();
        let good = answer.status == status && body["signals"] == json!(signals) && body["source"] == source;
        if good {
            Ok(())
        } else {
            Err(format!("{} {body}", answer.status))
        }
    })
    .await;
    let eligible = agent.healthz().await.json()["nodeEligible"] == json!(signals.is_empty());
    assert!(eligible, "nodeEligible says the same");
    let livez = http::get(agent.healthz_address(), "/livez").await.unwrap();
    assert_eq!(livez.status, 200, "/livez never depends on the node");
}

async fn statusz(agent: &Agent) -> Value {
    let request = b"GET /statusz HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n";
    http::exchange(agent.metrics_address(), request).await.unwrap().json()
}

async fn object(agent: &Agent, state: &str) {
    eventually(SOON, state, async || {
        let object = statusz(agent).await["node"]["object"].clone();
        if object == state {
            Ok(())
        } else {
            Err(object.to_string())
        }
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
    patch(&client, &node, json!({"spec": {"unschedulable": true}})).await;
    // One more signal shows that the events before it were observed.
    patch(
        &client,
        &node,
        json!({"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}}),
    )
    .await;
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
async fn a_terminating_node_is_ineligible_and_a_deleted_node_keeps_its_verdict() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "deleted").await;
    patch(
        &client,
        &node,
        json!({"metadata": {"finalizers": ["example.com/hold"]}}),
    )
    .await;
    let mut agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    answers(&agent, 200, &[], "watch").await;
    delete(&client, &node).await;
    answers(&agent, 503, &["deletionTimestamp"], "watch").await;
    patch(&client, &node, json!({"metadata": {"finalizers": null}})).await;
    object(&agent, "deleted").await;
    answers(&agent, 503, &["deletionTimestamp"], "watch").await;
    assert_eq!(
        agent.wait(Duration::from_millis(500)).await,
        None,
        "the process does not exit"
    );
}

#[tokio::test]
async fn a_recreated_node_has_no_signal_of_the_old_one() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "again").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    taint(&client, &node, TAINT).await;
    answers(&agent, 503, &[TAINT], "watch").await;
    let first = statusz(&agent).await["node"]["uid"].clone();
    delete(&client, &node).await;
    object(&agent, "deleted").await;
    answers(&agent, 503, &[TAINT], "watch").await;
    create(&client, &node, json!([])).await;
    answers(&agent, 200, &[], "watch").await;
    assert_ne!(statusz(&agent).await["node"]["uid"], first);
}

/// The kubeconfig with another token.
pub(crate) fn with_token(kubeconfig: &Path, token: &str) -> PathBuf {
    let mut file: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    file["users"][0]["user"] = serde_yaml::to_value(json!({"token": token})).unwrap();
    let path = scratch("kubeconfig").join("kubeconfig");
    std::fs::write(&path, serde_yaml::to_string(&file).unwrap()).unwrap();
    path
}
