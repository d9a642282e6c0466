//! The journal: every request, every end of an operation and every write that a fault made, in one order.
//!
//! Its invariant: each change of an etag is in the `changes` of exactly one entry, so the journal explains every etag
//! that a client saw. A request gets its number when it arrives; its outcome is added when it is answered. The oldest
//! entries are removed when there are too many, and `dropped` counts them.

use std::collections::VecDeque;

use axum::http::header::{IF_MATCH, USER_AGENT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use jiff::Timestamp;
use regex::bytes::Regex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::pattern;

mod shorten;

/// Entries: an hour at three requests a second.
pub(super) const MAX_ENTRIES: usize = 10_000;
/// Memory of all entries, approximately.
pub(super) const MAX_BYTES: usize = 32 * 1024 * 1024;
/// A page ends at this size, so that clients can parse it.
pub(super) const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Entries of a page, whatever `limit` says.
const MAX_LIMIT: usize = 1000;
/// Changes kept of one entry; further ones are only counted. One write changes a load balancer and some interfaces.
const MAX_CHANGES: usize = 100;
/// Memory of an entry besides its texts.
const ENTRY_BYTES: usize = 2048;
/// Response headers that are kept.
const KEPT_HEADERS: [&str; 4] = ["etag", "retry-after", "azure-asyncoperation", "location"];

/// A change of an etag. `before` is `None` for a creation, `after` for a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EtagChange {
    /// The id of the resource that has the etag.
    pub(super) resource: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
    /// The cause, where it is not the entry itself.
    pub(super) why: Option<String>,
}

/// What a request caused, besides its response.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The id of the fault rule that acted on it.
    pub(super) fault: Option<u64>,
    pub(super) changes: Vec<EtagChange>,
}

/// Something that happened between requests.
#[derive(Clone, Debug)]
pub(super) enum Event<'a> {
    /// The end of an operation.
    Operation {
        id: String,
        /// The name of the operation, such as `PutLoadBalancerOperation`.
        name: &'a str,
        resource: String,
        /// `Succeeded`, `Failed` or `Canceled`.
        status: &'a str,
        /// The id of the operation that superseded it.
        superseded_by: Option<String>,
    },
    /// A write that a fault rule made.
    Write {
        method: &'a str,
        path: &'a str,
        body: Option<&'a Value>,
        fault: u64,
        /// The status that the write would have been answered with.
        status: u16,
    },
}

/// The parameters of `GET journal`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct JournalQuery {
    /// Only entries with a higher number than this.
    after: u64,
    /// The number of entries: at least one, at most [`MAX_LIMIT`].
    limit: usize,
    /// Pattern for the path, or for the resource of an operation.
    #[serde(deserialize_with = "pattern::read_unanchored")]
    path: Option<Regex>,
    /// Pattern for the method; an operation has the empty one.
    #[serde(deserialize_with = "pattern::read_anchored")]
    method: Option<Regex>,
}

impl Default for JournalQuery {
    fn default() -> Self {
        Self {
            after: 0,
            limit: 100,
            path: None,
            method: None,
        }
    }
}

/// The entries, and the number of the last one.
#[derive(Debug, Default)]
pub(super) struct Journal {
    entries: VecDeque<Entry>,
    bytes: usize,
    last: u64,
}

#[derive(Debug)]
struct Entry {
    kind: &'static str,
    sequence: u64,
    arrived: Timestamp,
    completed: Option<Timestamp>,
    method: Option<String>,
    /// The path of the request, or the resource of an operation.
    path: String,
    /// The other fields, as a page shows them.
    shown: Map<String, Value>,
    /// Body as JSON text, which takes a tenth of the memory of a parsed one.
    body: Option<Box<str>>,
    answer: Option<Box<str>>,
    changes: Vec<EtagChange>,
    more_changes: usize,
    bytes: usize,
}

