use headgate_core::node::{DRAINING_TAINT, RecordedNotice, Taint};
use headgate_core::settings::IntOrPercent;
use proptest::prelude::*;

use super::super::fixtures::{Cluster, recorded};
use super::super::guard::GuardSettings;
use super::super::settings::AdminStateMode;
use super::super::target_states::TargetStates;
use super::*;

/// A taint that counts by default, and that is put only on a node that goes away.
const DISRUPTED: &str = "karpenter.sh/disrupted";

fn cluster(size: u8, limit: IntOrPercent) -> Cluster {
    let guard = GuardSettings {
        max_new_down: limit,
        ..GuardSettings::DISABLED
    };
    Cluster::new(&vec!["None"; usize::from(size)], guard)
}

impl Cluster {
    fn cordon(&mut self, number: usize) {
        self.nodes[number - 1].signals = [(Signal::Unschedulable, Duration::ZERO)].into();
    }

    /// Plans, and writes the plan. Returns the numbers of the nodes that become `Down`.
    fn plan_and_write(&mut self) -> Vec<usize> {
        let plan = self.plan();
        self.write(&plan)
    }
}

#[test]
fn quarter_of_a_cordoned_pool_leaves_at_a_time_the_oldest_signals_first() {
    let mut cluster = cluster(8, IntOrPercent::Percent(25));
    // The ledger has whole seconds.
    cluster.now.wall = Timestamp::UNIX_EPOCH;
    cluster.cordon(7);
    assert_eq!(cluster.plan_and_write(), [7]);
    cluster.pass(1);
    cluster.cordon(5);
    cluster.plan();
    cluster.pass(1);
    for number in 1..=8 {
        cluster.cordon(number);
    }
    let plan = cluster.plan();
    let waiting = plan.entries.iter().filter(|entry| entry.held_for.brake);
    assert_eq!(
        (waiting.count(), plan.pools[0].waiting, plan.pools[0].held_back),
        (6, 6, 0)
    );
    assert_eq!(cluster.plan_and_write(), [5]);
    assert_eq!(cluster.plan_and_write(), [0_usize; 0]);
    // What another writer lost is not new.
    cluster.states[4] = "None";
    assert_eq!(cluster.plan_and_write(), [5]);
    cluster.pass(298);
    assert_eq!(cluster.plan_and_write(), [1], "that of node 7 is 5 minutes old");
    cluster.pass(2);
    // The next leader has the times from the ledger.
    cluster.targets = TargetStates::default();
    assert_eq!(cluster.plan_and_write(), [2], "that of node 5, too");
    cluster.mode = AdminStateMode::Observe;
    let counts = &cluster.plan().pools[0];
    assert_eq!((counts.waiting, counts.desired_down), (0, 8), "nothing is written");
}

#[test]
fn what_a_cordon_set_down_takes_its_place_for_the_next_leader_before_the_cordon_has_lasted_again() {
    let mut cluster = cluster(8, IntOrPercent::Percent(25));
    for index in [0, 1] {
        cluster.nodes[index].signals = [(Signal::Unschedulable, Duration::from_mins(1))].into();
    }
    assert_eq!(cluster.plan_and_write(), [0_usize; 0]);
    cluster.pass(60);
    cluster.targets.advance_generation(cluster.now);
    assert_eq!(cluster.plan_and_write(), [1, 2]);
    cluster.targets = TargetStates::default();
    for index in [2, 3] {
        cluster.nodes[index].signals = [(Signal::Taint("headgate.dev/maintenance".to_owned()), Duration::ZERO)].into();
    }
    for (seconds, down) in [(0, &[][..]), (60, &[]), (239, &[]), (1, &[3, 4])] {
        cluster.pass(seconds);
        cluster.targets.advance_generation(cluster.now);
        assert_eq!(cluster.plan_and_write(), down, "{seconds}");
    }
}

