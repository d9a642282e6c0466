//! A cluster with load balancers in the emulator, and leaders that can be stopped and killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headgate_azure::{
    ArmClient, ArmClientOptions, Endpoints, Identity, ResourceGroupId, TokenCache, Transport, TransportError,
};
use headgate_azure::{Credential, RateLimits, Secret};
use headgate_azure_emulator::{Emulator, Settings, entries_of, pools_in, probed_load_balancer};
use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::admin_state::{ClusterTarget, GuardSettings, Policy};
use headgate_controller::local_pools::{LocalPoolsMode, LocalPoolsTarget};
use headgate_controller::pool::{ListScope, ManagedLoadBalancers};
use headgate_core::clock::Clock;
use headgate_core::node::{SignalRules, SignalSettings, TrafficByNode};
use headgate_test_kubernetes::{CCM, FakeApi, OtherProcess, ProcessPoints, SHARED_LEASE};
use hyper::header::IF_MATCH;
use hyper::{Method, Request, Response};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tower::service_fn;

use super::guard::SHIPPED_GUARD;

mod agent;
mod leader;

pub(crate) use agent::run_agent;
pub(crate) use leader::Leader;

/// By how far a wall clock is ahead, in milliseconds. A change is a jump, as after a correction of the time, or after the machine stood
/// still.
#[derive(Clone, Default)]
pub(crate) struct WallOffset(Arc<AtomicI64>);

impl WallOffset {
    pub(crate) fn set_millis(&self, millis: i64) {
        self.0.store(millis, Ordering::Relaxed);
    }

    /// The same clock with this offset of its wall clock alone.
    pub(crate) fn of(&self, right: &Clock) -> Clock {
        let (offset, right) = (Arc::clone(&self.0), right.clone());
        let ahead = move || SignedDuration::from_millis(offset.load(Ordering::Relaxed));
        Clock::Derived(Arc::new(move |_| {
            right.now().wall.saturating_add(ahead()).unwrap_or(Timestamp::MAX)
        }))
    }
}

const BASE: &str = "http://127.0.0.1:1";
pub(crate) const GROUP: &str = "/subscriptions/sub/resourceGroups/rg";
pub(crate) const ENFORCE: Policy = Policy {
    mode: AdminStateMode::Enforce,
    foreign_down: ForeignDown::Keep,
};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// None of 94 random runs had more than 34 in all.
const MOST_PUTS_A_MINUTE: usize = 50;

/// Observes each request to ARM.
pub(crate) type Spy = Arc<dyn Fn(&Request<Bytes>) + Send + Sync>;
/// How long a write is on its way to ARM.
pub(crate) type TravelTime = Arc<dyn Fn() -> Duration + Send + Sync>;
/// Answers in place of the emulator, unless it returns `None`.
pub(crate) type Intercept = Arc<dyn Fn(&Request<Bytes>) -> Option<Response<Bytes>> + Send + Sync>;

/// Azure and the Kubernetes API of one cluster.
pub(crate) struct World {
    pub(crate) emulator: Emulator,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    /// The names of the cluster's load balancers, for leaders that start from now on.
    pub(crate) managed: Vec<&'static str>,
    /// The same for all leaders, also for those that run already.
    pub(crate) reconfigured: Arc<watch::Sender<Option<ListScope>>>,
    /// The value of `enableLoadBalancerAdminState` in `azure.json`.
    pub(crate) enabled: bool,
    /// The values of `cloudProviderRateLimit*` in `azure.json`.
    pub(crate) rate_limits: Option<RateLimits>,
    pub(crate) intercept: Option<Intercept>,
    /// Of each write; it arrives whatever becomes of its sender. Without it, it arrives at once.
    pub(crate) travel_time: Option<TravelTime>,
    /// For how long lists may fail.
    pub(crate) list_failure_timeout: Duration,
    /// Whether leaders write the marker.
    pub(crate) marker: bool,
    /// Whether leaders turn eviction notices in Node events into taints.
    pub(crate) preempt_events: bool,
    /// What `azure.json` says about pools of Local Services.
    pub(crate) local_pools: LocalPoolsTarget,
    /// The setting `localPools`.
    pub(crate) local_pools_mode: LocalPoolsMode,
    /// What leaders take as a signal.
    pub(crate) rules: SignalRules,
    /// Why leaders cannot connect to ARM.
    pub(crate) arm_unreachable: Option<&'static str>,
    /// `adminState.minimumInService` and `maxNewDown`; the defaults unless a story needs others.
    pub(crate) guard: GuardSettings,
    /// The size limit of lists and load balancers, for clients that are made from now on.
    pub(crate) max_streamed_bytes: Option<usize>,
    /// The size up to which they keep the text of a load balancer for a write.
    pub(crate) max_kept_bytes: Option<usize>,
    /// Where leaders publish what their reads show of each Node with a signal, if something waits for it.
    pub(crate) traffic: Option<watch::Sender<Arc<TrafficByNode>>>,
    /// The fault points of processes, by the names under which they send requests to ARM.
    pub(crate) points: Mutex<BTreeMap<String, ProcessPoints>>,
}

