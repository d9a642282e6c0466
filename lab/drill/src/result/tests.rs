use super::*;
use crate::spread::Spread;

const RUN: RunIdentity = RunIdentity {
    scenario: Scenario::ScaleDown,
    strategy: Strategy::KubeProxy,
    seed: 7,
    speed: 10.0,
    nodes: 4,
    longest_lag: Duration::ZERO,
};

const KEPT: Connection = Connection {
    through: 0,
    opened: Duration::ZERO,
    ended: Duration::from_secs(20),
    lost: None,
};

fn attempts(failed: impl Fn(usize) -> bool) -> Vec<Attempt> {
    let attempt = |index: usize| Attempt {
        at: Duration::from_millis(100) * u32::try_from(index).unwrap(),
        succeeded: !failed(index),
    };
    (0..=400).map(attempt).collect()
}

fn event(t: f64, event: Event) -> TimelineEvent {
    TimelineEvent { t, event, node: 0 }
}

#[test]
fn blackhole_seconds_are_those_of_one_nodes_share() {
    // Of 40 s, every fourth connection is lost for 8 s: one of four nodes is dead that long.
    let result = summarize(
        &RUN,
        attempts(|index| (100..180).contains(&index) && index % 4 == 0),
        &[],
        Vec::new(),
    );
    assert_eq!((result.attempted, result.failed), (401, 20));
    assert!(
        (result.blackhole_seconds - 8.0).abs() < 0.05,
        "{}",
        result.blackhole_seconds
    );
    assert_eq!(summarize(&RUN, Vec::new(), &[], Vec::new()).failed_share, 0.0);
}

#[test]
fn connections_lost_with_the_machine_are_distinguished_from_those_before() {
    let lost = |seconds: f64| Connection {
        ended: Duration::from_secs_f64(seconds),
        lost: Some(Duration::from_secs_f64(seconds)),
        ..KEPT
    };
    let connections = [lost(5.0), lost(9.8), lost(11.0), KEPT];
    let timeline = vec![event(10.0, Event::NodeGone), event(5.0, Event::Signal)];
    let result = summarize(&RUN, Vec::new(), &connections, timeline);
    assert_eq!((result.established, result.established_lost), (4, 3));
    assert_eq!(
        result.established_lost_before_node_gone, 1,
        "0.2 s before is within the tolerance at this speed"
    );
    let at_the_tolerance = summarize(&RUN, Vec::new(), &[lost(9.5)], result.timeline.clone());
    assert_eq!(at_the_tolerance.established_lost_before_node_gone, 0, "both at once");
    assert_eq!(result.established_lost_at, [5.0, 9.8, 11.0]);
    assert_eq!(result.timeline[0].event, Event::Signal, "sorted");
    let alive = summarize(&RUN, Vec::new(), &connections, Vec::new());
    assert_eq!(alive.established_lost_before_node_gone, 3, "no machine died");
}

#[test]
fn connections_count_that_were_open_through_a_leaving_node_at_its_signal() {
    let seconds = Duration::from_secs;
    let life = |through: usize, opened: u64, ended: u64| Connection {
        through,
        opened: seconds(opened),
        ended: seconds(ended),
        lost: None,
    };
    let connections = [
        life(0, 1, 9),
        life(0, 1, 4),
        life(0, 6, 9),
        life(1, 1, 9),
        life(2, 1, 9),
    ];
    let at = |t: f64, event: Event, node: usize| TimelineEvent { t, event, node };
    let timeline = vec![
        at(5.0, Event::Signal, 0),
        at(7.0, Event::Signal, 0),
        at(8.0, Event::NodeGone, 0),
        at(5.0, Event::Signal, 1),
        at(8.0, Event::NodeGone, 1),
        at(5.0, Event::Signal, 2),
    ];
    let result = summarize(&RUN, Vec::new(), &connections, timeline);
    assert_eq!(
        result.established_at_signal,
        Some(2),
        "one each through the nodes 0 and 1; node 2 stays"
    );
}

