//! A cluster and an ARM in memory, and the part of the shell that carries out ticks. Faults are scripted per request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use headgate_controller::local_pools::{
    EventReason, Failure, MemberEdit, Merged, Node, PoolKey, ServiceEvent, UpdateOutcome, Updater, UpdaterSettings,
    base_name, merge,
};
use headgate_controller::pool::{LoadBalancerView, Observation};
use headgate_core::service::{EndpointSliceObject, IpFamily, NamespacedName, SERVICE_NAME_LABEL, Service};
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) const NETWORK: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/vnet";
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

/// A request that a tick sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get,
    Put,
}

/// What happens while a request is answered.
pub(crate) type ConcurrentChange = Box<dyn FnOnce(&mut World)>;

/// How a request is answered.
pub(crate) enum Answer {
    Ok,
    Fails(Failure),
    /// A 429 with this `Retry-After`.
    Throttled(Duration),
    /// The throttle gate is closed for so long, so nothing is sent.
    GateClosed(Duration),
    /// Something happens during the request, which then is answered so.
    After(ConcurrentChange, Box<Answer>),
}

pub(crate) struct World {
    pub(crate) updater: Updater,
    pub(crate) now: Instant,
    /// The pools in ARM, by load balancer and pool, as documents.
    pub(crate) pools: BTreeMap<PoolKey, Value>,
    /// The rules that use a pool.
    pub(crate) rules: BTreeMap<PoolKey, Vec<String>>,
    /// Answers to the next GETs and PUTs; `Ok` afterwards.
    pub(crate) gets: VecDeque<Answer>,
    pub(crate) puts: VecDeque<Answer>,
    pub(crate) calls: Vec<Call>,
    pub(crate) events: Vec<ServiceEvent>,
    pub(crate) lease_is_held: bool,
    pub(crate) leases: usize,
}

/// A conflict, an outage of ARM, and whatever is not known to be final.
pub(crate) fn retriable() -> Failure {
    Failure::Retriable { not_before: None }
}

pub(crate) fn name(text: &str) -> NamespacedName {
    let (namespace, name) = text.split_once('/').unwrap();
    NamespacedName::new(namespace, name)
}

pub(crate) fn uid(service: &str) -> String {
    let mut hex = String::new();
    for byte in service.bytes() {
        write!(hex, "{byte:02x}").unwrap();
    }
    format!("{hex:0<32}")[..32].to_owned()
}

pub(crate) fn service(text: &str, families: &[IpFamily]) -> Service {
    Service {
        uid: uid(text),
        is_local: true,
        ip_families: families.to_vec(),
        name: name(text),
        ..Service::default()
    }
}

pub(crate) fn slice<'a>(text: &str, service: impl Into<Option<&'a str>>, nodes: &[&str]) -> EndpointSliceObject {
    let endpoint = |node: &&str| json!({"nodeName": node, "conditions": {"ready": true}});
    let endpoints: Vec<_> = nodes.iter().map(endpoint).collect();
    let (namespace, name) = text.split_once('/').unwrap();
    let metadata = json!({"namespace": namespace, "name": name, "labels": {SERVICE_NAME_LABEL: service.into()}});
    serde_json::from_value(json!({"metadata": metadata, "endpoints": endpoints})).unwrap()
}

pub(crate) fn node(name: &str, addresses: &[&str]) -> Node {
    Node {
        name: name.into(),
        internal_addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..Node::default()
    }
}

impl World {
    /// Nodes `n1` to `n9` with addresses of both families, and no Service.
    pub(crate) fn with_settings(settings: UpdaterSettings) -> Self {
        let mut world = Self {
            updater: Updater::new(settings),
            now: Instant::now(),
            pools: BTreeMap::new(),
            rules: BTreeMap::new(),
            gets: VecDeque::new(),
            puts: VecDeque::new(),
            calls: Vec::new(),
            events: Vec::new(),
            lease_is_held: false,
            leases: 0,
        };
        for number in 1..=9 {
            let addresses = [format!("10.0.0.{number}"), format!("fd00::{number}")];
            let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
            world.updater.apply_node(node(&format!("n{number}"), &addresses));
        }
        world.complete_lists();
        world
    }

