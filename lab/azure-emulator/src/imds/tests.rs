//! Requests to IMDS as its clients send them.

use std::time::{Duration, Instant};

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

fn get(imds: &Imds) -> (u16, String, Value) {
    let request = Request::get(EVENTS)
        .header("Metadata", "true")
        .body(Bytes::new())
        .unwrap();
    let answer = imds.answer(&request).unwrap();
    let tag = answer.headers()[ETAG].to_str().unwrap().to_owned();
    let value = serde_json::from_slice(answer.body()).unwrap();
    (answer.status().as_u16(), tag, value)
}

fn preempt() -> Value {
    json!({"Events": [{"EventType": "Preempt", "Resources": ["pool_0", "pool_3"]}]})
}

#[test]
fn the_incarnation_changes_only_with_the_events() {
    let mut imds = Imds::default();
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
        assert_eq!(get(&imds), (200, "\"2\"".to_owned(), first.clone()));
    }
    let second = imds.put(json!({"Events": []}), moment(10)).unwrap();
    assert_eq!(second, json!({"DocumentIncarnation": 3, "Events": []}));
    let again = imds.put(preempt(), moment(11)).unwrap();
    assert_ne!(again["Events"][0]["EventId"], id);
    imds.reset();
    assert_eq!(imds.document(), json!({"DocumentIncarnation": 5, "Events": []}));
}

#[test]
fn an_invalid_document_changes_nothing() {
    let mut imds = Imds::default();
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
fn requests_without_header_version_or_method_are_refused() {
    let imds = Imds::default();
    let versions = |query: &str, header: Option<&str>, method: Method| {
        let uri = format!("/metadata/scheduledevents{query}");
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(header) = header {
            request = request.header("Metadata", header);
        }
        let answer = imds.answer(&request.body(Bytes::new()).unwrap()).unwrap();
        (
            answer.status().as_u16(),
            String::from_utf8_lossy(answer.body()).into_owned(),
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
    for method in [Method::POST, Method::DELETE] {
        assert_eq!(versions(good, Some("true"), method).0, 405);
    }
    let other = Request::get("/metadata/identity").body(Bytes::new()).unwrap();
    assert!(imds.answer(&other).is_none());
}
