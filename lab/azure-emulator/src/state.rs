//! The state of one emulator, and the path of a request through it: authentication, faults, throttling, then ARM, the
//! token services or IMDS, and the journal.

use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, Response};
use bytes::Bytes;
use headgate_core::clock::{Clock, Moment};
use serde_json::Value;

use super::ConnectionCut;
use super::arm::Arm;
use super::error::ErrorResponse;
use super::faults::action::{Action, ConcurrentWrite, DocumentChange};
use super::faults::{FaultHit, FaultRules, RequestSummary};
use super::guids::GuidGenerator;
use super::id::same_name;
use super::identity::Identity;
use super::imds::Imds;
use super::journal::{EtagChange, Event, Journal, Outcome};
use super::request::ArmRequest;
use super::seed::{Seed, SeedError};
use super::settings::Settings;
use super::store::{Store, StoreEvent};
use super::throttle::{Kind, Remaining, Throttle};

mod controlled;
mod response_headers;

/// Everything that an emulator keeps.
#[derive(Debug)]
pub(super) struct State {
    settings: Settings,
    store: Store,
    faults: FaultRules,
    journal: Journal,
    throttle: Throttle,
    identity: Identity,
    imds: Imds,
    seed: Seed,
    clock: Clock,
    /// How far the control API has set the clock forward.
    offset: Duration,
    /// The source of request ids.
    guids: GuidGenerator,
}

/// A request with its whole body.
#[derive(Debug)]
pub(super) struct ReceivedRequest {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    /// The URL of the emulator that the client used, such as `http://127.0.0.1:1234`.
    pub(super) base: String,
}

/// A request that is in the journal and not yet answered.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// Its number in the journal.
    sequence: u64,
    /// The caller's object id, or why the caller is not authenticated.
    principal: Result<String, ErrorResponse>,
    /// The fault rule that acts on the request.
    pub(super) hit: Option<FaultHit>,
}

/// A response that is not yet sent, and its part of the journal's entry.
#[derive(Debug)]
pub(super) struct PendingResponse {
    response: Response<Bytes>,
    /// Whether the connection is closed instead.
    pub(super) is_cut: bool,
    outcome: Outcome,
}

impl State {
    pub(super) fn new(settings: Settings, seed: Seed, clock: Clock, random_seed: u64) -> Result<Self, SeedError> {
        let mut guids = GuidGenerator::new(random_seed);
        let mut store = Store::new(guids.fork());
        seed.apply(&mut store)?;
        let key = [guids.next(), guids.next()].map(uuid::Uuid::into_bytes).concat();
        Ok(Self {
            identity: Identity::new(seed.identity.clone(), &key),
            imds: Imds::default(),
            throttle: Throttle::new(settings.throttle.clone()),
            settings,
            store,
            faults: FaultRules::default(),
            journal: Journal::default(),
            seed,
            clock,
            offset: Duration::ZERO,
            guids,
        })
    }

    /// The time of the emulator, with the advances of the control API.
    pub(super) fn now(&self) -> Moment {
        let Moment { wall, mono } = self.clock.now();
        let wall = wall.saturating_add(self.offset).unwrap_or(jiff::Timestamp::MAX);
        Moment {
            wall,
            mono: mono + self.offset,
        }
    }

    /// Adds a request to the journal, authenticates it, and finds the fault rule that acts on it.
    pub(super) fn begin(&mut self, received: &ReceivedRequest) -> PendingRequest {
        let now = self.now();
        self.end_due_operations(now);
        let principal = self.authenticate(received, now);
        let known = principal.as_deref().ok();
        let sequence = self.journal.begin(now.wall, &received.parts, &received.body, known);
        let hit = self.faults.next(&RequestSummary::from_parts(&received.parts, known));
        PendingRequest {
            sequence,
            principal,
            hit,
        }
    }

    /// Makes the write that a fault puts before the request. To be called once for a request.
    pub(super) fn apply_concurrent_write(&mut self, received: &ReceivedRequest, pending: &PendingRequest) {
        let now = self.now();
        self.end_due_operations(now);
        if let Some(FaultHit { rule, action }) = &pending.hit
            && let Action::Write(write) = action.as_ref()
        {
            self.write(*rule, write, received.parts.uri.path(), &received.base, now);
        }
    }

    /// Handles the request.
    pub(super) fn respond(&mut self, received: &ReceivedRequest, pending: &PendingRequest) -> PendingResponse {
        let now = self.now();
        self.end_due_operations(now);
        let mut outcome = Outcome {
            fault: pending.hit.as_ref().map(|hit| hit.rule),
            ..Outcome::default()
        };
        let mut response = self
            .route(received, pending, now)
            .unwrap_or_else(|error| error.response());
        outcome.changes = self.journal_store_events(now);
        self.add_headers(&received.parts, response.headers_mut(), now);
        PendingResponse {
            response,
            is_cut: false,
            outcome,
        }
    }

    /// Completes the request's entry in the journal and returns the response.
    pub(super) fn finish(
        &mut self,
        pending: &PendingRequest,
        response: PendingResponse,
    ) -> Result<Response<Bytes>, ConnectionCut> {
        let now = self.now();
        let PendingResponse {
            response,
            is_cut,
            outcome,
        } = response;
        let sent = Some(&response).filter(|_| !is_cut);
        self.journal.finish(pending.sequence, now.wall, sent, outcome);
        if is_cut { Err(ConnectionCut) } else { Ok(response) }
    }

    /// Completes the entry of a request whose connection is closed before it has an effect.
    pub(super) fn abort(&mut self, pending: &PendingRequest) {
        let now = self.now();
        let outcome = Outcome {
            fault: pending.hit.as_ref().map(|hit| hit.rule),
            ..Outcome::default()
        };
        self.journal.finish(pending.sequence, now.wall, None, outcome);
    }

