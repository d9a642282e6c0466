//! Everything the emulator knows, and what it answers: who asks, how often, what goes wrong on purpose,
//! and then what ARM says.

use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, Response};
use bytes::Bytes;
use headgate_clock::{Clock, Moment};
use serde_json::Value;

use super::ConnectionCut;
use super::arm::Arm;
use super::error::ArmError;
use super::fault::{self, Action, Write};
use super::faults::{Asked, Faults, Hit};
use super::guids::Guids;
use super::id::is;
use super::identity::Identity;
use super::imds::Imds;
use super::journal::{Change, Event, Journal, Outcome};
use super::merge::merge;
use super::request::Call;
use super::seed::{Seed, SeedError};
use super::settings::Settings;
use super::store::{Happened, Store};
use super::throttle::{self, Remaining, Throttle};

mod controlled;
mod headers;

/// The state of one emulator.
#[derive(Debug)]
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) store: Store,
    pub(super) faults: Faults,
    pub(super) journal: Journal,
    pub(super) throttle: Throttle,
    pub(super) identity: Identity,
    pub(super) imds: Imds,
    seed: Seed,
    clock: Clock,
    /// How far the clock was set forward.
    offset: Duration,
    /// For request ids.
    guids: Guids,
}

/// A request that has been read.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) parts: Parts,
    pub(super) body: Bytes,
    /// How the caller reached us, `http://127.0.0.1:1234`.
    pub(super) base: String,
}

/// A request that is in the journal and may meet a fault.
#[derive(Debug)]
pub(super) struct Opened {
    sequence: u64,
    principal: Result<String, ArmError>,
    pub(super) hit: Option<Hit>,
}

/// What is to be answered, and what the journal is to say of it.
#[derive(Debug)]
pub(super) struct Answered {
    response: Response<Bytes>,
    /// How much later.
    pub(super) delay: Duration,
    /// Whether the connection is cut instead.
    pub(super) cut: bool,
    outcome: Outcome,
}

impl World {
    pub(super) fn new(settings: Settings, seed: Seed, clock: Clock, random: u64) -> Result<Self, SeedError> {
        let mut guids = Guids::new(random);
        let mut store = Store::new(Guids::new(guids.next().as_u64_pair().0));
        seed.apply(&mut store)?;
        let key = [guids.next(), guids.next()].map(uuid::Uuid::into_bytes).concat();
        Ok(Self {
            identity: Identity::new(seed.identity.clone(), &key),
            imds: Imds::new(seed.imds.clone()),
            throttle: Throttle::new(settings.throttle.clone()),
            settings,
            store,
            faults: Faults::default(),
            journal: Journal::default(),
            seed,
            clock,
            offset: Duration::ZERO,
            guids,
        })
    }

    /// The emulator's time.
    pub(super) fn now(&self) -> Moment {
        let Moment { wall, mono } = self.clock.now();
        let wall = wall.saturating_add(self.offset).unwrap_or(jiff::Timestamp::MAX);
        Moment {
            wall,
            mono: mono + self.offset,
        }
    }

    /// Notes a request's arrival, and what is to happen to it besides what would happen anyway.
    pub(super) fn open(&mut self, received: &Received) -> Opened {
        let now = self.now();
        self.settle(now);
        let principal = self.principal(received, now);
        let known = principal.as_deref().ok();
        let sequence = self.journal.begin(now.wall, &received.parts, &received.body, known);
        let hit = self.faults.next(&Asked::of(&received.parts, known));
        Opened {
            sequence,
            principal,
            hit,
        }
    }

    /// Does what a fault has somebody else do before the request, once.
    pub(super) fn write_first(&mut self, received: &Received, opened: &Opened) {
        let now = self.now();
        self.settle(now);
        if let Some(Hit { rule, action }) = &opened.hit
            && let Action::Write(write) = action.as_ref()
        {
            self.write(*rule, write, received.parts.uri.path(), &received.base, now);
        }
    }

    /// Answers.
    pub(super) fn answer(&mut self, received: &Received, opened: &Opened) -> Answered {
        let now = self.now();
        self.settle(now);
        let mut outcome = Outcome {
            fault: opened.hit.as_ref().map(|hit| hit.rule),
            ..Outcome::default()
        };
        let (mut response, delay) = match self.answer_as(received, opened, now) {
            Ok(answered) => answered,
            Err(error) => (error.response(), Duration::ZERO),
        };
        outcome.changes = self.note(now);
        self.fill(&received.parts, response.headers_mut(), now);
        Answered {
            response,
            delay,
            cut: false,
            outcome,
        }
    }

    /// Notes what a request was answered, and gives the answer.
    pub(super) fn close(&mut self, opened: &Opened, answered: Answered) -> Result<Response<Bytes>, ConnectionCut> {
        let now = self.now();
        let Answered {
            response, cut, outcome, ..
        } = answered;
        let shown = Some(&response).filter(|_| !cut);
        self.journal.finish(opened.sequence, now.wall, shown, outcome);
        if cut { Err(ConnectionCut) } else { Ok(response) }
    }

