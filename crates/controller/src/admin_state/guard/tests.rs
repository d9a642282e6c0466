use std::time::Duration;

use headgate_core::clock::Clock;
use proptest::prelude::*;

use super::super::fixtures::{
    Cluster, DRAIN, add_interface, guarded_by, hold, ledger, lookups, node, plan_inputs, target_states, view,
};
use super::super::ledger::LedgerStage;
use super::super::plan::{PlanInputs, plan};
use super::super::settings::AdminStateMode;
use super::*;

const OUT: &str = "node.kubernetes.io/out-of-service";

const PROBES_HEADGATE: &[(&str, u16)] = &[("Http", 10456)];

fn guard(minimum_in_service: IntOrPercent) -> GuardSettings {
    GuardSettings {
        minimum_in_service,
        ..GuardSettings::DISABLED
    }
}

fn cluster(states: &[&'static str], minimum: IntOrPercent) -> Cluster {
    Cluster::new(states, guard(minimum))
}

/// Two nodes in a pool whose rule probes headgate at 10456, the health port or another one.
fn probed(health_port: u16) -> Cluster {
    let mut cluster = cluster(&["-"; 2], IntOrPercent::Int(1));
    cluster.probes = PROBES_HEADGATE;
    cluster.guard.health_port = health_port;
    cluster
}

impl Cluster {
    /// The leader observes the Node, and the end of a signal counts.
    fn set(&mut self, number: u8, taints: &[&str]) {
        let index = usize::from(number) - 1;
        let ClusterNode { ready, hold, .. } = self.nodes[index].clone();
        self.nodes[index] = ClusterNode {
            ready,
            hold,
            ..node(number, taints)
        };
        self.targets.apply(self.nodes[index].clone(), self.now);
        self.pass(2);
    }

    /// Plans and writes until nothing is due.
    fn settle(&mut self) {
        for _ in 0..5 {
            let plan = self.plan();
            if plan.edits.is_empty() {
                return;
            }
            self.write(&plan);
        }
        panic!("the plans do not converge: {:?} {:?}", self.states, self.held);
    }

    fn held(&self) -> Vec<String> {
        self.held.iter().map(|(_, uid)| uid.clone()).collect()
    }

    /// The nodes that are not `Down`.
    fn up(&self) -> Vec<u8> {
        let states = (1_u8..).zip(&self.states);
        states
            .filter(|(_, state)| **state != "Down")
            .map(|(number, _)| number)
            .collect()
    }
}

#[test]
fn minimum_is_a_number_or_a_percentage_rounded_up() {
    for (minimum, entries, expected) in [
        (IntOrPercent::Int(0), 10, 0),
        (IntOrPercent::Int(3), 2, 3),
        (IntOrPercent::Percent(1), 10, 1),
        (IntOrPercent::Percent(34), 3, 2),
        (IntOrPercent::Percent(100), 7, 7),
        (IntOrPercent::Percent(50), 0, 0),
    ] {
        assert_eq!(minimum.rounded_up(entries), expected, "{minimum} of {entries}");
    }
}

#[test]
fn taints_on_all_nodes_leave_the_minimum_in_service() {
    for (minimum, up) in [
        (IntOrPercent::Int(0), 0),
        (IntOrPercent::Int(1), 1),
        (IntOrPercent::Int(2), 2),
        (IntOrPercent::Percent(50), 3),
        (IntOrPercent::Int(9), 5),
    ] {
        let mut cluster = cluster(&["-"; 5], minimum);
        for number in 1..=5 {
            cluster.set(number, &[DRAIN]);
        }
        cluster.settle();
        assert_eq!((cluster.up().len(), cluster.held.len()), (up, up), "{minimum}");
    }
}

#[test]
fn terminal_and_unready_nodes_are_never_held() {
    let mut cluster = cluster(&["-"; 3], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN, OUT]);
    cluster.set(2, &[DRAIN]);
    cluster.nodes[1].ready = false;
    cluster.set(3, &[DRAIN]);
    cluster.nodes[2].excluded = Some("label");
    cluster.plan();
    cluster.pass(60);
    cluster.settle();
    assert_eq!(cluster.up(), [3], "an excluded entry is not written");
    assert!(cluster.held.is_empty());
    cluster.nodes[1].ready = true;
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![2, 3], vec!["u2".to_owned()]));
}

