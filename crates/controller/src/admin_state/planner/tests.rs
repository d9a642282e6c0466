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
