//! Long-running operations: the outcome of each accepted write, and the signed URLs where clients poll for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::error::ErrorResponse;
use super::faults::action::OperationEnd;
use super::guids;
use super::id::{ResourceId, same_name};
use super::resource::Object;

/// Operations that are kept; the oldest one that has ended is removed first.
const MAX_OPERATIONS: usize = 4096;
/// How long the status of an operation is available. Guess.
const STATUS_LIFETIME: Duration = Duration::from_hours(24);
/// Lengths of the signed parts of the query; together some 3 KB, as recorded.
const SIGNATURE_LENGTHS: [(&str, usize); 3] = [("c", 2400), ("s", 342), ("h", 43)];

/// How an operation will end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedEnd {
    pub(super) end: OperationEnd,
    pub(super) revert: Revert,
}

/// Whether the end of the operation reverts the document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Revert {
    /// The document stays as written.
    No,
    /// The document before the write; `None` before a creation.
    To(Option<Object>),
    /// The pool with this name has no members.
    Empty(String),
    /// Only a newer write reverts the pool with this name, to these members of before.
    WhenSuperseded(String, Value),
}

impl Default for PlannedEnd {
    fn default() -> Self {
        Self {
            end: OperationEnd::Succeeded,
            revert: Revert::No,
        }
    }
}

/// The status of an operation. The value is its `error` object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Status {
    InProgress,
    Succeeded,
    Failed(Value),
    Canceled(Value),
}

/// What an operation removes when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Itself,
    /// A child: its kind and name.
    Child(&'static str, String),
}

/// A write that was accepted, and its status.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: Uuid,
    /// The name of the operation, such as `PutLoadBalancerOperation`.
    pub(super) name: String,
    /// The top-level resource it writes.
    pub(super) resource: ResourceId,
    pub(super) status: Status,
    pub(super) planned_end: PlannedEnd,
    pub(super) removal: Option<Removal>,
    pub(super) location: String,
    pub(super) started: Timestamp,
    /// When it ends, or would end if it did anything.
    pub(super) due: Instant,
}

/// The operations in progress, and the latest that have ended.
#[derive(Debug, Default)]
pub(super) struct Operations {
    all: HashMap<Uuid, Operation>,
    /// Operations in progress, by when they are due and in the order of acceptance.
    due: BTreeMap<(Instant, u64), Uuid>,
    order: VecDeque<Uuid>,
    added: u64,
}

impl Operations {
    /// Adds an operation, which is in progress or, if it changes nothing, has succeeded already.
    pub(super) fn add(&mut self, operation: Operation) {
        if operation.status == Status::InProgress {
            self.due.insert((operation.due, self.added), operation.id);
        }
        self.added += 1;
        self.order.push_back(operation.id);
        self.all.insert(operation.id, operation);
        self.remove_oldest();
    }

    fn remove_oldest(&mut self) {
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

    /// Takes the next operation that is due, and since when it is. It stays in progress until [`Operations::end`].
    pub(super) fn next_due(&mut self, now: Instant) -> Option<(Instant, Operation)> {
        let entry = self.due.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((due, _), id) = entry.remove_entry();
        Some((due, self.all.get(&id).cloned()?))
    }

    /// Sets the final status of an operation.
    pub(super) fn end(&mut self, id: Uuid, status: Status) {
        if let Some(operation) = self.all.get_mut(&id) {
            operation.status = status;
            // The document to revert to may be large.
            operation.planned_end = PlannedEnd::default();
            self.due.retain(|_, due| *due != id);
        }
    }

    /// The operation with this id, in any status.
    pub(super) fn get(&self, id: Uuid) -> Option<&Operation> {
        self.all.get(&id)
    }

    /// The operation with this id, if it is in progress.
    pub(super) fn in_progress(&self, id: Uuid) -> Option<&Operation> {
        self.all
            .get(&id)
            .filter(|operation| operation.status == Status::InProgress)
    }

    /// The operation that a client polls, by the id and the query of the URL.
    ///
    /// # Errors
    /// 404 if it does not exist or has expired, 403 if the query is not the one in the URL that the emulator gave. Guess: codes
    /// and wording.
    pub(super) fn find(&self, id: &str, query: &str, now: Instant) -> Result<&Operation, ErrorResponse> {
        let missing = || {
            let shown: String = id.chars().take(100).collect();
            let message = format!("The operation '{shown}' could not be found.");
            ErrorResponse::new(StatusCode::NOT_FOUND, "OperationNotFound", message)
        };
        let uuid = id.parse().map_err(|_| missing())?;
        let found = self
            .all
            .get(&uuid)
            .filter(|operation| now < operation.due + STATUS_LIFETIME);
        let operation = found.ok_or_else(missing)?;
        let version = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| same_name(key, "api-version"));
        let version = version.map_or_else(String::new, |(_, version)| version.into_owned());
        if operation.query(&version) != query {
            let message = "The operation's URL was not used as it was given: its signature does not match.";
            return Err(ErrorResponse::new(StatusCode::FORBIDDEN, "InvalidSignature", message));
        }
        Ok(operation)
    }

