//! Requests to IMDS as its clients send them.

use std::time::Instant;

use super::*;

const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";

fn moment(seconds: u64) -> Moment {
    let wall = "2026-04-11T22:00:00Z".parse::<jiff::Timestamp>().unwrap();
    let mono = Instant::now().into();
    Moment {
        mono,
        wall: wall + Duration::from_secs(seconds),
    }
}

fn send(imds: &mut Imds, method: Method, uri: &str, body: &Value) -> (u16, String, Value) {
    let request = Request::builder().method(method).uri(uri).header("Metadata", "true");
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let outcome = imds
        .answer(&request.body(Bytes::from(body)).unwrap(), moment(0))
        .unwrap();
    let headers = outcome.response.headers();
    let tag = headers
        .get(ETAG)
        .map(|tag| tag.to_str().unwrap().to_owned())
        .unwrap_or_default();
    let body = outcome.response.body();
    let value = serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into());
    (outcome.response.status().as_u16(), tag, value)
}

fn imds() -> Imds {
    Imds::new(ImdsSettings::default())
}

fn preempt() -> Value {
    json!({"Events": [{"EventType": "Preempt", "Resources": ["pool_0", "pool_3"]}]})
}

#[test]
fn the_incarnation_changes_only_with_the_events() {
    let mut imds = imds();
    assert_eq!(imds.document(), json!({"DocumentIncarnation": 1, "Events": []}));
    let first = imds.put(preempt(), moment(0)).unwrap();
    let id = first["Events"][0]["EventId"].clone();
    assert_eq!(
        first,
        json!({"DocumentIncarnation": 2, "Events": [{
            "EventId": id, "EventStatus": "Scheduled", "EventType": "Preempt", "ResourceType": "VirtualMachine",
            "Resources": ["pool_0", "pool_3"], "NotBefore": "Sat, 11 Apr 2026 22:00:30 GMT", "Description": "",
            "EventSource": "Platform", "DurationInSeconds": -1,
        }]})
    );
    // The same events later, the document sent back, and GET, all show the same.
    assert_eq!(imds.put(preempt(), moment(9)).unwrap(), first);
    assert_eq!(imds.put(first.clone(), moment(9)).unwrap(), first);
    for _ in 0..2 {
        assert_eq!(
            send(&mut imds, Method::GET, EVENTS, &Value::Null),
            (200, "\"2\"".to_owned(), first.clone())
        );
    }
    let second = imds.put(json!({"Events": []}), moment(10)).unwrap();
    assert_eq!(second, json!({"DocumentIncarnation": 3, "Events": []}));
    let again = imds.put(preempt(), moment(11)).unwrap();
    assert_ne!(again["Events"][0]["EventId"], id);
    imds.reset();
    assert_eq!(imds.document(), json!({"DocumentIncarnation": 5, "Events": []}));
}

#[test]
fn approval_starts_an_event() {
    let mut imds = imds();
    let id = imds.put(preempt(), moment(0)).unwrap()["Events"][0]["EventId"].clone();
    let approve = |id: &Value| json!({"StartRequests": [{"EventId": id}]});
    for odd in [
        Value::Null,
        json!({}),
        json!({"StartRequests": []}),
        json!({"StartRequests": [{}]}),
        approve(&json!("no")),
    ] {
        assert_eq!(send(&mut imds, Method::POST, EVENTS, &odd).0, 400, "{odd}");
    }
    assert_eq!(imds.document()["DocumentIncarnation"], 2);
    for _ in 0..2 {
        assert_eq!(
            send(&mut imds, Method::POST, EVENTS, &approve(&id)),
            (200, String::new(), json!(""))
        );
        let (_, tag, body) = send(&mut imds, Method::GET, EVENTS, &Value::Null);
        let event = &body["Events"][0];
        assert_eq!(
            (&event["EventStatus"], &event["NotBefore"]),
            (&json!("Started"), &json!(""))
        );
        assert_eq!(tag, "\"3\"");
    }
}

