//! What happened: every request, every operation's end, every write that a fault made, in one order.
//!
//! The invariant: each change of an etag stands in exactly one entry's `changes`, so the journal explains every
//! etag that anybody was shown. A request has its number from its arrival; what became of it is filled in
//! when it is answered. Old entries go when there are too many, which readers are told; secrets are never
//! kept (`kept.rs`).

use std::collections::VecDeque;

use axum::http::header::{IF_MATCH, USER_AGENT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use jiff::Timestamp;
use regex::bytes::Regex;
use serde_json::{Map, Value, json};

mod kept;

/// No more entries: an hour at three requests a second.
pub(super) const MAX_ENTRIES: usize = 10_000;
/// They take no more memory than about this.
pub(super) const MAX_BYTES: usize = 32 * 1024 * 1024;
/// A page ends once it has this much; a larger one would be a burden to parse.
pub(super) const MAX_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// A page has no more entries than this, whatever is asked for.
pub(super) const MAX_LIMIT: usize = 1000;
/// No more changes are kept of one entry; the rest is counted. One write touches a load balancer and some interfaces.
const MAX_CHANGES: usize = 100;
/// What an entry takes besides its texts.
const ENTRY_BYTES: usize = 2048;
/// Headers of answers that are kept, with whether they hold a URL that may be signed.
const KEPT_HEADERS: [(&str, bool); 4] = [
    ("etag", false),
    ("retry-after", false),
    ("azure-asyncoperation", true),
    ("location", true),
];

/// One etag's change. None before is a creation, none after a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The resource whose etag it is.
    pub(super) resource: String,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
    /// What changed it, where that is not the entry itself.
    pub(super) why: Option<String>,
}

/// What became of a request besides its answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The rule that acted on it.
    pub(super) fault: Option<u64>,
    /// For people.
    pub(super) note: Option<String>,
    pub(super) changes: Vec<Change>,
}

/// What happened that was no request.
#[derive(Clone, Debug)]
pub(super) enum Event<'a> {
    /// An operation has ended.
    Operation {
        id: String,
        /// `PutLoadBalancerOperation`.
        name: &'a str,
        resource: String,
        /// `Succeeded`, `Failed`, `Canceled`.
        status: &'a str,
        /// The operation that has taken its place.
        superseded_by: Option<String>,
    },
    /// A fault has written.
    Write {
        method: &'a str,
        path: &'a str,
        body: Option<&'a Value>,
        fault: u64,
        /// What the write would have been answered.
        status: u16,
    },
}

/// What a reader wants.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Entries after this one.
    pub(super) after: u64,
    /// No more than these; at least one, at most [`MAX_LIMIT`].
    pub(super) limit: usize,
    /// Found in the path, or the resource of an operation.
    pub(super) path: Option<Regex>,
    /// The method; operations have none.
    pub(super) method: Option<Regex>,
}

/// The journal.
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
    /// The request's, or the resource of an operation.
    path: String,
    /// The other fields as they are shown.
    shown: Map<String, Value>,
    /// Bodies as JSON text, which takes a tenth of the memory.
    body: Option<Box<str>>,
    answer: Option<Box<str>>,
    changes: Vec<Change>,
    more_changes: usize,
    bytes: usize,
}

impl Journal {
    /// A request has arrived.
    pub(super) fn begin(&mut self, at: Timestamp, request: &Parts, body: &[u8], principal: Option<&str>) -> u64 {
        let path = request.uri.path();
        let query = request.uri.query().unwrap_or_default();
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let api_version = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "api-version");
        let mut shown = Map::new();
        let texts = [
            ("query", Some(query).filter(|query| !query.is_empty()).map(kept::query)),
            ("apiVersion", api_version.map(|(_, version)| kept::text(&version))),
            ("ifMatch", header(IF_MATCH.as_str()).map(kept::text)),
            ("clientRequestId", header("x-ms-client-request-id").map(kept::text)),
            ("userAgent", header(USER_AGENT.as_str()).map(kept::text)),
            ("principal", principal.map(kept::text)),
        ];
        insert(&mut shown, texts);
        self.push(Entry {
            method: Some(kept::text(request.method.as_str())),
            path: kept::text(path),
            shown,
            body: kept::body(path, body),
            ..Entry::new("request", at)
        })
    }

    /// The request with this number is answered; none if its connection is closed instead.
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
            entry.answer = kept::body(&entry.path, response.body());
        }
        if let Some(rule) = outcome.fault {
            entry.shown.insert("fault".to_owned(), rule.into());
        }
        insert(&mut entry.shown, [("note", outcome.note.as_deref().map(kept::text))]);
        entry.change(outcome.changes);
        let more = entry.measure();
        self.bytes = self.bytes.saturating_add_signed(more);
        self.trim();
    }

    /// Something else has happened.
    pub(super) fn record(&mut self, at: Timestamp, event: Event<'_>, changes: Vec<Change>) -> u64 {
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
                entry.body = body.and_then(|body| kept::body(path, body.to_string().as_bytes()));
                entry.shown.insert("fault".to_owned(), fault.into());
                entry.shown.insert("status".to_owned(), status.into());
                entry
            }
        };
        entry.completed = Some(at);
        entry.change(changes);
        self.push(entry)
    }

    /// The entries that are wanted, oldest first. `next` is where to go on; `dropped` counts those after the given one
    /// that are gone.
    pub(super) fn page(&self, wanted: &Wanted) -> Value {
        let mut entries = Vec::new();
        let mut bytes = 0;
        let mut next = wanted.after;
        for entry in self.entries.iter().skip_while(|entry| entry.sequence <= wanted.after) {
            if wanted.is(entry) {
                if entries.len() >= wanted.limit.clamp(1, MAX_LIMIT)
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
        let dropped = first.saturating_sub(wanted.after.saturating_add(1));
        json!({"entries": entries, "next": next, "dropped": dropped})
    }

    /// Forgets all entries; numbers go on.
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
        self.trim();
        self.last
    }

    fn trim(&mut self) {
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

    fn change(&mut self, mut changes: Vec<Change>) {
        self.more_changes = changes.len().saturating_sub(MAX_CHANGES);
        changes.truncate(MAX_CHANGES);
        self.changes = changes;
    }

    /// Counts anew what it takes, and says how much more that is.
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
                (!self.changes.is_empty()).then(|| self.changes.iter().map(Change::shown).collect()),
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

impl Change {
    fn shown(&self) -> Value {
        let mut shown = json!({"resource": self.resource, "etagBefore": self.before, "etagAfter": self.after});
        if let Some(why) = &self.why {
            shown["why"] = why.as_str().into();
        }
        shown
    }
}

impl Wanted {
    fn is(&self, entry: &Entry) -> bool {
        let method = entry.method.as_deref().unwrap_or_default();
        let fits = |pattern: &Option<Regex>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.is_match(text.as_bytes()))
        };
        fits(&self.path, &entry.path) && fits(&self.method, method)
    }
}

fn insert<const N: usize>(shown: &mut Map<String, Value>, texts: [(&str, Option<String>); N]) {
    let texts = texts
        .into_iter()
        .filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
    shown.extend(texts);
}

fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let kept = |(name, signed)| {
        let value = headers.get(name)?.to_str().ok()?;
        let value = if signed { kept::url(value) } else { kept::text(value) };
        Some((str::to_owned(name), value.into()))
    };
    KEPT_HEADERS.into_iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests;