    /// All operations that are kept, for the control API.
    pub(super) fn shown(&self) -> Value {
        let shown = self.order.iter().filter_map(|id| self.all.get(id));
        shown
            .map(|operation| {
                json!({
                    "id": operation.id.to_string(), "name": operation.name, "resource": operation.resource.to_string(),
                    "status": operation.status.as_str(), "started": operation.started.to_string(),
                })
            })
            .collect()
    }
}

impl Status {
    /// The status as ARM spells it.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::InProgress => "InProgress",
            Self::Succeeded => "Succeeded",
            Self::Failed(_) => "Failed",
            Self::Canceled(_) => "Canceled",
        }
    }

    /// The body of the answer to a poll.
    pub(super) fn body(&self) -> Value {
        match self {
            Self::Failed(error) | Self::Canceled(error) => json!({"status": self.as_str(), "error": error}),
            _ => json!({"status": self.as_str()}),
        }
    }
}

impl Operation {
    /// The URL of its status or, with `results`, of its result (`Location`).
    pub(super) fn url(&self, base: &str, version: &str, results: bool) -> String {
        let Self {
            id, resource, location, ..
        } = self;
        let word = if results { "operationResults" } else { "operations" };
        let (subscription, namespace) = (&resource.subscription, &resource.namespace);
        let query = self.query(version);
        format!("{base}/subscriptions/{subscription}/providers/{namespace}/locations/{location}/{word}/{id}?{query}")
    }

    /// The signed query, which clients must send unchanged.
    fn query(&self, version: &str) -> String {
        let version: String = form_urlencoded::byte_serialize(version.as_bytes()).collect();
        let mut query = format!("api-version={version}&t={}", self.started.as_second());
        for (salt, (name, length)) in (0..).zip(SIGNATURE_LENGTHS) {
            query.extend(["&", name, "=", &guids::signature(self.id, salt, length)]);
        }
        query
    }

    /// The `error` object of an operation that a newer one superseded, as reported.
    pub(super) fn superseded_by(&self, name: &str, id: Uuid) -> Value {
        let message = format!(
            "Operation {} ({}) was canceled and superseded by operation {name} ({id}).",
            self.name, self.id
        );
        ErrorResponse::new(StatusCode::OK, "Canceled", "Operation was canceled.")
            .detail("CanceledAndSupersededDueToAnotherOperation", message)
            .object()
    }
}