impl Journal {
    /// Adds an entry for a request that has arrived, and returns its number.
    pub(super) fn begin(&mut self, at: Timestamp, request: &Parts, body: &[u8], principal: Option<&str>) -> u64 {
        let path = request.uri.path();
        let query = request.uri.query().unwrap_or_default();
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let api_version = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "api-version");
        let mut shown = Map::new();
        let texts = [
            (
                "query",
                Some(query).filter(|query| !query.is_empty()).map(shorten::query),
            ),
            ("apiVersion", api_version.map(|(_, version)| shorten::text(&version))),
            ("ifMatch", header(IF_MATCH.as_str()).map(shorten::text)),
            ("clientRequestId", header("x-ms-client-request-id").map(shorten::text)),
            ("userAgent", header(USER_AGENT.as_str()).map(shorten::text)),
            ("principal", principal.map(shorten::text)),
        ];
        insert(&mut shown, texts);
        self.push(Entry {
            method: Some(shorten::text(request.method.as_str())),
            path: shorten::text(path),
            shown,
            body: shorten::body(body),
            ..Entry::new("request", at)
        })
    }

    /// Adds the outcome to the entry of a request. `response` is `None` if its connection was closed instead.
    pub(super) fn finish(
        &mut self,
        sequence: u64,
        at: Timestamp,
        response: Option<&Response<Bytes>>,
        outcome: Outcome,
    ) {
        let Some(entry) = self.entry(sequence) else {
            return;
        };
        entry.completed = Some(at);
        if let Some(response) = response {
            entry
                .shown
                .insert("status".to_owned(), response.status().as_u16().into());
            let headers = headers(response.headers());
            if !headers.is_empty() {
                entry.shown.insert("headers".to_owned(), headers.into());
            }
            entry.answer = shorten::body(response.body());
        }
        if let Some(rule) = outcome.fault {
            entry.shown.insert("fault".to_owned(), rule.into());
        }
        entry.set_changes(outcome.changes);
        let more = entry.measure();
        self.bytes = self.bytes.saturating_add_signed(more);
        self.remove_oldest();
    }

    /// Adds an entry for an event, and returns its number.
    pub(super) fn add_event(&mut self, at: Timestamp, event: Event<'_>, changes: Vec<EtagChange>) -> u64 {
        let mut entry = match event {
            Event::Operation {
                id,
                name,
                resource,
                status,
                superseded_by,
            } => {
                let mut entry = Entry::new("operation", at);
                entry.path = resource;
                let texts = [
                    ("operation", Some(id)),
                    ("name", Some(name.to_owned())),
                    ("status", Some(status.to_owned())),
                    ("supersededBy", superseded_by),
                ];
                insert(&mut entry.shown, texts);
                entry
            }
            Event::Write {
                method,
                path,
                body,
                fault,
                status,
            } => {
                let mut entry = Entry::new("write", at);
                entry.method = Some(method.to_owned());
                path.clone_into(&mut entry.path);
                entry.body = body.and_then(|body| shorten::body(body.to_string().as_bytes()));
                entry.shown.insert("fault".to_owned(), fault.into());
                entry.shown.insert("status".to_owned(), status.into());
                entry
            }
        };
        entry.completed = Some(at);
        entry.set_changes(changes);
        self.push(entry)
    }

    /// The matching entries, oldest first. `next` is the `after` of the next page; `dropped` counts the removed entries
    /// after the given one.
    pub(super) fn page(&self, query: &JournalQuery) -> Value {
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut next = query.after;
        for entry in self.entries.iter().skip_while(|entry| entry.sequence <= query.after) {
            if query.matches(entry) {
                if entries.len() >= query.limit.clamp(1, MAX_LIMIT)
                    || (bytes + entry.bytes > MAX_PAGE_BYTES && !entries.is_empty())
                {
                    break;
                }
                bytes += entry.bytes;
                entries.push(entry.shown());
            }
            next = entry.sequence;
        }
        let first = self.entries.front().map_or(self.last + 1, |entry| entry.sequence);
        let dropped = first.saturating_sub(query.after.saturating_add(1));
        json!({"entries": entries, "next": next, "dropped": dropped})
    }

    /// Removes all entries. Numbers are not used again.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut Entry> {
        let first = self.entries.front()?.sequence;
        let index = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.entries.get_mut(index)
    }

    fn push(&mut self, mut entry: Entry) -> u64 {
        self.last += 1;
        entry.sequence = self.last;
        entry.measure();
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
        self.remove_oldest();
        self.last
    }

    fn remove_oldest(&mut self) {
        while self.entries.len() > MAX_ENTRIES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes;
        }
    }
}

