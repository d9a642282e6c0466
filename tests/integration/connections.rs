//! `headgate connections`: real connections through the rules of the real kube-proxy, in a network namespace, against what the clients
//! themselves hold open.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process::{self, Process};
use headgate_test_kubernetes::{assert_contains, create_node, eventually, met, own_cluster, set_taints};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::harness::agent::Agent;
use crate::harness::{AgentOptions, SOON, headgate, http, in_network_namespace, objects, refused, stdout_of, succeed};

/// The node, in 192.0.2.0/24, beside the endpoint.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// Where the clients are.
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// An address of the load balancer, with floating IP: packets to it reach the node as they are.
const FRONTEND: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const ENDPOINT_PORT: u16 = 8080;

/// The addresses of the node, the endpoint and the clients, all in this namespace.
fn configure_network() {
    let script = format!(
        "ip addr add {NODE}/24 dev lo && ip addr add {ENDPOINT}/24 dev lo && ip addr add {CLIENT}/32 dev lo && \
         ip route add default dev lo"
    );
    succeed(Command::new("sh").args(["-c", &script]));
}

async fn create_service(client: &Client, name: &str, ingress: Value) -> u16 {
    let services = Api::<Service>::namespaced(client.clone(), "default");
    let service = json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let created = objects::create(&services, service).await;
    let status = json!({"status": {"loadBalancer": {"ingress": [ingress]}}});
    objects::merge_status(&services, name, status).await;
    let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}}, "addressType": "IPv4",
        "ports": [{"port": ENDPOINT_PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ENDPOINT.to_string()], "conditions": {"ready": true}}]});
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    objects::create(&slices, slice).await;
    let port = created.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    u16::try_from(port).unwrap()
}

/// A control plane, and a Node on it with kube-proxy and the Service `web`, whose endpoint accepts every connection.
async fn node_with_a_service(name: &str) -> (ControlPlane, Client, String, u16) {
    configure_network();
    let (mut control_plane, client) = own_cluster().await;
    let node = create_node(&client, name).await;
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": NODE.to_string()}]}});
    objects::merge_status(&Api::<Node>::all(client.clone()), &node, address).await;
    let web = create_service(&client, "web", json!({"ip": FRONTEND.to_string()})).await;
    control_plane.start_kube_proxy(&node).await.unwrap();
    let listener = TcpListener::bind((ENDPOINT, ENDPOINT_PORT)).await.unwrap();
    tokio::spawn(async move {
        let mut accepted = Vec::new();
        loop {
            accepted.push(listener.accept().await.unwrap());
        }
    });
    (control_plane, client, node, web)
}

/// One connection of a client, once kube-proxy has the rules.
async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    eventually(SOON, "a connection through kube-proxy", async || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let connected = tokio::time::timeout(Duration::from_secs(1), socket.connect(to)).await;
        connected
            .map_err(|_| "no answer".to_owned())?
            .map_err(|error| error.to_string())
    })
    .await
}

/// The TCP connections of each Service.
fn counted(kubeconfig: &std::path::Path, arguments: &[&str]) -> Vec<(String, u64)> {
    let output = headgate(kubeconfig, &[&["connections"][..], arguments, &["-o", "json"]].concat());
    let json: Value = serde_json::from_str(&stdout_of(output)).unwrap();
    assert_eq!(json["unreliable"], Value::Null, "{json}");
    let rows = json["services"].as_array().unwrap().iter();
    let row = |row: &Value| {
        (
            row["service"].as_str().unwrap().to_owned(),
            row["tcp"].as_u64().unwrap(),
        )
    };
    rows.map(row).collect()
}

