//! The control API under `/emulator/v1`: faults, journal, settings, clock, reset.
//!
//! A function from a request to a response over [`ControlBackend`]; it never waits. Errors have ARM's shape: 404 for an
//! unknown path, 405 with `Allow` for an unsupported method, 400 for a request that cannot be parsed.

use std::time::Duration;

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Moment;
use serde_json::{Value, json};

use super::error::ErrorResponse;
use super::faults::FaultRules;
use super::journal::{Journal, JournalQuery, MAX_LIMIT};
use super::{fields, pattern};

const PREFIX: &str = "/emulator/v1";
/// Entries of a journal page where the request has no `limit`.
const DEFAULT_LIMIT: usize = 100;
/// The longest single advance of the clock. Tokens are valid for an hour, operations are kept for a day.
const MAX_ADVANCE: Duration = Duration::from_hours(24 * 366);

/// The state that the control API reads and changes.
pub(super) trait ControlBackend {
    fn faults(&mut self) -> &mut FaultRules;
    fn journal(&self) -> &Journal;
    /// Resources, operations, buckets, rules and settings.
    fn state(&mut self, now: Moment) -> Value;
    fn scheduled_events(&mut self, now: Moment) -> Value;
    /// Replaces the document of Scheduled Events and returns the new one.
    fn put_scheduled_events(&mut self, document: Value, now: Moment) -> Result<Value, ErrorResponse>;
    /// Returns to the seed.
    fn reset(&mut self);
    /// Sets the clock forward; fails with [`clock_is_real`] where it is the machine's clock.
    fn advance(&mut self, by: Duration) -> Result<(), ErrorResponse>;
    /// A bearer token for ARM: `{"token": …, "expiresOn": …}`.
    fn token(&mut self, now: Moment) -> Value;
    fn settings(&self) -> Value;
    /// Changes the settings in the request, all or none, and returns all settings.
    fn put_settings(&mut self, settings: Value, now: Moment) -> Result<Value, ErrorResponse>;
}

/// A path of the control API.
struct Endpoint {
    path: &'static str,
    methods: &'static [&'static str],
    about: &'static str,
}

/// All paths, as `GET /` lists them.
const ENDPOINTS: [Endpoint; 10] = [
    Endpoint {
        path: "/",
        methods: &["GET"],
        about: "This index.",
    },
    Endpoint {
        path: "/faults",
        methods: &["GET", "POST", "DELETE"],
        about: "The rules by which faults act on requests.",
    },
    Endpoint {
        path: "/faults/{id}",
        methods: &["DELETE"],
        about: "Remove one rule.",
    },
    Endpoint {
        path: "/journal",
        methods: &["GET"],
        about: "The journal, oldest entry first: ?after=SEQUENCE&limit=COUNT&path=REGEX&method=REGEX.",
    },
    Endpoint {
        path: "/state",
        methods: &["GET"],
        about: "The whole state.",
    },
    Endpoint {
        path: "/scheduled-events",
        methods: &["GET", "PUT"],
        about: "The document of Scheduled Events, as IMDS shows it.",
    },
    Endpoint {
        path: "/reset",
        methods: &["POST"],
        about: "Return to the seed.",
    },
    Endpoint {
        path: "/clock",
        methods: &["POST"],
        about: "Set the clock forward, only inside a test: {\"advance\": \"5s\"}.",
    },
    Endpoint {
        path: "/token",
        methods: &["GET"],
        about: "A bearer token for ARM.",
    },
    Endpoint {
        path: "/settings",
        methods: &["GET", "PUT"],
        about: "The settings; PUT changes those in the body.",
    },
];

/// Status and body of a successful response.
type ControlResponse = (StatusCode, Option<Value>);

