//! A rule of a Service with `externalTrafficPolicy: Local` in the shared pool, whose probes only nodes with its endpoints answer.

use std::time::Duration;

use headgate_core::node::{NodeHold, NodeTraffic};
use headgate_test_kubernetes::{Fault, RequestFilter, assert_contains};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::guard::GUARD;
use super::rows::cluster::{DOWN, NONE, OUT_OF_SERVICE, TestCluster};
use super::world::{ENFORCE, SECOND, entries, id_of, load_balancer};

const DISRUPTED: &str = "karpenter.sh/disrupted";
const HELD_BACK: &str = "NodeKeptInService";
const PORT: u16 = 32000;

/// One load balancer with one pool: a rule that probes headgate, and one that probes the `healthCheckNodePort`.
fn shared_pool(nodes: usize) -> Value {
    let mut document = load_balancer("kubernetes", &[("kubernetes", entries(1..=nodes, false))]);
    let id = id_of("kubernetes");
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let properties = &mut document["properties"];
    let rule = json!({"name": "web", "properties": {
        "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
        "backendAddressPool": inside("backendAddressPools", "kubernetes"), "probe": inside("probes", "web"),
        "protocol": "Tcp", "frontendPort": 443, "backendPort": 443}});
    properties["loadBalancingRules"].as_array_mut().unwrap().push(rule);
    let probe = json!({"name": "web", "properties": {
        "protocol": "Http", "port": PORT, "requestPath": "/healthz", "intervalInSeconds": 5}});
    properties["probes"].as_array_mut().unwrap().push(probe);
    document
}

/// Three nodes in these load balancers, and the Service `default/web` with endpoints on these of them.
async fn with_endpoints(load_balancers: &[Value], serving: &[usize]) -> TestCluster {
    let mut cluster = TestCluster::without_leader(3, load_balancers).await;
    cluster.world.guard = GUARD.clone();
    cluster.world.publish_traffic();
    let service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer",
        "externalTrafficPolicy": "Local", "healthCheckNodePort": PORT, "ports": [{"port": 443}]}});
    let services = Api::<Service>::namespaced(cluster.world.client.clone(), "default");
    let service = serde_json::from_value(service).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    for number in serving {
        serve(&cluster, *number, true).await;
    }
    cluster.lead(ENFORCE).await;
    cluster
}

fn slices(cluster: &TestCluster) -> Api<EndpointSlice> {
    Api::namespaced(cluster.world.client.clone(), "default")
}

async fn stop_serving(cluster: &TestCluster, number: usize) {
    let name = format!("web-{number}");
    slices(cluster).delete(&name, &DeleteParams::default()).await.unwrap();
}

