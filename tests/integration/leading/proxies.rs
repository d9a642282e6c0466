//! The proxies that the environment names, for everything that a process sends to other machines.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use headgate_test_kubernetes::{control_plane, eventually, met, set_taints};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::{ExclusiveLease, SOON, candidate};

/// A proxy that opens no tunnel, and answers other requests itself. Returns its URL and the first lines of requests.
async fn proxy() -> (String, Arc<Mutex<BTreeSet<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(BTreeSet::new()));
    let recorded = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let answer = if line.starts_with("CONNECT ") {
                "HTTP/1.1 403 Forbidden\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            };
            recorded.lock().unwrap().insert(line.trim_end().to_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, requests)
}

/// ARM and the webhook have names that only the proxy could resolve. A story of `headgate-azure` has the spans.
#[tokio::test]
async fn arm_and_the_webhook_are_reached_through_the_proxy_of_the_environment() {
    let lease = ExclusiveLease::free().await;
    let (proxy, requests) = proxy().await;
    let (options, node) = candidate().await;
    let directory = options.directory().to_owned();
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    write(
        "azure.json",
        r#"{"resourceManagerEndpoint": "https://arm.invalid", "subscriptionId": "s", "resourceGroup": "g",
            "useManagedIdentityExtension": true}"#,
    );
    write("url", "http://webhook.invalid/hook");
    let url = directory.join("url");
    let notifications = format!("{{urlFile: {}, events: []}}", url.display());
    let settings = format!("kubeProxyHealthzUrl: Disabled\nnotifications: {notifications}\n");
    let options = options.settings(&settings).environment("ALL_PROXY", &proxy);
    let agent = options.environment("NO_PROXY", "excluded.invalid").start().await;
    lease.held_by(&node).await;
    let taints = serde_json::json!([{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]);
    set_taints(&control_plane().client(), &node, taints).await;
    let expected = [
        "CONNECT arm.invalid:443 HTTP/1.1",
        "POST http://webhook.invalid/hook HTTP/1.1",
    ];
    eventually(SOON, "both at the proxy", async || {
        let requests = requests.lock().unwrap().clone();
        met(
            expected.iter().all(|line| requests.contains(*line)),
            format!("{requests:?} {}", agent.log()),
        )
    })
    .await;
}
