use headgate_azure::ErrorBody;
use hyper::StatusCode;

use super::super::fixtures::{ledger, ledger_change, pool_id};
use super::*;
use crate::pool::ClusterNode;

fn key(number: u8) -> EntryKey {
    EntryKey::from_text(&format!("10.0.0.{number}"))
}

#[test]
fn what_is_in_the_ledger_as_headgates_is_intended_once() {
    let ledger = ledger(&[
        ("p", 1, LedgerStage::Down),
        ("p", 2, LedgerStage::Intended),
        ("p", 3, LedgerStage::Restored),
    ]);
    let changes = [
        (1, AdminState::Down),
        (2, AdminState::Down),
        (3, AdminState::Down),
        (4, AdminState::Down),
        (5, AdminState::None),
    ];
    let change = |(number, to): (u8, AdminState)| AdminStateChange {
        index: usize::from(number),
        key: key(number),
        node: Arc::new(ClusterNode::default()),
        to,
    };
    let edit = PoolEdit {
        pool: pool_id("p"),
        admin_states: changes.map(change).to_vec(),
        members: None,
    };
    let Intents { changes, undo } = intents(&ledger, &edit, &[key(6)], Timestamp::UNIX_EPOCH);
    assert_eq!(
        changes,
        [3, 4, 6].map(|number| ledger_change("p", number, LedgerStage::Intended))
    );
    let absent = |number| LedgerChange::new(&pool_id("p"), &key(number), None);
    assert_eq!(
        undo,
        [ledger_change("p", 3, LedgerStage::Restored), absent(4), absent(6)]
    );
}

#[test]
fn only_what_arm_has_refused_or_was_not_sent_has_no_effect() {
    let refused = |status, may_have_applied| ArmError::ErrorResponse {
        status,
        error: ErrorBody::default(),
        retry_after: None,
        may_have_applied,
    };
    for (error, expected) in [
        (refused(StatusCode::BAD_REQUEST, false), true),
        (refused(StatusCode::BAD_REQUEST, true), false),
        (refused(StatusCode::REQUEST_TIMEOUT, false), false),
        (refused(StatusCode::SERVICE_UNAVAILABLE, false), false),
        (ArmError::Busy("lb".to_owned()), true),
        (ArmError::DeadlineExceeded, false),
    ] {
        assert_eq!(has_no_effect(&error), expected, "{error}");
    }
}

#[test]
fn acceptance_of_all_that_is_due_ends_an_error_unless_a_write_was_ignored() {
    let ignored = ArmError::ReadBackMismatch("p".to_owned());
    for (error, unsent, accepted, left) in [
        (&ArmError::DeadlineExceeded, 2, 2, (0, false)),
        (&ArmError::DeadlineExceeded, 2, 1, (1, true)),
        (&ArmError::DeadlineExceeded, 0, 1, (0, false)),
        (&ignored, 2, 2, (0, true)),
        (&ignored, 2, 1, (1, true)),
    ] {
        let mut status = LoadBalancerStatus {
            unsent_changes: unsent,
            last_error: Some(LastError::from_arm(error, None)),
            ..LoadBalancerStatus::default()
        };
        status.accept(accepted);
        let found = (status.unsent_changes, status.last_error.is_some());
        assert_eq!(found, left, "{error}, {accepted} of {unsent}");
    }
}

#[test]
fn a_plan_is_due_by_other_targets_and_by_other_holds_if_the_last_one_chose_by_them() {
    let mut targets = TargetStates::default();
    (targets.generation, targets.hold_generation) = (3, 5);
    let targets = Some(&targets);
    for (targets, last_generation, last_hold_generation, is_due) in [
        (None, None, None, false),
        (targets, None, None, true),
        (targets, Some(2), None, true),
        (targets, Some(2), Some(5), true),
        (targets, Some(3), None, false),
        (targets, Some(3), Some(5), false),
        (targets, Some(3), Some(4), true),
    ] {
        let found = is_plan_due(targets, last_generation, last_hold_generation);
        assert_eq!(found, is_due, "{last_generation:?} {last_hold_generation:?}");
    }
}
