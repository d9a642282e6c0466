//! The control API under `/emulator/v1`: faults, journal, settings, clock, reset.
//!
//! A function from a request to a response over [`ControlBackend`]; it never waits. Errors have ARM's shape: 404 for an
//! unknown path, 405 with `Allow` for an unsupported method, 400 for a request that cannot be parsed.

use std::time::Duration;

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_clock::Moment;
use serde_json::{Value, json};

use super::error::ArmError;
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
    fn put_scheduled_events(&mut self, document: Value, now: Moment) -> Result<Value, ArmError>;
    /// Returns to the seed.
    fn reset(&mut self);
    /// Sets the clock forward; fails with [`clock_is_real`] where it is the machine's clock.
    fn advance(&mut self, by: Duration) -> Result<(), ArmError>;
    /// A bearer token for ARM: `{"token": …, "expiresOn": …}`.
    fn token(&mut self, now: Moment) -> Value;
    fn settings(&self) -> Value;
    /// Changes the settings in the request, all or none, and returns all settings.
    fn put_settings(&mut self, settings: Value, now: Moment) -> Result<Value, ArmError>;
}

/// Paths, their methods, and what each is for.
const INDEX: [(&str, &[&str], &str); 10] = [
    ("/", &["GET"], "This index."),
    (
        "/faults",
        &["GET", "POST", "DELETE"],
        "Rules by which requests meet faults.",
    ),
    ("/faults/{id}", &["DELETE"], "Remove one rule."),
    (
        "/journal",
        &["GET"],
        "What happened, oldest first: ?after=SEQUENCE&limit=COUNT&path=REGEX&method=REGEX.",
    ),
    ("/state", &["GET"], "Everything there is."),
    ("/scheduled-events", &["GET", "PUT"], "As IMDS has them."),
    ("/reset", &["POST"], "Back to the seed."),
    (
        "/clock",
        &["POST"],
        "Set the clock forward, only below a test: {\"advance\": \"5s\"}.",
    ),
    ("/token", &["GET"], "A bearer token for ARM."),
    ("/settings", &["GET", "PUT"], "PUT changes what is given."),
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
pub(super) fn clock_is_real() -> ArmError {
    ArmError::new(
        StatusCode::FORBIDDEN,
        "ClockIsReal",
        "This emulator runs by the machine's clock, which it cannot set forward. Only one that a test runs below its own \
         process can; elsewhere set a short operationDelay in the settings instead.",
    )
}

fn handle(
    backend: &mut impl ControlBackend,
    request: &Request<Bytes>,
    now: Moment,
) -> Result<ControlResponse, ArmError> {
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
fn unsupported(below: &str, path: &str) -> ArmError {
    let is_one_fault = below.strip_prefix("/faults/").is_some_and(|id| !id.contains('/'));
    let below = match below {
        "" => "/",
        _ if is_one_fault => "/faults/{id}",
        _ => below,
    };
    match INDEX.iter().find(|(known, ..)| *known == below) {
        Some((_, methods, _)) => {
            let allow = methods.join(", ");
            let message = format!("{PREFIX}{below} has {allow}.");
            let error = ArmError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
            match HeaderValue::from_str(&allow) {
                Ok(allow) => error.header(ALLOW, allow),
                Err(_) => error,
            }
        }
        None => not_found(path),
    }
}

fn not_found(path: &str) -> ArmError {
    let shown: String = path.chars().take(200).collect();
    ArmError::new(
        StatusCode::NOT_FOUND,
        "NotFound",
        format!("There is no {shown} here; GET {PREFIX}/ says what there is."),
    )
}

fn index() -> Value {
    let line = |(path, methods, about): &(&str, &[&str], &str)| json!({"path": format!("{PREFIX}{path}"), "methods": methods, "about": about});
    json!({"paths": INDEX.iter().map(line).collect::<Value>()})
}

fn json_body(body: &[u8]) -> Result<Value, ArmError> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("The request's body is not JSON: {error}.");
        ArmError::new(StatusCode::BAD_REQUEST, "InvalidRequestContent", message)
    })
}

