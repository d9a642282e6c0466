//! Random runs in paused time: Nodes, other writers, ARM, the API server and the leaders change and fail at random. The
//! invariants are checked at each write and at the end.
//!
//! Each run follows from its seed: see `headgate_test_kubernetes::run_seeds`.

use std::time::Duration;

use headgate_controller::admin_state::GuardSettings;
use headgate_core::node::{KeyMatcher, SignalMatcher};
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::leader::Term;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault, Random, run_seeds};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::assumptions::{Assumptions, node_of_entry};
use super::guard::GUARD;
use super::invariants::{Invariants, check_final_state};
use super::world::{ENFORCE, Leader, SECOND, WallOffset, World, address, dual_stack, scope};

/// Nodes that may get signals.
const NODES: usize = 4;
/// Nodes that get one only with the whole cluster.
const QUIET_NODES: usize = 2;
const POOLS: [(&str, &str); 3] = [
    ("kubernetes", "kubernetes"),
    ("kubernetes", "kubernetes-IPv6"),
    ("kubernetes-internal", "local"),
];
/// Runs unless `HEADGATE_STORIES` says otherwise.
pub(crate) const DEFAULT_RUNS: u64 = 40;
/// `adminState.minimumInService` of a run.
const MINIMUMS: [IntOrPercent; 4] = [
    IntOrPercent::Int(1),
    IntOrPercent::Int(2),
    IntOrPercent::Percent(34),
    IntOrPercent::Int(0),
];
/// How long a cordon must last, for admin states and for agents.
const CORDON_LASTS: Duration = Duration::from_secs(20);
/// The signal that only agents follow.
pub(crate) const PROBE_ONLY_LABEL: &str = "example.com/probe-only";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// By how far the wall clocks of leaders are ahead, in milliseconds.
const WALL_OFFSETS: [i64; 8] = [0, 0, 1900, 2100, -2100, 45_000, -45_000, 3_600_000];
/// From the end of all faults to the check: longer than the longest backoff after a terminal error.
const SETTLE_TIME: Duration = Duration::from_mins(6);
/// From a signal to `Down` while nothing fails, without the operation of another pool of the load balancer.
const DOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The node of a pool's entry.
fn node_of(entry: &Value) -> Option<usize> {
    node_of_entry(entry["name"].as_str()?)
}

/// The number of a Node that may get signals.
fn any_node(random: &mut Random) -> usize {
    usize::try_from(random.below(NODES as u64)).unwrap() + 1
}

/// A leader, its connection to the API server, and its wall clock.
struct RunningLeader {
    leader: Leader,
    line: ClientFaults,
    wall: WallOffset,
}

/// One run with random events from a seed.
struct RandomRun {
    random: Random,
    fake: FakeApi,
    world: World,
    invariants: Invariants,
    leaders: Vec<RunningLeader>,
    born: u32,
    assumptions: Assumptions,
    /// Whether the whole cluster had a signal. From then on a `Down` on a quiet node may be headgate's.
    had_cluster_signal: bool,
    /// Reads of another writer, which it may write back: path, document, time.
    foreign_reads: Vec<(String, Value, Instant)>,
    /// An earlier text of the ledger.
    ledger_backup: Option<String>,
    /// What happened so far, for the message of a failure.
    steps: Vec<String>,
}

