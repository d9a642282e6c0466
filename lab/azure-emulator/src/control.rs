//! The control API under `/emulator/v1`: faults, journal, settings, clock, reset.
//!
//! A function from a request to a response over the [`State`]; it never waits. Errors have ARM's shape: 404 for an
//! unknown path, 405 with `Allow` for an unsupported method, 400 for a request that cannot be parsed.

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Moment;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::ErrorResponse;
use super::journal::JournalQuery;
use super::settings::DurationText;
use super::state::State;

const PREFIX: &str = "/emulator/v1";

/// All paths, as `GET /` lists them: the path, its methods, and what it is.
const ENDPOINTS: [(&str, &[&str], &str); 10] = [
    ("/", &["GET"], "This index."),
    (
        "/faults",
        &["GET", "POST", "DELETE"],
        "The rules by which faults act on requests.",
    ),
    ("/faults/{id}", &["DELETE"], "Remove one rule."),
    (
        "/journal",
        &["GET"],
        "The journal, oldest entry first: ?after=SEQUENCE&limit=COUNT&path=REGEX&method=REGEX.",
    ),
    ("/state", &["GET"], "The whole state."),
    (
        "/scheduled-events",
        &["GET", "PUT"],
        "The document of Scheduled Events, as IMDS shows it.",
    ),
    ("/reset", &["POST"], "Return to the seed."),
    (
        "/clock",
        &["POST"],
        "Set the clock forward, only inside a test: {\"advance\": \"5s\"}.",
    ),
    ("/token", &["GET"], "A bearer token for ARM."),
    (
        "/settings",
        &["GET", "PUT"],
        "The settings; PUT changes those in the body.",
    ),
];

/// Status and body of a successful response.
type ControlResponse = (StatusCode, Option<Value>);

/// Handles a request to the control API.
pub(super) fn respond(state: &mut State, request: &Request<Bytes>, now: Moment) -> Response<Bytes> {
    let mut response = match handle(state, request, now) {
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

fn handle(state: &mut State, request: &Request<Bytes>, now: Moment) -> Result<ControlResponse, ErrorResponse> {
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
        ("GET", "/faults") => ok(state.faults().list()),
        ("POST", "/faults") => {
            let id = state.faults().add(body()?)?;
            Ok((StatusCode::CREATED, Some(json!({"id": id}))))
        }
        ("DELETE", "/faults") => {
            state.faults().clear();
            Ok(done)
        }
        ("GET", "/journal") => {
            let query = journal_query(request.uri().query().unwrap_or_default())?;
            ok(state.journal().page(&query))
        }
        ("GET", "/state") => ok(state.shown(now)),
        ("GET", "/scheduled-events") => ok(state.scheduled_events()),
        ("PUT", "/scheduled-events") => ok(state.put_scheduled_events(body()?, now)?),
        ("POST", "/reset") => {
            state.reset();
            Ok(done)
        }
        ("POST", "/clock") => {
            let Advance { advance } = read(body()?, "clock")?;
            state.advance(advance.0)?;
            Ok(done)
        }
        ("GET", "/token") => ok(state.token(now)),
        ("GET", "/settings") => ok(state.settings()),
        ("PUT", "/settings") => ok(state.put_settings(&body()?)?),
        (method, below) => match below.strip_prefix("/faults/") {
            Some(id) if method == "DELETE" => {
                let removed = id.parse().is_ok_and(|id| state.faults().remove(id));
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
    match ENDPOINTS.iter().find(|(path, ..)| *path == below) {
        Some((_, methods, _)) => {
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
    let entry = |(path, methods, about)| json!({"path": format!("{PREFIX}{path}"), "methods": methods, "about": about});
    json!({"paths": ENDPOINTS.into_iter().map(entry).collect::<Value>()})
}

fn json_body(body: &[u8]) -> Result<Value, ErrorResponse> {
    serde_json::from_slice(body)
        .map_err(|error| ErrorResponse::invalid_content(format!("The request's body is not JSON: {error}.")))
}

/// Reads what a client sent; `what` names it in the error.
pub(super) fn read<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, ErrorResponse> {
    serde_json::from_value(value)
        .map_err(|error| ErrorResponse::invalid_content(format!("The {what} is not accepted: {error}.")))
}

/// The body of `POST clock`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    advance: DurationText,
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
    read(Value::Object(object.collect()), "query")
}

#[cfg(test)]
mod tests;
