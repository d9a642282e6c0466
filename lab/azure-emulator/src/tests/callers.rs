//! Authentication, throttling, headers, and Scheduled Events.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{Client, lb_path, lb1, lb1_pool, load_balancer};

fn client() -> Client {
    Client::new(&[load_balancer("lb1", &[("a", &["n1"])])])
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_valid_token_are_refused() {
    let client = client();
    let garbled = "Bearer e30.e30.e30";
    for authorization in ["", "Bearer", "Basic eDp5", garbled] {
        let answer = client
            .send("PUT", &lb1_pool("a"), &[("Authorization", authorization)], b"{}")
            .await;
        assert_eq!(answer.status, 401, "{authorization}: {}", answer.body);
        let challenge = answer.header("www-authenticate").unwrap();
        assert!(challenge.starts_with("Bearer authorization_uri="), "{challenge}");
    }
    let token = format!("Bearer {}", client.token());
    let authorized = [("Authorization", token.as_str())];
    assert_eq!(client.send("GET", &lb1(), &authorized, b"").await.status, 200);
    sleep(Duration::from_hours(2)).await;
    let expired = client.send("GET", &lb1(), &authorized, b"").await;
    assert_eq!((expired.status, expired.code()), (401, "ExpiredAuthenticationToken"));
    assert_eq!(client.state(&lb1()).await, "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_token_bucket_is_exhausted_and_refills() {
    let client = client();
    let token = client.token();
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    let throttle = json!({"throttle": {"reads": {"capacity": 3, "refillPerSecond": 0.5}}});
    let set = client.control("PUT", "settings", &throttle);
    assert_eq!(set.status, 200, "{}", set.body);
    for left in ["2", "1", "0"] {
        let answer = client.send("GET", &lb1(), &headers, b"").await;
        let shown = answer.header("x-ms-ratelimit-remaining-subscription-reads");
        assert_eq!((answer.status, shown), (200, Some(left)));
    }
    let refused = client.send("GET", &lb1(), &headers, b"").await;
    assert_eq!((refused.status, refused.code()), (429, "SubscriptionRequestsThrottled"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let message = refused.body["error"]["message"].as_str().unwrap();
    let words = format!("Please try again after '{wait}' seconds.");
    assert!(message.contains(&words), "{message}");
    let write = client.send("PUT", &lb1_pool("a"), &headers, b"{}").await;
    assert_eq!(write.status, 200, "writes have a bucket of their own");
    let left = write.header("x-ms-ratelimit-remaining-subscription-writes");
    assert_eq!(left, Some("199"));
    sleep(Duration::from_secs(wait)).await;
    assert_eq!(client.send("GET", &lb1(), &headers, b"").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn every_answer_has_the_recorded_headers() {
    let client = client();
    for path in [lb1(), lb_path("none")] {
        let asked = [
            ("x-ms-client-request-id", "mine"),
            ("x-ms-return-client-request-id", "true"),
            ("x-ms-correlation-request-id", "ours"),
        ];
        let answer = client.send("GET", &path, &asked, b"").await;
        assert_eq!(answer.header("x-ms-client-request-id"), Some("mine"));
        assert_eq!(answer.header("x-ms-correlation-request-id"), Some("ours"));
        let id = answer.header("x-ms-request-id").unwrap();
        let routing = answer.header("x-ms-routing-request-id").unwrap();
        assert_eq!(routing, format!("EASTUS:20260102T030405Z:{id}"));
        for (name, value) in [
            ("cache-control", "no-cache"),
            ("expires", "-1"),
            ("x-content-type-options", "nosniff"),
            ("x-cache", "CONFIG_NOCACHE"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn scheduled_events_are_set_by_the_control_api() {
    let client = client();
    let event = json!({"EventId": "e1", "EventType": "Preempt", "Resources": ["vmss_3"]});
    let put = client.control("PUT", "scheduled-events", &json!({"Events": [event]}));
    assert_eq!(put.status, 200, "{}", put.body);
    let path = "/metadata/scheduledevents?api-version=2020-07-01";
    let first = client.send("GET", path, &[("Metadata", "true")], b"").await;
    assert_eq!(first.status, 200);
    let shown = &first.body["Events"][0];
    assert_eq!(
        (&shown["EventId"], &shown["EventStatus"]),
        (&json!("e1"), &json!("Scheduled"))
    );
    let again = client.send("GET", path, &[("Metadata", "true")], b"").await;
    assert_eq!(again.body, first.body);
    let bare = client.send("GET", path, &[], b"").await;
    assert_eq!(bare.status, 400, "without Metadata: true");
}
