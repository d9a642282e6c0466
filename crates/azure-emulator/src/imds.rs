//! IMDS: what a virtual machine is told about itself, and Scheduled Events.
//!
//! All who ask are one machine's programs: there is one document, whoever asks. Scheduled Events are
//! asleep until they are asked for, and again after a day of silence; who wakes them waits. Waiting is
//! the caller's: an answer says how long it is to be held back.

use std::time::Duration;

use axum::http::header::ETAG;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_clock::Moment;
use serde::Deserialize;
use serde_json::{Value, json};

use self::events::Events;
use super::error::ArmError;
use super::query::{Parameters, is_for_imds, segments};
use super::request::Answer;

mod events;
mod instance;

/// After this long without a question, Scheduled Events sleep.
const BEDTIME: Duration = Duration::from_hours(24);
/// What is told to those who ask for a version that is none.
const NEWEST_VERSIONS: [&str; 3] = ["2021-02-01", "2021-01-01", "2020-12-01"];
/// More than a request for approval ever has.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// What can be set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ImdsSettings {
    /// How long the first answer about Scheduled Events takes; up to two minutes on Azure.
    #[serde(with = "super::settings::text")]
    pub(super) first_call_delay: Duration,
    /// What `/metadata/instance` says.
    pub(super) instance: Value,
}

impl Default for ImdsSettings {
    fn default() -> Self {
        Self {
            first_call_delay: Duration::ZERO,
            instance: instance::example(),
        }
    }
}

/// An answer, and how long to hold it back.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The answer as of now. Who has waited may ask again, to have it as of then.
    pub(super) response: Response<Bytes>,
    /// Zero, except while Scheduled Events wake up.
    pub(super) delay: Duration,
}

/// When Scheduled Events answer.
#[derive(Clone, Copy, Debug)]
struct Awake {
    /// From then on.
    from: Moment,
    /// When they were last asked for.
    asked: Moment,
}

/// The service.
#[derive(Debug)]
pub(super) struct Imds {
    settings: ImdsSettings,
    events: Events,
    awake: Option<Awake>,
}

impl Imds {
    /// Without events, and asleep.
    pub(super) fn new(settings: ImdsSettings) -> Self {
        Self {
            settings,
            events: Events::default(),
            awake: None,
        }
    }

    /// Without events and asleep again; the incarnation goes on, as it never goes back.
    pub(super) fn reset(&mut self) {
        self.awake = None;
        self.events.clear();
    }

    /// The document of Scheduled Events.
    pub(super) fn document(&self) -> Value {
        self.events.document()
    }

    /// Replaces the events: `{"Events": [...]}`, of which each needs its type and its resources. The rest
    /// is filled in; the same again keeps ids and times, and changes nothing.
    ///
    /// # Errors
    ///
    /// A 400 that names what is wrong; then nothing has changed.
    pub(super) fn put(&mut self, document: Value, now: Moment) -> Result<Value, ArmError> {
        self.events.put(document, now.wall)?;
        Ok(self.document())
    }

    /// What is answered on IMDS's paths, but for tokens; none on all other paths.
    pub(super) fn answer(&mut self, request: &Request<Bytes>, now: Moment) -> Option<Outcome> {
        let response = match segments(request)[..] {
            ["metadata", "scheduledevents"] => return Some(self.scheduled_events(request, now)),
            ["metadata", "instance", ref path @ ..] => match checked(request, &[Method::GET]) {
                Ok(query) => instance::answer(&self.settings.instance, path, &query),
                Err(refusal) => refusal.response(),
            },
            _ => return None,
        };
        let delay = Duration::ZERO;
        Some(Outcome { response, delay })
    }

    fn scheduled_events(&mut self, request: &Request<Bytes>, now: Moment) -> Outcome {
        if let Err(refusal) = checked(request, &[Method::GET, Method::POST]) {
            return Outcome {
                response: refusal.response(),
                delay: Duration::ZERO,
            };
        }
        let response = if request.method() == Method::POST {
            self.start(request.body()).response()
        } else {
            let tag = format!("\"{}\"", self.events.incarnation());
            Answer::new(StatusCode::OK, self.document())
                .header(ETAG, &tag)
                .response()
        };
        Outcome {
            response,
            delay: self.wake(now),
        }
    }

    /// How long it is until Scheduled Events answer, who now have been asked.
    fn wake(&mut self, now: Moment) -> Duration {
        let awake = self
            .awake
            .filter(|awake| now.mono.saturating_duration_since(awake.asked.mono) < BEDTIME);
        let delay = self.settings.first_call_delay;
        let from = awake.map_or(
            Moment {
                mono: now.mono + delay,
                ..now
            },
            |awake| awake.from,
        );
        self.awake = Some(Awake { from, asked: now });
        from.mono.saturating_duration_since(now.mono)
    }

    /// Takes an approval: `{"StartRequests": [{"EventId": ...}]}`.
    fn start(&mut self, body: &[u8]) -> Answer {
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
        // A guess: status and words for what cannot be read, and for an id that is not known; documented is
        // only that a known one gets 200, whatever becomes of it.
        let Some(ids) = ids.filter(|ids| !ids.is_empty()) else {
            return bad(
                "StartRequests with an EventId each were not specified in the request",
                None,
            );
        };
        if let Some(unknown) = ids.iter().find(|id| !self.events.knows(id)) {
            return bad(&format!("EventId {unknown} is not known"), None);
        }
        self.events.start(&ids);
        Answer::empty(StatusCode::OK)
    }
}

/// The parameters of a request that is as IMDS wants it, or the refusal.
fn checked(request: &Request<Bytes>, methods: &[Method]) -> Result<Parameters, Answer> {
    if !is_for_imds(request.headers()) {
        return Err(bad("Required metadata header not specified", None));
    }
    if !methods.contains(request.method()) {
        // A guess: the body.
        let body = json!({"error": "Method not allowed"});
        return Err(Answer::new(StatusCode::METHOD_NOT_ALLOWED, body));
    }
    let query = Parameters::of(request);
    let digits = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '-');
    match query.get("api-version") {
        None => Err(bad(
            "api-version was not specified in the request. For more information refer to aka.ms/azureimds",
            Some(&NEWEST_VERSIONS),
        )),
        // A guess: that every date is a version; Azure lists those it has.
        Some(version) if version.len() != 10 || !digits(version) => Err(bad(
            "api-version is invalid. For more information refer to aka.ms/azureimds",
            Some(&NEWEST_VERSIONS),
        )),
        Some(_) => Ok(query),
    }
}

/// A 400 as IMDS words it.
fn bad(why: &str, versions: Option<&[&str]>) -> Answer {
    let mut body = json!({"error": format!("Bad request. {why}")});
    if let Some(versions) = versions {
        body["newest-versions"] = json!(versions);
    }
    Answer::new(StatusCode::BAD_REQUEST, body)
}

#[cfg(test)]
mod tests;
