//! The wait for an operation ends with the operation, and with nothing else.

use std::time::Duration;

use headgate_azure::{ArmError, BufferedResponse};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{OPERATION_DELAY, TestBed, edited, load_balancer, soon};

const STATUS_URL: &str = "/operations/";
const POOL: &str = "/backendAddressPools/pool$";

/// Answers that say nothing about the operation.
fn indefinite() -> Vec<Value> {
    let statuses =
        [400, 401, 403, 404, 408, 409, 410, 429, 500, 503].map(|status| json!({"answer": {"status": status}}));
    let bodies = [
        json!({"answer": {"status": 200, "text": "<html>Bad gateway</html>"}}),
        json!({"answer": {"status": 200, "body": {"status": 1}}}),
        json!({"answer": {"status": 200, "body": []}}),
        json!({"cut": "before"}),
    ];
    statuses.into_iter().chain(bodies).collect()
}

/// Writes the pool and returns how long that took, with the outcome.
async fn write(bed: &TestBed) -> (Duration, Result<(), ArmError>) {
    let pool = edited(bed).await;
    let start = Instant::now();
    let operation = bed.put(&pool).await;
    let outcome = bed.arm.poll_until_done(&operation, soon()).await;
    (start.elapsed(), outcome)
}

#[tokio::test(start_paused = true)]
async fn status_that_cannot_be_read_does_not_end_the_wait() {
    for answer in indefinite() {
        let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
        bed.fault("GET", STATUS_URL, 5, &answer);
        let (took, outcome) = write(&bed).await;
        outcome.unwrap_or_else(|error| panic!("{answer}: {error}"));
        let expected = OPERATION_DELAY..30 * OPERATION_DELAY;
        assert!(expected.contains(&took), "{answer}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pool_that_cannot_be_read_does_not_end_the_wait_either() {
    // A 404 with ARM's code says that the pool is gone.
    let is_indefinite = |answer: &Value| answer["answer"]["status"] != 404;
    for answer in indefinite().into_iter().filter(is_indefinite) {
        let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
        bed.fault("GET", STATUS_URL, 1000, &json!({"answer": {"status": 410}}));
        let pool = edited(&bed).await;
        let operation = bed.put(&pool).await;
        let start = Instant::now();
        bed.fault("GET", POOL, 3, &answer);
        let outcome = bed.arm.poll_until_done(&operation, soon()).await;
        outcome.unwrap_or_else(|error| panic!("{answer}: {error}"));
        assert!(start.elapsed() >= OPERATION_DELAY, "{answer}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_the_wait_for_a_status_that_is_never_read() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let pool = edited(&bed).await;
    bed.fault("GET", ".", 1000, &json!({"answer": {"status": 200, "text": "<html>"}}));
    let operation = bed.put(&pool).await;
    let (start, deadline) = (Instant::now(), soon());
    let error = bed.arm.poll_until_done(&operation, deadline).await.unwrap_err();
    assert!(matches!(error, ArmError::DeadlineExceeded), "{error}");
    assert!(start.elapsed() <= Duration::from_mins(2), "{:?}", start.elapsed());
    let polls = bed.requests("GET", STATUS_URL).len();
    assert!((24..60).contains(&polls), "{polls} polls");
}

#[tokio::test(start_paused = true)]
async fn link_to_another_host_is_not_followed_and_the_pool_shows_the_end() {
    let elsewhere = |response: BufferedResponse| {
        let (mut parts, body) = response.into_parts();
        if parts.headers.contains_key("azure-asyncoperation") {
            let url = "https://evil.test/operations/1?s=secret".parse().unwrap();
            parts.headers.insert("azure-asyncoperation", url);
        }
        BufferedResponse::from_parts(parts, body)
    };
    let bed = TestBed::with(&[load_balancer("lb", 3)], None, elsewhere).await;
    let (took, outcome) = write(&bed).await;
    outcome.unwrap();
    assert!(took >= OPERATION_DELAY, "{took:?}");
    assert!(bed.requests("GET", STATUS_URL).is_empty());
}

#[tokio::test(start_paused = true)]
async fn polls_without_retry_after_are_a_second_apart_while_arm_throttles() {
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    bed.control("PUT", "settings", &json!({"operationDelay": "5s", "pollRetryAfter": 0}));
    bed.fault("GET", STATUS_URL, 1000, &json!({"answer": {"status": 429}}));
    let pool = edited(&bed).await;
    let operation = bed.put(&pool).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    bed.arm.poll_until_done(&operation, deadline).await.unwrap_err();
    let polls = bed.requests("GET", STATUS_URL).len();
    assert!((5..=11).contains(&polls), "{polls} polls in 10 s");
    // The gate is closed, although ARM named no time.
    let error = bed.arm.get_pool(&super::pool_id("pool"), soon()).await.unwrap_err();
    assert!(matches!(error, ArmError::Throttled { .. }), "{error}");
}
