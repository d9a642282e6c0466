use headgate_core::clock::Clock;
use proptest::prelude::*;

use super::super::fixtures::{DRAIN, ENFORCE, ledger, node, plan_inputs, pool_id, target_states, view};
use super::*;

/// The plan without network interfaces.
fn planned(view: &LoadBalancerView, targets: &TargetStates, ledger: &Ledger, policy: Policy, now: Moment) -> Plan {
    plan(
        view,
        &PlanInputs {
            policy,
            ..plan_inputs(targets, ledger, now)
        },
    )
}

/// What the plan makes of one entry in the state `from`; `-` if it stays.
fn one(taints: &[&str], from: &str, stage: Option<LedgerStage>, policy: Policy, excluded: bool) -> String {
    let now = Clock::System.now();
    let mut node = node(1, taints);
    node.excluded = excluded.then_some("label");
    let targets = target_states(&[node], now);
    let entries_in_ledger: Vec<_> = stage.map(|stage| ("p", 1, stage)).into_iter().collect();
    let view = view(&[("p", &[(1, from), (9, "Down")], true)]);
    let plan = planned(&view, &targets, &ledger(&entries_in_ledger), policy, now);
    let changes: Vec<_> = plan.edits.iter().flat_map(|edit| &edit.admin_states).collect();
    assert!(
        changes.iter().all(|change| change.index == 0),
        "an entry of no Node: {plan:?}"
    );
    changes
        .first()
        .map_or("-".to_owned(), |change| change.to.as_str().to_owned())
}

#[test]
fn entries_become_what_the_table_says() {
    let signalled: &[&str] = &["other", DRAIN];
    let ours = Some(LedgerStage::Down);
    for (taints, from, stage, to) in [
        (signalled, "-", None, "Down"),
        (signalled, "None", None, "Down"),
        (signalled, "none", None, "Down"),
        (signalled, "Down", None, "-"),
        (signalled, "down", ours, "-"),
        (signalled, "Up", None, "-"),
        (signalled, "Drain", None, "-"),
        (signalled, "None", ours, "Down"),
        (signalled, "None", Some(LedgerStage::Restored), "Down"),
        (&["other"], "-", None, "-"),
        (&["other"], "None", ours, "-"),
        (&["other"], "Down", None, "-"),
        (&["other"], "Down", ours, "None"),
        (&["other"], "Down", Some(LedgerStage::Intended), "None"),
        (&["other"], "Down", Some(LedgerStage::Restored), "None"),
        (&["other"], "Up", ours, "-"),
        (&[], "Up", None, "-"),
    ] {
        assert_eq!(
            one(taints, from, stage, ENFORCE, false),
            to,
            "{taints:?} {from} {stage:?}"
        );
    }
}

#[test]
fn load_balancer_that_is_not_configured_is_only_given_back() {
    let now = Clock::System.now();
    let targets = target_states(&[node(1, &[]), node(2, &[DRAIN]), node(3, &[]), node(4, &[DRAIN])], now);
    let ours = ledger(&[("p", 1, LedgerStage::Down), ("p", 4, LedgerStage::Down)]);
    let view = view(&[("p", &[(1, "Down"), (2, "None"), (3, "Down"), (4, "None")], true)]);
    let policy = Policy {
        foreign_down: ForeignDown::Restore,
        ..ENFORCE
    };
    let plan = plan(
        &view,
        &PlanInputs {
            policy,
            is_configured: false,
            ..plan_inputs(&targets, &ours, now)
        },
    );
    let changes = plan.edits.iter().flat_map(|edit| &edit.admin_states);
    let changes: Vec<_> = changes.map(|change| (change.index, change.to)).collect();
    assert_eq!(changes, [(0, AdminState::None)]);
    let shown: Vec<_> = plan.entries.iter().map(|status| &*status.node.name).collect();
    assert_eq!(shown, ["n1", "n4"]);
    assert!(plan.pools.is_empty(), "no metrics of another cluster's pools");
}

#[test]
fn entry_in_an_unused_pool_that_is_not_configured_has_the_target_of_its_node() {
    let now = Clock::System.now();
    let targets = target_states(&[node(1, &[DRAIN])], now);
    let ours = ledger(&[("p", 1, LedgerStage::Down)]);
    let mut view = view(&[("p", &[(1, "Down")], true)]);
    Arc::make_mut(&mut view.pools[0]).rules.clear();
    let inputs = PlanInputs {
        is_configured: false,
        ..plan_inputs(&targets, &ours, now)
    };
    let shown: Vec<_> = plan(&view, &inputs).entries.iter().map(|entry| entry.target).collect();
    assert_eq!(
        shown,
        [TargetState::Down],
        "another one would count as an outdated plan"
    );
}

