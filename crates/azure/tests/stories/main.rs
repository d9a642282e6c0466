//! The ARM client on the ARM emulator: in one process and paused time, and on sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use headgate_azure::{
    AdminState, ArmClient, ArmClientOptions, ArmError, BufferedResponse, Credential, Endpoints, Identity,
    LoadBalancerSummary, Pool, PoolId, ProvisioningState, RateLimits, ResourceGroupId, Secret, TokenCache, Transport,
    TransportError, WriteOperation, WritePermit,
};
use headgate_azure_emulator::{Emulator, Settings};
use headgate_core::clock::Clock;
use hyper::{Request, Response};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::service_fn;

mod failures;
mod metrics;
mod operations;
mod reads;
mod role;
mod spans;
mod writes;

/// The base URL that the emulator puts into responses.
const BASE: &str = "http://127.0.0.1:1";
const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
static NO_POOLS: BTreeSet<PoolId> = BTreeSet::new();
/// Time from an accepted write to the end of its operation.
const OPERATION_DELAY: Duration = Duration::from_secs(2);

/// An emulator and a client of it.
struct TestBed {
    emulator: Emulator,
    arm: ArmClient,
}

impl TestBed {
    async fn new(resources: &[Value]) -> Self {
        Self::with(resources, None, |answer| answer).await
    }

    /// A test bed whose responses `change` modifies on their way to the client.
    async fn with(
        resources: &[Value],
        rate_limits: Option<RateLimits>,
        change: impl Fn(BufferedResponse) -> BufferedResponse + Clone + Send + Sync + 'static,
    ) -> Self {
        enable_spans();
        let settings = Settings {
            operation_delay: OPERATION_DELAY,
            page_size: 3,
            ..Settings::default()
        };
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
        let seed = serde_json::from_value(json!({"resources": resources})).unwrap();
        let emulator = Emulator::new(settings, seed, clock.clone(), 1).unwrap();
        let server = emulator.clone();
        let transport = Transport::new(service_fn(move |request: Request<Bytes>| {
            let (emulator, change) = (server.clone(), change.clone());
            async move {
                let (mut parts, body) = request.into_parts();
                assert_eq!(parts.uri.authority().unwrap(), "127.0.0.1:1");
                parts.uri = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
                let answer = emulator.call(Request::from_parts(parts, body), BASE).await.map(change);
                answer.map_err(|error| TransportError::Connection(error.to_string()))
            }
        }));
        let endpoints = Endpoints::discover(&transport, BASE, None).await.unwrap();
        let (client_id, secret) = ("client".to_owned(), Secret::new("secret"));
        let credential = Credential::ClientSecret { client_id, secret };
        let identity = Identity::new(&credential, Some("tenant"), &endpoints, "http://127.0.0.1:1").unwrap();
        let tokens = TokenCache::new(identity, transport.clone(), clock.clone());
        let options = ArmClientOptions {
            endpoints,
            rate_limits,
            user_agent: None,
        };
        let arm = ArmClient::new(options, transport, Arc::new(tokens), clock);
        Self { emulator, arm }
    }

    /// Reads the pool with this name from the emulator.
    async fn pool(&self, name: &str) -> Pool {
        self.arm.get_pool(&pool_id(name), soon()).await.unwrap()
    }

    /// Writes a pool as far as ARM accepts it.
    async fn put(&self, pool: &Pool) -> WriteOperation {
        let pool = pool.encode().unwrap();
        self.arm.put_pool(pool, permit(), soon()).await.unwrap()
    }

    /// Writes a pool in the steps of the pool writer: PUT, end of the operation, read-back of the whole load balancer. Like
    /// the writer, lets a read decide whether an earlier attempt of a rejected PUT had its effect.
    async fn write(&self, pool: &Pool, permit: WritePermit, deadline: Instant) -> Result<Pool, ArmError> {
        let mismatch = match self.arm.put_pool(pool.encode()?, permit, deadline).await {
            Ok(operation) => {
                self.arm.poll_until_done(&operation, deadline).await?;
                ArmError::ReadBackMismatch(pool.id.to_string())
            }
            Err(error)
                if matches!(
                    error,
                    ArmError::ErrorResponse {
                        may_have_applied: true,
                        ..
                    }
                ) =>
            {
                error
            }
            Err(error) => return Err(error),
        };
        let read = self.read_back(&pool.id, deadline).await?;
        if entries(&read) == entries(pool) {
            Ok(read)
        } else {
            Err(mismatch)
        }
    }