impl RandomRun {
    async fn start(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let fake = FakeApi::default();
        let clock = fake.clock();
        let all = || 1..=NODES + QUIET_NODES;
        let assumptions = Assumptions::draw(seed);
        let mut resources = vec![dual_stack(NODES + QUIET_NODES)];
        resources.extend(assumptions.internal("local", &[1, 2, 5]));
        let mut settings = assumptions.settings();
        settings.page_size = *random.pick(&[1, 100]);
        let (client, _) = fake.client();
        let mut world = World::new(client, clock, &resources, settings);
        let cordon = SignalMatcher::Unschedulable(CORDON_LASTS);
        world.rules.matchers.push(cordon.clone());
        world.guard = GuardSettings {
            minimum_in_service: *random.pick(&MINIMUMS),
            ..GUARD.clone()
        };
        let label = KeyMatcher {
            key: PROBE_ONLY_LABEL.to_owned(),
            value: None,
        };
        let matchers = [cordon, SignalMatcher::Label(label)];
        world.guard.health_rules.matchers.extend(matchers);
        for node in all() {
            world.add_node(node).await;
        }
        let invariants = Invariants::new(world.emulator.clone(), world.guard.minimum_in_service);
        for node in all() {
            invariants.set_taints(node, &[]);
        }
        let mut run = Self {
            random,
            fake,
            world,
            invariants,
            leaders: Vec::new(),
            born: 0,
            assumptions,
            had_cluster_signal: false,
            foreign_reads: Vec::new(),
            ledger_backup: None,
            steps: Vec::new(),
        };
        run.start_leader().await;
        run.start_leader().await;
        sleep(20 * SECOND).await;
        run
    }

    async fn start_leader(&mut self) {
        let (client, line) = self.fake.client();
        self.born += 1;
        let name = format!("leader-{}", self.born);
        let invariants = self.invariants.clone();
        // Its clock is its own.
        let wall = WallOffset::default();
        let clock = wall.of(&self.world.clock);
        let right = std::mem::replace(&mut self.world.clock, clock);
        let leader = Leader::start_with_spy(&self.world, client, &name, ENFORCE, |terms| invariants.spy(terms)).await;
        self.world.clock = right;
        self.leaders.push(RunningLeader { leader, line, wall });
    }

    fn note(&mut self, text: impl Into<String>) {
        self.steps.push(text.into());
    }

    /// Performs one random event.
    async fn step(&mut self) {
        self.assumptions.step(&self.world, &mut self.random);
        match self.random.below(36) {
            0..=5 => self.taints().await,
            6 => self.replace().await,
            7..=10 => self.foreign_write().await,
            11..=13 => self.arm_fault(),
            14 => self.lease().await,
            15 => {
                let away = self.random.millis(20_000);
                self.note(format!("the API server restarts, away {away:?}"));
                self.fake.restart(away);
            }
            16 | 17 => self.line_fault(),
            18 | 19 => self.cluster_taints().await,
            20 | 21 => self.reconfigure().await,
            22 => self.long_list_failure().await,
            23 | 24 => self.ledger_loss().await,
            25 => self.ignored_writes().await,
            26 | 27 => self.claim(),
            28..=30 => self.clock_jump().await,
            31..=33 => self.other_signals(),
            _ => self.leader().await,
        }
        let wait = *self.random.pick(&[0, 3, 40, 700, 4000, 15_000]);
        sleep(self.random.millis(wait + 1)).await;
    }

    async fn taints(&mut self) {
        let node = any_node(&mut self.random);
        let keys: &[&str] = match self.random.below(5) {
            0 | 1 => &[],
            2 => &[OUT_OF_SERVICE],
            3 => &["unrelated", "cloudprovider.azure.microsoft.com/draining"],
            _ => &["ToBeDeletedByClusterAutoscaler", OUT_OF_SERVICE],
        };
        self.note(format!("node {node}: {keys:?}"));
        if self.wait_for_api().await {
            self.world.taint(node, keys).await;
            self.invariants.set_taints(node, keys);
        }
    }

    /// One taint on all Nodes, or on none; later steps remove it from single ones.
    async fn cluster_taints(&mut self) {
        let keys: &[&str] = match self.random.below(4) {
            0 => &[],
            1 => &["ToBeDeletedByClusterAutoscaler"],
            _ => &["headgate.dev/maintenance"],
        };
        self.note(format!("all nodes: {keys:?}"));
        self.had_cluster_signal = true;
        for node in 1..=NODES + QUIET_NODES {
            if self.wait_for_api().await {
                self.world.taint(node, keys).await;
                self.invariants.set_taints(node, keys);
            }
        }
    }