/// Adds a slice with an endpoint on this node, ready or only terminating.
async fn serve(cluster: &TestCluster, number: usize, ready: bool) {
    let (name, slices) = (format!("web-{number}"), slices(cluster));
    let conditions = json!({"ready": ready, "serving": true, "terminating": !ready});
    let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [format!("10.244.{number}.9")],
            "nodeName": format!("node-{number}"), "conditions": conditions}], "ports": [{"name": "", "port": 80}]});
    let _ = slices.delete(&name, &DeleteParams::default()).await;
    let slice = serde_json::from_value(slice).unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn last_serving_node_stays_until_another_serves() {
    let cluster = with_endpoints(&[shared_pool(3)], &[1]).await;
    cluster.taint(1, &[DISRUPTED]);
    cluster.taint(2, &[DISRUPTED]);
    cluster.until_down(&["node-2"]).await;
    // A replacement boots, or a PodDisruptionBudget blocks the eviction.
    sleep(Duration::from_hours(1)).await;
    cluster.until_down(&["node-2"]).await;
    let notes = cluster.notes(HELD_BACK, "node-1").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "default/web", DISRUPTED);
    assert_eq!(cluster.metric("headgate_pool_held_back", &["kubernetes"]), Some(1.0));
    let Some(NodeTraffic::HeldBack { detail }) = cluster.read("node-1") else {
        panic!("{:?}", cluster.read("node-1"));
    };
    assert!(detail.contains("default/web"), "{detail}");
    // The hold that is recorded for `why` turns no answer: agents answer 503 as before.
    let api = Api::<Node>::all(cluster.world.client.clone());
    let annotations = api.get("node-1").await.unwrap().metadata.annotations.unwrap();
    let hold = NodeHold::from_annotations(&annotations, "00000000-0000-4000-8000-000000000001").unwrap();
    assert!(!hold.probes_headgate && hold.reason.contains("default/web"), "{hold:?}");

    // An endpoint that only terminates does not answer probes.
    serve(&cluster, 3, false).await;
    sleep(60 * SECOND).await;
    cluster.until_down(&["node-2"]).await;
    serve(&cluster, 3, true).await;
    let took = cluster.until_down(&["node-1", "node-2"]).await;
    assert!(took <= 2 * SECOND, "{took:?}");
    cluster.taint(1, &[]);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_moves_to_a_down_node_brings_it_back() {
    let cluster = with_endpoints(&[shared_pool(3)], &[1]).await;
    cluster.taint(2, &[DISRUPTED]);
    cluster.settle(&["node-2"]).await;
    serve(&cluster, 2, true).await;
    stop_serving(&cluster, 1).await;
    let took = cluster.until_down(&[]).await;
    assert!(took <= 2 * SECOND, "{took:?}");
    sleep(60 * SECOND).await;
    cluster.until_down(&[]).await;
    let notes = cluster.notes(HELD_BACK, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "default/web", DISRUPTED);

    serve(&cluster, 3, true).await;
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took <= 2 * SECOND, "{took:?}");
    // A signal that ends the machine is not taken back, so nothing is given back for it.
    cluster.taint(2, &[DISRUPTED, OUT_OF_SERVICE]);
    stop_serving(&cluster, 3).await;
    sleep(60 * SECOND).await;
    cluster.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn down_event_waits_for_the_load_balancer_that_keeps_the_node() {
    let internal = load_balancer("kubernetes-internal", &[("kubernetes", entries(1..=3, false))]);
    let cluster = with_endpoints(&[shared_pool(3), internal], &[1]).await;
    cluster.taint(1, &[DISRUPTED]);
    sleep(60 * SECOND).await;
    let down = cluster.down();
    assert_eq!(down["kubernetes-internal/kubernetes"], ["node-1".to_owned()].into());
    assert!(down["kubernetes/kubernetes"].is_empty());
    assert!(cluster.notes(DOWN, "node-1").await.is_empty());
    serve(&cluster, 3, true).await;
    cluster.settle(&["node-1"]).await;
    let notes = cluster.notes(DOWN, "node-1").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "kubernetes-internal/kubernetes, kubernetes/kubernetes");
    cluster.taint(1, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.notes(NONE, "node-1").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_whose_endpoints_end_is_released_and_terminal_signals_do_not_wait() {
    let cluster = with_endpoints(&[shared_pool(3)], &[1]).await;
    cluster.taint(1, &[DISRUPTED]);
    sleep(30 * SECOND).await;
    cluster.until_down(&[]).await;
    // The last endpoint terminates, so probes fail by themselves.
    serve(&cluster, 1, false).await;
    let took = cluster.until_down(&["node-1"]).await;
    assert!(took <= 2 * SECOND, "{took:?}");

    let cluster = with_endpoints(&[shared_pool(3)], &[1]).await;
    cluster.taint(1, &[DISRUPTED]);
    sleep(30 * SECOND).await;
    cluster.until_down(&[]).await;
    cluster.taint(1, &[DISRUPTED, OUT_OF_SERVICE]);
    let took = cluster.until_down(&["node-1"]).await;
    assert!(took <= 2 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_keeps_the_node_in_service() {
    let mut cluster = with_endpoints(&[shared_pool(3)], &[1, 2]).await;
    cluster.taint(1, &[DISRUPTED]);
    cluster.until_down(&["node-1"]).await;
    cluster.taint(2, &[DISRUPTED]);
    sleep(60 * SECOND).await;
    cluster.until_down(&["node-1"]).await;
    for _ in 0..3 {
        cluster.kill();
        cluster.lead(ENFORCE).await;
        sleep(120 * SECOND).await;
        cluster.until_down(&["node-1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_services_nothing_revocable_leaves_such_a_pool() {
    let mut cluster = TestCluster::without_leader(3, &[shared_pool(3)]).await;
    cluster.world.guard = GUARD.clone();
    cluster.world.publish_traffic();
    cluster.start_leader(ENFORCE).await;
    let is_refused: RequestFilter =
        |request| request.path.contains("/services") || request.path.contains("/endpointslices");
    cluster.line.set_for(Fault::Status(403), is_refused);
    sleep(60 * SECOND).await;
    cluster.taint(1, &[DISRUPTED]);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    cluster.until_down(&["node-2"]).await;
    sleep(60 * SECOND).await;
    cluster.until_down(&["node-2"]).await;
    let notes = cluster.notes(HELD_BACK, "node-1").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "Services and EndpointSlices are not listed");
    let read = cluster.read("node-1");
    let is_said = |detail: &str| detail.contains("Services and EndpointSlices are not listed");
    assert!(
        matches!(&read, Some(NodeTraffic::InService { detail }) if is_said(detail)),
        "{read:?}"
    );
    // Once they are known, it is known that no node serves.
    cluster.line.set(Fault::None);
    cluster.until_down(&["node-1", "node-2"]).await;
}