#[test]
fn lost_replacement_lifts_a_down_of_headgate_but_no_foreign_one() {
    let mut cluster = cluster(&["Down", "-", "-"], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN]);
    cluster.set(2, &[DRAIN]);
    cluster.settle();
    assert_eq!(cluster.up(), [3]);
    cluster.set(3, &[OUT]);
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![2], vec!["u2".to_owned()]));
}

/// Such as cloud-controller-manager, which writes back old copies.
#[test]
fn lifted_entry_that_another_writer_sets_down_is_lifted_again_at_once() {
    let mut cluster = cluster(&["-", "-"], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN]);
    cluster.settle();
    cluster.set(2, &[OUT]);
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![1], vec!["u1".to_owned()]));
    cluster.states[0] = "Down";
    let plan = cluster.plan();
    cluster.write(&plan);
    assert_eq!((cluster.up(), cluster.held()), (vec![1], vec!["u1".to_owned()]));
}

/// It may belong to a Node that serves.
#[test]
fn nothing_is_lifted_beside_an_interface_whose_node_is_unknown() {
    let now = Clock::System.now();
    let (targets, settings) = (target_states(&[node(1, &[DRAIN])], now), guard(IntOrPercent::Int(1)));
    for (lookup, is_unknown) in lookups() {
        let mut view = view(&[("p", &[(1, "Down")], true)]);
        let case = format!("{lookup:?}");
        let interfaces = add_interface(&mut view, lookup);
        let plan = plan(
            &view,
            &PlanInputs {
                interfaces: &interfaces,
                guard: guarded_by(&settings),
                ..plan_inputs(&targets, &ledger(&[("p", 1, LedgerStage::Down)]), now)
            },
        );
        assert_eq!(plan.edits.is_empty(), is_unknown, "{case}");
        assert_eq!(plan.pools[0].held_back == 0, is_unknown, "{case}");
    }
}

#[test]
fn choice_is_kept_and_released_only_after_a_read_shows_a_replacement() {
    let mut cluster = cluster(&["-"; 3], IntOrPercent::Int(1));
    cluster.nodes[0].ready = false;
    cluster.set(2, &[DRAIN]);
    cluster.set(3, &[DRAIN]);
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![1, 2], vec!["u2".to_owned()]));
    // A node that would be preferred otherwise becomes eligible for the hold.
    cluster.set(1, &[DRAIN]);
    cluster.nodes[0].ready = true;
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![2], vec!["u2".to_owned()]));
    // Its signal ends: it is restored, and only then the held entry becomes Down.
    cluster.set(3, &[]);
    let restore = cluster.plan();
    assert!(cluster.write(&restore).is_empty());
    assert_eq!((cluster.up(), cluster.held()), (vec![2, 3], vec!["u2".to_owned()]));
    let release = cluster.plan();
    assert_eq!(cluster.write(&release), [2]);
    assert!(cluster.held.is_empty());
}

/// A Node whose signal flaps, and whose entry is still `Down`, does not take the place of one that serves.
#[test]
fn of_two_choices_that_in_service_stays() {
    let mut cluster = cluster(&["-"; 3], IntOrPercent::Int(2));
    cluster.set(1, &[DRAIN]);
    cluster.set(3, &[DRAIN]);
    cluster.set(3, &[]);
    cluster.set(3, &[OUT]);
    cluster.nodes[1].ready = false;
    cluster.settle();
    assert_eq!(cluster.held(), ["u1"]);
    cluster.set(3, &[]);
    cluster.plan();
    assert_eq!(cluster.held(), ["u1", "u3"]);
    cluster.nodes[1].ready = true;
    let plan = cluster.plan();
    assert_eq!((cluster.write(&plan), cluster.held()), (vec![], vec!["u1".to_owned()]));
    cluster.pass(30);
    cluster.settle();
    assert_eq!((cluster.up(), cluster.held()), (vec![2, 3], vec![]));
}