    /// A node, or all of them, are cordoned or get a label that only agents follow; or that ends.
    fn other_signals(&mut self) {
        let begins = self.random.below(3) > 0;
        let is_cordon = self.random.below(3) > 0;
        let nodes = if self.random.below(3) == 0 {
            self.had_cluster_signal = true;
            1..=NODES + QUIET_NODES
        } else {
            let node = any_node(&mut self.random);
            node..=node
        };
        self.note(format!("nodes {nodes:?}: cordon {is_cordon}, begins {begins}"));
        for node in nodes {
            self.fake.change::<Node>("", &format!("node-{node}"), |object| {
                if is_cordon {
                    object["spec"]["unschedulable"] = json!(begins);
                } else {
                    object["metadata"]["labels"] = if begins {
                        json!({PROBE_ONLY_LABEL: "x"})
                    } else {
                        json!({})
                    };
                }
            });
            if is_cordon {
                self.invariants.set_cordoned(node, begins);
            }
        }
    }

    /// A node claims the addresses of another one, or of all; sooner or later it claims only its own again.
    fn claim(&mut self) {
        let all = NODES + QUIET_NODES;
        let claimant = usize::try_from(self.random.below(all as u64)).unwrap() + 1;
        let victims = match self.random.below(4) {
            0 => Vec::new(),
            1 => (1..=all).collect(),
            _ => vec![any_node(&mut self.random)],
        };
        self.note(format!("node {claimant} claims the addresses of {victims:?}"));
        self.set_claims(claimant, &victims);
    }

    fn set_claims(&self, claimant: usize, victims: &[usize]) {
        let mut addresses = vec![claimant];
        addresses.extend(victims.iter().filter(|victim| **victim != claimant));
        let addresses: Value = addresses
            .into_iter()
            .flat_map(|node| [false, true].map(|v6| json!({"type": "InternalIP", "address": address(node, v6)})))
            .collect();
        self.fake.change::<Node>("", &format!("node-{claimant}"), |node| {
            node["status"]["addresses"] = addresses;
        });
    }

    /// Waits for the API server if it is away.
    async fn wait_for_api(&mut self) -> bool {
        let nodes = kube::Api::<Node>::all(self.world.client.clone());
        for _ in 0..60 {
            if nodes.get_opt("node-1").await.is_ok() {
                return true;
            }
            sleep(SECOND).await;
        }
        false
    }

    /// Deletes a node and creates another with the same name and address, sooner or later.
    async fn replace(&mut self) {
        let node = any_node(&mut self.random);
        let gone = self.random.millis(3000);
        self.note(format!("node {node} is replaced, gone for {gone:?}"));
        if self.wait_for_api().await {
            // While its Node is away, a claimant would be the only one with the address.
            for claimant in 1..=NODES + QUIET_NODES {
                self.set_claims(claimant, &[]);
            }
            self.world.remove_node(node).await;
            self.invariants.set_taints(node, &[]);
            self.invariants.set_replaced(node);
            sleep(gone).await;
            if self.wait_for_api().await {
                self.world.add_node(node).await;
            }
        }
    }