/// Handles a request to the control API.
pub(super) fn respond(backend: &mut impl ControlBackend, request: &Request<Bytes>, now: Moment) -> Response<Bytes> {
    let mut response = match handle(backend, request, now) {
        Ok((status, body)) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            if let Some(body) = body {
                *response.body_mut() = Bytes::from(body.to_string());
                let json = HeaderValue::from_static("application/json; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, json);
            }
            response
        }
        Err(error) => error.response(),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The error for `POST clock` of an emulator that uses the machine's clock.
pub(super) fn clock_is_real() -> ErrorResponse {
    ErrorResponse::new(
        StatusCode::FORBIDDEN,
        "ClockIsReal",
        "This emulator uses the machine's clock, which cannot be set forward. Only an emulator inside the process of a test \
         can set its clock; for others, set a short operationDelay in the settings.",
    )
}

fn handle(
    backend: &mut impl ControlBackend,
    request: &Request<Bytes>,
    now: Moment,
) -> Result<ControlResponse, ErrorResponse> {
    let path = request.uri().path();
    let Some(below) = path.strip_prefix(PREFIX) else {
        return Err(not_found(path));
    };
    let below = below.trim_end_matches('/');
    let body = || json_body(request.body());
    let ok = |value| Ok((StatusCode::OK, Some(value)));
    let done = (StatusCode::NO_CONTENT, None);
    match (request.method().as_str(), below) {
        ("GET", "") => ok(index()),
        ("GET", "/faults") => ok(backend.faults().list()),
        ("POST", "/faults") => {
            let id = backend.faults().add(body()?)?;
            Ok((StatusCode::CREATED, Some(json!({"id": id}))))
        }
        ("DELETE", "/faults") => {
            backend.faults().clear();
            Ok(done)
        }
        ("GET", "/journal") => ok(backend
            .journal()
            .page(&journal_query(request.uri().query().unwrap_or_default())?)),
        ("GET", "/state") => ok(backend.state(now)),
        ("GET", "/scheduled-events") => ok(backend.scheduled_events(now)),
        ("PUT", "/scheduled-events") => ok(backend.put_scheduled_events(body()?, now)?),
        ("POST", "/reset") => {
            backend.reset();
            Ok(done)
        }
        ("POST", "/clock") => {
            let advance = fields::read(body()?, "clock", |fields| {
                let advance = fields.duration("advance", Duration::ZERO..=MAX_ADVANCE);
                if advance.is_none() {
                    fields.missing("advance");
                }
                advance
            })?;
            backend.advance(advance)?;
            Ok(done)
        }
        ("GET", "/token") => ok(backend.token(now)),
        ("GET", "/settings") => ok(backend.settings()),
        ("PUT", "/settings") => ok(backend.put_settings(body()?, now)?),
        (method, below) => match below.strip_prefix("/faults/") {
            Some(id) if method == "DELETE" => {
                let removed = id.parse().is_ok_and(|id| backend.faults().remove(id));
                removed.then_some(done).ok_or_else(|| not_found(path))
            }
            _ => Err(unsupported(below, path)),
        },
    }
}

/// The error for a path or method that the control API does not have.
fn unsupported(below: &str, path: &str) -> ErrorResponse {
    let is_one_fault = below.strip_prefix("/faults/").is_some_and(|id| !id.contains('/'));
    let below = match below {
        "" => "/",
        _ if is_one_fault => "/faults/{id}",
        _ => below,
    };
    match ENDPOINTS.iter().find(|endpoint| endpoint.path == below) {
        Some(Endpoint { methods, .. }) => {
            let allow = methods.join(", ");
            let message = format!("{PREFIX}{below} supports {allow}.");
            let error = ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
            match HeaderValue::from_str(&allow) {
                Ok(allow) => error.header(ALLOW, allow),
                Err(_) => error,
            }
        }
        None => not_found(path),
    }
}

fn not_found(path: &str) -> ErrorResponse {
    let shown: String = path.chars().take(200).collect();
    ErrorResponse::new(
        StatusCode::NOT_FOUND,
        "NotFound",
        format!("The control API has no path {shown}; GET {PREFIX}/ lists its paths."),
    )
}

fn index() -> Value {
    let entry = |endpoint: &Endpoint| json!({"path": format!("{PREFIX}{}", endpoint.path), "methods": endpoint.methods, "about": endpoint.about});
    json!({"paths": ENDPOINTS.iter().map(entry).collect::<Value>()})
}

fn json_body(body: &[u8]) -> Result<Value, ErrorResponse> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("The request's body is not JSON: {error}.");
        ErrorResponse::new(StatusCode::BAD_REQUEST, "InvalidRequestContent", message)
    })
}

/// The parameters of `GET journal`, read as an object, so that mistakes are reported as for a body.
fn journal_query(query: &str) -> Result<JournalQuery, ErrorResponse> {
    let parameters = form_urlencoded::parse(query.as_bytes());
    let object = parameters.map(|(name, text)| {
        let number = (name == "after" || name == "limit")
            .then(|| text.parse::<u64>().ok())
            .flatten();
        let value = number.map_or_else(|| Value::from(text.as_ref()), Value::from);
        (name.into_owned(), value)
    });
    fields::read(Value::Object(object.collect()), "query", |fields| {
        let most = u64::try_from(MAX_LIMIT).unwrap_or(u64::MAX);
        let after = fields.number("after", 0..=u64::MAX).unwrap_or(0);
        let limit = fields.number("limit", 1..=most);
        Some(JournalQuery {
            after,
            limit: limit.and_then(|limit| limit.try_into().ok()).unwrap_or(DEFAULT_LIMIT),
            path: fields.text("path", pattern::unanchored),
            method: fields.text("method", pattern::anchored),
        })
    })
}

#[cfg(test)]
mod tests;
