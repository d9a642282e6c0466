//! When the draining taint is added and when it is removed, and the record of its notice. Pure.
//!
//! A recorded notice never taints the Node again, even if another writer removed the taint; a new notice does. The
//! taint is removed when its notice has been gone for the grace, when the machine has booted again, or 15 minutes after the
//! notice's time if no document confirms it.

use std::collections::BTreeMap;

use headgate_core::node::{AzureNotice, SPOT_NOTICE_ANNOTATION};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::notice::{Notice, NoticeTracker, confirmation_deadline};

/// The notice that the Node was last tainted for, the JSON of the annotation [`SPOT_NOTICE_ANNOTATION`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoticeRecord {
    /// What Azure announced; left out for an eviction.
    #[serde(default, skip_serializing_if = "is_preempt")]
    pub event_type: AzureNotice,
    /// The id of the event.
    pub event_id: String,
    /// The earliest start of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The machine's boot at the time of the notice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// The `timeAdded` of headgate's taint; `None` if another writer's taint was there, or headgate's is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tainted_at: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_preempt(event_type: &AzureNotice) -> bool {
    *event_type == AzureNotice::Preempt
}

impl NoticeRecord {
    /// The record in a Node's annotations; `None` if there is none or it is not readable.
    #[must_use]
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(annotations.get(SPOT_NOTICE_ANNOTATION)?).ok()
    }

    /// The notice that is recorded.
    #[must_use]
    pub fn notice(&self) -> Notice {
        Notice {
            event_type: self.event_type,
            event_id: self.event_id.clone(),
            not_before: self.not_before,
        }
    }

    /// When headgate's taint ends unless a document confirms the notice; `None` if there is no such taint.
    #[must_use]
    pub fn confirmation_deadline(&self) -> Option<Timestamp> {
        let tainted_at = self.tainted_at?;
        Some(confirmation_deadline(
            self.not_before.unwrap_or(tainted_at).max(tainted_at),
        ))
    }
}

/// What to change in the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaintAction {
    /// Record this notice, and add the taint unless the Node has it.
    Add(Notice),
    /// Remove the taint that headgate added.
    Remove,
}

