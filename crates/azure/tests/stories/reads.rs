//! Reads: lists, single resources, retries, deadlines, and links that are not followed.

use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, ProvisioningState};
use headgate_azure::{RateLimit, RateLimits};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{BASE, TestBed, group, load_balancer, pool_id, soon};

#[tokio::test(start_paused = true)]
async fn list_has_all_pages() {
    let all: Vec<_> = (0..7).map(|number| load_balancer(&format!("lb-{number}"), 1)).collect();
    let bed = TestBed::new(&all).await;
    let found = bed.list(&group()).await.unwrap();
    let names: Vec<_> = found.iter().map(|load_balancer| load_balancer.id.name()).collect();
    assert_eq!(names, ["lb-0", "lb-1", "lb-2", "lb-3", "lb-4", "lb-5", "lb-6"]);
    assert!(found.iter().all(|load_balancer| load_balancer.pools.len() == 2));
    let requests = bed.requests("GET", "/loadBalancers$");
    assert_eq!(requests.len(), 3, "three pages");
    for request in &requests {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(request["userAgent"], format!("headgate/{version}"));
        assert_eq!(request["clientRequestId"].as_str().unwrap().len(), 36);
    }
    assert_ne!(requests[0]["clientRequestId"], requests[1]["clientRequestId"]);
}

#[tokio::test(start_paused = true)]
async fn load_balancer_and_pool_share_an_etag() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    let pool = bed.pool("pool").await;
    let load_balancer = bed
        .arm
        .get_load_balancer(pool.id.load_balancer(), |_| (), soon())
        .await
        .unwrap();
    let mut load_balancer = load_balancer.text.document().unwrap().unwrap();
    assert!(pool.etag.is_some());
    assert_eq!(pool.etag, load_balancer.etag, "they share one");
    assert_eq!(load_balancer.take_pools()[0].document, pool.document);
    assert_eq!(pool.provisioning_state(), ProvisioningState::Settled);
}

#[tokio::test(start_paused = true)]
async fn missing_resources_are_stale_or_terminal() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    let pool = bed.arm.get_pool(&pool_id("none"), soon()).await.unwrap_err();
    assert_eq!((pool.code(), pool.class()), ("NotFound", ErrorClass::Stale));
    let id = group().load_balancer("none").unwrap();
    let missing = bed.arm.get_load_balancer(&id, |_| (), soon()).await.unwrap_err();
    assert_eq!(
        (missing.code(), missing.class()),
        ("ResourceNotFound", ErrorClass::Stale)
    );
    let elsewhere = headgate_azure::ResourceGroupId::new("sub", "none").unwrap();
    let group = bed.list(&elsewhere).await.unwrap_err();
    assert_eq!(
        (group.code(), group.class()),
        ("ResourceGroupNotFound", ErrorClass::Terminal)
    );
}

