//! A cluster with Local Services, their `EndpointSlices`, load balancers with their pools, and one leader.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_controller::admin_state::{GuardSettings, Policy};
use headgate_controller::local_pools::{LocalPoolsMode, LocalPoolsTarget};
use headgate_controller::pool::ListScope;
use headgate_test_kubernetes::{ClientFaults, FakeApi, series_value};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::guard::SHIPPED_GUARD;
use super::super::world::{ENFORCE, Leader, SECOND, World, address, entries, id_of, is_own, load_balancer, pool_path};

pub(crate) const INTERVAL: Duration = Duration::from_secs(30);
pub(crate) const UPDATED: &str = "LoadBalancerBackendPoolUpdated";
pub(crate) const RETRYING: &str = "LoadBalancerBackendPoolUpdateRetrying";
pub(crate) const FAILED: &str = "LoadBalancerBackendPoolUpdateFailed";

pub(crate) struct LocalCluster {
    pub(crate) world: World,
    pub(crate) fake: FakeApi,
    pub(crate) leader: Leader,
    /// Faults of the leader's requests to the API server.
    pub(crate) faults: ClientFaults,
}

/// How a cluster differs from the usual one.
pub(crate) struct Options {
    pub(crate) nodes: usize,
    pub(crate) load_balancers: Vec<Value>,
    pub(crate) target: LocalPoolsTarget,
    pub(crate) settings: LocalPoolsMode,
    /// Of the emulator.
    pub(crate) azure: Settings,
    pub(crate) policy: Policy,
    pub(crate) guard: GuardSettings,
    /// The size up to which the text of a load balancer is kept for a write, if not the default.
    pub(crate) max_kept_bytes: Option<usize>,
    /// Where the load balancers are, if not in the group of the world.
    pub(crate) scope: Option<ListScope>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 4,
            load_balancers: vec![load_balancer("kubernetes", &[("default-web", entries([1], false))])],
            target: several_load_balancers(),
            settings: LocalPoolsMode::default(),
            azure: Settings::default(),
            policy: ENFORCE,
            guard: SHIPPED_GUARD.clone(),
            max_kept_bytes: None,
            scope: None,
        }
    }
}

impl Options {
    /// With one load balancer, which has these pools.
    pub(crate) fn of(pools: &[(&str, Value)]) -> Self {
        Self {
            load_balancers: vec![load_balancer("kubernetes", pools)],
            ..Self::default()
        }
    }
}

/// The settings of an emulator whose operations take this long.
pub(crate) fn operations_of(operation_delay: Duration) -> Settings {
    Settings {
        operation_delay,
        ..Settings::default()
    }
}

/// An `azure.json` with several Standard load balancers.
pub(crate) fn several_load_balancers() -> LocalPoolsTarget {
    let network = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/vnet";
    LocalPoolsTarget {
        has_several_load_balancers: true,
        virtual_network: Some(network.into()),
        ..LocalPoolsTarget::default()
    }
}

/// The cluster is its world, with a leader.
impl Deref for LocalCluster {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl LocalCluster {
    /// The usual cluster: four nodes, the Service `default/web` with an endpoint on the first, whose pool has it.
    pub(crate) async fn start() -> Self {
        Self::with_web(Options::default(), &[1]).await
    }

    /// A cluster with the Service `default/web`, which has endpoints on these nodes.
    pub(crate) async fn with_web(options: Options, nodes: &[usize]) -> Self {
        let cluster = Self::with(options).await;
        cluster.add_service("web").await;
        cluster.set_slice("web", "web-1", nodes).await;
        cluster
    }

    /// A cluster without Services; its leader has just begun.
    pub(crate) async fn with(options: Options) -> Self {
        let fake = FakeApi::default();
        let clock = fake.clock();
        let mut world = World::new(fake.client().0, clock, &options.load_balancers, options.azure);
        world.managed = vec!["kubernetes", "second"];
        world.local_pools = options.target;
        world.local_pools_mode = options.settings;
        world.guard = options.guard;
        world.max_kept_bytes = options.max_kept_bytes;
        world.reconfigure(options.scope);
        for number in 1..=options.nodes {
            world.add_node(number).await;
        }
        let (client, faults) = fake.client();
        let leader = Leader::start(&world, client, "leader", options.policy).await;
        let mut terms = leader.terms.clone();
        terms.wait_for(Option::is_some).await.unwrap();
        // Ticks come well before the end of what the tests wait for.
        sleep(10 * SECOND).await;
        Self {
            world,
            fake,
            leader,
            faults,
        }
    }

