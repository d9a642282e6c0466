//! Per-Service health on the real API server: with the real EndpointSlice controller, and with no more
//! rights than the manifests give.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::body;
use crate::harness::agent::Agent;
use crate::harness::cluster::kubectl;
use crate::harness::{AgentOptions, create_node, eventually, http, in_own_network, own_control_plane, scratch};
use crate::node::with_token;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_mins(1);

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

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
    /// Both agents come to say so: one at its path, one on the Service's port.
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

    /// Neither knows the Service any more.
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

    /// The Deployment's Pods that are not terminating, once there are so many.
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

    /// What kubelet would say of a Pod.
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
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn patch_service(&self, spec: Value) -> Service {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.services
            .patch("web", &PatchParams::default(), &patch)
            .await
            .unwrap()
    }
}

/// A Pod of the kind, on a node.
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
    let deployment = object(deployment);
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let pods = story.pods(2).await;
    // Its service account was there for the others.
    let elsewhere = object(pod("elsewhere", there));
    story.pods.create(&PostParams::default(), &elsewhere).await.unwrap();
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

/// Without a kubelet they stay, terminating and still ready themselves: KEP-1669. Then they are gone.
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

/// A drain signal is no business of a Service's.
async fn node_goes_away(story: &Story, here: &str) {
    let taint =
        Patch::Merge(json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}));
    let nodes = Api::<Node>::all(story.client.clone());
    nodes.patch(here, &PatchParams::default(), &taint).await.unwrap();
    for agent in [&story.at_path, &story.on_port] {
        eventually(SOON, "/healthz fails", async || {
            let status = agent.healthz().await.status;
            if status == 503 { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
    }
    story.both_say(1, "a node that goes away still serves").await;
}

/// Both agents go on without the API server; whether they have noticed that it is gone is asked first.
async fn api_server_is_away(story: &Story, port: u16) {
    for agent in [&story.at_path, &story.on_port] {
        eventually(SOON, "the loss is seen", async || {
            let errors = statusz(agent).await["services"]["watchErrors"].clone();
            if errors.as_object().is_some_and(|errors| errors.len() == 2) {
                Ok(())
            } else {
                Err(errors.to_string())
            }
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

/// Pods set ready, terminating and gone; a path and a node port say the same at each step.
#[tokio::test]
async fn a_deployment_through_the_real_endpoint_slice_controller() {
    let mut control_plane = own_control_plane().await;
    control_plane
        .start_controller_manager(&["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"])
        .unwrap();
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let (here, there) = (create_node(&client, "here").await, create_node(&client, "there").await);
    let options = |mode: &str| {
        let settings = format!("proxy: {{healthzUrl: off}}\nserviceHealth: {mode}\n");
        AgentOptions::new(&here, control_plane.kubeconfig()).settings(&settings)
    };
    let story = Story {
        at_path: options("path").start().await,
        on_port: options("nodePorts").start().await,
        services: Api::default_namespaced(client.clone()),
        pods: Api::default_namespaced(client.clone()),
        client,
    };
    let service = object(web(&json!({})));
    story.services.create(&PostParams::default(), &service).await.unwrap();
    story.both_say(0, "a Service without Pods").await;
    let pods = pods_become_ready(&story, &here, &there).await;
    pods_terminate(&story, &here, &pods).await;

    story.scale(1).await;
    let pods = story.pods(2).await;
    let new = pods.iter().find(|name| *name != "elsewhere").unwrap();
    story.pod_is(new, "10.244.0.3", true).await;
    story.both_say(1, "a new Pod").await;
    node_goes_away(&story, &here).await;

    let port = health_check_port(&story.services.get("web").await.unwrap());
    story.patch_service(json!({"externalTrafficPolicy": "Cluster"})).await;
    story.both_know_nothing(port).await;
    let port = health_check_port(&story.patch_service(json!({"externalTrafficPolicy": "Local"})).await);
    story.both_say(1, "Local again").await;

    control_plane.stop_others().await;
    control_plane.stop_apiserver().await;
    api_server_is_away(&story, port).await;
    control_plane.start_apiserver().await.unwrap();
    story.services.delete("web", &DeleteParams::default()).await.unwrap();
    story.both_know_nothing(port).await;
    drop(story);
    control_plane.stop().await;
}

async fn statusz(agent: &Agent) -> Value {
    let request = b"GET /statusz HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n";
    http::exchange(agent.metrics_address(), request).await.unwrap().json()
}

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/examples/no-kube-proxy")
}

#[test]
fn the_settings_example_is_accepted() {
    let output = Command::new(env!("CARGO_BIN_EXE_headgate"))
        .args(["agent", "--check-config", "--config"])
        .arg(example().join("settings.yaml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let settings: serde_yaml::Value = serde_yaml::from_slice(&output.stdout).unwrap();
    assert_eq!(settings["healthzBindAddress"], "[::]:10256");
    assert_eq!(settings["proxy"]["healthzUrl"], "off");
    assert_eq!(settings["serviceHealth"], "nodePorts");
}

/// A kubeconfig for headgate's service account with the rights of the manifests, and no others.
async fn as_headgate(client: &Client, kubeconfig: &Path) -> std::path::PathBuf {
    let rendered = kubectl(kubeconfig).arg("kustomize").arg(example()).output().unwrap();
    assert!(
        rendered.status.success(),
        "{}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    let file = scratch("manifests").join("all.yaml");
    std::fs::write(&file, rendered.stdout).unwrap();
    let applied = kubectl(kubeconfig).args(["apply", "-f"]).arg(&file).output().unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "kube-system");
    let granted = accounts
        .create_token_request("headgate", &PostParams::default(), &TokenRequest::default())
        .await
        .unwrap();
    with_token(kubeconfig, &granted.status.unwrap().token)
}

/// A port that somebody has: an event on the Service, for people on `/statusz`, in metrics.
async fn failure_is_told(client: &Client, agent: &Agent, node: &str, service: &Service) {
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
    let status = statusz(agent).await["services"].clone();
    assert_eq!((&status["services"], &status["openPorts"]), (&json!(1), &json!(0)));
    let failed = &status["failedPorts"][0];
    assert_eq!(
        (&failed["service"], &failed["port"]),
        (&json!("default/web"), &json!(31234))
    );
    let text = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
    assert!(
        text.contains("services   nodePorts: 1, 0 ports open, 1 failed"),
        "{text}"
    );
    let metrics = agent.metrics().await;
    assert!(metrics.contains("headgate_service_ports{state=\"failed\"} 1"));
    assert_eq!(agent.healthz().await.status, 200, "the node is none the worse");
}

/// Another process takes the ports over; nobody who probes without a pause sees it.
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
        if answer.status == 200 {
            Ok(())
        } else {
            Err(answer.text())
        }
    })
    .await;
    assert!(agent.stop(SOON).await.success());
    assert!(!probing.is_finished(), "{:?}", probing.await);
    probing.abort();
}

/// On kube-proxy's own port, with the example's settings and rights; a port that is taken first.
#[test]
fn where_there_is_no_kube_proxy() {
    in_own_network("services::cluster::where_there_is_no_kube_proxy", async || {
        let control_plane = own_control_plane().await;
        let client = Client::try_from(control_plane.client_config()).unwrap();
        let node = create_node(&client, "alone").await;
        let kubeconfig = as_headgate(&client, control_plane.kubeconfig()).await;
        let settings = std::fs::read_to_string(example().join("settings.yaml")).unwrap();
        let options = || {
            let options = AgentOptions::new(&node, &kubeconfig).settings(&settings);
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
        slices.create(&PostParams::default(), &object(slice)).await.unwrap();
        let services = Api::<Service>::default_namespaced(client.clone());
        let service = object(web(&json!({"healthCheckNodePort": 31234})));
        let service = services.create(&PostParams::default(), &service).await.unwrap();
        failure_is_told(&client, &agent, &node, &service).await;

        drop(stranger);
        eventually(SOON, "it is opened once it is free", async || {
            match http::get(local(31234), "/").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let metrics = agent.metrics().await;
        assert!(
            metrics.contains("headgate_service_ports{state=\"open\"} 1"),
            "{metrics}"
        );
        ports_are_handed_on(agent, &options()).await;
        control_plane.stop().await;
    });
}

/// Status, headers without their date, and body of one answer.
fn comparable(answer: &http::Answer) -> (String, Vec<(String, String)>, String) {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| name != "Date");
    headers.sort();
    (answer.status_line.clone(), headers, answer.text())
}

/// The real kube-proxy has the port: our path answers the same to the byte, and a second agent that was
/// told to open the port does so once kube-proxy is gone.
#[test]
fn beside_kube_proxy() {
    in_own_network("services::cluster::beside_kube_proxy", async || {
        let mut control_plane = own_control_plane().await;
        let client = Client::try_from(control_plane.client_config()).unwrap();
        let node = create_node(&client, "beside").await;
        let proxy = control_plane.start_proxy(&node).await.unwrap().healthz;
        let services = Api::<Service>::default_namespaced(client.clone());
        let service = object(web(&json!({"healthCheckNodePort": 31235})));
        services.create(&PostParams::default(), &service).await.unwrap();
        let start = async |settings: &str| {
            let settings = format!("proxy: {{healthzUrl: \"http://{proxy}\"}}\n{settings}");
            let options = AgentOptions::new(&node, control_plane.kubeconfig()).settings(&settings);
            options.start().await
        };
        let at_path = start("serviceHealth: path\n").await;

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
                let settled = |answer: &http::Answer| answer.text() == body("default/web", count, true);
                if !settled(&theirs) || !settled(&ours) {
                    return Err(format!("ours {} theirs {}", ours.text(), theirs.text()));
                }
                assert_eq!(comparable(&ours), comparable(&theirs));
                Ok(())
            })
            .await;
        }

        let on_port = start("serviceHealth: nodePorts\n").await;
        eventually(SOON, "the port is kube-proxy's", async || {
            let status = statusz(&on_port).await["services"].clone();
            if status["failedPorts"][0]["port"] == 31235 {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
        control_plane.stop_others().await;
        eventually(SOON, "the port is ours", async || {
            let status = statusz(&on_port).await["services"].clone();
            if status["openPorts"] == 1 {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
        assert_eq!(http::get(local(31235), "/").await.unwrap().status, 503);
        drop((at_path, on_port));
        control_plane.stop().await;
    });
}
