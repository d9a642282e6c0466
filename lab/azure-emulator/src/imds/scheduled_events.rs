//! The document of Scheduled Events. Its invariant: two readers of the same incarnation see the same events.

use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde_json::{Map, Value, json};

use super::super::error::ErrorResponse;
use super::super::fields::{Fields, read};
use super::super::guids::guid_for_name;

/// Events in a document.
const MAX_EVENTS: usize = 100;
/// Machines that one event names: as many as a placement group has.
const MAX_RESOURCES: usize = 100;
/// Length of an id or a name, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Length of a description, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Event types, and the shortest notice that Azure gives of each.
const TYPES: [(&str, Duration); 5] = [
    ("Freeze", Duration::from_mins(15)),
    ("Reboot", Duration::from_mins(15)),
    ("Redeploy", Duration::from_mins(10)),
    ("Preempt", Duration::from_secs(30)),
    ("Terminate", Duration::from_mins(5)),
];

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

#[derive(Clone, Debug, PartialEq)]
struct Event {
    id: String,
    kind: &'static str,
    resources: Vec<String>,
    is_started: bool,
    /// Empty once the event has started.
    not_before: String,
    description: String,
    source: &'static str,
    /// The duration; -1 if it is unknown.
    seconds: i64,
}

impl ScheduledEvents {
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn document(&self) -> Value {
        let events: Vec<_> = self.events.iter().map(Event::shown).collect();
        json!({"DocumentIncarnation": self.incarnation, "Events": events})
    }

