use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{AzureNotice, MARKER_NO_SIGNAL, MarkerStatus, NodeHold};
use proptest::prelude::*;

use super::super::super::fixtures::{self, MAINTENANCE as DRAIN, tainted, web};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn signals(since: i64) -> Signals {
    let since = Timestamp::from_second(since).unwrap();
    BTreeMap::from([(Signal::Taint(DRAIN.to_owned()), since)])
}

/// A Ready Node, with the signal or without it.
fn node(name: &str, has_signal: bool) -> Node {
    Node {
        name: name.into(),
        ready: true,
        ..tainted(if has_signal { &[DRAIN] } else { &[] })
    }
}

fn changed(mut node: Node, change: impl FnOnce(&mut Node)) -> Node {
    change(&mut node);
    node
}

#[test]
fn other_nodes_that_keep_serving() {
    let now = Clock::System.now();
    let marker = |reason: &str| MarkerFact {
        status: MarkerStatus::False,
        reason: reason.to_owned(),
        ..MarkerFact::default()
    };
    let with_reason = |reason| changed(node("a", false), |node| node.marker = Some(marker(reason)));
    let confirmed = |status, seconds: u64, message: &str| Node {
        marker: Some(MarkerFact {
            status,
            message: message.to_owned(),
            confirmed_at: Some(now.wall - Duration::from_secs(seconds)),
            ..marker("R")
        }),
        ..node("a", false)
    };
    let rarely = "Confirmed again within 250 s. m";
    let a = |has_signal, change: fn(&mut Node)| changed(node("a", has_signal), change);
    for (node, without_signal, with_earlier_name) in vec![
        (node("a", false), true, false),
        (node("c", false), true, false),
        (node("a", true), false, true),
        (node("c", true), false, false),
        (node("b", false), false, false),
        (a(false, |node| node.ready = false), false, false),
        (a(true, |node| node.ready = false), false, false),
        (a(true, |node| node.ends = true), false, false),
        (a(false, |node| node.excluded = Some("label")), false, false),
        (a(false, |node| node.lacks_agent = true), false, false),
        (a(true, |node| node.lacks_agent = true), false, false),
        (with_reason(MARKER_NO_SIGNAL), true, false),
        // Its agent has not observed the end of its signal yet.
        (with_reason("ProbesNotFailed"), false, false),
        // One that nobody confirms, or makes Unknown, is a leftover.
        (confirmed(MarkerStatus::True, 350, "m"), false, false),
        (confirmed(MarkerStatus::True, 370, "m"), true, false),
        (confirmed(MarkerStatus::False, 370, "m"), true, false),
        (confirmed(MarkerStatus::Unknown, 370, "m"), false, false),
        (confirmed(MarkerStatus::True, 990, rarely), false, false),
        (confirmed(MarkerStatus::True, 1010, rarely), true, false),
    ] {
        let mut others = OtherNodes::default();
        others.add(&node, "b", now);
        let found = (others.without_signal.is_some(), others.with_earlier_name.is_some());
        assert_eq!(found, (without_signal, with_earlier_name), "{node:?}");
    }
}

