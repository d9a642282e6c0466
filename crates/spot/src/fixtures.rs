//! Notices and records that several tables of this room begin with.

use jiff::Timestamp;

use super::notice::{Follow, Followed, Notice};
use super::taint::Record;

pub(super) const BOOT: &str = "boot-1";

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn notice(id: &str, not_before: Option<i64>) -> Notice {
    Notice {
        event_id: id.to_owned(),
        not_before: not_before.map(at),
    }
}

pub(super) fn following(notice: Notice, listed: bool) -> Follow {
    Follow {
        notice: Some(Followed {
            first: notice.clone(),
            latest: notice,
            since: at(5),
            listed,
        }),
        ..Follow::default()
    }
}

pub(super) fn clear() -> Follow {
    Follow {
        clear: true,
        ..Follow::default()
    }
}

pub(super) fn record(id: &str, not_before: Option<i64>, tainted_at: Option<i64>) -> Record {
    Record {
        event_id: id.to_owned(),
        not_before: not_before.map(at),
        boot_id: BOOT.to_owned(),
        tainted_at: tainted_at.map(at),
    }
}
