//! The control API under `/emulator/v1`: what people and tests do to the emulator, and what they see of it.
//!
//! A function from a request to an answer over [`Controlled`], which is whatever is controlled; it waits for
//! nothing. Mistakes are answered as ARM would: 404 for an unknown path, 405 with `Allow` for a method that a
//! path does not have, 400 for what cannot be read.

use std::time::Duration;

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use headgate_clock::Moment;
use serde_json::{Value, json};

use super::error::ArmError;
use super::faults::Faults;
use super::journal::{Journal, MAX_LIMIT, Wanted};
use super::{fields, pattern};

/// Where everything is.
const PREFIX: &str = "/emulator/v1";
/// Entries of the journal in a page that asks for no number.
const DEFAULT_LIMIT: usize = 100;
/// The clock is advanced by no more at once; tokens live an hour, operations a day.
const MAX_ADVANCE: Duration = Duration::from_hours(24 * 366);

/// What is controlled.
pub(super) trait Controlled {
    fn faults(&mut self) -> &mut Faults;
    fn journal(&self) -> &Journal;
    /// Everything there is, for people.
    fn state(&mut self, now: Moment) -> Value;
    fn scheduled_events(&mut self, now: Moment) -> Value;
    /// Replaces the document of Scheduled Events, and gives it as it is then.
    fn put_scheduled_events(&mut self, document: Value, now: Moment) -> Result<Value, ArmError>;
    /// Back to the seed.
    fn reset(&mut self);
    /// Sets the clock forward, or says why it may not: [`clock_is_real`].
    fn advance(&mut self, by: Duration) -> Result<(), ArmError>;
    /// A bearer token, `{"token": …, "expiresOn": …}`.
    fn token(&mut self, now: Moment) -> Value;
    fn settings(&self) -> Value;
    /// Changes the settings that are given, all or none, and gives all as they are then.
    fn put_settings(&mut self, settings: Value, now: Moment) -> Result<Value, ArmError>;
}

/// What each path is for: its methods, and a sentence.
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
        "Set the clock forward, only inside a test: {\"advance\": \"5s\"}.",
    ),
    ("/token", &["GET"], "A bearer token for ARM."),
    ("/settings", &["GET", "PUT"], "PUT changes what is given."),
];

/// An answer that is no error.
type Answer = (StatusCode, Option<Value>);

