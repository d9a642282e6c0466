//! The documents of Scheduled Events: with any response of IMDS, a readable eviction of this VM counts at once, only complete
//! documents end it, and one notice taints the Node once.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_agent::spot::{
    EventStatus, EventType, EventsDocument, Notice, NoticeRecord, NoticeTracker, TaintAction, VmName, next_taint_action,
};
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{AzureNotice, SPOT_NOTICE_ANNOTATION};
use serde_json::Value;

use crate::mutated_corpus;

const VM: &str = "aks-spot-1-vmss_3";
const PROVIDER_ID: &str = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-spot-1-vmss/virtualMachines/3";
const GRACE: Duration = Duration::from_mins(1);
/// Time between two documents: the grace ends with the third document without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
const WORDS: &[&[u8]] = &[
    b"\"Events\":[",
    b"\"DocumentIncarnation\":",
    b"\"EventId\":",
    b"\"EventType\":",
    b"\"Preempt\"",
    b"\"Freeze\"",
    b"\"EventStatus\":",
    b"\"Scheduled\"",
    b"\"Started\"",
    b"\"Completed\"",
    b"\"Resources\":[",
    b"\"aks-spot-1-vmss_3\"",
    b"\"NotBefore\":",
    b"\"Mon, 11 Apr 2026 22:26:58 GMT\"",
    b"\"Fri, 31 Dec 9999 23:59:60 GMT\"",
    b"\"Sat, 01 Jan 0000 00:00:00 GMT\"",
    b" GMT",
    b"{\"Events\":[]}",
    b"\n",
    b"null",
    b"7",
    b"1e999",
    b"-9223372036854775809",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\"\"",
    b"\\ud800",
    b"\\u0000",
];

/// Whether a list entry is a readable eviction of this VM, by a second implementation.
fn evicts(event: &Value) -> bool {
    let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let id = text("EventId");
    let named = event["Resources"].as_array().is_some_and(|names| {
        names.iter().all(Value::is_string) && names.iter().any(|name| name.as_str().unwrap().eq_ignore_ascii_case(VM))
    });
    named && text("EventType").eq_ignore_ascii_case("Preempt") && (1..=128).contains(&id.chars().count())
}

/// Parses a document; returns it, and whether it lists an eviction of this VM.
fn read(bytes: &[u8]) -> Option<(EventsDocument, bool)> {
    let value = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let Ok(document) = EventsDocument::parse(bytes) else {
        assert!(value["Events"].as_array().is_none(), "a list of events is a document");
        return None;
    };
    let listed = value["Events"].as_array().expect("a document has a list");
    assert_eq!(document.events.len() + document.unreadable, listed.len());
    for event in &document.events {
        assert!((1..=128).contains(&event.event_id.chars().count()));
        assert!(event.description.chars().count() <= 256);
        assert!(event.status != EventStatus::Started || event.not_before.is_none());
    }
    Some((document, listed.iter().any(evicts)))
}

/// A Node, and the notices that it was tainted for.
struct Node {
    record: Option<NoticeRecord>,
    tainted: Vec<Notice>,
}

impl Node {
    /// Applies the next action; no action follows it.
    fn reconcile(&mut self, tracker: &NoticeTracker, now: Moment) -> Option<TaintAction> {
        let action = next_taint_action(tracker, self.record.as_ref(), "boot-1", now.wall);
        match &action {
            Some(TaintAction::Add(notice)) => {
                assert!(
                    !self.tainted.last().is_some_and(|last| last.is_same_event(notice)),
                    "a notice taints once"
                );
                self.tainted.push(notice.clone());
                self.record = Some(NoticeRecord {
                    event_type: notice.event_type,
                    event_id: notice.event_id.clone(),
                    not_before: notice.not_before,
                    boot_id: "boot-1".to_owned(),
                    tainted_at: Some(now.wall),
                });
            }
            Some(TaintAction::Remove) => {
                let record = self.record.as_mut().expect("only a recorded taint is removed");
                assert!(record.tainted_at.take().is_some());
            }
            None => {}
        }
        assert_eq!(
            next_taint_action(tracker, self.record.as_ref(), "boot-1", now.wall),
            None,
            "one action is enough"
        );
        action
    }
}

#[test]
fn eviction_counts_at_once_and_ends_only_by_complete_documents() {
    let vm = VmName::from_provider_id(PROVIDER_ID).unwrap();
    assert_eq!(vm.as_str(), VM);
    let start = Clock::System.now();
    mutated_corpus::fuzz("imds_document", WORDS, |bytes| {
        let mut node = Node {
            record: None,
            tainted: Vec::new(),
        };
        let mut tracker = NoticeTracker::default();
        let mut now = start;
        for bytes in bytes.split(|byte| *byte == b'\n') {
            now.mono += POLL_INTERVAL;
            now.wall += POLL_INTERVAL;
            let Some((document, evicted)) = read(bytes) else {
                continue;
            };
            let events = vm.own_events(&document);
            assert_eq!(
                events.iter().any(|event| event.event_type == EventType::Preempt),
                evicted
            );
            let before = tracker.clone();
            tracker = before.next(&events, AzureNotice::Preempt, document.unreadable == 0, GRACE, now);
            let action = node.reconcile(&tracker, now);
            if evicted {
                let notice = tracker.notice.as_ref().expect("an eviction is tracked");
                assert!(notice.is_listed && !tracker.is_clear);
                assert_ne!(action, Some(TaintAction::Remove));
                let known = node.tainted.iter().any(|tainted| notice.matches(tainted));
                assert!(known, "the Node was tainted for it, now or before");
            } else if document.unreadable > 0 {
                assert!(
                    tracker.notice == before.notice || tracker.is_unconfirmed,
                    "a document with unreadable events ends a notice only after 15 min of them: {tracker:?}"
                );
                assert!(!tracker.is_clear, "what is not readable may be an eviction");
                assert!(action.is_none() || tracker.is_unconfirmed && action == Some(TaintAction::Remove));
            } else {
                assert_eq!(tracker.notice.is_some(), before.notice.is_some() && !tracker.is_clear);
                assert!(action.is_none() || (tracker.is_clear && action == Some(TaintAction::Remove)));
                let ours = node.record.as_ref().and_then(|record| record.tainted_at);
                assert!(ours.is_none() || !tracker.is_clear, "the taint ends with its notice");
            }
        }
    });
}

#[test]
fn records_and_provider_ids_are_read_or_rejected() {
    mutated_corpus::fuzz("imds_document", WORDS, |bytes| {
        let Ok(text) = str::from_utf8(bytes) else { return };
        if let Some(name) = VmName::from_provider_id(text) {
            assert!(!name.as_str().is_empty() && !name.as_str().contains('/'));
        }
        let annotations = |text: &str| BTreeMap::from([(SPOT_NOTICE_ANNOTATION.to_owned(), text.to_owned())]);
        if let Some(record) = NoticeRecord::from_annotations(&annotations(text)) {
            let again = serde_json::to_string(&record).unwrap();
            assert_eq!(NoticeRecord::from_annotations(&annotations(&again)), Some(record));
        }
    });
}
