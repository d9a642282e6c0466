//! Long-running operations: what became of each accepted write, and where a client may ask.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::error::ArmError;
use super::fault::End;
use super::guids;
use super::id::{ResourceId, is};
use super::record::Object;

/// Operations remembered; the oldest that has ended goes first.
const MAX_OPERATIONS: usize = 4096;
/// Time for which an operation can be asked about. A guess.
const LIFETIME: Duration = Duration::from_hours(24);
/// Length of each of the query's long parts; together some 3 KB, as recorded.
const SIGNATURE_LENGTHS: [(&str, usize); 3] = [("c", 2400), ("s", 342), ("h", 43)];

/// How an operation will end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) undo: Undo,
}

/// What becomes of the document when the operation ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Undo {
    /// It stays as written.
    No,
    /// It is again what it was before; none was there before a creation.
    To(Option<Object>),
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            end: End::Succeeded,
            undo: Undo::No,
        }
    }
}

/// How far an operation is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Status {
    InProgress,
    Succeeded,
    Failed(Value),
    Canceled(Value),
}

/// What an operation takes away when it has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// The resource.
    Itself,
    /// A child of it: its kind and name.
    Child(&'static str, String),
}

/// One accepted write.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: Uuid,
    /// `PutLoadBalancerOperation`.
    pub(super) name: String,
    /// The top-level resource it writes.
    pub(super) resource: ResourceId,
    pub(super) status: Status,
    pub(super) ending: Ending,
    pub(super) removal: Option<Removal>,
    location: String,
    started: Timestamp,
    expires: Instant,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Operations {
    all: HashMap<Uuid, Operation>,
    /// Those in progress, by when they are due, in the order they were accepted.
    due: BTreeMap<(Instant, u64), Uuid>,
    order: VecDeque<Uuid>,
    accepted: u64,
}

/// What is known of a write when it is accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) id: Uuid,
    pub(super) name: String,
    pub(super) resource: ResourceId,
    pub(super) location: String,
    pub(super) ending: Ending,
    pub(super) removal: Option<Removal>,
    /// Whether there is nothing to do.
    pub(super) done: bool,
}

impl Operations {
    /// Takes in a write that ends after `delay`.
    pub(super) fn accept(&mut self, accepted: Accepted, started: Timestamp, now: Instant, delay: Duration) {
        let due = now + delay;
        let Accepted {
            id,
            name,
            resource,
            location,
            ending,
            removal,
            done,
        } = accepted;
        if !done {
            self.due.insert((due, self.accepted), id);
        }
        self.accepted += 1;
        let status = if done { Status::Succeeded } else { Status::InProgress };
        let expires = now + delay + LIFETIME;
        let operation = Operation {
            id,
            name,
            resource,
            status,
            ending,
            removal,
            location,
            started,
            expires,
        };
        self.all.insert(id, operation);
        self.order.push_back(id);
        self.bound();
    }

    fn bound(&mut self) {
        while self.order.len() > MAX_OPERATIONS {
            let ended = |id: &Uuid| {
                self.all
                    .get(id)
                    .is_none_or(|operation| operation.status != Status::InProgress)
            };
            let Some(oldest) = self.order.iter().position(ended) else {
                return;
            };
            if let Some(id) = self.order.remove(oldest) {
                self.all.remove(&id);
            }
        }
    }

