use axum::http::Request;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn request(method: &str, uri: &str) -> Parts {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("Authorization", "Bearer secret-token")
        .header("If-Match", "W/\"1\"")
        .header("x-ms-client-request-id", "guid")
        .header("User-Agent", "azsdk-go")
        .body(());
    request.unwrap().into_parts().0
}

fn change(before: &str, after: &str) -> EtagChange {
    EtagChange {
        resource: "/lb".to_owned(),
        before: Some(before.to_owned()),
        after: Some(after.to_owned()),
        why: None,
    }
}

fn all() -> JournalQuery {
    JournalQuery {
        limit: MAX_LIMIT,
        ..JournalQuery::default()
    }
}

fn sequences(page: &Value) -> Vec<u64> {
    let entries = page["entries"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| entry["sequence"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_request_has_an_entry_from_its_arrival_on() {
    let mut journal = Journal::default();
    let write = request("PUT", "/lb/pool?api-version=2025-05-01&t=1&s=signature");
    let sequence = journal.begin(at(0), &write, br#"{"a": {"b": 1}}"#, Some("actor"));
    let mut want = json!({
        "kind": "request",
        "sequence": 1,
        "arrived": "2023-11-14T22:13:20Z",
        "completed": null,
        "method": "PUT",
        "path": "/lb/pool",
        "query": "api-version=2025-05-01&t=…&s=…",
        "apiVersion": "2025-05-01",
        "ifMatch": "W/\"1\"",
        "clientRequestId": "guid",
        "userAgent": "azsdk-go",
        "principal": "actor",
        "body": {"a": {"b": 1}},
    });
    assert_eq!(
        journal.page(&all()),
        json!({"entries": [want], "next": 1, "dropped": 0})
    );

    let response = Response::builder()
        .status(201)
        .header(
            "Azure-AsyncOperation",
            "https://arm/operations/1?api-version=2025-05-01&t=1&s=signature",
        )
        .header("Retry-After", "1")
        .header("x-ms-request-id", "left out")
        .body(Bytes::from_static(br#"{"etag": "2"}"#));
    let outcome = Outcome {
        fault: Some(7),
        changes: vec![change("1", "2")],
    };
    journal.finish(sequence, at(1), Some(&response.unwrap()), outcome);
    for (key, value) in [
        ("completed", json!("2023-11-14T22:13:21Z")),
        ("status", json!(201)),
        ("answer", json!({"etag": "2"})),
        (
            "headers",
            json!({"azure-asyncoperation": "https://arm/operations/1?api-version=2025-05-01&t=…&s=…", "retry-after": "1"}),
        ),
        ("fault", json!(7)),
        (
            "changes",
            json!([{"resource": "/lb", "etagBefore": "1", "etagAfter": "2"}]),
        ),
    ] {
        want[key] = value;
    }
    let page = journal.page(&all());
    assert_eq!(page, json!({"entries": [want], "next": 1, "dropped": 0}));
    assert!(!page.to_string().contains("secret-"), "{page}");
    let lengths: usize = journal.entries.iter().map(|entry| entry.bytes).sum();
    assert_eq!(journal.bytes, lengths);
}

#[test]
fn events_between_requests_have_entries() {
    let mut journal = Journal::default();
    let ended = Event::Operation {
        id: "1".to_owned(),
        name: "PutLoadBalancerOperation",
        resource: "/lb".to_owned(),
        status: "Canceled",
        superseded_by: Some("2".to_owned()),
    };
    journal.add_event(
        at(2),
        ended,
        vec![EtagChange {
            why: Some("it ended".to_owned()),
            ..change("2", "3")
        }],
    );
    let body = json!({"b": 1});
    let written = Event::Write {
        method: "PUT",
        path: "/lb",
        body: Some(&body),
        fault: 7,
        status: 200,
    };
    journal.add_event(at(3), written, Vec::new());
    let ended = json!({
        "kind": "operation",
        "sequence": 1,
        "arrived": "2023-11-14T22:13:22Z",
        "completed": "2023-11-14T22:13:22Z",
        "operation": "1",
        "name": "PutLoadBalancerOperation",
        "resource": "/lb",
        "status": "Canceled",
        "supersededBy": "2",
        "changes": [{"resource": "/lb", "etagBefore": "2", "etagAfter": "3", "why": "it ended"}],
    });
    let written = json!({
        "kind": "write",
        "sequence": 2,
        "arrived": "2023-11-14T22:13:23Z",
        "completed": "2023-11-14T22:13:23Z",
        "method": "PUT",
        "path": "/lb",
        "body": {"b": 1},
        "fault": 7,
        "status": 200,
    });
    let page = journal.page(&all());
    assert_eq!(page, json!({"entries": [ended, written], "next": 2, "dropped": 0}));
}

#[test]
fn pages_filter_and_continue() {
    let mut journal = Journal::default();
    for (method, path) in [("GET", "/a"), ("PUT", "/a/b"), ("GET", "/c"), ("DELETE", "/a")] {
        journal.begin(at(0), &request(method, path), b"", None);
    }
    let operation = Event::Operation {
        id: String::new(),
        name: "",
        resource: "/A".to_owned(),
        status: "Succeeded",
        superseded_by: None,
    };
    journal.add_event(at(0), operation, Vec::new());
    for (after, limit, path, method, want, next) in [
        (0, 100, "", "", vec![1, 2, 3, 4, 5], 5),
        (0, 2, "", "", vec![1, 2], 2),
        (2, 2, "", "", vec![3, 4], 4),
        (0, 0, "", "", vec![1], 1),
        (5, 9, "", "", vec![], 5),
        (9, 9, "", "", vec![], 9),
        (0, 9, "^/a", "", vec![1, 2, 4, 5], 5),
        // `next` skips the entries that did not match.
        (0, 2, "^/a", "put|delete", vec![2, 4], 5),
        (0, 1, "^/a", "put|delete", vec![2], 3),
        (0, 9, "", "GE", vec![], 5),
    ] {
        let query = JournalQuery {
            after,
            limit,
            path: (!path.is_empty()).then(|| pattern::unanchored(path).unwrap()),
            method: (!method.is_empty()).then(|| pattern::anchored(method).unwrap()),
        };
        let page = journal.page(&query);
        assert_eq!(sequences(&page), want, "{query:?}");
        assert_eq!(page["next"], next, "{query:?}");
        assert_eq!(page["dropped"], 0);
    }
}

#[test]
fn the_oldest_entries_are_removed_and_counted() {
    let mut journal = Journal::default();
    let first = journal.begin(at(0), &request("GET", "/a"), b"", None);
    for _ in 0..MAX_ENTRIES + 9 {
        journal.begin(at(0), &request("GET", "/a"), b"", None);
    }
    journal.finish(first, at(1), None, Outcome::default());
    let page = journal.page(&JournalQuery { after: 4, ..all() });
    assert_eq!((page["dropped"].as_u64(), sequences(&page)[0]), (Some(6), 11));
    journal.clear();
    let page = journal.page(&JournalQuery { after: 10_009, ..all() });
    assert_eq!(page, json!({"entries": [], "next": 10_009, "dropped": 1}));
    assert_eq!(journal.begin(at(0), &request("GET", "/a"), b"", None), 10_011);
}

#[test]
fn memory_and_pages_are_bounded() {
    let mut journal = Journal::default();
    let body = json!({"x": "y".repeat(shorten::MAX_BODY_BYTES - 100)}).to_string();
    for _ in 0..1000 {
        let sequence = journal.begin(at(0), &request("PUT", "/a"), body.as_bytes(), None);
        let changes = vec![change("1", "2"); 1000];
        let response = Response::new(Bytes::from(body.clone()));
        journal.finish(
            sequence,
            at(0),
            Some(&response),
            Outcome {
                changes,
                ..Outcome::default()
            },
        );
    }
    let lengths: usize = journal.entries.iter().map(|entry| entry.bytes).sum();
    assert_eq!(journal.bytes, lengths);
    assert!(lengths <= MAX_BYTES && journal.entries.len() > 500, "{lengths}");
    let page = journal.page(&all());
    assert!(page.to_string().len() <= MAX_PAGE_BYTES);
    assert_eq!(page["entries"][0]["changes"].as_array().unwrap().len(), MAX_CHANGES);
    assert_eq!(page["entries"][0]["moreChanges"], 1000 - MAX_CHANGES);
}