#[tokio::test(start_paused = true)]
async fn failing_server_gets_four_requests() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    for (times, status, good) in [(3, 503, true), (4, 500, false), (3, 408, true)] {
        bed.control("DELETE", "faults", &Value::Null);
        bed.control("POST", "reset", &Value::Null);
        bed.fault("GET", "/pool$", times, &json!({"answer": {"status": status}}));
        let read = bed.arm.get_pool(&pool_id("pool"), soon()).await;
        assert_eq!(read.is_ok(), good, "{status}");
        assert_eq!(bed.requests("GET", "/pool$").len(), 4, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn cut_connections_are_retried() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    bed.fault("GET", "/pool$", 2, &json!({"cut": "before"}));
    bed.pool("pool").await;
    bed.fault("GET", "/pool$", 9, &json!({"cut": "after"}));
    let error = bed.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::Connection(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Retriable);
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_a_read() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    bed.pool("pool").await;
    let wait = Duration::from_secs(5);
    bed.fault("GET", "/pool$", 1, &json!({"stall": "50s"}));
    let start = Instant::now();
    let error = bed.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert_eq!(start.elapsed().as_secs(), 5);
    // A Retry-After past the deadline ends the read at once.
    bed.fault("GET", "/pool$", 1, &json!({"answer": {"status": 503, "retryAfter": 6}}));
    let start = Instant::now();
    let error = bed.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(error.retry_after(start), Some(Duration::from_secs(6)));
    assert!(start.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_refreshed_once() {
    let bed = TestBed::new(&[load_balancer("lb", 2)]).await;
    let rejected =
        json!({"answer": {"status": 401, "body": {"error": {"code": "ExpiredAuthenticationToken", "message": "m"}}}});
    bed.pool("pool").await;
    // Within one second the emulator issues the same token again.
    sleep(Duration::from_secs(1)).await;
    bed.fault("GET", "/pool$", 1, &rejected);
    bed.pool("pool").await;
    assert_eq!(bed.requests("POST", "/oauth2/").len(), 2);
    sleep(Duration::from_secs(1)).await;
    bed.fault("GET", "/pool$", 99, &rejected);
    let error = bed.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert_eq!(
        (error.code(), error.class()),
        ("ExpiredAuthenticationToken", ErrorClass::Terminal)
    );
    assert_eq!(bed.requests("POST", "/oauth2/").len(), 3, "one refresh");
    assert_eq!(bed.requests("GET", "/pool$").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn empty_token_bucket_delays_requests() {
    let limit = RateLimit { qps: 1.0, bucket: 2 };
    let limits = RateLimits {
        read: limit,
        write: limit,
    };
    let bed = TestBed::with(&[load_balancer("lb", 2)], Some(limits), |answer| answer).await;
    let start = Instant::now();
    let five = futures::future::join_all((0..5).map(|_| bed.pool("pool"))).await;
    assert_eq!(five.len(), 5);
    assert_eq!(start.elapsed().as_secs(), 3);
    // A request with too little time fails at once.
    let now = Instant::now();
    let error = bed
        .arm
        .get_pool(&pool_id("pool"), now + Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert_eq!(now.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn links_to_other_origins_are_rejected() {
    let links = [
        "https://127.0.0.1:1/subscriptions/sub/x",
        "http://127.0.0.1:2/subscriptions/sub/x",
        "http://127.0.0.1:1@evil.test/",
        "/subscriptions/sub/x",
        "nonsense nonsense",
    ];
    for link in links {
        let change = move |answer: headgate_azure::BufferedResponse| {
            let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
            if document.get("value").is_some() {
                document["nextLink"] = link.into();
            }
            answer.map(|_| document.to_string().into())
        };
        let bed = TestBed::with(&[load_balancer("lb", 2)], None, change).await;
        let error = bed.list(&group()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{link}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_pages_are_rejected() {
    let change = |answer: headgate_azure::BufferedResponse| {
        let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
        if document.get("value").is_some() {
            let path =
                "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers?api-version=2025-05-01";
            document["nextLink"] = format!("{BASE}{path}").into();
        }
        answer.map(|_| document.to_string().into())
    };
    let bed = TestBed::with(&[load_balancer("lb", 1)], None, change).await;
    let off = json!({"throttle": {"enabled": false}});
    bed.control("PUT", "settings", &off);
    let error = bed.list(&group()).await.unwrap_err();
    assert!(error.to_string().contains("1000 pages"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn malformed_responses() {
    let bed = TestBed::new(&[load_balancer("lb", 1)]).await;
    for body in [json!([]), json!({"value": 1}), json!("x")] {
        bed.fault(
            "GET",
            "/loadBalancers$",
            1,
            &json!({"answer": {"status": 200, "body": body}}),
        );
        let error = bed.list(&group()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{body}: {error}");
        assert_eq!(error.class(), ErrorClass::Retriable, "it may come from a proxy");
    }
    // Items that are not load balancers are omitted.
    let nonsense = json!({"value": [{}, {"id": "/x"}, null]});
    let answer = json!({"answer": {"status": 200, "body": nonsense}});
    bed.fault("GET", "/loadBalancers$", 1, &answer);
    assert!(bed.list(&group()).await.unwrap().is_empty());
    bed.fault(
        "GET",
        "/pool$",
        1,
        &json!({"answer": {"status": 200, "text": "<html>"}}),
    );
    let error = bed.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
}
