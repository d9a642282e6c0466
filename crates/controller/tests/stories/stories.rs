//! Randomised stories in paused time: Nodes, other writers, ARM, the API server and the leaders themselves do whatever
//! they may, and what must always hold is checked at each write and in the end.
//!
//! A story follows from its number. `HEADGATE_STORIES=5000` tells so many, `HEADGATE_STORY=17` only that one.

use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_clock::Clock;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::truth::{Truth, check_at_rest};
use super::world::{ENFORCE, Leader, SECOND, World, address, entries, load_balancer};

/// Nodes that may get signals; two more never do.
const NODES: usize = 4;
const QUIET: usize = 2;
const POOLS: [(&str, &str); 3] = [
    ("kubernetes", "kubernetes"),
    ("kubernetes", "kubernetes-IPv6"),
    ("kubernetes-internal", "local"),
];
/// In an ordinary run of the tests.
const STORIES: u64 = 40;
/// Once all faults have stopped: longer than the longest pause after failures for good, of which no story has many.
const REST: Duration = Duration::from_mins(6);

/// Numbers that follow from a seed (`SplitMix64`).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Below this.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let length = u64::try_from(from.len()).unwrap();
        &from[usize::try_from(self.below(length)).unwrap()]
    }

    fn node(&mut self) -> usize {
        usize::try_from(self.below(NODES as u64)).unwrap() + 1
    }

    fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

/// One story under way.
struct Story {
    chance: Chance,
    fake: FakeApi,
    world: World,
    truth: Truth,
    leaders: Vec<(Leader, ClientFaults)>,
    born: u32,
    /// Pools as somebody read them and may write them yet.
    read: Vec<(String, Value, tokio::time::Instant)>,
    /// What was done, for whoever has to understand a failure.
    done: Vec<String>,
}