    /// Another writer writes a pool: from a fresh read with `If-Match`, or from an old one without.
    async fn foreign_write(&mut self) {
        let (load_balancer, pool) = *self.random.pick(&POOLS);
        let path = super::world::pool_path(load_balancer, pool);
        if self.random.below(3) == 0 {
            let document = self.world.get(&path).await;
            self.note(format!("another writer reads {pool}"));
            self.foreign_reads.push((path, document, Instant::now()));
            return;
        }
        self.foreign_reads.retain(|(.., at)| at.elapsed() < 2 * 60 * SECOND);
        if self.random.below(2) == 0
            && let Some((path, document, _)) = self.foreign_reads.pop()
        {
            self.note(format!("another writer writes its read of {}", document["name"]));
            self.world.put(&path, &document, None).await;
            return;
        }
        let mut document = self.world.get(&path).await;
        let etag = document["etag"].as_str().unwrap().to_owned();
        let list = document["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap();
        let kind = self.random.below(5);
        match kind {
            0 if list.len() > 1 => {
                let place = self.random.below(u64::try_from(list.len()).unwrap());
                list.remove(usize::try_from(place).unwrap());
            }
            1 => {
                let node = any_node(&mut self.random);
                let ip = address(node, pool.ends_with("IPv6"));
                if list.iter().all(|entry| entry["properties"]["ipAddress"] != *ip) {
                    list.push(json!({"name": format!("node-{node}"), "properties": {"ipAddress": ip}}));
                }
            }
            // A foreign `Down` only on quiet nodes, so that the check knows the owner of each `Down`.
            2 => {
                let states: &[&str] = if self.had_cluster_signal {
                    &["None", "Up"]
                } else {
                    &["Down", "None", "Up"]
                };
                let state = *self.random.pick(states);
                let quiet = |entry: &&mut Value| node_of(entry).is_some_and(|node| node > NODES);
                for entry in list.iter_mut().filter(quiet) {
                    entry["properties"]["adminState"] = json!(state);
                }
            }
            3 => {
                let state = *self.random.pick(&["None", "Up"]);
                let node = any_node(&mut self.random);
                for entry in list.iter_mut().filter(|entry| node_of(entry) == Some(node)) {
                    entry["properties"]["adminState"] = json!(state);
                }
            }
            _ => document["properties"]["drainPeriodInSeconds"] = json!(self.random.below(100)),
        }
        self.note(format!("another writer changes {load_balancer}/{pool} ({kind})"));
        self.world.put(&path, &document, Some(&etag)).await;
    }

    fn arm_fault(&mut self) {
        let actions = [
            json!({"answer": {"status": 500}}),
            json!({"answer": {"status": 503}}),
            json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 7}}),
            json!({"answer": {"code": "RetryableErrorDueToAnotherOperation"}}),
            json!({"answer": {"code": "AnotherOperationInProgress"}}),
            json!({"answer": {"code": "PreconditionFailed"}}),
            json!({"answer": {"status": 403}}),
            json!({"answer": {"status": 400}}),
            json!({"answer": {"status": 200, "text": "<html>"}}),
            json!({"cut": "before"}),
            json!({"cut": "after"}),
            json!({"stall": "3s"}),
            json!({"stall": "90s", "when": "after"}),
            json!({"operation": "fail", "error": {"code": "InternalServerError", "message": "", "details": []}, "effect": "lost"}),
            json!({"operation": "fail", "error": {"code": "InternalServerError", "message": "", "details": []}}),
            json!({"operation": "cancel"}),
            json!({"operation": "succeed", "effect": "lost"}),
            json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 31}}}}),
        ];
        let action = self.random.pick(&actions).clone();
        let is_write = ["operation", "write"].iter().any(|tag| action.get(tag).is_some());
        let method = if is_write {
            "PUT"
        } else {
            *self.random.pick(&["PUT", "GET", "PUT|GET"])
        };
        let times = self.random.below(4) + 1;
        self.note(format!("ARM {times} times at {method}: {action}"));
        let rule = json!({"match": {"method": method, "caller": "headgate"}, "times": times, "action": action});
        self.world.control("POST", "faults", &rule);
    }

    /// `azure.json` names other load balancers, or another resource group, for a while or until something else happens.
    async fn reconfigure(&mut self) {
        let wrong = match self.random.below(4) {
            0 => None,
            1 => Some(scope("rg", &["renamed"])),
            2 => Some(scope("rg", &["kubernetes-internal"])),
            _ => Some(scope("other", &["kubernetes"])),
        };
        let lasts = *self.random.pick(&[SECOND, 20 * SECOND, 10 * 60 * SECOND]);
        self.note(format!("azure.json changes for {lasts:?}: {wrong:?}"));
        self.world.reconfigure(wrong);
        sleep(lasts).await;
        if self.random.below(3) > 0 {
            self.note("azure.json is corrected");
            self.world.reconfigure(None);
        }
    }

    /// ARM ignores every write of one pool or of all, and reports that it succeeded.
    async fn ignored_writes(&mut self) {
        let path = *self.random.pick(&["/kubernetes-IPv6$", "/backendAddressPools/"]);
        let lasts = *self.random.pick(&[20 * SECOND, 6 * 60 * SECOND]);
        self.note(format!("ARM ignores writes of {path} for {lasts:?}"));
        let rule = json!({"match": {"method": "PUT", "path": path, "caller": "headgate"},
            "action": {"operation": "succeed", "effect": "lost"}});
        self.world.control("POST", "faults", &rule);
        let node = any_node(&mut self.random);
        if self.wait_for_api().await {
            self.world.taint(node, &[OUT_OF_SERVICE]).await;
            self.invariants.set_taints(node, &[OUT_OF_SERVICE]);
        }
        sleep(lasts).await;
        self.world.clear_faults();
    }

    /// The ledger is deleted or replaced by an earlier one while a leader lives, and the leader has time to notice it.
    async fn ledger_loss(&mut self) {
        let name = "headgate-admin-state";
        let term = |running: &RunningLeader| running.leader.terms.borrow().as_ref().map(Term::number);
        let leading = self.leaders.iter().find_map(term);
        // A leader that has just begun may not have read the ledger yet.
        sleep(10 * SECOND).await;
        let is_known = leading.is_some() && self.leaders.iter().find_map(term) == leading;
        if self.leaders.len() != 2 || !is_known || !self.wait_for_api().await {
            return;
        }
        let Some(found) = self.fake.peek::<ConfigMap>("kube-system", name) else {
            return;
        };
        for running in &self.leaders {
            running.line.set(Fault::None);
        }
        let backup = self.ledger_backup.take();
        self.ledger_backup = found.data.and_then(|mut data| data.remove("ledger.json"));
        match backup {
            Some(backup) if self.random.below(2) == 0 => {
                self.note("the ledger is replaced by an earlier one");
                let set = |object: &mut Value| object["data"]["ledger.json"] = json!(backup);
                self.fake.change::<ConfigMap>("kube-system", name, set);
            }
            _ => {
                self.note("the ledger is deleted");
                self.fake.delete::<ConfigMap>("kube-system", name);
            }
        }
        sleep(20 * SECOND).await;
    }

    /// ARM refuses lists for longer than any ledger entry lives.
    async fn long_list_failure(&mut self) {
        let status = *self.random.pick(&[500, 403, 404]);
        let lasts = *self.random.pick(&[2 * 60 * SECOND, 12 * 60 * SECOND]);
        self.note(format!("ARM answers lists with {status} for {lasts:?}"));
        let rule = json!({"match": {"method": "GET", "path": "/loadBalancers$", "caller": "headgate"},
            "action": {"answer": {"status": status}}});
        self.world.control("POST", "faults", &rule);
        sleep(lasts).await;
        self.world.clear_faults();
    }

    /// Another writer holds the shared Lease.
    async fn lease(&mut self) {
        let held = self.random.millis(20_000);
        self.note(format!("the shared Lease is held by another writer for {held:?}"));
        if self.world.take_arm_lease().await {
            sleep(held).await;
            if self.wait_for_api().await {
                self.world.release_arm_lease().await;
            }
        }
    }

    fn line_fault(&mut self) {
        let fault = *self.random.pick(&[
            Fault::None,
            Fault::None,
            Fault::Slow(SECOND),
            Fault::CutOff,
            Fault::Status(500),
            Fault::Status(403),
            Fault::AnswerLost,
            Fault::Late(SECOND),
        ]);
        let Some(last) = self.leaders.last() else { return };
        last.line.set(fault);
        self.note(format!("the last leader's line: {fault:?}"));
    }

    /// The wall clock of one leader, or of all, jumps. Often a node gets or loses a signal at the same moment.
    async fn clock_jump(&mut self) {
        let offset = *self.random.pick(&WALL_OFFSETS);
        let which = self.random.below(3);
        self.note(format!(
            "the wall clock of leader {which} of 3, or of both, is ahead by {offset} ms"
        ));
        for (number, running) in (0..).zip(&self.leaders) {
            if which == 2 || which == number {
                running.wall.set_millis(offset);
            }
        }
        if self.random.below(2) == 0 {
            self.taints().await;
        }
    }

    async fn leader(&mut self) {
        let which = self.random.below(u64::try_from(self.leaders.len()).unwrap());
        let RunningLeader { mut leader, .. } = self.leaders.remove(usize::try_from(which).unwrap());
        if self.random.below(2) == 0 {
            self.note("a leader is killed");
            leader.kill();
        } else {
            self.note("a leader is stopped");
            leader.stop().await;
        }
        drop(leader);
        let pause = self.random.millis(20_000);
        sleep(pause).await;
        self.start_leader().await;
    }

    /// Ends all faults and checks the final state.
    async fn end(mut self) {
        self.world.clear_faults();
        self.world.reconfigure(None);
        for running in &self.leaders {
            running.line.set(Fault::None);
            running.wall.set_millis(0);
        }
        assert!(self.wait_for_api().await);
        self.world.release_arm_lease().await;
        sleep(SETTLE_TIME).await;
        let nodes = NODES + QUIET_NODES;
        check_final_state(&self.world, &self.invariants, &POOLS, nodes).await;
        let (puts, most) = self.invariants.puts(self.steps.len());
        assert!(puts <= most, "{puts} writes, at most {most} expected");
        self.world.check_puts_of_each_minute();
        self.check_time_to_down().await;
        for running in &mut self.leaders {
            running.leader.stop().await;
        }
    }
}