    /// Waits until a tick has passed and its writes are done.
    pub(crate) async fn tick(&self) {
        sleep(INTERVAL).await;
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.world.client.clone(), "default")
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.world.client.clone(), "default")
    }

    pub(crate) async fn add_service(&self, name: &str) {
        let service = json!({"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}});
        let service = serde_json::from_value(service).unwrap();
        self.services().create(&PostParams::default(), &service).await.unwrap();
    }

    pub(crate) async fn patch_service(&self, name: &str, patch: &Value) {
        let patch = Patch::Merge(patch);
        self.services()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn delete_service(&self, name: &str) {
        self.services().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates a slice of a Service with endpoints on these nodes, or gives it these.
    pub(crate) async fn set_slice(&self, service: &str, slice: &str, nodes: &[usize]) {
        let endpoint =
            |node: &usize| json!({"addresses": [format!("10.244.{node}.9")], "nodeName": format!("node-{node}")});
        let endpoints: Vec<_> = nodes.iter().map(endpoint).collect();
        if self.slices().get_opt(slice).await.unwrap().is_some() {
            let patch = Patch::Merge(json!({"endpoints": endpoints}));
            self.slices()
                .patch(slice, &PatchParams::default(), &patch)
                .await
                .unwrap();
            return;
        }
        let object = json!({"metadata": {"name": slice, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80}]});
        let object = serde_json::from_value(object).unwrap();
        self.slices().create(&PostParams::default(), &object).await.unwrap();
    }

    pub(crate) async fn delete_slice(&self, slice: &str) {
        self.slices().delete(slice, &DeleteParams::default()).await.unwrap();
    }

    /// A pool's document.
    pub(crate) async fn pool(&self, load_balancer: &str, pool: &str) -> Value {
        self.get(&pool_path(load_balancer, pool)).await
    }

    /// The addresses of a pool's entries.
    pub(crate) async fn addresses(&self, pool: &str) -> BTreeSet<String> {
        let document = self.pool("kubernetes", pool).await;
        let entries = document["properties"]["loadBalancerBackendAddresses"].as_array();
        let addresses = entries.into_iter().flatten();
        addresses
            .map(|entry| entry["properties"]["ipAddress"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The names of the entries that are `Down` in the pool of `web`.
    pub(crate) fn down(&self) -> Vec<String> {
        self.world.down("kubernetes", "default-web").into_iter().collect()
    }

    /// The number of requests of headgate to a path that ends so.
    pub(crate) fn requests(&self, method: &str, path: &str) -> usize {
        let query = format!("journal?limit=1000&method={method}");
        let journal = self.control("GET", &query, &Value::Null);
        let entries = journal["entries"].as_array().unwrap().iter();
        let requests = entries.filter(|entry| entry["kind"] == "request");
        let own = requests.filter(|entry| is_own(entry));
        own.filter(|entry| entry["path"].as_str().unwrap().ends_with(path))
            .count()
    }

    /// The PUTs of headgate to pools.
    pub(crate) fn puts(&self) -> usize {
        self.own_puts().len()
    }

    /// The numbers of events on a Service: updated, retrying, failed.
    pub(crate) async fn events(&self, service: &str) -> [usize; 3] {
        let mut counts = [0; 3];
        for (count, reason) in counts.iter_mut().zip([UPDATED, RETRYING, FAILED]) {
            *count = self.notes(reason, service).await.len();
        }
        counts
    }

    /// The value of a metric without its prefix `headgate_local_pools_`.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        series_value(&self.leader.registry, &format!("headgate_local_pools_{name}"))
    }

    /// How many operations of the updater the metrics of cloud-provider-azure have, and how many of them failed.
    pub(crate) fn operations(&self) -> [u64; 2] {
        let text = self.leader.metrics();
        ["duration_seconds_count", "failure_count"].map(|name| {
            let name = format!("cloudprovider_azure_op_{name}{{");
            let own = text.lines().filter(|line| {
                line.starts_with(&name) && line.contains("request=\"services_local_update_backend_pool\"")
            });
            own.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                .sum()
        })
    }

    /// Moves the rule of a pool under the shared Lease, whose release makes the leader list the load balancers.
    pub(crate) async fn place_rule(&self, pool: &str, to: &str) {
        assert!(self.take_arm_lease().await);
        self.move_rule(pool, to).await;
        self.release_arm_lease().await;
    }

    /// Moves the rule of a pool to the load balancer of this name, as cloud-controller-manager does; the pools stay.
    pub(crate) async fn move_rule(&self, pool: &str, to: &str) {
        for name in ["kubernetes", "second"] {
            let mut document = self.get(&id_of(name)).await;
            set_rule(&mut document, pool, name == to);
            self.other("PUT", &id_of(name), &document).await;
        }
    }

    /// The numbers of successful and failed updates.
    pub(crate) fn outcomes(&self) -> (u64, u64) {
        let count = |result: &str| self.metric(&format!("updates_total{{result=\"{result}\"}}"));
        (count("success"), count("failure"))
    }
}

/// Adds the rule of a pool to the document of a load balancer, or removes it.
pub(crate) fn set_rule(document: &mut Value, pool: &str, has_rule: bool) {
    let id = document["id"].as_str().unwrap().to_owned();
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let rules = document["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["name"] != format!("{pool}-rule"));
    if has_rule {
        rules.push(json!({"name": format!("{pool}-rule"), "properties": {
            "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
            "backendAddressPool": inside("backendAddressPools", pool), "probe": inside("probes", "probe"),
            "protocol": "Tcp", "frontendPort": 100, "backendPort": 100}}));
    }
}

/// The IPv4 addresses of nodes.
pub(crate) fn nodes(numbers: &[usize]) -> BTreeSet<String> {
    numbers.iter().map(|number| address(*number, false)).collect()
}
