//! Scheduled Events, of IMDS, the instance metadata service: every caller gets the same document. Nobody approves an event.

use axum::http::header::ETAG;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Moment;
use serde_json::{Value, json};

use self::scheduled_events::ScheduledEvents;
use super::error::ErrorResponse;
use super::query::{Parameters, has_metadata_header, path_segments};
use super::request::JsonResponse;

mod scheduled_events;

/// `newest-versions` in the answer to a request with an invalid version.
const NEWEST_VERSIONS: [&str; 3] = ["2021-02-01", "2021-01-01", "2020-12-01"];

/// The state of IMDS.
#[derive(Debug, Default)]
pub(super) struct Imds {
    events: ScheduledEvents,
}

impl Imds {
    /// Removes all events. The incarnation never decreases.
    pub(super) fn reset(&mut self) {
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
    pub(super) fn answer(&self, request: &Request<Bytes>) -> Option<Response<Bytes>> {
        (path_segments(request)[..] == ["metadata", "scheduledevents"]).then(|| {
            let answer = check_request(request).map(|()| {
                let tag = format!("\"{}\"", self.events.incarnation());
                JsonResponse::new(StatusCode::OK, self.document()).header(ETAG, &tag)
            });
            answer.unwrap_or_else(|error| error).response()
        })
    }
}

/// Whether a request has the header, the method and the version that IMDS requires.
fn check_request(request: &Request<Bytes>) -> Result<(), JsonResponse> {
    if !has_metadata_header(request.headers()) {
        return Err(bad_request("Required metadata header not specified", None));
    }
    if request.method() != Method::GET {
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