impl RandomRun {
    /// Without faults and other writers, a node that is about to end is `Down` soon, by one write of each pool.
    async fn check_time_to_down(&self) {
        for node in 1..=NODES + QUIET_NODES {
            self.set_claims(node, &[]);
            self.fake.change::<Node>("", &format!("node-{node}"), |object| {
                object["spec"]["unschedulable"] = json!(false);
                object["metadata"]["labels"] = json!({});
            });
            self.invariants.set_cordoned(node, false);
            self.world.taint(node, &[]).await;
            self.invariants.set_taints(node, &[]);
        }
        sleep(SETTLE_TIME).await;
        for node in 1..=2 {
            let name = format!("node-{node}");
            let state = |(load_balancer, pool): (&str, &str)| {
                let mut states = self.world.states(load_balancer, pool).into_iter();
                states
                    .find(|(entry, _)| node_of_entry(entry) == Some(node))
                    .map(|(_, state)| state)
            };
            let pools = POOLS.into_iter().filter(|pool| state(*pool).as_deref() == Some("None"));
            let pools: Vec<_> = pools.collect();
            let (before, began) = (self.invariants.puts(0).0, Instant::now());
            let position = self.world.journal_position();
            self.world.taint(node, &[OUT_OF_SERVICE]).await;
            self.invariants.set_taints(node, &[OUT_OF_SERVICE]);
            while pools.iter().any(|pool| state(*pool).as_deref() != Some("Down")) {
                let took = began.elapsed();
                assert!(
                    took <= DOWN_TIMEOUT + self.assumptions.operation_time(),
                    "{name} in {pools:?}: {took:?}, {:?}\n{}",
                    self.assumptions.settings(),
                    self.world.requests_since(position)
                );
                sleep(SECOND / 10).await;
            }
            sleep(60 * SECOND).await;
            let puts = self.invariants.puts(0).0 - before;
            let refused = self.world.refused_puts_since(position);
            let allowed = refused.min(self.assumptions.refused_writes() * pools.len());
            assert!(
                puts <= pools.len() + allowed,
                "{puts} writes, {refused} of them refused, for {name} in {pools:?}, {:?}\n{}",
                self.assumptions.settings(),
                self.world.requests_since(position)
            );
        }
    }
}

async fn run(seed: u64) {
    let mut run = RandomRun::start(seed).await;
    let steps = 5 + run.random.below(25);
    for _ in 0..steps {
        run.step().await;
        run.invariants.assert_held(&run.steps);
    }
    let (steps, invariants) = (run.steps.clone(), run.invariants.clone());
    let settings = run.assumptions.settings();
    invariants.judge(&steps, &settings, run.end()).await;
}

#[test]
fn random_events_lose_nothing_and_converge() {
    run_seeds("admin states", DEFAULT_RUNS, run);
}
