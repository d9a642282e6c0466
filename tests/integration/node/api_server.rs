//! The agent while the API server is down, and the remembered state across a restart.

use std::time::{Duration, Instant};

use headgate_test_kubernetes::{eventually, met, own_cluster};
use serde_json::json;

use super::{SOON, TAINT, UNKNOWN, answers, create, taint, untaint};
use crate::harness::{AgentOptions, http};

#[tokio::test]
async fn an_api_server_outage_keeps_the_verdict_until_the_watch_resumes() {
    let (mut control_plane, client) = own_cluster().await;
    create(&client, "good", json!([])).await;
    create(&client, "drained", json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
    let good = AgentOptions::new("good", control_plane.kubeconfig()).start().await;
    let drained = AgentOptions::new("drained", control_plane.kubeconfig()).start().await;
    answers(&good, 200, &[], "watch").await;
    answers(&drained, 503, &[TAINT], "watch").await;
    control_plane.stop_apiserver().await;
    eventually(SOON, "the loss is seen", async || {
        let error = good.statusz().await["node"]["watchError"]["reason"].clone();
        met(error == "connection", error)
    })
    .await;
    answers(&good, 200, &[], "watch").await;
    answers(&drained, 503, &[TAINT], "watch").await;
    control_plane.start_apiserver().await.unwrap();
    // The watch recovers although the Node does not change.
    eventually(Duration::from_mins(1), "the watch is good again", async || {
        let error = good.statusz().await["node"].get("watchError").cloned();
        error.map_or(Ok(()), |error| Err(error.to_string()))
    })
    .await;
    taint(&client, "good", TAINT).await;
    untaint(&client, "drained").await;
    // The watch's backoff may have grown to some seconds.
    answers(&good, 503, &[TAINT], "watch").await;
    answers(&drained, 200, &[], "watch").await;
    assert!(good.log().contains("watch recovered"), "{}", good.log());
    let log = good.log();
    let logged = log
        .lines()
        .filter(|line| line.contains("watch failed") && line.contains("\"reason\":\"connection\""));
    assert_eq!(logged.count(), 1, "logged once: {log}");
    drop((good, drained));
    control_plane.stop().await;
}

#[tokio::test]
async fn a_restart_during_an_api_server_outage_uses_the_remembered_state() {
    let (mut control_plane, client) = own_cluster().await;
    create(&client, "drained", json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
    create(&client, "good", json!([])).await;
    let drained = AgentOptions::new("drained", control_plane.kubeconfig());
    let good = AgentOptions::new("good", control_plane.kubeconfig());
    let (first, second) = (drained.start().await, good.start().await);
    answers(&first, 503, &[TAINT], "watch").await;
    let since = first.statusz().await["node"]["signals"][0]["since"].clone();
    answers(&second, 200, &[], "watch").await;
    for agent in [&first, &second] {
        let state = agent.directory().join("state.json");
        eventually(SOON, "the state is on disk", async || {
            state.exists().then_some(()).ok_or("no file".into())
        })
        .await;
    }
    control_plane.stop_apiserver().await;
    first.kill().await;
    second.kill().await;

    // With a remembered state, the port opens at once with the last verdict.
    let agent = drained.start().await;
    assert!(!agent.log().contains(UNKNOWN), "{}", agent.log());
    answers(&agent, 503, &[TAINT], "remembered").await;
    assert_eq!(
        agent.statusz().await["node"]["signals"][0]["since"],
        since,
        "since when is remembered too"
    );
    assert_eq!(http::get(agent.metrics_address(), "/readyz").await.unwrap().status, 200);
    let eligible = good.start().await;
    answers(&eligible, 200, &[], "remembered").await;

    // Without a remembered state, the port opens after 5 s, the node is eligible, and the process is not ready.
    let forgetful = AgentOptions::new("drained", control_plane.kubeconfig());
    let started = Instant::now();
    let forgetful = forgetful.start().await;
    assert!(
        started.elapsed() >= Duration::from_secs(5),
        "it opened after {:?}",
        started.elapsed()
    );
    assert!(forgetful.log().contains(UNKNOWN), "{}", forgetful.log());
    answers(&forgetful, 200, &[], "none").await;
    let readyz = http::get(forgetful.metrics_address(), "/readyz").await.unwrap();
    assert_eq!(
        (
            readyz.status,
            readyz.text().contains("[-]node failed: not observed yet")
        ),
        (503, true)
    );

    // A remembered state of another node, or a corrupt one, is ignored with a log message.
    for (text, complaint) in [
        ("{", "is corrupt"),
        (
            r#"{"version":1,"nodeName":"other","node":{"uid":"u","isDeleting":true,"shuttingDown":false,"taints":[]},"since":{},"writtenAt":"2026-01-01T00:00:00Z"}"#,
            "is about Node",
        ),
    ] {
        let options = AgentOptions::new("drained", control_plane.kubeconfig());
        std::fs::write(options.directory().join("state.json"), text).unwrap();
        let agent = options.start().await;
        answers(&agent, 200, &[], "none").await;
        assert!(agent.log().contains(complaint), "{}", agent.log());
    }

    control_plane.start_apiserver().await.unwrap();
    answers(&agent, 503, &[TAINT], "watch").await;
    answers(&forgetful, 503, &[TAINT], "watch").await;
    answers(&eligible, 200, &[], "watch").await;
    drop((agent, forgetful, eligible));
    control_plane.stop().await;
}