/// The next action, from the documents so far, the record in the Node and the machine's present boot; `None` if the
/// Node is in the target state.
#[must_use]
pub fn next_taint_action(
    tracker: &NoticeTracker,
    record: Option<&NoticeRecord>,
    boot_id: &str,
    now: Timestamp,
) -> Option<TaintAction> {
    let listed = tracker.notice.as_ref().filter(|notice| notice.is_listed);
    let new = listed.filter(|notice| record.is_none_or(|record| !notice.matches(&record.notice())));
    if let Some(notice) = new {
        return Some(TaintAction::Add(notice.merged()));
    }
    let record = record?;
    let deadline = record.confirmation_deadline()?;
    // An unknown boot does not count as another one.
    let has_rebooted = !record.boot_id.is_empty() && !boot_id.is_empty() && record.boot_id != boot_id;
    let is_stale = tracker.is_unconfirmed && tracker.notice.is_none() && now >= deadline;
    (has_rebooted || tracker.is_clear || is_stale).then_some(TaintAction::Remove)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{BOOT, at, clear, notice, record, tracking};
    use super::*;

    #[test]
    fn new_notices_add_the_taint_once() {
        let a = notice("a", Some(100));
        let add = |notice: &Notice| Some(TaintAction::Add(notice.clone()));
        let ours = record("a", Some(100), Some(50));
        let theirs = record("a", Some(100), None);
        for (case, tracker, record, boot_id, want) in [
            ("a new notice", tracking(a.clone(), true), None, BOOT, add(&a)),
            (
                "recorded: not again, with or without the taint",
                tracking(a.clone(), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded, and the taint is removed or another writer's",
                tracking(a.clone(), true),
                Some(&theirs),
                BOOT,
                None,
            ),
            (
                "recorded under another id",
                tracking(notice("b", Some(100)), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded under another time",
                tracking(notice("A", Some(200)), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded, now started",
                tracking(notice("a", None), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "another notice",
                tracking(notice("b", Some(200)), true),
                Some(&ours),
                BOOT,
                add(&notice("b", Some(200))),
            ),
            (
                "another, already started",
                tracking(notice("b", None), true),
                Some(&ours),
                BOOT,
                add(&notice("b", None)),
            ),
        ] {
            assert_eq!(next_taint_action(&tracker, record, boot_id, at(60)), want, "{case}");
        }
    }

    #[test]
    fn taint_is_removed_after_the_grace_or_a_reboot() {
        let a = notice("a", Some(100));
        let add = |notice: &Notice| Some(TaintAction::Add(notice.clone()));
        let ours = record("a", Some(100), Some(50));
        let theirs = record("a", Some(100), None);
        for (case, tracker, record, boot_id, want) in [
            (
                "gone, within the grace",
                tracking(a.clone(), false),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "gone before it was recorded",
                tracking(a.clone(), false),
                None,
                BOOT,
                None,
            ),
            (
                "gone for the grace",
                clear(),
                Some(&ours),
                BOOT,
                Some(TaintAction::Remove),
            ),
            ("gone, and no taint of headgate", clear(), Some(&theirs), BOOT, None),
            ("no notice and no record", clear(), None, BOOT, None),
            ("no document yet", NoticeTracker::default(), Some(&ours), BOOT, None),
            (
                "rebooted, no document yet",
                NoticeTracker::default(),
                Some(&ours),
                "boot-2",
                Some(TaintAction::Remove),
            ),
            (
                "rebooted, the notice is still there",
                tracking(a.clone(), true),
                Some(&ours),
                "boot-2",
                Some(TaintAction::Remove),
            ),
            (
                "rebooted, no taint of headgate",
                tracking(a.clone(), true),
                Some(&theirs),
                "boot-2",
                None,
            ),
            (
                "rebooted, another notice",
                tracking(notice("b", None), true),
                Some(&ours),
                "boot-2",
                add(&notice("b", None)),
            ),
            ("the boot is not known", NoticeTracker::default(), Some(&ours), "", None),
        ] {
            assert_eq!(next_taint_action(&tracker, record, boot_id, at(60)), want, "{case}");
        }
        let unknown = NoticeRecord {
            boot_id: String::new(),
            ..ours
        };
        assert_eq!(
            next_taint_action(&NoticeTracker::default(), Some(&unknown), BOOT, at(60)),
            None,
            "the boot was not known"
        );
    }

    #[test]
    fn taint_without_confirmation_is_removed_15_minutes_after_the_time_of_its_notice() {
        const MINUTES_15: i64 = 15 * 60;
        let unconfirmed = NoticeTracker {
            is_unconfirmed: true,
            ..NoticeTracker::default()
        };
        let still_counts = NoticeTracker {
            is_unconfirmed: true,
            ..tracking(notice("a", Some(100)), true)
        };
        let (timed, untimed) = (record("a", Some(100), Some(50)), record("a", None, Some(50)));
        let theirs = record("a", Some(100), None);
        for (case, tracker, record, second, is_removed) in [
            ("just before", &unconfirmed, &timed, 99 + MINUTES_15, false),
            ("its time", &unconfirmed, &timed, 100 + MINUTES_15, true),
            ("without a time, before", &unconfirmed, &untimed, 49 + MINUTES_15, false),
            ("without a time", &unconfirmed, &untimed, 50 + MINUTES_15, true),
            ("no taint of headgate", &unconfirmed, &theirs, 1_000_000, false),
            ("the notice counts", &still_counts, &timed, 1_000_000, false),
            ("documents come", &NoticeTracker::default(), &timed, 1_000_000, false),
        ] {
            let action = next_taint_action(tracker, Some(record), BOOT, at(second));
            assert_eq!(action, is_removed.then_some(TaintAction::Remove), "{case}");
        }
    }

    #[test]
    fn unreadable_record_is_none() {
        for text in ["", "{}", "null", "[]", "{\"eventId\": 7}"] {
            assert_eq!(
                NoticeRecord::from_annotations(&[(SPOT_NOTICE_ANNOTATION.to_owned(), text.to_owned())].into()),
                None,
                "{text}"
            );
        }
        let least = NoticeRecord::from_annotations(
            &[(
                SPOT_NOTICE_ANNOTATION.to_owned(),
                r#"{"eventId":"a","new":1}"#.to_owned(),
            )]
            .into(),
        );
        assert_eq!(least.unwrap().event_id, "a");
    }
}
