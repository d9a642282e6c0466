//! The document of Scheduled Events, as IMDS sends it (api-version 2020-07-01). Pure.
//!
//! Fields nobody needs may be missing, odd or new. An event of which it cannot be said what it is or
//! whom it is about is left out and counted: such a document still proves what it does say, but never
//! that something is gone. The incarnation is shown only: what a document says counts, whether its
//! number rose, stayed or fell.

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::Serialize;
use serde_json::Value;

/// Longer than any event's id, which is a GUID.
const MAX_ID_CHARS: usize = 128;
/// As much of a description as is shown.
const MAX_DESCRIPTION_CHARS: usize = 256;

/// A readable document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Its number, which changes with the events.
    pub incarnation: Option<i64>,
    /// Its events, of whatever VM.
    pub events: Vec<Event>,
    /// How many more there are that cannot be read.
    pub unreadable: usize,
}

/// What will be done to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// It pauses for some seconds.
    Freeze,
    /// It restarts.
    Reboot,
    /// It moves to another machine and loses its temporary disk.
    Redeploy,
    /// A spot VM is evicted.
    Preempt,
    /// It is deleted by its scale set.
    Terminate,
    /// Something that is not known here.
    Other,
}

impl Kind {
    /// All kinds, for metrics.
    pub const ALL: [Self; 6] = [
        Self::Freeze,
        Self::Reboot,
        Self::Redeploy,
        Self::Preempt,
        Self::Terminate,
        Self::Other,
    ];

    /// Its name in Azure's documents and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "Freeze",
            Self::Reboot => "Reboot",
            Self::Redeploy => "Redeploy",
            Self::Preempt => "Preempt",
            Self::Terminate => "Terminate",
            Self::Other => "Other",
        }
    }

    fn of(text: &str) -> Self {
        let named = |kind: &Self| kind.as_str().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(named).unwrap_or(Self::Other)
    }
}

/// How far an event is. There is no end: a completed event is no longer listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// It is to come.
    Scheduled,
    /// It has begun; unannounced hardware failures begin so.
    Started,
    /// Something that is not known here.
    Other,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its id.
    pub event_id: String,
    /// What will be done.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// How far it is.
    pub state: State,
    /// The earliest time it may begin; none once it has.
    pub not_before: Option<Timestamp>,
    /// Azure's words, cut to a length that can be shown.
    pub description: String,
    /// Names of the VMs it is about: all of them, not only this one.
    #[serde(skip)]
    pub resources: Vec<String>,
}

/// Why an answer is no document.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// It is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is JSON without a list of events.
    #[error("it has no list of Events")]
    NoEvents,
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// When it is not JSON or has no list of events.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let document: Value = serde_json::from_slice(bytes)?;
        let listed = document
            .get("Events")
            .and_then(Value::as_array)
            .ok_or(Malformed::NoEvents)?;
        let events: Vec<Event> = listed.iter().filter_map(event).collect();
        Ok(Self {
            incarnation: document.get("DocumentIncarnation").and_then(Value::as_i64),
            unreadable: listed.len() - events.len(),
            events,
        })
    }
}

/// One event, if its id, its type and the VMs it is about can be read.
fn event(value: &Value) -> Option<Event> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let resources = value.get("Resources")?.as_array()?.iter();
    let resources: Option<Vec<String>> = resources.map(|name| Some(name.as_str()?.to_owned())).collect();
    let state = match text("EventStatus").unwrap_or_default() {
        scheduled if scheduled.eq_ignore_ascii_case("Scheduled") => State::Scheduled,
        started if started.eq_ignore_ascii_case("Started") => State::Started,
        _ => State::Other,
    };
    let upcoming = text("NotBefore").filter(|_| state != State::Started);
    Some(Event {
        event_id: text("EventId")
            .filter(|id| !id.is_empty() && id.chars().count() <= MAX_ID_CHARS)?
            .to_owned(),
        kind: Kind::of(text("EventType")?),
        state,
        not_before: upcoming.and_then(not_before),
        description: text("Description")
            .unwrap_or_default()
            .chars()
            .take(MAX_DESCRIPTION_CHARS)
            .collect(),
        resources: resources?,
    })
}

