//! The rows of "Risks and Mitigations", except stale state, which is in `replaced`.

use headgate_test_kubernetes::assert_contains;
use std::collections::BTreeSet;

use headgate_azure::{RateLimit, RateLimits};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{ENFORCE, dual_stack, entries, load_balancer, one_pool, two_load_balancers};
use super::cluster::{DOWN, FAILED, OUT_OF_SERVICE, ROLE_MISSING, SECOND, TestCluster, between, entry};

fn throttled(seconds: u64) -> Value {
    json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": seconds}})
}

#[tokio::test(start_paused = true)]
async fn throttled_writes_are_retried_to_the_second_and_reported_once() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.fault("PUT", "", Some(1), &throttled(90));
    cluster.taint(2, &[OUT_OF_SERVICE]);
    cluster.until("throttled", |cluster| cluster.puts().len() == 1).await;
    // A change of another node does not send a request earlier.
    sleep(20 * SECOND).await;
    cluster.taint(3, &[OUT_OF_SERVICE]);
    cluster.until_down(&["node-2", "node-3"]).await;
    sleep(5 * SECOND).await;
    let puts = cluster.puts();
    let statuses: Vec<_> = puts.iter().map(|put| put.status).collect();
    assert_eq!(statuses, [429, 200], "one write for both");
    let wait = between(&puts[0], &puts[1]);
    assert!(wait >= 90 * SECOND && wait < 91 * SECOND, "{wait:?}");
    for node in ["node-2", "node-3"] {
        let notes = cluster.notes(FAILED, node).await;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(cluster.notes(DOWN, node).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_arm_puts_off_for_minutes_waits_without_the_lease_and_is_reported() {
    for (method, path) in [
        ("GET", "/loadBalancers/kubernetes$"),
        ("PUT", "/backendAddressPools/kubernetes$"),
    ] {
        let cluster = TestCluster::with(3, &one_pool(3)).await;
        let refusal = json!({"answer": {"status": 503, "retryAfter": 100}});
        cluster.fault(method, path, Some(1), &refusal);
        cluster.taint(2, &[OUT_OF_SERVICE]);
        sleep(20 * SECOND).await;
        assert!(cluster.take_arm_lease().await, "{method}");
        cluster.release_arm_lease().await;
        assert_eq!(cluster.notes(FAILED, "node-2").await.len(), 1, "{method}");
        let took = cluster.until_down(&["node-2"]).await;
        assert!(took >= 79 * SECOND && took < 90 * SECOND, "{method}: {took:?}");
    }
}

/// Nothing can be written after such a read.
#[tokio::test(start_paused = true)]
async fn read_that_outlasts_a_hold_of_the_lease_is_reported() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.fault("GET", "/loadBalancers/kubernetes$", None, &json!({"stall": "40s"}));
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(180 * SECOND).await;
    assert!(cluster.puts().is_empty());
    let notes = cluster.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    cluster.clear_faults();
    cluster.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn token_bucket_queues_writes() {
    let names = ["lb1", "lb2", "lb3", "lb4", "lb5"];
    let documents: Vec<_> = names
        .iter()
        .map(|name| load_balancer(name, &[("kubernetes", entries(1..=3, false))]))
        .collect();
    let mut cluster = TestCluster::without_leader(3, &documents).await;
    cluster.world.managed = names.to_vec();
    let write = RateLimit { qps: 0.2, bucket: 2 };
    let read = RateLimit {
        qps: 100.0,
        bucket: 100,
    };
    cluster.world.rate_limits = Some(RateLimits { read, write });
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[OUT_OF_SERVICE]);
    cluster.settle(&["node-2"]).await;
    let puts = cluster.puts();
    assert_eq!(puts.len(), 5);
    let waits: Vec<_> = puts.iter().map(|put| between(&puts[0], put).as_secs()).collect();
    assert_eq!(waits, [0, 0, 5, 10, 15]);
    assert!(
        cluster.notes(FAILED, "node-2").await.is_empty(),
        "waiting is no failure"
    );
    let held_up = cluster.metric(
        "cloudprovider_azure_api_request_ratelimited_count",
        &["update_backend_pool"],
    );
    assert_eq!(held_up, Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn one_write_for_each_pool_however_many_nodes() {
    let cluster = TestCluster::new(60).await;
    let names: Vec<_> = (1..=50).map(|node| format!("node-{node}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for node in 1..=50 {
        cluster.taint(node, &[OUT_OF_SERVICE]);
    }
    cluster.settle(&names).await;
    assert_eq!(cluster.puts().len(), 3);
    for node in 1..=50 {
        cluster.taint(node, &[]);
    }
    cluster.settle(&[]).await;
    assert_eq!(cluster.puts().len(), 6);
    let counts = cluster.event_counts().await;
    assert_eq!(counts.len(), 100);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_a_change() {
    let mut cluster = TestCluster::with_node_2_down().await;
    // Neither time nor a new leader nor a foreign write of the pool leads to a write.
    sleep(600 * SECOND).await;
    cluster.stop().await;
    cluster.lead(ENFORCE).await;
    cluster.change_pool("kubernetes").await;
    sleep(60 * SECOND).await;
    assert_eq!(cluster.puts().len(), 3 + 1);
    let reads = cluster.sent("GET", "").len();
    sleep(600 * SECOND).await;
    assert_eq!(
        cluster.sent("GET", "").len() - reads,
        40,
        "a list every 15 s, and nothing else"
    );
}

#[tokio::test(start_paused = true)]
async fn overtaken_write_is_repeated_at_once_from_a_fresh_read() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    let drain = json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60}}}});
    cluster.fault("PUT", "/kubernetes$", Some(1), &drain);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    cluster.settle(&["node-2"]).await;
    let puts = cluster.puts();
    let statuses: Vec<_> = puts.iter().map(|put| put.status).collect();
    assert_eq!(statuses, [412, 200]);
    let reads = cluster.sent("GET", "/loadBalancers/kubernetes$");
    let next = reads.iter().find(|read| read.at >= puts[0].at).unwrap();
    assert!(between(&puts[0], next) < SECOND / 10, "at once");
    // ARM needs a second for the foreign write.
    assert!(between(&puts[0], &puts[1]) < 3 * SECOND);
    assert!(puts.iter().all(|put| put.if_match.is_some()));
    assert_eq!(
        puts[1].body["properties"]["drainPeriodInSeconds"], 60,
        "the foreign change stays"
    );
    assert!(cluster.notes(FAILED, "node-2").await.is_empty(), "it is no failure");
}