#[test]
fn answer_fails_while_a_current_read_shows_another_node_that_serves() {
    use HoldReason::{LastServing, NotRead};
    use OwnState::{Eligible, Ending, HeldByLeader, Signalled};
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    let reads = |read_at: u64, without_signal: bool, with_earlier_name: bool| {
        let mut reads = DrainReads::new(signals(0), at(100));
        let others = OtherNodes {
            without_signal: without_signal.then(|| "c".to_owned()),
            with_earlier_name: with_earlier_name.then(|| "a".to_owned()),
            own_is_long_out: false,
        };
        let started_at = at(read_at);
        reads.services.insert(web(), ServiceRead { started_at, others });
        reads
    };
    let held = ServiceDrain::KeepsServing;
    let other_serves = reads(100, true, false);
    for (own, reads, now, expected) in [
        (Eligible, Some(&other_serves), 101, ServiceDrain::Eligible),
        (Ending, None, 101, ServiceDrain::Failing),
        (HeldByLeader, Some(&other_serves), 101, held(HoldReason::Leader)),
        (Signalled, None, 101, held(NotRead)),
        (Signalled, Some(&other_serves), 100, ServiceDrain::Failing),
        (Signalled, Some(&other_serves), 129, ServiceDrain::Failing),
        (Signalled, Some(&other_serves), 130, held(NotRead)),
        (Signalled, Some(&reads(99, true, false)), 101, held(NotRead)),
        (Signalled, Some(&reads(100, false, false)), 101, held(LastServing)),
        (Signalled, Some(&reads(135, false, true)), 139, held(LastServing)),
        (Signalled, Some(&reads(135, false, true)), 140, ServiceDrain::Failing),
        (Signalled, Some(&reads(135, false, false)), 999, held(NotRead)),
    ] {
        let found = service_drain(own, reads, &web(), at(now));
        assert_eq!(found, expected, "{own:?} {reads:?} {now}");
    }
    let other = NamespacedName::new("default", "other");
    let found = service_drain(Signalled, Some(&other_serves), &other, at(101));
    assert_eq!(found, held(NotRead));
}

#[test]
fn reads_count_for_signals_without_a_gap() {
    let mut both = signals(1);
    both.insert(Signal::Unschedulable, Timestamp::from_second(2).unwrap());
    let reads = DrainReads::new(signals(1), Instant::now());
    assert!(reads.continues_with(&signals(1)) && reads.continues_with(&both));
    assert!(!reads.continues_with(&signals(2)), "it ended and began again");
    assert!(!reads.continues_with(&Signals::new()));
}

#[test]
fn a_marker_that_has_lasted_stands_for_the_wait_of_an_earlier_process() {
    let now = Clock::System.now();
    let ago = |seconds: u64| Some(now.wall - Duration::from_secs(seconds));
    let marker = MarkerFact {
        status: MarkerStatus::True,
        reason: PROBES_FAILED.to_owned(),
        since: ago(400),
        confirmed_at: ago(10),
        ..MarkerFact::default()
    };
    let changed = |change: &dyn Fn(&mut MarkerFact)| {
        let mut changed = marker.clone();
        change(&mut changed);
        Some(changed)
    };
    let since = |since| changed(&|marker| marker.since = since);
    for (marker, expected) in [
        (Some(marker.clone()), true),
        (since(ago(40)), true),
        (since(ago(39)), false),
        (since(None), false),
        (changed(&|marker| marker.confirmed_at = ago(370)), false),
        (changed(&|marker| marker.status = MarkerStatus::False), false),
        (changed(&|marker| marker.reason = "AdminStateDown".to_owned()), false),
        (None, false),
    ] {
        let own = Node {
            marker,
            ..node("b", true)
        };
        let mut others = OtherNodes {
            with_earlier_name: Some("a".to_owned()),
            ..OtherNodes::default()
        };
        others.add(&own, "b", now);
        let mut reads = DrainReads::new(signals(0), now.mono);
        let started_at = now.mono;
        reads.services.insert(web(), ServiceRead { started_at, others });
        let found = service_drain(OwnState::Signalled, Some(&reads), &web(), now.mono);
        assert_eq!(found == ServiceDrain::Failing, expected, "{own:?}");
    }
}

