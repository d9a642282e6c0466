//! What should be on the Node after each observation.

use headgate_core::clock::Clock;
use serde_json::{Value, json};

use headgate_core::node::{AUTOSCALER_TAINT, CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION, NodeReader, SignalRules};

use super::*;

const TIMEOUT: Duration = Duration::from_mins(2);
const SECOND: Duration = Duration::from_secs(1);

/// What a Node shows: the soft taint, the value of the hard one, the status of the marker, the annotation.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    is_candidate: bool,
    mark: Option<i64>,
    marker: Option<&'static str>,
    is_delayed: bool,
}

fn read(node: Value) -> Node {
    NodeReader::own(SignalRules::default()).read(serde_json::from_value(node).unwrap())
}

fn node(shown: Shown) -> Node {
    let mut taints = Vec::new();
    if shown.is_candidate {
        taints.push(json!({"key": CANDIDATE_TAINT, "value": "1", "effect": "PreferNoSchedule"}));
    }
    if let Some(mark) = shown.mark {
        taints.push(json!({"key": AUTOSCALER_TAINT, "value": mark.to_string(), "effect": "NoSchedule"}));
    }
    let condition = |status| json!({"type": "headgate.dev/OutOfLoadBalancers", "status": status});
    let conditions: Vec<Value> = shown.marker.iter().map(condition).collect();
    let annotations = if shown.is_delayed {
        json!({DELETION_DELAY_ANNOTATION: "true"})
    } else {
        json!({"delay-deletion.cluster-autoscaler.kubernetes.io/other": "true"})
    };
    let node = json!({"metadata": {"name": "n", "uid": "u", "annotations": annotations}, "spec": {"taints": taints},
        "status": {"conditions": conditions}});
    read(node)
}

/// Now, in whole seconds of the wall clock, as the values of the taint are.
fn start() -> Moment {
    let now = Clock::System.now();
    Moment {
        wall: Timestamp::from_second(now.wall.as_second()).unwrap(),
        ..now
    }
}

fn at(start: Moment, seconds: u32) -> Moment {
    Moment {
        wall: start.wall + seconds * SECOND,
        mono: start.mono + seconds * SECOND,
    }
}

fn unknown(now: Moment) -> NodeReport {
    NodeReport::initial(None, &SignalRules::default(), now)
}

fn report(shown: Shown, now: Moment) -> NodeReport {
    unknown(now).with_node(node(shown), now)
}

#[test]
fn annotation_follows_the_taints_the_marker_and_the_timeout() {
    use DelayState::{Candidate, Deleting, NoCandidate, Out, TimedOut};
    let start = start();
    let soft = Shown {
        is_candidate: true,
        ..Shown::default()
    };
    let hard = |second: u32| Shown {
        mark: Some(at(start, second).wall.as_second()),
        ..soft
    };
    let marked = |second, status| Shown {
        marker: Some(status),
        ..hard(second)
    };
    let is_wanted = |state| matches!(state, Candidate | Deleting);
    let bare = Shown::default();
    let scale_down = [
        (0, bare, NoCandidate, None),
        (1, soft, Candidate, None),
        (3600, soft, Candidate, None),
        (4000, hard(4000), Deleting, Some(4120)),
        (4001, marked(4000, "False"), Deleting, Some(4120)),
        (4002, marked(4000, "Unknown"), Deleting, Some(4120)),
        (4003, marked(4000, "True"), Out, None),
        (4004, marked(4000, "False"), Deleting, Some(4120)),
    ];
    let never_out = [
        (0, soft, Candidate, None),
        (10, hard(10), Deleting, Some(130)),
        (129, hard(10), Deleting, Some(130)),
        (130, hard(10), TimedOut, None),
        (900, hard(10), TimedOut, None),
        (1000, soft, Candidate, None),
        (1010, hard(1010), Deleting, Some(1130)),
    ];
    let withdrawn = [(0, soft, Candidate, None), (9, bare, NoCandidate, None)];
    let two_deletions = [
        (10, hard(10), Deleting, Some(130)),
        (100, hard(100), Deleting, Some(220)),
    ];
    let wrong_clock = [(0, soft, Candidate, None), (4000, hard(400), Deleting, Some(4120))];
    let out_already = Shown {
        marker: Some("True"),
        ..soft
    };
    let never_soft = Shown {
        is_candidate: false,
        ..hard(0)
    };
    for (case, steps) in [
        ("a scale-down", &scale_down[..]),
        ("the soft taint is withdrawn", &withdrawn),
        (
            "nothing takes the node out, then a rollback, then another try",
            &never_out,
        ),
        ("another deletion follows without a Node in between", &two_deletions),
        ("the clock of Cluster Autoscaler is wrong by an hour", &wrong_clock),
        ("a node that is out already", &[(0, out_already, Out, None)]),
        ("without soft taints", &[(0, never_soft, Deleting, Some(120))]),
    ] {
        let mut delay = DeletionDelay::new(Some(TIMEOUT));
        for (second, shown, state, changes_at) in steps {
            let now = at(start, *second);
            let expected = DelayTarget {
                state: *state,
                is_delayed: Some(is_wanted(*state)),
                changes_at: changes_at.map(|second| at(start, second).mono),
            };
            let found = delay.observe(&report(*shown, now), now);
            assert_eq!(found, expected, "{case}, second {second}");
        }
    }
}