#[test]
#[ignore = "needs network namespaces"]
fn connections_through_kube_proxy_are_counted_by_service_until_they_end() {
    let name = "connections::connections_through_kube_proxy_are_counted_by_service_until_they_end";
    in_network_namespace(name, async || {
        let (control_plane, client, node, web) = node_with_a_service("counted").await;
        create_service(&client, "named", json!({"hostname": "lb.example"})).await;
        let kubeconfig = control_plane.kubeconfig().to_owned();

        assert_eq!(counted(&kubeconfig, &[&node]), []);
        let mut open = Vec::new();
        for _ in 0..20 {
            open.push(connect(CLIENT, (NODE, web).into()).await);
        }
        for _ in 0..5 {
            open.push(connect(CLIENT, (FRONTEND, 80).into()).await);
        }
        // The node's own connections, and those of excluded sources, do not count.
        let own = connect(NODE, (NODE, web).into()).await;
        let web = "default/web".to_owned();
        assert_eq!(counted(&kubeconfig, &[&node]), [(web.clone(), 25)]);
        assert_eq!(counted(&kubeconfig, &[&node, "--exclude", "198.51.100.0/24"]), []);

        let output = headgate(&kubeconfig, &["connections", &node, "-o", "wide"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_contains!(text, format!("25 connections pass through node {node}"));
        assert!(text.contains("default/web   25"), "{text}");

        // Reset, so that nothing of them stays half-closed.
        for stream in open.drain(..15) {
            stream.set_zero_linger().unwrap();
        }
        eventually(SOON, "ten connections are left", async || {
            match &*counted(&kubeconfig, &[&node]) {
                [(name, 10)] if *name == web => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        drop((open, own));
        control_plane.stop().await;
    });
}

/// The condition about connections of a Node: status, reason and message.
async fn condition(client: &Client, node: &str) -> Option<(String, String, String)> {
    let object = Api::<Node>::all(client.clone()).get(node).await.unwrap();
    let conditions = object.status.unwrap().conditions.unwrap_or_default();
    let found = conditions
        .into_iter()
        .find(|one| one.type_ == "headgate.dev/ConnectionsDrained")?;
    Some((
        found.status,
        found.reason.unwrap_or_default(),
        found.message.unwrap_or_default(),
    ))
}

async fn wait_for_condition(client: &Client, node: &str, expected: (&str, &str)) -> String {
    eventually(SOON, "the condition", async || match condition(client, node).await {
        Some((status, reason, message)) if (&*status, &*reason) == expected => Ok(message),
        other => Err(format!("{other:?} instead of {expected:?}")),
    })
    .await
}

/// The counter of an agent, as the second container of its Pod runs it: root with one capability.
fn start_counter(agent: &Agent) -> Process {
    let mut command = process::command_in("setpriv", agent.directory());
    command.args(["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--"]);
    command.arg(env!("CARGO_BIN_EXE_headgate")).arg("connections");
    command
        .arg("--agent-socket")
        .arg(agent.directory().join("headgate.sock"));
    let log = agent.directory().join("counter.log");
    Process::start("connections", command, &log).unwrap()
}

#[test]
#[ignore = "needs network namespaces"]
fn an_agent_waits_for_the_last_connection_and_never_for_a_counter_that_is_gone() {
    let name = "connections::an_agent_waits_for_the_last_connection_and_never_for_a_counter_that_is_gone";
    in_network_namespace(name, async || {
        let (control_plane, client, node, web) = node_with_a_service("leaving").await;
        let nodes = Api::<Node>::all(client.clone());
        let patch_status = async |status: Value| {
            let patch = Patch::Strategic(status);
            nodes
                .patch_status(&node, &PatchParams::default(), &patch)
                .await
                .unwrap();
        };
        let settings = "kubeProxyHealthzUrl: Disabled\nconnections: {count: true}\noutOfLoadBalancers: {source: AdminState}\n\
                        delayTermination: {clusterAutoscaler: 2m}\n";
        let mut agent = AgentOptions::new(&node, control_plane.kubeconfig())
            .settings(settings)
            .start()
            .await;
        let mut counter = start_counter(&agent);
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(connect(CLIENT, (NODE, web).into()).await);
        }
        open.push(connect(CLIENT, (FRONTEND, 80).into()).await);
        // At rest nothing is counted and nothing is written.
        assert_eq!(condition(&client, &node).await, None);
        let deletion =
            |mark: &str| json!([{"key": "ToBeDeletedByClusterAutoscaler", "value": mark, "effect": "NoSchedule"}]);
        set_taints(&client, &node, deletion("1")).await;
        let message = wait_for_condition(&client, &node, ("False", "ConnectionsOpen")).await;
        assert!(
            message.starts_with("4 connections pass through this node: 4 default/web"),
            "{message}"
        );
        let is_delayed = async || {
            let object = nodes.get(&node).await.unwrap();
            let annotations = object.metadata.annotations.unwrap_or_default();
            annotations.contains_key("delay-deletion.cluster-autoscaler.kubernetes.io/headgate")
        };
        let is_released = async || met(!is_delayed().await, "annotation");
        let marker = |status: &str, reason: &str| {
            json!({"status": {"conditions": [{"type": "headgate.dev/OutOfLoadBalancers", "status": status,
                "reason": reason, "message": "m", "lastHeartbeatTime": jiff::Timestamp::now().to_string()}]}})
        };
        patch_status(marker("True", "AdminStateDown")).await;
        eventually(SOON, "the deletion is delayed", async || {
            met(is_delayed().await, "no annotation")
        })
        .await;
        let metrics = agent.metrics().await;
        assert_contains!(metrics, "headgate_node_connections{service=\"default/web\"} 4");
        let statusz = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
        assert!(statusz.contains("connections 4 connections pass"), "{statusz}");
        // A counter that was killed takes back nothing, and the next one goes on.
        counter.kill().await;
        counter = start_counter(&agent);
        for stream in open.drain(..) {
            stream.set_zero_linger().unwrap();
        }
        wait_for_condition(&client, &node, ("True", "NoConnections")).await;
        eventually(SOON, "the deletion is no longer delayed", is_released).await;
        let metrics = agent.metrics().await;
        assert_contains!(metrics, "headgate_node_connections{service=\"default/web\"} 0");

        set_taints(&client, &node, Value::Null).await;
        // The leader's signals may last longer.
        eventually(SOON, "the agent has no signal of its own", async || {
            let signals = agent.statusz().await["node"]["signals"].clone();
            met(signals == json!([]), signals)
        })
        .await;
        wait_for_condition(&client, &node, ("True", "NoConnections")).await;
        patch_status(marker("False", "NoSignal")).await;
        wait_for_condition(&client, &node, ("False", "NoSignal")).await;
        counter.kill().await;
        set_taints(&client, &node, deletion("2")).await;
        patch_status(marker("True", "AdminStateDown")).await;
        let message = wait_for_condition(&client, &node, ("Unknown", "NotCounted")).await;
        assert!(message.contains("no counter has reported"), "{message}");
        // By another write than that of the condition.
        eventually(SOON, "nothing waits where nothing counts", is_released).await;
        agent.signal(Signal::SIGTERM);
        assert!(agent.wait(SOON).await.unwrap().success());
        let log = agent.log();
        assert!(!log.contains("did not stop in time"), "{log}");
        // With the feature off, nothing is left to wait for.
        patch_status(
            json!({"status": {"conditions": [{"type": "headgate.dev/ConnectionsDrained", "status": "False",
            "reason": "ConnectionsOpen", "message": "9 connections pass through this node."}]}}),
        )
        .await;
        let settings = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: AdminState}\n";
        let agent = AgentOptions::new(&node, control_plane.kubeconfig())
            .settings(settings)
            .start()
            .await;
        wait_for_condition(&client, &node, ("False", "NoSignal")).await;
        agent.stop(Duration::from_secs(10)).await;
        control_plane.stop().await;
    });
}

#[test]
#[ignore = "needs network namespaces"]
fn without_the_right_the_command_says_what_is_missing() {
    let name = "connections::without_the_right_the_command_says_what_is_missing";
    in_network_namespace(name, async || {
        let (control_plane, client) = own_cluster().await;
        let node = create_node(&client, "unprivileged").await;
        // Without a Service of type LoadBalancer there is nothing to read.
        create_service(&client, "web", json!({"ip": FRONTEND.to_string()})).await;
        let mut command = process::command_in("setpriv", std::path::Path::new("."));
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]);
        command
            .arg(env!("CARGO_BIN_EXE_headgate"))
            .args(["connections", &node, "--kubeconfig"]);
        let output = command.arg(control_plane.kubeconfig()).output().unwrap();
        refused(&output, 1, &["CAP_NET_ADMIN"]);
        control_plane.stop().await;
    });
}