/// Sends a request to the emulator, as one of a process with fault points if it has any.
async fn send(
    emulator: &Emulator,
    mut request: Request<Bytes>,
    spy: &Spy,
    travel_time: Option<TravelTime>,
    points: Option<ProcessPoints>,
) -> Result<Response<Bytes>, TransportError> {
    let (method, url) = (request.method().clone(), request.uri().to_string());
    let answer = async {
        spy(&request);
        if points.as_ref().is_some_and(ProcessPoints::ignores_etags) {
            request.headers_mut().remove(IF_MATCH);
        }
        let answer = match travel_time.filter(|_| request.method() == Method::PUT) {
            Some(travel_time) => {
                let (emulator, travel_time) = (emulator.clone(), travel_time());
                let arrival = async move {
                    sleep(travel_time).await;
                    emulator.call(request, BASE).await
                };
                tokio::spawn(arrival).await.unwrap()
            }
            None => emulator.call(request, BASE).await,
        };
        answer.map_err(|error| TransportError::Connection(error.to_string()))
    };
    let Some(points) = &points else { return answer.await };
    let answer = points.exchange(&method, &url, answer).await;
    let answer = answer.unwrap_or_else(|| Err(TransportError::Connection("the connection was reset".to_owned())))?;
    if method == Method::GET {
        return Ok(points.arm_answer(&url, answer));
    }
    Ok(answer)
}

/// The resource id of a load balancer.
pub(crate) fn id_of(load_balancer: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{load_balancer}")
}

/// The resource id of a pool.
pub(crate) fn pool_path(load_balancer: &str, pool: &str) -> String {
    format!("{}/backendAddressPools/{pool}", id_of(load_balancer))
}

/// The `InternalIP` of a node.
pub(crate) fn address(node: usize, v6: bool) -> String {
    if v6 {
        format!("fd00::{node:x}")
    } else {
        format!("10.0.{}.{}", node >> 8, node & 255)
    }
}

/// A load balancer with these pools, each with a rule and a probe.
pub(crate) fn load_balancer(name: &str, pools: &[(&str, Value)]) -> Value {
    probed_load_balancer(GROUP, name, pools)
}

/// A load balancer with one IPv4 pool of a number of nodes.
pub(crate) fn one_pool(nodes: usize) -> [Value; 1] {
    [load_balancer(
        "kubernetes",
        &[("kubernetes", entries(1..=nodes, false))],
    )]
}

/// The fault that ARM answers with this error.
pub(crate) fn arm_error(status: u16, code: &str) -> Value {
    json!({"answer": {"status": status, "body": {"error": {"code": code, "message": "m"}}}})
}

/// Pool entries with the addresses of these nodes.
pub(crate) fn entries(nodes: impl IntoIterator<Item = usize>, v6: bool) -> Value {
    let entry = |node| json!({"name": format!("node-{node}"), "properties": {"ipAddress": address(node, v6)}});
    nodes.into_iter().map(entry).collect()
}

/// A load balancer with a pool for each IP family.
pub(crate) fn dual_stack(nodes: usize) -> Value {
    let pools = [
        ("kubernetes", entries(1..=nodes, false)),
        ("kubernetes-IPv6", entries(1..=nodes, true)),
    ];
    load_balancer("kubernetes", &pools)
}

/// A load balancer with a pool for each IP family, and an internal one.
pub(crate) fn two_load_balancers(nodes: usize) -> Vec<Value> {
    vec![
        dual_stack(nodes),
        load_balancer("kubernetes-internal", &[("kubernetes", entries(1..=nodes, false))]),
    ]
}

/// A Ready Node with an address of each IP family.
pub(crate) fn node(number: usize) -> Node {
    let addresses = [false, true].map(|v6| json!({"type": "InternalIP", "address": address(number, v6)}));
    serde_json::from_value(json!({
        "metadata": {"name": format!("node-{number}")},
        "spec": {"providerID": format!("azure://{GROUP}/providers/Microsoft.Compute/virtualMachines/node-{number}")},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]}}))
    .unwrap()
}