    /// Whether an event has this id.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.events.iter().any(|event| event.id.eq_ignore_ascii_case(id))
    }

    /// Starts the events with these ids.
    pub(super) fn start(&mut self, ids: &[&str]) {
        let mut events = self.events.clone();
        for event in &mut events {
            if ids.iter().any(|id| event.id.eq_ignore_ascii_case(id)) {
                event.is_started = true;
                event.not_before.clear();
            }
        }
        self.replace_events(events);
    }

    /// Replaces the events with those of a document, or changes nothing if it has a mistake.
    pub(super) fn put(&mut self, document: Value, now: Timestamp) -> Result<(), ErrorResponse> {
        let listed = read(document, "document", |fields| {
            // A client may send back what GET returned.
            let _ = fields.value("DocumentIncarnation");
            let events = fields.parsed("Events", |value| match value {
                Value::Array(events) if events.len() <= MAX_EVENTS => Ok(events),
                _ => Err(format!("a list of at most {MAX_EVENTS} events")),
            });
            if events.is_none() {
                fields.missing("Events");
            }
            events
        })?;
        let mut events: Vec<Event> = Vec::new();
        for (index, value) in listed.into_iter().enumerate() {
            let what = format!("event {} of Events", index + 1);
            let event = read(value, &what, |fields| self.parse_event(fields, &events, now))?;
            if events.iter().any(|other| other.id.eq_ignore_ascii_case(&event.id)) {
                let message = format!("The {what} is not accepted: another has its EventId, {}.", event.id);
                return Err(ErrorResponse::new(
                    StatusCode::BAD_REQUEST,
                    "InvalidRequestContent",
                    message,
                ));
            }
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

    /// Parses an event; `before` are the events before it in the document.
    fn parse_event(&self, fields: &mut Fields<'_>, before: &[Event], now: Timestamp) -> Option<Event> {
        let id = fields.text("EventId", parse_name);
        let kind = fields.word("EventType", &TYPES.map(|kind| (kind.0, kind)));
        let resources = fields.parsed("Resources", parse_names);
        let status = fields.word("EventStatus", &[("Scheduled", false), ("Started", true)]);
        let not_before = fields.text("NotBefore", parse_time);
        fields.word("ResourceType", &[("VirtualMachine", ())]);
        let description = fields.text("Description", |text| {
            let fits = text.len() <= MAX_DESCRIPTION_BYTES;
            fits.then(|| text.to_owned())
                .ok_or_else(|| format!("at most {MAX_DESCRIPTION_BYTES} long"))
        });
        let source = fields.word("EventSource", &[("Platform", "Platform"), ("User", "User")]);
        let seconds = fields.parsed("DurationInSeconds", |value| {
            let number = value.as_i64().filter(|seconds| (-1..=86_400).contains(seconds));
            number.ok_or_else(|| "a whole number from -1, which is unknown, to 86400".to_owned())
        });
        for (key, is_missing) in [("EventType", kind.is_none()), ("Resources", resources.is_none())] {
            if is_missing {
                fields.missing(key);
            }
        }
        let ((kind, notice), resources) = (kind?, resources?);
        // An event without an id is the existing one with the same type and resources, if there is one.
        let is_same = |known: &&Event| match &id {
            Some(id) => known.id.eq_ignore_ascii_case(id),
            None => known.kind == kind && known.resources == resources && !before.iter().any(|b| b.id == known.id),
        };
        let known = self.events.iter().find(is_same);
        let is_started = status.unwrap_or(false);
        let kept = known
            .filter(|known| !known.is_started)
            .map(|known| known.not_before.clone());
        let not_before = match (is_started, not_before) {
            (true, _) => String::new(),
            (false, Some(time)) => time,
            (false, None) => kept.or_else(|| rfc1123(now + notice)).unwrap_or_default(),
        };
        let fresh = || guid_for_name(&format!("event {} {}", self.incarnation + 1, before.len())).to_string();
        Some(Event {
            id: id
                .or_else(|| known.map(|known| known.id.clone()))
                .unwrap_or_else(|| fresh().to_uppercase()),
            kind,
            resources,
            is_started,
            not_before,
            description: description.unwrap_or_default(),
            source: source.unwrap_or("Platform"),
            seconds: seconds.unwrap_or(-1),
        })
    }
}

impl Event {
    fn shown(&self) -> Value {
        let mut shown = Map::new();
        for (key, value) in [
            ("EventId", json!(self.id)),
            (
                "EventStatus",
                json!(if self.is_started { "Started" } else { "Scheduled" }),
            ),
            ("EventType", json!(self.kind)),
            ("ResourceType", json!("VirtualMachine")),
            ("Resources", json!(self.resources)),
            ("NotBefore", json!(self.not_before)),
            ("Description", json!(self.description)),
            ("EventSource", json!(self.source)),
            ("DurationInSeconds", json!(self.seconds)),
        ] {
            shown.insert(key.to_owned(), value);
        }
        Value::Object(shown)
    }
}

/// A time in the format of IMDS.
fn rfc1123(at: Timestamp) -> Option<String> {
    rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}

/// Parses a time of RFC 9110 or RFC 3339, and writes it in the format of IMDS.
fn parse_time(text: &str) -> Result<String, String> {
    let parsed = text.parse::<Timestamp>().ok();
    let parsed = parsed.or_else(|| rfc2822::DateTimeParser::new().parse_timestamp(text).ok());
    let shown = parsed.and_then(rfc1123);
    shown.ok_or_else(|| "a time such as Mon, 11 Apr 2026 22:26:58 GMT or 2026-04-11T22:26:58Z".to_owned())
}

fn parse_name(text: &str) -> Result<String, String> {
    let fits = !text.is_empty() && text.len() <= MAX_NAME_BYTES;
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("1 to {MAX_NAME_BYTES} long"))
}

fn parse_names(value: Value) -> Result<Vec<String>, String> {
    let names = match value {
        Value::Array(names) if (1..=MAX_RESOURCES).contains(&names.len()) => names,
        _ => Vec::new(),
    };
    let names = names
        .iter()
        .map(|value| parse_name(value.as_str().unwrap_or_default()).ok());
    let names: Option<Vec<_>> = names.collect();
    let what = || format!("a list of 1 to {MAX_RESOURCES} names of virtual machines as Azure has them");
    names.filter(|names| !names.is_empty()).ok_or_else(what)
}