    /// The first lists are complete; there are no Services and slices yet.
    pub(crate) fn complete_lists(&mut self) {
        let nodes = self.updater.nodes().names().map(str::to_owned).collect();
        self.updater.retain_nodes(&nodes);
        self.updater.retain_services(&[].into());
        self.updater.retain_slices(&[].into());
    }

    pub(crate) fn new() -> Self {
        Self::with_settings(UpdaterSettings::default())
    }

    /// The Service `default/web` with the pool `lb/default-web`, which has `n1`, and one slice that has `n2`.
    pub(crate) fn with_pending_update(settings: UpdaterSettings) -> Self {
        let mut world = Self::with_settings(settings);
        world.add_service("default/web", &[], "lb");
        world.set_addresses("lb", "default-web", &["10.0.0.1"]);
        world.set_endpoints(&["n2"]);
        world.observe();
        world
    }

    /// Gives `default/web` a slice with these nodes in place of its first one.
    pub(crate) fn set_endpoints(&mut self, nodes: &[&str]) {
        self.updater.apply_slice(&slice("default/web-1", "web", nodes));
    }

    /// Adds a Service and what cloud-controller-manager makes for it on a load balancer.
    pub(crate) fn add_service(&mut self, text: &str, families: &[IpFamily], load_balancer: &str) {
        let service = service(text, families);
        for family in service.pool_families() {
            let pool = headgate_controller::local_pools::pool_name(&service.name, *family);
            self.add_pool(load_balancer, &pool, &service.uid);
        }
        self.updater.apply_service(&service.into());
    }

    pub(crate) fn add_pool(&mut self, load_balancer: &str, pool: &str, uid: &str) {
        let key = PoolKey::new(load_balancer, pool);
        let document = json!({"name": pool, "properties": {"loadBalancerBackendAddresses": []}});
        self.pools.entry(key.clone()).or_insert(document);
        let rules = self.rules.entry(key).or_default();
        rules.push(format!("{}-TCP-80", base_name(uid).unwrap()));
    }

    pub(crate) fn set_addresses(&mut self, load_balancer: &str, pool: &str, addresses: &[&str]) {
        let entry = |address: &&str| {
            let number = address.rsplit(['.', ':']).next().unwrap();
            json!({"name": format!("n{number}"), "properties": {"ipAddress": address}})
        };
        let entries: Vec<_> = addresses.iter().map(entry).collect();
        let document = self.pools.get_mut(&PoolKey::new(load_balancer, pool)).unwrap();
        document["properties"]["loadBalancerBackendAddresses"] = entries.into();
    }

    pub(crate) fn addresses(&self, load_balancer: &str, pool: &str) -> Vec<String> {
        let document = &self.pools[&PoolKey::new(load_balancer, pool)];
        let entries = document["properties"]["loadBalancerBackendAddresses"]
            .as_array()
            .unwrap();
        let address = |entry: &Value| entry["properties"]["ipAddress"].as_str().unwrap().to_owned();
        let mut addresses: Vec<_> = entries.iter().map(address).collect();
        addresses.sort();
        addresses
    }

    /// The addresses of the pool of `default/web`.
    pub(crate) fn members(&self) -> Vec<String> {
        self.addresses("lb", "default-web")
    }

    /// All load balancers are read.
    pub(crate) fn observe(&mut self) {
        let names: BTreeSet<&str> = self.pools.keys().map(PoolKey::load_balancer).collect();
        let all = names.into_iter().map(|name| self.read(name)).collect();
        self.updater.observe(all);
    }

    /// A load balancer as ARM has it now.
    pub(crate) fn read(&self, load_balancer: &str) -> Observation {
        let is_own = |key: &PoolKey| key.load_balancer() == load_balancer;
        let own = self.pools.iter().filter(|(key, _)| is_own(key));
        let pools: Vec<_> = own.map(|(_, document)| document.clone()).collect();
        let own = self.rules.iter().filter(|(key, _)| is_own(key));
        let id =
            format!("/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/{load_balancer}");
        let rules = own.flat_map(|(key, rules)| {
            let pool = json!({"id": format!("{id}/backendAddressPools/{}", key.pool())});
            let rule = move |name| json!({"name": name, "properties": {"backendAddressPool": pool}});
            rules.iter().map(rule)
        });
        let rules: Vec<_> = rules.collect();
        let document = json!({"id": id, "properties": {"backendAddressPools": pools, "loadBalancingRules": rules}});
        Observation {
            requested_at: self.now,
            view: Arc::new(LoadBalancerView::new(&document).unwrap()),
        }
    }