#[test]
fn an_old_intent_takes_no_place_while_the_cordon_that_led_to_it_has_to_last_again() {
    let mut cluster = cluster(8, IntOrPercent::Percent(25));
    cluster.nodes[0].signals = [(Signal::Unschedulable, Duration::from_hours(1))].into();
    for index in [2, 3] {
        cluster.nodes[index].signals = [(Signal::Taint("headgate.dev/maintenance".to_owned()), Duration::ZERO)].into();
    }
    let intent = recorded("p", 1, LedgerStage::Intended, cluster.now.wall);
    cluster.ledger.apply(intent);
    cluster.pass(WINDOW.as_secs());
    assert_eq!(cluster.plan_and_write(), [3, 4]);
}

#[test]
fn entries_that_stay_as_they_are_take_no_place() {
    let mut cluster = cluster(4, IntOrPercent::Int(1));
    cluster.states[0] = "Up";
    cluster.nodes[1].excluded = Some("label");
    for number in 1..=3 {
        cluster.cordon(number);
        cluster.plan();
        cluster.pass(1);
    }
    assert_eq!(cluster.plan_and_write(), [3]);
}

#[test]
fn what_announces_the_end_of_the_machine_never_waits() {
    let cordoned = || {
        let mut cluster = cluster(8, IntOrPercent::Int(1));
        for number in 1..=8 {
            cluster.cordon(number);
        }
        cluster
    };
    let notice = || {
        Some(RecordedNotice {
            is_tainted: true,
            not_before: Some(Timestamp::UNIX_EPOCH),
            ..RecordedNotice::default()
        })
    };
    let mut cluster = cordoned();
    for (index, node) in cluster.nodes.iter_mut().enumerate() {
        match index {
            // A notice that has ended stays recorded.
            0 => node.notice = notice(),
            1 => {
                node.notice = notice();
                node.taints.push(Taint::new(DRAINING_TAINT, "NoSchedule"));
            }
            2 => node.ends = true,
            // A notice beside the matcher that finds it.
            3 => {
                node.ends = true;
                node.signals = [(
                    Signal::Condition("condition:VMEventScheduled=True".to_owned()),
                    Duration::ZERO,
                )]
                .into();
            }
            4 => drop(node.signals.insert(Signal::Taint(DISRUPTED.to_owned()), Duration::ZERO)),
            5 => node.signals = [(Signal::Shutdown, Duration::ZERO)].into(),
            _ => {}
        }
    }
    // It would answer 503, and a hold would cover it.
    cluster.nodes[6].health_signals = [Signal::Taint(DISRUPTED.to_owned())].into();
    assert_eq!(cluster.plan_and_write(), [1, 2, 3, 4, 5, 6, 7]);
    // Maintenances whose nodes are gone at a deadline: autoscalers are not kept away. Beside them somebody else's taint, and one without.
    cluster = cordoned();
    for (index, node) in cluster.nodes.iter_mut().enumerate() {
        node.signals = [(Signal::Taint("headgate.dev/maintenance".to_owned()), Duration::ZERO)].into();
        node.maintenance_taint = Some("uid".to_owned());
        node.was_unschedulable = (index != 6).then_some(false);
        node.is_kept_from_scale_down = index > 6;
    }
    assert_eq!(cluster.plan_and_write(), [1, 2, 3, 4, 5, 6, 7], "one of the last two");
    // A condition and a taint of the settings, and a maintenance.
    for signal in [
        Signal::Condition("condition:Bad=True".to_owned()),
        Signal::Taint("example.com/leaving".to_owned()),
        Signal::Taint("headgate.dev/maintenance".to_owned()),
    ] {
        cluster = cordoned();
        for node in &mut cluster.nodes {
            node.signals = [(signal.clone(), Duration::ZERO)].into();
        }
        assert_eq!(cluster.plan_and_write(), [1], "{signal}");
    }
    cluster.guard.max_new_down = IntOrPercent::ALL;
    assert_eq!(cluster.plan_and_write().len(), 7);
}

