//! The ARM client on the ARM emulator: in one process and paused time, and on sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_azure::{
    ArmClient, ArmClientOptions, BufferedResponse, Endpoints, Identity, Pool, PoolId, ResourceGroupId, TokenCache,
    Transport, TransportError,
};
use headgate_azure::{Credential, RateLimits, Secret};
use headgate_azure_emulator::{Emulator, Settings};
use headgate_clock::Clock;
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::service_fn;

mod counted;
mod reads;
mod role;
mod spans;
mod trouble;
mod writes;

/// Where the emulator believes to be.
const BASE: &str = "http://127.0.0.1:1";
const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
/// Time that operations take.
const DELAY: Duration = Duration::from_secs(2);

/// An emulator and a client of it.
struct World {
    emulator: Emulator,
    arm: ArmClient,
}

impl World {
    async fn new(resources: &[Value]) -> Self {
        Self::with(resources, None, |answer| answer).await
    }

    /// Whose answers are changed on their way.
    async fn with(
        resources: &[Value],
        rate_limits: Option<RateLimits>,
        change: impl Fn(BufferedResponse) -> BufferedResponse + Clone + Send + Sync + 'static,
    ) -> Self {
        let settings = Settings {
            operation_delay: DELAY,
            page_size: 3,
            ..Settings::default()
        };
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
        let seed = serde_json::from_value(json!({"resources": resources})).unwrap();
        let emulator = Emulator::new(settings, seed, clock.clone(), 1).unwrap();
        let inside = emulator.clone();
        let transport = Transport::new(service_fn(move |request: Request<Bytes>| {
            let (emulator, change) = (inside.clone(), change.clone());
            async move {
                let (mut parts, body) = request.into_parts();
                assert_eq!(parts.uri.authority().unwrap(), "127.0.0.1:1");
                parts.uri = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
                let answer = emulator.call(Request::from_parts(parts, body), BASE).await;
                answer
                    .map(change)
                    .map_err(|error| TransportError::Connection(error.to_string()))
            }
        }));
        let endpoints = Endpoints::discover(&transport, BASE, None).await.unwrap();
        let credential = Credential::ClientSecret {
            client_id: "client".to_owned(),
            secret: Secret::new("secret"),
        };
        let account = Identity::new(&credential, Some("tenant"), &endpoints, "http://127.0.0.1:1").unwrap();
        let tokens = TokenCache::new(account, transport.clone(), clock.clone());
        let options = ArmClientOptions {
            endpoints,
            rate_limits,
            user_agent: None,
        };
        let arm = ArmClient::new(options, transport, Arc::new(tokens), clock);
        Self { emulator, arm }
    }

    /// A pool as it is now.
    async fn pool(&self, name: &str) -> Pool {
        self.arm.get_pool(&pool_id(name), soon()).await.unwrap()
    }

    fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder().method(method).uri(format!("/emulator/v1/{path}"));
        let answer = self.emulator.control(&request.body(Bytes::from(text)).unwrap());
        assert!(answer.status().is_success(), "{method} {path}: {:?}", answer.body());
        serde_json::from_slice(answer.body()).unwrap_or_default()
    }

    /// From now on, so many times.
    fn fault(&self, method: &str, path: &str, times: u32, action: &Value) {
        let rule = json!({"match": {"method": method, "path": path}, "times": times, "action": action});
        self.control("POST", "faults", &rule);
    }

    /// The requests so far, of this method and to paths like this.
    fn requests(&self, method: &str, path: &str) -> Vec<Value> {
        let journal = self.control(
            "GET",
            &format!("journal?limit=1000&method={method}&path={path}"),
            &Value::Null,
        );
        let entries = journal["entries"].as_array().unwrap().clone();
        entries.into_iter().filter(|entry| entry["kind"] == "request").collect()
    }

    /// Somebody else asks.
    async fn other(&self, method: &str, path: &str, body: &Value) -> Response<Bytes> {
        let token = self.control("GET", "token", &Value::Null);
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?api-version=2025-05-01"))
            .header("Authorization", format!("Bearer {}", token["token"].as_str().unwrap()));
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        self.emulator.call(request, BASE).await.unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn group() -> ResourceGroupId {
    ResourceGroupId::new("sub", "rg").unwrap()
}

fn pool_id(name: &str) -> PoolId {
    group().load_balancer("lb").unwrap().pool(name).unwrap()
}

/// A load balancer with a pool of these many nodes, and another of two.
fn load_balancer(name: &str, nodes: usize) -> Value {
    let address = |number: usize| {
        json!({"name": format!("node-{number}"), "futureAddress": number,
            "properties": {"ipAddress": format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255),
                           "futureProperty": {"deep": [null, number]}}})
    };
    let pool = |name: &str, nodes: usize| {
        json!({"name": name, "futurePool": name, "properties": {"drainPeriodInSeconds": 30, "futureInside": {"x": 1.5},
            "loadBalancerBackendAddresses": (1..=nodes).map(address).collect::<Vec<_>>()}})
    };
    json!({
        "id": format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}"), "location": "eastus",
        "sku": {"name": "Standard"}, "properties": {"backendAddressPools": [pool("pool", nodes), pool("other", 2)]},
    })
}
