//! One load balancer in the emulator, whose pool the test fills with the cluster's nodes as cloud-controller-manager does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headgate_azure_emulator::{entries_of, pools_in, probed_load_balancer};
use headgate_core::clock::Clock;
use headgate_test_kubernetes::{CCM, OtherProcess, SHARED_LEASE, scratch};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::emulator::emulator_process::Emulator;
use crate::harness::http::{self, Response};

const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
const BALANCER: &str = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/kubernetes";
const API_VERSION: &str = "2025-05-01";
/// Attempts to write the pool beside headgate.
const MAX_ATTEMPTS: usize = 100;
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The emulator and the files of headgate for it.
pub(super) struct Azure {
    pub(super) emulator: Emulator,
    pub(super) settings_file: PathBuf,
    /// One write of the pool at a time.
    pool: tokio::sync::Mutex<()>,
}

async fn exchange(address: SocketAddr, method: &str, path: &str, headers: &str, body: &Value) -> Response {
    let text = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    http::exchange(address, request.as_bytes()).await.unwrap()
}

impl Azure {
    /// Starts the emulator. Each write takes `operation_delay`.
    pub(super) async fn start(operation_delay: &str) -> Self {
        let directory = scratch("autoscalers");
        let seed = directory.join("seed.json");
        let load_balancer = probed_load_balancer(GROUP, "kubernetes", &[("kubernetes", json!([]))]);
        std::fs::write(&seed, json!({"resources": [load_balancer]}).to_string()).unwrap();
        let emulator = Emulator::start_with_seed(&seed, &["--operation-delay", operation_delay]).await;
        let settings_file = directory.join("azure.json");
        let text = json!({"resourceManagerEndpoint": format!("http://{}", emulator.arm), "tenantId": "tenant",
            "subscriptionId": "sub", "resourceGroup": "rg", "aadClientId": "client", "aadClientSecret": "secret"});
        std::fs::write(&settings_file, text.to_string()).unwrap();
        Self {
            emulator,
            settings_file,
            pool: tokio::sync::Mutex::default(),
        }
    }

    async fn control(&self, path: &str) -> Value {
        http::control(self.emulator.control, "GET", path, &Value::Null).await
    }

    /// Adds a node to the pool, unless it has it, while it holds the shared Lease: headgate reads the pool when that is released.
    pub(super) async fn add_member(&self, client: &Client, node: &str, address: &str) {
        let _one = self.pool.lock().await;
        let manager = OtherProcess::new(client.clone(), SHARED_LEASE, Clock::System);
        while manager.lock(CCM).await.is_err() {
            sleep(RETRY_INTERVAL).await;
        }
        self.write_member(node, address).await;
        assert_eq!(manager.holder().await, CCM, "in its hold");
        manager.unlock(CCM).await.expect("the Lease is released");
    }

    async fn write_member(&self, node: &str, address: &str) {
        let token = self.control("token").await;
        let authorization = format!("Authorization: Bearer {}\r\n", token["token"].as_str().unwrap());
        let path = format!("{BALANCER}/backendAddressPools/kubernetes?api-version={API_VERSION}");
        for _ in 0..MAX_ATTEMPTS {
            let answer = exchange(self.emulator.arm, "GET", &path, &authorization, &Value::Null).await;
            let mut document = answer.json();
            let is_settled = document["properties"]["provisioningState"] == "Succeeded";
            let etag = document["etag"].as_str().unwrap_or_default().to_owned();
            let members = document["properties"]["loadBalancerBackendAddresses"].as_array_mut();
            let members = members.unwrap_or_else(|| panic!("no members: {}", answer.text()));
            if members.iter().any(|member| member["name"] == node) {
                return;
            }
            members.push(json!({"name": node, "properties": {"ipAddress": address}}));
            if is_settled {
                let headers = format!("{authorization}If-Match: {etag}\r\n");
                exchange(self.emulator.arm, "PUT", &path, &headers, &document).await;
            }
            sleep(RETRY_INTERVAL).await;
        }
        panic!("{node} was not added to the pool");
    }

    /// The members of the pool that are `Down`, and all of them.
    pub(super) async fn members(&self) -> (Vec<String>, Vec<String>) {
        let state = self.control("state").await;
        let name = |member: &Value| member["name"].as_str().unwrap().to_owned();
        let all = pools_in(&state).flat_map(entries_of);
        let down = pools_in(&state).flat_map(entries_of);
        let down = down.filter(|member| member["properties"]["adminState"] == "Down");
        (down.map(name).collect(), all.map(name).collect())
    }

    /// When headgate's first PUT that sets this node `Down` arrived.
    pub(super) async fn put_at(&self, node: &str) -> Option<Timestamp> {
        let journal = self.control("journal?limit=1000&method=PUT").await;
        let is_down = |entry: &&Value| {
            let members = entry["body"]["properties"]["loadBalancerBackendAddresses"].as_array();
            let mut members = members.into_iter().flatten();
            members.any(|member| member["name"] == node && member["properties"]["adminState"] == "Down")
        };
        let entries = journal["entries"].as_array().unwrap().iter();
        let mut of_headgate = entries.filter(|entry| {
            entry["userAgent"]
                .as_str()
                .is_some_and(|agent| agent.contains("headgate"))
        });
        of_headgate.find(is_down)?["arrived"].as_str()?.parse().ok()
    }
}
