//! The document of Scheduled Events as IMDS sends it (api-version 2020-07-01). Pure.
//!
//! Fields that headgate does not need may be missing, malformed or new. An event without a readable type, id or list
//! of VMs is left out and counted: such a document still shows the events that are readable, but never that one has
//! ended. The incarnation is shown only; a document counts whether its number rose, stayed or fell.

use headgate_core::node::AzureNotice;
use headgate_core::telemetry::words;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::Serialize;
use serde_json::Value;

/// Longer than any event's id, which is a GUID.
const MAX_ID_CHARS: usize = 128;
/// The length to which descriptions are cut.
const MAX_DESCRIPTION_CHARS: usize = 256;

/// A document of Scheduled Events, as far as it is readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsDocument {
    /// The number that changes with the events.
    pub incarnation: Option<i64>,
    /// The readable events, of any VM.
    pub events: Vec<ScheduledEvent>,
    /// The number of events that are not readable.
    pub unreadable: usize,
}

words! {
    /// What Azure will do to a VM.
    #[derive(PartialOrd, Ord, Hash, Serialize)]
    pub enum EventType {
        /// The VM pauses for some seconds.
        Freeze = "Freeze",
        /// The VM restarts on the same machine.
        Reboot = "Reboot",
        /// The VM moves to another machine and loses its temporary disk.
        Redeploy = "Redeploy",
        /// The spot VM is evicted.
        Preempt = "Preempt",
        /// The scale set deletes the VM.
        Terminate = "Terminate",
        /// A type that headgate does not know.
        Other = "Other",
    }
}

impl EventType {
    /// The notice that an event of this type is, where the settings may choose it.
    pub fn notice(self) -> Option<AzureNotice> {
        let mut notices = AzureNotice::ALL.into_iter();
        notices.find(|notice| notice.as_str() == self.as_str())
    }

    fn parse(text: &str) -> Self {
        let has_name = |event_type: &Self| event_type.as_str().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(has_name).unwrap_or(Self::Other)
    }
}

/// The progress of an event. A completed event is no longer listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventStatus {
    /// The event has not begun.
    Scheduled,
    /// The event has begun. Hardware failures without announcement are listed with this status.
    Started,
    /// A status that headgate does not know.
    Other,
}

/// One event, in the form of `/statusz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledEvent {
    /// The id that Azure gave the event.
    pub event_id: String,
    /// What Azure will do.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// The progress of the event.
    #[serde(rename = "state")]
    pub status: EventStatus,
    /// The earliest start; `None` once the event has started.
    pub not_before: Option<Timestamp>,
    /// Azure's description, cut to 256 characters.
    pub description: String,
    /// The names of all VMs that the event affects.
    #[serde(skip)]
    pub resources: Vec<String>,
}

/// Why a response is not a document.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The response is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The response is JSON without a list of events.
    #[error("it has no list of Events")]
    NoEvents,
}

impl EventsDocument {
    /// Parses a document.
    ///
    /// # Errors
    /// When it is not JSON or has no list of events.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let document: Value = serde_json::from_slice(bytes)?;
        let listed = document
            .get("Events")
            .and_then(Value::as_array)
            .ok_or(DocumentError::NoEvents)?;
        let events: Vec<ScheduledEvent> = listed.iter().filter_map(parse_event).collect();
        Ok(Self {
            incarnation: document.get("DocumentIncarnation").and_then(Value::as_i64),
            unreadable: listed.len() - events.len(),
            events,
        })
    }
}

/// One event, if its id, its type and its VMs are readable.
fn parse_event(value: &Value) -> Option<ScheduledEvent> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let resources = value.get("Resources")?.as_array()?.iter();
    let resources: Option<Vec<String>> = resources.map(|name| Some(name.as_str()?.to_owned())).collect();
    let status = match text("EventStatus").unwrap_or_default() {
        scheduled if scheduled.eq_ignore_ascii_case("Scheduled") => EventStatus::Scheduled,
        started if started.eq_ignore_ascii_case("Started") => EventStatus::Started,
        _ => EventStatus::Other,
    };
    let upcoming = text("NotBefore").filter(|_| status != EventStatus::Started);
    Some(ScheduledEvent {
        event_id: text("EventId")
            .filter(|id| !id.is_empty() && id.chars().count() <= MAX_ID_CHARS)?
            .to_owned(),
        event_type: EventType::parse(text("EventType")?),
        status,
        not_before: upcoming.and_then(parse_not_before),
        description: text("Description")
            .unwrap_or_default()
            .chars()
            .take(MAX_DESCRIPTION_CHARS)
            .collect(),
        resources: resources?,
    })
}

