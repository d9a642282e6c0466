//! Writing a pool: the PUT, its operation, the read that shows it, and what survives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, BufferedResponse, Permit, ProvisioningState};
use hyper::header::HeaderName;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{DELAY, World, load_balancer, soon};

#[tokio::test(start_paused = true)]
async fn a_write_is_followed_and_read_back() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let mut pool = world.pool("pool").await;
    let before = pool.etag.clone().unwrap();
    assert!(pool.set_admin_state(1, AdminState::Down));
    let start = Instant::now();
    let read = world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    assert!(start.elapsed() >= DELAY);
    let states: Vec<_> = read.addresses().map(|address| address.admin_state().unwrap()).collect();
    assert_eq!(states, [AdminState::None, AdminState::Down, AdminState::None]);
    assert_eq!(read.provisioning_state(), ProvisioningState::Settled);
    let puts = world.requests("PUT", "");
    assert_eq!(puts.len(), 1);
    assert_eq!(puts[0]["ifMatch"], before.as_str());

    // What was read is good for the next write, of this and of the load balancer's other pool.
    let mut again = read.clone();
    again.set_admin_state(1, AdminState::None);
    let read = world.arm.write_pool(&again, Permit::always(), soon()).await.unwrap();
    let mut other = world.pool("other").await;
    other.etag = read.etag;
    other.set_admin_state(0, AdminState::Down);
    world.arm.write_pool(&other, Permit::always(), soon()).await.unwrap();
    assert_eq!(world.requests("PUT", "").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_of_five_thousand() {
    let world = World::new(&[load_balancer("lb", 5000)]).await;
    let mut pool = world.pool("pool").await;
    assert!(pool.set_admin_state(2500, AdminState::Down));
    let read = world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    let mut expected = serde_json::to_value(pool.put_body()).unwrap();
    assert_eq!(
        serde_json::to_value(read.put_body()).unwrap(),
        expected,
        "all that is not ARM's own"
    );
    let addresses = expected["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap();
    assert_eq!(addresses.len(), 5000);
    assert_eq!(
        addresses[2500]["properties"]["futureProperty"],
        json!({"deep": [null, 2501]})
    );
    assert_eq!(read.document["futurePool"], "pool");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_is_done_at_once() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = world.pool("pool").await;
    let start = Instant::now();
    world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_end_is_found_without_azures_header() {
    let without = |answer: Answer| {
        let (mut parts, body) = answer.into_parts();
        parts.headers.remove(HeaderName::from_static("azure-asyncoperation"));
        BufferedResponse::from_parts(parts, body)
    };
    let world = World::with(&[load_balancer("lb", 3)], None, without).await;
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    let start = Instant::now();
    world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    assert!(start.elapsed() >= DELAY, "the pool itself says when it is done");

    // By Location: 202 until it is done.
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let located = move |answer: Answer| {
        let (mut parts, body) = answer.into_parts();
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
    let world = World::with(&[load_balancer("lb", 3)], None, located).await;
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    assert!(looks.load(Ordering::Relaxed) >= 2);
}

#[tokio::test(start_paused = true)]
async fn no_operation_is_followed_elsewhere() {
    let elsewhere = |answer: Answer| {
        let (mut parts, body) = answer.into_parts();
        if parts.headers.contains_key("azure-asyncoperation") {
            let url = "https://evil.test/operations/1?s=secret".parse().unwrap();
            parts.headers.insert("azure-asyncoperation", url);
        }
        BufferedResponse::from_parts(parts, body)
    };
    let world = World::with(&[load_balancer("lb", 3)], None, elsewhere).await;
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    let error = world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
    assert!(
        error.to_string().contains("evil.test") && !error.to_string().contains("secret"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn retry_after_says_when_to_look() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    world.control(
        "PUT",
        "settings",
        &json!({"operationDelay": "20s", "pollRetryAfter": 10}),
    );
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    let start = Instant::now();
    world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap();
    let looks = world.requests("GET", "/operations/");
    assert!(looks.len() <= 4, "{looks:#?}");
    assert!(start.elapsed() < Duration::from_secs(31), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_without_permission() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    let error = world
        .arm
        .write_pool(&pool, Permit::new(|| false), soon())
        .await
        .unwrap_err();
    assert!(matches!(error, ArmError::NotPermitted), "{error}");
    assert!(world.requests("PUT", "").is_empty());

    // It ends between two tries: the second is not sent.
    world.fault("PUT", "/pool$", 1, &json!({"cut": "before"}));
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    let once = Permit::new(move || counted.fetch_add(1, Ordering::Relaxed) == 0);
    let error = world.arm.write_pool(&pool, once, soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::NotPermitted), "{error}");
    assert_eq!(world.requests("PUT", "").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_over_a_state_that_was_not_read_or_is_not_settled() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let mut pool = world.pool("pool").await;
    pool.etag = None;
    let error = world.arm.write_pool(&pool, Permit::always(), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::InvalidResponse(_)), "{error}");
    assert!(world.requests("PUT", "").is_empty());

    // Read while somebody else's write is under way: the etag is good, and the write would end the other one.
    let mut first = world.pool("pool").await;
    first.set_admin_state(0, AdminState::Down);
    let accepted = world.arm.put_pool(&first, Permit::always(), soon()).await.unwrap();
    let mut busy = world.pool("pool").await;
    assert_eq!(busy.provisioning_state(), ProvisioningState::Busy);
    busy.set_admin_state(1, AdminState::Down);
    let error = world.arm.write_pool(&busy, Permit::always(), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::Busy(_)), "{error}");
    world.arm.poll_until_done(&accepted, soon()).await.unwrap();
    assert_eq!(world.requests("PUT", "").len(), 1);
}