#[test]
fn next_leader_keeps_the_choice_that_is_recorded_on_the_node() {
    let mut cluster = cluster(&["-"; 3], IntOrPercent::Int(1));
    for number in 1..=3 {
        cluster.set(number, &[DRAIN]);
    }
    cluster.nodes[2].hold = Some(hold(&["lb/p"], &[DRAIN]));
    cluster.settle();
    assert_eq!(cluster.held(), ["u3"]);
}

#[test]
fn held_entry_is_shown_and_counted() {
    let mut cluster = cluster(&["-"; 2], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN]);
    cluster.set(2, &[DRAIN]);
    let plan = cluster.plan();
    let counts = &plan.pools[0];
    assert_eq!((counts.held_back, counts.desired_down, counts.eligible), (1, 1, 1));
    let held: Vec<_> = plan
        .entries
        .iter()
        .map(|entry| (entry.is_held_back, entry.is_pending()))
        .collect();
    assert_eq!(held, [(true, false), (false, true)]);
}

#[test]
fn node_that_fails_its_probes_does_not_serve() {
    let held = |health_port| {
        let mut cluster = probed(health_port);
        cluster.nodes = vec![node(1, &["probe-only"]), node(2, &[DRAIN])];
        cluster.nodes[0].health_signals = [Signal::Taint("probe-only".to_owned())].into();
        cluster.plan();
        cluster.held.len()
    };
    assert_eq!(held(10456), 1);
    assert_eq!(held(80), 0, "the pool's probes do not reach headgate");
}

#[test]
fn node_without_an_agent_does_not_serve_where_probes_reach_headgate() {
    for (health_port, taints, expected) in [
        (10456, &[][..], vec!["u2".to_owned()]),
        // Holding its entry would help nobody.
        (10456, &[DRAIN], vec!["u2".to_owned()]),
        (80, &[], vec![]),
        (80, &[DRAIN], vec!["u1".to_owned()]),
    ] {
        let mut cluster = probed(health_port);
        cluster.nodes = vec![node(1, taints), node(2, &[DRAIN])];
        cluster.nodes[0].lacks_agent = true;
        cluster.plan();
        assert_eq!(cluster.held(), expected, "{health_port} {taints:?}");
    }
    let mut cluster = probed(10456);
    cluster.nodes = vec![node(1, &[DRAIN]), node(2, &[])];
    cluster.nodes[0].lacks_agent = true;
    cluster.guard.minimum_in_service = IntOrPercent::Int(2);
    cluster.plan();
    assert!(cluster.held().is_empty(), "no hold could ever end");
}

#[test]
fn percentage_is_that_of_the_entries_whose_probes_can_pass() {
    for (health_port, expected) in [(10456, 2), (80, 0)] {
        let mut cluster = cluster(&["-"; 8], IntOrPercent::Percent(50));
        cluster.probes = PROBES_HEADGATE;
        cluster.guard.health_port = health_port;
        for node in &mut cluster.nodes[4..] {
            node.lacks_agent = true;
        }
        for number in 1..=4 {
            cluster.set(number, &[DRAIN]);
        }
        cluster.settle();
        let with_agents = cluster.up().into_iter().filter(|number| *number <= 4);
        assert_eq!(with_agents.count(), expected, "{health_port}");
    }
}

#[test]
fn signals_of_health_alone_hold_back_where_a_hold_has_an_effect() {
    let condition = || Signal::Condition("condition:Gone=True".to_owned());
    for (health_port, may_write_holds, signal, is_stale, held_back, why) in [
        (10456, true, Signal::Unschedulable, false, 1, ""),
        (10456, true, Signal::Unschedulable, true, 0, "the Nodes are stale"),
        (10456, true, condition(), false, 0, "no hold covers it"),
        (
            80,
            true,
            Signal::Unschedulable,
            false,
            0,
            "the pool's probes do not reach headgate",
        ),
        (10456, false, Signal::Unschedulable, false, 0, "in the DaemonSet"),
    ] {
        let mut cluster = probed(health_port);
        cluster.guard.may_write_holds = may_write_holds;
        for node in &mut cluster.nodes {
            node.health_signals = [signal.clone()].into();
        }
        cluster.targets.set_stale_since(is_stale.then_some(cluster.now.wall));
        let plan = cluster.plan();
        assert!(plan.edits.is_empty());
        let shown = plan.entries.iter().filter(|entry| entry.is_held_back);
        assert_eq!(
            (plan.pools[0].held_back, shown.count()),
            (held_back, held_back),
            "{why}"
        );
    }
}