#[test]
fn an_invalid_document_changes_nothing() {
    let mut imds = imds();
    let good = json!({"EventType": "Preempt", "Resources": ["a"]});
    let with = |key: &str, value: Value| {
        let mut event = good.clone();
        event[key] = value;
        json!({"Events": [event]})
    };
    let same = with("EventId", json!("x"))["Events"][0].clone();
    for odd in [
        Value::Null,
        json!([]),
        json!({}),
        json!({"Events": {}}),
        json!({"Events": [1]}),
        json!({"Events": [{}]}),
        json!({"Events": vec![good.clone(); 101]}),
        json!({"Events": [same, same]}),
        json!({"events": []}),
        with("EventType", json!("Explode")),
        with("EventStatus", json!("Completed")),
        with("Resources", json!([])),
        with("Resources", json!([""])),
        with("Resources", json!("a")),
        with("NotBefore", json!("soon")),
        with("DurationInSeconds", json!(-2)),
        with("EventSource", json!("Me")),
        with("Colour", json!("red")),
        with("EventId", json!("x".repeat(129))),
    ] {
        let error = imds.put(odd.clone(), moment(0)).unwrap_err();
        assert_eq!(error.status, 400, "{odd}");
        assert_eq!(imds.document()["DocumentIncarnation"], 1);
    }
    imds.put(with("NotBefore", json!("Sat, 11 Apr 2026 22:26:58 GMT")), moment(0))
        .unwrap();
    assert_eq!(
        imds.document()["Events"][0]["NotBefore"],
        "Sat, 11 Apr 2026 22:26:58 GMT"
    );
}

#[test]
fn the_first_imds_requests_are_delayed() {
    let delay = Duration::from_mins(2);
    let mut imds = Imds::new(ImdsSettings {
        first_call_delay: delay,
        ..ImdsSettings::default()
    });
    let start = moment(0);
    let mut wait = |seconds| {
        let request = Request::get(EVENTS)
            .header("Metadata", "true")
            .body(Bytes::new())
            .unwrap();
        let now = Moment {
            mono: start.mono + Duration::from_secs(seconds),
            ..start
        };
        imds.answer(&request, now).unwrap().delay.as_secs()
    };
    let day = 24 * 3600;
    for (at, seconds) in [
        (0, 120),
        (20, 100),
        (120, 0),
        (121, 0),
        (120 + day, 0),
        (120 + 2 * day, 120),
        (121 + 2 * day, 119),
    ] {
        assert_eq!(wait(at), seconds, "{at}");
    }
}

#[test]
fn requests_without_header_version_or_method_are_refused() {
    let mut imds = imds();
    let mut versions = |query: &str, header: Option<&str>, method: Method| {
        let uri = format!("/metadata/scheduledevents{query}");
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(header) = header {
            request = request.header("Metadata", header);
        }
        let outcome = imds.answer(&request.body(Bytes::new()).unwrap(), moment(0)).unwrap();
        (
            outcome.response.status().as_u16(),
            String::from_utf8_lossy(outcome.response.body()).into_owned(),
        )
    };
    let good = "?api-version=2020-07-01";
    let text = r#"{"error":"Bad request. Required metadata header not specified"}"#;
    for header in [None, Some("false"), Some("")] {
        assert_eq!(versions(good, header, Method::GET), (400, text.to_owned()));
    }
    for query in ["", "?api-version=", "?api-version=latest"] {
        let (status, body) = versions(query, Some("true"), Method::GET);
        assert!(status == 400 && body.contains("newest-versions"), "{body}");
    }
    assert_eq!(versions(good, Some("true"), Method::DELETE).0, 405);
    assert!(
        imds.answer(
            &Request::get("/metadata/identity").body(Bytes::new()).unwrap(),
            moment(0)
        )
        .is_none()
    );
}
