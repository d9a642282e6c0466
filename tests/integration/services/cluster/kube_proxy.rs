//! In kube-proxy's place, with the example's settings and rights, and beside the real one.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use headgate_test_kubernetes::kubectl;
use headgate_test_kubernetes::{assert_contains, create_node, eventually, met, own_cluster};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::{SOON, body, local, web};
use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, http, in_network_namespace, objects, succeed};
use crate::manifests::rendering::{folder, without_kube_proxy};
use crate::node::with_token;

fn example() -> std::path::PathBuf {
    folder(&without_kube_proxy())
}

/// A kubeconfig for headgate's service account with the rights of the manifests, and no others.
async fn as_headgate(client: &Client, kubeconfig: &Path) -> std::path::PathBuf {
    succeed(kubectl(kubeconfig).args(["apply", "-k"]).arg(example()));
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "kube-system");
    let granted = accounts
        .create_token_request("headgate", &PostParams::default(), &TokenRequest::default())
        .await
        .unwrap();
    with_token(kubeconfig, &granted.status.unwrap().token)
}

/// A port that is in use: there is an event on the Service, and it is in `/statusz` and in metrics.
async fn failure_is_reported(client: &Client, agent: &Agent, node: &str, service: &Service) {
    let event = eventually(SOON, "an event on the Service", async || {
        let uid = service.uid().unwrap();
        let about = ListParams::default().fields(&format!("involvedObject.kind=Service,involvedObject.uid={uid}"));
        let events = Api::<Event>::default_namespaced(client.clone());
        let mut events = events.list(&about).await.unwrap().items;
        events.pop().ok_or_else(|| agent.log())
    })
    .await;
    let fields = (event.type_.as_deref(), event.reason.as_deref(), event.action.as_deref());
    let want = ("Warning", "FailedToStartServiceHealthcheck", "Listen");
    assert_eq!(fields, (Some(want.0), Some(want.1), Some(want.2)));
    let message = event.message.unwrap();
    let start = format!(
        "node {node} failed to start healthcheck \"default/web\" on port 31234: 0.0.0.0:31234 cannot be bound: Address"
    );
    assert!(message.starts_with(&start), "{message}");
    let status = agent.statusz().await["services"].clone();
    assert_eq!((&status["services"], &status["openPorts"]), (&json!(1), &json!(0)));
    let failed = &status["failedPorts"][0];
    assert_eq!(
        (&failed["service"], &failed["port"]),
        (&json!("default/web"), &json!(31234))
    );
    let text = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
    assert_contains!(text, "services   NodePorts: 1, 0 ports open, 1 failed");
    let metrics = agent.metrics().await;
    assert!(metrics.contains("headgate_service_ports{state=\"failed\"} 1"));
    assert_eq!(agent.healthz().await.status, 200, "the node is none the worse");
}

/// Another process takes over the ports; every probe gets an answer meanwhile.
async fn ports_are_handed_on(agent: Agent, next: &AgentOptions) {
    let probing = tokio::spawn(async {
        for asked in 0_u32.. {
            let answer = http::get(local(31234), "/").await.map(|answer| answer.status);
            assert!(matches!(answer, Ok(200)), "{answer:?} after {asked}");
        }
    });
    let next = next.start().await;
    eventually(SOON, "the next one is ready", async || {
        let answer = http::get(next.metrics_address(), "/readyz").await.unwrap();
        met(answer.status == 200, answer.text())
    })
    .await;
    assert!(agent.stop(SOON).await.success());
    assert!(!probing.is_finished(), "{:?}", probing.await);
    probing.abort();
}

