//! Small clusters and load balancers for the tables of this module.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, NetworkInterfaceId};
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{NodeHold, SignalRules};
use headgate_core::service::{NamespacedName, Service};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::last_reads::PlannedLoadBalancer;
use super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerStage};
use super::plan::{Plan, PlanInputs, Policy, plan};
use super::planner::LoadBalancerStatus;
use super::rule_guard::HeldFor;
use super::settings::{AdminStateMode, ForeignDown};
use super::target_states::TargetStates;
use crate::local_pools::fixtures::slice;
use crate::pool::fixtures::LOAD_BALANCER as ID;
pub(super) use crate::pool::fixtures::{pool_id, refused};
use crate::pool::{ClusterNode, EntryKey, InterfaceCache, Listing, LoadBalancerView, Taint};
use crate::service_index::ServiceIndex;

pub(super) const ENFORCE: Policy = Policy {
    mode: AdminStateMode::Enforce,
    foreign_down: ForeignDown::Keep,
};
static INTERFACES: LazyLock<InterfaceCache> = LazyLock::new(InterfaceCache::default);
static NONE_HELD: HeldEntries = HeldEntries::new();
static UNGUARDED: GuardSettings = GuardSettings::DISABLED;
pub(super) const DRAIN: &str = "drain";
pub(super) const OUT: &str = "node.kubernetes.io/out-of-service";

fn rules() -> SignalRules {
    SignalRules::new([DRAIN, OUT], &[])
}

pub(super) fn node(number: u8, taints: &[&str]) -> ClusterNode {
    let node = ClusterNode {
        name: format!("n{number}"),
        uid: format!("u{number}"),
        addresses: vec![format!("10.0.0.{number}").parse().unwrap()],
        taints: taints.iter().map(|key| Taint::new(key, "NoExecute")).collect(),
        ready: true,
        ends: taints.contains(&OUT),
        ..ClusterNode::default()
    };
    node.with_signals(&rules())
}

/// A cluster and the pool `p`, whose plans are made and written as the leader does.
pub(super) struct Cluster {
    pub(super) nodes: Vec<ClusterNode>,
    /// By node: the admin state in the pool.
    pub(super) states: Vec<&'static str>,
    /// A probe of each rule; without any, the pool has one rule with a probe.
    pub(super) probes: &'static [(&'static str, u16)],
    pub(super) ledger: Ledger,
    pub(super) held: HeldEntries,
    pub(super) guard: GuardSettings,
    pub(super) mode: AdminStateMode,
    /// What the leader has observed.
    pub(super) targets: TargetStates,
    pub(super) now: Moment,
}

impl Cluster {
    pub(super) fn new(states: &[&'static str], guard: GuardSettings) -> Self {
        let numbers = 1..=u8::try_from(states.len()).unwrap();
        Self {
            nodes: numbers.map(|number| node(number, &[])).collect(),
            states: states.to_vec(),
            probes: &[],
            ledger: Ledger::default(),
            held: HeldEntries::new(),
            guard,
            mode: AdminStateMode::Enforce,
            targets: TargetStates::default(),
            now: Clock::System.now(),
        }
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        self.now.mono += Duration::from_secs(seconds);
        self.now.wall += Duration::from_secs(seconds);
    }

    fn view(&self) -> LoadBalancerView {
        let entries: Vec<_> = (1_u8..).zip(self.states.iter().copied()).collect();
        if self.probes.is_empty() {
            view(&[("p", &entries, true)])
        } else {
            probed_view(&entries, self.probes)
        }
    }

    pub(super) fn plan(&mut self) -> Plan {
        for node in &self.nodes {
            self.targets.apply(node.clone(), self.now);
        }
        let plan = plan(
            &self.view(),
            &PlanInputs {
                policy: Policy {
                    mode: self.mode,
                    ..ENFORCE
                },
                guard: GuardInputs {
                    held: &self.held,
                    ..guarded_by(&self.guard)
                },
                ..plan_inputs(&self.targets, &self.ledger, self.now)
            },
        );
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        self.held = held.map(|entry| (entry.pool.clone(), entry.node.uid.clone())).collect();
        // The record of a hold that has ended is removed.
        for node in &mut self.nodes {
            let is_held = self.held.iter().any(|(_, uid)| *uid == node.uid);
            node.hold = node.hold.take().filter(|_| is_held);
        }
        plan
    }

    /// Writes a plan. Returns the numbers of the nodes that it sets `Down`.
    pub(super) fn write(&mut self, plan: &Plan) -> Vec<usize> {
        write(plan, &mut self.states, &mut self.ledger, self.now.wall)
    }
}

/// Writes what a plan changes in the pool `p`, and records it. Returns the numbers of the nodes that it sets `Down`.
pub(super) fn write(plan: &Plan, states: &mut [&'static str], ledger: &mut Ledger, since: Timestamp) -> Vec<usize> {
    let mut down = Vec::new();
    for change in plan.edits.iter().flat_map(|edit| &edit.admin_states) {
        let stage = if change.to == AdminState::Down {
            down.push(change.index + 1);
            LedgerStage::Down
        } else {
            LedgerStage::Restored
        };
        states[change.index] = change.to.as_str();
        let entry = LedgerEntry { stage, since };
        ledger.apply(LedgerChange::new(&pool_id("p"), &change.key, Some(entry)));
    }
    down
}

pub(super) fn target_states(nodes: &[ClusterNode], now: Moment) -> TargetStates {
    let mut states = TargetStates::default();
    for node in nodes {
        states.apply(node.clone(), now);
    }
    states
}

/// What a plan of a configured load balancer is made from, without a guard.
pub(super) fn plan_inputs<'a>(targets: &'a TargetStates, ledger: &'a Ledger, now: Moment) -> PlanInputs<'a> {
    PlanInputs {
        interfaces: &INTERFACES,
        targets,
        ledger,
        policy: ENFORCE,
        guard: guarded_by(&UNGUARDED),
        is_configured: true,
        now,
    }
}

/// A guard that holds nothing back yet and knows no Services.
pub(super) fn guarded_by(settings: &GuardSettings) -> GuardInputs<'_> {
    GuardInputs {
        settings,
        held: &NONE_HELD,
        services: None,
    }
}

/// A pool's name, its entries, and whether its rule has a probe.
pub(super) type PoolFixture<'a> = (&'a str, &'a [(u8, &'a str)], bool);

