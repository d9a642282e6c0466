//! KEP-3836's point about liveness probes: on `/healthz` one restarts an agent of a terminating node in a loop, on
//! `/livez` it does not. The test plays kubelet's prober for a real agent.

use std::time::Duration;

use headgate_test_kubernetes::{control_plane, create_node, eventually, set_taints};
use serde_json::json;
use tokio::time::sleep;

use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, http};

/// kubelet's default `failureThreshold`.
const FAILURE_THRESHOLD: u32 = 3;
/// kubelet's default period is 10 s.
const PERIOD: Duration = Duration::from_millis(50);
const SOON: Duration = Duration::from_secs(30);

/// Probes an agent this many times as kubelet does, and restarts it after three failures in a row; gives the restarts.
async fn probe_as_kubelet(options: &AgentOptions, mut agent: Agent, path: &str, probes: u32) -> u32 {
    let (mut failures, mut restarts) = (0, 0);
    for _ in 0..probes {
        let answer = http::get(agent.healthz_address(), path).await;
        failures = if answer.is_ok_and(|answer| answer.status == 200) {
            0
        } else {
            failures + 1
        };
        if failures == FAILURE_THRESHOLD {
            agent.stop(SOON).await;
            agent = options.start().await;
            (failures, restarts) = (0, restarts + 1);
        }
        sleep(PERIOD).await;
    }
    agent.stop(SOON).await;
    restarts
}

#[tokio::test]
async fn a_liveness_probe_on_healthz_restarts_in_a_loop_and_one_on_livez_does_not() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "liveness").await;
    let options = AgentOptions::new(&node, &cluster.kubeconfig);
    let agent = options.start().await;
    assert_eq!(agent.healthz().await.status, 200, "before the taint both probes pass");
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    set_taints(&client, &node, taint).await;
    eventually(SOON, "503 at the taint", async || match agent.healthz().await.status {
        503 => Ok(()),
        other => Err(format!("status {other}")),
    })
    .await;

    let restarts = probe_as_kubelet(&options, agent, "/livez", 12).await;
    assert_eq!(restarts, 0, "a node that goes away does not make its agent unhealthy");
    let restarts = probe_as_kubelet(&options, options.start().await, "/healthz", 12).await;
    assert_eq!(restarts, 4, "a restart does not cure the node");
}