#[test]
fn a_run_has_the_fields_of_its_interface() {
    let timeline = vec![event(5.0, Event::Signal), event(5.1, Event::Healthz503)];
    let result = summarize(&RUN, attempts(|_| false), &[], timeline);
    let json = serde_json::to_value(&result).unwrap();
    for (field, expected) in [
        ("scenario", serde_json::json!("scale-down")),
        ("strategy", serde_json::json!("kube-proxy")),
        ("seed", serde_json::json!(7)),
        ("speed", serde_json::json!(10.0)),
        ("attempted", serde_json::json!(401)),
        ("failed", serde_json::json!(0)),
        ("failedShare", serde_json::json!(0.0)),
        ("established", serde_json::json!(0)),
        ("establishedLost", serde_json::json!(0)),
        ("establishedAtSignal", serde_json::json!(0)),
        ("blackholeSeconds", serde_json::json!(0.0)),
    ] {
        assert_eq!(json[field], expected, "{field}");
    }
    assert_eq!(
        json["timeline"][1],
        serde_json::json!({"t": 5.1, "event": "healthz503", "node": 0})
    );
    assert!(json.get("attempts").is_none());
    assert_eq!(json["conditions"], serde_json::Value::Null, "stated by the caller");
}

#[test]
fn the_slowest_node_decides_when_a_run_is_out_of_rotation() {
    let at = |t: f64, event: Event, node: usize| TimelineEvent { t, event, node };
    let timeline = [
        at(5.0, Event::Signal, 0),
        at(5.0, Event::Signal, 1),
        at(6.0, Event::OutOfRotation, 0),
        at(30.0, Event::Signal, 2),
        at(13.0, Event::OutOfRotation, 1),
        at(31.0, Event::OutOfRotation, 2),
        at(90.0, Event::OutOfRotation, 2),
    ];
    let out_after = |timeline: &[TimelineEvent]| time_from_signal(timeline, &Event::Signal, &Event::OutOfRotation);
    assert_eq!(out_after(&timeline), Some(8.0));
    assert_eq!(out_after(&timeline[..2]), None);
}

#[test]
fn a_zero_bounds_the_blackhole_that_may_have_been_there_unseen() {
    // Four nodes, 40 s, 400 connections: 2.5 a second to each node, of which three are to be expected in a blackhole of 1.2 s.
    let run = Exposure {
        attempted: 400.0,
        failed: 0.0,
        node_seconds: 160.0,
    };
    let bound = blackhole_bound(&[run]).unwrap();
    assert!((bound - 1.198).abs() < 1e-3, "{bound}");
    let bound = blackhole_bound(&[run; 20]).unwrap();
    assert!((bound - 1.198 / 20.0).abs() < 1e-3, "{bound}");
    assert_eq!(blackhole_bound(&[run, Exposure { failed: 1.0, ..run }]), None);
    assert_eq!(blackhole_bound(&[]), None);
    let unknown = Exposure {
        node_seconds: 0.0,
        ..run
    };
    assert_eq!(blackhole_bound(&[unknown]), None, "the number of nodes is not known");
    assert_eq!(blackhole_bound(&[run, unknown]), blackhole_bound(&[run]));
    assert_eq!(wilson(0.0, 0.0), (0.0, 1.0));
    let (low, high) = wilson(0.0, 400.0);
    assert!(low < 1e-9 && (high - 0.0095).abs() < 1e-4, "{low} {high}");
    let (low, high) = wilson(40.0, 400.0);
    assert!(
        (low - 0.0743).abs() < 1e-3 && (high - 0.1333).abs() < 1e-3,
        "{low} {high}"
    );
}

#[test]
fn a_run_without_a_failure_bounds_the_blackhole() {
    let mut run = summarize(&RUN, attempts(|_| false), &[], Vec::new());
    assert_eq!(
        blackhole_bound(&[run.exposure()]),
        None,
        "the number of nodes is not known"
    );
    run.conditions = Some(Conditions {
        nodes: 4,
        ..Conditions::default()
    });
    // 401 connections in 40 s: 2.5 a second to each node.
    let bound = blackhole_bound(&[run.exposure()]).unwrap();
    assert!((bound - 1.195).abs() < 1e-3, "{bound}");
}

#[test]
fn a_lag_counts_in_the_time_of_the_scenario() {
    assert!(!is_too_late(0.3, 1.0) && is_too_late(0.31, 1.0));
    assert!(!is_too_late(0.03, 10.0) && is_too_late(0.031, 10.0));
}

#[test]
fn a_spread_has_the_mean_the_range_and_the_deviation() {
    let spread = Spread::new(&[4.0, 8.0]);
    assert_eq!((spread.mean, spread.min, spread.max), (6.0, 4.0, 8.0));
    assert!((spread.deviation - 8.0_f64.sqrt()).abs() < 1e-9);
    assert_eq!(Spread::new(&[3.0]).deviation, 0.0);
    assert_eq!(Spread::new(&[]), Spread::default());
}
