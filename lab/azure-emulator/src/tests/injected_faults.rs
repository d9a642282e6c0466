//! Faults, the journal, and the control API.

use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{BASE, Client, DELAY, admin_states, lb1, lb1_pool, load_balancer, pool_document};

fn client() -> Client {
    Client::new(&[load_balancer("lb1", &[("a", &["n1", "n2"]), ("b", &[])])])
}

fn add_fault(client: &Client, rule: &Value) {
    let added = client.control("POST", "faults", rule);
    assert_eq!(added.status, 201, "{}", added.body);
}

/// A fault of the next request of a method.
fn add_fault_of_next(client: &Client, method: &str, action: &Value) {
    add_fault(
        client,
        &json!({"match": {"method": method}, "times": 1, "action": action}),
    );
}

#[tokio::test(start_paused = true)]
async fn an_injected_answer_has_no_effect() {
    let client = client();
    let before = client.read(&lb1()).await;
    let answer = json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 7}});
    let rule = json!({"match": {"method": "PUT", "path": "/a$"}, "skip": 1, "times": 2, "action": answer});
    add_fault(&client, &rule);
    let body = pool_document("a", &["n1", "n2"]);
    let first = client.put(&lb1_pool("a"), &body).await;
    assert_eq!(first.status, 200, "let through, and it changes nothing");
    let changed = pool_document("a", &["n1"]);
    for _ in 0..2 {
        let refused = client.put(&lb1_pool("A"), &changed).await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    }
    assert_eq!(client.read(&lb1()).await, before);
    let last = client.put(&lb1_pool("a"), &changed).await;
    assert_eq!(last.status, 200, "only two are refused");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_cut_before_or_after_the_effect() {
    for (side, left) in [("before", 2), ("after", 1)] {
        let client = client();
        add_fault_of_next(&client, "PUT", &json!({"cut": side}));
        let request = Request::put(format!("{}?api-version=2025-05-01", lb1_pool("a")))
            .header("Authorization", format!("Bearer {}", client.token()))
            .body(Bytes::from(pool_document("a", &["n1"]).to_string()));
        assert!(client.emulator.call(request.unwrap(), BASE).await.is_err());
        assert_eq!(members(&client, "a").await, left, "{side}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_delays_the_answer() {
    let client = client();
    add_fault_of_next(&client, "GET", &json!({"stall": "90s"}));
    let start = Instant::now();
    client.get(&lb1()).await;
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn an_operation_fails_is_canceled_or_succeeds_without_effect() {
    let error = json!({"code": "InternalServerError", "message": "An error occurred.", "details": []});
    for (action, status, left) in [
        (json!({"operation": "fail", "error": error}), "Failed", 1),
        (
            json!({"operation": "fail", "error": error, "effect": "lost"}),
            "Failed",
            2,
        ),
        (json!({"operation": "cancel"}), "Canceled", 1),
        (json!({"operation": "succeed", "effect": "lost"}), "Succeeded", 2),
        (json!({"operation": "succeed", "effect": "emptied"}), "Succeeded", 0),
    ] {
        let client = client();
        add_fault_of_next(&client, "PUT", &action);
        let written = client.put(&lb1_pool("a"), &pool_document("a", &["n1"])).await;
        let accepted = (written.status, admin_states(&written.body).len());
        assert_eq!(accepted, (200, 1), "accepted: {action}");
        let ended = client.wait_for_operation(&written).await;
        assert_eq!(ended["status"], status, "{action}");
        assert_eq!(ended.get("error").is_some(), status != "Succeeded");
        let found = (client.state(&lb1_pool("a")).await, members(&client, "a").await);
        assert_eq!(found, (json!(status), left), "{action}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_or_is_lost_deletes_nothing() {
    for (action, state) in [
        (json!({"operation": "fail"}), "Failed"),
        (json!({"operation": "succeed", "effect": "lost"}), "Succeeded"),
    ] {
        for path in [lb1(), lb1_pool("b")] {
            let client = client();
            add_fault_of_next(&client, "DELETE", &action);
            client.delete_to_end(&path).await;
            assert_eq!(client.state(&path).await, state, "{path}: {action}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_write_comes_first() {
    let client = client();
    let read = client.get(&lb1_pool("a")).await;
    let etag = read.header("etag").unwrap();
    let rule = json!({"match": {"method": "PUT", "path": "/a$"}, "times": 1,
        "action": {"write": {"merge": {"properties": {"drainPeriodInSeconds": 30}}}}});
    add_fault(&client, &rule);
    assert_eq!(client.put_if_match(&lb1_pool("a"), etag, &read.body).await.status, 412);
    let after = client.read(&lb1_pool("a")).await;
    assert_eq!(after["properties"]["drainPeriodInSeconds"], 30);
    assert_eq!(admin_states(&after).len(), 2);
    // Without a precondition, the request overwrites it.
    tokio::time::sleep(DELAY).await;
    add_fault(&client, &rule);
    assert_eq!(client.put(&lb1_pool("a"), &read.body).await.status, 200);
    let after = client.read(&lb1_pool("a")).await;
    assert_eq!(after["properties"].get("drainPeriodInSeconds"), None);
}

#[tokio::test(start_paused = true)]
async fn the_journal_shows_requests_and_answers() {
    let client = client();
    let headers = [
        ("If-Match", "*"),
        ("User-Agent", "test/1"),
        ("x-ms-client-request-id", "c1"),
    ];
    let body = b"{\"properties\":{\"drainPeriodInSeconds\":5}}";
    let written = client.send("PUT", &lb1_pool("b"), &headers, body).await;
    client.wait_for_operation(&written).await;
    let journal = client.control("GET", "journal?after=0", &Value::Null).body;
    let entries = journal["entries"].as_array().unwrap();
    let put = &entries[0];
    for (field, expected) in [
        ("method", json!("PUT")),
        ("path", json!(lb1_pool("b"))),
        ("apiVersion", json!("2025-05-01")),
        ("ifMatch", json!("*")),
        ("userAgent", json!("test/1")),
        ("clientRequestId", json!("c1")),
        ("body", json!({"properties": {"drainPeriodInSeconds": 5}})),
        ("status", json!(200)),
    ] {
        assert_eq!(put[field], expected, "{field}");
    }
    assert_eq!(put["answer"]["name"], "b");
    assert_eq!(put["changes"][0]["etagAfter"], written.body["etag"]);
    let ended = entries.iter().find(|entry| entry["kind"] == "operation").unwrap();
    assert_eq!(ended["status"], "Succeeded");
    assert_eq!(ended["name"], "PutLoadBalancerBackendAddressPoolOperation");
    assert_eq!(ended["changes"][0]["etagBefore"], written.body["etag"]);
    let text = journal.to_string();
    let has_token = text.contains(&client.token()) || text.contains("Bearer");
    assert!(!has_token, "no token is kept");
    let next = journal["next"].as_u64().unwrap();
    let rest = client.control("GET", &format!("journal?after={next}"), &Value::Null);
    assert_eq!(rest.body["entries"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn invalid_settings_are_refused_as_a_whole() {
    let client = client();
    let before = client.control("GET", "settings", &Value::Null).body;
    for given in [
        json!({"pageSize": 0}),
        json!({"pageSize": 65_536}),
        json!({"pollRetryAfter": 601}),
        json!({"operationDelay": "25h"}),
        json!({"operationDelay": "0s", "unknown": 1}),
        json!({"adminStateNone": "hidden"}),
        json!([]),
    ] {
        let refused = client.control("PUT", "settings", &given);
        assert_eq!((refused.status, refused.code()), (400, "InvalidSettings"), "{given}");
    }
    assert_eq!(client.control("GET", "settings", &Value::Null).body, before);
}

#[tokio::test(start_paused = true)]
async fn the_control_api_shows_and_resets_the_state() {
    let client = client();
    let before = client.read(&lb1()).await;
    client.put(&lb1_pool("a"), &json!({})).await;
    let state = client.control("GET", "state", &Value::Null).body;
    assert_eq!(state["operations"][0]["status"], "InProgress");
    assert_eq!(state["resources"][0]["properties"]["provisioningState"], "Updating");
    assert_eq!(client.control("POST", "clock", &json!({"advance": "1h"})).status, 204);
    let state = client.control("GET", "state", &Value::Null).body;
    assert_eq!(state["operations"][0]["status"], "Succeeded");
    assert_eq!(client.control("POST", "reset", &Value::Null).status, 204);
    let after = client.read(&lb1()).await;
    assert_ne!(after["etag"], before["etag"]);
    assert_eq!(admin_states(&after["properties"]["backendAddressPools"][0]).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn members_of_a_superseded_write_are_lost_silently_on_demand() {
    for (other, left) in [("b", 2), ("a", 0)] {
        let client = client();
        let action = json!({"operation": "succeed", "effect": "lostWhenSuperseded"});
        add_fault_of_next(&client, "PUT", &action);
        client.put(&lb1_pool("a"), &pool_document("a", &["n1"])).await;
        assert_eq!(members(&client, "a").await, 1, "as accepted");
        // A newer write of another pool, or of the same one.
        client.put_to_end(&lb1_pool(other), &pool_document(other, &[])).await;
        assert_eq!(members(&client, "a").await, left, "{other}");
    }
}

/// The number of members of a pool.
async fn members(client: &Client, pool: &str) -> usize {
    admin_states(&client.read(&lb1_pool(pool)).await).len()
}
