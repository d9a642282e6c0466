//! Requests to the control API of an emulator without resources.

use headgate_core::clock::Clock;

use super::*;
use crate::{Emulator, Seed, Settings};

/// An emulator with the machine's clock.
fn emulator() -> Emulator {
    Emulator::new(Settings::default(), Seed::default(), Clock::System, 1).unwrap()
}

fn send(emulator: &Emulator, request: &str) -> (u16, Value, Option<String>) {
    let mut words = request.splitn(3, ' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let body = Bytes::from(words.next().unwrap_or_default().to_owned());
    let uri = path
        .strip_prefix("!")
        .map_or_else(|| format!("{PREFIX}{path}"), str::to_owned);
    let request = Request::builder().method(method).uri(uri).body(body).unwrap();
    let response = emulator.control(&request);
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
fn faults_are_added_listed_and_removed() {
    let emulator = emulator();
    let second = json!({"id": 2, "times": 1, "action": {"stall": "1s"}, "passed": 0, "hits": 0, "left": 1});
    for (request, status, want) in [
        ("GET /faults", 200, json!({"faults": []})),
        (r#"POST /faults {"action": {"cut": "after"}}"#, 201, json!({"id": 1})),
        (
            r#"POST /faults {"times": 1, "action": {"stall": "1s"}}"#,
            201,
            json!({"id": 2}),
        ),
        ("DELETE /faults/1", 204, Value::Null),
        ("GET /faults", 200, json!({"faults": [second]})),
        ("DELETE /faults/", 204, Value::Null),
        ("GET /faults/", 200, json!({"faults": []})),
    ] {
        assert_eq!(send(&emulator, request), (status, want, None), "{request}");
    }
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
        ("GET /journal?path=(", 400, "InvalidRequestContent", None),
        ("GET /journal?since=1", 400, "InvalidRequestContent", None),
        ("POST /clock {}", 400, "InvalidRequestContent", None),
        (r#"POST /clock {"advance": "5s"}"#, 403, "ClockIsReal", None),
    ] {
        let (sent, body, allowed) = send(&emulator(), request);
        assert_eq!((sent, allowed.as_deref()), (status, allow), "{request}");
        assert_eq!(body["error"]["code"], code, "{request}");
    }
}

#[test]
fn the_index_lists_every_path_and_method() {
    let (status, index, _) = send(&emulator(), "GET /");
    assert_eq!(status, 200);
    let paths = index["paths"].as_array().unwrap();
    assert!(paths.len() > 5, "{index}");
    for line in paths {
        assert_ne!(line["methods"], json!([]), "{line}");
        let path = line["path"].as_str().unwrap().strip_prefix(PREFIX).unwrap();
        for method in line["methods"].as_array().unwrap() {
            let request = format!("{} {}", method.as_str().unwrap(), path.replace("{id}", "1"));
            let (status, body, _) = send(&emulator(), &request);
            let known = status < 400 || body["error"]["message"].as_str().unwrap().contains("body is not JSON");
            assert!(known || path == "/faults/{id}", "{request}: {status} {body}");
        }
    }
}
