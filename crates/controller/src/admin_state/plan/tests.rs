use headgate_clock::Clock;
use proptest::prelude::*;

use super::super::fixtures::{DRAIN, book, desired, node, pool_id, view};
use super::*;

const ENFORCE: Policy = Policy {
    mode: AdminStateMode::Enforce,
    foreign_down: ForeignDown::Keep,
};

/// The plan for one entry, `from` one state to another; `-` stays.
fn one(taints: &[&str], from: &str, stage: Option<Stage>, policy: Policy, excluded: bool) -> String {
    let now = Clock::System.now();
    let mut node = node(1, taints);
    node.excluded = excluded.then_some("label");
    let desired = desired(&[node], now);
    let lines: Vec<_> = stage.map(|stage| ("p", 1, stage)).into_iter().collect();
    let view = view(&[("p", &[(1, from), (9, "Down")], true)]);
    let plan = plan(&view, &Interfaces::default(), &desired, &book(&lines), policy, now.mono);
    let changes: Vec<_> = plan.edits.iter().flat_map(|edit| &edit.changes).collect();
    assert!(
        changes.iter().all(|change| change.place == 0),
        "an entry of no Node: {plan:?}"
    );
    changes
        .first()
        .map_or("-".to_owned(), |change| change.to.as_str().to_owned())
}

