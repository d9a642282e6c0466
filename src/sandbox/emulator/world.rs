//! Everything the emulator knows, and what it answers: who asks, how often, what goes wrong on purpose,
//! and then what ARM says.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{
    CACHE_CONTROL, EXPIRES, HeaderName, PRAGMA, STRICT_TRANSPORT_SECURITY, USER_AGENT, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use bytes::Bytes;
use serde_json::Value;

use super::arm::Arm;
use super::error::ArmError;
use super::fault::{Action, Change, Effect, End, Write};
use super::faults::{Asked, Faults, Hit};
use super::guids::Guids;
use super::merge::merge;
use super::request::{Answer, Call};
use super::seed::{Seed, SeedError};
use super::settings::Settings;
use super::store::Store;
use crate::clock::{Clock, Moment};

/// The state of one emulator.
#[derive(Debug)]
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) store: Store,
    pub(super) faults: Faults,
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

impl World {
    pub(super) fn new(settings: Settings, seed: Seed, clock: Clock, random: u64) -> Result<Self, SeedError> {
        let mut guids = Guids::new(random);
        let mut store = Store::new(Guids::new(guids.next().as_u64_pair().0));
        seed.apply(&mut store)?;
        Ok(Self {
            settings,
            store,
            faults: Faults::default(),
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

    /// What is to happen to a request besides what would happen anyway.
    pub(super) fn fault(&mut self, received: &Received) -> Option<Hit> {
        self.faults.next(&Asked::of(&received.parts, None))
    }

    /// Answers.
    pub(super) fn answer(&mut self, received: &Received, action: Option<&Arc<Action>>) -> Response<Bytes> {
        let now = self.now();
        self.store.settle(now.mono);
        let mut response = match self.answer_as(received, action.map(Arc::as_ref), now) {
            Ok(response) => response,
            Err(error) => error.response(),
        };
        self.fill(&received.parts, response.headers_mut(), now);
        response
    }

    fn answer_as(
        &mut self,
        received: &Received,
        action: Option<&Action>,
        now: Moment,
    ) -> Result<Response<Bytes>, ArmError> {
        let Received { parts, body, base } = received;
        let mut ends = None;
        match action {
            Some(Action::Answer(injected)) => return Ok(injected.response(&Asked::of(parts, None))),
            Some(Action::Operation { end, effect }) => ends = Some((end.clone(), *effect)),
            Some(Action::Write(write)) => self.write(write, parts.uri.path(), base, now),
            _ => {}
        }
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
        self.arm().answer(&call).map(Answer::response)
    }

    fn arm(&mut self) -> Arm<'_> {
        Arm {
            store: &mut self.store,
            settings: &self.settings,
        }
    }

    /// A write by somebody else.
    fn write(&mut self, write: &Write, path: &str, base: &str, now: Moment) {
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
            Change::Put(document) => document.to_string(),
            Change::Delete => String::new(),
            Change::Merge(patch) => {
                let found = self.arm().answer(&call).ok().and_then(|answer| answer.body);
                let mut document = found.unwrap_or(Value::Null);
                merge(&mut document, patch);
                document.to_string()
            }
        };
        call.body = body.as_bytes();
        call.method = if write.change == Change::Delete {
            &Method::DELETE
        } else {
            &Method::PUT
        };
        // What it is refused is not the business of the request that waits for it.
        let _ = self.arm().answer(&call);
    }

    /// Headers that every answer of ARM has.
    fn fill(&mut self, request: &Parts, headers: &mut HeaderMap, now: Moment) {
        let id = self.guids.next().to_string();
        let sent = |name: &str| request.headers.get(name).cloned();
        let correlation = sent("x-ms-correlation-request-id").unwrap_or_else(|| value(&id));
        let routing = format!("EASTUS:{}:{id}", now.wall.strftime("%Y%m%dT%H%M%SZ"));
        for (name, value) in [
            (HeaderName::from_static("x-ms-request-id"), value(&id)),
            (HeaderName::from_static("x-ms-correlation-request-id"), correlation),
            (HeaderName::from_static("x-ms-routing-request-id"), value(&routing)),
            (HeaderName::from_static("x-ms-arm-service-request-id"), value(&id)),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (PRAGMA, HeaderValue::from_static("no-cache")),
            (EXPIRES, HeaderValue::from_static("-1")),
            (
                STRICT_TRANSPORT_SECURITY,
                HeaderValue::from_static("max-age=31536000; includeSubDomains"),
            ),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (
                HeaderName::from_static("x-cache"),
                HeaderValue::from_static("CONFIG_NOCACHE"),
            ),
        ] {
            headers.entry(name).or_insert(value);
        }
        let wanted =
            sent("x-ms-return-client-request-id").is_some_and(|wanted| wanted.as_bytes().eq_ignore_ascii_case(b"true"));
        if let (true, Some(id)) = (wanted, sent("x-ms-client-request-id")) {
            headers.insert("x-ms-client-request-id", id);
        }
    }

    /// Back to the seed; settings stay.
    pub(super) fn reset(&mut self) {
        let mut store = Store::new(Guids::new(self.guids.next().as_u64_pair().0));
        // It could be applied at the start.
        if self.seed.apply(&mut store).is_ok() {
            self.store = store;
        }
        self.faults.clear();
    }
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
