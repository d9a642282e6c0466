//! Faults, the journal, and the control API.

use std::time::Duration;

use axum::http::Request;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{BASE, Client, DELAY, admin_states, lb_path, load_balancer, pool_document, pool_path};

fn client() -> Client {
    Client::new(&[load_balancer("lb1", &[("a", &["n1", "n2"]), ("b", &[])])])
}

fn add_fault(client: &Client, rule: &Value) {
    let added = client.control("POST", "faults", rule);
    assert_eq!(added.status, 201, "{}", added.body);
}

#[tokio::test(start_paused = true)]
async fn an_injected_answer_has_no_effect() {
    let client = client();
    let before = client.get(&lb_path("lb1")).await.body;
    add_fault(
        &client,
        &json!({"match": {"method": "PUT", "path": "/a$"}, "skip": 1, "times": 2,
        "action": {"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 7}}}),
    );
    let body = pool_document("a", &["n1", "n2"]);
    assert_eq!(
        client.put(&pool_path("lb1", "a"), &body).await.status,
        200,
        "let through, and it changes nothing"
    );
    let changed = pool_document("a", &["n1"]);
    for _ in 0..2 {
        let refused = client.put(&pool_path("lb1", "A"), &changed).await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    }
    assert_eq!(client.get(&lb_path("lb1")).await.body, before);
    assert_eq!(
        client.put(&pool_path("lb1", "a"), &changed).await.status,
        200,
        "only two are refused"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_cut_before_or_after_the_effect() {
    for (side, left) in [("before", 2), ("after", 1)] {
        let client = client();
        add_fault(
            &client,
            &json!({"match": {"method": "PUT"}, "times": 1, "action": {"cut": side}}),
        );
        let request = Request::put(format!("{}?api-version=2025-05-01", pool_path("lb1", "a")))
            .header("Authorization", format!("Bearer {}", client.token()))
            .body(Bytes::from(pool_document("a", &["n1"]).to_string()));
        assert!(client.emulator.call(request.unwrap(), BASE).await.is_err());
        assert_eq!(
            admin_states(&client.get(&pool_path("lb1", "a")).await.body).len(),
            left,
            "{side}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_delays_the_answer() {
    let client = client();
    add_fault(
        &client,
        &json!({"match": {"method": "GET"}, "times": 1, "action": {"stall": "90s"}}),
    );
    let start = Instant::now();
    client.get(&lb_path("lb1")).await;
    assert_eq!(start.elapsed(), Duration::from_secs(90));
}

#[tokio::test(start_paused = true)]
async fn an_operation_fails_is_canceled_or_succeeds_without_effect() {
    let error = json!({"code": "InternalServerError", "message": "An error occurred.", "details": []});
    for (action, status, state, left) in [
        (json!({"operation": "fail", "error": error}), "Failed", "Failed", 1),
        (
            json!({"operation": "fail", "error": error, "effect": "lost"}),
            "Failed",
            "Failed",
            2,
        ),
        (json!({"operation": "cancel"}), "Canceled", "Canceled", 1),
        (
            json!({"operation": "succeed", "effect": "lost"}),
            "Succeeded",
            "Succeeded",
            2,
        ),
        (
            json!({"operation": "succeed", "effect": "emptied"}),
            "Succeeded",
            "Succeeded",
            0,
        ),
    ] {
        let client = client();
        add_fault(
            &client,
            &json!({"match": {"method": "PUT"}, "times": 1, "action": action}),
        );
        let written = client.put(&pool_path("lb1", "a"), &pool_document("a", &["n1"])).await;
        assert_eq!(
            (written.status, admin_states(&written.body).len()),
            (200, 1),
            "accepted: {action}"
        );
        let ended = client.wait_for_operation(&written).await;
        assert_eq!(ended["status"], status, "{action}");
        assert_eq!(ended.get("error").is_some(), status != "Succeeded");
        let read = client.get(&pool_path("lb1", "a")).await.body;
        assert_eq!(
            (
                read["properties"]["provisioningState"].as_str(),
                admin_states(&read).len()
            ),
            (Some(state), left),
            "{action}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_or_is_lost_deletes_nothing() {
    for (action, state) in [
        (json!({"operation": "fail"}), "Failed"),
        (json!({"operation": "succeed", "effect": "lost"}), "Succeeded"),
    ] {
        for path in [lb_path("lb1"), pool_path("lb1", "b")] {
            let client = client();
            add_fault(
                &client,
                &json!({"match": {"method": "DELETE"}, "times": 1, "action": action}),
            );
            let deleted = client.delete(&path).await;
            client.wait_for_operation(&deleted).await;
            let read = client.get(&path).await;
            assert_eq!(
                (read.status, read.body["properties"]["provisioningState"].as_str()),
                (200, Some(state)),
                "{path}: {action}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_write_comes_first() {
    let client = client();
    let read = client.get(&pool_path("lb1", "a")).await;
    let etag = read.header("etag").unwrap();
    let rule = json!({"match": {"method": "PUT", "path": "/a$"}, "times": 1,
        "action": {"write": {"merge": {"properties": {"drainPeriodInSeconds": 30}}}}});
    add_fault(&client, &rule);
    assert_eq!(
        client
            .put_if_match(&pool_path("lb1", "a"), etag, &read.body)
            .await
            .status,
        412
    );
    let after = client.get(&pool_path("lb1", "a")).await.body;
    assert_eq!(
        (&after["properties"]["drainPeriodInSeconds"], admin_states(&after).len()),
        (&json!(30), 2)
    );
    // Without a precondition, the request overwrites it.
    tokio::time::sleep(DELAY).await;
    add_fault(&client, &rule);
    assert_eq!(client.put(&pool_path("lb1", "a"), &read.body).await.status, 200);
    assert_eq!(
        client.get(&pool_path("lb1", "a")).await.body["properties"].get("drainPeriodInSeconds"),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn the_journal_shows_requests_and_answers() {
    let client = client();
    let written = client
        .send(
            "PUT",
            &pool_path("lb1", "b"),
            &[
                ("If-Match", "*"),
                ("User-Agent", "test/1"),
                ("x-ms-client-request-id", "c1"),
            ],
            b"{\"properties\":{\"drainPeriodInSeconds\":5}}",
        )
        .await;
    client.wait_for_operation(&written).await;
    let journal = client.control("GET", "journal?after=0", &Value::Null).body;
    let entries = journal["entries"].as_array().unwrap();
    let put = &entries[0];
    assert_eq!(
        (&put["method"], &put["path"], &put["apiVersion"]),
        (&json!("PUT"), &json!(pool_path("lb1", "b")), &json!("2025-05-01"))
    );
    assert_eq!(
        (&put["ifMatch"], &put["userAgent"], &put["clientRequestId"]),
        (&json!("*"), &json!("test/1"), &json!("c1"))
    );
    assert_eq!(
        (&put["body"]["properties"]["drainPeriodInSeconds"], &put["status"]),
        (&json!(5), &json!(200))
    );
    assert_eq!(put["answer"]["name"], "b");
    assert_eq!(put["changes"][0]["etagAfter"], written.body["etag"]);
    let ended = entries.iter().find(|entry| entry["kind"] == "operation").unwrap();
    assert_eq!(
        (&ended["status"], &ended["name"]),
        (
            &json!("Succeeded"),
            &json!("PutLoadBalancerBackendAddressPoolOperation")
        )
    );
    assert_eq!(ended["changes"][0]["etagBefore"], written.body["etag"]);
    let text = journal.to_string();
    assert!(
        !text.contains(&client.token()) && !text.contains("Bearer"),
        "no token is kept"
    );
    let next = journal["next"].as_u64().unwrap();
    let rest = client
        .control("GET", &format!("journal?after={next}"), &Value::Null)
        .body;
    assert_eq!(rest["entries"], json!([]));
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
    let before = client.get(&lb_path("lb1")).await.body;
    client.put(&pool_path("lb1", "a"), &json!({})).await;
    let state = client.control("GET", "state", &Value::Null).body;
    assert_eq!(state["operations"][0]["status"], "InProgress");
    assert_eq!(state["resources"][0]["properties"]["provisioningState"], "Updating");
    assert_eq!(client.control("POST", "clock", &json!({"advance": "1h"})).status, 204);
    let state = client.control("GET", "state", &Value::Null).body;
    assert_eq!(state["operations"][0]["status"], "Succeeded");
    assert_eq!(client.control("POST", "reset", &Value::Null).status, 204);
    let after = client.get(&lb_path("lb1")).await.body;
    assert_ne!(after["etag"], before["etag"]);
    assert_eq!(
        after["properties"]["backendAddressPools"][0]["properties"]["loadBalancerBackendAddresses"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn members_of_a_superseded_write_are_lost_silently_on_demand() {
    for (other, left) in [("b", 2), ("a", 0)] {
        let client = client();
        let action = json!({"operation": "succeed", "effect": "lostWhenSuperseded"});
        add_fault(
            &client,
            &json!({"match": {"method": "PUT"}, "times": 1, "action": action}),
        );
        let members = |name| admin_states_of(&client, name);
        client.put(&pool_path("lb1", "a"), &pool_document("a", &["n1"])).await;
        assert_eq!(members("a").await, 1, "as accepted");
        // A newer write of another pool, or of the same one.
        let newer = client.put(&pool_path("lb1", other), &pool_document(other, &[])).await;
        client.wait_for_operation(&newer).await;
        assert_eq!(members("a").await, left, "{other}");
    }
}

async fn admin_states_of(client: &Client, pool: &str) -> usize {
    admin_states(&client.get(&pool_path("lb1", pool)).await.body).len()
}