#[test]
fn own_state_follows_from_the_node_and_the_hold() {
    let now = Clock::System.now();
    let report = |node| fixtures::initial().with_node(node, now);
    let b = |has_signal, change: fn(&mut Node)| report(changed(node("b", has_signal), change));
    let hold = |node: &mut Node| {
        node.hold = Some(NodeHold {
            node_uid: "u".to_owned(),
            pools: ["lb/p".to_owned()].into(),
            // Only rules of Local Services need the node.
            signals: [DRAIN.to_owned()].into(),
            renewed_at: Timestamp::now(),
            ..NodeHold::default()
        });
    };
    let held_with = |condition: &str| {
        let signal = Signal::Condition(condition.to_owned());
        let mut node = changed(node("b", false), hold);
        node.hold.as_mut().unwrap().signals = [signal.to_string()].into();
        node.signals.insert(signal, Duration::ZERO);
        report(node)
    };
    let (eligible, signalled) = (b(false, |_| {}), b(true, |_| {}));
    let notice = |notice| Some(Signal::Azure(notice));
    for (report, other, expected) in [
        (&eligible, None, OwnState::Eligible),
        (&signalled, None, OwnState::Signalled),
        (&signalled, notice(AzureNotice::Preempt), OwnState::Ending),
        (&eligible, notice(AzureNotice::Terminate), OwnState::Ending),
        // Other nodes see only what the Node object shows.
        (&eligible, notice(AzureNotice::Reboot), OwnState::Unpublished),
        (&signalled, notice(AzureNotice::Reboot), OwnState::Signalled),
        (&b(true, |node| node.ends = true), None, OwnState::Ending),
        (&b(true, |node| node.excluded = Some("label")), None, OwnState::Ending),
        (&signalled.without_node(), None, OwnState::Ending),
        (&b(true, hold), None, OwnState::HeldByLeader),
        (&b(false, hold), None, OwnState::Eligible),
        (&held_with("condition:Bad=True"), None, OwnState::HeldByLeader),
        (
            &held_with("condition:GracefulNodeShutdownInProgress=True"),
            None,
            OwnState::Ending,
        ),
    ] {
        let others: Vec<_> = other.iter().collect();
        assert_eq!(
            OwnState::read(report, &others, now.mono),
            expected,
            "{report:?} {other:?}"
        );
    }
    let later = Moment {
        mono: now.mono + Duration::from_mins(5),
        ..now
    };
    let not_renewed = OwnState::read(&b(true, hold), &[], later.mono);
    assert_eq!(not_renewed, OwnState::Signalled, "no renewal arrived");
}

/// What happens to one node, in seconds, and how its agent observes.
#[derive(Clone, Debug)]
struct Fate {
    /// When signals begin and end.
    signals: Vec<(u32, u32)>,
    /// When the machine ends.
    ends_at: Option<u32>,
    /// How late the agent observes its own Node.
    delay: u32,
    /// The seconds between its reads, and an outage of the API server in which it reads nothing.
    interval: u32,
    outage: (u32, u32),
    /// When the agent's process ends, and the seconds until the next one runs.
    restart: (u32, u32),
    /// How many of its seconds pass in ten.
    clock_rate: u32,
}

fn fate() -> impl Strategy<Value = Fate> {
    // Many signals that begin at about the same time and stay, and agents that are quick: what it takes to leave together.
    let span = (prop_oneof![20..32u32, 0..120u32], prop_oneof![100..250u32, 1..150u32]);
    let signals = prop_oneof![
        4 => prop::collection::vec(span.clone(), 1..2),
        1 => prop::collection::vec(span, 0..3),
    ];
    let ends_at = prop::option::weighted(0.1, 0..240u32);
    let (delay, interval) = (prop_oneof![0..3u32, 0..50u32], prop_oneof![1..6u32, 1..20u32]);
    let outage = (0..240u32, prop_oneof![Just(0u32), 0..90u32]);
    let restart = (0..240u32, prop_oneof![1..3u32, 1..60u32]);
    (signals, ends_at, delay, interval, outage, restart, 10..13u32).prop_map(
        |(spans, ends_at, delay, interval, (from, length), restart, clock_rate)| {
            let mut signals: Vec<(u32, u32)> = Vec::new();
            let mut spans: Vec<_> = spans.into_iter().map(|(from, length)| (from, from + length)).collect();
            spans.sort_unstable();
            for (from, to) in spans {
                if signals.last().is_none_or(|last| last.1 < from) {
                    signals.push((from, to));
                }
            }
            Fate {
                signals,
                ends_at,
                delay,
                interval,
                outage: (from, from + length),
                restart,
                clock_rate,
            }
        },
    )
}