#[test]
fn modes_and_foreign_down_limit_the_plan() {
    let policy = |mode, foreign_down| Policy { mode, foreign_down };
    let ours = Some(LedgerStage::Down);
    let (enforce, observe, off) = (
        AdminStateMode::Enforce,
        AdminStateMode::Observe,
        AdminStateMode::Disabled,
    );
    let (keep, restore) = (ForeignDown::Keep, ForeignDown::Restore);
    for (taints, from, stage, policy, to) in [
        (&[][..], "Down", None, policy(enforce, restore), "None"),
        (&[], "Up", None, policy(enforce, restore), "-"),
        (&[DRAIN], "None", None, policy(observe, restore), "-"),
        (&[], "Down", ours, policy(observe, keep), "-"),
        (&[DRAIN], "None", None, policy(off, keep), "-"),
        (&[DRAIN], "Down", ours, policy(off, keep), "None"),
        (&[], "Down", ours, policy(off, keep), "None"),
        (&[], "Down", None, policy(off, restore), "-"),
    ] {
        assert_eq!(
            one(taints, from, stage, policy, false),
            to,
            "{taints:?} {from} {stage:?} {policy:?}"
        );
    }
}

#[test]
fn entry_of_an_excluded_node_is_only_restored() {
    assert_eq!(one(&[DRAIN], "None", None, ENFORCE, true), "-");
    assert_eq!(one(&[], "Down", Some(LedgerStage::Down), ENFORCE, true), "None");
    assert_eq!(one(&[], "Down", None, ENFORCE, true), "-");
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_during_the_debounce() {
    let clock = Clock::anchored(jiff::Timestamp::UNIX_EPOCH);
    let mut targets = target_states(&[node(1, &[DRAIN])], clock.now());
    targets.apply(node(1, &[]), clock.now());
    let change_count = |mono| {
        let view = view(&[("p", &[(1, "Down"), (2, "-")], true)]);
        let ledger = ledger(&[("p", 1, LedgerStage::Down)]);
        planned(&view, &targets, &ledger, ENFORCE, Moment { mono, ..clock.now() }).change_count()
    };
    let ended = clock.now().mono;
    assert_eq!(change_count(ended), 0);
    assert_eq!(change_count(targets.next_deadline(ended).unwrap()), 1);
}

#[test]
fn each_pool_is_one_edit_and_edits_that_set_down_come_first() {
    let now = Clock::System.now();
    let nodes: Vec<_> = (1..=3)
        .map(|number| node(number, if number < 3 { &[DRAIN] } else { &[] }))
        .collect();
    let view = view(&[
        ("back", &[(1, "Down"), (2, "Down"), (3, "Down")], true),
        ("out", &[(3, "-"), (1, "-"), (2, "-")], false),
    ]);
    let ledger = ledger(&[("back", 3, LedgerStage::Down)]);
    let plan = planned(&view, &target_states(&nodes, now), &ledger, ENFORCE, now);
    let shown: Vec<_> = plan
        .edits
        .iter()
        .map(|edit| {
            (
                edit.pool.name(),
                edit.admin_states.iter().map(|change| change.index).collect::<Vec<_>>(),
            )
        })
        .collect();
    assert_eq!(shown, [("out", vec![1, 2]), ("back", vec![2])]);
    let counts: Vec<_> = plan
        .pools
        .iter()
        .map(|pool| {
            (
                pool.pool.name(),
                pool.entries,
                pool.desired_down,
                pool.actual_down,
                pool.eligible,
            )
        })
        .collect();
    assert_eq!(counts, [("back", 3, 2, 3, 1), ("out", 3, 2, 0, 1)]);
    let unprobed: Vec<_> = plan
        .entries
        .iter()
        .filter(|entry| entry.pool == pool_id("out"))
        .collect();
    assert!(
        unprobed
            .iter()
            .all(|entry| entry.probe_coverage == ProbeCoverage::None && entry.is_pending())
    );
}

#[test]
fn entry_of_an_unused_pool_is_only_restored() {
    let plan_unused = |taints: &[&str], entries_in_ledger: &[(&str, u8, LedgerStage)]| {
        let now = Clock::System.now();
        let mut view = view(&[("p", &[(1, "Down"), (2, "-")], true)]);
        Arc::make_mut(&mut view.pools[0]).rules.clear();
        let nodes = [node(1, taints), node(2, taints)];
        planned(
            &view,
            &target_states(&nodes, now),
            &ledger(entries_in_ledger),
            ENFORCE,
            now,
        )
    };
    let ours = &[("p", 1, LedgerStage::Down)];
    assert_eq!(plan_unused(&[DRAIN], &[]), Plan::default());
    assert_eq!(plan_unused(&[DRAIN], ours), Plan::default(), "a rule may use it again");
    assert_eq!(plan_unused(&[], &[]), Plan::default());
    let restored = plan_unused(&[], ours);
    assert_eq!((restored.change_count(), restored.entries.len()), (1, 1));
    assert!(restored.pools.is_empty());
}

const STATES: [&str; 5] = ["-", "None", "Up", "Down", "Odd"];
const STAGES: [Option<LedgerStage>; 4] = [
    None,
    Some(LedgerStage::Intended),
    Some(LedgerStage::Down),
    Some(LedgerStage::Restored),
];

#[test]
fn down_is_headgates_by_its_stage_and_a_restored_one_while_it_is_due_to_be_given_back() {
    let now = Clock::System.now();
    let (targets, ledger) = (target_states(&[node(1, &[DRAIN])], now), ledger(&[]));
    let view = view(&[("p", &[(1, "Down")], true)]);
    let plan = planned(&view, &targets, &ledger, ENFORCE, now);
    for (observed, stage, target, is_ours) in [
        (AdminState::Down, Some(LedgerStage::Down), TargetState::Down, true),
        (AdminState::Down, Some(LedgerStage::Intended), TargetState::None, true),
        (AdminState::Down, Some(LedgerStage::Restored), TargetState::None, true),
        (AdminState::Down, Some(LedgerStage::Restored), TargetState::Down, false),
        (AdminState::Down, None, TargetState::None, false),
        (AdminState::None, Some(LedgerStage::Down), TargetState::Down, false),
    ] {
        let since = now.wall;
        let entry = EntryStatus {
            observed: Some(observed),
            ledger_entry: stage.map(|stage| LedgerEntry { stage, since }),
            target,
            ..plan.entries[0].clone()
        };
        assert_eq!(entry.is_set_by_headgate(), is_ours, "{entry:?}");
    }
}

#[test]
fn changes_of_other_nodes_can_be_left_out() {
    let now = Clock::System.now();
    let targets = target_states(&[node(1, &[DRAIN]), node(2, &[DRAIN])], now);
    let view = view(&[("p", &[(1, "-"), (2, "-")], true), ("q", &[(2, "-")], true)]);
    let mut plan = planned(&view, &targets, &ledger(&[]), ENFORCE, now);
    assert_eq!(plan.change_count(), 3);
    plan.retain_changes(|node| node.name == "n1");
    assert_eq!((plan.edits.len(), plan.change_count()), (1, 1));
    let pending: Vec<_> = plan.entries.iter().filter(|entry| entry.is_pending()).collect();
    assert_eq!((pending.len(), pending[0].node.name.as_str()), (1, "n1"));
}

proptest! {
    /// Whatever a pool and the ledger contain: nothing is set `Down` without a signal, nothing is restored that is not in the
    /// ledger, and after a plan is written the next plan is empty.
    #[test]
    fn plans_are_safe_and_converge(
        entries in proptest::collection::vec((0..5_usize, 0..4_usize, any::<bool>(), any::<bool>(), any::<bool>()), 0..8),
    ) {
        let now = Clock::System.now();
        let numbered = || entries.iter().zip(1_u8..);
        let nodes: Vec<_> = numbered()
            .filter(|((.., known, _), _)| *known)
            .map(|((_, _, signalled, _, excluded), number)| {
                let mut node = node(number, if *signalled { &[DRAIN] } else { &[] });
                node.excluded = excluded.then_some("label");
                node
            })
            .collect();
        let targets = target_states(&nodes, now);
        let states: Vec<_> = numbered().map(|((state, ..), number)| (number, STATES[*state])).collect();
        let entries_in_ledger: Vec<_> = numbered().filter_map(|((_, stage, ..), number)| Some(("p", number, STAGES[*stage]?))).collect();
        let ledger = ledger(&entries_in_ledger);
        let mut view = view(&[("p", &states, true)]);
        let first = planned(&view, &targets, &ledger, ENFORCE, now);
        for change in first.edits.iter().flat_map(|edit| &edit.admin_states) {
            let (_, stage, signalled, known, _) = entries[change.index];
            prop_assert!(known);
            match change.to {
                AdminState::Down => prop_assert!(signalled),
                AdminState::None => prop_assert!(!signalled && STAGES[stage].is_some()),
                AdminState::Up => prop_assert!(false, "never"),
            }
        }
        let changed: Vec<_> = first.edits.iter().flat_map(|edit| &edit.admin_states).map(|change| change.index).collect();
        let due = |(state, stage, signalled, known, excluded): &(usize, usize, bool, bool, bool)| match STATES[*state] {
            "-" | "None" => *known && *signalled && !excluded,
            "Down" => *known && !signalled && STAGES[*stage].is_some(),
            _ => false,
        };
        let expected: Vec<_> = entries.iter().enumerate().filter(|(_, entry)| due(entry)).map(|(place, _)| place).collect();
        prop_assert_eq!(changed, expected, "every entry that is due changes");
        for edit in &first.edits {
            let index = view.pools.iter().position(|pool| pool.id == edit.pool).unwrap();
            for change in &edit.admin_states {
                Arc::make_mut(&mut view.pools[index]).entries[change.index].admin_state = Some(change.to);
            }
        }
        let second = planned(&view, &targets, &ledger, ENFORCE, now);
        prop_assert!(second.edits.is_empty(), "{:?}", second.edits);
    }
}
