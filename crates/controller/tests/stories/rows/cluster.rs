//! A cluster with load balancers and a leader, in one process and in paused time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure_emulator::{Settings, entries_of, pools_in};
use headgate_controller::admin_state::{Policy, RestoreError, RestoreOutcome};
use headgate_controller::restore::{RestoreRequest, run_restore};
use headgate_core::node::NodeTraffic;
use headgate_core::telemetry::{MetricsFormat, encode_metrics};
use headgate_test_kubernetes::{ClientFaults, FakeApi};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::super::world::{ENFORCE, Leader, World, pool_path, set_taints, two_load_balancers};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
pub(crate) const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
pub(crate) const DRAINING: &str = "cloudprovider.azure.microsoft.com/draining";
pub(crate) const DOWN: &str = "LoadBalancerAdminStateDown";
pub(crate) const NONE: &str = "LoadBalancerRestored";
pub(crate) const FAILED: &str = "LoadBalancerUpdateFailed";
pub(crate) const ROLE_MISSING: &str = "AzureRoleMissing";
/// Longer than any expected wait, and than the end of a term.
const MAX_WAIT: Duration = Duration::from_mins(2);

/// The names of the entries that are `Down`, by load balancer and pool.
pub(crate) type Down = BTreeMap<String, BTreeSet<String>>;

/// A request to ARM.
#[derive(Clone, Debug)]
pub(crate) struct ArmRequest {
    pub(crate) at: Timestamp,
    pub(crate) status: u64,
    pub(crate) if_match: Option<String>,
    pub(crate) body: Value,
}

pub(crate) struct TestCluster {
    pub(crate) fake: FakeApi,
    pub(crate) world: World,
    leader: Option<Leader>,
    /// The leader's connection to the API server, for faults.
    pub(crate) line: ClientFaults,
    leaders: u32,
}

/// The cluster is its world, with a leader.
impl Deref for TestCluster {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl TestCluster {
    /// A number of nodes in two load balancers, and a leader.
    pub(crate) async fn new(nodes: usize) -> Self {
        Self::with(nodes, &two_load_balancers(nodes)).await
    }

    /// Three nodes in two load balancers, the second with a signal and `Down`, and a leader.
    pub(crate) async fn with_node_2_down() -> Self {
        let cluster = Self::new(3).await;
        cluster.taint(2, &[DRAINING]);
        cluster.settle(&["node-2"]).await;
        cluster
    }

    /// A number of nodes, these resources, and a leader.
    pub(crate) async fn with(nodes: usize, resources: &[Value]) -> Self {
        let mut cluster = Self::without_leader(nodes, resources).await;
        cluster.lead(ENFORCE).await;
        cluster
    }

    /// The same in a world that differs from the usual one.
    pub(crate) async fn configured(nodes: usize, resources: &[Value], change: impl FnOnce(&mut World)) -> Self {
        let mut cluster = Self::without_leader(nodes, resources).await;
        change(&mut cluster.world);
        cluster.lead(ENFORCE).await;
        cluster
    }

    /// A number of nodes and these resources, without a leader.
    pub(crate) async fn without_leader(nodes: usize, resources: &[Value]) -> Self {
        let (fake, world) = World::with_nodes(nodes, resources, Settings::default()).await;
        Self {
            fake,
            world,
            leader: None,
            line: ClientFaults::default(),
            leaders: 0,
        }
    }

    /// Starts an instance that stands for election.
    pub(crate) async fn start_leader(&mut self, policy: Policy) {
        self.leaders += 1;
        let name = format!("leader-{}", self.leaders);
        self.start_leader_on(&name, policy).await;
    }

    async fn start_leader_on(&mut self, node: &str, policy: Policy) {
        let (client, line) = self.fake.client();
        self.leader = Some(Leader::start(&self.world, client, node, policy).await);
        self.line = line;
    }

    /// Starts an instance and waits until it leads and has listed everything.
    pub(crate) async fn lead(&mut self, policy: Policy) {
        self.start_leader(policy).await;
        self.wait_for_term().await;
    }

    /// The same, of an instance that runs on this node.
    pub(crate) async fn lead_on(&mut self, node: &str, policy: Policy) {
        self.start_leader_on(node, policy).await;
        self.wait_for_term().await;
    }

    async fn wait_for_term(&self) {
        let mut terms = self.leader().terms.clone();
        let led = timeout(MAX_WAIT, terms.wait_for(Option::is_some)).await;
        drop(led.unwrap().unwrap());
        sleep(2 * SECOND).await;
    }

    pub(crate) fn leader(&self) -> &Leader {
        self.leader.as_ref().unwrap()
    }

    /// Stops the leader as SIGTERM does, and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.leader.take().unwrap().stop().await;
    }

    /// Runs the work of `headgate restore`.
    pub(crate) async fn restore(&self) -> RestoreOutcome {
        self.restore_with(self.fake.client().0).await.unwrap()
    }

    /// The same with this client of the API server.
    pub(crate) async fn restore_with(&self, client: Client) -> Result<RestoreOutcome, RestoreError> {
        let arm = self.arm("restore", Arc::new(|_| ())).await;
        let request = RestoreRequest {
            client,
            target: self.target(arm),
            only_nodes: None,
            lease_timeout: MAX_WAIT,
            work_timeout: MAX_WAIT,
            clock: self.world.clock.clone(),
        };
        run_restore(request, pending()).await
    }

    /// Aborts the leader as SIGKILL does; it releases nothing.
    pub(crate) fn kill(&mut self) {
        self.leader.take().unwrap().kill();
    }