/// Parses a time in RFC 1123 format, which is always in GMT. The day of the week is ignored: a wrong one must not
/// hide a deadline.
pub(super) fn parse_not_before(text: &str) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);
    let text = text.trim();
    let local = text.strip_suffix(" GMT").or_else(|| text.strip_suffix(" UTC"))?;
    PARSER.parse_timestamp(format!("{local} +0000")).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headgate_azure_emulator::{Emulator, Seed, Settings};
    use headgate_core::clock::Clock;
    use hyper::Request;
    use serde_json::json;

    use super::*;

    const SAMPLE: &str = r#"{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC","EventStatus":"Scheduled","EventType":"Preempt",
        "ResourceType":"VirtualMachine","Resources":["vmss_3"],"NotBefore":"Mon, 11 Apr 2026 22:26:58 GMT","Description":"d",
        "EventSource":"Platform","DurationInSeconds":-1}]}"#;

    fn with(name: &str, value: &str) -> EventsDocument {
        let mut document: Value = serde_json::from_str(SAMPLE).unwrap();
        let event = &mut document["Events"][0];
        if value.is_empty() {
            event.as_object_mut().unwrap().remove(name);
        } else {
            event[name] = serde_json::from_str(value).unwrap();
        }
        EventsDocument::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn documented_example_is_read() {
        let document = EventsDocument::parse(SAMPLE.as_bytes()).unwrap();
        let event = &document.events[0];
        assert_eq!((document.incarnation, document.unreadable), (Some(2), 0));
        assert_eq!(event.event_type, EventType::Preempt);
        assert_eq!(event.status, EventStatus::Scheduled);
        assert_eq!(event.event_id, "C7061BAC");
        assert_eq!(event.resources, ["vmss_3"]);
        assert_eq!(event.not_before, Some("2026-04-11T22:26:58Z".parse().unwrap()));
    }

    #[test]
    fn every_type_is_read_and_unknown_ones_are_other() {
        let read = |text: &str| with("EventType", &format!("{text:?}")).events[0].event_type;
        for kind in EventType::ALL {
            assert_eq!(read(kind.as_str()), kind);
        }
        assert_eq!(read("preempt"), EventType::Preempt);
        assert_eq!(read("Teleport"), EventType::Other);
    }

    #[test]
    fn not_before_is_a_time_or_none() {
        let day = |text: &str| {
            let document = with("NotBefore", &format!("{text:?}"));
            document.events[0].not_before.map(|at| at.to_string())
        };
        for (text, want) in [
            ("Wed, 26 Feb 2025 10:13:13 GMT", Some("2025-02-26T10:13:13Z")),
            ("Wed, 5 Feb 2025 10:13:13 GMT", Some("2025-02-05T10:13:13Z")),
            ("Thu, 26 Feb 2025 10:13:13 UTC", Some("2025-02-26T10:13:13Z")),
            ("", None),
            ("  ", None),
            ("Wed, 26 Feb 2025 10:13:13 PST", None),
            ("Wed, 26 Feb 2025 10:13:13 +0100", None),
            ("Wed, 26 Feb 2025 10:13:13", None),
            ("see Wed, 26 Feb 2025 10:13:13 GMT", None),
            ("2025-02-26T10:13:13Z", None),
            ("Wed, 99 Feb 2025 10:13:13 GMT", None),
            ("soon", None),
        ] {
            assert_eq!(day(text).as_deref(), want, "{text}");
        }
        for malformed in ["", "null", "7", "[]"] {
            let document = with("NotBefore", malformed);
            let found = (document.events[0].not_before, document.unreadable);
            assert_eq!(found, (None, 0), "{malformed}");
        }
    }

    #[test]
    fn started_event_has_no_deadline() {
        let event = &with("EventStatus", "\"Started\"").events[0];
        assert_eq!((event.status, event.not_before), (EventStatus::Started, None));
    }

    #[test]
    fn unreadable_event_is_counted_and_hides_no_other() {
        for (name, value) in [
            ("EventId", ""),
            ("EventId", "\"\""),
            ("EventId", "7"),
            ("EventType", ""),
            ("EventType", "null"),
            ("Resources", ""),
            ("Resources", "\"vmss_3\""),
            ("Resources", "[\"vmss_3\", 7]"),
        ] {
            let document = with(name, value);
            assert_eq!((document.events.len(), document.unreadable), (0, 1), "{name}: {value}");
        }
        let both = SAMPLE.replace("\"Events\":[", "\"Events\":[7,");
        let document = EventsDocument::parse(both.as_bytes()).unwrap();
        assert_eq!((document.events.len(), document.unreadable), (1, 1));
    }

    #[test]
    fn optional_fields_may_be_missing_malformed_or_new() {
        let of_azure = [
            "Description",
            "EventSource",
            "DurationInSeconds",
            "ResourceType",
            "EventStatus",
        ];
        for name in of_azure.into_iter().chain(["New"]) {
            for value in ["", "null", "7", "{\"a\":[]}"] {
                let document = with(name, value);
                assert_eq!((document.events.len(), document.unreadable), (1, 0), "{name}: {value}");
            }
        }
        let long = with("Description", &format!("{:?}", "ü".repeat(1000)));
        assert_eq!(long.events[0].description.chars().count(), MAX_DESCRIPTION_CHARS);
    }

    #[test]
    fn incarnation_is_optional() {
        for (text, want) in [
            (r#"{"DocumentIncarnation":7,"Events":[]}"#, Some(7)),
            (r#"{"DocumentIncarnation":"7","Events":[]}"#, None),
            (r#"{"Events":[]}"#, None),
        ] {
            assert_eq!(EventsDocument::parse(text.as_bytes()).unwrap().incarnation, want);
        }
    }

    #[test]
    fn other_responses_are_errors_and_never_empty_documents() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "null",
            "[]",
            "{}",
            "<html>",
            r#"{"Events":null}"#,
            r#"{"Events":{}}"#,
            r#"{"events":[]}"#,
            r#"{"error":"Bad request"}"#,
            r#"{"Events":["#,
            "\u{0}",
            &deep,
        ] {
            assert!(EventsDocument::parse(text.as_bytes()).is_err(), "{text:.20}");
        }
        assert!(EventsDocument::parse(b"\xff\xfe").is_err());
    }

    #[tokio::test]
    async fn document_of_the_emulator_is_read() {
        const TYPES_OF_AZURE: [&str; 5] = ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"];
        let emulator = Emulator::new(Settings::default(), Seed::default(), Clock::System, 1).unwrap();
        let events = TYPES_OF_AZURE
            .map(|kind| json!({"EventType": kind, "Resources": ["vm"], "NotBefore": "2026-04-11T22:26:58Z"}));
        let put = emulator.send_control("PUT", "scheduled-events", &json!({"Events": events}));
        assert!(put.is_ok());
        let get = Request::get("/metadata/scheduledevents?api-version=2020-07-01").header("Metadata", "true");
        let answer = emulator
            .call(get.body(Bytes::new()).unwrap(), "http://169.254.169.254")
            .await;
        let document = EventsDocument::parse(answer.unwrap().body()).unwrap();
        assert_eq!((document.incarnation, document.unreadable), (Some(2), 0));
        assert_eq!(document.events.len(), 5);
        for (event, kind) in document.events.iter().zip(TYPES_OF_AZURE) {
            assert_eq!(event.event_type.as_str(), kind);
            assert_eq!(event.status, EventStatus::Scheduled);
            assert_ne!(event.event_type, EventType::Other);
            assert_eq!(event.not_before, Some("2026-04-11T22:26:58Z".parse().unwrap()));
        }
    }
}