    /// Begins a tick, and compares all Services at once.
    pub(crate) fn compare_all(&mut self) {
        self.updater.begin_tick(self.now);
        self.updater.compare_some(self.now, usize::MAX);
    }

    /// The parts of a tick before the Lease, at once. Returns whether something is eligible.
    pub(crate) fn prepare_tick(&mut self) -> bool {
        self.compare_all();
        self.updater.is_tick_eligible(self.now)
    }

    /// A tick up to its writes, for which something is eligible.
    pub(crate) fn begin_tick(&mut self) {
        assert!(self.prepare_tick());
        self.updater.drain(self.now);
    }

    pub(crate) fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.tick();
        }
    }

    /// Time passes until the next tick, and the tick.
    pub(crate) fn tick(&mut self) {
        self.now += INTERVAL;
        self.tick_now();
    }

    pub(crate) fn tick_now(&mut self) {
        if !self.prepare_tick() || self.lease_is_held {
            return;
        }
        self.leases += 1;
        self.updater.drain(self.now);
        let pools: Vec<_> = self.updater.due().keys().cloned().collect();
        for pool in pools {
            self.updater.refresh_due(pool.load_balancer());
            if let Some(operation) = self.updater.take_due(&pool) {
                let outcome = self.process(&pool, &operation.members);
                let settlement = self.updater.settle(operation, &outcome, self.now);
                self.events.extend(settlement.event);
            }
        }
        self.observe();
    }

    fn process(&mut self, pool: &PoolKey, desired: &headgate_controller::local_pools::DesiredMembers) -> UpdateOutcome {
        self.calls.push(Call::Get);
        let answer = self.gets.pop_front();
        if let Err(outcome) = self.answer(answer) {
            return outcome;
        }
        let Some(mut document) = self.pools.get(pool).cloned() else {
            return failed(Failure::Missing);
        };
        let nodes = self.updater.nodes();
        let edit = MemberEdit {
            desired,
            nodes: &nodes,
            virtual_network: Some(NETWORK),
        };
        let merged: Merged = merge(&mut document, &edit);
        if let Some(reason) = merged.rejected {
            return UpdateOutcome::Failed {
                failure: Failure::Terminal,
                error: reason.to_string(),
            };
        }
        if !merged.is_changed() {
            return UpdateOutcome::Unchanged;
        }
        self.calls.push(Call::Put);
        let answer = self.puts.pop_front();
        if let Err(outcome) = self.answer(answer) {
            return outcome;
        }
        self.pools.insert(pool.clone(), document);
        UpdateOutcome::Updated
    }

    fn answer(&mut self, answer: Option<Answer>) -> Result<(), UpdateOutcome> {
        match answer {
            None | Some(Answer::Ok) => Ok(()),
            Some(Answer::Fails(failure)) => Err(failed(failure)),
            Some(Answer::Throttled(wait)) => Err(failed(Failure::Retriable {
                not_before: Some(self.now + wait),
            })),
            Some(Answer::GateClosed(wait)) => Err(UpdateOutcome::NotAttempted {
                not_before: Some(self.now + wait),
            }),
            Some(Answer::After(meanwhile, answer)) => {
                meanwhile(self);
                self.answer(Some(*answer))
            }
        }
    }

    /// The reasons of the events since this was last called, with the Services.
    pub(crate) fn take_events(&mut self) -> Vec<(String, EventReason)> {
        let events = std::mem::take(&mut self.events).into_iter();
        events.map(|event| (event.service.to_string(), event.reason)).collect()
    }

    pub(crate) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Successes and failures so far.
    pub(crate) fn outcomes(&self) -> (u64, u64) {
        let counters = self.updater.counters();
        (counters.succeeded, counters.failed)
    }
}

pub(crate) fn throttled(seconds: u64) -> Answer {
    Answer::Throttled(Duration::from_secs(seconds))
}

pub(crate) fn failed(failure: Failure) -> UpdateOutcome {
    UpdateOutcome::Failed {
        failure,
        error: "the error".into(),
    }
}
