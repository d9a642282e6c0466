use std::collections::BTreeMap as Map;

use headgate_core::clock::Clock;

use super::super::fixtures::{
    DRAIN, PoolFixture, ledger, ledger_change, node, plan_inputs, planned, pool_id, status, target_states, view,
};
use super::super::ledger::Ledger;
use super::super::plan::plan;
use super::super::planner::LoadBalancerStatus;
use super::super::settings::AdminStateMode;
use super::super::target_states::TargetStates;
use super::*;
use crate::pool::{EntryKey, Listing, UnreadablePool};
use headgate_test_kubernetes::assert_contains;

/// The pools of one load balancer.
type Pools<'a> = [PoolFixture<'a>];

/// An event: reason, Node, note.
type Event = (&'static str, String, String);

struct Scenario {
    tracker: TransitionTracker,
    targets: TargetStates,
    ledger: Ledger,
    clock: Clock,
    last_error: Option<LastError>,
    unreadable_pools: Vec<UnreadablePool>,
}

impl Scenario {
    fn new(nodes: &[ClusterNode], entries: &[(&str, u8, LedgerStage)]) -> Self {
        let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
        Self {
            tracker: TransitionTracker::default(),
            targets: target_states(nodes, clock.now()),
            ledger: ledger(entries),
            clock,
            last_error: None,
            unreadable_pools: Vec::new(),
        }
    }

    fn status(&self, pools: &Pools<'_>) -> LoadBalancerStatus {
        let plan = plan(
            &view(pools),
            &plan_inputs(&self.targets, &self.ledger, self.clock.now()),
        );
        LoadBalancerStatus {
            unreadable_pools: self.unreadable_pools.clone(),
            last_error: self.last_error.clone(),
            ..status(plan, &self.targets)
        }
    }

    /// What follows from the last reads of these load balancers.
    fn effects(&mut self, load_balancers: &[LoadBalancerStatus], listing: &Listing) -> Effects {
        let load_balancers: Vec<_> = load_balancers.iter().cloned().map(planned).collect();
        let (mode, now) = (AdminStateMode::Enforce, self.clock.now());
        let reads = LastReads::new(&self.targets, &load_balancers, &self.ledger, listing, mode, now);
        self.tracker.evaluate(&reads)
    }

    /// The events of this snapshot. Its ledger changes are made.
    fn evaluate(&mut self, load_balancers: &[LoadBalancerStatus]) -> Vec<Event> {
        let effects = self.effects(load_balancers, &Listing::default());
        for change in effects.ledger_changes {
            self.ledger.apply(change);
        }
        let event = |event: NodeEvent| (event.kind.reason, event.node.name.clone(), event.note);
        effects.events.into_iter().map(event).collect()
    }

    /// The events if one load balancer has these pools.
    fn evaluate_pools(&mut self, pools: &Pools<'_>) -> Vec<Event> {
        let status = self.status(pools);
        self.evaluate(&[status])
    }

    fn stages(&self) -> Map<String, LedgerStage> {
        let mut found = Map::new();
        for pool in ["p", "q"] {
            for number in 1..4 {
                let key = EntryKey::from_text(&format!("10.0.0.{number}"));
                let entry = self.ledger.entry(&pool_id(pool), &key);
                found.extend(entry.map(|entry| (format!("{pool}{number}"), entry.stage)));
            }
        }
        found
    }
}

fn reasons(events: &[Event]) -> Vec<(&'static str, &str)> {
    events
        .iter()
        .map(|(reason, node, _)| (*reason, node.as_str()))
        .collect()
}

/// The entries of a pool with node 1, and another one in service.
const UP: &[(u8, &str)] = &[(1, "-"), (2, "-")];
const OUT: &[(u8, &str)] = &[(1, "Down"), (2, "-")];
const BACK: &[(u8, &str)] = &[(1, "None"), (2, "-")];

fn terminal(code: &str, message: &str) -> LastError {
    LastError::new(ErrorClass::Terminal, code, message.to_owned(), None)
}

#[tokio::test(start_paused = true)]
async fn each_transition_gets_one_event() {
    let mut scenario = Scenario::new(&[node(1, &[DRAIN]), node(2, &[])], &[]);
    let events = scenario.evaluate_pools(&[("p", UP, true), ("q", UP, true)]);
    assert!(events.is_empty(), "nothing is Down yet");
    scenario.ledger.apply(ledger_change("p", 1, LedgerStage::Intended));
    scenario.ledger.apply(ledger_change("q", 1, LedgerStage::Intended));
    let events = scenario.evaluate_pools(&[("p", OUT, true), ("q", UP, true)]);
    assert!(events.is_empty(), "one of two pools");
    let done: &Pools<'_> = &[("p", OUT, true), ("q", OUT, true)];
    let events = scenario.evaluate_pools(done);
    assert_eq!(reasons(&events), [("LoadBalancerAdminStateDown", "n1")]);
    assert_eq!(events[0].2, "Down in lb/p, lb/q because of drain: no new connections.");
    let stages = ["p1", "q1"].map(|entry| (entry.to_owned(), LedgerStage::Down));
    assert_eq!(scenario.stages(), stages.into());
    assert!(scenario.evaluate_pools(done).is_empty(), "once");
    // A `Down` that was lost and written again is the same transition.
    assert!(scenario.evaluate_pools(&[("p", UP, true), ("q", OUT, true)]).is_empty());
    assert!(scenario.evaluate_pools(done).is_empty());

    scenario.targets.apply(node(1, &[]), scenario.clock.now());
    assert!(scenario.evaluate_pools(done).is_empty(), "the debounce");
    tokio::time::advance(Duration::from_secs(1)).await;
    scenario.targets.advance_generation(scenario.clock.now());
    assert!(
        scenario
            .evaluate_pools(&[("p", BACK, true), ("q", OUT, true)])
            .is_empty()
    );
    let back: &Pools<'_> = &[("p", BACK, true), ("q", BACK, true)];
    let events = scenario.evaluate_pools(back);
    assert_eq!(reasons(&events), [("LoadBalancerRestored", "n1")]);
    assert_eq!(
        events[0].2,
        "None again in lb/p, lb/q: health probes decide about new connections."
    );
    assert!(scenario.evaluate_pools(back).is_empty(), "once");
    assert_eq!(scenario.stages()["p1"], LedgerStage::Restored);
}

#[tokio::test(start_paused = true)]
async fn no_event_while_an_entry_is_in_service() {
    let recorded = [("p", 1, LedgerStage::Intended), ("q", 1, LedgerStage::Intended)];
    let mut scenario = Scenario::new(&[node(1, &[DRAIN])], &recorded);
    let partly: &Pools<'_> = &[("p", OUT, true), ("q", &[(1, "Up"), (2, "-")], true)];
    assert!(scenario.evaluate_pools(partly).is_empty(), "another writer keeps it up");
    let events = scenario.evaluate_pools(&[("p", OUT, true), ("q", OUT, true)]);
    assert_eq!(reasons(&events), [("LoadBalancerAdminStateDown", "n1")]);
    assert_eq!(events[0].2, "Down in lb/p, lb/q because of drain: no new connections.");
}

#[tokio::test(start_paused = true)]
async fn no_event_before_every_load_balancer_has_planned() {
    let mut scenario = Scenario::new(&[node(1, &[])], &[("p", 1, LedgerStage::Intended)]);
    let behind = scenario.status(&[("q", UP, true)]);
    scenario.targets.apply(node(1, &[DRAIN]), scenario.clock.now());
    let done = scenario.status(&[("p", OUT, true)]);
    assert!(scenario.evaluate(&[behind, done.clone()]).is_empty());
    let nothing = scenario.status(&[("q", &[(2, "-")], true)]);
    let never = LoadBalancerStatus::default();
    assert!(scenario.evaluate(&[never, done.clone()]).is_empty());
    assert_eq!(
        reasons(&scenario.evaluate(&[nothing, done])),
        [("LoadBalancerAdminStateDown", "n1")]
    );
}

#[tokio::test(start_paused = true)]
async fn new_leader_does_not_repeat_events() {
    let mut scenario = Scenario::new(&[node(1, &[DRAIN])], &[("p", 1, LedgerStage::Down)]);
    assert!(scenario.evaluate_pools(&[("p", OUT, true)]).is_empty());
    // A foreign admin state gets no event.
    let mut scenario = Scenario::new(&[node(1, &[DRAIN]), node(2, &[DRAIN])], &[]);
    assert!(
        scenario
            .evaluate_pools(&[("p", &[(1, "Down"), (2, "Up")], true)])
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn event_names_pools_where_down_has_no_effect() {
    let mut scenario = Scenario::new(
        &[node(1, &[DRAIN])],
        &[("p", 1, LedgerStage::Intended), ("q", 1, LedgerStage::Intended)],
    );
    let events = scenario.evaluate_pools(&[("p", OUT, true), ("q", OUT, false)]);
    let effect = "It has no effect in lb/q: no rule of it has a health probe.";
    assert!(events[0].2.ends_with(effect), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn event_names_the_draining_taint_after_out_of_service_was_removed() {
    let out_of_service = "node.kubernetes.io/out-of-service";
    let mut scenario = Scenario::new(&[node(1, &[out_of_service])], &[("p", 1, LedgerStage::Down)]);
    scenario.targets.apply(node(1, &[]), scenario.clock.now());
    tokio::time::advance(Duration::from_secs(1)).await;
    let events = scenario.evaluate_pools(&[("p", BACK, true)]);
    assert_contains!(events[0].2, "use cloudprovider.azure.microsoft.com/draining");
}

#[tokio::test(start_paused = true)]
async fn failure_gets_an_event_at_its_start_at_a_change_and_every_five_minutes() {
    let error = |class, code: &str| Some(LastError::new(class, code, format!("ARM said {code}"), None));
    let mut scenario = Scenario::new(&[node(1, &[DRAIN])], &[]);
    let pools: &Pools<'_> = &[("p", UP, true)];
    let count = |scenario: &mut Scenario| scenario.evaluate_pools(pools).len();
    scenario.last_error = error(ErrorClass::Retriable, "Throttled");
    let events = scenario.evaluate_pools(pools);
    assert_eq!(reasons(&events), [("LoadBalancerUpdateFailed", "n1")]);
    assert_eq!(
        events[0].2,
        "Admin state not updated: ARM said Throttled. headgate retries."
    );
    assert_eq!(count(&mut scenario), 0);
    scenario.last_error = error(ErrorClass::Retriable, "Connection");
    assert_eq!(count(&mut scenario), 0, "the codes alternate");
    tokio::time::advance(CHANGED_FAILURE_INTERVAL).await;
    assert_eq!(count(&mut scenario), 1, "another code");
    tokio::time::advance(FAILURE_REPEAT_INTERVAL).await;
    assert_eq!((count(&mut scenario), count(&mut scenario)), (1, 0), "repeated");
    scenario.last_error = error(ErrorClass::Terminal, "AuthorizationFailed");
    assert_eq!(count(&mut scenario), 1);
    tokio::time::advance(2 * FAILURE_REPEAT_INTERVAL).await;
    assert_eq!(count(&mut scenario), 0, "once");
    scenario.last_error = None;
    assert_eq!(count(&mut scenario), 0);
    scenario.last_error = error(ErrorClass::Terminal, "AuthorizationFailed");
    assert_eq!(count(&mut scenario), 1, "it had ended meanwhile");
}

#[tokio::test(start_paused = true)]
async fn failed_list_gets_an_event_on_every_signalled_node() {
    let mut scenario = Scenario::new(&[node(1, &[DRAIN]), node(2, &[])], &[]);
    let listing = Listing {
        last_error: Some(terminal("AuthorizationFailed", "ARM answered 403")),
        ..Listing::default()
    };
    let effects = scenario.effects(&[], &listing);
    let [event] = &effects.events[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((event.kind, event.node.name.as_str()), (FORBIDDEN[0].1, "n1"));
}

#[tokio::test(start_paused = true)]
async fn unreadable_interface_gets_an_event_on_nodes_that_may_have_it() {
    let nodes = [node(1, &[DRAIN]), node(2, &[DRAIN]), node(3, &[])];
    let mut scenario = Scenario::new(
        &nodes,
        &[
            ("p", 1, LedgerStage::Down),
            ("q", 1, LedgerStage::Down),
            ("q", 2, LedgerStage::Down),
        ],
    );
    scenario.unreadable_pools = vec![UnreadablePool {
        pool: pool_id("p"),
        last_error: terminal("InvalidResourceType", "nic cannot be read"),
    }];
    let pools: &Pools<'_> = &[
        ("p", &[(1, "Down"), (8, "-")], true),
        ("q", &[(1, "Down"), (2, "Down"), (8, "-")], true),
    ];
    let events = scenario.evaluate_pools(pools);
    assert_eq!(
        reasons(&events),
        [("LoadBalancerUpdateFailed", "n2")],
        "node 1 has an entry there, node 3 has no signal"
    );
    let note = "Admin state not updated: nic cannot be read. headgate retries at growing intervals";
    assert!(events[0].2.starts_with(note), "{events:?}");
    assert!(scenario.evaluate_pools(pools).is_empty(), "once");
    let error = &mut scenario.unreadable_pools[0].last_error;
    (error.class, error.message) = (ErrorClass::Retriable, "nic cannot be read.".to_owned());
    let events = scenario.evaluate_pools(pools);
    assert_eq!(events.len(), 1, "another class");
    assert!(events[0].2.contains("cannot be read. headgate"), "{events:?}");
    tokio::time::advance(FAILURE_REPEAT_INTERVAL).await;
    assert_eq!(scenario.evaluate_pools(pools).len(), 1, "repeated");
    // A plan from before the signal says nothing about it.
    let before = scenario.status(pools);
    scenario.targets.apply(node(3, &[DRAIN]), scenario.clock.now());
    assert!(scenario.evaluate(&[before]).is_empty());
    assert_eq!(
        reasons(&scenario.evaluate_pools(pools)),
        [("LoadBalancerUpdateFailed", "n3")]
    );
    // A failure of the Node's own entries comes first.
    let other: &Pools<'_> = &[
        ("p", &[(1, "Down"), (8, "-")], true),
        ("q", &[(2, "-"), (8, "-")], true),
    ];
    scenario.last_error = Some(terminal("ScopeLocked", "locked"));
    let events = scenario.evaluate_pools(other);
    assert!(events.len() == 1 && events[0].2.contains("locked"), "{events:?}");
    scenario.unreadable_pools.clear();
    scenario.last_error = None;
    assert!(scenario.evaluate_pools(pools).is_empty());
}

#[tokio::test(start_paused = true)]
async fn pool_without_an_eligible_entry_gets_one_warning() {
    let mut scenario = Scenario::new(&[node(1, &[DRAIN]), node(2, &[DRAIN])], &[]);
    let pools: &Pools<'_> = &[("q", &[(2, "-"), (9, "-")], true), ("p", UP, true)];
    let events = scenario.evaluate_pools(pools);
    assert_eq!(reasons(&events), [("LoadBalancerPoolEmpty", "n1")]);
    assert!(scenario.evaluate_pools(pools).is_empty());
    scenario.targets.apply(node(2, &[]), scenario.clock.now());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(scenario.evaluate_pools(pools).is_empty());
    scenario.targets.apply(node(2, &[DRAIN]), scenario.clock.now());
    assert_eq!(scenario.evaluate_pools(pools).len(), 1, "repeated");
}

#[test]
fn long_notes_are_truncated() {
    let note = truncate("ö".repeat(900));
    assert!(note.len() <= 1024 && note.ends_with('…'), "{}", note.len());
    assert_eq!(truncate("short".to_owned()), "short");
}

#[tokio::test(start_paused = true)]
async fn what_arm_forbids_has_a_reason_of_its_own_on_the_node() {
    for (code, reason, words) in [
        ("AuthorizationFailed", "AzureRoleMissing", "headgate's role"),
        (
            "LinkedAuthorizationFailed",
            "AzureLinkedScopeForbidden",
            "virtual network",
        ),
        ("DenyAssignmentAuthorizationFailed", "AzureDenyAssignment", "locked"),
        ("ScopeLocked", "LoadBalancerUpdateFailed", "until an operator"),
    ] {
        let mut scenario = Scenario::new(&[node(1, &[DRAIN])], &[]);
        scenario.last_error = Some(LastError::new(
            ErrorClass::Terminal,
            code,
            "ARM answered 403".to_owned(),
            None,
        ));
        let events = scenario.evaluate_pools(&[("p", UP, true)]);
        assert_eq!(reasons(&events), [(reason, "n1")]);
        assert_contains!(events[0].2, "ARM answered 403", words);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restored_entry_is_not_recorded_again() {
    let mut scenario = Scenario::new(&[node(1, &[])], &[("p", 1, LedgerStage::Restored)]);
    let status = scenario.status(&[("p", &[(1, "-")], true)]);
    let effects = scenario.effects(&[status], &Listing::default());
    assert!(effects.ledger_changes.is_empty(), "the ledger would never forget it");
}

#[tokio::test(start_paused = true)]
async fn time_to_down_is_not_measured_for_an_entry_that_is_younger_than_its_signal() {
    for (first, is_measured) in [(1, true), (2, false)] {
        let mut scenario = Scenario::new(&[node(1, &[DRAIN]), node(2, &[])], &[]);
        let mut listing = Listing::default();
        // The first list shows the load balancers of before the signal.
        for requested_at in [None, Some(scenario.clock.now().mono)] {
            listing.requested_at = requested_at;
            let status = scenario.status(&[("p", &[(first, "-"), (3, "-")], true)]);
            scenario.effects(&[status], &listing);
        }
        tokio::time::advance(Duration::from_hours(4)).await;
        scenario.ledger.apply(ledger_change("p", 1, LedgerStage::Intended));
        let status = scenario.status(&[("p", &[(1, "Down"), (2, "-")], true)]);
        let effects = scenario.effects(&[status], &listing);
        assert_eq!(effects.events.len(), 1);
        assert_eq!(effects.signal_to_down.len(), usize::from(is_measured), "{first}");
    }
}
