//! Requests to the control API with a fake backend.

use jiff::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::faults::RequestSummary;

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
    fn put_scheduled_events(&mut self, document: Value, _: Moment) -> Result<Value, ErrorResponse> {
        Ok(document)
    }
    fn reset(&mut self) {
        self.resets += 1;
    }
    fn advance(&mut self, by: Duration) -> Result<(), ErrorResponse> {
        *self.advanced.as_mut().ok_or_else(clock_is_real)? += by;
        Ok(())
    }
    fn token(&mut self, now: Moment) -> Value {
        json!({"token": "t", "expiresOn": now.wall.as_second()})
    }
    fn settings(&self) -> Value {
        self.settings.clone()
    }
    fn put_settings(&mut self, settings: Value, _: Moment) -> Result<Value, ErrorResponse> {
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