    /// An operation that is due; it is in progress until [`Operations::end`] says how it ended.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Operation> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
        let id = entry.remove();
        self.all.get(&id).cloned()
    }

    /// Notes how an operation ended.
    pub(super) fn end(&mut self, id: Uuid, status: Status) {
        if let Some(operation) = self.all.get_mut(&id) {
            operation.status = status;
            // A large document is not kept for longer than it may be wanted.
            operation.ending = Ending::default();
            self.due.retain(|_, due| *due != id);
        }
    }

    /// An operation.
    pub(super) fn get(&self, id: Uuid) -> Option<&Operation> {
        self.all.get(&id)
    }

    /// The operation, where it is in progress.
    pub(super) fn in_progress(&self, id: Uuid) -> Option<&Operation> {
        self.all
            .get(&id)
            .filter(|operation| operation.status == Status::InProgress)
    }

    /// The operation a client asks about, by the words it was given.
    ///
    /// # Errors
    /// 404 where there is none or it has expired; 403 where the query was not used verbatim. Both are
    /// guesses in code and wording.
    pub(super) fn asked(&self, id: &str, query: &str, now: Instant) -> Result<&Operation, ArmError> {
        let missing = || {
            let shown: String = id.chars().take(100).collect();
            let message = format!("The operation '{shown}' could not be found.");
            ArmError::new(StatusCode::NOT_FOUND, "OperationNotFound", message)
        };
        let uuid = id.parse().map_err(|_| missing())?;
        let found = self.all.get(&uuid).filter(|operation| now < operation.expires);
        let operation = found.ok_or_else(missing)?;
        let version = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| is(key, "api-version"));
        let version = version.map_or_else(String::new, |(_, version)| version.into_owned());
        if operation.query(&version) != query {
            let message = "The operation's URL was not used as it was given: its signature does not match.";
            return Err(ArmError::new(StatusCode::FORBIDDEN, "InvalidSignature", message));
        }
        Ok(operation)
    }

    /// Those in progress and those remembered, for people.
    pub(super) fn shown(&self) -> Value {
        let shown = self.order.iter().filter_map(|id| self.all.get(id));
        shown
            .map(|operation| {
                json!({
                    "id": operation.id.to_string(), "name": operation.name, "resource": operation.resource.to_string(),
                    "status": operation.status.word(), "started": operation.started.to_string(),
                })
            })
            .collect()
    }
}

impl Status {
    /// ARM's word.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::InProgress => "InProgress",
            Self::Succeeded => "Succeeded",
            Self::Failed(_) => "Failed",
            Self::Canceled(_) => "Canceled",
        }
    }

    /// The body of a status answer.
    pub(super) fn body(&self) -> Value {
        match self {
            Self::Failed(error) | Self::Canceled(error) => json!({"status": self.word(), "error": error}),
            _ => json!({"status": self.word()}),
        }
    }
}

impl Operation {
    /// Where its status can be asked for; `results` names the URL of `Location`.
    pub(super) fn url(&self, base: &str, version: &str, results: bool) -> String {
        let Self {
            id, resource, location, ..
        } = self;
        let word = if results { "operationResults" } else { "operations" };
        let (subscription, namespace) = (&resource.subscription, &resource.namespace);
        let query = self.query(version);
        format!("{base}/subscriptions/{subscription}/providers/{namespace}/locations/{location}/{word}/{id}?{query}")
    }

    /// The query, signed: it has to be used as it is.
    fn query(&self, version: &str) -> String {
        let version: String = form_urlencoded::byte_serialize(version.as_bytes()).collect();
        let mut query = format!("api-version={version}&t={}", self.started.as_second());
        for (salt, (name, length)) in (0..).zip(SIGNATURE_LENGTHS) {
            query.extend(["&", name, "=", &guids::signature(self.id, salt, length)]);
        }
        query
    }

    /// The `error` of an operation that a newer one took the place of, as reported.
    pub(super) fn superseded_by(&self, name: &str, id: Uuid) -> Value {
        let message = format!(
            "Operation {} ({}) was canceled and superseded by operation {name} ({id}).",
            self.name, self.id
        );
        ArmError::new(StatusCode::OK, "Canceled", "Operation was canceled.")
            .detail("CanceledAndSupersededDueToAnotherOperation", message)
            .object()
    }
}

/// The name of the operation that a verb on a resource starts.
pub(super) fn name(verb: &str, id: &ResourceId) -> String {
    const NAMES: [(&str, &str); 4] = [
        ("backendAddressPools", "LoadBalancerBackendAddressPool"),
        ("networkInterfaces", "Nic"),
        ("publicIPAddresses", "PublicIpAddress"),
        ("probes", "LoadBalancerProbe"),
    ];
    let kind = id.segments.last().map_or("", |(kind, _)| kind);
    let known = NAMES.iter().find(|(known, _)| is(known, kind));
    let singular = known.map_or_else(
        || {
            let mut characters = kind.strip_suffix('s').unwrap_or(kind).chars();
            let first = characters.next().map(|first| first.to_ascii_uppercase());
            first.into_iter().chain(characters).collect()
        },
        |(_, name)| (*name).to_owned(),
    );
    format!("{verb}{singular}Operation")
}
