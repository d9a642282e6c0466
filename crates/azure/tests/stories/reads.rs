//! Reading: lists, single resources, what is retried, what is not followed, and when it is given up.

use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, ProvisioningState};
use headgate_azure::{RateLimit, RateLimits};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{BASE, World, group, load_balancer, pool_id, soon};

#[tokio::test(start_paused = true)]
async fn a_list_is_whole() {
    let all: Vec<_> = (0..7).map(|number| load_balancer(&format!("lb-{number}"), 1)).collect();
    let world = World::new(&all).await;
    let found = world.arm.list_load_balancers(&group(), soon()).await.unwrap();
    let names: Vec<_> = found.iter().map(|load_balancer| load_balancer.id.name()).collect();
    assert_eq!(names, ["lb-0", "lb-1", "lb-2", "lb-3", "lb-4", "lb-5", "lb-6"]);
    assert!(
        found
            .iter()
            .all(|load_balancer| load_balancer.clone().take_pools().len() == 2)
    );
    let requests = world.requests("GET", "/loadBalancers$");
    assert_eq!(requests.len(), 3, "three pages");
    for request in &requests {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(request["userAgent"], format!("headgate/{version}"));
        assert_eq!(request["clientRequestId"].as_str().unwrap().len(), 36);
    }
    assert_ne!(requests[0]["clientRequestId"], requests[1]["clientRequestId"]);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_and_a_pool_have_their_etag() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    let pool = world.pool("pool").await;
    let load_balancer = world
        .arm
        .get_load_balancer(pool.id.load_balancer(), soon())
        .await
        .unwrap();
    assert!(pool.etag.is_some());
    assert_eq!(pool.etag, load_balancer.etag, "they share it");
    assert_eq!(load_balancer.clone().take_pools()[0].document, pool.document);
    assert_eq!(pool.provisioning_state(), ProvisioningState::Settled);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    let pool = world.arm.get_pool(&pool_id("none"), soon()).await.unwrap_err();
    assert_eq!((pool.code(), pool.class()), ("NotFound", ErrorClass::Stale));
    let id = group().load_balancer("none").unwrap();
    let missing = world.arm.get_load_balancer(&id, soon()).await.unwrap_err();
    assert_eq!(
        (missing.code(), missing.class()),
        ("ResourceNotFound", ErrorClass::Stale)
    );
    let elsewhere = headgate_azure::ResourceGroupId::new("sub", "none").unwrap();
    let group = world.arm.list_load_balancers(&elsewhere, soon()).await.unwrap_err();
    assert_eq!(
        (group.code(), group.class()),
        ("ResourceGroupNotFound", ErrorClass::Terminal)
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_in_trouble_is_asked_four_times() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    for (times, status, good) in [(3, 503, true), (4, 500, false), (3, 408, true)] {
        world.control("DELETE", "faults", &Value::Null);
        world.control("POST", "reset", &Value::Null);
        world.fault("GET", "/pool$", times, &json!({"answer": {"status": status}}));
        let read = world.arm.get_pool(&pool_id("pool"), soon()).await;
        assert_eq!(read.is_ok(), good, "{status}");
        assert_eq!(world.requests("GET", "/pool$").len(), 4, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn cut_connections_are_made_anew() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    world.fault("GET", "/pool$", 2, &json!({"cut": "before"}));
    world.pool("pool").await;
    world.fault("GET", "/pool$", 9, &json!({"cut": "after"}));
    let error = world.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::Connection(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Retriable);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    world.pool("pool").await;
    let wait = Duration::from_secs(5);
    world.fault("GET", "/pool$", 1, &json!({"stall": "50s"}));
    let start = Instant::now();
    let error = world.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert_eq!(start.elapsed().as_secs(), 5);
    // A server that wants to be asked later than that is not waited for.
    world.fault("GET", "/pool$", 1, &json!({"answer": {"status": 503, "retryAfter": 6}}));
    let start = Instant::now();
    let error = world.arm.get_pool(&pool_id("pool"), start + wait).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(error.retry_after(start), Some(Duration::from_secs(6)));
    assert!(start.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_renewed_once() {
    let world = World::new(&[load_balancer("lb", 2)]).await;
    let refused =
        json!({"answer": {"status": 401, "body": {"error": {"code": "ExpiredAuthenticationToken", "message": "m"}}}});
    world.pool("pool").await;
    // Within one second the emulator would give the same token again.
    sleep(Duration::from_secs(1)).await;
    world.fault("GET", "/pool$", 1, &refused);
    world.pool("pool").await;
    assert_eq!(world.requests("POST", "/oauth2/").len(), 2);
    sleep(Duration::from_secs(1)).await;
    world.fault("GET", "/pool$", 99, &refused);
    let error = world.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert_eq!(
        (error.code(), error.class()),
        ("ExpiredAuthenticationToken", ErrorClass::Terminal)
    );
    assert_eq!(world.requests("POST", "/oauth2/").len(), 3, "once more, no oftener");
    assert_eq!(world.requests("GET", "/pool$").len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_full_bucket_waits_in_line() {
    let limit = RateLimit { qps: 1.0, bucket: 2 };
    let limits = RateLimits {
        read: limit,
        write: limit,
    };
    let world = World::with(&[load_balancer("lb", 2)], Some(limits), |answer| answer).await;
    let start = Instant::now();
    let five = futures::future::join_all((0..5).map(|_| world.pool("pool"))).await;
    assert_eq!(five.len(), 5);
    assert_eq!(start.elapsed().as_secs(), 3);
    // Whoever has no time for the line is told at once.
    let now = Instant::now();
    let error = world
        .arm
        .get_pool(&pool_id("pool"), now + Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert_eq!(now.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn no_link_leads_elsewhere() {
    let links = [
        "https://127.0.0.1:1/subscriptions/sub/x",
        "http://127.0.0.1:2/subscriptions/sub/x",
        "http://127.0.0.1:1@evil.test/",
        "/subscriptions/sub/x",
        "nonsense nonsense",
    ];
    for link in links {
        let change = move |answer: headgate_azure::Answer| {
            let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
            if document.get("value").is_some() {
                document["nextLink"] = link.into();
            }
            answer.map(|_| document.to_string().into())
        };
        let world = World::with(&[load_balancer("lb", 2)], None, change).await;
        let error = world.arm.list_load_balancers(&group(), soon()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{link}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_come_to_an_end() {
    let change = |answer: headgate_azure::Answer| {
        let mut document: Value = serde_json::from_slice(answer.body()).unwrap();
        if document.get("value").is_some() {
            let path =
                "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers?api-version=2025-05-01";
            document["nextLink"] = format!("{BASE}{path}").into();
        }
        answer.map(|_| document.to_string().into())
    };
    let world = World::with(&[load_balancer("lb", 1)], None, change).await;
    let off = json!({"throttle": {"enabled": false}});
    world.control("PUT", "settings", &off);
    let error = world.arm.list_load_balancers(&group(), soon()).await.unwrap_err();
    assert!(error.to_string().contains("1000 pages"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn answers_that_make_no_sense() {
    let world = World::new(&[load_balancer("lb", 1)]).await;
    for body in [json!([]), json!({"value": 1}), json!("x")] {
        world.fault(
            "GET",
            "/loadBalancers$",
            1,
            &json!({"answer": {"status": 200, "body": body}}),
        );
        let error = world.arm.list_load_balancers(&group(), soon()).await.unwrap_err();
        assert!(matches!(error, ArmError::InvalidResponse(_)), "{body}: {error}");
        assert_eq!(error.class(), ErrorClass::Retriable, "it may be a proxy's");
    }
    // What cannot be one is left out; the others are to be seen.
    let nonsense = json!({"value": [{}, {"id": "/x"}, null]});
    let answer = json!({"answer": {"status": 200, "body": nonsense}});
    world.fault("GET", "/loadBalancers$", 1, &answer);
    assert!(
        world
            .arm
            .list_load_balancers(&group(), soon())
            .await
            .unwrap()
            .is_empty()
    );
    world.fault(
        "GET",
        "/pool$",
        1,
        &json!({"answer": {"status": 200, "text": "<html>"}}),
    );
    let error = world.arm.get_pool(&pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
}