/// Answers.
pub(super) fn answer(world: &mut impl Controlled, request: &Request<Bytes>, now: Moment) -> Response<Bytes> {
    let mut response = match answered(world, request, now) {
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

/// The clock cannot be set.
pub(super) fn clock_is_real() -> ArmError {
    ArmError::new(
        StatusCode::FORBIDDEN,
        "ClockIsReal",
        "This emulator runs by the machine's clock, which it cannot set forward. Only one that a test runs inside its own \
         process can; elsewhere set a short operationDelay in the settings instead.",
    )
}

fn answered(world: &mut impl Controlled, request: &Request<Bytes>, now: Moment) -> Result<Answer, ArmError> {
    let path = request.uri().path();
    let Some(inside) = path.strip_prefix(PREFIX) else {
        return Err(unknown(path));
    };
    let inside = inside.trim_end_matches('/');
    let body = || json_body(request.body());
    let ok = |value| Ok((StatusCode::OK, Some(value)));
    let done = (StatusCode::NO_CONTENT, None);
    match (request.method().as_str(), inside) {
        ("GET", "") => ok(index()),
        ("GET", "/faults") => ok(world.faults().list()),
        ("POST", "/faults") => {
            let id = world.faults().add(body()?)?;
            Ok((StatusCode::CREATED, Some(json!({"id": id}))))
        }
        ("DELETE", "/faults") => {
            world.faults().clear();
            Ok(done)
        }
        ("GET", "/journal") => ok(world
            .journal()
            .page(&wanted(request.uri().query().unwrap_or_default())?)),
        ("GET", "/state") => ok(world.state(now)),
        ("GET", "/scheduled-events") => ok(world.scheduled_events(now)),
        ("PUT", "/scheduled-events") => ok(world.put_scheduled_events(body()?, now)?),
        ("POST", "/reset") => {
            world.reset();
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
            world.advance(advance)?;
            Ok(done)
        }
        ("GET", "/token") => ok(world.token(now)),
        ("GET", "/settings") => ok(world.settings()),
        ("PUT", "/settings") => ok(world.put_settings(body()?, now)?),
        (method, inside) => match inside.strip_prefix("/faults/") {
            Some(id) if method == "DELETE" => {
                let removed = id.parse().is_ok_and(|id| world.faults().remove(id));
                removed.then_some(done).ok_or_else(|| unknown(path))
            }
            _ => Err(refused(inside, path)),
        },
    }
}

/// Why a request that nothing answers is not.
fn refused(inside: &str, path: &str) -> ArmError {
    let is_one_fault = inside.strip_prefix("/faults/").is_some_and(|id| !id.contains('/'));
    let inside = match inside {
        "" => "/",
        _ if is_one_fault => "/faults/{id}",
        _ => inside,
    };
    match INDEX.iter().find(|(known, ..)| *known == inside) {
        Some((_, methods, _)) => {
            let allow = methods.join(", ");
            let message = format!("{PREFIX}{inside} has {allow}.");
            let error = ArmError::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
            match HeaderValue::from_str(&allow) {
                Ok(allow) => error.header(ALLOW, allow),
                Err(_) => error,
            }
        }
        None => unknown(path),
    }
}

fn unknown(path: &str) -> ArmError {
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

/// What a reader of the journal wants. Its parameters are read as the object they stand for, so that mistakes in them
/// are told the same way as elsewhere.
fn wanted(query: &str) -> Result<Wanted, ArmError> {
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
        Some(Wanted {
            after,
            limit: limit.and_then(|limit| limit.try_into().ok()).unwrap_or(DEFAULT_LIMIT),
            path: fields.text("path", pattern::anywhere),
            method: fields.text("method", pattern::whole),
        })
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tokio::time::Instant;

    use super::super::faults::Asked;
    use super::*;

    /// A world with nothing in it but what is controlled.
    #[derive(Default)]
    struct Small {
        faults: Faults,
        journal: Journal,
        settings: Value,
        /// None: the machine's clock.
        advanced: Option<Duration>,
        resets: u32,
    }

    impl Controlled for Small {
        fn faults(&mut self) -> &mut Faults {
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

    fn ask(world: &mut Small, request: &str) -> (u16, Value, Option<String>) {
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
        let response = answer(world, &request, now);
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
    fn a_session() {
        let mut world = Small {
            advanced: Some(Duration::ZERO),
            ..Small::default()
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
            assert_eq!(ask(&mut world, request), (status, want, None), "{request}");
        }
        assert_eq!((world.resets, world.advanced), (1, Some(Duration::from_secs(90))));
        assert!(world.faults.next(&Asked::default()).is_none());
    }

    #[test]
    fn refusals() {
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
            let (answered, body, allowed) = ask(&mut Small::default(), request);
            assert_eq!((answered, allowed.as_deref()), (status, allow), "{request}");
            assert_eq!(body["error"]["code"], code, "{request}");
        }
    }

    #[test]
    fn the_index_names_all_there_is() {
        let (status, index, _) = ask(&mut Small::default(), "GET /");
        assert_eq!(status, 200);
        for line in index["paths"].as_array().unwrap() {
            let path = line["path"].as_str().unwrap().strip_prefix(PREFIX).unwrap();
            for method in line["methods"].as_array().unwrap() {
                let request = format!("{} {}", method.as_str().unwrap(), path.replace("{id}", "1"));
                let (status, body, _) = ask(&mut Small::default(), &request);
                let known = status < 400 || body["error"]["message"].as_str().unwrap().contains("body is not JSON");
                assert!(known || path == "/faults/{id}", "{request}: {status} {body}");
            }
        }
    }
}