/// The load balancers of these names in a resource group.
pub(crate) fn scope(group: &str, names: &[&str]) -> ListScope {
    ListScope {
        group: ResourceGroupId::new("sub", group).unwrap(),
        managed: ManagedLoadBalancers::new(names.iter().copied()),
    }
}

/// Replaces the taints of a Node at once, without a request.
pub(crate) fn set_taints(fake: &FakeApi, number: usize, keys: &[&str]) {
    let taint = |key: &&str| json!({"key": key, "effect": "NoExecute"});
    let taints: Value = keys.iter().map(taint).collect();
    fake.change::<Node>("", &format!("node-{number}"), |node| node["spec"]["taints"] = taints);
}

impl World {
    /// A fake API server with a number of nodes, and the world of its clients.
    pub(crate) async fn with_nodes(nodes: usize, resources: &[Value], settings: Settings) -> (FakeApi, Self) {
        let fake = FakeApi::default();
        let clock = fake.clock();
        let world = Self::new(fake.client().0, clock, resources, settings);
        for number in 1..=nodes {
            world.add_node(number).await;
        }
        (fake, world)
    }

    pub(crate) fn new(client: Client, clock: Clock, resources: &[Value], settings: Settings) -> Self {
        let seed = serde_json::from_value(json!({"resources": resources})).unwrap();
        let emulator = Emulator::new(settings, seed, clock.clone(), 1).unwrap();
        Self {
            emulator,
            client,
            clock,
            managed: vec!["kubernetes"],
            reconfigured: Arc::default(),
            enabled: true,
            rate_limits: None,
            intercept: None,
            travel_time: None,
            list_failure_timeout: Duration::from_mins(2),
            local_pools: LocalPoolsTarget::default(),
            local_pools_mode: LocalPoolsMode::default(),
            marker: false,
            preempt_events: false,
            rules: SignalSettings::default().admin_state(),
            arm_unreachable: None,
            guard: SHIPPED_GUARD.clone(),
            max_streamed_bytes: None,
            max_kept_bytes: None,
            traffic: None,
            points: Mutex::default(),
        }
    }

    /// Has leaders that start from now on publish what they read of each Node with a signal.
    pub(crate) fn publish_traffic(&mut self) {
        self.traffic = Some(watch::Sender::default());
    }

    /// A client of the emulator, in process. `spy` sees each request right before it is sent.
    pub(crate) async fn arm(&self, name: &str, spy: Spy) -> ArmClient {
        let (inside, intercept) = (self.emulator.clone(), self.intercept.clone());
        let points = self.points.lock().unwrap().get(name).cloned();
        let travel_time = self.travel_time.clone();
        let transport = Transport::new(service_fn(move |request: Request<Bytes>| {
            let (emulator, spy, points) = (inside.clone(), Arc::clone(&spy), points.clone());
            let travel_time = travel_time.clone();
            let answer = intercept.as_ref().and_then(|intercept| intercept(&request));
            async move {
                if let Some(answer) = answer {
                    return Ok(answer);
                }
                let (mut parts, body) = request.into_parts();
                let is_for_arm = parts.uri.path().starts_with("/subscriptions/");
                parts.uri = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
                let request = Request::from_parts(parts, body);
                send(&emulator, request, &spy, travel_time, points.filter(|_| is_for_arm)).await
            }
        }));
        let endpoints = Endpoints::discover(&transport, BASE, None).await.unwrap();
        let credential = Credential::ClientSecret {
            client_id: "client".to_owned(),
            secret: Secret::new("secret"),
        };
        let identity = Identity::new(&credential, Some("tenant"), &endpoints, BASE).unwrap();
        let tokens = TokenCache::new(identity, transport.clone(), self.clock.clone());
        let options = ArmClientOptions {
            endpoints,
            rate_limits: self.rate_limits,
            user_agent: Some(format!("headgate/{name}")),
        };
        let mut client = ArmClient::new(options, transport, Arc::new(tokens), self.clock.clone());
        client.max_streamed_bytes = self.max_streamed_bytes.unwrap_or(client.max_streamed_bytes);
        client.max_kept_bytes = self.max_kept_bytes.unwrap_or(client.max_kept_bytes);
        client
    }

    /// What the cluster's `azure.json` names.
    pub(crate) fn target(&self, arm: ArmClient) -> ClusterTarget {
        ClusterTarget {
            arm,
            scope: scope("rg", &self.managed),
            exclude_control_plane: true,
            is_admin_state_enabled: self.enabled,
            local_pools: self.local_pools.clone(),
        }
    }