#[test]
fn the_table() {
    let signalled: &[&str] = &["other", DRAIN];
    let ours = Some(Stage::Down);
    for (taints, from, stage, to) in [
        (signalled, "-", None, "Down"),
        (signalled, "None", None, "Down"),
        (signalled, "none", None, "Down"),
        (signalled, "Down", None, "-"),
        (signalled, "down", ours, "-"),
        (signalled, "Up", None, "-"),
        (signalled, "Drain", None, "-"),
        (signalled, "None", ours, "Down"),
        (signalled, "None", Some(Stage::Restored), "Down"),
        (&["other"], "-", None, "-"),
        (&["other"], "None", ours, "-"),
        (&["other"], "Down", None, "-"),
        (&["other"], "Down", ours, "None"),
        (&["other"], "Down", Some(Stage::Intended), "None"),
        (&["other"], "Down", Some(Stage::Restored), "None"),
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
fn policies() {
    let policy = |mode, foreign_down| Policy { mode, foreign_down };
    let ours = Some(Stage::Down);
    let (enforce, observe, off) = (AdminStateMode::Enforce, AdminStateMode::Observe, AdminStateMode::Off);
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
fn a_node_in_no_load_balancer_is_only_given_back() {
    assert_eq!(one(&[DRAIN], "None", None, ENFORCE, true), "-");
    assert_eq!(one(&[], "Down", Some(Stage::Down), ENFORCE, true), "None");
    assert_eq!(one(&[], "Down", None, ENFORCE, true), "-");
}

#[tokio::test(start_paused = true)]
async fn a_moment_after_the_last_signal_nothing_changes() {
    let clock = Clock::anchored(jiff::Timestamp::UNIX_EPOCH);
    let mut desired = desired(&[node(1, &[DRAIN])], clock.now());
    desired.apply(node(1, &[]), &super::super::fixtures::keys(), clock.now());
    let planned = |now| {
        let view = view(&[("p", &[(1, "Down"), (2, "-")], true)]);
        let lines = book(&[("p", 1, Stage::Down)]);
        plan(&view, &Interfaces::default(), &desired, &lines, ENFORCE, now).changes()
    };
    let ended = clock.now().mono;
    assert_eq!(planned(ended), 0);
    assert_eq!(planned(desired.next_change(ended).unwrap()), 1);
}

#[test]
fn all_nodes_of_a_pool_are_one_edit_and_those_who_go_come_first() {
    let now = Clock::System.now();
    let nodes: Vec<_> = (1..=3)
        .map(|number| node(number, if number < 3 { &[DRAIN] } else { &[] }))
        .collect();
    let view = view(&[
        ("back", &[(1, "Down"), (2, "Down"), (3, "Down")], true),
        ("out", &[(3, "-"), (1, "-"), (2, "-")], false),
    ]);
    let lines = book(&[("back", 3, Stage::Down)]);
    let plan = plan(
        &view,
        &Interfaces::default(),
        &desired(&nodes, now),
        &lines,
        ENFORCE,
        now.mono,
    );
    let shown: Vec<_> = plan
        .edits
        .iter()
        .map(|edit| {
            (
                edit.pool.name(),
                edit.changes.iter().map(|change| change.place).collect::<Vec<_>>(),
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
    let probed: Vec<_> = plan
        .standings
        .iter()
        .filter(|standing| standing.pool == pool_id("out"))
        .collect();
    assert!(
        probed
            .iter()
            .all(|standing| standing.probed == Probed::None && standing.is_pending())
    );
}

#[test]
fn a_pool_that_no_rule_uses_any_more_is_only_given_back() {
    let planned = |taints: &[&str], lines: &[(&str, u8, Stage)]| {
        let now = Clock::System.now();
        let mut view = view(&[("p", &[(1, "Down"), (2, "-")], true)]);
        view.pools[0].rules.clear();
        let nodes = [node(1, taints), node(2, taints)];
        plan(
            &view,
            &Interfaces::default(),
            &desired(&nodes, now),
            &book(lines),
            ENFORCE,
            now.mono,
        )
    };
    let ours = &[("p", 1, Stage::Down)];
    assert_eq!(planned(&[DRAIN], &[]), Plan::default());
    assert_eq!(planned(&[DRAIN], ours), Plan::default(), "it may be used again");
    assert_eq!(planned(&[], &[]), Plan::default());
    let given_back = planned(&[], ours);
    assert_eq!((given_back.changes(), given_back.standings.len()), (1, 1));
    assert!(given_back.pools.is_empty());
}

const STATES: [&str; 5] = ["-", "None", "Up", "Down", "Odd"];
const STAGES: [Option<Stage>; 4] = [None, Some(Stage::Intended), Some(Stage::Down), Some(Stage::Restored)];

proptest! {
    /// Whatever stands in a pool and in the ledger: nothing is set Down without a signal, nothing restored that is not
    /// ours, and a plan that was carried out leaves nothing to plan.
    #[test]
    fn plans_are_safe_and_come_to_rest(
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
        let desired = desired(&nodes, now);
        let states: Vec<_> = numbered().map(|((state, ..), number)| (number, STATES[*state])).collect();
        let lines: Vec<_> = numbered().filter_map(|((_, stage, ..), number)| Some(("p", number, STAGES[*stage]?))).collect();
        let book = book(&lines);
        let mut view = view(&[("p", &states, true)]);
        let first = plan(&view, &Interfaces::default(), &desired, &book, ENFORCE, now.mono);
        for change in first.edits.iter().flat_map(|edit| &edit.changes) {
            let (_, stage, signalled, known, _) = entries[change.place];
            prop_assert!(known);
            match change.to {
                AdminState::Down => prop_assert!(signalled),
                AdminState::None => prop_assert!(!signalled && STAGES[stage].is_some()),
                AdminState::Up => prop_assert!(false, "never"),
            }
        }
        let changed: Vec<_> = first.edits.iter().flat_map(|edit| &edit.changes).map(|change| change.place).collect();
        let due = |(state, stage, signalled, known, excluded): &(usize, usize, bool, bool, bool)| match STATES[*state] {
            "-" | "None" => *known && *signalled && !excluded,
            "Down" => *known && !signalled && STAGES[*stage].is_some(),
            _ => false,
        };
        let expected: Vec<_> = entries.iter().enumerate().filter(|(_, entry)| due(entry)).map(|(place, _)| place).collect();
        prop_assert_eq!(changed, expected, "nobody is passed over");
        for edit in &first.edits {
            let place = view.pools.iter().position(|pool| pool.id == edit.pool).unwrap();
            for change in &edit.changes {
                view.pools[place].members[change.place].admin_state = Some(change.to);
            }
        }
        let second = plan(&view, &Interfaces::default(), &desired, &book, ENFORCE, now.mono);
        prop_assert!(second.edits.is_empty(), "{:?}", second.edits);
    }
}
