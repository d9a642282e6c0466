//! Writes that fail: other writers, failed operations, throttling, lost responses.

use std::time::Duration;

use headgate_azure::OperationFailure::Canceled;
use headgate_azure::{AdminState, ArmError, ErrorClass, Pool};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{GROUP, TestBed, edited, load_balancer, one_edited, permit, soon};

async fn write(bed: &TestBed, pool: &Pool) -> Result<Pool, ArmError> {
    bed.write(pool, permit(), soon()).await
}

/// Another client writes the pool right before the next PUT arrives.
async fn assert_stale_after_another_writer(bed: &TestBed, pool: &Pool) {
    let change = json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60}}}});
    bed.fault("PUT", "/pool$", 1, &change);
    let error = write(bed, pool).await.unwrap_err();
    assert_eq!((error.code(), error.class()), ("PreconditionFailed", ErrorClass::Stale));
}

#[tokio::test(start_paused = true)]
async fn pool_changed_by_another_client_is_stale() {
    let (bed, pool) = one_edited().await;
    assert_stale_after_another_writer(&bed, &pool).await;
    let now = bed.pool("pool").await;
    assert_eq!(now.document["properties"]["drainPeriodInSeconds"], 60);
    sleep(Duration::from_secs(5)).await;
    write(&bed, &edited(&bed).await).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn superseded_write_is_stale() {
    let (bed, pool) = one_edited().await;
    let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/other");
    let other = async {
        sleep(Duration::from_millis(700)).await;
        let body = json!({"properties": {"drainPeriodInSeconds": 5}});
        assert!(bed.send_as_other("PUT", &path, &body).await.status().is_success());
    };
    let (written, ()) = tokio::join!(write(&bed, &pool), other);
    let error = written.unwrap_err();
    let is_canceled = matches!(&error, ArmError::OperationFailed { status: Canceled, .. });
    assert!(is_canceled, "{error}");
    assert_eq!(error.class(), ErrorClass::Stale);
    assert!(error.to_string().contains("CanceledAndSuperseded"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn classes_of_failed_operations() {
    let failed = |code: &str| json!({"operation": "fail", "effect": "lost", "error": {"code": code, "message": "m"}});
    for (action, class) in [
        (failed("InternalServerError"), ErrorClass::Retriable),
        (failed("PreconditionFailed"), ErrorClass::Stale),
        (failed("AuthorizationFailed"), ErrorClass::Terminal),
        (json!({"operation": "cancel"}), ErrorClass::Stale),
        // The operation reports success and has no effect.
        (json!({"operation": "succeed", "effect": "lost"}), ErrorClass::Terminal),
    ] {
        let (bed, pool) = one_edited().await;
        bed.fault("PUT", "/pool$", 1, &action);
        let error = write(&bed, &pool).await.unwrap_err();
        assert_eq!(error.class(), class, "{action}: {error}");
        write(&bed, &edited_or_same(&bed).await).await.unwrap();
    }
}

/// Like [`edited`], also if the first entry is `Down` already.
async fn edited_or_same(bed: &TestBed) -> Pool {
    let mut pool = bed.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    pool
}

#[tokio::test(start_paused = true)]
async fn rate_limit_429_closes_the_gate_for_its_retry_after() {
    let (bed, pool) = one_edited().await;
    let code = "SubscriptionRequestsThrottled";
    bed.answer("PUT", "/pool$", 1, &json!({"code": code, "retryAfter": 7}));
    let start = Instant::now();
    let error = write(&bed, &pool).await.unwrap_err();
    assert_eq!((error.code(), error.class()), (code, ErrorClass::Retriable));
    assert_eq!(error.retry_after(start), Some(Duration::from_secs(7)));
    assert_eq!(start.elapsed(), Duration::ZERO, "it is not retried");

    // Other writes of the subscription are not sent; reads are.
    sleep(Duration::from_millis(6990)).await;
    let error = write(&bed, &pool).await.unwrap_err();
    let gate = start + Duration::from_secs(7);
    let is_closed = matches!(error, ArmError::Throttled { until } if until == gate);
    assert!(is_closed, "{error}");
    bed.pool("pool").await;
    assert_eq!(bed.requests("PUT", "").len(), 1);
    sleep(Duration::from_millis(10)).await;
    write(&bed, &pool).await.unwrap();
    assert_eq!(bed.requests("PUT", "").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn busy_resource_429_leaves_the_gate_open() {
    let (bed, pool) = one_edited().await;
    for code in [
        "ReferencedResourceNotProvisioned",
        "RetryableErrorDueToAnotherOperation",
        "AnotherOperationInProgress",
    ] {
        bed.answer("PUT", "/pool$", 1, &json!({"code": code, "retryAfter": 60}));
        let error = write(&bed, &pool).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retriable, "{error}");
        assert_eq!(error.retry_after(Instant::now()), Some(Duration::from_mins(1)));
    }
    write(&bed, &pool).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn polling_survives_throttling_and_server_errors() {
    let (bed, pool) = one_edited().await;
    bed.answer("GET", "/operations/", 1, &json!({"status": 429, "retryAfter": 9}));
    bed.answer("GET", "/operations/", 5, &json!({"status": 500}));
    let start = Instant::now();
    write(&bed, &pool).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
    assert_eq!(bed.requests("PUT", "").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn put_without_response_is_sent_again() {
    let (bed, pool) = one_edited().await;
    bed.fault("PUT", "/pool$", 2, &json!({"cut": "before"}));
    write(&bed, &pool).await.unwrap();
    assert_eq!(bed.requests("PUT", "").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn lost_response_does_not_repeat_the_effect() {
    let (bed, pool) = one_edited().await;
    bed.fault("PUT", "/pool$", 1, &json!({"cut": "after"}));
    let read = write(&bed, &pool).await.unwrap();
    let puts = bed.requests("PUT", "");
    let statuses: Vec<_> = puts.iter().map(|put| put["status"].as_u64()).collect();
    assert_eq!(statuses, [None, Some(412)], "the second was rejected");
    assert_eq!(read.addresses().next().unwrap().admin_state(), Some(AdminState::Down));
}

#[tokio::test(start_paused = true)]
async fn an_accepted_write_is_accepted_whatever_the_answer_contains() {
    for answer in [
        json!({"status": 202}),
        json!({"status": 200, "body": []}),
        json!({"status": 200, "text": "a proxy"}),
        // Longer than what is parsed at once: the parser ends before the body does.
        json!({"status": 200, "text": "a proxy ".repeat(100_000)}),
    ] {
        let (bed, pool) = one_edited().await;
        bed.answer("PUT", "/pool$", 1, &answer);
        let operation = bed.put(&pool).await;
        bed.arm.poll_until_done(&operation, soon()).await.unwrap();
        assert_eq!(bed.requests("PUT", "").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_and_another_writer_is_stale() {
    let (bed, pool) = one_edited().await;
    bed.fault("PUT", "/pool$", 1, &json!({"cut": "before"}));
    assert_stale_after_another_writer(&bed, &pool).await;
    let now = bed.pool("pool").await;
    assert_eq!(now.document["properties"]["drainPeriodInSeconds"], 60);
    assert_eq!(now.addresses().next().unwrap().admin_state(), Some(AdminState::None));
}

#[tokio::test(start_paused = true)]
async fn operation_past_the_deadline() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    bed.control("PUT", "settings", &json!({"operationDelay": "5m"}));
    let pool = edited(&bed).await;
    let start = Instant::now();
    let written = bed.write(&pool, permit(), start + Duration::from_secs(20)).await;
    let error = written.unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    let waited = start.elapsed().as_secs_f64();
    assert!((18.0..=20.0).contains(&waited), "{waited}");
}