/// A load balancer with these pools.
pub(super) fn view(pools: &[PoolFixture<'_>]) -> LoadBalancerView {
    let entries: Vec<_> = pools.iter().map(|(name, entries, _)| (*name, *entries)).collect();
    let rule =
        |(name, _, is_probed): &PoolFixture<'_>| (name.to_string(), name.to_string(), is_probed.then_some(("Tcp", 80)));
    LoadBalancerView::new(&load_balancer(&entries, &pools.iter().map(rule).collect::<Vec<_>>())).unwrap()
}

/// A rule's name, its pool, and the protocol and port of its probe.
type RuleFixture<'a> = (String, String, Option<(&'a str, u16)>);

/// An entry is the number of its node and its admin state, `-` for no admin state.
fn load_balancer(pools: &[(&str, &[(u8, &str)])], rules: &[RuleFixture<'_>]) -> Value {
    let entry = |(number, state): &(u8, &str)| {
        let mut entry = json!({"name": format!("n{number}"), "properties": {"ipAddress": format!("10.0.0.{number}")}});
        if *state != "-" {
            entry["properties"]["adminState"] = json!(state);
        }
        entry
    };
    let pool = |(name, entries): &(&str, &[(u8, &str)])| {
        let entries: Vec<_> = entries.iter().map(entry).collect();
        json!({"name": name, "properties": {"loadBalancerBackendAddresses": entries}})
    };
    let inside = |kind: &str, name: &str| json!({"id": format!("{ID}/{kind}/{name}")});
    let rule = |(name, pool, probe): &RuleFixture<'_>| {
        let mut rule = json!({"name": name, "properties": {"backendAddressPool": inside("backendAddressPools", pool)}});
        if probe.is_some() {
            rule["properties"]["probe"] = inside("probes", name);
        }
        rule
    };
    let probe = |(name, _, probe): &RuleFixture<'_>| {
        let (protocol, port) = (*probe)?;
        let path = if protocol == "HTTP" {
            "/healthz/services/default/web"
        } else {
            "/healthz"
        };
        Some(json!({"name": name, "properties": {"protocol": protocol, "port": port, "requestPath": path}}))
    };
    json!({"id": ID, "properties": {
        "probes": rules.iter().filter_map(probe).collect::<Vec<_>>(),
        "backendAddressPools": pools.iter().map(pool).collect::<Vec<_>>(),
        "loadBalancingRules": rules.iter().map(rule).collect::<Vec<_>>()}})
}

/// A load balancer of the cluster that was planned.
pub(super) fn planned(status: LoadBalancerStatus) -> PlannedLoadBalancer {
    PlannedLoadBalancer {
        id: pool_id("p").load_balancer().clone(),
        is_managed: true,
        status,
    }
}

/// The status of a load balancer with these entries, planned from these target states.
pub(super) fn status(plan: Plan, targets: &TargetStates) -> LoadBalancerStatus {
    LoadBalancerStatus {
        planned_generation: Some(targets.generation),
        covers_interfaces: true,
        pending_changes: plan.change_count(),
        unsent_changes: plan.change_count(),
        entries: plan.entries.into(),
        pools: plan.pools,
        ..LoadBalancerStatus::default()
    }
}

