//! The bullets of "Risks and Mitigations" but for stale state, which `replaced` has.

use headgate_azure::{RateLimit, RateLimits};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{ENFORCE, entries, load_balancer};
use super::stage::{DOWN, DRAINING, FAILED, OUT_OF_SERVICE, SECOND, Stage, between, entry};

fn throttled(seconds: u64) -> Value {
    json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": seconds}})
}

#[tokio::test(start_paused = true)]
async fn throttled_writes_come_again_to_the_second_and_it_is_told_once() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    stage.fault("PUT", "", Some(1), &throttled(90));
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.until("throttled", |stage| stage.puts().len() == 1).await;
    // Others do not ask before either.
    sleep(20 * SECOND).await;
    stage.taint(3, &[OUT_OF_SERVICE]);
    stage.until_down(&["node-2", "node-3"]).await;
    sleep(5 * SECOND).await;
    let puts = stage.puts();
    let statuses: Vec<_> = puts.iter().map(|put| put.status).collect();
    assert_eq!(statuses, [429, 200], "both in one");
    let wait = between(&puts[0], &puts[1]);
    assert!(wait >= 90 * SECOND && wait < 91 * SECOND, "{wait:?}");
    for node in ["node-2", "node-3"] {
        let notes = stage.notes(FAILED, node).await;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(stage.notes(DOWN, node).await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_lists_come_again_to_the_second_and_it_is_told() {
    let mut stage = Stage::set(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.fault("GET", "/loadBalancers$", Some(1), &throttled(60));
    stage.lead(ENFORCE).await;
    stage.until_down(&["node-2"]).await;
    sleep(5 * SECOND).await;
    let lists = stage.sent("GET", "/loadBalancers$");
    let wait = between(&lists[0], &lists[1]);
    assert!(wait >= 60 * SECOND && wait < 61 * SECOND, "{wait:?}");
    assert_eq!(stage.notes(FAILED, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_token_bucket_makes_writes_wait_in_line() {
    let names = ["lb1", "lb2", "lb3", "lb4", "lb5"];
    let documents: Vec<_> = names
        .iter()
        .map(|name| load_balancer(name, &[("kubernetes", entries(1..=3, false))]))
        .collect();
    let mut stage = Stage::set(3, &documents).await;
    stage.world.managed = names.to_vec();
    let write = RateLimit { qps: 0.2, bucket: 2 };
    let read = RateLimit {
        qps: 100.0,
        bucket: 100,
    };
    stage.world.rate_limits = Some(RateLimits { read, write });
    stage.lead(ENFORCE).await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.settle(&["node-2"]).await;
    let puts = stage.puts();
    assert_eq!(puts.len(), 5);
    let waits: Vec<_> = puts.iter().map(|put| between(&puts[0], put).as_secs()).collect();
    assert_eq!(waits, [0, 0, 5, 10, 15]);
    assert!(stage.notes(FAILED, "node-2").await.is_empty(), "a queue is no failure");
    let held_up = stage.metric(
        "cloudprovider_azure_api_request_ratelimited_count",
        &["update_backend_pool"],
    );
    assert_eq!(held_up, Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn retries_grow_further_apart() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    let busy =
        json!({"answer": {"status": 409, "body": {"error": {"code": "AnotherOperationInProgress", "message": "m"}}}});
    stage.fault("PUT", "", None, &busy);
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(300 * SECOND).await;
    let puts = stage.puts();
    let waits: Vec<_> = puts.windows(2).map(|pair| between(&pair[0], &pair[1])).collect();
    assert!(waits.len() < 30, "no hot loop: {waits:?}");
    assert!(waits[0] < SECOND, "{waits:?}");
    let longest = waits.iter().max().unwrap();
    assert!(*longest > 19 * SECOND && *longest < 22 * SECOND, "{waits:?}");
    let notes = stage.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    sleep(30 * SECOND).await;
    assert_eq!(stage.notes(FAILED, "node-2").await.len(), 2, "every five minutes");
    stage.no_faults();
    stage.settle(&["node-2"]).await;
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_write_for_each_pool_however_many_nodes() {
    let stage = Stage::new(60).await;
    let names: Vec<_> = (1..=50).map(|node| format!("node-{node}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for node in 1..=50 {
        stage.taint(node, &[OUT_OF_SERVICE]);
    }
    stage.settle(&names).await;
    assert_eq!(stage.puts().len(), 3);
    for node in 1..=50 {
        stage.taint(node, &[]);
    }
    stage.settle(&[]).await;
    assert_eq!(stage.puts().len(), 6);
    let told = stage.told().await;
    assert_eq!(told.len(), 100);
    assert!(told.values().all(|count| *count == 1), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_so_already_is_not_written() {
    let mut stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    // Neither by time nor by a new leader nor by another write of the pool.
    sleep(600 * SECOND).await;
    stage.stop().await;
    stage.lead(ENFORCE).await;
    stage
        .foreign("kubernetes", "kubernetes", |pool| {
            pool["properties"]["drainPeriodInSeconds"] = json!(60);
        })
        .await;
    sleep(60 * SECOND).await;
    assert_eq!(stage.puts().len(), 3 + 1);
    let reads = stage.sent("GET", "").len();
    sleep(600 * SECOND).await;
    assert_eq!(
        stage.sent("GET", "").len() - reads,
        40,
        "a list every 15 s, and nothing else"
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_overtaken_is_made_again_from_a_fresh_read_at_once() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    let drain = json!({"write": {"merge": {"properties": {"drainPeriodInSeconds": 60}}}});
    stage.fault("PUT", "/kubernetes$", Some(1), &drain);
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.settle(&["node-2"]).await;
    let puts = stage.puts();
    let statuses: Vec<_> = puts.iter().map(|put| put.status).collect();
    assert_eq!(statuses, [412, 200]);
    let reads = stage.sent("GET", "/loadBalancers/kubernetes$");
    let next = reads.iter().find(|read| read.at >= puts[0].at).unwrap();
    assert!(between(&puts[0], next) < SECOND / 10, "at once");
    // ARM needs its second for the other's write.
    assert!(between(&puts[0], &puts[1]) < 3 * SECOND);
    assert!(puts.iter().all(|put| put.if_match.is_some()));
    assert_eq!(
        puts[1].body["properties"]["drainPeriodInSeconds"], 60,
        "the other's change stays"
    );
    assert!(stage.notes(FAILED, "node-2").await.is_empty(), "it is no failure");
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_never_overwrites_what_somebody_wrote() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    sleep(200 * SECOND).await;
    // Minutes after the last list: another member, another setting, another's admin state.
    stage
        .foreign("kubernetes", "kubernetes", |pool| {
            pool["properties"]["drainPeriodInSeconds"] = json!(77);
            entry(pool, "node-1")["properties"]["adminState"] = json!("Up");
            let entries = pool["properties"]["loadBalancerBackendAddresses"]
                .as_array_mut()
                .unwrap();
            entries.push(json!({"name": "guest", "properties": {"ipAddress": "10.7.7.7"}}));
        })
        .await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.settle(&["node-2"]).await;
    let puts = stage.puts();
    let written = &puts.last().unwrap().body["properties"];
    assert_eq!(written["drainPeriodInSeconds"], 77);
    let states = stage.world.states("kubernetes", "kubernetes");
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
async fn partial_updates_are_told_and_go_on_until_all_is_done() {
    let stage = Stage::new(3).await;
    let boom =
        json!({"answer": {"status": 400, "body": {"error": {"code": "InternalServerError", "message": "boom"}}}});
    stage.fault("PUT", "kubernetes-internal/", None, &boom);
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(120 * SECOND).await;
    let down = stage.down();
    let counts: Vec<_> = down.values().map(std::collections::BTreeSet::len).collect();
    assert_eq!(counts, [0, 1, 1], "the others did not wait: {down:?}");
    assert!(stage.notes(DOWN, "node-2").await.is_empty(), "not everywhere yet");
    let notes = stage.notes(FAILED, "node-2").await;
    assert!(notes.len() == 1 && notes[0].contains("boom"), "{notes:?}");
    stage.no_faults();
    stage.settle(&["node-2"]).await;
    let notes = stage.notes(DOWN, "node-2").await;
    assert!(
        notes.len() == 1 && notes[0].contains("kubernetes-internal/kubernetes"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_told_once_and_tried_slowly() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    let forbidden = json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed",
        "message": "The client does not have authorization to perform action 'Microsoft.Network/loadBalancers/backendAddressPools/write'"}}}});
    stage.fault("PUT", "", None, &forbidden);
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(100 * SECOND).await;
    stage.taint(3, &[OUT_OF_SERVICE]);
    sleep(1100 * SECOND).await;
    let puts = stage.puts();
    assert!((4..=7).contains(&puts.len()), "{}", puts.len());
    for node in ["node-2", "node-3"] {
        let notes = stage.notes(FAILED, node).await;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].contains("backendAddressPools/write") && notes[0].contains("until somebody changes that"),
            "{notes:?}"
        );
    }
    stage.no_faults();
    sleep(301 * SECOND).await;
    stage.settle(&["node-2", "node-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_may_not_be_read_is_told_once() {
    let mut stage = Stage::set(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    let forbidden =
        json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed", "message": "no read"}}}});
    stage.fault("GET", "/subscriptions/", None, &forbidden);
    stage.lead(ENFORCE).await;
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(900 * SECOND).await;
    let notes = stage.notes(FAILED, "node-2").await;
    assert!(notes.len() == 1 && notes[0].contains("no read"), "{notes:?}");
    let lists = stage.sent("GET", "/loadBalancers$").len();
    assert!(lists <= 7, "{lists}");
    assert!(
        stage.notes(FAILED, "node-1").await.is_empty(),
        "nobody else is concerned"
    );
    stage.no_faults();
    sleep(301 * SECOND).await;
    stage.settle(&["node-2"]).await;
}