/// The name of the operation that a verb on a resource starts, such as `PutLoadBalancerOperation`.
pub(super) fn operation_name(verb: &str, id: &ResourceId) -> String {
    const NAMES: [(&str, &str); 4] = [
        ("backendAddressPools", "LoadBalancerBackendAddressPool"),
        ("networkInterfaces", "Nic"),
        ("publicIPAddresses", "PublicIpAddress"),
        ("probes", "LoadBalancerProbe"),
    ];
    let kind = id.segments.last().map_or("", |(kind, _)| kind);
    let known = NAMES.iter().find(|(known, _)| same_name(known, kind));
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn add(operations: &mut Operations, number: u128, is_noop: bool, now: Instant, delay: Duration) {
        let resource = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";
        operations.add(Operation {
            id: Uuid::from_u128(number),
            name: "PutLoadBalancerOperation".to_owned(),
            resource: ResourceId::parse(resource).unwrap(),
            status: if is_noop { Status::Succeeded } else { Status::InProgress },
            planned_end: PlannedEnd::default(),
            removal: None,
            location: "eastus".to_owned(),
            started: Timestamp::UNIX_EPOCH,
            due: now + delay,
        });
    }

    #[test]
    fn the_oldest_operations_that_have_ended_are_removed_and_those_in_progress_stay() {
        let (mut operations, now) = (Operations::default(), Instant::now());
        add(&mut operations, 0, false, now, SECOND);
        let count = MAX_OPERATIONS as u128;
        for number in 1..count {
            add(&mut operations, number, true, now, SECOND);
        }
        let kept = |operations: &Operations, number: u128| operations.get(Uuid::from_u128(number)).is_some();
        assert!(kept(&operations, 1), "as many as are kept");
        add(&mut operations, count, true, now, SECOND);
        assert_eq!(
            [0, 1, 2, count].map(|number| kept(&operations, number)),
            [true, false, true, true]
        );
        assert_eq!(operations.shown().as_array().unwrap().len(), MAX_OPERATIONS);
    }

    #[test]
    fn operations_are_due_after_their_delay_in_the_order_of_acceptance() {
        let (mut operations, now) = (Operations::default(), Instant::now());
        for (number, seconds) in [(1, 2), (2, 1), (3, 1)] {
            add(&mut operations, number, false, now, SECOND * seconds);
        }
        add(&mut operations, 4, true, now, SECOND);
        let mut due = |at: Duration| {
            let next = operations.next_due(now + at);
            next.map(|(since, operation)| (since - now, operation.id.as_u128()))
        };
        assert_eq!(due(Duration::from_millis(999)), None);
        assert_eq!(due(SECOND), Some((SECOND, 2)));
        assert_eq!(due(SECOND), Some((SECOND, 3)), "not the one that changes nothing");
        assert_eq!(due(SECOND), None);
        operations.end(Uuid::from_u128(1), Status::Succeeded);
        assert_eq!(
            operations.next_due(now + SECOND * 9).map(|(_, found)| found.id),
            None,
            "it has ended"
        );
        let in_progress = |number: u128| operations.in_progress(Uuid::from_u128(number)).is_some();
        assert_eq!([1, 2, 3, 4].map(in_progress), [false, true, true, false]);
    }

    #[test]
    fn a_status_is_there_for_a_day_after_the_operation_and_its_url_is_signed() {
        let (mut operations, now) = (Operations::default(), Instant::now());
        add(&mut operations, 1, false, now, SECOND);
        let id = Uuid::from_u128(1);
        let found = operations.get(id).unwrap();
        let url = found.url("http://arm", "2025-05-01", false);
        let (_, query) = url.split_once('?').unwrap();
        let at = |time: Duration| operations.find(&id.to_string(), query, now + time).is_ok();
        let last = SECOND + STATUS_LIFETIME;
        assert_eq!(
            [Duration::ZERO, last.saturating_sub(Duration::from_millis(1)), last].map(at),
            [true, true, false]
        );
        let altered = query.replace("t=0", "t=1");
        let refused = operations.find(&id.to_string(), &altered, now).unwrap_err();
        assert_eq!(
            (refused.status, refused.code.as_ref()),
            (StatusCode::FORBIDDEN, "InvalidSignature")
        );
        assert!(url.starts_with("http://arm/subscriptions/s/providers/Microsoft.Network/locations/eastus/operations/"));
        assert!(found.url("", "1", true).contains("/operationResults/"));
    }

    #[test]
    fn operations_are_named_after_verb_and_kind() {
        let name = |verb: &str, path: &str| {
            let id = format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/{path}");
            operation_name(verb, &ResourceId::parse(&id).unwrap())
        };
        for (path, expected) in [
            ("loadBalancers/lb", "PutLoadBalancerOperation"),
            (
                "loadBalancers/lb/backendAddressPools/p",
                "PutLoadBalancerBackendAddressPoolOperation",
            ),
            ("networkInterfaces/n", "PutNicOperation"),
            ("publicIPAddresses/a", "PutPublicIpAddressOperation"),
            ("loadBalancers/lb/probes/p", "PutLoadBalancerProbeOperation"),
        ] {
            assert_eq!(name("Put", path), expected);
        }
        assert_eq!(name("Delete", "natGateways/n"), "DeleteNatGatewayOperation");
    }
}