    /// A client of the same ARM with this size limit of a page and of a load balancer.
    fn arm_up_to(&self, max_streamed_bytes: usize) -> ArmClient {
        let mut arm = self.arm.clone();
        arm.max_streamed_bytes = max_streamed_bytes;
        arm
    }

    async fn list(&self, group: &ResourceGroupId) -> Result<Vec<LoadBalancerSummary<()>>, ArmError> {
        let list = self.arm.list_load_balancers(group, |_| true, |_| (), soon()).await?;
        Ok(list.load_balancers)
    }

    /// Reads the whole load balancer until ARM is not busy with the pool.
    async fn read_back(&self, id: &PoolId, deadline: Instant) -> Result<Pool, ArmError> {
        loop {
            let read = self.arm.get_load_balancer(id.load_balancer(), |_| (), deadline).await?;
            let mut pools = read.text.pools(&read.summary.id)?.unwrap().into_iter();
            let pool = pools.find(|pool| pool.id() == id).unwrap().into_pool();
            if pool.provisioning_state() == ProvisioningState::Settled {
                return Ok(pool);
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        self.emulator.send_control(method, path, body).unwrap()
    }

    /// Answers the next `times` requests with this method and a path that matches as `answer` says.
    fn answer(&self, method: &str, path: &str, times: u32, answer: &Value) {
        self.fault(method, path, times, &json!({"answer": answer}));
    }

    /// Makes the next `times` requests with this method and a path that matches behave as `action` says.
    fn fault(&self, method: &str, path: &str, times: u32, action: &Value) {
        let rule = json!({"match": {"method": method, "path": path}, "times": times, "action": action});
        self.control("POST", "faults", &rule);
    }

    /// The requests so far with this method and a path that matches.
    fn requests(&self, method: &str, path: &str) -> Vec<Value> {
        let query = format!("journal?limit=1000&method={method}&path={path}");
        let journal = self.control("GET", &query, &Value::Null);
        let entries = journal["entries"].as_array().unwrap().clone();
        entries.into_iter().filter(|entry| entry["kind"] == "request").collect()
    }

    /// Sends a request of another client.
    async fn send_as_other(&self, method: &str, path: &str, body: &Value) -> Response<Bytes> {
        let token = self.control("GET", "token", &Value::Null);
        let request = Request::builder()
            .method(method)
            .uri(format!("{path}?api-version=2025-05-01"))
            .header("Authorization", format!("Bearer {}", token["token"].as_str().unwrap()));
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        self.emulator.call(request, BASE).await.unwrap()
    }
}

/// Installs a subscriber for the whole process that enables every span.
///
/// `tracing` caches for each span whether it is enabled. As long as the process has one subscriber, the first thread that
/// creates the span decides for all. Without this subscriber that is a thread of a test without spans, and the
/// spans that `spans` expects stay disabled.
fn enable_spans() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(tracing_subscriber::registry()).unwrap());
}

/// Reads the pool and sets its first entry `Down`.
async fn edited(bed: &TestBed) -> Pool {
    let mut pool = bed.pool("pool").await;
    assert!(pool.set_admin_state(0, AdminState::Down));
    pool
}

/// One load balancer, and its pool with the first entry set `Down`.
async fn one_edited() -> (TestBed, Pool) {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&bed).await;
    (bed, pool)
}

/// Names, addresses and admin states of a pool's entries.
fn entries(pool: &Pool) -> Vec<(Option<&str>, Option<IpAddr>, Option<AdminState>)> {
    pool.addresses()
        .map(|address| (address.name(), address.ip_address(), address.admin_state()))
        .collect()
}

/// A permit that stays valid.
fn permit() -> WritePermit {
    WritePermit::new(|| true)
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

/// A load balancer with a pool of this many nodes, and another pool of two.
fn load_balancer(name: &str, nodes: usize) -> Value {
    let address = |number: usize| {
        json!({"name": format!("node-{number}"), "futureAddress": number,
            "properties": {"ipAddress": format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255),
                           "futureProperty": {"deep": [null, number]}}})
    };
    let pool = |name: &str, nodes: usize| {
        json!({"name": name, "futurePool": name, "properties": {"drainPeriodInSeconds": 30, "futureInside": {"x": 1.5},
            "virtualNetwork": {"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/nodes")},
            "loadBalancerBackendAddresses": (1..=nodes).map(address).collect::<Vec<_>>()}})
    };
    json!({
        "id": format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}"), "location": "eastus",
        "sku": {"name": "Standard"}, "properties": {"backendAddressPools": [pool("pool", nodes), pool("other", 2)]},
    })
}
