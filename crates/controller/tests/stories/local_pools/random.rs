//! Random runs in paused time: slices, Services, Nodes, signals, other writers, ARM, the API server and the leader change and
//! fail at random; leaders are killed at any await. The queue never has more updates than there are pools, and no update is
//! tried more often than its budget. Afterwards every pool has its members, every admin state is right, and foreign entries are
//! as they were. No write drops a member that had endpoints all the time. In half of the runs the guard keeps an entry of each pool in
//! service, whatever is written, and in half of them the load balancers count as large, so that single pools are read between two writes
//! of members.
//!
//! Each run follows from its seed: see `headgate_test_kubernetes::run_seeds`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_azure_emulator::{Emulator, entries_of, pools_in};
use headgate_controller::admin_state::GuardSettings;
use headgate_test_kubernetes::{Fault, Random, run_seeds};
use hyper::header::IF_MATCH;
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::super::assumptions::Assumptions;
use super::super::guard::GUARD;
use super::super::world::{ENFORCE, Leader, SECOND, Spy, address, entries, id_of, load_balancer, pool_path};
use super::cluster::{LocalCluster, Options, set_rule};

const NODES: usize = 4;
const SERVICES: [&str; 3] = ["s0", "s1", "s2"];
/// The pools: load balancer, pool, Service, whether for IPv6. Those of `s2` are on either load balancer.
const POOLS: [(&str, &str, usize, bool); 5] = [
    ("kubernetes", "default-s0", 0, false),
    ("kubernetes", "default-s1", 1, false),
    ("kubernetes", "default-s1-ipv6", 1, true),
    ("kubernetes", "default-s2", 2, false),
    ("second", "default-s2", 2, false),
];
const FOREIGN: [&str; 2] = ["192.168.7.7", "fd99::7"];
const DEFAULT_RUNS: u64 = 15;
/// From the end of all faults to the check: longer than the resync interval and two ticks.
const SETTLE_TIME: Duration = Duration::from_mins(8);
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);
/// Attempts after the first.
const MAX_RETRIES: u64 = 3;
/// How old the observations of a leader may be.
const MAX_OBSERVATION_AGE: Duration = Duration::from_secs(75);

/// For as long another writer uses what it has read, as cloud-controller-manager does.
const MAX_READ_AGE: Duration = Duration::from_mins(2);

/// A write of a pool by headgate, as it was sent.
struct Write {
    at: Instant,
    path: String,
    body: Value,
    has_if_match: bool,
    /// The addresses that were in the pool and are not in the body, unless the pool was changed since the read, which ARM finds by the etag.
    dropped: BTreeSet<String>,
}

/// The writes since they were checked last. Clones share them.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<Write>>>);

impl Writes {
    fn spy(&self, emulator: Emulator) -> Spy {
        let writes = self.clone();
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                writes.0.lock().unwrap().push(Write::new(request, &emulator));
            }
        })
    }
}

impl Write {
    fn new(request: &Request<bytes::Bytes>, emulator: &Emulator) -> Self {
        let path = request.uri().path().to_lowercase();
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let state = emulator.send_control("GET", "state", &Value::Null).unwrap();
        let is_it = |pool: &&Value| pool["id"].as_str().is_some_and(|id| id.eq_ignore_ascii_case(&path));
        let etag = request.headers().get(IF_MATCH).map(|etag| etag.to_str().unwrap());
        let is_read = |pool: &&Value| etag.is_some_and(|etag| pool["etag"] == *etag);
        let before = pools_in(&state).find(is_it).filter(is_read);
        let dropped = before.map(|before| &addresses_of(before) - &addresses_of(&body));
        Self {
            at: Instant::now(),
            path,
            has_if_match: etag.is_some(),
            dropped: dropped.unwrap_or_default(),
            body,
        }
    }
}

fn addresses_of(pool: &Value) -> BTreeSet<String> {
    let addresses = entries_of(pool).filter_map(|entry| entry["properties"]["ipAddress"].as_str());
    addresses.map(str::to_owned).collect()
}

/// What the members of a pool are to be from some time on.
type Members = (Instant, BTreeSet<String>);

