//! Webhook notifications of real processes: the agent's own node, and the leader's events.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use headgate_test_kubernetes::{control_plane, create_node, eventually, met, set_taints};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{ExclusiveLease, SOON};
use crate::harness::AgentOptions;
use crate::harness::agent::Agent;

/// The part of the URL that no log and no metric may contain.
const SECRET: &str = "T0000-secret";
const TAINT: &str = "headgate.dev/maintenance";

/// A receiver of notices that answers 200.
struct Receiver {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&bodies);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = String::new();
                let body = loop {
                    let mut part = [0; 4096];
                    let length = stream.read(&mut part).await.unwrap();
                    request.push_str(std::str::from_utf8(&part[..length]).unwrap());
                    let body = request
                        .split_once("\r\n\r\n")
                        .map(|(_, body)| serde_json::from_str(body));
                    if let Some(Ok(body)) = body {
                        break body;
                    }
                    assert!(length > 0, "{request}");
                };
                recorded.lock().unwrap().push(body);
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .await
                    .unwrap();
            }
        });
        Self { address, bodies }
    }

    /// Waits for a notice of an event about a node.
    async fn notice(&self, event: &str, node: &str) -> Value {
        eventually(SOON, event, async || {
            let bodies = self.bodies.lock().unwrap().clone();
            let found = bodies
                .iter()
                .find(|body| body["event"] == event && body["name"] == node);
            found.cloned().ok_or_else(|| format!("{bodies:?}"))
        })
        .await
    }
}

/// An agent whose settings name a file with the receiver's URL.
fn agent_options(node: &str, receiver: &Receiver, more: &str) -> AgentOptions {
    let options = AgentOptions::new(node, &control_plane().kubeconfig);
    let file = options.directory().join("url");
    std::fs::write(&file, format!("http://{}/{SECRET}\n", receiver.address)).unwrap();
    options.settings(&format!(
        "kubeProxyHealthzUrl: Disabled\nnotifications: {{urlFile: {}{more}}}\n",
        file.display()
    ))
}

async fn taint(node: &str, taints: Value) {
    set_taints(&control_plane().client(), node, taints).await;
}

async fn shows_no_secret(agent: &Agent) {
    for (what, text) in [("log", agent.log()), ("metrics", agent.metrics().await)] {
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
}

#[tokio::test]
async fn an_agent_reports_the_first_and_the_last_signal_of_its_node() {
    let receiver = Receiver::start().await;
    let node = create_node(&control_plane().client(), "webhook").await;
    let agent = agent_options(&node, &receiver, "").start().await;
    agent.answers(200).await;
    taint(&node, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
    let notice = receiver.notice("NodeSignalled", &node).await;
    assert_eq!(notice["signals"], json!([TAINT]));
    assert_eq!((&notice["kind"], &notice["reporter"]), (&json!("Node"), &json!(node)));
    let text = notice["note"].as_str().unwrap();
    assert!(text.contains(TAINT) && text.contains("503"), "{text}");
    taint(&node, json!(null)).await;
    let notice = receiver.notice("NodeSignalsEnded", &node).await;
    assert_eq!(notice["signals"], json!([]));
    eventually(SOON, "both are counted", async || {
        let metrics = agent.metrics().await;
        let line = "headgate_notifications_total{outcome=\"delivered\"} 2";
        met(metrics.contains(line), metrics)
    })
    .await;
    assert_eq!(receiver.bodies.lock().unwrap().len(), 2);
    shows_no_secret(&agent).await;
}

/// The leader reports that it cannot connect to ARM: an event on each node with a signal, and a notice.
#[tokio::test]
async fn a_leader_reports_its_events() {
    let lease = ExclusiveLease::free().await;
    let receiver = Receiver::start().await;
    let node = create_node(&control_plane().client(), "webhook-leader").await;
    taint(&node, json!([{"key": TAINT, "effect": "NoSchedule"}])).await;
    let options = agent_options(&node, &receiver, ", events: []");
    let azure = options.directory().join("azure.json");
    // Nothing listens there.
    let text = r#"{"resourceManagerEndpoint": "http://127.0.0.1:1", "subscriptionId": "s", "resourceGroup": "g",
        "useManagedIdentityExtension": true}"#;
    std::fs::write(&azure, text).unwrap();
    let agent = options
        .argument(&format!("--azure-config-file={}", azure.display()))
        .start()
        .await;
    lease.held_by(&node).await;
    let event = "LoadBalancerUpdateFailed";
    let notice = receiver.notice(event, &node).await;
    assert_eq!((&notice["warning"], &notice["kind"]), (&json!(true), &json!("Node")));
    assert!(notice["note"].as_str().unwrap().contains("dmin state"), "{notice}");
    shows_no_secret(&agent).await;
}
