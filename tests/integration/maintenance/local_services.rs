//! A drain of nodes with endpoints of a Service with `externalTrafficPolicy: Local`, without Azure, with real processes.

use headgate_test_kubernetes::{eventually, met, own_cluster};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::{Controller, SOON, api, apply_kinds, drain, is_drained, populate};
use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, http, objects};

const SETTINGS: &str = "kubeProxyHealthzUrl: Disabled\nserviceHealthChecks: Path\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\nmaintenance: {enabled: true}\n";

/// The Service `default/web` with a ready endpoint on each of these nodes.
async fn serve_on(client: &Client, nodes: &[&str]) {
    let endpoint = |number: usize, node: &str| json!({"addresses": [format!("10.244.0.{number}")], "nodeName": node});
    let endpoints: Vec<_> = nodes
        .iter()
        .enumerate()
        .map(|(index, node)| endpoint(index + 1, node))
        .collect();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}, "endpoints": endpoints,
        "ports": [{"name": "", "port": 8080}]});
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    let apply = PatchParams::apply("test").force();
    slices.patch("web-1", &apply, &Patch::Apply(slice)).await.unwrap();
}

async fn create_service(client: &Client) {
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80}]}});
    let services = Api::<Service>::namespaced(client.clone(), "default");
    objects::create(&services, service).await;
}

async fn start(node: &str, kubeconfig: &std::path::Path) -> Agent {
    let options = AgentOptions::new(node, kubeconfig).settings(SETTINGS);
    options.argument("--role=agent").start().await
}

/// The answer of an agent about the Service, as to a load balancer.
async fn probe(agent: &Agent) -> u16 {
    let answer = http::get(agent.healthz_address(), "/healthz/services/default/web").await;
    answer.unwrap().status
}

async fn answers(agent: &Agent, status: u16, what: &str) {
    eventually(SOON, what, async || {
        let found = probe(agent).await;
        met(found == status, format!("{found}\n{}", agent.log()))
    })
    .await;
}

/// Probes `/healthz` and the Service, which both fail, until the condition says that the node is out.
async fn is_marked_out(client: &Client, node: &str, agent: &Agent) {
    let nodes = Api::<Node>::all(client.clone());
    eventually(SOON, "the node is out", async || {
        assert_eq!((agent.healthz().await.status, probe(agent).await), (503, 503));
        let status = nodes.get(node).await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        let marker = conditions.find(|one| one.type_ == "headgate.dev/OutOfLoadBalancers");
        match marker {
            Some(marker) if marker.status == "True" => Ok(()),
            marker => Err(format!("{marker:?}")),
        }
    })
    .await;
}

/// Of two nodes with signals, the first by name serves until a third one does. The gate of the one that keeps serving says so.
#[tokio::test]
async fn two_nodes_with_signals_never_leave_a_service_without_a_serving_node() {
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    populate(&client).await;
    create_service(&client).await;
    serve_on(&client, &["node-1", "node-2"]).await;
    let (first, second) = (
        start("node-1", control_plane.kubeconfig()).await,
        start("node-2", control_plane.kubeconfig()).await,
    );
    answers(&first, 200, "the first node serves").await;
    answers(&second, 200, "the second node serves").await;
    let controller = Controller::start_with(SETTINGS, &[], control_plane.kubeconfig());
    let maintenances = api(&client, "NodeMaintenance");
    drain(&maintenances, 1).await;
    let nodes = Api::<Node>::all(client.clone());
    let taint = json!({"spec": {"taints": [{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]}});
    objects::merge(&nodes, "node-2", taint).await;

    // Whichever signal came first: one of them serves at every moment, and in the end it is the first by name.
    eventually(SOON, "the second node leaves", async || {
        let statuses = (probe(&first).await, probe(&second).await);
        assert_ne!(statuses, (503, 503), "{}\n{}", first.log(), second.log());
        met(statuses == (200, 503), format!("{statuses:?}"))
    })
    .await;
    eventually(SOON, "the gate says what it waits for", async || {
        let status = maintenances.get("m").await.unwrap().data["status"].clone();
        let message = status["nodeStatuses"][0]["drainMessage"].as_str().unwrap_or_default();
        if message.contains("No other node without a signal serves default/web") {
            Ok(())
        } else {
            first.healthz().await;
            Err(format!("{status}\n{}", controller.log()))
        }
    })
    .await;
    serve_on(&client, &["node-1", "node-3"]).await;
    objects::create(&nodes, json!({"metadata": {"name": "node-3"}})).await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    objects::merge_status(&nodes, "node-3", ready).await;
    answers(&first, 503, "a third node serves").await;
    is_marked_out(&client, "node-1", &first).await;
    let status = is_drained(&client, &controller).await;
    assert_eq!(status["nodeStatuses"][0]["loadBalancer"]["state"], "Out", "{status}");
    controller.ends().await;
    first.kill().await;
    second.kill().await;
    control_plane.stop().await;
}
