use std::collections::BTreeSet;

use headgate_clock::{Clock, Moment};
use headgate_node::NodeHold;
use jiff::Timestamp;

use super::super::fixtures::{DRAIN, node};
use super::super::holds::DesiredHold;
use super::schedule::{
    CONFIRM_TIMEOUT, MAX_CONCURRENT_RETRIES, MAX_CONCURRENT_WRITES, MAX_RETRY_DELAY, MIN_RETRY_DELAY, RENEW_INTERVAL,
};
use super::*;

fn desired_of(number: u8, signals: &[&str]) -> (String, DesiredHold) {
    let hold = DesiredHold {
        node: Arc::new(node(number, &[DRAIN])),
        pools: ["lb/p".to_owned()].into(),
        probes_headgate: true,
        signals: signals.iter().map(ToString::to_string).collect(),
        pending: BTreeSet::new(),
        reason: String::new(),
        needed: BTreeSet::new(),
    };
    (format!("n{number}"), hold)
}

fn desired(signals: &[&str]) -> DesiredHolds {
    [desired_of(1, signals)].into()
}

/// Nodes that the watch shows with a hold for these signals.
fn recorded_with(nodes: &[(&str, &str)], signals: &[&str]) -> RecordedHolds {
    let pair = |(name, uid): &(&str, &str)| {
        let mut held = node(1, &[DRAIN]);
        (held.name, held.uid) = ((*name).to_owned(), (*uid).to_owned());
        held.hold = Some(NodeHold {
            node_uid: String::new(),
            renewed_at: Timestamp::UNIX_EPOCH,
            pools: ["lb/p".to_owned()].into(),
            probes_headgate: true,
            signals: signals.iter().map(ToString::to_string).collect(),
            pending: BTreeSet::new(),
            reason: String::new(),
        });
        ((*name).to_owned(), Arc::new(held))
    };
    nodes.iter().map(pair).collect()
}

fn recorded(nodes: &[(&str, &str)]) -> RecordedHolds {
    recorded_with(nodes, &[DRAIN])
}

/// The Nodes of the writes, and whether each is a hold.
fn shown(writes: &[HoldWrite]) -> Vec<(&str, bool)> {
    writes
        .iter()
        .map(|write| (write.node.as_str(), write.hold.is_some()))
        .collect()
}

fn after(now: Moment, time: Duration) -> Moment {
    Moment {
        mono: now.mono + time,
        ..now
    }
}

/// What would be started.
fn due_writes(
    schedule: &HoldSchedule,
    desired: &DesiredHolds,
    recorded: &RecordedHolds,
    now: Moment,
) -> Vec<HoldWrite> {
    schedule.clone().start_due(desired, recorded, now).0
}

/// Starts what is due and ends it at once.
fn write_due(
    schedule: &mut HoldSchedule,
    desired: &DesiredHolds,
    recorded: &RecordedHolds,
    now: Moment,
    is_written: bool,
) -> Vec<HoldWrite> {
    let due = schedule.start_due(desired, recorded, now).0;
    for write in &due {
        schedule.finish(write.clone(), is_written, now.mono);
    }
    due
}

#[test]
fn hold_is_written_when_it_is_new_changed_or_due_for_renewal() {
    let now = Clock::System.now();
    let (mut schedule, held) = (HoldSchedule::default(), recorded(&[("n1", "u1")]));
    // A leader renews the holds of an earlier one at once.
    let due = write_due(&mut schedule, &desired(&[DRAIN]), &held, now, true);
    assert_eq!(shown(&due), [("n1", true)]);
    let soon = after(now, RENEW_INTERVAL / 2);
    assert!(due_writes(&schedule, &desired(&[DRAIN]), &held, soon).is_empty());
    assert_eq!(
        schedule.start_due(&desired(&[DRAIN]), &held, soon).1,
        Some(now.mono + RENEW_INTERVAL)
    );
    assert_eq!(
        shown(&due_writes(&schedule, &desired(&[DRAIN, "x"]), &held, soon)),
        [("n1", true)]
    );
    let renewal = due_writes(&schedule, &desired(&[DRAIN]), &held, after(now, RENEW_INTERVAL));
    assert_eq!(shown(&renewal), [("n1", true)]);
}

#[test]
fn hold_that_is_over_is_removed_until_the_watch_shows_it() {
    let now = Clock::System.now();
    let (none, mut schedule) = (DesiredHolds::new(), HoldSchedule::default());
    let both = recorded(&[("n1", "u1"), ("n2", "u2")]);
    let due = due_writes(&schedule, &none, &both, now);
    assert_eq!(shown(&due), [("n1", false), ("n2", false)]);
    write_due(
        &mut schedule,
        &none,
        &recorded(&[("n1", "u1"), ("n2", "another Node of this name")]),
        now,
        true,
    );
    assert_eq!(shown(&due_writes(&schedule, &none, &both, now)), [("n2", false)]);
    let later = after(now, CONFIRM_TIMEOUT);
    assert_eq!(due_writes(&schedule, &none, &both, later).len(), 2);
}

