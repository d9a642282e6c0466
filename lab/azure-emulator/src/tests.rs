//! Requests to an emulator in process, in paused time.

use std::time::Duration;

use axum::http::{HeaderMap, Request, Response};
use bytes::Bytes;
use headgate_core::clock::Clock;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Emulator, Seed, Settings};

mod authorization;
mod bad_input;
mod callers;
mod concurrent_writers;
mod deviations;
mod injected_faults;
mod nic_pools;
mod other_resources;
mod paging;
mod recorded_bodies;
mod references;
mod writes;

/// The URL of the emulator in these tests.
pub(super) const BASE: &str = "http://emulator.test";
/// The resource group of the tests' resources.
pub(super) const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
/// How long operations take.
pub(super) const DELAY: Duration = Duration::from_secs(2);

/// The lines of a table: what is given, and what is expected.
pub(super) fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.trim().lines().map(|row| row.split_once(" → ").expect(row))
}

/// A response with its body as JSON.
#[derive(Clone, Debug)]
pub(super) struct TestResponse {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl TestResponse {
    fn from_response(response: Response<Bytes>) -> Self {
        let (parts, body) = response.into_parts();
        let body = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body).unwrap()
        };
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(super) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

/// A client of an emulator, which sends a token with each request.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) emulator: Emulator,
}

impl Client {
    /// A client of an emulator with these resources.
    pub(super) fn new(resources: &[Value]) -> Self {
        Self::with(
            resources,
            Settings {
                operation_delay: DELAY,
                page_size: 3,
                ..Settings::default()
            },
        )
    }

    pub(super) fn with(resources: &[Value], settings: Settings) -> Self {
        let seed: Seed = serde_json::from_value(json!({"resources": resources})).unwrap();
        let start: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let emulator = Emulator::new(settings, seed, Clock::anchored(start), 1).unwrap();
        Self { emulator }
    }

    /// Sends a request; adds a token, and an API version if the path has none.
    pub(super) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TestResponse {
        let path = path.strip_prefix(BASE).unwrap_or(path);
        let query = if path.contains("api-version=") {
            ""
        } else if path.contains('?') {
            "&api-version=2025-05-01"
        } else {
            "?api-version=2025-05-01"
        };
        let mut request = Request::builder().method(method).uri(format!("{path}{query}"));
        if !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            request = request.header("Authorization", format!("Bearer {}", self.token()));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::copy_from_slice(body)).unwrap();
        TestResponse::from_response(self.emulator.call(request, BASE).await.unwrap())
    }

    /// A new token from the control API.
    pub(super) fn token(&self) -> String {
        let answer = self.control("GET", "token", &Value::Null);
        answer.body["token"].as_str().unwrap().to_owned()
    }

    /// Sends a request to the control API.
    pub(super) fn control(&self, method: &str, path: &str, body: &Value) -> TestResponse {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder().method(method).uri(format!("/emulator/v1/{path}"));
        TestResponse::from_response(self.emulator.control(&request.body(Bytes::from(text)).unwrap()))
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, &[], b"").await
    }

    /// The document that a GET shows.
    pub(super) async fn read(&self, path: &str) -> Value {
        self.get(path).await.body
    }

    /// The provisioning state that a GET shows.
    pub(super) async fn state(&self, path: &str) -> Value {
        self.read(path).await["properties"]["provisioningState"].clone()
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PUT", path, &[], body.to_string().as_bytes()).await
    }

    pub(super) async fn put_if_match(&self, path: &str, etag: &str, body: &Value) -> TestResponse {
        self.send("PUT", path, &[("If-Match", etag)], body.to_string().as_bytes())
            .await
    }

    pub(super) async fn delete(&self, path: &str) -> TestResponse {
        self.send("DELETE", path, &[], b"").await
    }

    /// Sends a PUT, and waits until its operation has ended.
    pub(super) async fn put_to_end(&self, path: &str, body: &Value) {
        self.wait_for_operation(&self.put(path, body).await).await;
    }

    /// Sends a DELETE, and waits until its operation has ended.
    pub(super) async fn delete_to_end(&self, path: &str) {
        self.wait_for_operation(&self.delete(path).await).await;
    }

    /// Polls the operation that a write started; returns its final status.
    pub(super) async fn wait_for_operation(&self, written: &TestResponse) -> Value {
        let url = written.header("azure-asyncoperation").expect("an operation").to_owned();
        loop {
            let status = self.get(&url).await;
            assert_eq!(status.status, 200, "{}", status.body);
            if status.body["status"] != "InProgress" {
                return status.body;
            }
            let seconds: u64 = status.header("retry-after").unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    }
}

/// The path of a load balancer.
pub(super) fn lb_path(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}")
}

/// The path of a pool.
pub(super) fn pool_path(lb_name: &str, name: &str) -> String {
    format!("{}/backendAddressPools/{name}", lb_path(lb_name))
}

/// The path of the load balancer that most tests have.
pub(super) fn lb1() -> String {
    lb_path("lb1")
}

/// The path of one of its pools.
pub(super) fn lb1_pool(name: &str) -> String {
    pool_path("lb1", name)
}

/// A load balancer with pools of these nodes, and a rule and a probe for the first.
pub(super) fn load_balancer(name: &str, pools: &[(&str, &[&str])]) -> Value {
    let id = lb_path(name);
    let reference = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let shown: Vec<Value> = pools.iter().map(|(name, nodes)| pool_document(name, nodes)).collect();
    json!({
        "id": id, "location": "eastus", "sku": {"name": "Standard"}, "tags": {"owner": "me"},
        "properties": {
            "frontendIPConfigurations": [{"name": "frontend", "properties": {"publicIPAddress": {
                "id": format!("{GROUP}/providers/Microsoft.Network/publicIPAddresses/{name}-ip")}}}],
            "backendAddressPools": shown,
            "loadBalancingRules": [{"name": "http", "properties": {
                "frontendIPConfiguration": reference("frontendIPConfigurations", "frontend"),
                "backendAddressPool": reference("backendAddressPools", pools[0].0),
                "probe": reference("probes", "healthz"), "protocol": "Tcp", "frontendPort": 80, "backendPort": 80}}],
            "probes": [{"name": "healthz", "properties": {
                "protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5, "probeThreshold": 2}}],
        },
    })
}

/// A pool of nodes; their addresses follow from their positions.
pub(super) fn pool_document(name: &str, nodes: &[&str]) -> Value {
    let address = |(number, node): (usize, &&str)| json!({"name": node, "properties": {"ipAddress": format!("10.0.0.{}", number + 1)}});
    json!({"name": name, "properties": {
        "virtualNetwork": {"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/nodes")},
        "loadBalancerBackendAddresses": nodes.iter().enumerate().map(address).collect::<Vec<_>>()}})
}

/// The entries of a pool.
pub(super) fn addresses(pool: &mut Value) -> &mut Vec<Value> {
    let addresses = &mut pool["properties"]["loadBalancerBackendAddresses"];
    addresses.as_array_mut().unwrap()
}

/// The admin states of a pool's addresses; `None` where the address shows none.
pub(super) fn admin_states(pool: &Value) -> Vec<(String, Option<String>)> {
    let addresses = pool["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let state = |address: &Value| {
        (
            text(&address["name"]).unwrap(),
            text(&address["properties"]["adminState"]),
        )
    };
    addresses.iter().map(state).collect()
}
