use std::sync::Arc;

use headgate_azure::ErrorClass;
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{MARKER_NO_SIGNAL, MarkerFact, MarkerStatus, Signal};
use jiff::Timestamp;

use super::super::super::fixtures::{
    DRAIN, ENFORCE, PoolFixture, ledger, node, plan_inputs, planned, status, target_states, view,
};
use super::super::super::plan::{PlanInputs, Policy, plan};
use super::super::super::planner::LoadBalancerStatus;
use super::super::super::settings::AdminStateMode;
use super::*;
use crate::pool::LastError;

const SECOND: Duration = Duration::from_secs(1);

/// How a scenario differs from the usual one.
type Change<'a> = &'a dyn Fn(&mut Scenario);

/// A load balancer, and how it is known.
struct Scenario {
    nodes: Vec<ClusterNode>,
    mode: AdminStateMode,
    /// From the signal to the evaluation.
    elapsed: Duration,
    /// The age of the last list, and whether a newer one failed.
    list_age: Option<Duration>,
    has_list_failed: bool,
    /// The age of the read that the plan was made from; `None` if nothing was planned since the signal.
    read_age: Option<Duration>,
    covers_interfaces: bool,
    /// The time since the term began.
    term_age: Duration,
    is_stale: bool,
}

impl Scenario {
    fn new(nodes: &[ClusterNode]) -> Self {
        Self {
            nodes: nodes.to_vec(),
            mode: AdminStateMode::Enforce,
            elapsed: 10 * SECOND,
            list_age: Some(5 * SECOND),
            has_list_failed: false,
            read_age: Some(2 * SECOND),
            covers_interfaces: true,
            term_age: 60 * SECOND,
            is_stale: false,
        }
    }

    /// The evaluation, if the last plan was made from `read` and the last list shows `listed`.
    fn evaluate(&self, read: &[PoolFixture<'_>], listed: &[PoolFixture<'_>]) -> Evaluation {
        let start = Clock::anchored(Timestamp::UNIX_EPOCH).now();
        // The monotonic clock of a machine that has just booted has no earlier times.
        let now = start.mono + Duration::from_hours(1);
        let signal_at = Moment {
            wall: start.wall,
            mono: now - self.elapsed,
        };
        let mut targets = target_states(&self.nodes, signal_at);
        let generation = targets.generation;
        if self.is_stale {
            targets.set_stale_since(Some(start.wall));
        }
        let read = view(read);
        let plan = plan(
            &read,
            &PlanInputs {
                policy: Policy {
                    mode: self.mode,
                    ..ENFORCE
                },
                ..plan_inputs(&targets, &ledger(&[]), Moment { mono: now, ..start })
            },
        );
        let status = LoadBalancerStatus {
            planned_generation: self.read_age.map(|_| generation),
            observed_at: self.read_age.map(|age| now - age),
            covers_interfaces: self.covers_interfaces,
            view: self.read_age.map(|_| Arc::new(read.clone())),
            ..status(plan, &targets)
        };
        let mut listing = Listing {
            requested_at: self.list_age.map(|age| now - age),
            received_at: self.list_age.map(|age| now - age),
            ..Listing::default()
        };
        listing.load_balancers.insert(read.id.clone(), Arc::new(view(listed)));
        if self.has_list_failed {
            let error = LastError::new(ErrorClass::Retriable, "ServiceUnavailable", "m".to_owned(), None);
            listing.last_error = Some(error);
        }
        let load_balancers = [planned(status)];
        let now = Moment { mono: now, ..start };
        let reads = LastReads::new(&targets, &load_balancers, &ledger(&[]), &listing, self.mode, now);
        evaluate(&MarkerInputs {
            traffic: &reads.prove(&TrafficByNode::new()),
            reads: &reads,
            started_at: now.mono - self.term_age,
        })
    }