struct Run {
    random: Random,
    assumptions: Assumptions,
    cluster: LocalCluster,
    born: u32,
    /// The nodes of each slice, by Service and slice.
    slices: BTreeMap<(usize, u64), Vec<usize>>,
    local: [bool; SERVICES.len()],
    /// Whether `s1` has a pool for IPv4, and for IPv6.
    families: [bool; 2],
    signalled: BTreeSet<usize>,
    /// Whether the guard keeps one entry of each pool in service.
    is_guarded: bool,
    /// The pools that another writer has written from an old read, as long as they may have a `Down` that is not headgate's.
    foreign_writes: BTreeSet<String>,
    writes: Writes,
    /// The members that each of the pools is to have, from when on; none where headgate need not keep them.
    members: [Vec<Members>; POOLS.len()],
    /// From when until when the leader may not know a Node or the place of a Service.
    disturbed: Vec<(Instant, Instant)>,
    /// Nodes that are away.
    away: BTreeSet<usize>,
    /// Pools whose updates may have a fresh budget since this leader has begun, each counted once for each reason.
    budgets: u64,
    led_since: Instant,
    /// Whether the rule of `s2` is on the second load balancer.
    has_moved: bool,
    /// Pools as another writer has read them, and when.
    foreign_reads: Vec<(String, Value, Instant)>,
    steps: Vec<String>,
}

fn with_foreign(v6: bool) -> Value {
    let mut list = entries([1], v6);
    let foreign = FOREIGN[usize::from(v6)];
    list.as_array_mut()
        .unwrap()
        .push(json!({"name": "appliance", "properties": {"ipAddress": foreign, "adminState": "Up", "futureField": 7}}));
    list
}

impl Run {
    async fn start(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let pools = |name: &str| -> Vec<(&str, Value)> {
            let own = POOLS.into_iter().filter(|(load_balancer, ..)| *load_balancer == name);
            own.map(|(_, pool, _, v6)| (pool, with_foreign(v6))).collect()
        };
        let mut load_balancers = ["kubernetes", "second"].map(|name| load_balancer(name, &pools(name)));
        for (number, document) in load_balancers.iter_mut().enumerate() {
            set_rule(document, "default-s2", number == 0);
        }
        let assumptions = Assumptions::draw(seed).without_refusals();
        let is_guarded = random.below(2) == 0;
        let is_large = random.below(2) == 0;
        let cluster = LocalCluster::with(Options {
            nodes: NODES,
            load_balancers: load_balancers.to_vec(),
            azure: assumptions.settings(),
            guard: if is_guarded {
                GUARD.clone()
            } else {
                GuardSettings::DISABLED
            },
            max_kept_bytes: is_large.then_some(0),
            ..Options::default()
        })
        .await;
        let mut run = Self {
            random,
            assumptions,
            cluster,
            born: 1,
            slices: BTreeMap::new(),
            local: [true; SERVICES.len()],
            families: [true; 2],
            signalled: BTreeSet::new(),
            is_guarded,
            foreign_writes: BTreeSet::new(),
            writes: Writes::default(),
            members: Default::default(),
            disturbed: Vec::new(),
            away: BTreeSet::new(),
            budgets: 0,
            led_since: Instant::now(),
            has_moved: false,
            foreign_reads: Vec::new(),
            steps: Vec::new(),
        };
        for (number, name) in SERVICES.into_iter().enumerate() {
            run.cluster.add_service(name).await;
            run.set_slice(number, 0, vec![1]).await;
        }
        run.set_families([true; 2]).await;
        run.cluster.leader.stop().await;
        run.start_leader().await;
        run
    }

    async fn start_leader(&mut self) {
        self.born += 1;
        let (client, line) = self.cluster.fake.client();
        line.set(Fault::None);
        let name = format!("leader-{}", self.born);
        let spy = self.writes.spy(self.cluster.world.emulator.clone());
        self.cluster.leader = Leader::start_with_spy(&self.cluster.world, client, &name, ENFORCE, |_| spy).await;
        (self.budgets, self.led_since) = (0, Instant::now());
    }

    /// Notes which members the pools are to have from now on.
    fn note_members(&mut self) {
        for (number, (load_balancer, _, service, v6)) in POOLS.into_iter().enumerate() {
            let is_kept = self.local[service] && self.has_family(service, v6) && self.is_used(load_balancer, service);
            let nodes = if is_kept {
                self.nodes_of(service)
            } else {
                BTreeSet::new()
            };
            let present = nodes.difference(&self.away).map(|node| address(*node, v6)).collect();
            self.members[number].push((Instant::now(), present));
        }
    }

