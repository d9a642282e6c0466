//! The document of Scheduled Events. Its invariant: two readers of the same incarnation see the same events.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::control::read;
use super::super::error::ErrorResponse;
use super::super::guids::guid_for_name;

/// Events in a document.
const MAX_EVENTS: usize = 100;
/// Machines that one event names: as many as a placement group has.
const MAX_RESOURCES: usize = 100;
/// Length of an id or a name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Length of a description, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// All events, and the incarnation of the document.
#[derive(Debug)]
pub(super) struct ScheduledEvents {
    incarnation: u64,
    events: Vec<Event>,
}

impl Default for ScheduledEvents {
    fn default() -> Self {
        Self {
            incarnation: 1,
            events: Vec::new(),
        }
    }
}

/// A document as a client sends it, which may be what GET returned.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct GivenDocument {
    #[serde(default, rename = "DocumentIncarnation")]
    _incarnation: IgnoredAny,
    events: Vec<Event>,
}

/// An event. What a client leaves out is empty until it is filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Event {
    #[serde(default, rename = "EventId")]
    id: String,
    #[serde(default, rename = "EventStatus")]
    status: EventStatus,
    #[serde(rename = "EventType")]
    kind: EventType,
    #[serde(default)]
    resource_type: ResourceType,
    resources: Vec<String>,
    /// Empty once the event has started.
    #[serde(default)]
    not_before: String,
    #[serde(default)]
    description: String,
    #[serde(default, rename = "EventSource")]
    source: EventSource,
    /// -1 if it is unknown.
    #[serde(default = "unknown_duration")]
    duration_in_seconds: i64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum EventStatus {
    #[default]
    Scheduled,
    Started,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum EventType {
    Freeze,
    Reboot,
    Redeploy,
    Preempt,
    Terminate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum ResourceType {
    #[default]
    VirtualMachine,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum EventSource {
    #[default]
    Platform,
    User,
}

const fn unknown_duration() -> i64 {
    -1
}

impl EventType {
    /// The shortest notice that Azure gives.
    const fn notice(self) -> Duration {
        match self {
            Self::Freeze | Self::Reboot => Duration::from_mins(15),
            Self::Redeploy => Duration::from_mins(10),
            Self::Preempt => Duration::from_secs(30),
            Self::Terminate => Duration::from_mins(5),
        }
    }
}

impl ScheduledEvents {
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn document(&self) -> Value {
        json!({"DocumentIncarnation": self.incarnation, "Events": self.events})
    }

    /// Replaces the events with those of a document, or changes nothing if it has a mistake.
    pub(super) fn put(&mut self, document: Value, now: Timestamp) -> Result<(), ErrorResponse> {
        let given: GivenDocument = read(document, "document")?;
        let refused = |what: &str| ErrorResponse::invalid_content(format!("The document is not accepted: {what}."));
        if given.events.len() > MAX_EVENTS {
            return Err(refused(&format!("it has more than {MAX_EVENTS} events")));
        }
        let mut events: Vec<Event> = Vec::new();
        for event in given.events {
            let event = self.completed(event, &events, now).map_err(|what| refused(&what))?;
            events.push(event);
        }
        self.replace_events(events);
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.replace_events(Vec::new());
    }

    fn replace_events(&mut self, events: Vec<Event>) {
        if events != self.events {
            self.events = events;
            self.incarnation += 1;
        }
    }

    /// Checks an event and fills it in; `before` are the events before it in the document.
    fn completed(&self, mut event: Event, before: &[Event], now: Timestamp) -> Result<Event, String> {
        event.check()?;
        // An event without an id is the existing one with the same type and resources, if there is one.
        let is_same = |known: &&Event| {
            if !event.id.is_empty() {
                return known.id.eq_ignore_ascii_case(&event.id);
            }
            known.kind == event.kind
                && known.resources == event.resources
                && !before.iter().any(|other| other.id == known.id)
        };
        let known = self.events.iter().find(is_same);
        if event.status == EventStatus::Started {
            event.not_before.clear();
        } else if event.not_before.is_empty() {
            let kept = known.filter(|known| known.status != EventStatus::Started);
            let notice = || rfc1123(now + event.kind.notice());
            event.not_before = kept
                .map(|known| known.not_before.clone())
                .or_else(notice)
                .unwrap_or_default();
        } else {
            event.not_before = in_format_of_imds(&event.not_before)?;
        }
        if event.id.is_empty() {
            let name = format!("event {} {}", self.incarnation + 1, before.len());
            let fresh = || guid_for_name(&name).to_string().to_uppercase();
            event.id = known.map_or_else(fresh, |known| known.id.clone());
        }
        let id = &event.id;
        if before.iter().any(|other| other.id.eq_ignore_ascii_case(id)) {
            return Err(format!("two events have the EventId {id}"));
        }
        Ok(event)
    }
}

impl Event {
    fn check(&self) -> Result<(), String> {
        let is_name = |name: &String| (1..=MAX_NAME_BYTES).contains(&name.len());
        if !(1..=MAX_RESOURCES).contains(&self.resources.len()) || !self.resources.iter().all(is_name) {
            return Err(format!(
                "Resources must be a list of 1 to {MAX_RESOURCES} names of virtual machines as Azure has them"
            ));
        }
        if self.id.len() > MAX_NAME_BYTES || self.description.len() > MAX_DESCRIPTION_BYTES {
            return Err(format!(
                "EventId has at most {MAX_NAME_BYTES} bytes, Description at most {MAX_DESCRIPTION_BYTES}"
            ));
        }
        if !(-1..=86_400).contains(&self.duration_in_seconds) {
            return Err("DurationInSeconds must be a whole number from -1, which is unknown, to 86400".to_owned());
        }
        Ok(())
    }
}

/// A time in the format of IMDS.
fn rfc1123(at: Timestamp) -> Option<String> {
    rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}

/// Parses a time of RFC 9110 or RFC 3339, and writes it in the format of IMDS.
fn in_format_of_imds(text: &str) -> Result<String, String> {
    let parsed = text.parse::<Timestamp>().ok();
    let parsed = parsed.or_else(|| rfc2822::DateTimeParser::new().parse_timestamp(text).ok());
    let shown = parsed.and_then(rfc1123);
    shown.ok_or_else(|| {
        "NotBefore must be a time such as Mon, 11 Apr 2026 22:26:58 GMT or 2026-04-11T22:26:58Z".to_owned()
    })
}