    /// Status, reason and message of the first Node.
    fn condition(
        &self,
        read: &[PoolFixture<'_>],
        listed: &[PoolFixture<'_>],
    ) -> Option<(&'static str, &'static str, String)> {
        let mut evaluation = self.evaluate(read, listed);
        let state = evaluation.markers.remove("n1")?;
        let MarkerCondition {
            status,
            reason,
            message,
        } = state.wanted;
        Some((status.as_str(), reason, message))
    }
}

fn shows(status: &str) -> MarkerFact {
    MarkerFact {
        status: MarkerStatus::read(status),
        ..MarkerFact::default()
    }
}

const UP: [PoolFixture<'_>; 2] = [("a", &[(1, "None"), (2, "None")], true), ("b", &[(1, "-")], true)];
const HALF: [PoolFixture<'_>; 2] = [("a", &[(1, "Down"), (2, "None")], true), ("b", &[(1, "-")], true)];
const DOWN: [PoolFixture<'_>; 2] = [("a", &[(1, "Down"), (2, "None")], true), ("b", &[(1, "Down")], true)];
const UNPROBED: [PoolFixture<'_>; 2] = [("a", &[(1, "Down"), (2, "None")], true), ("b", &[(1, "Down")], false)];
const ABSENT: [PoolFixture<'_>; 2] = [("a", &[(2, "None")], true), ("b", &[], true)];
const FIRST_DOWN: [PoolFixture<'_>; 1] = [("a", &[(1, "Down"), (1, "None"), (2, "None")], true)];
const LAST_DOWN: [PoolFixture<'_>; 1] = [("a", &[(1, "None"), (1, "Down"), (2, "None")], true)];
const OPERATORS: [PoolFixture<'_>; 1] = [("a", &[(1, "Up")], true)];

#[test]
fn a_node_with_a_signal() {
    for (what, pools, status, reason, says) in [
        ("in service", &UP[..], "False", "NotDown", "Not Down in lb/a, lb/b."),
        ("one pool is missing", &HALF, "False", "NotDown", "Not Down in lb/b."),
        (
            "out",
            &DOWN,
            "True",
            "AdminStateDown",
            "Read back as Down in lb/a, lb/b;",
        ),
        (
            "a rule without a probe",
            &UNPROBED,
            "True",
            "AdminStateDown",
            "ignore Down: lb/b.",
        ),
        (
            "in no pool",
            &ABSENT,
            "True",
            "AdminStateDown",
            "without an entry of this node",
        ),
        ("Up", &OPERATORS, "False", "NotDown", "an operator's decision"),
    ] {
        let found = Scenario::new(&[node(1, &[DRAIN]), node(2, &[])])
            .condition(pools, pools)
            .unwrap();
        assert_eq!((found.0, found.1), (status, reason), "{what}");
        assert!(found.2.contains(says), "{what}: {}", found.2);
    }
    let observing = Scenario {
        mode: AdminStateMode::Observe,
        ..Scenario::new(&[node(1, &[DRAIN]), node(2, &[])])
    };
    let (_, reason, message) = observing.condition(&UP, &UP).unwrap();
    let expected = "Not Down in lb/a, lb/b. adminState.mode is Observe.";
    assert_eq!((reason, message.as_str()), ("NotDown", expected));
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_evaluated_again_when_its_list_is_too_old_or_its_plan_is_due() {
    let mut marked = node(1, &[DRAIN]);
    marked.marker = Some(shows("True"));
    let new = node(1, &[DRAIN]);
    let signal = |elapsed| Duration::from_hours(1).saturating_sub(elapsed);
    for (what, node, elapsed, read_age, pools, is_shown, next_in) in [
        (
            "out",
            &new,
            10 * SECOND,
            Some(SECOND),
            &DOWN,
            true,
            Some(signal(5 * SECOND) + MAX_LIST_AGE),
        ),
        (
            "not planned by all yet",
            &new,
            SECOND / 2,
            None,
            &UP,
            false,
            Some(signal(SECOND / 2) + FIRST_PLAN_TIME),
        ),
        ("planned", &new, SECOND / 2, Some(SECOND / 4), &UP, true, None),
        ("disproved", &marked, SECOND / 2, None, &UP, true, None),
        ("planned too late", &new, 2 * SECOND, None, &UP, true, None),
    ] {
        let scenario = Scenario {
            elapsed,
            read_age,
            ..Scenario::new(std::slice::from_ref(node))
        };
        let evaluation = scenario.evaluate(pools, pools);
        let found = evaluation.next_at.map(|at| at - Instant::now());
        assert_eq!(
            (evaluation.markers.contains_key("n1"), found),
            (is_shown, next_in),
            "{what}"
        );
    }
}

#[test]
fn a_node_without_a_signal_has_no_condition_or_a_settled_one() {
    assert_eq!(Scenario::new(&[node(1, &[])]).condition(&UP, &UP), None);
    for status in ["True", "False", "Unknown"] {
        let mut marked = node(1, &[]);
        marked.marker = Some(shows(status));
        let mut scenario = Scenario::new(&[marked]);
        let found = scenario.condition(&DOWN, &DOWN).unwrap();
        assert_eq!((found.0, found.1), ("False", MARKER_NO_SIGNAL));
        scenario.is_stale = true;
        assert_eq!(
            scenario.condition(&DOWN, &DOWN),
            None,
            "stale Nodes show no end of a signal"
        );
    }
}

#[test]
fn a_cordon_that_does_not_count_yet_ends_no_condition_but_an_unproved_true() {
    for (status, expected) in [("True", Some(MARKER_NO_SIGNAL)), ("False", None), ("Unknown", None)] {
        let mut cordoned = node(1, &[]);
        cordoned.signals = [(Signal::Unschedulable, Duration::from_hours(1))].into();
        cordoned.marker = Some(shows(status));
        let found = Scenario::new(&[cordoned]).condition(&DOWN, &DOWN);
        assert_eq!(found.map(|found| found.1), expected, "{status}");
    }
}

#[test]
fn what_is_not_proved_is_not_out() {
    let nodes = [node(1, &[DRAIN]), node(2, &[])];
    // Its entry that is in service belongs to the other one by its name, but the address may be this one's.
    let mut contested = node(1, &[DRAIN]);
    contested.addresses.extend_from_slice(&nodes[1].addresses);
    let mut unknown = node(1, &[DRAIN]);
    unknown.addresses.clear();
    let listed = |elapsed, age| move |it: &mut Scenario| (it.elapsed, it.list_age) = (elapsed, Some(age));
    let changes: [(&str, Change<'_>, &str); 9] = [
        ("not planned", &|it| it.read_age = None, "NotRead"),
        ("never listed", &|it| it.list_age = None, "NotRead"),
        ("an old list", &listed(60 * SECOND, 45 * SECOND), "NotRead"),
        (
            "a list from before the signal",
            &|it| it.list_age = Some(11 * SECOND),
            "NotRead",
        ),
        ("interfaces", &|it| it.covers_interfaces = false, "NotRead"),
        ("stale", &|it| it.is_stale = true, "NodesStale"),
        ("off", &|it| it.mode = AdminStateMode::Disabled, "AdminStateOff"),
        ("contested", &|it| it.nodes[0] = contested.clone(), "AddressContested"),
        ("no address", &|it| it.nodes = vec![unknown.clone()], "NotIdentified"),
    ];
    for (what, change, reason) in changes {
        let mut scenario = Scenario::new(&nodes);
        change(&mut scenario);
        let found = scenario.condition(&DOWN, &DOWN).unwrap();
        assert_eq!((found.0, found.1), ("False", reason), "{what}: {}", found.2);
    }
    let mut just = Scenario::new(&nodes);
    listed(60 * SECOND, 44 * SECOND)(&mut just);
    assert_eq!(just.condition(&DOWN, &DOWN).unwrap().0, "True");
    assert!(
        just.evaluate(&DOWN, &DOWN).next_at.is_some(),
        "evaluated again when the list is too old"
    );
}

/// Whoever may write one Node could claim the addresses of all others, and no drain would end.
#[test]
fn a_claim_without_an_entry_in_service_disproves_nothing() {
    let victim = node(1, &[DRAIN]);
    let mut claimant = node(2, &[]);
    claimant.addresses.extend_from_slice(&victim.addresses);
    (claimant.machine, claimant.created) = (victim.machine.clone(), Timestamp::MAX);
    let scenario = Scenario {
        list_age: Some(SECOND),
        ..Scenario::new(&[victim, claimant])
    };
    assert_eq!(scenario.condition(&DOWN, &DOWN).unwrap().1, "AdminStateDown");
    assert_ne!(scenario.condition(&DOWN, &HALF).unwrap().0, "True");
}

#[test]
fn a_list_that_the_pool_writer_has_not_adopted_disproves() {
    let scenario = Scenario {
        list_age: Some(SECOND),
        ..Scenario::new(&[node(1, &[DRAIN])])
    };
    let found = scenario.condition(&DOWN, &HALF).unwrap();
    assert_eq!((found.0, found.1), ("False", "NotDown"));
    assert!(found.2.contains("lb/b"), "{}", found.2);
    for (what, read, listed, status) in [
        ("another entry of the node", &ABSENT[..], &UP[..], "False"),
        ("another pool with the node", &DOWN[..1], &HALF, "False"),
        ("the same, Down", &DOWN[..1], &DOWN, "True"),
        ("an entry of another node", &OPERATORS[..0], &ABSENT, "True"),
        (
            "the same twice, of which the first counts",
            &DOWN[..1],
            &FIRST_DOWN,
            "True",
        ),
        ("the same twice, first in service", &DOWN[..1], &LAST_DOWN, "False"),
    ] {
        assert_eq!(scenario.condition(read, listed).unwrap().0, status, "{what}");
    }
    let older = Scenario {
        list_age: Some(3 * SECOND),
        ..scenario
    };
    for read in [&DOWN, &ABSENT] {
        assert_eq!(older.condition(read, &HALF).unwrap().0, "True", "the read is newer");
    }
}

#[test]
fn the_first_write_waits_for_the_first_plan_and_a_new_leader_for_its_first_reads() {
    let unplanned = || Scenario {
        read_age: None,
        ..Scenario::new(&[node(1, &[DRAIN])])
    };
    let fresh = Scenario {
        elapsed: SECOND / 2,
        ..unplanned()
    };
    assert_eq!(fresh.condition(&ABSENT, &ABSENT), None);
    assert!(fresh.evaluate(&ABSENT, &ABSENT).next_at.is_some());
    let failed = Scenario {
        has_list_failed: true,
        ..fresh
    };
    assert_eq!(failed.condition(&ABSENT, &ABSENT).unwrap().1, "NotRead");
    let mut marked = node(1, &[DRAIN]);
    marked.marker = Some(shows("True"));
    let taken_over = |term_age, pools: &[PoolFixture<'_>]| {
        let scenario = Scenario {
            term_age,
            read_age: None,
            ..Scenario::new(std::slice::from_ref(&marked))
        };
        scenario.condition(pools, pools).map(|found| found.1)
    };
    assert_eq!(
        taken_over(14 * SECOND, &DOWN),
        None,
        "what the leader before has confirmed stays"
    );
    assert_eq!(taken_over(15 * SECOND, &DOWN), Some("NotRead"));
    assert_eq!(taken_over(SECOND, &HALF), Some("NotDown"), "unless a read disproves it");
}