    /// Notes that a request's connection was cut before it had an effect.
    pub(super) fn cut(&mut self, opened: &Opened) {
        let now = self.now();
        let outcome = Outcome {
            fault: opened.hit.as_ref().map(|hit| hit.rule),
            ..Outcome::default()
        };
        self.journal.finish(opened.sequence, now.wall, None, outcome);
    }

    fn settle(&mut self, now: Moment) {
        self.store.settle(now.mono);
        let changes = self.note(now);
        debug_assert!(changes.is_empty(), "an end notes its own changes");
    }

    /// Writes into the journal what ended; what the request itself changed.
    fn note(&mut self, now: Moment) -> Vec<Change> {
        let mut changed = Vec::new();
        for happened in self.store.happened() {
            match happened {
                Happened::Changed(change) => changed.push(change),
                Happened::Ended {
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
                    self.journal.record(now.wall, event, changes);
                }
            }
        }
        changed
    }

    /// Who calls ARM, by the object that throttling counts by.
    fn principal(&self, received: &Received, now: Moment) -> Result<String, ArmError> {
        let authorization = received.parts.headers.get(AUTHORIZATION);
        let principal = self.identity.principal(authorization, &received.base, now.wall)?;
        Ok(principal.object)
    }

    fn answer_as(
        &mut self,
        received: &Received,
        opened: &Opened,
        now: Moment,
    ) -> Result<(Response<Bytes>, Duration), ArmError> {
        let Received { parts, body, base } = received;
        let known = opened.principal.as_deref().ok();
        let mut ends = None;
        match opened.hit.as_ref().map(|hit| hit.action.as_ref()) {
            Some(Action::Answer(injected)) => {
                return Ok((injected.response(&Asked::of(parts, known)), Duration::ZERO));
            }
            Some(Action::Operation { end, effect }) => ends = Some((end.clone(), *effect)),
            _ => {}
        }
        if !is_arm(parts.uri.path()) {
            let request = Request::from_parts(parts.clone(), body.clone());
            if let Some(response) = self.identity.answer(&request, base, now.wall) {
                return Ok((response, Duration::ZERO));
            }
            if let Some(outcome) = self.imds.answer(&request, now) {
                return Ok((outcome.response, outcome.delay));
            }
        }
        let principal = opened.principal.clone()?;
        let call = Call {
            method: &parts.method,
            path: parts.uri.path(),
            query: parts.uri.query().unwrap_or_default(),
            headers: &parts.headers,
            body,
            base,
            now,
            ends,
        };
        let remaining = self.take_token(&call, &principal)?;
        let mut response = match self.arm().answer(&call) {
            Ok(answer) => answer.response(),
            Err(error) => error.response(),
        };
        if let Some(remaining) = remaining {
            remaining.write(response.headers_mut());
        }
        Ok((response, Duration::ZERO))
    }

    /// Takes a token of the caller's bucket, where the path is one below a subscription.
    fn take_token(&mut self, call: &Call<'_>, principal: &str) -> Result<Option<Remaining>, ArmError> {
        let words: Vec<&str> = call.path.trim_matches('/').split('/').collect();
        let ([_, subscription, rest @ ..], true) = (words.as_slice(), is_arm(call.path)) else {
            return Ok(None);
        };
        let mut after = rest.iter().skip_while(|word| !is(word, "providers")).skip(1);
        let network = after.next().is_some_and(|namespace| is(namespace, "Microsoft.Network"));
        let kind = throttle::Kind::of(call.method);
        let taken = self
            .throttle
            .take(subscription, principal, kind, network, call.now.mono);
        taken.map(Some)
    }

    fn arm(&mut self) -> Arm<'_> {
        Arm {
            store: &mut self.store,
            settings: &self.settings,
        }
    }

    /// A write by somebody else.
    fn write(&mut self, rule: u64, write: &Write, path: &str, base: &str, now: Moment) {
        let path = write.path.as_deref().unwrap_or(path);
        let headers = HeaderMap::new();
        let mut call = Call {
            method: &Method::GET,
            path,
            query: "api-version=2025-05-01",
            headers: &headers,
            body: &[],
            base,
            now,
            ends: None,
        };
        let body = match &write.change {
            fault::Change::Put(document) => document.to_string(),
            fault::Change::Delete => String::new(),
            fault::Change::Merge(wanted) => {
                let found = self.arm().answer(&call).ok().and_then(|answer| answer.body);
                let mut document = found.unwrap_or(Value::Null);
                merge(&mut document, wanted);
                document.to_string()
            }
        };
        call.body = body.as_bytes();
        call.method = if write.change == fault::Change::Delete {
            &Method::DELETE
        } else {
            &Method::PUT
        };
        let status = match self.arm().answer(&call) {
            Ok(answer) => answer.status,
            // The business of nobody but the journal's readers.
            Err(error) => error.status,
        };
        let changes = self.note(now);
        let document = serde_json::from_str(&body).ok();
        let event = Event::Write {
            method: call.method.as_str(),
            path,
            body: document.as_ref(),
            fault: rule,
            status: status.as_u16(),
        };
        self.journal.record(now.wall, event, changes);
    }
}

/// Whether a path is one of ARM, and not of the services beside it.
fn is_arm(path: &str) -> bool {
    path.trim_start_matches('/')
        .split('/')
        .next()
        .is_some_and(|first| is(first, "subscriptions"))
}