/// Its agent answers 503, and nothing can bring it back.
#[test]
fn one_that_fails_its_probes_comes_last_where_no_hold_can_be_written() {
    for (may_write_holds, expected) in [(true, "u2"), (false, "u1")] {
        let mut cluster = cluster(&["-"; 2], IntOrPercent::Int(1));
        cluster.set(1, &[DRAIN]);
        cluster.settle();
        // Its signal flaps.
        for taints in [&[][..], &[DRAIN], &[]] {
            cluster.set(1, taints);
        }
        cluster.set(2, &[DRAIN]);
        cluster.nodes[1].health_signals = [Signal::Unschedulable].into();
        cluster.probes = PROBES_HEADGATE;
        cluster.guard.health_port = 10456;
        cluster.guard.may_write_holds = may_write_holds;
        cluster.plan();
        assert_eq!(
            (&cluster.states[..], cluster.held()),
            (&["Down", "-"][..], vec![expected.to_owned()])
        );
    }
}

#[test]
fn only_mode_enforce_holds_back() {
    let mut cluster = cluster(&["-"; 1], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN]);
    cluster.mode = AdminStateMode::Disabled;
    assert!(cluster.plan().entries.is_empty());
    for (mode, held_back) in [(AdminStateMode::Observe, 0), (AdminStateMode::Enforce, 1)] {
        cluster.mode = mode;
        let plan = cluster.plan();
        let counts = &plan.pools[0];
        assert_eq!(
            (counts.held_back, counts.desired_down),
            (held_back, 0),
            "what would be written"
        );
        assert_eq!(
            plan.entries[0].held_for.reason().is_empty(),
            !plan.entries[0].is_held_back
        );
        assert_eq!(cluster.held().len(), held_back);
    }
}

#[test]
fn not_ready_ends_a_hold_after_a_minute() {
    let mut cluster = cluster(&["-", "-"], IntOrPercent::Int(1));
    cluster.set(1, &[DRAIN]);
    cluster.set(2, &[DRAIN]);
    cluster.settle();
    assert_eq!(cluster.up(), [1]);
    // Both heartbeats are late.
    for node in &mut cluster.nodes {
        node.ready = false;
    }
    for _ in 0..6 {
        cluster.settle();
        assert_eq!(cluster.up(), [1], "the machines may serve");
        cluster.pass(10);
    }
    assert_eq!(
        cluster
            .targets
            .next_deadline(cluster.now.mono - Duration::from_millis(1)),
        Some(cluster.now.mono)
    );
    cluster.settle();
    assert_eq!(cluster.up(), [0_u8; 0], "none of them works");
    cluster.nodes[1].ready = true;
    cluster.settle();
    assert_eq!(cluster.up(), [2]);
    cluster.nodes[0].ready = true;
    cluster.nodes[1].ready = false;
    cluster.settle();
    assert_eq!(cluster.up(), [1], "a Ready node comes first");
}

#[test]
fn signal_that_flapped_keeps_no_node_out_that_is_needed() {
    let mut cluster = cluster(&["-", "-"], IntOrPercent::Int(1));
    for taints in [&[DRAIN] as &[_], &[], &[DRAIN], &[]] {
        cluster.set(1, taints);
        cluster.settle();
    }
    assert_eq!(cluster.up(), [2], "the second end does not count yet");
    cluster.set(2, &[OUT]);
    cluster.settle();
    assert_eq!(cluster.up(), [1]);
}

/// What happens to one node.
#[derive(Clone, Copy, Debug)]
enum Change {
    Untaint,
    Drain,
    OutOfService,
    NotReady,
    Ready,
    /// A minute passes.
    Wait,
    /// The leader is replaced by one that knows only what the Nodes record, if that arrived.
    NewLeader {
        is_recorded: bool,
    },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => Just(Change::Untaint),
        4 => Just(Change::Drain),
        1 => Just(Change::OutOfService),
        1 => Just(Change::NotReady),
        1 => Just(Change::Ready),
        1 => Just(Change::Wait),
        1 => any::<bool>().prop_map(|is_recorded| Change::NewLeader { is_recorded }),
    ]
}