    /// Changes what the `azure.json` of all leaders names; `None` for the load balancers of the world.
    pub(crate) fn reconfigure(&self, scope: Option<ListScope>) {
        self.reconfigured.send_replace(scope);
    }

    pub(crate) async fn add_node(&self, number: usize) {
        let made = Api::<Node>::all(self.client.clone())
            .create(&PostParams::default(), &node(number))
            .await
            .unwrap();
        // The API server ignores the status of a create.
        let mut with_status = node(number);
        with_status.metadata = made.metadata;
        Api::<Node>::all(self.client.clone())
            .replace_status(&format!("node-{number}"), &PostParams::default(), &with_status)
            .await
            .unwrap();
    }

    pub(crate) async fn remove_node(&self, number: usize) {
        Api::<Node>::all(self.client.clone())
            .delete(&format!("node-{number}"), &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Replaces the taints of a Node.
    pub(crate) async fn taint(&self, number: usize, keys: &[&str]) {
        let taint = |key: &&str| json!({"key": key, "effect": "NoExecute"});
        let taints = keys.iter().map(taint).collect();
        headgate_test_kubernetes::set_taints(&self.client, &format!("node-{number}"), taints).await;
    }

    pub(crate) fn control(&self, method: &str, path: &str, body: &Value) -> Value {
        self.emulator.send_control(method, path, body).unwrap()
    }

    /// Changes settings of the emulator.
    pub(crate) fn configure(&self, settings: &Value) {
        self.control("PUT", "settings", settings);
    }

    /// Makes the emulator answer with a fault from now on, `times` times.
    pub(crate) fn fault(&self, method: &str, path: &str, times: Option<u32>, action: &Value) {
        let given = |pattern: &str| Some(pattern.to_owned()).filter(|pattern| !pattern.is_empty());
        let rule = json!({"match": {"method": given(method), "path": given(path)}, "times": times, "action": action});
        self.control("POST", "faults", &rule);
    }

    pub(crate) fn clear_faults(&self) {
        self.control("DELETE", "faults", &Value::Null);
    }

    /// The notes of a Node's events with this reason.
    pub(crate) async fn notes(&self, reason: &str, node: &str) -> Vec<String> {
        let events = self.events().await.into_iter();
        let about = events.filter(|(known, about, _)| known == reason && about == node);
        about.map(|(.., note)| note).collect()
    }

    /// A request of another client to ARM; fails unless it succeeds.
    pub(crate) async fn other(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, path, body, None).await;
        assert!(answer.status().is_success(), "{method} {path}: {:?}", answer.body());
        serde_json::from_slice(answer.body()).unwrap_or_default()
    }

    /// The names of a pool's entries that are `Down`.
    pub(crate) fn down(&self, load_balancer: &str, pool: &str) -> BTreeSet<String> {
        let states = self.states(load_balancer, pool);
        let down = states.into_iter().filter(|(_, state)| state == "Down");
        down.map(|(name, _)| name).collect()
    }

    /// The admin states of a pool's entries by name.
    pub(crate) fn states(&self, load_balancer: &str, pool: &str) -> BTreeMap<String, String> {
        let state = self.control("GET", "state", &Value::Null);
        let path = pool_path(load_balancer, pool);
        let is_it = |pool: &&Value| pool["id"].as_str().unwrap().eq_ignore_ascii_case(&path);
        let found = pools_in(&state).find(is_it).unwrap();
        let state = |entry: &Value| {
            let name = entry["name"].as_str().unwrap().to_owned();
            (
                name,
                entry["properties"]["adminState"].as_str().unwrap_or("None").to_owned(),
            )
        };
        entries_of(found).map(state).collect()
    }

    /// A read by another client.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.other("GET", path, &Value::Null).await
    }

    /// A write by another client.
    pub(crate) async fn put(&self, path: &str, body: &Value, if_match: Option<&str>) -> Response<Bytes> {
        self.send("PUT", path, body, if_match).await
    }

    async fn send(&self, method: &str, path: &str, body: &Value, if_match: Option<&str>) -> Response<Bytes> {
        let token = self.control("GET", "token", &Value::Null);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{path}?api-version=2025-05-01"))
            .header("Authorization", format!("Bearer {}", token["token"].as_str().unwrap()));
        if let Some(etag) = if_match {
            request = request.header("If-Match", etag);
        }
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = request.body(Bytes::from(body)).unwrap();
        self.emulator.call(request, BASE).await.unwrap()
    }