#[test]
fn restart_does_not_prolong_the_delay() {
    let now = start();
    for (age, left) in [(0, 120), (100, 20), (120, 0), (9999, 0), (-50, 120)] {
        let mark = now.wall.as_second() - age;
        let shown = Shown {
            mark: Some(mark),
            is_delayed: true,
            ..Shown::default()
        };
        let target = DeletionDelay::new(Some(TIMEOUT)).observe(&report(shown, now), now);
        let remaining = target.changes_at.map_or(Duration::ZERO, |at| at - now.mono);
        assert_eq!(remaining, left * SECOND, "{age}");
        let is_over = left == 0;
        assert_eq!(target.state == DelayState::TimedOut, is_over, "{age}");
        assert_eq!(target.is_delayed, Some(!is_over), "{age}");
    }
    let unreadable =
        json!({"metadata": {"uid": "u"}, "spec": {"taints": [{"key": AUTOSCALER_TAINT, "effect": "NoSchedule"}]}});
    let report = unknown(now).with_node(read(unreadable), now);
    let target = DeletionDelay::new(Some(TIMEOUT)).observe(&report, now);
    assert_eq!(target.changes_at, Some(now.mono + TIMEOUT), "a taint without a time");
}

#[test]
fn unknown_node_is_not_written() {
    let now = start();
    let delayed = Shown {
        is_delayed: true,
        ..Shown::default()
    };
    let gone = report(delayed, now).without_node();
    for timeout in [None, Some(TIMEOUT)] {
        for report in [unknown(now), gone.clone()] {
            let target = DeletionDelay::new(timeout).observe(&report, now);
            assert_eq!((target.state, target.is_delayed), (DelayState::Unknown, None));
        }
    }
}

#[test]
fn annotation_that_is_left_over_is_removed_after_a_minute() {
    let start = start();
    let delayed = Shown {
        is_candidate: true,
        is_delayed: true,
        ..Shown::default()
    };
    let bare = Shown {
        is_delayed: false,
        ..delayed
    };
    let mut delay = DeletionDelay::new(None);
    for (second, shown, is_delayed, changes_at) in [
        (0, bare, None, None),
        (10, delayed, None, Some(70)),
        (40, delayed, None, Some(70)),
        (70, delayed, Some(false), None),
        (71, bare, None, None),
        (80, delayed, None, Some(140)),
    ] {
        let now = at(start, second);
        let target = delay.observe(&report(shown, now), now);
        let expected = DelayTarget {
            state: DelayState::Off,
            is_delayed,
            changes_at: changes_at.map(|second| at(start, second).mono),
        };
        assert_eq!(target, expected, "second {second}");
    }
}

#[test]
fn node_shows_its_removal() {
    let shows = |node: &Node| {
        let mark = node.deletion_mark().map(str::to_owned);
        (node.is_deletion_candidate(), mark, node.is_deletion_delayed())
    };
    // Another annotation is not headgate's.
    assert_eq!(shows(&node(Shown::default())), (false, None, false));
    let all = Shown {
        is_candidate: true,
        mark: Some(1_700_000_000),
        marker: None,
        is_delayed: true,
    };
    assert_eq!(shows(&node(all)), (true, Some("1700000000".to_owned()), true));
    let long = json!({"metadata": {}, "spec": {"taints": [{"key": AUTOSCALER_TAINT, "value": "9".repeat(200)}]}});
    assert_eq!(read(long).deletion_mark().unwrap().len(), 32);
}