impl Entry {
    fn new(kind: &'static str, arrived: Timestamp) -> Self {
        Self {
            kind,
            sequence: 0,
            arrived,
            completed: None,
            method: None,
            path: String::new(),
            shown: Map::new(),
            body: None,
            answer: None,
            changes: Vec::new(),
            more_changes: 0,
            bytes: 0,
        }
    }

    fn set_changes(&mut self, mut changes: Vec<EtagChange>) {
        self.more_changes = changes.len().saturating_sub(MAX_CHANGES);
        changes.truncate(MAX_CHANGES);
        self.changes = changes;
    }

    /// Updates `bytes`, and returns the difference.
    fn measure(&mut self) -> isize {
        let texts = self.shown.values().map(|value| match value {
            Value::String(text) => text.len(),
            // Numbers and the few headers.
            other => other.to_string().len(),
        });
        let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let changes = self.changes.iter();
        let changes = changes.map(|change| {
            change.resource.len()
                + [&change.before, &change.after, &change.why]
                    .map(size)
                    .iter()
                    .sum::<usize>()
                + 96
        });
        let bodies = [&self.body, &self.answer].into_iter().flatten().map(|text| text.len());
        let bytes = ENTRY_BYTES + self.path.len() + texts.chain(changes).chain(bodies).sum::<usize>();
        let more = bytes.cast_signed().saturating_sub(self.bytes.cast_signed());
        self.bytes = bytes;
        more
    }

    fn shown(&self) -> Value {
        let json = |text: &str| serde_json::from_str::<Value>(text).ok();
        let mut shown = self.shown.clone();
        let path = if self.method.is_some() { "path" } else { "resource" };
        let fields = [
            ("kind", Some(self.kind.into())),
            ("sequence", Some(self.sequence.into())),
            ("arrived", Some(self.arrived.to_string().into())),
            ("completed", Some(self.completed.map(|at| at.to_string()).into())),
            ("method", self.method.clone().map(Value::from)),
            (path, Some(self.path.clone().into())),
            ("body", self.body.as_deref().and_then(json)),
            ("answer", self.answer.as_deref().and_then(json)),
            (
                "changes",
                (!self.changes.is_empty()).then(|| self.changes.iter().map(EtagChange::shown).collect()),
            ),
            ("moreChanges", (self.more_changes > 0).then(|| self.more_changes.into())),
        ];
        shown.extend(
            fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?))),
        );
        shown.into()
    }
}

impl EtagChange {
    fn shown(&self) -> Value {
        let mut shown = json!({"resource": self.resource, "etagBefore": self.before, "etagAfter": self.after});
        if let Some(why) = &self.why {
            shown["why"] = why.as_str().into();
        }
        shown
    }
}

impl JournalQuery {
    fn matches(&self, entry: &Entry) -> bool {
        let method = entry.method.as_deref().unwrap_or_default();
        let matches = |pattern: &Option<Regex>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.is_match(text.as_bytes()))
        };
        matches(&self.path, &entry.path) && matches(&self.method, method)
    }
}

fn insert<const N: usize>(shown: &mut Map<String, Value>, texts: [(&str, Option<String>); N]) {
    let texts = texts
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
    shown.extend(texts);
}

fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let kept = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        Some((str::to_owned(name), shorten::url(value).into()))
    };
    KEPT_HEADERS.into_iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests;
