//! The end of ARM's operations: while it is not known, the shared Lease stays held, and what was written is tried again.

use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DRAINING, TestCluster};
use super::world::{ENFORCE, SECOND, dual_stack, two_load_balancers};

fn answer(status: u16, code: &str) -> Value {
    json!({"answer": {"status": status, "body": {"error": {"code": code, "message": "m"}}}})
}

fn is_down(cluster: &TestCluster) -> bool {
    cluster.down().values().all(|down| down.contains("node-2"))
}

/// ARM asks for 10 s between polls, and its operations take less than one.
#[tokio::test(start_paused = true)]
async fn the_second_pool_does_not_wait_for_the_retry_after_of_the_first() {
    let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
    cluster.configure(&json!({"operationDelay": "900ms", "pollRetryAfter": 10}));
    cluster.taint(2, &[DRAINING]);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 3 * SECOND, "{took:?}; it was 10 s");
}

/// ARM works on the write for 20 s, and says nothing about it that can be used.
#[tokio::test(start_paused = true)]
async fn the_lease_is_held_until_the_end_of_an_operation_is_known() {
    for (method, path, fault) in [
        (
            "GET",
            "/operations/",
            json!({"answer": {"status": 200, "text": "<html>"}}),
        ),
        ("GET", "/operations/", answer(401, "ExpiredAuthenticationToken")),
        ("GET", "/operations/", answer(410, "Gone")),
        ("GET", "/operations/", answer(404, "")),
        ("GET", "/operations/", json!({"answer": {"status": 403}})),
        ("GET", "/operations/", json!({"answer": {"status": 429}})),
        ("GET", "/operations/", json!({"answer": {"status": 503}})),
        ("GET", "/operations/", json!({"cut": "before"})),
        // Later than the time that an operation has.
        (
            "GET",
            "/operations/",
            json!({"answer": {"status": 429, "retryAfter": 900, "body": {"error": {"code": "RetryableError"}}}}),
        ),
        // The write itself has no answer.
        ("PUT", "/backendAddressPools/", json!({"cut": "after"})),
    ] {
        let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
        cluster.lead(ENFORCE).await;
        cluster.configure(&json!({"operationDelay": "20s"}));
        cluster.fault(method, path, Some(100), &fault);
        cluster.taint(2, &[DRAINING]);
        cluster
            .until("a PUT was sent", |cluster| !cluster.puts().is_empty())
            .await;
        for _ in 0..15 {
            sleep(SECOND).await;
            assert!(!cluster.take_arm_lease().await, "{method} {path} {fault}");
        }
        cluster.clear_faults();
        cluster.until("node 2 is Down", is_down).await;
        let mut waited = 0;
        while !cluster.take_arm_lease().await {
            waited += 1;
            assert!(waited <= 60, "{method} {path} {fault}: the Lease is not released");
            sleep(SECOND).await;
        }
    }
}

/// An operation that fails without a code that is final is tried again.
#[tokio::test(start_paused = true)]
async fn an_operation_without_a_final_code_is_repeated() {
    for code in [
        "",
        "Failed",
        "NeverHeardOf",
        "ConflictingConcurrentWriteNotAllowed",
        "ServiceUnavailable",
        "ServerTimeout",
        "OperationTimedOut",
        "GatewayTimeout",
    ] {
        let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
        cluster.lead(ENFORCE).await;
        let failed = json!({"operation": "fail", "effect": "lost", "error": {"code": code, "message": "m"}});
        cluster.fault("PUT", "/backendAddressPools/", Some(2), &failed);
        cluster.taint(2, &[DRAINING]);
        let took = cluster.until("node 2 is Down", is_down).await;
        assert!(took <= 30 * SECOND, "{code}: {took:?}");
    }
}
