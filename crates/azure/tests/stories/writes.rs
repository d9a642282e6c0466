//! Writes of a pool: the PUT, its operation, the read-back, and the fields that survive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, BufferedResponse, ProvisioningState, WritePermit};
use hyper::header::HeaderName;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{OPERATION_DELAY, TestBed, edited, load_balancer, one_edited, permit, soon};

#[tokio::test(start_paused = true)]
async fn write_is_polled_and_read_back() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let mut pool = bed.pool("pool").await;
    let before = pool.etag.clone().unwrap();
    assert!(pool.set_admin_state(1, AdminState::Down));
    let start = Instant::now();
    let read = bed.write(&pool, permit(), soon()).await.unwrap();
    assert!(start.elapsed() >= OPERATION_DELAY);
    let states: Vec<_> = read.addresses().map(|address| address.admin_state().unwrap()).collect();
    assert_eq!(states, [AdminState::None, AdminState::Down, AdminState::None]);
    assert_eq!(read.provisioning_state(), ProvisioningState::Settled);
    let puts = bed.requests("PUT", "");
    assert_eq!(puts.len(), 1);
    assert_eq!(puts[0]["ifMatch"], before.as_str());

    // The etag of the read-back is valid for the next write of this pool and of the load balancer's other pool.
    let mut again = read.clone();
    again.set_admin_state(1, AdminState::None);
    let read = bed.write(&again, permit(), soon()).await.unwrap();
    let mut other = bed.pool("other").await;
    other.etag = read.etag;
    other.set_admin_state(0, AdminState::Down);
    bed.write(&other, permit(), soon()).await.unwrap();
    assert_eq!(bed.requests("PUT", "").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn write_keeps_all_fields_of_five_thousand_entries() {
    let bed = TestBed::new(&[load_balancer("lb", 5000)]).await;
    let mut pool = bed.pool("pool").await;
    assert!(pool.set_admin_state(2500, AdminState::Down));
    let read = bed.write(&pool, permit(), soon()).await.unwrap();
    let expected = serde_json::to_value(pool.put_body()).unwrap();
    // All fields that others than ARM write.
    assert_eq!(serde_json::to_value(read.put_body()).unwrap(), expected);
    let addresses = &expected["properties"]["loadBalancerBackendAddresses"];
    assert_eq!(addresses.as_array().unwrap().len(), 5000);
    let property = &addresses[2500]["properties"]["futureProperty"];
    assert_eq!(property, &json!({"deep": [null, 2501]}));
    assert_eq!(read.document["futurePool"], "pool");
}

#[tokio::test(start_paused = true)]
async fn write_without_change_completes_at_once() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let pool = bed.pool("pool").await;
    let start = Instant::now();
    bed.write(&pool, permit(), soon()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn end_is_found_without_azure_async_operation() {
    let without = |response: BufferedResponse| {
        let (mut parts, body) = response.into_parts();
        parts.headers.remove(HeaderName::from_static("azure-asyncoperation"));
        BufferedResponse::from_parts(parts, body)
    };
    let bed = TestBed::with(&[load_balancer("lb", 3)], None, without).await;
    let pool = edited(&bed).await;
    let start = Instant::now();
    bed.write(&pool, permit(), soon()).await.unwrap();
    // The pool's provisioningState shows the end.
    assert!(start.elapsed() >= OPERATION_DELAY);

    // With Location: 202 until the end.
    let polls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&polls);
    let located = move |response: BufferedResponse| {
        let (mut parts, body) = response.into_parts();
        if let Some(url) = parts.headers.remove(HeaderName::from_static("azure-asyncoperation")) {
            parts.headers.insert("location", url);
        }
        let document: Value = serde_json::from_slice(&body).unwrap();
        if let Some(status) = document.get("status") {
            counted.fetch_add(1, Ordering::Relaxed);
            if status == "InProgress" {
                parts.status = hyper::StatusCode::ACCEPTED;
            }
        }
        BufferedResponse::from_parts(parts, body)
    };
    let bed = TestBed::with(&[load_balancer("lb", 3)], None, located).await;
    let pool = edited(&bed).await;
    bed.write(&pool, permit(), soon()).await.unwrap();
    assert!(polls.load(Ordering::Relaxed) >= 2);
}

#[tokio::test(start_paused = true)]
async fn retry_after_sets_the_time_of_the_next_poll() {
    // After 1 s, 11 s and 21 s: the first poll does not wait for the `Retry-After` of the PUT, and the last end is noticed 9 s late.
    for (operation, polls, end_ms) in [("900ms", 1, 1_000), ("12s", 3, 21_000)] {
        let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
        let settings = json!({"operationDelay": operation, "pollRetryAfter": 10});
        bed.control("PUT", "settings", &settings);
        let pool = edited(&bed).await;
        let start = Instant::now();
        bed.write(&pool, permit(), soon()).await.unwrap();
        let sent = bed.requests("GET", "/operations/");
        assert_eq!(sent.len(), polls, "{sent:#?}");
        let millis = start.elapsed().as_millis();
        assert!((end_ms..end_ms + 100).contains(&millis), "{operation}: {millis}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_retry_after_an_end_is_noticed_within_a_second_and_long_operations_are_polled_every_five() {
    for (delay_ms, late_ms, max_polls) in [
        (50, 100, 1),
        (300, 100, 2),
        (2_000, 600, 5),
        (5_000, 600, 9),
        (11_000, 1_000, 15),
        (60_000, 5_000, 28),
    ] {
        let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
        let settings = json!({"operationDelay": format!("{delay_ms}ms"), "pollRetryAfter": 0});
        bed.control("PUT", "settings", &settings);
        let pool = edited(&bed).await;
        let start = Instant::now();
        bed.write(&pool, permit(), soon()).await.unwrap();
        let late = start.elapsed().saturating_sub(Duration::from_millis(delay_ms));
        assert!(late <= Duration::from_millis(late_ms), "{delay_ms} ms: {late:?} late");
        let polls = bed.requests("GET", "/operations/").len();
        assert!(polls <= max_polls, "{delay_ms} ms: {polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn write_without_valid_permit_is_not_sent() {
    let (bed, pool) = one_edited().await;
    let error = bed.write(&pool, WritePermit::new(|| false), soon()).await.unwrap_err();
    let may_have_applied = |error: &ArmError| match error {
        ArmError::NotPermitted { may_have_applied } => Some(*may_have_applied),
        _ => None,
    };
    assert_eq!(may_have_applied(&error), Some(false), "{error}");
    assert!(bed.requests("PUT", "").is_empty());

    // The permit ends between two attempts: the second is not sent, and the first may have had its effect.
    bed.fault("PUT", "/pool$", 1, &json!({"cut": "before"}));
    let checks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&checks);
    let once = WritePermit::new(move || counted.fetch_add(1, Ordering::Relaxed) == 0);
    let error = bed.write(&pool, once, soon()).await.unwrap_err();
    assert_eq!(may_have_applied(&error), Some(true), "{error}");
    assert_eq!(bed.requests("PUT", "").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pool_without_etag_or_busy_is_not_written() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let mut pool = bed.pool("pool").await;
    pool.etag = None;
    let error = bed.write(&pool, permit(), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
    assert!(bed.requests("PUT", "").is_empty());

    // Read during another client's write: the etag is valid, but a write would supersede the other one.
    let first = edited(&bed).await;
    let accepted = bed.put(&first).await;
    let mut busy = bed.pool("pool").await;
    assert_eq!(busy.provisioning_state(), ProvisioningState::Busy);
    busy.set_admin_state(1, AdminState::Down);
    let error = bed.write(&busy, permit(), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::Busy(_)), "{error}");
    bed.arm.poll_until_done(&accepted, soon()).await.unwrap();
    assert_eq!(bed.requests("PUT", "").len(), 1);
}