/// A list that was received when it was requested, and shows these load balancers.
pub(super) fn listing(at: Instant, shown: &[&LoadBalancerView]) -> Listing {
    let shown = shown.iter().map(|view| (view.id.clone(), Arc::new((*view).clone())));
    Listing {
        requested_at: Some(at),
        received_at: Some(at),
        load_balancers: shown.collect(),
        ..Listing::default()
    }
}

/// Held because no other entry serves this Service.
pub(super) fn held_for(service: &str) -> HeldFor {
    HeldFor {
        services: [service.to_owned()].into(),
        ..HeldFor::default()
    }
}

/// Held until others are `Down`.
pub(super) fn held_by_brake() -> HeldFor {
    HeldFor {
        brake: true,
        ..HeldFor::default()
    }
}

/// Held by `adminState.minimumInService`.
pub(super) fn held_by_minimum() -> HeldFor {
    HeldFor {
        minimum: true,
        ..HeldFor::default()
    }
}

/// A hold that an agent obeys, in these pools and for these signals.
pub(super) fn hold(pools: &[&str], signals: &[&str]) -> NodeHold {
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    NodeHold {
        pools: set(pools),
        probes_headgate: true,
        signals: set(signals),
        ..NodeHold::default()
    }
}

/// The result of a lookup, and whether it leaves the interface's Node unknown.
pub(super) type Lookup = (Option<Result<Option<String>, ArmError>>, bool);

pub(super) fn lookups() -> [Lookup; 6] {
    [
        (None, true),
        (Some(Err(ArmError::DeadlineExceeded)), true),
        (Some(Err(refused(429, "TooManyRequests", Some(60)))), true),
        (Some(Err(refused(403, "AuthorizationFailed", None))), false),
        (Some(Ok(None)), false),
        (Some(Ok(Some("/vm".to_owned()))), false),
    ]
}

/// Adds a network interface to the first pool. Returns what its lookup leaves in the cache.
pub(super) fn add_interface(
    view: &mut LoadBalancerView,
    lookup: Option<Result<Option<String>, ArmError>>,
) -> InterfaceCache {
    let id = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/i/ipConfigurations/c";
    let (id, mut interfaces) = (NetworkInterfaceId::parse(id).unwrap(), InterfaceCache::default());
    Arc::make_mut(&mut view.pools[0]).interfaces.push(id.clone());
    if let Some(result) = lookup {
        interfaces.store(id, Instant::now(), result);
    }
    interfaces
}

pub(super) fn ledger_change(pool: &str, number: u8, stage: LedgerStage) -> LedgerChange {
    recorded(pool, number, stage, Timestamp::UNIX_EPOCH)
}

pub(super) fn recorded(pool: &str, number: u8, stage: LedgerStage, since: Timestamp) -> LedgerChange {
    let key = EntryKey::from_text(&format!("10.0.0.{number}"));
    LedgerChange::new(&pool_id(pool), &key, Some(LedgerEntry::new(stage, since)))
}

pub(super) fn ledger(entries: &[(&str, u8, LedgerStage)]) -> Ledger {
    let mut ledger = Ledger::default();
    for (pool, number, stage) in entries {
        ledger.apply(ledger_change(pool, *number, *stage));
    }
    ledger
}

/// The index of Services with these ports, and of the nodes that serve each. The UID of a Service is its name.
pub(super) fn local_services(services: &[(&str, u16, &[u8])], now: Moment) -> ServiceIndex {
    let mut index = ServiceIndex::default();
    let name = |name: &str| NamespacedName::new("default", name);
    for (service, port, nodes) in services {
        index.apply_service(&Service {
            uid: (*service).to_owned(),
            health_check_port: *port,
            name: name(service),
            ..Service::default()
        });
        // One slice for each node: the first one serves longest.
        for (order, number) in (0..).zip(*nodes) {
            let slice = slice(
                &format!("{service}-{number}"),
                Some(service),
                &[(&format!("n{number}"), None)],
            );
            index.apply_slice(&slice, now.mono + Duration::from_secs(order));
        }
    }
    let services: HashSet<_> = services.iter().map(|(service, ..)| name(service)).collect();
    index.retain_services(&services);
    let slices = index.slice_names();
    index.retain_slices(&slices);
    index
}

/// A load balancer with the pool `p` of these entries, and a rule for each probe: a protocol and a port.
pub(super) fn probed_load_balancer(entries: &[(u8, &str)], probes: &[(&str, u16)]) -> Value {
    let rule = |probe: &(_, u16)| (format!("{}-{}", probe.0, probe.1), "p".to_owned(), Some(*probe));
    load_balancer(&[("p", entries)], &probes.iter().map(rule).collect::<Vec<_>>())
}

pub(super) fn probed_view(entries: &[(u8, &str)], probes: &[(&str, u16)]) -> LoadBalancerView {
    LoadBalancerView::new(&probed_load_balancer(entries, probes)).unwrap()
}
