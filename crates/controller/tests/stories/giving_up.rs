//! Leaders that cannot list load balancers: they give up their term to a candidate that may be able to, and to none else.
//!
//! Two controllers, `a` and `b`, run in one process and in paused time. Faults of the emulator match one of them by its
//! user agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headgate_azure_emulator::Settings;
use headgate_controller::admin_state::{AdminStateMode, ForeignDown, Policy};
use headgate_kubernetes::leader::{GAVE_UP_ANNOTATION, SUCCESSOR_ANNOTATION, THROTTLE_ANNOTATION, UNABLE_ANNOTATION};
use headgate_test_kubernetes::{FakeApi, assert_contains};
use hyper::Response;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::rows::cluster::{DRAINING, SECOND};
use crate::world::{ENFORCE, Leader, World, arm_error, set_taints, two_load_balancers};

const MINUTE: Duration = Duration::from_mins(1);

struct Pair {
    fake: FakeApi,
    world: World,
    policy: Policy,
    leaders: BTreeMap<&'static str, Leader>,
}

impl Pair {
    async fn new(policy: Policy) -> Self {
        let (fake, world) = World::with_nodes(3, &two_load_balancers(3), Settings::default()).await;
        Self {
            fake,
            world,
            policy,
            leaders: BTreeMap::new(),
        }
    }

    async fn start(&mut self, name: &'static str) {
        let client = self.fake.client().0;
        let leader = Leader::start(&self.world, client, name, self.policy).await;
        self.leaders.insert(name, leader);
    }

    /// `a` leads and has listed everything; `b` is a candidate.
    async fn led_by_a(policy: Policy) -> Self {
        let mut pair = Self::new(policy).await;
        pair.start("a").await;
        pair.until_led_by("a", MINUTE).await;
        pair.start("b").await;
        sleep(10 * SECOND).await;
        pair
    }

    /// What happens from now on to every request to ARM of one controller.
    fn fault(&self, name: &str, action: &Value) {
        let rule = json!({"match": {"caller": format!("headgate/{name}")}, "action": action});
        self.world.control("POST", "faults", &rule);
    }

    /// The name of the controller whose term is valid.
    fn leader(&self) -> Option<&'static str> {
        let is_leading = |leader: &Leader| leader.terms.borrow().as_ref().is_some_and(|term| term.permit().is_ok());
        let mut leading = self.leaders.iter().filter(|(_, leader)| is_leading(leader));
        let found = leading.next().map(|(name, _)| *name);
        assert!(leading.next().is_none(), "two leaders");
        found
    }

    async fn until_led_by(&self, name: &str, within: Duration) -> Duration {
        let began = Instant::now();
        while self.leader() != Some(name) {
            assert!(began.elapsed() <= within, "not led by {name}: {:?}", self.leader());
            sleep(SECOND / 10).await;
        }
        began.elapsed()
    }

    /// Lets time pass in which `name` leads without a gap.
    async fn stays_with(&self, name: &str, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert_eq!(self.leader(), Some(name), "{:?}", self.annotations());
            sleep(SECOND).await;
        }
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let lease: Lease = self.fake.peek("kube-system", "headgate-leader").unwrap();
        lease.metadata.annotations.unwrap_or_default()
    }

    fn taint(&self, number: usize, keys: &[&str]) {
        set_taints(&self.fake, number, keys);
    }

    fn metric(&self, leader: &str, name: &str) -> f64 {
        self.leaders[leader].metric(name)
    }

    /// The number of lists that a controller has sent.
    fn lists(&self, name: &str) -> usize {
        let journal = self.world.control(
            "GET",
            "journal?limit=1000&method=GET&path=/loadBalancers$",
            &Value::Null,
        );
        let entries = journal["entries"].as_array().unwrap().iter();
        let caller = format!("headgate/{name}");
        entries
            .filter(|entry| entry["kind"] == "request" && entry["userAgent"] == *caller)
            .count()
    }
}

