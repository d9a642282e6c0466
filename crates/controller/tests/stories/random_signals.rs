//! Random runs of every kind of signal: taints, labels, annotations, conditions, cordons and deletions in any order, with foreign writes,
//! crashes of leaders and faults of the API server. The invariants of each write are those of `random`; here the marker has some, too:
//!
//! - no annotation of an agent, by which Cluster Autoscaler waits, outlives its reason by more than the same bounds;
//! - it is never `True` for longer than [`QUIET_BOUND`] while a managed pool has the node without `Down`, or while the node has no signal.
//!   After a fault or a change of the leader the bound is [`DISTURBED_BOUND`]: the agents make it `Unknown` after three minutes.
//!
//! Each run follows from its seed, and `make stories` runs these, too: see `headgate_test_kubernetes::run_seeds`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_azure_emulator::{entries_of, pools_in};
use headgate_controller::admin_state::GuardSettings;
use headgate_core::node::{
    CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION, NodeReader, SignalMatcher, SignalRules, SignalSettings,
};
use headgate_core::settings::IntOrPercent;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault, Random, run_seeds};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::assumptions::{Assumptions, node_of_entry};
use super::invariants::{Invariants, check_final_state};
use super::world::{ENFORCE, Leader, SECOND, World, dual_stack, run_agent};

const NODES: usize = 4;
const POOLS: [(&str, &str); 3] = [
    ("kubernetes", "kubernetes"),
    ("kubernetes", "kubernetes-IPv6"),
    ("kubernetes-internal", "local"),
];
const DEFAULT_RUNS: u64 = 8;
const MARKER: &str = "headgate.dev/OutOfLoadBalancers";
const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// A resync after a write without the Lease, the operation of that write, and a write of the condition.
const QUIET_BOUND: Duration = Duration::from_secs(20);
/// The time of an operation in it.
const OPERATION_TIME: Duration = Duration::from_secs(3);
/// Three minutes without a confirmation, and an API server that is away.
const DISTURBED_BOUND: Duration = Duration::from_mins(4);
/// From the last fault or change of the leader until the short bound holds.
const QUIET_AFTER: Duration = Duration::from_secs(90);
/// `delayTermination.clusterAutoscaler` of the agents.
const HOLD_TIMEOUT: Duration = Duration::from_secs(40);
const HARD_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const SETTLE_TIME: Duration = Duration::from_mins(6);

/// What every instance takes as a signal.
fn rules() -> SignalRules {
    let mut rules = SignalSettings::default().admin_state();
    let matchers = [
        json!({"taint": "example.com/leaving-*"}),
        json!({"condition": {"type": "VMEventScheduled", "status": "True", "messagePrefix": "Preempt Scheduled:"}}),
        json!({"label": {"key": "example.com/state", "value": "leaving"}}),
        json!({"annotation": {"key": "example.com/leaving"}}),
        json!({"signal": "cordon", "after": "5s"}),
    ];
    rules
        .matchers
        .extend(matchers.iter().map(|matcher| SignalMatcher::parse(matcher).unwrap()));
    rules
}

/// Replaces a condition, and keeps those of others.
fn set_condition(node: &mut Value, condition: Value) {
    let conditions = node["status"]["conditions"].as_array_mut().unwrap();
    conditions.retain(|known| known["type"] != condition["type"]);
    conditions.push(condition);
}

/// What a Node showed last, and since when it is wrong.
#[derive(Default)]
struct Shown {
    status: Option<String>,
    without_down_since: Option<Instant>,
    without_signal_since: Option<Instant>,
    /// The value of Cluster Autoscaler's taint, and since when it is there.
    deletion: Option<(String, Instant)>,
    delayed_without_reason_since: Option<Instant>,
}