proptest! {
    /// Whatever happens: once things settle, the pool has the minimum in service, or every node that is alive without a terminal
    /// signal; no entry is held without need, and a choice that is still valid is never exchanged for another.
    #[test]
    fn pool_is_never_emptied_while_a_node_is_alive(
        size in 1_u8..6,
        minimum in prop_oneof![(0_u32..4).prop_map(IntOrPercent::Int), (1_u8..=100).prop_map(IntOrPercent::Percent)],
        changes in proptest::collection::vec((0_u8..6, change(), any::<bool>()), 0..25),
    ) {
        let mut cluster = cluster(&vec!["-"; usize::from(size)], minimum);
        for (number, change, settles) in changes {
            let number = number % size + 1;
            let index = usize::from(number) - 1;
            match change {
                Change::Untaint => cluster.set(number, &[]),
                Change::Drain => cluster.set(number, &[DRAIN]),
                Change::OutOfService => cluster.set(number, &[DRAIN, OUT]),
                Change::NotReady => cluster.nodes[index].ready = false,
                Change::Ready => cluster.nodes[index].ready = true,
                Change::Wait => cluster.pass(60),
                Change::NewLeader { is_recorded } => {
                    cluster.targets = TargetStates::default();
                    let held = std::mem::take(&mut cluster.held);
                    for node in &mut cluster.nodes {
                        let is_held = is_recorded && held.iter().any(|(_, uid)| *uid == node.uid);
                        node.hold = is_held.then(|| hold(&["lb/p"], &[DRAIN]));
                    }
                }
            }
            let before = cluster.held.clone();
            let plan = cluster.plan();
            let valid = before.iter().filter(|(_, uid)| {
                let node = cluster.nodes.iter().find(|node| node.uid == *uid).unwrap();
                node.ready && !node.is_terminal() && !node.taints.is_empty()
            });
            let valid: HeldEntries = valid.cloned().collect();
            prop_assert!(
                cluster.held.is_subset(&valid) || valid.is_subset(&cluster.held),
                "exchanged {valid:?} for {:?}", cluster.held
            );
            if settles {
                cluster.write(&plan);
            }
        }
        cluster.settle();
        let serves = |node: &ClusterNode| node.ready && node.taints.is_empty();
        let is_alive = |node: &ClusterNode| node.ready && !node.is_terminal();
        let able = |number: &&u8| is_alive(&cluster.nodes[usize::from(**number) - 1]);
        let (up, alive) = (cluster.up(), cluster.nodes.iter().filter(|node| is_alive(node)).count());
        prop_assert!(up.iter().filter(able).count() >= minimum.rounded_up(usize::from(size)).min(alive));
        // A signal that flapped is over.
        cluster.pass(30);
        cluster.settle();
        let up = cluster.up();
        let is_up = |node: &ClusterNode| up.iter().any(|number| node.name == format!("n{number}"));
        let is_held = |node: &ClusterNode| cluster.held.iter().any(|(_, uid)| *uid == node.uid);
        let in_service = cluster.nodes.iter().filter(|node| is_up(node) && (serves(node) || is_held(node))).count();
        prop_assert!(in_service >= minimum.rounded_up(usize::from(size)).min(alive), "{in_service} of {alive}");
        let serving = cluster.nodes.iter().filter(|node| serves(node)).count();
        let needed = minimum.rounded_up(usize::from(size)).saturating_sub(serving);
        prop_assert!(cluster.held.len() <= needed, "{:?} held, {needed} needed", cluster.held);
        for node in cluster.nodes.iter().filter(|node| !node.taints.is_empty()) {
            prop_assert_eq!(is_up(node), is_held(node), "{}", node.name);
            let may_be_alive = may_be_alive(node, &cluster.targets, cluster.now.mono);
            prop_assert!(!is_held(node) || may_be_alive);
        }
    }
}