#[test]
fn hold_that_vanishes_is_written_at_once() {
    let now = Clock::System.now();
    let (mut schedule, target) = (HoldSchedule::default(), desired(&[DRAIN]));
    let (held, none) = (recorded(&[("n1", "u1")]), recorded(&[]));
    assert_eq!(write_due(&mut schedule, &target, &none, now, true).len(), 1);
    // The watch is a moment behind.
    let soon = after(now, Duration::from_millis(300));
    assert!(due_writes(&schedule, &target, &none, soon).is_empty());
    assert_eq!(
        schedule.clone().start_due(&target, &none, soon).1,
        Some(now.mono + CONFIRM_TIMEOUT)
    );
    assert_eq!(
        due_writes(&schedule, &target, &none, after(now, CONFIRM_TIMEOUT)).len(),
        1
    );
    // It has shown the hold, and then another one or none.
    assert!(due_writes(&schedule, &target, &held, soon).is_empty());
    schedule.start_due(&target, &held, soon);
    for changed in [
        none,
        recorded_with(&[("n1", "u1")], &["other"]),
        recorded(&[("n1", "another")]),
    ] {
        assert_eq!(due_writes(&schedule, &target, &changed, soon).len(), 1, "{changed:?}");
    }
    // One that was removed and comes back, as by a late write of an earlier leader, is removed again at once.
    let over = DesiredHolds::new();
    assert_eq!(
        shown(&write_due(&mut schedule, &over, &held, soon, true)),
        [("n1", false)]
    );
    schedule.start_due(&over, &recorded(&[]), soon);
    assert_eq!(shown(&due_writes(&schedule, &over, &held, soon)), [("n1", false)]);
}

#[test]
fn each_node_has_a_backoff_of_its_own() {
    let now = Clock::System.now();
    let (mut schedule, none) = (HoldSchedule::default(), recorded(&[]));
    let mut delays = Vec::new();
    let (mut at, target) = (now, desired(&[DRAIN]));
    for _ in 0..7 {
        assert_eq!(write_due(&mut schedule, &target, &none, at, false).len(), 1);
        let (early, next_at) = schedule.start_due(&target, &none, at);
        assert!(early.is_empty());
        let delay = next_at.unwrap() - at.mono;
        delays.push(delay.as_secs());
        at = after(at, delay);
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    assert!(
        delays
            .iter()
            .all(|delay| (MIN_RETRY_DELAY.as_secs()..=MAX_RETRY_DELAY.as_secs()).contains(delay))
    );
    write_due(&mut schedule, &target, &none, at, false);
    // Neither another Node nor another hold of this one waits for it.
    let both: DesiredHolds = [desired_of(1, &[DRAIN]), desired_of(2, &[DRAIN])].into();
    assert_eq!(shown(&due_writes(&schedule, &both, &none, at)), [("n2", true)]);
    let soon = after(at, MIN_RETRY_DELAY);
    assert_eq!(due_writes(&schedule, &target, &none, soon).len(), 0);
    assert_eq!(due_writes(&schedule, &desired(&[DRAIN, "x"]), &none, soon).len(), 1);
    // A success ends it.
    let later = after(at, MAX_RETRY_DELAY);
    write_due(&mut schedule, &target, &none, later, true);
    let changed = desired(&["y"]);
    assert_eq!(write_due(&mut schedule, &changed, &none, later, false).len(), 1);
    assert_eq!(
        schedule.start_due(&changed, &none, later).1,
        Some(later.mono + MIN_RETRY_DELAY)
    );
}

#[test]
fn nodes_that_fail_leave_slots_to_the_others() {
    let now = Clock::System.now();
    let (mut schedule, none) = (HoldSchedule::default(), recorded(&[]));
    let all: DesiredHolds = (1..=20).map(|number| desired_of(number, &[DRAIN])).collect();
    let failing: DesiredHolds = (1..=12).map(|number| desired_of(number, &[DRAIN])).collect();
    let (first, _) = schedule.start_due(&failing, &none, now);
    assert_eq!(first.len(), MAX_CONCURRENT_WRITES);
    assert!(
        schedule.start_due(&failing, &none, now).0.is_empty(),
        "one write of a Node at a time"
    );
    for write in first {
        schedule.finish(write, false, now.mono);
    }
    for write in schedule.start_due(&failing, &none, now).0 {
        schedule.finish(write, false, now.mono);
    }
    let later = after(now, MIN_RETRY_DELAY);
    let (retries, _) = schedule.start_due(&failing, &none, later);
    assert_eq!(retries.len(), MAX_CONCURRENT_RETRIES);
    let (others, _) = schedule.start_due(&all, &none, later);
    let is_other = |write: &HoldWrite| !failing.contains_key(&write.node);
    assert_eq!(others.len(), MAX_CONCURRENT_WRITES - MAX_CONCURRENT_RETRIES);
    assert!(others.iter().all(is_other), "{others:?}");
}

#[test]
fn hold_that_no_agent_would_read_is_not_written() {
    let now = Clock::System.now();
    let signals: Vec<String> = (0..100).map(|number| format!("example.com/{number:040}")).collect();
    let signals: Vec<&str> = signals.iter().map(String::as_str).collect();
    let schedule = HoldSchedule::default();
    assert!(due_writes(&schedule, &desired(&signals), &recorded(&[]), now).is_empty());
    // What is there does not cover the Node's signals.
    let removed = due_writes(&schedule, &desired(&signals), &recorded(&[("n1", "u1")]), now);
    assert_eq!(shown(&removed), [("n1", false)]);
}
