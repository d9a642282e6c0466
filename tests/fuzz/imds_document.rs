//! The documents of Scheduled Events: whatever IMDS sends, an eviction of this VM that can be read counts at once,
//! only whole documents show it gone, and one notice taints once.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_clock::{Clock, Moment};
use headgate_spot::{ANNOTATION, Document, Follow, Kind, Notice, Record, ResourceName, State, Wish, wish};
use serde_json::Value;

use crate::like;

const VM: &str = "aks-spot-1-vmss_3";
const PROVIDER_ID: &str = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-spot-1-vmss/virtualMachines/3";
const GRACE: Duration = Duration::from_mins(1);
/// From one document to the next: the grace ends with the third that is without a notice.
const PAUSE: Duration = Duration::from_secs(30);
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

/// Whether a list entry is a readable eviction of this VM, said otherwise than the code does.
fn evicts(event: &Value) -> bool {
    let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let id = text("EventId");
    let named = event["Resources"].as_array().is_some_and(|names| {
        names.iter().all(Value::is_string) && names.iter().any(|name| name.as_str().unwrap().eq_ignore_ascii_case(VM))
    });
    named && text("EventType").eq_ignore_ascii_case("Preempt") && (1..=128).contains(&id.chars().count())
}

/// Reads a document; whether it lists an eviction of this VM, with what can be followed of it.
fn read(bytes: &[u8]) -> Option<(Document, bool)> {
    let value = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    let Ok(document) = Document::parse(bytes) else {
        assert!(value["Events"].as_array().is_none(), "a list of events is a document");
        return None;
    };
    let listed = value["Events"].as_array().expect("a document has a list");
    assert_eq!(document.events.len() + document.unreadable, listed.len());
    for event in &document.events {
        assert!((1..=128).contains(&event.event_id.chars().count()));
        assert!(event.description.chars().count() <= 256);
        assert!(event.state != State::Started || event.not_before.is_none());
    }
    Some((document, listed.iter().any(evicts)))
}

/// A node as the keeper would leave it.
struct Node {
    record: Option<Record>,
    tainted: Vec<Notice>,
}

impl Node {
    /// Carries out what is wished; nothing is wished after that.
    fn carry_out(&mut self, follow: &Follow, now: Moment) -> Option<Wish> {
        let wished = wish(follow, self.record.as_ref(), "boot-1");
        match &wished {
            Some(Wish::Taint(notice)) => {
                assert!(
                    !self.tainted.last().is_some_and(|last| last.same(notice)),
                    "a notice taints once"
                );
                self.tainted.push(notice.clone());
                self.record = Some(Record {
                    event_id: notice.event_id.clone(),
                    not_before: notice.not_before,
                    boot_id: "boot-1".to_owned(),
                    tainted_at: Some(now.wall),
                });
            }
            Some(Wish::Untaint) => {
                let record = self.record.as_mut().expect("only what is recorded is taken back");
                assert!(record.tainted_at.take().is_some());
            }
            None => {}
        }
        assert_eq!(
            wish(follow, self.record.as_ref(), "boot-1"),
            None,
            "what was done is done"
        );
        wished
    }
}

#[test]
fn an_eviction_counts_at_once_and_goes_only_by_whole_documents() {
    let vm = ResourceName::from_provider_id(PROVIDER_ID).unwrap();
    assert_eq!(vm.as_str(), VM);
    let start = Clock::System.now();
    like::fuzz("imds_document", WORDS, |bytes| {
        let mut node = Node {
            record: None,
            tainted: Vec::new(),
        };
        let mut follow = Follow::default();
        let mut now = start;
        for bytes in bytes.split(|byte| *byte == b'\n') {
            now.mono += PAUSE;
            let Some((document, evicted)) = read(bytes) else {
                continue;
            };
            let events = vm.events_of(&document);
            assert_eq!(events.iter().any(|event| event.kind == Kind::Preempt), evicted);
            let before = follow.clone();
            follow = before.next(&events, document.unreadable == 0, GRACE, now);
            let wished = node.carry_out(&follow, now);
            if evicted {
                let notice = follow.notice.as_ref().expect("an eviction is followed");
                assert!(notice.listed && !follow.clear);
                assert_ne!(wished, Some(Wish::Untaint));
                let known = node.tainted.iter().any(|tainted| notice.is(tainted));
                assert!(known, "the node was tainted for it, now or before");
            } else if document.unreadable > 0 {
                assert_eq!(follow, before, "what cannot be read proves nothing");
                assert_eq!(wished, None);
            } else {
                assert_eq!(follow.notice.is_some(), before.notice.is_some() && !follow.clear);
                assert!(wished.is_none() || (follow.clear && wished == Some(Wish::Untaint)));
                let ours = node.record.as_ref().and_then(|record| record.tainted_at);
                assert!(ours.is_none() || !follow.clear, "no taint of ours outlives its notice");
            }
        }
    });
}

#[test]
fn a_record_and_a_provider_id_are_read_or_not() {
    like::fuzz("imds_document", WORDS, |bytes| {
        let Ok(text) = str::from_utf8(bytes) else { return };
        if let Some(name) = ResourceName::from_provider_id(text) {
            assert!(!name.as_str().is_empty() && !name.as_str().contains('/'));
        }
        let annotations = |text: &str| BTreeMap::from([(ANNOTATION.to_owned(), text.to_owned())]);
        if let Some(record) = Record::in_annotations(&annotations(text)) {
            let again = serde_json::to_string(&record).unwrap();
            assert_eq!(Record::in_annotations(&annotations(&again)), Some(record));
        }
    });
}