/// On kube-proxy's own port, with the example's settings and rights; a port that is taken first.
#[test]
#[ignore = "needs network namespaces"]
fn service_ports_without_kube_proxy() {
    in_network_namespace(
        "services::cluster::kube_proxy::service_ports_without_kube_proxy",
        async || {
            let (control_plane, client) = own_cluster().await;
            let node = create_node(&client, "alone").await;
            let kubeconfig = as_headgate(&client, control_plane.kubeconfig()).await;
            let settings = std::fs::read_to_string(example().join("settings.yaml")).unwrap();
            let options = || {
                let options = AgentOptions::new(&node, &kubeconfig).settings_file(settings.clone());
                options.healthz("[::]:10256".parse().unwrap())
            };
            let agent = options().start().await;
            for address in ["127.0.0.1:10256", "[::1]:10256"] {
                let answer = http::get(address.parse().unwrap(), "/healthz").await.unwrap();
                assert_eq!(answer.status, 200);
            }

            let stranger = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 31234)).unwrap();
            let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.0.1"], "nodeName": node}], "ports": [{"name": "http", "port": 8080}]});
            let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
            objects::create(&slices, slice).await;
            let services = Api::<Service>::default_namespaced(client.clone());
            let service = objects::create(&services, web(&json!({"healthCheckNodePort": 31234}))).await;
            failure_is_reported(&client, &agent, &node, &service).await;

            drop(stranger);
            eventually(SOON, "it is opened once it is free", async || {
                match http::get(local(31234), "/").await {
                    Ok(answer) if answer.status == 200 => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            let metrics = agent.metrics().await;
            assert_contains!(metrics, "headgate_service_ports{state=\"open\"} 1");
            ports_are_handed_on(agent, &options()).await;
            control_plane.stop().await;
        },
    );
}

/// Status, headers without their date, and body of one answer.
fn comparable(answer: &http::Response) -> (String, Vec<(String, String)>, String) {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| name != "Date");
    headers.sort();
    (answer.status_line.clone(), headers, answer.text())
}

/// The real kube-proxy has the port: headgate's path answers the same to the byte, and a second agent in the mode
/// `NodePorts` opens the port once kube-proxy is gone.
#[test]
#[ignore = "needs network namespaces"]
fn service_health_beside_kube_proxy() {
    in_network_namespace(
        "services::cluster::kube_proxy::service_health_beside_kube_proxy",
        async || {
            let (mut control_plane, client) = own_cluster().await;
            let node = create_node(&client, "beside").await;
            let proxy = control_plane.start_kube_proxy(&node).await.unwrap().healthz;
            let services = Api::<Service>::default_namespaced(client.clone());
            objects::create(&services, web(&json!({"healthCheckNodePort": 31235}))).await;
            let start = async |mode: &str| {
                let settings = format!("kubeProxyHealthzUrl: \"http://{proxy}\"\nserviceHealthChecks: {mode}\n");
                let options = AgentOptions::new(&node, control_plane.kubeconfig()).settings(&settings);
                options.start().await
            };
            let at_path = start("Path").await;

            let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
            let conditions = json!({"ready": false, "serving": true, "terminating": true});
            let (ready, terminating) = (json!({}), &conditions);
            for (endpoints, count) in [
                (json!([]), 0),
                (
                    json!([{"addresses": ["10.244.0.1"], "nodeName": node, "conditions": ready}, {"addresses": ["10.244.0.2"], "nodeName": node},
                {"addresses": ["10.244.0.3"], "nodeName": "elsewhere"}, {"addresses": ["10.244.0.4"], "nodeName": node, "conditions": terminating}]),
                    2,
                ),
                (
                    json!([{"addresses": ["10.244.0.4"], "nodeName": node, "conditions": terminating}]),
                    0,
                ),
            ] {
                let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}, "endpoints": endpoints,
                "ports": [{"name": "http", "port": 8080}, {"name": "https", "port": 8443}]});
                let apply = PatchParams::apply("test").force();
                slices.patch("web-1", &apply, &Patch::Apply(slice)).await.unwrap();
                eventually(SOON, "both say the same", async || {
                    let ours = http::get(at_path.healthz_address(), "/healthz/services/default/web").await;
                    let theirs = http::get(local(31235), "/").await;
                    let (ours, theirs) = (ours.map_err(|e| e.to_string())?, theirs.map_err(|e| e.to_string())?);
                    let settled = |answer: &http::Response| answer.text() == body("default/web", count, true);
                    if !settled(&theirs) || !settled(&ours) {
                        return Err(format!("ours {} theirs {}", ours.text(), theirs.text()));
                    }
                    assert_eq!(comparable(&ours), comparable(&theirs));
                    Ok(())
                })
                .await;
            }

            let on_port = start("NodePorts").await;
            eventually(SOON, "the port is kube-proxy's", async || {
                let status = on_port.statusz().await["services"].clone();
                met(status["failedPorts"][0]["port"] == 31235, status)
            })
            .await;
            control_plane.stop_optional_components().await;
            eventually(SOON, "the port is ours", async || {
                let status = on_port.statusz().await["services"].clone();
                met(status["openPorts"] == 1, status)
            })
            .await;
            assert_eq!(http::get(local(31235), "/").await.unwrap().status, 503);
            drop((at_path, on_port));
            control_plane.stop().await;
        },
    );
}
