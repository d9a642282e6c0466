//! When the draining taint is added and when it is removed, and the record of its notice. Pure.
//!
//! A recorded notice never taints the Node again, even if another writer removed the taint; a new notice does. The
//! taint is removed when its notice has been gone for the grace, when the machine has booted again, or 15 minutes after the
//! notice's time if no document confirms it. During a roll two agents write the Node, and the leader may: a taint that is younger than the
//! grace stays, although this process has read of no notice.

use std::collections::BTreeMap;

use headgate_core::node::{AzureNotice, DRAINING_TAINT, SPOT_NOTICE_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
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
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(annotations.get(SPOT_NOTICE_ANNOTATION)?).ok()
    }

    /// Whether headgate added this taint for the notice: another writer's has another time, or none.
    pub fn has_added(&self, taint: &Taint) -> bool {
        let added_at = taint.time_added.as_ref().map(|time| time.0);
        taint.key == DRAINING_TAINT && added_at.is_some() && added_at == self.tainted_at
    }

    /// The notice that is recorded.
    pub fn notice(&self) -> Notice {
        Notice {
            event_type: self.event_type,
            event_id: self.event_id.clone(),
            not_before: self.not_before,
        }
    }

    /// When headgate's taint ends after the documents so far; `None` if there is no such taint, or it stays.
    pub(crate) fn taint_ends_at(&self, tracker: &NoticeTracker) -> Option<Timestamp> {
        let tainted_at = self.tainted_at?;
        if tracker.is_clear {
            return tainted_at.checked_add(tracker.grace).ok();
        }
        let not_before = self.not_before.unwrap_or(tainted_at).max(tainted_at);
        (tracker.is_unconfirmed && tracker.notice.is_none()).then(|| confirmation_deadline(not_before))
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
    let record = record.filter(|record| record.tainted_at.is_some())?;
    // An unknown boot does not count as another one.
    let has_rebooted = !record.boot_id.is_empty() && !boot_id.is_empty() && record.boot_id != boot_id;
    let has_ended = record.taint_ends_at(tracker).is_some_and(|at| now >= at);
    (has_rebooted || has_ended).then_some(TaintAction::Remove)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{BOOT, at, clear, notice, record, tracking};
    use super::super::snapshot::EventsSnapshot;
    use super::*;

    fn listed(notice: &Notice) -> NoticeTracker {
        tracking(notice.clone(), true)
    }

    fn add(notice: &Notice) -> TaintAction {
        TaintAction::Add(notice.clone())
    }

    #[test]
    fn new_notices_add_the_taint_once() {
        let (a, b, b_started) = (notice("a", Some(100)), notice("b", Some(200)), notice("b", None));
        let ours = record("a", Some(100), Some(50));
        let theirs = record("a", Some(100), None);
        for (case, notice, record, want) in [
            ("a new notice", &a, None, Some(add(&a))),
            ("recorded: not again, with or without the taint", &a, Some(&ours), None),
            ("recorded, and the taint is removed or foreign", &a, Some(&theirs), None),
            ("under another id", &notice("b", Some(100)), Some(&ours), None),
            ("under another time", &notice("A", Some(200)), Some(&ours), None),
            ("recorded, now started", &notice("a", None), Some(&ours), None),
            ("another notice", &b, Some(&ours), Some(add(&b))),
            ("another one, started", &b_started, Some(&ours), Some(add(&b_started))),
        ] {
            let action = next_taint_action(&listed(notice), record, BOOT, at(60));
            assert_eq!(action, want, "{case}");
        }
    }

    #[test]
    fn taint_is_removed_after_the_grace_or_a_reboot() {
        const REBOOTED: &str = "boot-2";
        let (a, b) = (notice("a", Some(100)), notice("b", None));
        let (ours, theirs) = (record("a", Some(100), Some(50)), record("a", Some(100), None));
        let (old, fresh) = (record("a", Some(100), Some(0)), record("a", Some(100), Some(59)));
        let (ours, theirs, none) = (Some(&ours), Some(&theirs), NoticeTracker::default());
        let remove = Some(TaintAction::Remove);
        let unlisted = tracking(a.clone(), false);
        let ended = NoticeTracker {
            is_clear: true,
            ..NoticeTracker::default()
        };
        for (case, tracker, record, boot_id, want) in [
            ("gone, within the grace", &unlisted, ours, BOOT, None),
            ("gone before it was recorded", &unlisted, None, BOOT, None),
            ("gone for the grace", &clear(), Some(&old), BOOT, remove.clone()),
            ("set a moment ago by another agent", &clear(), Some(&fresh), BOOT, None),
            ("no grace, as from the leader", &ended, ours, BOOT, remove.clone()),
            ("gone, and no taint of headgate", &clear(), theirs, BOOT, None),
            ("no notice and no record", &clear(), None, BOOT, None),
            ("no document yet", &none, ours, BOOT, None),
            ("rebooted, no document", &none, ours, REBOOTED, remove.clone()),
            ("rebooted, still listed", &listed(&a), ours, REBOOTED, remove),
            ("rebooted, no own taint", &listed(&a), theirs, REBOOTED, None),
            ("rebooted, another notice", &listed(&b), ours, REBOOTED, Some(add(&b))),
            ("the boot is not known", &none, ours, "", None),
        ] {
            assert_eq!(next_taint_action(tracker, record, boot_id, at(60)), want, "{case}");
        }
        for (second, want) in [(118, None), (119, Some(TaintAction::Remove))] {
            let action = next_taint_action(&clear(), Some(&fresh), BOOT, at(second));
            assert_eq!(action, want, "{second}");
        }
        let unknown = NoticeRecord {
            boot_id: String::new(),
            ..record("a", Some(100), Some(50))
        };
        let action = next_taint_action(&none, Some(&unknown), BOOT, at(60));
        assert_eq!(action, None, "the boot was not known");
    }

    #[test]
    fn taint_without_confirmation_is_removed_15_minutes_after_the_time_of_its_notice() {
        const MINUTES_15: i64 = 15 * 60;
        let unconfirmed = EventsSnapshot::without_documents().trackers.gravest();
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
    fn record_of_an_eviction_has_no_event_type() {
        let reboot = r#""eventType":"Reboot","#;
        for (event_type, said) in [(AzureNotice::Preempt, ""), (AzureNotice::Reboot, reboot)] {
            let record = NoticeRecord {
                event_type,
                ..record("a", None, None)
            };
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(text, format!(r#"{{{said}"eventId":"a","bootId":"{BOOT}"}}"#));
        }
    }

    #[test]
    fn unreadable_record_is_none() {
        let read = |text: &str| {
            let annotations = [(SPOT_NOTICE_ANNOTATION.to_owned(), text.to_owned())];
            NoticeRecord::from_annotations(&annotations.into())
        };
        for text in ["", "{}", "null", "[]", "{\"eventId\": 7}"] {
            assert_eq!(read(text), None, "{text}");
        }
        let least = read(r#"{"eventId":"a","new":1}"#);
        assert_eq!(least.unwrap().event_id, "a");
    }
}