/// A time in the form of RFC 1123, always in GMT. Its day of the week is not looked at: a wrong one
/// would hide a deadline.
fn not_before(text: &str) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new().relaxed_weekday(true);
    let text = text.trim();
    let local = text.strip_suffix(" GMT").or_else(|| text.strip_suffix(" UTC"))?;
    PARSER.parse_timestamp(format!("{local} +0000")).ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headgate_azure_emulator::{Emulator, Seed, Settings};
    use headgate_clock::Clock;
    use hyper::Request;
    use serde_json::json;

    use super::*;

    const SAMPLE: &str = r#"{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC","EventStatus":"Scheduled","EventType":"Preempt",
        "ResourceType":"VirtualMachine","Resources":["vmss_3"],"NotBefore":"Mon, 11 Apr 2026 22:26:58 GMT","Description":"d",
        "EventSource":"Platform","DurationInSeconds":-1}]}"#;

    fn with(name: &str, value: &str) -> Document {
        let mut document: Value = serde_json::from_str(SAMPLE).unwrap();
        let event = &mut document["Events"][0];
        if value.is_empty() {
            event.as_object_mut().unwrap().remove(name);
        } else {
            event[name] = serde_json::from_str(value).unwrap();
        }
        Document::parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_documented_example() {
        let document = Document::parse(SAMPLE.as_bytes()).unwrap();
        let event = &document.events[0];
        assert_eq!((document.incarnation, document.unreadable), (Some(2), 0));
        assert_eq!((event.kind, event.state), (Kind::Preempt, State::Scheduled));
        assert_eq!(event.event_id, "C7061BAC");
        assert_eq!(event.resources, ["vmss_3"]);
        assert_eq!(event.not_before, Some("2026-04-11T22:26:58Z".parse().unwrap()));
    }

    #[test]
    fn every_type_and_those_of_the_future() {
        for kind in Kind::ALL {
            assert_eq!(with("EventType", &format!("{:?}", kind.as_str())).events[0].kind, kind);
        }
        assert_eq!(with("EventType", "\"preempt\"").events[0].kind, Kind::Preempt);
        assert_eq!(with("EventType", "\"Teleport\"").events[0].kind, Kind::Other);
    }

    #[test]
    fn not_before_is_a_time_or_nothing() {
        let day = |text: &str| {
            with("NotBefore", &format!("{text:?}")).events[0]
                .not_before
                .map(|at| at.to_string())
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
        for odd in ["", "null", "7", "[]"] {
            let document = with("NotBefore", odd);
            assert_eq!((document.events[0].not_before, document.unreadable), (None, 0), "{odd}");
        }
    }

    #[test]
    fn a_started_event_has_no_deadline() {
        let document = with("EventStatus", "\"Started\"");
        assert_eq!(
            (document.events[0].state, document.events[0].not_before),
            (State::Started, None)
        );
    }

    #[test]
    fn an_event_that_cannot_be_read_is_counted_and_hides_no_other() {
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
        let document = Document::parse(both.as_bytes()).unwrap();
        assert_eq!((document.events.len(), document.unreadable), (1, 1));
    }

    #[test]
    fn optional_fields_may_be_missing_odd_or_new() {
        for name in [
            "Description",
            "EventSource",
            "DurationInSeconds",
            "ResourceType",
            "EventStatus",
            "New",
        ] {
            for value in ["", "null", "7", "{\"a\":[]}"] {
                let document = with(name, value);
                assert_eq!((document.events.len(), document.unreadable), (1, 0), "{name}: {value}");
            }
        }
        let long = with("Description", &format!("{:?}", "ü".repeat(1000)));
        assert_eq!(long.events[0].description.chars().count(), MAX_DESCRIPTION_CHARS);
    }

    #[test]
    fn an_incarnation_is_optional() {
        for (text, want) in [
            (r#"{"DocumentIncarnation":7,"Events":[]}"#, Some(7)),
            (r#"{"DocumentIncarnation":"7","Events":[]}"#, None),
            (r#"{"Events":[]}"#, None),
        ] {
            assert_eq!(Document::parse(text.as_bytes()).unwrap().incarnation, want);
        }
    }

    #[test]
    fn what_is_no_document_is_an_error_and_never_an_empty_one() {
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
            assert!(Document::parse(text.as_bytes()).is_err(), "{text:.20}");
        }
        assert!(Document::parse(b"\xff\xfe").is_err());
    }

    #[tokio::test]
    async fn the_agent_can_read_it() {
        const TYPES_OF_AZURE: [&str; 5] = ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"];
        let emulator = Emulator::new(Settings::default(), Seed::default(), Clock::System, 1).unwrap();
        let events = TYPES_OF_AZURE
            .map(|kind| json!({"EventType": kind, "Resources": ["vm"], "NotBefore": "2026-04-11T22:26:58Z"}));
        let put =
            Request::put("/emulator/v1/scheduled-events").body(Bytes::from(json!({"Events": events}).to_string()));
        assert!(emulator.control(&put.unwrap()).status().is_success());
        let get = Request::get("/metadata/scheduledevents?api-version=2020-07-01").header("Metadata", "true");
        let answer = emulator
            .call(get.body(Bytes::new()).unwrap(), "http://169.254.169.254")
            .await;
        let document = Document::parse(answer.unwrap().body()).unwrap();
        assert_eq!(
            (document.incarnation, document.unreadable, document.events.len()),
            (Some(2), 0, 5)
        );
        for (event, kind) in document.events.iter().zip(TYPES_OF_AZURE) {
            assert_eq!((event.kind.as_str(), event.state), (kind, State::Scheduled));
            assert_ne!(event.kind, Kind::Other);
            assert_eq!(event.not_before, Some("2026-04-11T22:26:58Z".parse().unwrap()));
        }
    }
}