impl Story {
    async fn begin(number: u64) -> Self {
        let mut chance = Chance::new(number);
        let fake = FakeApi::default();
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse::<Timestamp>().unwrap());
        let all = || 1..=NODES + QUIET;
        let resources = [
            load_balancer(
                "kubernetes",
                &[
                    ("kubernetes", entries(all(), false)),
                    ("kubernetes-IPv6", entries(all(), true)),
                ],
            ),
            load_balancer("kubernetes-internal", &[("local", entries([1, 2, 5], false))]),
        ];
        let settings = Settings {
            operation_delay: *chance.pick(&[Duration::ZERO, SECOND / 5, 3 * SECOND]),
            ..Settings::default()
        };
        let (client, _) = fake.client();
        let world = World::new(client, clock, &resources, settings);
        for node in all() {
            world.add_node(node).await;
        }
        let truth = Truth::new(world.emulator.clone());
        for node in all() {
            truth.node(node, &[]);
        }
        let mut story = Self {
            chance,
            fake,
            world,
            truth,
            leaders: Vec::new(),
            born: 0,
            read: Vec::new(),
            done: Vec::new(),
        };
        story.start_leader().await;
        story.start_leader().await;
        sleep(20 * SECOND).await;
        story
    }

    async fn start_leader(&mut self) {
        let (client, line) = self.fake.client();
        self.born += 1;
        let name = format!("leader-{}", self.born);
        let truth = self.truth.clone();
        let leader = Leader::start_seen(&self.world, client, &name, ENFORCE, |terms| truth.spy(terms)).await;
        self.leaders.push((leader, line));
    }

    fn note(&mut self, text: impl Into<String>) {
        self.done.push(text.into());
    }

    /// Something happens.
    async fn step(&mut self) {
        match self.chance.below(20) {
            0..=5 => self.taints().await,
            6 => self.replace().await,
            7..=10 => self.foreign_write().await,
            11..=13 => self.arm_fault(),
            14 => self.lease().await,
            15 => {
                let away = self.chance.millis(20_000);
                self.note(format!("the API server restarts, away {away:?}"));
                self.fake.restart(away);
            }
            16 | 17 => self.line_fault(),
            _ => self.leader().await,
        }
        let wait = *self.chance.pick(&[0, 3, 40, 700, 4000, 15_000]);
        sleep(self.chance.millis(wait + 1)).await;
    }

    async fn taints(&mut self) {
        let node = self.chance.node();
        let keys: &[&str] = match self.chance.below(5) {
            0 | 1 => &[],
            2 => &["node.kubernetes.io/out-of-service"],
            3 => &["unrelated", "cloudprovider.azure.microsoft.com/draining"],
            _ => &["ToBeDeletedByClusterAutoscaler", "node.kubernetes.io/out-of-service"],
        };
        self.note(format!("node {node}: {keys:?}"));
        if self.api_is_there().await {
            self.world.taint(node, keys).await;
            self.truth.node(node, keys);
        }
    }

    /// People wait for an API server that is away.
    async fn api_is_there(&mut self) -> bool {
        let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(self.world.client.clone());
        for _ in 0..60 {
            if nodes.get_opt("node-1").await.is_ok() {
                return true;
            }
            sleep(SECOND).await;
        }
        false
    }

    /// A node goes, and another comes under its name and address, sooner or later.
    async fn replace(&mut self) {
        let node = self.chance.node();
        let gone = self.chance.millis(3000);
        self.note(format!("node {node} is replaced, gone for {gone:?}"));
        if self.api_is_there().await {
            self.world.remove_node(node).await;
            self.truth.node(node, &[]);
            sleep(gone).await;
            if self.api_is_there().await {
                self.world.add_node(node).await;
            }
        }
    }

    /// Somebody writes a pool: from what it is now with `If-Match`, or from an old read without.
    async fn foreign_write(&mut self) {
        let (load_balancer, pool) = *self.chance.pick(&POOLS);
        let path = format!("{}/backendAddressPools/{pool}", super::world::id_of(load_balancer));
        if self.chance.below(3) == 0 {
            let document = self.world.get(&path).await;
            self.note(format!("somebody reads {pool}"));
            self.read.push((path, document, tokio::time::Instant::now()));
            return;
        }
        self.read.retain(|(.., at)| at.elapsed() < 2 * 60 * SECOND);
        if self.chance.below(2) == 0
            && let Some((path, document, _)) = self.read.pop()
        {
            self.note(format!("somebody writes what he read of {}", document["name"]));
            self.world.put(&path, &document, None).await;
            return;
        }
        let mut document = self.world.get(&path).await;
        let etag = document["etag"].as_str().unwrap().to_owned();
        let list = document["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap();
        let kind = self.chance.below(5);
        match kind {
            0 if list.len() > 1 => {
                let place = self.chance.below(u64::try_from(list.len()).unwrap());
                list.remove(usize::try_from(place).unwrap());
            }
            1 => {
                let node = self.chance.node();
                let ip = address(node, pool.ends_with("IPv6"));
                if list.iter().all(|entry| entry["properties"]["ipAddress"] != *ip) {
                    list.push(json!({"name": format!("node-{node}"), "properties": {"ipAddress": ip}}));
                }
            }
            // What he sets Down himself is what never has a signal: what is whose has to be known.
            2 => {
                let state = *self.chance.pick(&["Down", "None", "Up"]);
                let quiet = |entry: &&mut Value| entry["name"] == "node-5" || entry["name"] == "node-6";
                for entry in list.iter_mut().filter(quiet) {
                    entry["properties"]["adminState"] = json!(state);
                }
            }
            3 => {
                let state = *self.chance.pick(&["None", "Up"]);
                let name = format!("node-{}", self.chance.node());
                for entry in list.iter_mut().filter(|entry| entry["name"] == *name) {
                    entry["properties"]["adminState"] = json!(state);
                }
            }
            _ => document["properties"]["drainPeriodInSeconds"] = json!(self.chance.below(100)),
        }
        self.note(format!("somebody changes {load_balancer}/{pool} ({kind})"));
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
        let action = self.chance.pick(&actions).clone();
        let is_write = ["operation", "write"].iter().any(|tag| action.get(tag).is_some());
        let method = if is_write {
            "PUT"
        } else {
            *self.chance.pick(&["PUT", "GET", "PUT|GET"])
        };
        let times = self.chance.below(4) + 1;
        self.note(format!("ARM {times} times at {method}: {action}"));
        let rule = json!({"match": {"method": method, "caller": "headgate"}, "times": times, "action": action});
        self.world.control("POST", "faults", &rule);
    }

    /// Somebody else holds the ARM Lease.
    async fn lease(&mut self) {
        let held = self.chance.millis(20_000);
        self.note(format!("the ARM Lease is somebody else's for {held:?}"));
        if self.world.take_arm_lease().await {
            sleep(held).await;
            if self.api_is_there().await {
                self.world.release_arm_lease().await;
            }
        }
    }

    fn line_fault(&mut self) {
        let fault = *self.chance.pick(&[
            Fault::None,
            Fault::None,
            Fault::Slow(SECOND),
            Fault::CutOff,
            Fault::Status(500),
            Fault::Status(403),
            Fault::AnswerLost,
            Fault::Late(SECOND),
        ]);
        let Some((_, line)) = self.leaders.last() else { return };
        line.set(fault);
        self.note(format!("the last leader's line: {fault:?}"));
    }

    async fn leader(&mut self) {
        let which = self.chance.below(u64::try_from(self.leaders.len()).unwrap());
        let (mut leader, _) = self.leaders.remove(usize::try_from(which).unwrap());
        if self.chance.below(2) == 0 {
            self.note("a leader is killed");
            leader.kill();
        } else {
            self.note("a leader is stopped");
            leader.stop().await;
        }
        drop(leader);
        let pause = self.chance.millis(20_000);
        sleep(pause).await;
        self.start_leader().await;
    }

    /// All faults stop; what has to come about comes about.
    async fn end(mut self) {
        self.world.control("DELETE", "faults", &Value::Null);
        for (_, line) in &self.leaders {
            line.set(Fault::None);
        }
        assert!(self.api_is_there().await);
        self.world.release_arm_lease().await;
        sleep(REST).await;
        check_at_rest(&self.truth, &POOLS);
        let (puts, most) = self.truth.puts(self.done.len());
        assert!(puts <= most, "{puts} writes, at most {most} expected");
        for (leader, _) in &mut self.leaders {
            leader.stop().await;
        }
    }
}

async fn tell(number: u64) {
    let mut story = Story::begin(number).await;
    let steps = 5 + story.chance.below(25);
    for _ in 0..steps {
        story.step().await;
        story.truth.assert_fine(&story.done);
    }
    let (done, truth) = (story.done.clone(), story.truth.clone());
    let ended = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(story.end())).await;
    truth.assert_fine(&done);
    if let Err(panic) = ended {
        println!("{}", done.join("\n"));
        std::panic::resume_unwind(panic);
    }
}

fn in_paused_time(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story);
}

#[test]
fn whatever_happens_nothing_is_lost_and_it_comes_to_rest() {
    let wanted = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let numbers = match wanted("HEADGATE_STORY") {
        Some(number) => number..number + 1,
        None => 0..wanted("HEADGATE_STORIES").unwrap_or(STORIES),
    };
    for number in numbers {
        let told = std::panic::catch_unwind(|| in_paused_time(tell(number)));
        if let Err(panic) = told {
            println!("this was story {number}: HEADGATE_STORY={number} tells it again");
            std::panic::resume_unwind(panic);
        }
    }
}
