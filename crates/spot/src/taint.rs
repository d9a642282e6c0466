//! When the draining taint is written and when it goes, and the record of its notice. Pure.
//!
//! A recorded notice never taints again, whoever removed the taint; a new one does. The taint goes once
//! its notice is gone for the grace, or the machine has booted again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::notice::{Follow, Notice};

/// The annotation that records the notice.
pub const ANNOTATION: &str = "headgate.dev/spot-notice";

/// The notice this Node was last tainted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The event's id.
    pub event_id: String,
    /// When it could begin at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// The boot it was about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// When we added the taint; none where there was one already, or once ours is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tainted_at: Option<Timestamp>,
}

impl Record {
    /// The record in a Node's annotations, if there is one that can be read.
    #[must_use]
    pub fn in_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(annotations.get(ANNOTATION)?).ok()
    }

    /// The notice it is about.
    #[must_use]
    pub fn notice(&self) -> Notice {
        Notice {
            event_id: self.event_id.clone(),
            not_before: self.not_before,
        }
    }
}

/// What is to be done to the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Record this notice, and taint the Node unless it is tainted already.
    Taint(Notice),
    /// Remove the taint we wrote.
    Untaint,
}

/// What is to be done, given the documents so far, the Node's record and its present boot.
#[must_use]
pub fn wish(follow: &Follow, record: Option<&Record>, boot_id: &str) -> Option<Wish> {
    let notice = follow.notice.as_ref().filter(|notice| notice.listed);
    let new = notice.filter(|notice| record.is_none_or(|record| !notice.is(&record.notice())));
    if let Some(notice) = new {
        return Some(Wish::Taint(notice.known()));
    }
    let record = record.filter(|record| record.tainted_at.is_some())?;
    // What is not known is not another boot.
    let rebooted = !record.boot_id.is_empty() && !boot_id.is_empty() && record.boot_id != boot_id;
    (rebooted || follow.clear).then_some(Wish::Untaint)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{BOOT, clear, following, notice, record};
    use super::*;

    #[test]
    fn what_is_wished() {
        let a = notice("a", Some(100));
        let taint = |notice: &Notice| Some(Wish::Taint(notice.clone()));
        let ours = record("a", Some(100), Some(50));
        let theirs = record("a", Some(100), None);
        for (say, follow, record, boot_id, want) in [
            ("a new notice", following(a.clone(), true), None, BOOT, taint(&a)),
            (
                "recorded: never again, whether or not the taint is there",
                following(a.clone(), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded, and removed or theirs",
                following(a.clone(), true),
                Some(&theirs),
                BOOT,
                None,
            ),
            (
                "recorded under another id",
                following(notice("b", Some(100)), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded under another time",
                following(notice("A", Some(200)), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "recorded, now started",
                following(notice("a", None), true),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "another notice",
                following(notice("b", Some(200)), true),
                Some(&ours),
                BOOT,
                taint(&notice("b", Some(200))),
            ),
            (
                "another, already started",
                following(notice("b", None), true),
                Some(&ours),
                BOOT,
                taint(&notice("b", None)),
            ),
        ] {
            assert_eq!(wish(&follow, record, boot_id), want, "{say}");
        }
    }

    #[test]
    fn what_is_wished_once_it_is_gone_or_the_machine_rebooted() {
        let a = notice("a", Some(100));
        let taint = |notice: &Notice| Some(Wish::Taint(notice.clone()));
        let ours = record("a", Some(100), Some(50));
        let theirs = record("a", Some(100), None);
        for (say, follow, record, boot_id, want) in [
            (
                "gone, within the grace",
                following(a.clone(), false),
                Some(&ours),
                BOOT,
                None,
            ),
            (
                "gone before it was recorded",
                following(a.clone(), false),
                None,
                BOOT,
                None,
            ),
            ("gone for the grace", clear(), Some(&ours), BOOT, Some(Wish::Untaint)),
            ("gone, and no taint of ours", clear(), Some(&theirs), BOOT, None),
            ("nothing at all", clear(), None, BOOT, None),
            ("nothing heard yet", Follow::default(), Some(&ours), BOOT, None),
            (
                "rebooted, nothing heard yet",
                Follow::default(),
                Some(&ours),
                "boot-2",
                Some(Wish::Untaint),
            ),
            (
                "rebooted, the notice is still there",
                following(a.clone(), true),
                Some(&ours),
                "boot-2",
                Some(Wish::Untaint),
            ),
            (
                "rebooted, no taint of ours",
                following(a.clone(), true),
                Some(&theirs),
                "boot-2",
                None,
            ),
            (
                "rebooted, another notice",
                following(notice("b", None), true),
                Some(&ours),
                "boot-2",
                taint(&notice("b", None)),
            ),
            ("the boot is not known", Follow::default(), Some(&ours), "", None),
        ] {
            assert_eq!(wish(&follow, record, boot_id), want, "{say}");
        }
        let unknown = Record {
            boot_id: String::new(),
            ..ours
        };
        assert_eq!(
            wish(&Follow::default(), Some(&unknown), BOOT),
            None,
            "the boot was not known"
        );
    }

    #[test]
    fn a_record_that_cannot_be_read_is_none() {
        for text in ["", "{}", "null", "[]", "{\"eventId\": 7}"] {
            assert_eq!(
                Record::in_annotations(&[(ANNOTATION.to_owned(), text.to_owned())].into()),
                None,
                "{text}"
            );
        }
        let least = Record::in_annotations(&[(ANNOTATION.to_owned(), r#"{"eventId":"a","new":1}"#.to_owned())].into());
        assert_eq!(least.unwrap().event_id, "a");
    }
}
