//! Per-Service health on the real API server: with the real EndpointSlice controller, with no more rights than the
//! manifests give, and beside the real kube-proxy.

use std::net::{Ipv4Addr, SocketAddr};

use headgate_test_kubernetes::{create_node, eventually, met, own_control_plane, set_taints};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::body;
use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, SOON, http, objects};

mod kube_proxy;

fn web(more: &Value) -> Value {
    let mut service = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "https", "port": 443, "targetPort": 8443}]}});
    if let Some(more) = more.as_object() {
        service["spec"].as_object_mut().unwrap().extend(more.clone());
    }
    service
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn health_check_port(service: &Service) -> u16 {
    let port = service.spec.as_ref().unwrap().health_check_node_port.unwrap();
    u16::try_from(port).unwrap()
}

struct Story {
    client: Client,
    services: Api<Service>,
    pods: Api<Pod>,
    at_path: Agent,
    on_port: Agent,
}

impl Story {
    /// Waits until both agents give this answer: one at the path, one on the Service's port.
    async fn both_say(&self, endpoints: u32, what: &str) {
        let port = health_check_port(&self.services.get("web").await.unwrap());
        eventually(SOON, what, async || {
            let at_path = http::get(self.at_path.healthz_address(), "/healthz/services/default/web").await;
            let on_port = http::get(local(port), "/").await;
            let (at_path, on_port) = (at_path.map_err(|e| e.to_string())?, on_port.map_err(|e| e.to_string())?);
            let want = (
                if endpoints > 0 { 200 } else { 503 },
                body("default/web", endpoints, true),
            );
            for answer in [at_path, on_port] {
                if (answer.status, answer.text()) != want {
                    return Err(answer.text());
                }
                assert_eq!(
                    answer.header("x-load-balancing-endpoint-weight"),
                    Some(endpoints.to_string().as_str())
                );
            }
            Ok(())
        })
        .await;
    }

    /// Waits until both agents answer 503 because of the node's signals.
    async fn both_fail(&self, what: &str) {
        let port = health_check_port(&self.services.get("web").await.unwrap());
        eventually(SOON, what, async || {
            let at_path = http::get(self.at_path.healthz_address(), "/healthz/services/default/web").await;
            let on_port = http::get(local(port), "/").await;
            for answer in [at_path, on_port] {
                let answer = answer.map_err(|error| error.to_string())?;
                if answer.status != 503 || answer.json()["nodeEligible"] != false {
                    return Err(answer.text());
                }
            }
            Ok(())
        })
        .await;
    }

    /// Writes the status of a Node's condition Ready.
    async fn is_ready(&self, node: &str, status: &str) {
        let conditions = json!([{"type": "Ready", "status": status}]);
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until neither agent serves the Service.
    async fn both_know_nothing(&self, port: u16) {
        eventually(SOON, "the Service is gone", async || {
            let at_path = http::get(self.at_path.healthz_address(), "/healthz/services/default/web").await;
            let at_path = at_path.map_err(|e| e.to_string())?;
            match http::get(local(port), "/").await {
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused && at_path.status == 404 => Ok(()),
                on_port => Err(format!("{} {on_port:?}", at_path.text())),
            }
        })
        .await;
    }

    /// Waits for this number of Pods of the Deployment that are not terminating; returns them.
    async fn pods(&self, count: usize) -> Vec<String> {
        eventually(SOON, "the Pods", async || {
            let mut pods = self.pods.list(&ListParams::default()).await.unwrap().items;
            pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            if pods.len() == count {
                Ok(pods.iter().map(kube::ResourceExt::name_any).collect())
            } else {
                Err(format!("{} Pods", pods.len()))
            }
        })
        .await
    }

    /// Writes the status of a Pod that kubelet would write.
    async fn pod_is(&self, name: &str, ip: &str, ready: bool) {
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
        let status =
            json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}});
        self.pods
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .unwrap();
    }

    async fn scale(&self, replicas: u32) {
        let deployments = Api::<Deployment>::default_namespaced(self.client.clone());
        objects::merge(&deployments, "web", json!({"spec": {"replicas": replicas}})).await;
    }

    async fn patch_service(&self, spec: Value) -> Service {
        objects::merge(&self.services, "web", json!({"spec": spec})).await
    }
}

/// A Pod of the Deployment's kind, on a node.
fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": pod_spec(node)})
}

fn pod_spec(node: &str) -> Value {
    json!({"nodeName": node, "containers": [{"name": "web", "image": "web"}]})
}

/// The two Pods of a Deployment, one after the other, and one on another node.
async fn pods_become_ready(story: &Story, here: &str, there: &str) -> Vec<String> {
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec(here)}}});
    let deployments = Api::<Deployment>::default_namespaced(story.client.clone());
    objects::create(&deployments, deployment).await;
    let pods = story.pods(2).await;
    // The service account exists by now.
    objects::create(&story.pods, pod("elsewhere", there)).await;
    story.pod_is("elsewhere", "10.244.1.1", true).await;
    story.pod_is(&pods[0], "10.244.0.1", true).await;
    story.both_say(1, "one Pod ready, the other without an address").await;
    story.pod_is(&pods[1], "10.244.0.2", true).await;
    story.both_say(2, "both Pods ready").await;
    story.pod_is(&pods[0], "10.244.0.1", false).await;
    story.both_say(1, "one Pod not ready").await;
    story.pod_is(&pods[0], "10.244.0.1", true).await;
    story.both_say(2, "both Pods ready again").await;
    pods
}