#[tokio::test(start_paused = true)]
async fn leader_that_arm_does_not_answer_is_replaced_by_one_that_it_does() {
    let errors = [
        json!({"cut": "before"}),
        json!({"answer": {"status": 503}}),
        arm_error(403, "AuthorizationFailed"),
    ];
    for action in errors {
        let pair = Pair::led_by_a(ENFORCE).await;
        pair.fault("a", &action);
        pair.taint(2, &[DRAINING]);
        let took = pair.until_led_by("b", 4 * MINUTE).await;
        assert!(
            took >= 2 * MINUTE && took < 2 * MINUTE + 20 * SECOND,
            "{action}: {took:?}"
        );
        sleep(20 * SECOND).await;
        assert!(
            pair.world.down("kubernetes", "kubernetes").contains("node-2"),
            "{action}"
        );
        let annotations = pair.annotations();
        assert_contains!(annotations[GAVE_UP_ANNOTATION], "\"holder\":\"a\"");
        assert!(!annotations.contains_key(UNABLE_ANNOTATION) && !annotations.contains_key(SUCCESSOR_ANNOTATION));
        assert_eq!(
            *pair.leaders["a"].failures.lock().unwrap(),
            Vec::<String>::new(),
            "no defect"
        );
        // `a` does not take the term back, whatever the Lease says about it later.
        pair.stays_with("b", 15 * MINUTE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn leader_without_a_token_is_replaced_by_one_that_gets_one() {
    let mut pair = Pair::new(ENFORCE).await;
    pair.world.intercept = Some(Arc::new(|request| {
        let is_for_token = request.uri().path().ends_with("/token");
        is_for_token.then(|| Response::builder().status(500).body(Bytes::new()).unwrap())
    }));
    pair.start("a").await;
    pair.world.intercept = None;
    pair.until_led_by("a", MINUTE).await;
    pair.start("b").await;
    pair.taint(2, &[DRAINING]);
    let took = pair.until_led_by("b", 4 * MINUTE).await;
    assert!(took >= 115 * SECOND && took < 2 * MINUTE + 20 * SECOND, "{took:?}");
    sleep(20 * SECOND).await;
    assert!(pair.world.down("kubernetes", "kubernetes").contains("node-2"));
}

#[tokio::test(start_paused = true)]
async fn leader_without_a_successor_keeps_its_term_and_recovers() {
    let mut pair = Pair::new(ENFORCE).await;
    pair.start("a").await;
    pair.until_led_by("a", MINUTE).await;
    sleep(5 * SECOND).await;
    assert!(pair.metric("a", "headgate_admin_state_last_list_timestamp_seconds") > 1.7e9);
    assert!(pair.metric("a", "headgate_admin_state_lists_failing_since_timestamp_seconds") < 1.0);
    pair.fault("a", &json!({"cut": "before"}));
    pair.taint(2, &[DRAINING]);
    let began = pair.world.clock.now().wall.as_second();
    pair.stays_with("a", 30 * MINUTE).await;
    assert!(
        pair.annotations().contains_key(UNABLE_ANNOTATION),
        "it goes on requesting a successor"
    );
    let since = pair.metric("a", "headgate_admin_state_lists_failing_since_timestamp_seconds");
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
    let late = since - began as f64;
    assert!((0.0..5.0).contains(&late), "{late}");
    // Work that needs no ARM goes on: the Nodes are watched.
    pair.taint(3, &[DRAINING]);
    sleep(SECOND).await;
    pair.world.clear_faults();
    sleep(40 * SECOND).await;
    let down = pair.world.down("kubernetes", "kubernetes");
    assert!(down.contains("node-2") && down.contains("node-3"), "{down:?}");
    assert!(pair.metric("a", "headgate_admin_state_lists_failing_since_timestamp_seconds") < 1.0);
    assert!(!pair.annotations().contains_key(UNABLE_ANNOTATION));
    assert_eq!(pair.leader(), Some("a"), "the same term");
}

#[tokio::test(start_paused = true)]
async fn outage_for_all_ends_at_most_one_term_in_ten_minutes() {
    let pair = Pair::led_by_a(ENFORCE).await;
    for name in ["a", "b"] {
        pair.fault(name, &json!({"answer": {"status": 503}}));
    }
    pair.taint(2, &[DRAINING]);
    pair.until_led_by("b", 4 * MINUTE).await;
    pair.stays_with("b", 9 * MINUTE).await;
    // After ten minutes `a` may have become able to work.
    pair.until_led_by("a", 3 * MINUTE).await;
    pair.world.clear_faults();
    sleep(30 * SECOND).await;
    assert!(pair.world.down("kubernetes", "kubernetes").contains("node-2"));
}

#[tokio::test(start_paused = true)]
async fn throttled_leader_keeps_its_term_and_the_next_leader_obeys_the_deadline() {
    let mut pair = Pair::led_by_a(ENFORCE).await;
    let throttled = json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 600}});
    pair.fault("a", &throttled);
    pair.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert!(pair.annotations()[THROTTLE_ANNOTATION].contains("reads"));
    pair.stays_with("a", 8 * MINUTE).await;
    // Killed, it leaves the deadline to the next leader.
    pair.leaders.remove("a").unwrap().kill();
    pair.until_led_by("b", MINUTE).await;
    sleep(50 * SECOND).await;
    assert_eq!(pair.lists("b"), 0, "no request before the deadline");
    pair.stays_with("b", MINUTE).await;
    assert!(pair.lists("b") > 0);
    sleep(30 * SECOND).await;
    assert!(pair.world.down("kubernetes", "kubernetes").contains("node-2"));
    assert!(!pair.annotations().contains_key(THROTTLE_ANNOTATION), "it has passed");
}

#[tokio::test(start_paused = true)]
async fn rest_and_the_mode_off_are_no_failure() {
    for mode in [AdminStateMode::Enforce, AdminStateMode::Disabled] {
        let foreign_down = ForeignDown::Keep;
        let pair = Pair::led_by_a(Policy { mode, foreign_down }).await;
        sleep(SECOND).await;
        // A short outage between two lists, or a long one while none is due.
        pair.fault("a", &json!({"cut": "before"}));
        if mode == AdminStateMode::Enforce {
            sleep(3 * MINUTE).await;
            pair.world.clear_faults();
        }
        pair.stays_with("a", 30 * MINUTE).await;
        let since = pair.metric("a", "headgate_admin_state_lists_failing_since_timestamp_seconds");
        assert!(since < 1.0, "{mode:?}: {since}");
    }
}