    /// The nodes in the slices of a Service.
    fn nodes_of(&self, service: usize) -> BTreeSet<usize> {
        let slices = self.slices.iter().filter(|((of, _), _)| *of == service);
        slices.flat_map(|(_, nodes)| nodes.iter().copied()).collect()
    }

    fn has_family(&self, service: usize, v6: bool) -> bool {
        service != 1 || self.families[usize::from(v6)]
    }

    /// What a pool was to have all the time that the observations of a leader may be old.
    fn lasting_members(&self, pool: usize, at: Instant) -> BTreeSet<String> {
        let from = at - MAX_OBSERVATION_AGE;
        let known = self.members[pool].iter().filter(|(since, _)| *since <= at);
        let (before, during): (Vec<_>, Vec<_>) = known.partition(|(since, _)| *since <= from);
        let Some((_, first)) = before.last() else {
            return BTreeSet::new();
        };
        during
            .into_iter()
            .fold(first.clone(), |lasting, (_, members)| &lasting & members)
    }

    fn note(&mut self, text: String) {
        self.steps.push(text);
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(end as u64)).unwrap()
    }

    fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.random.below(end))
    }

    async fn set_slice(&mut self, service: usize, slice: u64, nodes: Vec<usize>) {
        self.note(format!("slice {service}/{slice}: {nodes:?}"));
        let name = format!("{}-{slice}", SERVICES[service]);
        self.slices.insert((service, slice), nodes.clone());
        self.note_members();
        self.cluster.set_slice(SERVICES[service], &name, &nodes).await;
        self.budgets += POOLS.iter().filter(|(_, _, of, _)| *of == service).count() as u64;
    }

    /// Gives `s1` these families: IPv4, IPv6.
    async fn set_families(&mut self, families: [bool; 2]) {
        self.families = families;
        self.note_members();
        let names = ["IPv4", "IPv6"].into_iter().zip(families);
        let names: Vec<_> = names.filter_map(|(name, has)| has.then_some(name)).collect();
        self.note(format!("service 1: {names:?}"));
        self.cluster
            .patch_service("s1", &json!({"spec": {"ipFamilies": names}}))
            .await;
        self.budgets += 2;
    }

    /// Deletes a Service and creates another one of its name, which is `Local`.
    async fn replace_service(&mut self) {
        let (service, gone) = (self.below(3), self.millis(40_000));
        self.note(format!("service {service} is replaced, gone for {gone:?}"));
        self.local[service] = false;
        self.note_members();
        self.cluster.delete_service(SERVICES[service]).await;
        sleep(gone).await;
        self.cluster.add_service(SERVICES[service]).await;
        self.local[service] = true;
        self.note_members();
        self.budgets += 2;
        if service == 1 {
            self.set_families(self.families).await;
        }
    }

    async fn step(&mut self) {
        self.assumptions.step(&self.cluster.world, &mut self.random);
        match self.random.below(23) {
            0..=5 => {
                let (service, slice, count) = (self.below(3), self.random.below(2), self.below(NODES + 1));
                let nodes = (0..count).map(|_| self.below(NODES) + 1).collect();
                self.set_slice(service, slice, nodes).await;
            }
            6 => {
                let service = self.below(3);
                if self.slices.remove(&(service, 1)).is_some() {
                    self.note(format!("slice {service}/1 is deleted"));
                    self.note_members();
                    self.cluster.delete_slice(&format!("{}-1", SERVICES[service])).await;
                }
            }
            7 => self.change_policy().await,
            8 | 9 => self.change_signal().await,
            10 => self.replace_node().await,
            11..=13 => self.arm_fault(),
            14 | 15 => self.foreign_write().await,
            16 => self.move_service().await,
            17 => self.hold_lease().await,
            18 => self.change_leader().await,
            19 => self.replace_service().await,
            20 => {
                let families = [[true, true], [true, false], [false, true]][self.below(3)];
                self.set_families(families).await;
            }
            21 => {
                let (load_balancer, pool, ..) = POOLS[self.below(POOLS.len())];
                self.note(format!("ARM refuses every write of {pool} by headgate from now on"));
                let path = format!("/{load_balancer}/backendAddressPools/{pool}$");
                let rule = json!({"match": {"method": "PUT", "path": path, "caller": "headgate"},
                    "action": {"answer": {"status": 409}}});
                self.cluster.control("POST", "faults", &rule);
            }
            _ => {
                let away = self.millis(15_000);
                self.note(format!("the API server restarts, away {away:?}"));
                self.cluster.fake.restart(away);
                sleep(away + SECOND).await;
            }
        }
        let longest = [0, 30, 900, 5000, 40_000][self.below(5)];
        let wait = self.millis(longest + 1);
        sleep(wait).await;
        let depth = self.cluster.metric("queue_depth");
        assert!(depth <= POOLS.len() as u64, "{depth} updates are queued");
        self.check_budget();
    }

    /// An update has a fresh budget when its term begins, when its members or its Service change, and after each resync.
    fn check_budget(&self) {
        let resyncs = self.led_since.elapsed().as_secs() / RESYNC_INTERVAL.as_secs();
        let budgets = self.budgets + POOLS.len() as u64 * (1 + resyncs);
        let retries = self.cluster.metric("retries_total");
        assert!(
            retries <= MAX_RETRIES * budgets,
            "{retries} retries of {budgets} updates"
        );
    }

    /// No PUT of headgate drops a member that had endpoints all the time, or leaves a pool without an entry in service while the guard
    /// can keep one.
    fn check_writes(&mut self) {
        let writes = std::mem::take(&mut *self.writes.0.lock().unwrap());
        for Write {
            at,
            path,
            body,
            has_if_match,
            dropped,
        } in writes
        {
            assert!(has_if_match, "{path} is written without If-Match: {body}");
            let is_it = |pool: &(&str, &str, usize, bool)| pool_path(pool.0, pool.1).to_lowercase() == path;
            let number = POOLS.iter().position(is_it).unwrap();
            let (load_balancer, pool, service, v6) = POOLS[number];
            let lost = &self.lasting_members(number, at) & &dropped;
            assert!(lost.is_empty(), "{pool} {v6} loses {lost:?}: {body}");
            let is_disturbed = self.disturbed.iter().any(|(from, until)| (*from..*until).contains(&at));
            let is_foreign = self.foreign_writes.contains(&path);
            if !self.is_guarded || is_disturbed || is_foreign || !self.is_used(load_balancer, service) {
                continue;
            }
            let own = entries_of(&body).filter(|entry| entry["name"] != "appliance");
            let states: Vec<_> = own.map(|entry| &entry["properties"]["adminState"]).collect();
            let is_empty = states.is_empty() || states.iter().any(|state| **state != "Down");
            assert!(is_empty, "{pool} {v6} without an entry in service: {body}");
        }
        let state = self.cluster.control("GET", "state", &Value::Null);
        let has_down = |pool: &Value| entries_of(pool).any(|entry| entry["properties"]["adminState"] == "Down");
        let with_down = pools_in(&state).filter(|pool| has_down(pool));
        let with_down: BTreeSet<_> = with_down
            .map(|pool| pool["id"].as_str().unwrap().to_lowercase())
            .collect();
        self.foreign_writes.retain(|path| with_down.contains(path));
    }

    fn disturb_since(&mut self, from: Instant) {
        self.disturbed.push((from, Instant::now() + MAX_OBSERVATION_AGE));
    }

    async fn change_policy(&mut self) {
        let service = self.below(3);
        self.local[service] = !self.local[service];
        self.note_members();
        self.budgets += 2;
        let policy = if self.local[service] { "Local" } else { "Cluster" };
        self.note(format!("service {service}: {policy}"));
        let patch = json!({"spec": {"externalTrafficPolicy": policy}});
        self.cluster.patch_service(SERVICES[service], &patch).await;
    }

    async fn change_signal(&mut self) {
        let node = self.below(NODES) + 1;
        let keys: &[&str] = if self.signalled.remove(&node) {
            &[]
        } else {
            self.signalled.insert(node);
            &["ToBeDeletedByClusterAutoscaler"]
        };
        self.note(format!("node {node}: {keys:?}"));
        self.cluster.world.taint(node, keys).await;
    }

    async fn replace_node(&mut self) {
        let (node, gone) = (self.below(NODES) + 1, self.millis(40_000));
        self.note(format!("node {node} is replaced, gone for {gone:?}"));
        let from = Instant::now();
        self.away.insert(node);
        self.note_members();
        self.cluster.remove_node(node).await;
        sleep(gone).await;
        self.cluster.add_node(node).await;
        self.signalled.remove(&node);
        self.away.remove(&node);
        self.note_members();
        self.disturb_since(from);
        // The members of each pool change when it leaves and when it is back.
        self.budgets += 2 * POOLS.len() as u64;
    }

    fn arm_fault(&mut self) {
        let retry_after = 1 + self.random.below(60);
        let action = match self.random.below(8) {
            0 => json!({"answer": {"status": 409}}),
            1 => json!({"answer": {"status": 412}}),
            2 => json!({"answer": {"status": 429, "retryAfter": retry_after}}),
            3 => json!({"answer": {"status": 503}}),
            4 => json!({"answer": {"status": 403}}),
            5 => {
                json!({"operation": "fail", "error": {"code": "Conflict", "message": "m", "details": []}, "effect": "lost"})
            }
            6 => json!({"cut": "after"}),
            _ => json!({"stall": "20s"}),
        };
        let (path, times) = (
            ["/loadBalancers/", "/backendAddressPools/"][self.below(2)],
            1 + self.below(4),
        );
        let method = if path == "/loadBalancers/" { "GET|PUT" } else { "PUT" };
        // An operation belongs to a write.
        let method = if action["operation"].is_null() { method } else { "PUT" };
        self.note(format!("ARM: {method} {path} {times} times {action}"));
        let rule =
            json!({"match": {"method": method, "path": path, "caller": "headgate"}, "times": times, "action": action});
        self.cluster.control("POST", "faults", &rule);
    }

    /// Another writer's blind PUT of a pool, from a read that may be old, under the shared Lease.
    async fn foreign_write(&mut self) {
        self.foreign_reads
            .retain(|(.., read_at)| read_at.elapsed() < MAX_READ_AGE);
        if self.foreign_reads.is_empty() || self.random.below(2) == 0 {
            let (load_balancer, pool, ..) = POOLS[self.below(POOLS.len())];
            let path = pool_path(load_balancer, pool);
            self.note(format!("another writer reads {pool}"));
            let document = self.cluster.get(&path).await;
            self.foreign_reads.push((path, document, Instant::now()));
            return;
        }
        let which = self.below(self.foreign_reads.len());
        let (path, document, _) = self.foreign_reads.remove(which);
        self.note(format!("another writer writes {path}"));
        if self.cluster.take_arm_lease().await {
            let answer = self.cluster.put(&path, &document, None).await;
            assert!(answer.status().is_success(), "{answer:?}");
            self.foreign_writes.insert(path.to_lowercase());
            self.cluster.release_arm_lease().await;
        }
    }

    /// cloud-controller-manager moves `s2` to the other load balancer; its old pool stays there as an orphan.
    async fn move_service(&mut self) {
        if !self.cluster.take_arm_lease().await {
            return;
        }
        let from = Instant::now();
        self.has_moved = !self.has_moved;
        self.note_members();
        self.budgets += 2;
        self.note(format!("s2 moves: {}", self.has_moved));
        for (name, has_rule) in [("kubernetes", !self.has_moved), ("second", self.has_moved)] {
            let mut document = self.cluster.get(&id_of(name)).await;
            set_rule(&mut document, "default-s2", has_rule);
            self.cluster.other("PUT", &id_of(name), &document).await;
            sleep(5 * SECOND).await;
        }
        self.cluster.release_arm_lease().await;
        self.note_members();
        self.disturb_since(from);
    }

    async fn hold_lease(&mut self) {
        let held = self.millis(60_000);
        self.note(format!("the shared Lease is held by another writer for {held:?}"));
        if self.cluster.take_arm_lease().await {
            sleep(held).await;
            self.cluster.release_arm_lease().await;
        }
    }

    async fn change_leader(&mut self) {
        if self.random.below(2) == 0 {
            // Each yield lets the leader's tasks come to their next await.
            let yields = self.random.below(300);
            self.note(format!("the leader is killed after {yields} yields"));
            for _ in 0..yields {
                yield_now().await;
            }
            self.cluster.leader.kill();
        } else {
            self.note("the leader is stopped".to_owned());
            self.cluster.leader.stop().await;
        }
        self.start_leader().await;
    }

    /// Ends all faults and checks the final state.
    async fn end(&mut self) {
        self.cluster.clear_faults();
        sleep(SETTLE_TIME).await;
        self.check_writes();
        for (load_balancer, pool, service, v6) in POOLS {
            let document = self.cluster.pool(load_balancer, pool).await;
            self.check_pool(&document, service, v6, self.is_used(load_balancer, service));
        }
        assert_eq!(self.cluster.metric("queue_depth"), 0);
        let puts = self.cluster.puts();
        let most = 40 + 30 * self.steps.len();
        assert!(puts <= most, "{puts} writes, at most {most} expected");
        self.cluster.world.check_puts_of_each_minute();
        self.cluster.leader.stop().await;
    }

    /// The admin states of a pool's nodes: `Down` with a signal, but for the one that the guard keeps in service.
    fn check_admin_states(&self, states: &BTreeMap<&str, &str>, v6: bool, is_used: bool, document: &Value) {
        let mut kept = 0;
        let mut others = 0;
        for (address, state) in states {
            let node = (1..=NODES).find(|node| super::super::world::address(*node, v6) == **address);
            let is_signalled = self.signalled.contains(&node.unwrap());
            others += usize::from(!is_signalled);
            kept += usize::from(is_signalled && *state == "None");
            // In an orphan, headgate sets nothing `Down` and gives back what it has set, once the signal ends.
            let may_be_none = !is_signalled || !is_used || self.is_guarded;
            let is_right = if is_signalled {
                *state == "Down" || may_be_none && *state == "None"
            } else {
                *state == "None"
            };
            assert!(is_right, "{address} in {document}");
        }
        if !self.is_guarded || !is_used || states.is_empty() {
            return;
        }
        let expected = usize::from(others == 0);
        // A `Down` that is not headgate's is never lifted.
        let may_be_foreign = self
            .foreign_writes
            .contains(&document["id"].as_str().unwrap().to_lowercase());
        let is_right = kept == expected || may_be_foreign && kept == 0;
        assert!(is_right, "{kept} held back, {expected} expected in {document}");
    }

    fn is_used(&self, load_balancer: &str, service: usize) -> bool {
        service != 2 || self.has_moved == (load_balancer == "second")
    }

    fn check_pool(&self, document: &Value, service: usize, v6: bool, is_used: bool) {
        let list = document["properties"]["loadBalancerBackendAddresses"]
            .as_array()
            .unwrap();
        let mut states: BTreeMap<&str, &str> = BTreeMap::new();
        for entry in list {
            let (address, state) = (&entry["properties"]["ipAddress"], &entry["properties"]["adminState"]);
            let former = states.insert(address.as_str().unwrap(), state.as_str().unwrap_or("None"));
            assert_eq!(former, None, "an address twice in {document}");
        }
        let foreign = list.iter().find(|entry| entry["name"] == "appliance").unwrap();
        assert_eq!(foreign["properties"]["futureField"], 7, "{document}");
        let foreign = FOREIGN[usize::from(v6)];
        assert_eq!(states.remove(foreign), Some("Up"), "{document}");
        self.check_admin_states(&states, v6, is_used, document);
        if !is_used {
            return;
        }
        if self.local[service] && self.has_family(service, v6) {
            let expected: BTreeSet<String> = self.nodes_of(service).iter().map(|node| address(*node, v6)).collect();
            let actual: BTreeSet<String> = states.keys().map(|address| (*address).to_owned()).collect();
            assert_eq!(actual, expected, "{document}");
        }
    }
}

async fn run(seed: u64) {
    let mut run = Run::start(seed).await;
    let steps = 5 + run.random.below(30);
    let all = async {
        for _ in 0..steps {
            run.step().await;
            run.check_writes();
        }
        run.end().await;
    };
    let ended = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(all)).await;
    if let Err(panic) = ended {
        println!("{:?}\n{}", run.assumptions.settings(), run.steps.join("\n"));
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn random_events_lose_no_member_and_converge() {
    run_seeds("local pools", DEFAULT_RUNS, run);
}