    /// What the leader knows of a Node with a signal.
    pub(crate) fn read(&self, node: &str) -> Option<NodeTraffic> {
        self.world.traffic.as_ref()?.borrow().get(node).cloned()
    }

    /// Changes a Node at once, without a request.
    pub(crate) fn node(&self, number: usize, change: impl FnOnce(&mut Value)) {
        self.fake.change::<Node>("", &format!("node-{number}"), change);
    }

    /// Replaces the taints of a Node at once.
    pub(crate) fn taint(&self, number: usize, keys: &[&str]) {
        set_taints(&self.fake, number, keys);
    }

    /// Waits until `done`; returns how long it took.
    pub(crate) async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) -> Duration {
        let start = Instant::now();
        while !done(self) {
            assert!(
                start.elapsed() < MAX_WAIT,
                "timed out: {what}: {:?}\n{:#?}",
                self.down(),
                self.world.events().await
            );
            // The longer the wait, the coarser the polling.
            sleep((start.elapsed() / 20).max(Duration::from_millis(10))).await;
        }
        start.elapsed()
    }

    /// Waits until these entries, and no others, are `Down` in every pool.
    pub(crate) async fn until_down(&self, names: &[&str]) -> Duration {
        let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.until(&format!("{names:?} Down"), |cluster| {
            cluster.down().values().all(|down| *down == names)
        })
        .await
    }

    /// The same, and waits for events and ledger.
    pub(crate) async fn settle(&self, names: &[&str]) {
        self.until_down(names).await;
        sleep(5 * SECOND).await;
    }

    /// The `Down` entries of every pool, also of pools without any.
    pub(crate) fn down(&self) -> Down {
        let state = self.control("GET", "state", &Value::Null);
        let down = |pool: &Value| {
            let id = pool["id"].as_str().unwrap();
            let (load_balancer, pool_name) = id.split_once("/backendAddressPools/").unwrap();
            let (_, load_balancer) = load_balancer.rsplit_once('/').unwrap();
            let down = entries_of(pool).filter(|entry| entry["properties"]["adminState"] == "Down");
            let names = down.map(|entry| entry["name"].as_str().unwrap().to_owned());
            (format!("{load_balancer}/{pool_name}"), names.collect())
        };
        pools_in(&state).map(down).collect()
    }

    /// The requests to ARM so far, in order.
    pub(crate) fn sent(&self, method: &str, path: &str) -> Vec<ArmRequest> {
        let mut after = 0;
        let mut sent = Vec::new();
        loop {
            let mut query = format!("journal?limit=1000&after={after}");
            for (name, pattern) in [("method", method), ("path", path)] {
                if !pattern.is_empty() {
                    query = format!("{query}&{name}={pattern}");
                }
            }
            let page = self.control("GET", &query, &Value::Null);
            assert_eq!(page["dropped"], 0);
            let entries = page["entries"].as_array().unwrap();
            if entries.is_empty() {
                return sent;
            }
            after = page["next"].as_u64().unwrap();
            let requests = entries.iter().filter(|entry| entry["kind"] == "request");
            sent.extend(requests.map(|entry| ArmRequest {
                at: entry["arrived"].as_str().unwrap().parse().unwrap(),
                status: entry["status"].as_u64().unwrap_or_default(),
                if_match: entry["ifMatch"].as_str().map(str::to_owned),
                body: entry["body"].clone(),
            }));
        }
    }

    /// The PUTs of all clients so far.
    pub(crate) fn puts(&self) -> Vec<ArmRequest> {
        self.sent("PUT", "")
    }

    /// The number of events by reason and Node.
    pub(crate) async fn event_counts(&self) -> BTreeMap<(String, String), usize> {
        let mut counts = BTreeMap::new();
        for (reason, node, _) in self.world.events().await {
            *counts.entry((reason, node)).or_default() += 1;
        }
        counts
    }

    /// Another client reads a pool, changes it and writes it back.
    pub(crate) async fn foreign(&self, load_balancer: &str, pool: &str, change: impl FnOnce(&mut Value)) {
        let path = pool_path(load_balancer, pool);
        let mut document = self.other("GET", &path, &Value::Null).await;
        change(&mut document);
        self.other("PUT", &path, &document).await;
    }

    /// Another client sets the admin state of an entry.
    pub(crate) async fn foreign_state(&self, load_balancer: &str, pool: &str, name: &str, state: &str) {
        let set = |pool: &mut Value| entry(pool, name)["properties"]["adminState"] = json!(state);
        self.foreign(load_balancer, pool, set).await;
    }

    /// Another client changes a pool of the load balancer `kubernetes`, but none of its entries.
    pub(crate) async fn change_pool(&self, pool: &str) {
        let change = |pool: &mut Value| pool["properties"]["drainPeriodInSeconds"] = json!(60);
        self.foreign("kubernetes", pool, change).await;
    }

    /// The value of one of the leader's metrics, by its name and parts of its labels.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = encode_metrics(&self.leader().registry, MetricsFormat::Prometheus).unwrap();
        text.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            let has_all = labels.iter().all(|label| rest.contains(label));
            let is_match = has_all && (rest.starts_with('{') || labels.is_empty() && rest.starts_with(' '));
            is_match.then(|| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        })
    }
}

/// The entry with this name in a pool's document.
pub(crate) fn entry<'a>(pool: &'a mut Value, name: &str) -> &'a mut Value {
    let entries = pool["properties"]["loadBalancerBackendAddresses"].as_array_mut();
    entries.unwrap().iter_mut().find(|entry| entry["name"] == name).unwrap()
}

/// The time between two requests.
pub(crate) fn between(first: &ArmRequest, second: &ArmRequest) -> Duration {
    second.at.duration_since(first.at).try_into().unwrap()
}