/// The parameters of `GET journal`, read as an object, so that mistakes are reported as for a body.
fn journal_query(query: &str) -> Result<JournalQuery, ArmError> {
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
mod tests {
    use jiff::Timestamp;
    use tokio::time::Instant;

    use super::super::faults::RequestSummary;
    use super::*;

    /// A backend without resources.
    #[derive(Default)]
    struct FakeBackend {
        faults: FaultRules,
        journal: Journal,
        settings: Value,
        /// None: the machine's clock.
        advanced: Option<Duration>,
        resets: u32,
    }

    impl ControlBackend for FakeBackend {
        fn faults(&mut self) -> &mut FaultRules {
            &mut self.faults
        }
        fn journal(&self) -> &Journal {
            &self.journal
        }
        fn state(&mut self, now: Moment) -> Value {
            json!({"now": now.wall.to_string(), "faults": self.faults.list()["faults"]})
        }
        fn scheduled_events(&mut self, _: Moment) -> Value {
            json!({"Events": []})
        }
        fn put_scheduled_events(&mut self, document: Value, _: Moment) -> Result<Value, ArmError> {
            Ok(document)
        }
        fn reset(&mut self) {
            self.resets += 1;
        }
        fn advance(&mut self, by: Duration) -> Result<(), ArmError> {
            *self.advanced.as_mut().ok_or_else(clock_is_real)? += by;
            Ok(())
        }
        fn token(&mut self, now: Moment) -> Value {
            json!({"token": "t", "expiresOn": now.wall.as_second()})
        }
        fn settings(&self) -> Value {
            self.settings.clone()
        }
        fn put_settings(&mut self, settings: Value, _: Moment) -> Result<Value, ArmError> {
            self.settings = settings;
            Ok(self.settings.clone())
        }
    }

    fn send(backend: &mut FakeBackend, request: &str) -> (u16, Value, Option<String>) {
        let mut words = request.splitn(3, ' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let body = Bytes::from(words.next().unwrap_or_default().to_owned());
        let uri = path
            .strip_prefix("!")
            .map_or_else(|| format!("{PREFIX}{path}"), str::to_owned);
        let request = Request::builder().method(method).uri(uri).body(body).unwrap();
        let now = Moment {
            wall: Timestamp::UNIX_EPOCH,
            mono: Instant::now(),
        };
        let response = respond(backend, &request, now);
        let body = match response.body() {
            body if body.is_empty() => Value::Null,
            body => serde_json::from_slice(body).unwrap(),
        };
        let allow = response
            .headers()
            .get(ALLOW)
            .map(|allow| allow.to_str().unwrap().to_owned());
        (response.status().as_u16(), body, allow)
    }

    #[test]
    fn requests_reach_the_backend() {
        let mut backend = FakeBackend {
            advanced: Some(Duration::ZERO),
            ..FakeBackend::default()
        };
        for (request, status, want) in [
            ("GET /faults", 200, json!({"faults": []})),
            (r#"POST /faults {"action": {"cut": "after"}}"#, 201, json!({"id": 1})),
            (
                r#"POST /faults {"times": 1, "action": {"stall": "1s"}}"#,
                201,
                json!({"id": 2}),
            ),
            ("DELETE /faults/1", 204, Value::Null),
            (
                "GET /state",
                200,
                json!({"now": "1970-01-01T00:00:00Z", "faults": [
                    {"id": 2, "times": 1, "action": {"stall": "1s"}, "passed": 0, "hits": 0, "left": 1},
                ]}),
            ),
            ("DELETE /faults/", 204, Value::Null),
            ("GET /faults/", 200, json!({"faults": []})),
            (
                "GET /journal?after=3&limit=5&path=%2Fa&method=PUT",
                200,
                json!({"entries": [], "next": 3, "dropped": 0}),
            ),
            ("GET /scheduled-events", 200, json!({"Events": []})),
            (r#"PUT /scheduled-events {"Events": [1]}"#, 200, json!({"Events": [1]})),
            (r#"POST /clock {"advance": "90s"}"#, 204, Value::Null),
            ("POST /reset", 204, Value::Null),
            ("GET /token", 200, json!({"token": "t", "expiresOn": 0})),
            (
                r#"PUT /settings {"operationDelay": "2s"}"#,
                200,
                json!({"operationDelay": "2s"}),
            ),
            ("GET /settings", 200, json!({"operationDelay": "2s"})),
        ] {
            assert_eq!(send(&mut backend, request), (status, want, None), "{request}");
        }
        assert_eq!((backend.resets, backend.advanced), (1, Some(Duration::from_secs(90))));
        assert!(backend.faults.next(&RequestSummary::default()).is_none());
    }

    #[test]
    fn invalid_requests_are_refused() {
        for (request, status, code, allow) in [
            ("GET /nothing", 404, "NotFound", None),
            ("GET !/other", 404, "NotFound", None),
            ("GET x", 404, "NotFound", None),
            ("DELETE /faults/7", 404, "NotFound", None),
            ("DELETE /faults/x", 404, "NotFound", None),
            ("GET /faults/1/2", 404, "NotFound", None),
            ("POST ", 405, "MethodNotAllowed", Some("GET")),
            ("PUT /faults", 405, "MethodNotAllowed", Some("GET, POST, DELETE")),
            ("GET /faults/1", 405, "MethodNotAllowed", Some("DELETE")),
            ("GET /reset", 405, "MethodNotAllowed", Some("POST")),
            ("POST /settings", 405, "MethodNotAllowed", Some("GET, PUT")),
            ("POST /faults", 400, "InvalidRequestContent", None),
            ("POST /faults {", 400, "InvalidRequestContent", None),
            ("POST /faults {}", 400, "InvalidRequestContent", None),
            ("PUT /settings x", 400, "InvalidRequestContent", None),
            ("GET /journal?after=-1", 400, "InvalidRequestContent", None),
            ("GET /journal?limit=0", 400, "InvalidRequestContent", None),
            ("GET /journal?path=(", 400, "InvalidRequestContent", None),
            ("GET /journal?since=1", 400, "InvalidRequestContent", None),
            ("POST /clock {}", 400, "InvalidRequestContent", None),
            (r#"POST /clock {"advance": "5s"}"#, 403, "ClockIsReal", None),
        ] {
            let (sent, body, allowed) = send(&mut FakeBackend::default(), request);
            assert_eq!((sent, allowed.as_deref()), (status, allow), "{request}");
            assert_eq!(body["error"]["code"], code, "{request}");
        }
    }

    #[test]
    fn the_index_lists_every_path_and_method() {
        let (status, index, _) = send(&mut FakeBackend::default(), "GET /");
        assert_eq!(status, 200);
        for line in index["paths"].as_array().unwrap() {
            let path = line["path"].as_str().unwrap().strip_prefix(PREFIX).unwrap();
            for method in line["methods"].as_array().unwrap() {
                let request = format!("{} {}", method.as_str().unwrap(), path.replace("{id}", "1"));
                let (status, body, _) = send(&mut FakeBackend::default(), &request);
                let known = status < 400 || body["error"]["message"].as_str().unwrap().contains("body is not JSON");
                assert!(known || path == "/faults/{id}", "{request}: {status} {body}");
            }
        }
    }
}