/// Without a kubelet the Pods stay terminating and ready (KEP-1669) until they are deleted by force.
async fn pods_terminate(story: &Story, here: &str, pods: &[String]) {
    story.scale(0).await;
    story.both_say(0, "only terminating Pods").await;
    let slices = Api::<EndpointSlice>::default_namespaced(story.client.clone());
    let of_service = ListParams::default().labels("kubernetes.io/service-name=web");
    let slices = slices.list(&of_service).await.unwrap();
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let terminating: Vec<_> = endpoints
        .filter(|endpoint| endpoint.node_name.as_deref() == Some(here))
        .map(|endpoint| endpoint.conditions.clone().unwrap())
        .map(|conditions| (conditions.ready, conditions.serving, conditions.terminating))
        .collect();
    assert_eq!(terminating, [(Some(false), Some(true), Some(true)); 2]);
    story.patch_service(json!({"publishNotReadyAddresses": true})).await;
    story.both_say(2, "the Service publishes what is not ready").await;
    story.patch_service(json!({"publishNotReadyAddresses": false})).await;
    story.both_say(0, "it does so no more").await;
    let at_once = DeleteParams::default().grace_period(0);
    for name in pods {
        story.pods.delete(name, &at_once).await.unwrap();
    }
    story.both_say(0, "the Pods are gone").await;
}

/// A drain signal makes the answers fail only while another node without a signal serves the Service.
async fn node_goes_away(story: &Story, here: &str, there: &str) {
    let taint = async |node: &str, taints: Value| set_taints(&story.client, node, taints).await;
    let signal = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    story.is_ready(there, "Unknown").await;
    taint(here, signal.clone()).await;
    for agent in [&story.at_path, &story.on_port] {
        agent.answers(503).await;
    }
    let is_kept = async |why: &str| {
        for agent in [&story.at_path, &story.on_port] {
            eventually(SOON, why, async || {
                let kept = agent.statusz().await["keptServices"].clone();
                met(kept == json!([{"service": "default/web", "why": why}]), kept)
            })
            .await;
        }
    };
    is_kept("keeps serving: last serving node").await;
    story.both_say(1, "the last serving node").await;
    story.is_ready(there, "True").await;
    story.both_fail("another node serves").await;
    taint(there, signal).await;
    is_kept("keeps serving: last serving node").await;
    story.both_say(1, "the last one without an end").await;
    taint(there, json!([])).await;
    story.both_fail("another node serves again").await;
    taint(here, json!([])).await;
    story.both_say(1, "no signal").await;
}

/// Both agents keep their answers without the API server, after their watches have failed.
async fn api_server_is_away(story: &Story, port: u16) {
    for agent in [&story.at_path, &story.on_port] {
        eventually(SOON, "the loss is seen", async || {
            let errors = agent.statusz().await["services"]["watchErrors"].clone();
            met(errors.as_object().is_some_and(|errors| errors.len() == 2), errors)
        })
        .await;
    }
    let at_path = http::get(story.at_path.healthz_address(), "/healthz/services/default/web").await;
    let on_port = http::get(local(port), "/").await;
    assert_eq!(
        (at_path.unwrap().status, on_port.unwrap().status),
        (200, 200),
        "the last state goes on"
    );
}

/// Pods become ready, terminate and disappear; path and node port agree at each step.
#[tokio::test]
async fn service_health_follows_the_real_endpoint_slice_controller() {
    let mut control_plane = own_control_plane().await;
    control_plane
        .start_controller_manager(&["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"])
        .unwrap();
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let (here, there) = (create_node(&client, "here").await, create_node(&client, "there").await);
    let options = |mode: &str| {
        let settings = format!("kubeProxyHealthzUrl: Disabled\nserviceHealthChecks: {mode}\n");
        AgentOptions::new(&here, control_plane.kubeconfig()).settings(&settings)
    };
    let story = Story {
        at_path: options("Path").start().await,
        on_port: options("NodePorts").start().await,
        services: Api::default_namespaced(client.clone()),
        pods: Api::default_namespaced(client.clone()),
        client,
    };
    objects::create(&story.services, web(&json!({}))).await;
    story.both_say(0, "a Service without Pods").await;
    let pods = pods_become_ready(&story, &here, &there).await;
    pods_terminate(&story, &here, &pods).await;

    story.scale(1).await;
    let pods = story.pods(2).await;
    let new = pods.iter().find(|name| *name != "elsewhere").unwrap();
    story.pod_is(new, "10.244.0.3", true).await;
    story.both_say(1, "a new Pod").await;
    node_goes_away(&story, &here, &there).await;

    let port = health_check_port(&story.services.get("web").await.unwrap());
    story.patch_service(json!({"externalTrafficPolicy": "Cluster"})).await;
    story.both_know_nothing(port).await;
    let port = health_check_port(&story.patch_service(json!({"externalTrafficPolicy": "Local"})).await);
    story.both_say(1, "Local again").await;

    control_plane.stop_optional_components().await;
    control_plane.stop_apiserver().await;
    api_server_is_away(&story, port).await;
    control_plane.start_apiserver().await.unwrap();
    story.services.delete("web", &DeleteParams::default()).await.unwrap();
    story.both_know_nothing(port).await;
    drop(story);
    control_plane.stop().await;
}
