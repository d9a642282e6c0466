//! Stories of the leader, disturbed at each of their fault points: see `headgate_test_kubernetes::run_fault_points`, whose module says
//! what the patterns are. Each story waits for each of its states, and ends in its end state, whatever is disturbed; the invariants of
//! each write are those of `invariants`. Stories of maintenances are in `headgate-maintenance`.

mod admin_states;
mod other_writers;
mod stage;

use futures::FutureExt as _;
use headgate_test_kubernetes::{Pattern, Story, find_failure, run_fault_points};

macro_rules! story {
    ($name:literal, $run:path, $has_pairs:literal) => {
        Story {
            name: $name,
            run: |points| $run(points).boxed_local(),
            has_pairs: $has_pairs,
        }
    };
}

const STORIES: [Story; 10] = [
    story!("drain and return", admin_states::drain_and_return, true),
    story!("two nodes at once", admin_states::two_nodes_at_once, true),
    story!("roll of the leader", admin_states::roll_of_the_leader, false),
    story!("Local pool with refusal", other_writers::local_pool_with_refusal, false),
    story!("guard hold and release", admin_states::guard_hold_and_release, false),
    story!(
        "marker and autoscaler delay",
        other_writers::marker_and_autoscaler_delay,
        false
    ),
    story!("spot notice", other_writers::spot_notice, false),
    story!("handover", admin_states::handover, false),
    story!("mode off", admin_states::mode_off, true),
    story!("restore", admin_states::restore, true),
];

#[test]
fn stories_reach_their_end_states_whatever_is_disturbed() {
    run_fault_points(&STORIES);
}

/// The check can fail: a leader that loses its ledger when it crashes leaves a node out of service.
#[test]
fn a_crash_that_costs_the_ledger_is_found() {
    let story = story!("no ledger", admin_states::drain_and_return_without_a_ledger, false);
    for pattern in [Pattern::CrashBefore, Pattern::CrashAfter] {
        let failure = find_failure(story, pattern, "loadBalancers").unwrap();
        assert!(failure.message.contains("nothing Down"), "{failure:#?}");
    }
}

/// The check can fail: a write that no etag checks undoes what another writer has added since what a late or older answer shows.
#[test]
fn a_read_that_no_etag_checks_is_found() {
    let story = story!("no etags", other_writers::local_pool_without_etags, false);
    for pattern in [Pattern::Delay, Pattern::OlderVersion] {
        let failure = find_failure(story, pattern, "loadBalancers/").unwrap();
        assert!(failure.message.contains("not within"), "{failure:#?}");
    }
}

/// The check can fail: a leader that takes nothing from a list after the first one misses a dropped event, and goes back to the state of
/// the first list after a duplicated one.
#[test]
fn a_list_that_is_ignored_is_found() {
    let story = story!("first list", admin_states::drain_and_return_without_later_lists, false);
    for pattern in [Pattern::Drop, Pattern::Duplicate] {
        let failure = find_failure(story, pattern, "event of /api/v1/nodes").unwrap();
        assert!(failure.message.contains("nothing Down"), "{failure:#?}");
    }
}
