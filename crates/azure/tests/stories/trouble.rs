//! Writes that meet trouble: others who write, operations that fail, throttling, answers that are lost.

use std::time::Duration;

use headgate_azure::{AdminState, ArmError, ErrorClass, Permit, Pool};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{GROUP, World, load_balancer, soon};

/// The pool with its first address out.
async fn edited(world: &World) -> Pool {
    let mut pool = world.pool("pool").await;
    assert!(pool.set_admin_state(0, AdminState::Down));
    pool
}

async fn write(world: &World, pool: &Pool) -> Result<Pool, ArmError> {
    world.arm.write_pool(pool, Permit::always(), soon()).await
}

#[tokio::test(start_paused = true)]
async fn somebody_else_was_first() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault(
        "PUT",
        "/pool$",
        1,
        &json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60}}}}),
    );
    let error = write(&world, &pool).await.unwrap_err();
    assert_eq!((error.code(), error.class()), ("PreconditionFailed", ErrorClass::Stale));
    assert_eq!(
        world.pool("pool").await.document["properties"]["drainPeriodInSeconds"],
        60
    );
    sleep(Duration::from_secs(5)).await;
    write(&world, &edited(&world).await).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_newer_write_takes_its_place() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/other");
    let other = async {
        sleep(Duration::from_millis(700)).await;
        let body = json!({"properties": {"drainPeriodInSeconds": 5}});
        assert!(world.other("PUT", &path, &body).await.status().is_success());
    };
    let (written, ()) = tokio::join!(write(&world, &pool), other);
    let error = written.unwrap_err();
    assert!(
        matches!(&error, ArmError::OperationFailed { status, .. } if status == "Canceled"),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Stale);
    assert!(error.to_string().contains("CanceledAndSuperseded"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn operations_that_end_badly() {
    let failed = |code: &str| json!({"operation": "fail", "effect": "lost", "error": {"code": code, "message": "m"}});
    for (action, class) in [
        (failed("InternalServerError"), ErrorClass::Retriable),
        (failed("PreconditionFailed"), ErrorClass::Stale),
        (failed("AuthorizationFailed"), ErrorClass::Terminal),
        (json!({"operation": "cancel"}), ErrorClass::Stale),
        // Azure has reported success, and nothing was changed.
        (json!({"operation": "succeed", "effect": "lost"}), ErrorClass::Stale),
    ] {
        let world = World::new(&[load_balancer("lb", 3)]).await;
        let pool = edited(&world).await;
        world.fault("PUT", "/pool$", 1, &action);
        let error = write(&world, &pool).await.unwrap_err();
        assert_eq!(error.class(), class, "{action}: {error}");
        write(&world, &edited_or_same(&world).await).await.unwrap();
    }
}

/// The pool with its first address out, whether it was already or not.
async fn edited_or_same(world: &World) -> Pool {
    let mut pool = world.pool("pool").await;
    pool.set_admin_state(0, AdminState::Down);
    pool
}

#[tokio::test(start_paused = true)]
async fn a_429_closes_its_gate_to_the_second() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault(
        "PUT",
        "/pool$",
        1,
        &json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 7}}),
    );
    let start = Instant::now();
    let error = write(&world, &pool).await.unwrap_err();
    assert_eq!(
        (error.code(), error.class()),
        ("SubscriptionRequestsThrottled", ErrorClass::Retriable)
    );
    assert_eq!(error.retry_after(start), Some(Duration::from_secs(7)));
    assert_eq!(start.elapsed(), Duration::ZERO, "it is not tried again");

    // Other writes of the subscription are not even sent; reads are.
    sleep(Duration::from_millis(6990)).await;
    let error = write(&world, &pool).await.unwrap_err();
    assert!(
        matches!(error, ArmError::Throttled { until } if until == start + Duration::from_secs(7)),
        "{error}"
    );
    world.pool("pool").await;
    assert_eq!(world.requests("PUT", "").len(), 1);
    sleep(Duration::from_millis(10)).await;
    write(&world, &pool).await.unwrap();
    assert_eq!(world.requests("PUT", "").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_429_about_one_resource_closes_nothing() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    for code in [
        "ReferencedResourceNotProvisioned",
        "RetryableErrorDueToAnotherOperation",
        "AnotherOperationInProgress",
    ] {
        world.fault("PUT", "/pool$", 1, &json!({"answer": {"code": code, "retryAfter": 60}}));
        let error = write(&world, &pool).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retriable, "{error}");
        assert_eq!(error.retry_after(Instant::now()), Some(Duration::from_mins(1)));
    }
    write(&world, &pool).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_accepted_is_followed_through_throttling_and_trouble() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault(
        "GET",
        "/operations/",
        1,
        &json!({"answer": {"status": 429, "retryAfter": 9}}),
    );
    world.fault("GET", "/operations/", 5, &json!({"answer": {"status": 500}}));
    let start = Instant::now();
    write(&world, &pool).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(9), "{:?}", start.elapsed());
    assert_eq!(world.requests("PUT", "").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_before_the_effect_is_a_write_sent_again() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault("PUT", "/pool$", 2, &json!({"cut": "before"}));
    write(&world, &pool).await.unwrap();
    assert_eq!(world.requests("PUT", "").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_after_the_effect_is_no_second_effect() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault("PUT", "/pool$", 1, &json!({"cut": "after"}));
    let read = write(&world, &pool).await.unwrap();
    let puts = world.requests("PUT", "");
    let statuses: Vec<_> = puts.iter().map(|put| put["status"].as_u64()).collect();
    assert_eq!(statuses, [None, Some(412)], "the second was refused");
    assert_eq!(read.addresses().next().unwrap().admin_state(), Some(AdminState::Down));
}

#[tokio::test(start_paused = true)]
async fn an_answer_lost_and_somebody_else_in_the_way_is_stale() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    world.fault("PUT", "/pool$", 1, &json!({"cut": "before"}));
    world.fault(
        "PUT",
        "/pool$",
        1,
        &json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60}}}}),
    );
    let error = write(&world, &pool).await.unwrap_err();
    assert_eq!((error.code(), error.class()), ("PreconditionFailed", ErrorClass::Stale));
    let now = world.pool("pool").await;
    assert_eq!(now.document["properties"]["drainPeriodInSeconds"], 60);
    assert_eq!(now.addresses().next().unwrap().admin_state(), Some(AdminState::None));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_does_not_end_in_time() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    world.control("PUT", "settings", &json!({"operationDelay": "5m"}));
    let pool = edited(&world).await;
    let start = Instant::now();
    let error = world
        .arm
        .write_pool(&pool, Permit::always(), start + Duration::from_secs(20))
        .await
        .unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn members_of_interfaces_are_not_the_pools_to_change() {
    let world = World::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&world).await;
    let body =
        json!({"error": {"code": "ModificationOfNICIpConfigBackendPoolNotSupported", "message": "m", "details": []}});
    world.fault("PUT", "/pool$", 1, &json!({"answer": {"status": 400, "body": body}}));
    let error = write(&world, &pool).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Terminal, "{error}");
}