/// Another writer is faster each time, and ARM applies its writes at once.
#[tokio::test(start_paused = true)]
async fn write_that_is_overtaken_three_times_is_reported() {
    for overtaken in 2..=3 {
        let cluster = TestCluster::with(3, &one_pool(3)).await;
        cluster.configure(&json!({"operationDelay": "0s"}));
        for write in 1..=overtaken {
            let drain = json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60 * write}}}});
            cluster.fault("PUT", "/kubernetes$", Some(1), &drain);
        }
        cluster.taint(2, &[OUT_OF_SERVICE]);
        cluster.settle(&["node-2"]).await;
        let puts = cluster.puts();
        let statuses: Vec<_> = puts.iter().map(|put| put.status).collect();
        assert_eq!(statuses, [vec![412; overtaken], vec![200]].concat());
        let notes = cluster.notes(FAILED, "node-2").await;
        assert_eq!(notes.is_empty(), overtaken < 3, "{notes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stale_read_never_overwrites_a_foreign_write() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    sleep(200 * SECOND).await;
    // Minutes after the last list: a new member, a changed property, a foreign admin state.
    cluster
        .foreign("kubernetes", "kubernetes", |pool| {
            pool["properties"]["drainPeriodInSeconds"] = json!(77);
            entry(pool, "node-1")["properties"]["adminState"] = json!("Up");
            let entries = pool["properties"]["loadBalancerBackendAddresses"]
                .as_array_mut()
                .unwrap();
            entries.push(json!({"name": "guest", "properties": {"ipAddress": "10.7.7.7"}}));
        })
        .await;
    cluster.taint(2, &[OUT_OF_SERVICE]);
    cluster.settle(&["node-2"]).await;
    let puts = cluster.puts();
    let written = &puts.last().unwrap().body["properties"];
    assert_eq!(written["drainPeriodInSeconds"], 77);
    let states = cluster.states("kubernetes", "kubernetes");
    let expected = [
        ("guest", "None"),
        ("node-1", "Up"),
        ("node-2", "Down"),
        ("node-3", "None"),
    ];
    assert!(
        states
            .iter()
            .map(|(name, state)| (name.as_str(), state.as_str()))
            .eq(expected),
        "{states:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn partial_updates_are_reported_and_completed() {
    let cluster = TestCluster::new(3).await;
    let boom =
        json!({"answer": {"status": 400, "body": {"error": {"code": "InternalServerError", "message": "boom"}}}});
    cluster.fault("PUT", "kubernetes-internal/", None, &boom);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(120 * SECOND).await;
    let down = cluster.down();
    let counts: Vec<_> = down.values().map(BTreeSet::len).collect();
    assert_eq!(counts, [0, 1, 1], "the other pools are written: {down:?}");
    assert!(cluster.notes(DOWN, "node-2").await.is_empty(), "not everywhere yet");
    let notes = cluster.notes(FAILED, "node-2").await;
    assert!(notes.len() == 1 && notes[0].contains("boom"), "{notes:?}");
    cluster.clear_faults();
    cluster.settle(&["node-2"]).await;
    let notes = cluster.notes(DOWN, "node-2").await;
    assert!(
        notes.len() == 1 && notes[0].contains("kubernetes-internal/kubernetes"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pool_that_arm_fails_to_read_or_to_write_delays_no_other_pool_for_long() {
    let failed = json!({"answer": {"status": 500}});
    // Of an interface in this pool: the load balancer itself is not busy.
    let blocked_by = json!([{"code": "ReferencedResourceNotProvisioned", "message": "nic7 is in Failed state"}]);
    let busy = json!({"answer": {"status": 429, "body": {"error": {"code": "RetryableError", "details": blocked_by}}}});
    for (method, error, max_kept_bytes, reason) in [
        ("PUT", &failed, None, "500"),
        ("PUT", &busy, None, "nic7 is in Failed state"),
        // Of a large load balancer each pool is read alone.
        ("GET", &failed, Some(0), "500"),
    ] {
        let cluster =
            TestCluster::configured(3, &two_load_balancers(3), |world| world.max_kept_bytes = max_kept_bytes).await;
        cluster.taint(1, &[OUT_OF_SERVICE]);
        cluster.settle(&["node-1"]).await;
        let pool = "/loadBalancers/kubernetes/backendAddressPools/kubernetes$";
        cluster.fault(method, pool, None, error);
        cluster.taint(2, &[OUT_OF_SERVICE]);
        sleep(120 * SECOND).await;
        let down = |nodes: &[&str]| nodes.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!(
            cluster.down()["kubernetes/kubernetes-IPv6"],
            down(&["node-1", "node-2"]),
            "{method} {error}"
        );
        // What is given back elsewhere does not wait for the `Down` that fails.
        cluster.taint(1, &[]);
        sleep(120 * SECOND).await;
        assert_eq!(
            cluster.down()["kubernetes/kubernetes-IPv6"],
            down(&["node-2"]),
            "{method} {error}"
        );
        let notes = cluster.notes(FAILED, "node-2").await;
        assert!(
            !notes.is_empty() && notes.iter().all(|note| note.contains(reason)),
            "{notes:?}"
        );
        if error == &busy {
            let before = cluster.puts().len();
            sleep(3600 * SECOND).await;
            let in_an_hour = cluster.puts().len() - before;
            assert!((12..16).contains(&in_an_hour), "{in_an_hour}");
            // Another version may be accepted.
            cluster.clear_faults();
            cluster.change_pool("kubernetes-IPv6").await;
            let took = cluster.until_down(&["node-2"]).await;
            assert!(took < 20 * SECOND, "{took:?}");
        }
        cluster.clear_faults();
        cluster.settle(&["node-2"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_busy_load_balancer_begin_anew_after_a_write() {
    let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
    let busy = json!({"answer": {"code": "AnotherOperationInProgress"}});
    cluster.fault("PUT", "", Some(4), &busy);
    cluster.fault("PUT", "IPv6", Some(1), &busy);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    // Four are refused, one is accepted, and its batch ends with one that is refused.
    cluster.until("six PUTs", |cluster| cluster.puts().len() == 6).await;
    cluster.taint(3, &[OUT_OF_SERVICE]);
    let took = cluster.until_down(&["node-2", "node-3"]).await;
    assert!(took < 5 * SECOND, "{took:?}");
    let puts = cluster.puts();
    let waits: Vec<_> = puts
        .windows(2)
        .map(|pair| between(&pair[0], &pair[1]).as_secs())
        .collect();
    assert_eq!(waits[..4], [1, 2, 4, 8], "while it stays busy");
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_minute_are_over_with_the_first_of_these_writes_that_succeeds() {
    let busy = json!({"answer": {"code": "AnotherOperationInProgress"}});
    for (refused, accepted_last) in [(9, "/kubernetes$"), (10, "IPv6")] {
        let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
        cluster.fault("PUT", "", Some(refused), &busy);
        // The batch that ARM accepts ends with the other pool, which is refused once more.
        cluster.fault("PUT", accepted_last, Some(1), &busy);
        cluster.taint(2, &[OUT_OF_SERVICE]);
        cluster.until_down(&["node-2"]).await;
        let puts = cluster.puts();
        let [.., accepted, _, last] = &puts[..] else {
            panic!("{puts:?}")
        };
        let took = between(accepted, last);
        assert!(took < 5 * SECOND, "{accepted_last}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pool_that_arm_refuses_once_does_not_wait_as_long_as_those_that_it_refuses_for_hours() {
    let pools = ["a1", "a2", "a3", "a4", "a5", "b"].map(|name| (name, entries(1..=3, false)));
    let cluster = TestCluster::with(3, &[load_balancer("kubernetes", &pools)]).await;
    let busy = json!({"answer": {"code": "AnotherOperationInProgress"}});
    cluster.fault("PUT", "/a[1-5]$", None, &busy);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(3600 * SECOND).await;
    cluster.fault("PUT", "/b$", Some(1), &busy);
    cluster.taint(3, &[OUT_OF_SERVICE]);
    let is_written = |cluster: &TestCluster| cluster.down()["kubernetes/b"].len() == 2;
    let took = cluster.until("the other pool", is_written).await;
    assert!(took < 20 * SECOND, "{took:?}");
    // Where ARM refuses all pools, they wait together.
    cluster.fault("PUT", "", None, &busy);
    cluster.taint(3, &[]);
    sleep(3600 * SECOND).await;
    let before = cluster.puts().len();
    sleep(3600 * SECOND).await;
    let in_an_hour = cluster.puts().len() - before;
    assert!((12..16).contains(&in_an_hour), "{in_an_hour}");
}

#[tokio::test(start_paused = true)]
async fn pool_that_arm_refuses_for_long_delays_no_retry_of_another_one() {
    // What the other pool's write meets once, and where the intent cannot be recorded.
    let conflict = json!({"answer": {"status": 409}});
    let later = json!({"answer": {"status": 409, "retryAfter": 100}});
    for (faults, of_pool) in [
        (
            [
                ("kubernetes", &json!({"answer": {"status": 400}})),
                ("kubernetes-IPv6", &conflict),
            ],
            "kubernetes-IPv6",
        ),
        (
            [
                ("kubernetes-IPv6", &json!({"answer": {"status": 400}})),
                ("kubernetes", &conflict),
            ],
            "kubernetes",
        ),
    ] {
        let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
        for (pool, fault) in faults {
            let times = (fault == &conflict).then_some(1);
            cluster.fault("PUT", &format!("/backendAddressPools/{pool}$"), times, fault);
        }
        cluster.taint(2, &[OUT_OF_SERVICE]);
        sleep(5 * SECOND).await;
        let down = cluster.down();
        assert!(down[&format!("kubernetes/{of_pool}")].contains("node-2"), "{down:?}");
    }
    let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
    cluster.fault("PUT", "/backendAddressPools/kubernetes$", Some(1), &later);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(5 * SECOND).await;
    cluster.taint(3, &[OUT_OF_SERVICE]);
    sleep(5 * SECOND).await;
    let down = cluster.down();
    assert_eq!(down["kubernetes/kubernetes-IPv6"].len(), 2, "{down:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_load_balancer_delays_no_other_one() {
    for (slow, other) in [
        ("kubernetes-internal/", "kubernetes/"),
        ("kubernetes/", "kubernetes-internal/"),
    ] {
        let cluster = TestCluster::new(3).await;
        cluster.fault("PUT", slow, Some(1), &json!({"stall": "20s"}));
        cluster.taint(2, &[OUT_OF_SERVICE]);
        let is_down = |cluster: &TestCluster, name: &str| {
            let down = cluster.down();
            let mut of_it = down.iter().filter(|(pool, _)| pool.starts_with(name));
            of_it.all(|(_, down)| down.len() == 1)
        };
        let took = cluster
            .until("the other one Down", |cluster| is_down(cluster, other))
            .await;
        assert!(took < 5 * SECOND && !is_down(&cluster, slow), "{other}: {took:?}");
        let took = cluster.until("both Down", |cluster| is_down(cluster, slow)).await;
        assert!(took > 10 * SECOND, "{slow}: {took:?}");
    }
}

/// The hold of the shared Lease has closed, and cannot end before the operation.
#[tokio::test(start_paused = true)]
async fn slow_operation_delays_no_other_load_balancer_that_is_due_later() {
    let cluster = TestCluster::new(3).await;
    cluster.fault("PUT", "kubernetes-internal/", Some(1), &json!({"stall": "90s"}));
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(40 * SECOND).await;
    cluster.taint(3, &[OUT_OF_SERVICE]);
    let are_down = |cluster: &TestCluster, name: &str| {
        let down = cluster.down();
        let mut of_it = down.iter().filter(|(pool, _)| pool.starts_with(name));
        of_it.all(|(_, down)| down.len() == 2)
    };
    let took = cluster
        .until("the other one Down", |cluster| are_down(cluster, "kubernetes/"))
        .await;
    assert!(
        took < 5 * SECOND && !are_down(&cluster, "kubernetes-internal/"),
        "{took:?}"
    );
    cluster
        .until("both Down", |cluster| are_down(cluster, "kubernetes-internal/"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn missing_right_is_reported_once_and_retried_slowly() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    let forbidden = json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed",
        "message": "The client does not have authorization to perform action 'Microsoft.Network/loadBalancers/backendAddressPools/write'"}}}});
    cluster.fault("PUT", "", None, &forbidden);
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(100 * SECOND).await;
    cluster.taint(3, &[OUT_OF_SERVICE]);
    sleep(1100 * SECOND).await;
    let puts = cluster.puts();
    assert!((4..=7).contains(&puts.len()), "{}", puts.len());
    for node in ["node-2", "node-3"] {
        let notes = cluster.notes(ROLE_MISSING, node).await;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_contains!(
            notes[0],
            "backendAddressPools/write",
            "until an operator corrects the cause"
        );
    }
    cluster.clear_faults();
    sleep(301 * SECOND).await;
    cluster.settle(&["node-2", "node-3"]).await;
}
