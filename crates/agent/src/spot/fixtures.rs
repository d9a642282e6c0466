//! Notices and records for the tables of several tests.

use std::time::Duration;

use headgate_core::node::AzureNotice;
use jiff::Timestamp;

use super::notice::{Notice, NoticeTracker, TrackedNotice};
use super::taint_action::NoticeRecord;

pub(super) const BOOT: &str = "boot-1";

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn notice(id: &str, not_before: Option<i64>) -> Notice {
    Notice {
        event_type: AzureNotice::Preempt,
        event_id: id.to_owned(),
        not_before: not_before.map(at),
    }
}

pub(super) fn tracking(notice: Notice, is_listed: bool) -> NoticeTracker {
    NoticeTracker {
        notice: Some(TrackedNotice {
            first: notice.clone(),
            latest: notice,
            since: at(5),
            is_listed,
        }),
        ..NoticeTracker::default()
    }
}

pub(super) fn clear() -> NoticeTracker {
    NoticeTracker {
        is_clear: true,
        grace: Duration::from_mins(1),
        ..NoticeTracker::default()
    }
}

pub(super) fn record(id: &str, not_before: Option<i64>, tainted_at: Option<i64>) -> NoticeRecord {
    NoticeRecord {
        event_type: AzureNotice::Preempt,
        event_id: id.to_owned(),
        not_before: not_before.map(at),
        boot_id: BOOT.to_owned(),
        tainted_at: tainted_at.map(at),
    }
}