    fn end_due_operations(&mut self, now: Moment) {
        self.store.end_due_operations(now.mono, self.settings.read_lag);
        let changes = self.journal_store_events(now);
        debug_assert!(
            changes.is_empty(),
            "the end of an operation has its changes in its own event"
        );
    }

    /// Adds the operations that have ended to the journal, and returns the changes of the request that is being
    /// handled.
    fn journal_store_events(&mut self, now: Moment) -> Vec<EtagChange> {
        let mut changes = Vec::new();
        for event in self.store.take_events() {
            match event {
                StoreEvent::EtagChanged(change) => changes.push(change),
                StoreEvent::OperationEnded {
                    id,
                    name,
                    resource,
                    status,
                    superseded_by,
                    changes,
                } => {
                    let event = Event::Operation {
                        id: id.to_string(),
                        name: &name,
                        resource,
                        status,
                        superseded_by: superseded_by.map(|id| id.to_string()),
                    };
                    self.journal.add_event(now.wall, event, changes);
                }
            }
        }
        changes
    }

    /// The caller's object id, by which throttling counts.
    fn authenticate(&self, received: &ReceivedRequest, now: Moment) -> Result<String, ErrorResponse> {
        let authorization = received.parts.headers.get(AUTHORIZATION);
        let principal = self.identity.principal(authorization, &received.base, now.wall)?;
        Ok(principal.object)
    }

    /// Passes the request to the service that its path belongs to; returns the response.
    fn route(
        &mut self,
        received: &ReceivedRequest,
        pending: &PendingRequest,
        now: Moment,
    ) -> Result<Response<Bytes>, ErrorResponse> {
        let ReceivedRequest { parts, body, base } = received;
        let known = pending.principal.as_deref().ok();
        let mut operation_end = None;
        match pending.hit.as_ref().map(|hit| hit.action.as_ref()) {
            Some(Action::Answer(injected)) => {
                let summary = RequestSummary::from_parts(parts, known);
                return Ok(injected.response(&summary));
            }
            Some(Action::Operation { end, effect }) => operation_end = Some((end.clone(), *effect)),
            _ => {}
        }
        if !is_arm(parts.uri.path()) {
            let request = Request::from_parts(parts.clone(), body.clone());
            if let Some(response) = self.identity.answer(&request, base, now.wall) {
                return Ok(response);
            }
            if let Some(response) = self.imds.answer(&request) {
                return Ok(response);
            }
        }
        let principal = pending.principal.clone()?;
        let request = ArmRequest {
            method: &parts.method,
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
            base,
            now,
            operation_end,
        };
        let remaining = self.take_token(&request, &principal)?;
        let mut response = match self.arm().respond(&request) {
            Ok(response) => response.response(),
            Err(error) => error.response(),
        };
        if let Some(remaining) = remaining {
            remaining.write(response.headers_mut());
        }
        Ok(response)
    }

    /// Takes a token from the caller's buckets, if the path is below a subscription.
    fn take_token(&mut self, request: &ArmRequest<'_>, principal: &str) -> Result<Option<Remaining>, ErrorResponse> {
        let segments: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        let ([_, subscription, rest @ ..], true) = (segments.as_slice(), is_arm(request.path)) else {
            return Ok(None);
        };
        let mut after = rest
            .iter()
            .skip_while(|segment| !same_name(segment, "providers"))
            .skip(1);
        let is_network = after
            .next()
            .is_some_and(|namespace| same_name(namespace, "Microsoft.Network"));
        let kind = Kind::from_method(request.method);
        let taken = self
            .throttle
            .take(subscription, principal, kind, is_network, request.now.mono);
        taken.map(Some)
    }

    fn arm(&mut self) -> Arm<'_> {
        Arm {
            store: &mut self.store,
            settings: &self.settings,
            authorization: &self.seed.authorization,
        }
    }

    /// Makes the write of a fault rule. `path` is the path of the request that the rule acts on.
    fn write(&mut self, rule: u64, write: &ConcurrentWrite, path: &str, base: &str, now: Moment) {
        let path = write.path.as_deref().unwrap_or(path);
        let headers = HeaderMap::new();
        let mut request = ArmRequest {
            method: &Method::GET,
            path,
            query: "api-version=2025-05-01",
            headers: &headers,
            body: &[],
            base,
            now,
            operation_end: None,
        };
        let body = match &write.change {
            DocumentChange::Put(document) => document.to_string(),
            DocumentChange::Delete => String::new(),
            DocumentChange::Merge(merge) => {
                let found = self.arm().respond(&request).ok().and_then(|response| response.body);
                let mut document = found.unwrap_or(Value::Null);
                json_patch::merge(&mut document, merge);
                document.to_string()
            }
        };
        request.body = body.as_bytes();
        request.method = if write.change == DocumentChange::Delete {
            &Method::DELETE
        } else {
            &Method::PUT
        };
        let status = match self.arm().respond(&request) {
            Ok(response) => response.status,
            // Only the journal shows it.
            Err(error) => error.status,
        };
        let changes = self.journal_store_events(now);
        let document = serde_json::from_str(&body).ok();
        let event = Event::Write {
            method: request.method.as_str(),
            path,
            body: document.as_ref(),
            fault: rule,
            status: status.as_u16(),
        };
        self.journal.add_event(now.wall, event, changes);
    }
}

/// Whether a path is one of ARM, and not of the token services or IMDS.
fn is_arm(path: &str) -> bool {
    path.trim_start_matches('/')
        .split('/')
        .next()
        .is_some_and(|first| same_name(first, "subscriptions"))
}
