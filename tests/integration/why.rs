//! `headgate why NODE` with a real agent and the real API server.

use std::process::Output;

use headgate_test_kubernetes::{assert_contains, control_plane, create_node, patch_node};
use serde_json::{Value, json};

use crate::harness::{AgentOptions, headgate, refused, stdout_of};

fn why(node: &str, more: &[&str]) -> Output {
    headgate(&control_plane().kubeconfig, &[&["why", node][..], more].concat())
}

#[tokio::test]
async fn why_explains_a_taint_with_and_without_the_agent() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "why").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let statusz = format!("http://{}/statusz", agent.metrics_address());
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    assert!(
        text.starts_with(&format!("{node}: /healthz answers 200, since ")),
        "{text}"
    );

    let taint =
        json!({"spec": {"unschedulable": true, "taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}});
    patch_node(&client, &node, taint).await;
    agent.answers(503).await;
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    assert_contains!(
        text,
        "/healthz answers 503, since ",
        "karpenter.sh/disrupted, since ",
        "Karpenter is about to replace or remove the node.",
        &format!("kubectl taint node {node} karpenter.sh/disrupted-"),
        "The node is cordoned. That keeps new Pods away, not traffic."
    );
    let json: Value = serde_json::from_str(&stdout_of(why(&node, &["--statusz", &statusz, "-o", "json"]))).unwrap();
    assert_eq!(
        (&json["sent"], &json["reasons"][0]["name"]),
        (&json!("no"), &json!("karpenter.sh/disrupted"))
    );

    // Without its agent, only the Node object explains the state.
    agent.kill().await;
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    assert_contains!(text, "karpenter.sh/disrupted\n", "its agent did not answer");
}

#[test]
fn unavailable_sources_are_reported() {
    refused(&why("no-such-node", &[]), 1, &["there is no Node \"no-such-node\""]);
    refused(&why("n", &["--statusz", "nowhere"]), 2, &[]);
}