impl Shown {
    /// Whether the Node has the agent's annotation although Cluster Autoscaler does not intend to delete it, or it is out, or the
    /// timeout is over.
    fn is_delayed_without_reason(&mut self, node: &Value, now: Instant) -> bool {
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let hard = taints.iter().find(|taint| taint["key"] == HARD_TAINT);
        let mark = hard.map(|taint| taint["value"].as_str().unwrap_or_default().to_owned());
        let known = self.deletion.take();
        self.deletion = mark.map(|mark| match known {
            Some((known, since)) if known == mark => (known, since),
            _ => (mark, now),
        });
        let is_over = self
            .deletion
            .as_ref()
            .is_some_and(|(_, since)| now - *since > HOLD_TIMEOUT);
        let is_candidate = hard.is_some() || taints.iter().any(|taint| taint["key"] == CANDIDATE_TAINT);
        let is_out = self.status.as_deref() == Some("True");
        let is_delayed = node["metadata"]["annotations"][DELETION_DELAY_ANNOTATION] == "true";
        is_delayed && (!is_candidate || is_out || is_over)
    }
}

struct Run {
    random: Random,
    fake: FakeApi,
    world: World,
    assumptions: Assumptions,
    invariants: Invariants,
    leaders: Vec<(Leader, ClientFaults)>,
    born: u32,
    agents: JoinSet<()>,
    shown: BTreeMap<usize, Shown>,
    /// The Nodes that are deleted, and when each is gone.
    leaving: BTreeMap<usize, Instant>,
    disturbed_at: Instant,
    has_fault: bool,
    steps: Vec<String>,
}

