//! A drain without Azure, with real processes: the agent of the node counts failed probes, and the controller's gate waits for them.

use std::time::Duration;

use headgate_test_kubernetes::{eventually, own_cluster};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::{Controller, SOON, api, apply_kinds, drain, is_drained, populate};
use crate::harness::AgentOptions;

const SETTINGS: &str = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\nmaintenance: {enabled: true}\n";

#[tokio::test]
async fn without_azure_pods_leave_once_the_agent_has_seen_enough_probes_fail() {
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    populate(&client).await;
    let agent = AgentOptions::new("node-1", control_plane.kubeconfig())
        .settings(SETTINGS)
        .argument("--role=agent")
        .start()
        .await;
    assert_eq!(agent.healthz().await.status, 200);
    let controller = Controller::start_with(SETTINGS, &[], control_plane.kubeconfig());
    let maintenances = api(&client, "NodeMaintenance");
    drain(&maintenances, 1).await;

    // The agent observes the taint and answers 503, but no load balancer has asked it yet.
    let status = eventually(SOON, "the gate waits for probes", async || {
        let status = maintenances.get("m").await.unwrap().data["status"].clone();
        let message = status["nodeStatuses"][0]["drainMessage"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if message.contains("0 of 2 probes of /healthz") {
            Ok(status)
        } else {
            Err(format!("{status}\n{}", controller.log()))
        }
    })
    .await;
    assert_eq!(
        status["nodeStatuses"][0]["loadBalancer"]["state"], "Pending",
        "{status}"
    );
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    assert!(pods.get_opt("web").await.unwrap().is_some());
    for _ in 0..2 {
        assert_eq!(agent.healthz().await.status, 503);
        // Of those within a second, one counts.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let status = is_drained(&client, &controller).await;
    assert_eq!(status["nodeStatuses"][0]["loadBalancer"]["state"], "Out", "{status}");
    controller.ends().await;
    agent.kill().await;
    control_plane.stop().await;
}
