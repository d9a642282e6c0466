//! Scheduled Events, of IMDS, the instance metadata service.
//!
//! Every caller gets the same documents. Scheduled Events are disabled until the first request, and again after a day
//! without requests; the request that enables them gets its answer late. This module never waits: an answer says for
//! how long the caller has to hold it back.

use std::time::Duration;

use axum::http::header::ETAG;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Moment;
use serde::Deserialize;
use serde_json::{Value, json};

use self::scheduled_events::ScheduledEvents;
use super::error::ErrorResponse;
use super::query::{Parameters, has_metadata_header, path_segments};
use super::request::JsonResponse;

mod scheduled_events;

/// Time without requests after which Scheduled Events are disabled.
const IDLE_TIMEOUT: Duration = Duration::from_hours(24);
/// `newest-versions` in the answer to a request with an invalid version.
const NEWEST_VERSIONS: [&str; 3] = ["2021-02-01", "2021-01-01", "2020-12-01"];
/// Size of a request that approves events.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The section `imds` of the seed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ImdsSettings {
    /// Delay of the first answer about Scheduled Events; up to two minutes on Azure.
    #[serde(with = "super::settings::duration_as_text")]
    pub(super) first_call_delay: Duration,
}

/// An answer, and its delay.
#[derive(Debug)]
pub(super) struct DelayedResponse {
    /// The answer as of now. A caller that has waited computes it again.
    pub(super) response: Response<Bytes>,
    /// Zero, except while Scheduled Events start.
    pub(super) delay: Duration,
}

/// Scheduled Events are enabled.
#[derive(Clone, Copy, Debug)]
struct Enabled {
    /// When they begin to answer.
    from: Moment,
    /// When Scheduled Events were last requested.
    last_request: Moment,
}

/// The state of IMDS.
#[derive(Debug)]
pub(super) struct Imds {
    settings: ImdsSettings,
    events: ScheduledEvents,
    enabled: Option<Enabled>,
}

impl Imds {
    /// Without events, and with Scheduled Events disabled.
    pub(super) fn new(settings: ImdsSettings) -> Self {
        Self {
            settings,
            events: ScheduledEvents::default(),
            enabled: None,
        }
    }

    /// Removes all events and disables Scheduled Events. The incarnation never decreases.
    pub(super) fn reset(&mut self) {
        self.enabled = None;
        self.events.clear();
    }

    /// The document of Scheduled Events.
    pub(super) fn document(&self) -> Value {
        self.events.document()
    }

    /// Replaces the events with those in `{"Events": [...]}`. Each needs its type and its resources; the rest is filled
    /// in. The same events again keep their ids and times, and change nothing.
    ///
    /// # Errors
    ///
    /// A 400 that names a mistake; then nothing has changed.
    pub(super) fn put(&mut self, document: Value, now: Moment) -> Result<Value, ErrorResponse> {
        self.events.put(document, now.wall)?;
        Ok(self.document())
    }

    /// Answers requests to IMDS except those for tokens; `None` for all other paths.
    pub(super) fn answer(&mut self, request: &Request<Bytes>, now: Moment) -> Option<DelayedResponse> {
        (path_segments(request)[..] == ["metadata", "scheduledevents"]).then(|| self.scheduled_events(request, now))
    }

    fn scheduled_events(&mut self, request: &Request<Bytes>, now: Moment) -> DelayedResponse {
        if let Err(error) = check_request(request, &[Method::GET, Method::POST]) {
            return DelayedResponse {
                response: error.response(),
                delay: Duration::ZERO,
            };
        }
        let response = if request.method() == Method::POST {
            self.approve(request.body()).response()
        } else {
            let tag = format!("\"{}\"", self.events.incarnation());
            JsonResponse::new(StatusCode::OK, self.document())
                .header(ETAG, &tag)
                .response()
        };
        DelayedResponse {
            response,
            delay: self.enable(now),
        }
    }

    /// Records a request for Scheduled Events, and returns how long its answer is delayed.
    fn enable(&mut self, now: Moment) -> Duration {
        let enabled = self
            .enabled
            .filter(|enabled| now.mono.saturating_duration_since(enabled.last_request.mono) < IDLE_TIMEOUT);
        let delay = self.settings.first_call_delay;
        let from = enabled.map_or(
            Moment {
                mono: now.mono + delay,
                ..now
            },
            |enabled| enabled.from,
        );
        self.enabled = Some(Enabled {
            from,
            last_request: now,
        });
        from.mono.saturating_duration_since(now.mono)
    }

    /// Approves events: `{"StartRequests": [{"EventId": ...}]}`.
    fn approve(&mut self, body: &[u8]) -> JsonResponse {
        let document: Option<Value> = (body.len() <= MAX_BODY_BYTES)
            .then(|| serde_json::from_slice(body).ok())
            .flatten();
        let requests = document
            .as_ref()
            .and_then(|document| document.get("StartRequests")?.as_array());
        let ids = requests.and_then(|requests| {
            let ids = requests
                .iter()
                .map(|request| request.get("EventId").and_then(Value::as_str));
            ids.collect::<Option<Vec<_>>>()
        });
        // Guess: status and wording for a body that cannot be parsed and for an unknown id. Documented is only that a
        // known id gets 200.
        let Some(ids) = ids.filter(|ids| !ids.is_empty()) else {
            return bad_request(
                "StartRequests with an EventId each were not specified in the request",
                None,
            );
        };
        if let Some(unknown) = ids.iter().find(|id| !self.events.contains(id)) {
            return bad_request(&format!("EventId {unknown} is not known"), None);
        }
        self.events.start(&ids);
        JsonResponse::empty(StatusCode::OK)
    }
}

/// Whether a request has the header, the method and the version that IMDS requires.
fn check_request(request: &Request<Bytes>, methods: &[Method]) -> Result<(), JsonResponse> {
    if !has_metadata_header(request.headers()) {
        return Err(bad_request("Required metadata header not specified", None));
    }
    if !methods.contains(request.method()) {
        // Guess: the body.
        let body = json!({"error": "Method not allowed"});
        return Err(JsonResponse::new(StatusCode::METHOD_NOT_ALLOWED, body));
    }
    let query = Parameters::from_query(request);
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '-');
    match query.get("api-version") {
        None => Err(bad_request(
            "api-version was not specified in the request. For more information refer to aka.ms/azureimds",
            Some(&NEWEST_VERSIONS),
        )),
        // Guess: every date is a version; Azure lists those that it has.
        Some(version) if version.len() != 10 || !digits(version) => Err(bad_request(
            "api-version is invalid. For more information refer to aka.ms/azureimds",
            Some(&NEWEST_VERSIONS),
        )),
        Some(_) => Ok(()),
    }
}

/// A 400 with IMDS' wording.
fn bad_request(reason: &str, versions: Option<&[&str]>) -> JsonResponse {
    let mut body = json!({"error": format!("Bad request. {reason}")});
    if let Some(versions) = versions {
        body["newest-versions"] = json!(versions);
    }
    JsonResponse::new(StatusCode::BAD_REQUEST, body)
}

#[cfg(test)]
mod tests;