impl Fate {
    /// When the present signal began; `None` without one.
    fn signal_at(&self, second: u32) -> Option<u32> {
        let present = self.signals.iter().find(|(from, to)| (*from..*to).contains(&second));
        present.map(|(from, _)| *from)
    }

    /// What the agent has observed by this time.
    fn observed_at(&self, second: u32) -> Option<u32> {
        self.signal_at(second.checked_sub(self.delay)?)
    }

    fn has_ended(&self, second: u32) -> bool {
        self.ends_at.is_some_and(|at| at <= second)
    }

    fn is_down(&self, second: u32) -> bool {
        let (from, length) = self.restart;
        (from..from + length).contains(&second)
    }

    /// Since when the Node has the marker; `None` without it. A process writes it as soon as it observes a signal, keeps one that it finds
    /// if there is a signal, and ends it with the signal.
    fn marked_since(&self, second: u32) -> Option<u32> {
        let written = |second: u32| self.observed_at(second).map(|from| from + self.delay);
        let (down, up) = (self.restart.0, self.restart.0 + self.restart.1);
        if second < down {
            return written(second);
        }
        let found = written(down);
        if second < up {
            return found;
        }
        let is_first = self.observed_at(second) == self.observed_at(up);
        written(second).map(|since| found.filter(|_| is_first).unwrap_or(since.max(up)))
    }

    /// The Node; `start` is its wall clock's at the first second.
    fn node(&self, name: &str, second: u32, start: Timestamp) -> Node {
        let marker = self.marked_since(second).map(|since| MarkerFact {
            status: MarkerStatus::True,
            reason: PROBES_FAILED.to_owned(),
            since: Some(start + self.age(since)),
            ..MarkerFact::default()
        });
        Node {
            ends: self.has_ended(second),
            marker,
            ..node(name, self.signal_at(second).is_some())
        }
    }

    /// The time on the node's clocks since the first second.
    fn age(&self, second: u32) -> Duration {
        SECOND * second * self.clock_rate / 10
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Whatever is observed how late: of the nodes that serve and are not about to end, one answers 200.
    #[test]
    fn a_service_never_loses_its_last_serving_node(fates in prop::collection::vec(fate(), 1..4)) {
        let start = Clock::System.now();
        let name = |index: usize| format!("node-{index}");
        let mut reads: Vec<Option<DrainReads>> = vec![None; fates.len()];
        for second in 0..300u32 {
            let mut serving = 0;
            for (index, fate) in fates.iter().enumerate() {
                let now = Moment { wall: start.wall + fate.age(second), mono: start.mono + fate.age(second) };
                if fate.is_down(second) {
                    // It answers nothing; whether others do is looked at before and after.
                    (reads[index], serving) = (None, serving + 1);
                    continue;
                }
                let Some(since) = fate.observed_at(second) else {
                    reads[index] = None;
                    serving += u32::from(!fate.has_ended(second));
                    continue;
                };
                let observed = signals(i64::from(since));
                let known = reads[index].take().filter(|known| known.continues_with(&observed));
                let mut known = known.unwrap_or_else(|| DrainReads::new(observed, now.mono));
                if second % fate.interval == 0 && !(fate.outage.0..fate.outage.1).contains(&second) {
                    let mut others = OtherNodes::default();
                    for (other, fate) in fates.iter().enumerate() {
                        others.add(&fate.node(&name(other), second, start.wall), &name(index), now);
                    }
                    known.services.insert(web(), ServiceRead { started_at: now.mono, others });
                }
                let drain = service_drain(OwnState::Signalled, Some(&known), &web(), now.mono);
                serving += u32::from(!fate.has_ended(second) && drain != ServiceDrain::Failing);
                reads[index] = Some(known);
            }
            // A node that ends counts until the reads that showed it have expired.
            let has_settled = fates.iter().all(|fate| fate.ends_at.is_none_or(|at| second < at || at + 31 <= second));
            let is_any_left = fates.iter().any(|fate| !fate.has_ended(second));
            prop_assert!(serving > 0 || !has_settled || !is_any_left, "at {second} s");
        }
    }
}