impl Run {
    async fn start(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x5157);
        let fake = FakeApi::default();
        let clock = fake.clock();
        let mut resources = vec![dual_stack(NODES)];
        let assumptions = Assumptions::draw(seed);
        resources.extend(assumptions.internal("local", &[1, 2]));
        let (client, _) = fake.client();
        let mut world = World::new(client, clock, &resources, assumptions.settings());
        world.rules = rules();
        world.marker = true;
        // Each node with a signal gets the marker, so none is held back.
        world.guard = GuardSettings::DISABLED;
        let invariants = Invariants::new(world.emulator.clone(), IntOrPercent::Int(0));
        let mut agents = JoinSet::new();
        for node in 1..=NODES {
            world.add_node(node).await;
            invariants.set_taints(node, &[]);
            let (client, _) = fake.client();
            agents.spawn(run_agent(client, &world.clock, node, rules(), Some(HOLD_TIMEOUT)));
        }
        let mut run = Self {
            random,
            fake,
            world,
            assumptions,
            invariants,
            leaders: Vec::new(),
            born: 0,
            agents,
            shown: BTreeMap::new(),
            leaving: BTreeMap::new(),
            disturbed_at: Instant::now(),
            has_fault: false,
            steps: Vec::new(),
        };
        run.start_leader().await;
        run.start_leader().await;
        run.wait(30 * SECOND).await;
        run
    }

    async fn start_leader(&mut self) {
        let (client, line) = self.fake.client();
        self.born += 1;
        let name = format!("leader-{}", self.born);
        let invariants = self.invariants.clone();
        let leader = Leader::start_with_spy(&self.world, client, &name, ENFORCE, |terms| invariants.spy(terms)).await;
        self.leaders.push((leader, line));
        self.disturb();
    }

    fn disturb(&mut self) {
        self.disturbed_at = Instant::now();
    }

    fn node(&mut self) -> usize {
        usize::try_from(self.random.below(NODES as u64)).unwrap() + 1
    }

    fn peek(&self, node: usize) -> Option<Value> {
        let node = self.fake.peek::<Node>("", &format!("node-{node}"))?;
        Some(serde_json::to_value(node).unwrap())
    }

    /// Changes a Node, if it is there, and records whether it has a signal now.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Value)) {
        if self.peek(number).is_some() {
            self.fake.change::<Node>("", &format!("node-{number}"), change);
        }
        self.record_signal(number);
    }

    fn has_signal(&self, number: usize) -> bool {
        let Some(node) = self.peek(number) else { return false };
        let signals = NodeReader::own(rules())
            .read(serde_json::from_value(node).unwrap())
            .signals;
        for signal in signals.keys() {
            let explanation = signal.explanation("node");
            assert!(
                !explanation.meaning.is_empty() && !explanation.ends_with.is_empty(),
                "{signal}"
            );
        }
        !signals.is_empty()
    }

    fn record_signal(&self, number: usize) {
        let keys: &[&str] = if self.has_signal(number) {
            &["headgate.dev/maintenance"]
        } else {
            &[]
        };
        self.invariants.set_taints(number, keys);
    }

    async fn step(&mut self) {
        let node = self.node();
        self.assumptions.step(&self.world, &mut self.random);
        match self.random.below(24) {
            0..=3 => self.set_taints(node),
            4 | 5 => {
                let value = *self.random.pick(&["leaving", "staying"]);
                self.note(format!("node {node}: label {value}"));
                self.change(node, |node| {
                    node["metadata"]["labels"]["example.com/state"] = json!(value);
                });
            }
            6 | 7 => {
                let is_leaving = self.random.below(2) == 0;
                self.note(format!("node {node}: annotation {is_leaving}"));
                self.change(node, |node| {
                    let annotations = &mut node["metadata"]["annotations"];
                    if is_leaving {
                        annotations["example.com/leaving"] = json!("soon");
                    } else if let Some(annotations) = annotations.as_object_mut() {
                        annotations.remove("example.com/leaving");
                    }
                });
            }
            8 | 9 => {
                let message = *self.random.pick(&["Preempt Scheduled: soon", "Freeze Scheduled: soon"]);
                self.note(format!("node {node}: condition {message}"));
                let condition = json!({"type": "VMEventScheduled", "status": "True", "reason": "VMEventScheduled", "message": message});
                self.change(node, |node| set_condition(node, condition));
            }
            10 => {
                let is_cordoned = self.random.below(2) == 0;
                self.note(format!("node {node}: cordoned {is_cordoned}"));
                self.change(node, |node| node["spec"]["unschedulable"] = json!(is_cordoned));
            }
            11 => {
                let value = *self.random.pick(&["", "karpenter"]);
                let is_set = self.random.below(2) == 0;
                self.note(format!("node {node}: excluded {is_set} {value:?}"));
                self.change(node, |node| {
                    let labels = &mut node["metadata"]["labels"];
                    if is_set {
                        labels[EXCLUDE_LABEL] = json!(value);
                    } else if let Some(labels) = labels.as_object_mut() {
                        labels.remove(EXCLUDE_LABEL);
                    }
                });
            }
            12 | 13 => {
                let gone_in = self.random.millis(20_000);
                self.note(format!("node {node} is deleted, gone in {gone_in:?}"));
                let now = self.world.clock.now().wall.to_string();
                self.change(node, |node| node["metadata"]["deletionTimestamp"] = json!(now));
                self.leaving.insert(node, Instant::now() + gone_in);
            }
            14..=16 => self.foreign_write(node).await,
            17 => {
                let status = *self.random.pick(&["True", "False", "Unknown"]);
                self.note(format!("someone else writes the condition of node {node}: {status}"));
                let condition = json!({"type": MARKER, "status": status, "reason": "Other", "message": "m"});
                self.change(node, |node| set_condition(node, condition));
            }
            18 => {
                let away = self.random.millis(20_000);
                self.note(format!("the API server is away for {away:?}"));
                self.fake.restart(away);
                self.disturb();
            }
            19 | 20 => self.line_fault(),
            _ => self.change_leader().await,
        }
        let longest = *self.random.pick(&[0, 40, 700, 4000, 30_000, 120_000]);
        let pause = self.random.millis(longest + 1);
        self.wait(pause).await;
    }

    fn note(&mut self, text: impl Into<String>) {
        self.steps.push(text.into());
    }

    fn set_taints(&mut self, node: usize) {
        let keys: &[&str] = match self.random.below(7) {
            0 | 1 => &[],
            4 => &[CANDIDATE_TAINT],
            5 => &[CANDIDATE_TAINT, HARD_TAINT],
            2 => &["unrelated", "cloudprovider.azure.microsoft.com/draining"],
            3 => &["example.com/leaving-now"],
            _ => &[HARD_TAINT],
        };
        self.note(format!("node {node}: {keys:?}"));
        let now = self.world.clock.now().wall.as_second().to_string();
        let taints: Value = keys
            .iter()
            .map(|key| json!({"key": key, "value": now, "effect": "NoSchedule"}))
            .collect();
        self.change(node, |node| node["spec"]["taints"] = taints);
    }

    /// Another writer sets a node in service, removes it from a pool, or adds it; half of the time under the shared Lease.
    async fn foreign_write(&mut self, node: usize) {
        let (load_balancer, pool) = *self.random.pick(&POOLS);
        let has_lease = self.random.below(2) == 0 && self.world.take_arm_lease().await;
        let path = super::world::pool_path(load_balancer, pool);
        let mut document = self.world.get(&path).await;
        let name = format!("node-{node}");
        let list = document["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap();
        let kind = self.random.below(3);
        match kind {
            0 => list.retain(|entry| entry["name"] != *name),
            1 => {
                let ip = super::world::address(node, pool.ends_with("IPv6"));
                list.retain(|entry| entry["name"] != *name);
                list.push(json!({"name": name, "properties": {"ipAddress": ip}}));
            }
            _ => {
                for entry in list.iter_mut().filter(|entry| entry["name"] == *name) {
                    entry["properties"]["adminState"] = json!("None");
                }
            }
        }
        self.note(format!(
            "another writer changes node {node} in {load_balancer}/{pool} ({kind}), with the Lease: {has_lease}"
        ));
        self.world.put(&path, &document, None).await;
        if has_lease {
            let held = self.random.millis(5000);
            self.wait(held).await;
            self.world.release_arm_lease().await;
        }
    }

    fn line_fault(&mut self) {
        let fault = *self.random.pick(&[
            Fault::Status(500),
            Fault::Status(403),
            Fault::CutOff,
            Fault::AnswerLost,
            Fault::Late(2 * SECOND),
            Fault::Slow(SECOND),
            Fault::None,
        ]);
        let count = u64::try_from(self.leaders.len()).unwrap();
        if count == 0 {
            return;
        }
        let chosen = usize::try_from(self.random.below(count)).unwrap();
        self.note(format!("leader {chosen}: {fault:?}"));
        for (number, (_, line)) in self.leaders.iter().enumerate() {
            line.set(if number == chosen { fault } else { Fault::None });
        }
        self.has_fault = !matches!(fault, Fault::None);
        self.disturb();
    }

    async fn change_leader(&mut self) {
        if self.leaders.len() > 1 {
            let (mut leader, _) = self.leaders.remove(0);
            if self.random.below(2) == 0 {
                self.note("a leader is killed");
                leader.kill();
            } else {
                self.note("a leader is stopped");
                leader.stop().await;
            }
            self.disturb();
        } else {
            self.note("an instance starts");
            self.start_leader().await;
        }
    }

    /// Lets time pass, removes Nodes that are gone, and checks the marker every half second.
    async fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let due: Vec<usize> = self
                .leaving
                .iter()
                .filter(|(_, at)| **at <= Instant::now())
                .map(|(node, _)| *node)
                .collect();
            for node in due {
                self.leaving.remove(&node);
                self.replace(node).await;
            }
            self.check();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(SECOND / 2)).await;
        }
    }

    /// A Node that is gone comes back under its name, as another one.
    async fn replace(&mut self, node: usize) {
        self.note(format!("node {node} is another one"));
        self.fake.delete::<Node>("", &format!("node-{node}"));
        let nodes = kube::Api::<Node>::all(self.world.client.clone());
        while nodes.get_opt("node-1").await.is_err() {
            sleep(SECOND / 2).await;
        }
        self.world.add_node(node).await;
        self.record_signal(node);
        self.invariants.set_replaced(node);
        self.shown.remove(&node);
    }

    /// The nodes that a pool has without `Down`.
    fn in_service(&self) -> BTreeSet<usize> {
        let state = self.world.control("GET", "state", &Value::Null);
        let entries = pools_in(&state).flat_map(entries_of);
        let in_service = entries.filter(|entry| entry["properties"]["adminState"] != "Down");
        in_service
            .filter_map(|entry| node_of_entry(entry["name"].as_str()?))
            .collect()
    }

    fn check(&mut self) {
        if self.has_fault {
            self.disturb();
        }
        let bound = if self.disturbed_at.elapsed() > QUIET_AFTER {
            QUIET_BOUND + self.assumptions.operation_time().saturating_sub(OPERATION_TIME)
        } else {
            DISTURBED_BOUND
        };
        let mut in_service = None;
        for number in 1..=NODES {
            let Some(node) = self.peek(number) else { continue };
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let marker = conditions.into_iter().find(|condition| condition["type"] == MARKER);
            let status = marker.and_then(|marker| marker["status"].as_str().map(str::to_owned));
            let is_out = status.as_deref() == Some("True");
            let is_served = is_out && {
                let in_service = in_service.get_or_insert_with(|| self.in_service());
                in_service.contains(&number)
            };
            let has_signal = self.has_signal(number);
            let shown = self.shown.entry(number).or_default();
            shown.status = status;
            let now = Instant::now();
            let since = |is_wrong: bool, since: Option<Instant>| is_wrong.then(|| since.unwrap_or(now));
            shown.without_down_since = since(is_served, shown.without_down_since);
            shown.without_signal_since = since(is_out && !has_signal, shown.without_signal_since);
            let is_unreasonable = shown.is_delayed_without_reason(&node, now);
            shown.delayed_without_reason_since = since(is_unreasonable, shown.delayed_without_reason_since);
            for (what, since) in [
                ("a pool has it without Down", shown.without_down_since),
                ("it has no signal", shown.without_signal_since),
                (
                    "its deletion is delayed without a reason",
                    shown.delayed_without_reason_since,
                ),
            ] {
                let lasted = since.map(|since| now - since).unwrap_or_default();
                assert!(
                    lasted <= bound,
                    "node {number} is marked as {:?}, and {what} for {lasted:?}, allowed: {bound:?}\n{}",
                    shown.status,
                    self.steps.join("\n")
                );
            }
        }
    }

    /// Ends all faults, and checks what everything settles at.
    async fn end(&mut self) {
        for (_, line) in &self.leaders {
            line.set(Fault::None);
        }
        self.has_fault = false;
        self.world.release_arm_lease().await;
        for node in 1..=NODES {
            self.change(node, |node| {
                if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
                    labels.remove(EXCLUDE_LABEL);
                }
            });
        }
        self.start_leader().await;
        self.wait(SETTLE_TIME).await;
        check_final_state(&self.world, &self.invariants, &POOLS, NODES).await;
        for number in 1..=NODES {
            let status = self.shown[&number].status.clone();
            let expected = match (self.has_signal(number), &status) {
                (true, _) => Some("True"),
                (false, None) => None,
                (false, Some(_)) => Some("False"),
            };
            assert_eq!(
                status.as_deref(),
                expected,
                "node {number} at {}: {:#}\n{}",
                self.world.clock.now().wall,
                self.peek(number).unwrap_or_default()["status"]["conditions"],
                self.steps.join("\n")
            );
        }
        self.agents.abort_all();
        for (leader, _) in &mut self.leaders {
            leader.stop().await;
        }
    }
}

async fn run(seed: u64) {
    let mut run = Run::start(seed).await;
    for _ in 0..5 + run.random.below(25) {
        run.step().await;
        run.invariants.assert_held(&run.steps);
    }
    let (steps, invariants) = (run.steps.clone(), run.invariants.clone());
    let settings = run.assumptions.settings();
    invariants.judge(&steps, &settings, run.end()).await;
}

#[test]
fn random_events_of_every_signal_keep_the_markers_bounds() {
    run_seeds("signals and marker", DEFAULT_RUNS, run);
}