    fn other_process(&self) -> OtherProcess {
        OtherProcess::new(self.client.clone(), SHARED_LEASE, self.clock.clone())
    }

    /// Acquires the shared Lease as cloud-controller-manager does; returns whether it was free.
    pub(crate) async fn take_arm_lease(&self) -> bool {
        self.other_process().lock(CCM).await.is_ok()
    }

    /// Releases the shared Lease as cloud-controller-manager does. Only an API server that is away prevents it.
    pub(crate) async fn release_arm_lease(&self) {
        if let Err(kube::Error::Api(refusal)) = self.other_process().unlock(CCM).await {
            panic!("{refusal}");
        }
    }

    /// The PUTs so far, from the journal of the emulator.
    pub(crate) fn puts(&self) -> Vec<Value> {
        self.puts_since(0).0
    }

    /// The PUTs since a position of the emulator's journal in the order of their arrival, and its end.
    pub(crate) fn puts_since(&self, mut position: u64) -> (Vec<Value>, u64) {
        let mut puts = Vec::new();
        loop {
            let path = format!("journal?limit=1000&method=PUT&after={position}");
            let page = self.control("GET", &path, &Value::Null);
            let entries = page["entries"].as_array().unwrap();
            position = page["next"].as_u64().unwrap();
            if entries.is_empty() {
                return (puts, position);
            }
            puts.extend(entries.iter().filter(|entry| entry["kind"] == "request").cloned());
        }
    }

    /// How many PUTs of headgate were refused since a position of the emulator's journal, because their entity tag was replaced.
    pub(crate) fn refused_puts_since(&self, position: u64) -> usize {
        let (puts, _) = self.puts_since(position);
        let refused = |put: &&Value| is_own(put) && put["status"] == 412;
        puts.iter().filter(refused).count()
    }

    /// When the PUTs of headgate arrived.
    pub(crate) fn own_puts(&self) -> Vec<Timestamp> {
        let puts = self.puts().into_iter();
        let own = puts.filter(is_own);
        own.map(|put| put["arrived"].as_str().unwrap().parse().unwrap())
            .collect()
    }

    /// Fails if there were more of them in a minute than any random run needs.
    pub(crate) fn check_puts_of_each_minute(&self) {
        let puts = self.own_puts();
        for (index, first) in puts.iter().enumerate() {
            let within = puts[index..]
                .iter()
                .take_while(|put| put.duration_since(*first) < MINUTE);
            let count = within.count();
            assert!(count <= MOST_PUTS_A_MINUTE, "{count} writes in the minute from {first}");
        }
    }

    /// The end of the emulator's journal, for [`World::requests_since`].
    pub(crate) fn journal_position(&self) -> u64 {
        self.puts_since(0).1
    }

    /// The requests to ARM since then, a line each, for the message of a failure.
    pub(crate) fn requests_since(&self, position: u64) -> String {
        let page = self.control("GET", &format!("journal?limit=1000&after={position}"), &Value::Null);
        let entries = page["entries"].as_array().unwrap().iter();
        let requests = entries.filter(|entry| entry["kind"] == "request");
        let line = |request: &Value| {
            let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
            let path = text("path");
            let path = path.strip_prefix(GROUP).unwrap_or(&path);
            format!(
                "{} {} {path} {} {}",
                text("arrived"),
                text("method"),
                request["status"],
                text("ifMatch")
            )
        };
        requests.map(line).collect::<Vec<_>>().join("\n")
    }

    /// All events, each as often as it happened: reason, Node, note.
    pub(crate) async fn events(&self) -> Vec<(String, String, String)> {
        let events = Api::<Event>::all(self.client.clone())
            .list(&ListParams::default())
            .await
            .unwrap();
        let about = |event: Event| {
            let count = event.series.map_or(1, |series| series.count);
            let node = event.regarding.and_then(|node| node.name).unwrap_or_default();
            let event = (event.reason.unwrap_or_default(), node, event.note.unwrap_or_default());
            std::iter::repeat_n(event, usize::try_from(count).unwrap())
        };
        events.items.into_iter().flat_map(about).collect()
    }

    pub(crate) async fn ledger(&self) -> Value {
        let object = Api::<ConfigMap>::namespaced(self.client.clone(), "kube-system")
            .get_opt("headgate-admin-state")
            .await;
        let text = object.unwrap().and_then(|object| object.data?.remove("ledger.json"));
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Whether a request of the emulator's journal is headgate's.
pub(crate) fn is_own(request: &Value) -> bool {
    request["userAgent"]
        .as_str()
        .is_some_and(|agent| agent.contains("headgate"))
}