#[test]
fn what_is_not_recorded_as_down_yet_counts_until_it_is_written_or_five_minutes_old() {
    let mut cluster = cluster(4, IntOrPercent::Int(1));
    for number in 1..=4 {
        cluster.cordon(number);
    }
    assert_eq!(cluster.plan_and_write(), [1]);
    // Another load balancer rejects its writes, so the transition of the node is not recorded.
    let intent = recorded("p", 1, LedgerStage::Intended, cluster.now.wall);
    cluster.ledger.apply(intent);
    assert_eq!(cluster.plan_and_write(), [0_usize; 0]);
    cluster.pass(WINDOW.as_secs());
    assert_eq!(cluster.plan_and_write(), [2]);
    // A write that is due counts for as long as it takes, unless a label forbids it.
    cluster.pass(WINDOW.as_secs());
    cluster.states[0] = "None";
    assert_eq!(cluster.plan().pools[0].waiting, 2);
    cluster.nodes[0].excluded = Some("label");
    assert_eq!(cluster.plan_and_write(), [3]);
}

#[test]
fn limits_are_rounded_down_and_never_below_one() {
    for (limit, entries, expected) in [
        (IntOrPercent::Percent(25), 1, 1),
        (IntOrPercent::Percent(25), 7, 1),
        (IntOrPercent::Percent(25), 8, 2),
        (IntOrPercent::Int(3), 1, 3),
        (IntOrPercent::ALL, 0, 1),
    ] {
        assert_eq!(limit.rounded_down(entries), expected, "{limit} of {entries}");
    }
}

/// What happens to one node, or to all.
#[derive(Clone, Copy, Debug)]
enum Change {
    Cordon,
    Uncordon,
    Drain,
    NewLeader,
}

proptest! {
    /// Whatever happens: cordons set no more than the limit `Down` in any 5 minutes, a drain is never late, and all cordoned nodes
    /// are `Down` in the end.
    #[test]
    fn no_window_exceeds_the_limit(
        size in 1_u8..9,
        percent in 1_u8..=60,
        changes in proptest::collection::vec((0_usize..8, prop_oneof![
            5 => Just(Change::Cordon), 2 => Just(Change::Uncordon), 1 => Just(Change::Drain), 1 => Just(Change::NewLeader),
        ], 2_u64..120), 0..40),
    ) {
        let mut cluster = cluster(size, IntOrPercent::Percent(percent));
        let limit = cluster.guard.max_new_down.rounded_down(usize::from(size));
        // The times at which each entry became Down and still is, by node.
        let mut since: Vec<Option<Timestamp>> = vec![None; usize::from(size)];
        for (number, change, seconds) in changes {
            let index = number % usize::from(size);
            let signals = &mut cluster.nodes[index].signals;
            match change {
                Change::Cordon => drop(signals.insert(Signal::Unschedulable, Duration::ZERO)),
                Change::Uncordon => signals.clear(),
                Change::Drain => drop(signals.insert(Signal::Taint(DISRUPTED.to_owned()), Duration::ZERO)),
                Change::NewLeader => cluster.targets = TargetStates::default(),
            }
            cluster.plan();
            cluster.pass(seconds);
            let down = cluster.plan_and_write();
            for (index, state) in cluster.states.iter().enumerate() {
                if *state != "Down" {
                    since[index] = None;
                } else if down.contains(&(index + 1)) {
                    since[index] = Some(cluster.now.wall);
                }
            }
            let drains = |index: usize| cluster.nodes[index].signals.keys().any(Signal::announces_end);
            let is_new = |time: Timestamp| cluster.now.wall.duration_since(time).unsigned_abs() < WINDOW;
            let new = (0..since.len()).filter(|index| !drains(*index) && since[*index].is_some_and(is_new)).count();
            // An entry that became Down for a drain may be cordoned only now.
            let by_cordon = down.iter().filter(|number| !drains(**number - 1)).count();
            prop_assert!(by_cordon == 0 || new <= limit, "{new} of {limit}");
            for index in 0..since.len() {
                prop_assert!(!drains(index) || cluster.states[index] == "Down", "n{} waits", index + 1);
            }
        }
        for _ in 0..=size {
            cluster.pass(WINDOW.as_secs());
            cluster.plan_and_write();
        }
        for (node, state) in cluster.nodes.iter().zip(&cluster.states) {
            prop_assert_eq!(node.signals.is_empty(), *state != "Down", "{}", node.name);
        }
    }
}
