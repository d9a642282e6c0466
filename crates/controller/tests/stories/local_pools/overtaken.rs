//! Admin states that become due while ARM carries out an update of members: they are written at once, ARM cancels the operation of
//! the update, and that costs the update nothing.

use std::ops::RangeInclusive;
use std::time::Duration;

use headgate_controller::local_service::LocalPoolsSettings;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::super::guard::GUARD;
use super::super::world::{SECOND, entries, load_balancer};
use super::cluster::{INTERVAL, LocalCluster, Options, UPDATED, nodes, pool_path};

const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Far longer than the rest of a write.
const OPERATION: Duration = Duration::from_secs(20);
/// About as long as an operation, with the rest of a write.
const ONE_OPERATION: RangeInclusive<Duration> = Duration::from_secs(18)..=Duration::from_secs(22);
/// A pool of all nodes, which is no Service's.
const NODE_POOL: &str = "kubernetes";
const PUT_OF_A: &str = "/backendAddressPools/default-a$";
const PUT_OF_NODE_POOL: &str = "/backendAddressPools/kubernetes$";

async fn cluster_with(options: Options) -> LocalCluster {
    let names = NAMES.map(|name| format!("default-{name}"));
    let own = names.iter().map(|name| (name.as_str(), entries([1], false)));
    let pools: Vec<_> = own.chain([(NODE_POOL, entries(1..=4, false))]).collect();
    let mut document = load_balancer("kubernetes", &pools);
    let rules = document["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    for (number, rule) in rules.iter_mut().enumerate() {
        // Rules of one load balancer need ports of their own.
        rule["properties"]["frontendPort"] = json!(90 + number);
        rule["properties"]["backendPort"] = json!(90 + number);
    }
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![document],
        operation_delay: OPERATION,
        ..options
    })
    .await;
    for name in NAMES {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), &[1]).await;
    }
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0, "nothing differs");
    cluster
}

/// The first of the updates is under way: ARM has got its PUT.
async fn cluster_in_update(services: &[&str], options: Options) -> LocalCluster {
    let cluster = cluster_with(options).await;
    begin_update(&cluster, services).await;
    cluster
}

async fn begin_update(cluster: &LocalCluster, services: &[&str]) {
    let before = cluster.puts();
    send_update(cluster, services).await;
    // The answer has come.
    sleep(SECOND).await;
    assert_eq!(cluster.puts(), before + 1);
}

/// Returns right after ARM has got the first PUT.
async fn send_update(cluster: &LocalCluster, services: &[&str]) {
    let before = cluster.puts();
    for name in services {
        cluster.set_slice(name, &format!("{name}-1"), &[1, 2]).await;
    }
    while cluster.puts() == before {
        sleep(SECOND / 20).await;
    }
}

/// Another writer writes the pool of `c`, without an etag.
async fn write_as_another(cluster: &LocalCluster) {
    let path = pool_path("kubernetes", "default-c");
    let mut document = cluster.world.get(&path).await;
    document["futureField"] = json!(7);
    assert!(cluster.world.put(&path, &document, None).await.status().is_success());
}

/// The time from the taint of a node to its `Down` in this pool.
async fn time_to_down(cluster: &LocalCluster, node: usize, pool: &str) -> Duration {
    let tainted = Instant::now();
    cluster.world.taint(node, &[SIGNAL]).await;
    let name = format!("node-{node}");
    let is_down = async {
        while !cluster.world.down("kubernetes", pool).contains(&name) {
            sleep(SECOND / 20).await;
        }
    };
    timeout(4 * OPERATION, is_down).await.unwrap();
    tainted.elapsed()
}

/// How the operations of all writers have ended, in the order of their ends.
fn operations(cluster: &LocalCluster) -> Vec<String> {
    let journal = cluster.world.control("GET", "journal?limit=1000", &Value::Null);
    let entries = journal["entries"].as_array().unwrap().iter();
    let ended = entries.filter(|entry| entry["kind"] == "operation");
    ended
        .map(|entry| entry["status"].as_str().unwrap().to_owned())
        .collect()
}

async fn assert_updated(cluster: &LocalCluster, services: &[&str]) {
    for name in services {
        assert_eq!(
            cluster.addresses(&format!("default-{name}")).await,
            nodes(&[1, 2]),
            "{name}"
        );
        assert_eq!(cluster.events(name).await, [1, 0, 0], "{name}");
    }
    let updated = u64::try_from(services.len()).unwrap();
    assert_eq!((cluster.outcomes(), cluster.metric("retries_total")), ((updated, 0), 0));
    assert_eq!(cluster.metric("queue_depth"), 0);
}

#[tokio::test(start_paused = true)]
async fn admin_state_does_not_wait_for_an_operation_of_members() {
    for max_kept_bytes in [None, Some(0)] {
        let options = Options {
            max_kept_bytes,
            ..Options::default()
        };
        let cluster = cluster_in_update(&NAMES, options).await;
        let took = time_to_down(&cluster, 4, NODE_POOL).await;
        assert!(took < 2 * SECOND, "{took:?}");
        assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (2, 1));
        // The update that was overtaken is in the read that follows, so it is not sent again.
        sleep(5 * OPERATION).await;
        assert_updated(&cluster, &NAMES).await;
        assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (4, 1));
        assert_eq!(
            operations(&cluster),
            ["Canceled", "Succeeded", "Succeeded", "Succeeded"]
        );
        assert_eq!(
            cluster.world.down("kubernetes", NODE_POOL),
            ["node-4".to_owned()].into()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn admin_states_do_not_overtake_each_other() {
    let cluster = cluster_in_update(&["a"], Options::default()).await;
    let took = time_to_down(&cluster, 3, NODE_POOL).await;
    assert!(took < 2 * SECOND, "{took:?}");
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(ONE_OPERATION.contains(&took), "{took:?}");
    sleep(3 * OPERATION).await;
    assert_updated(&cluster, &["a"]).await;
    assert_eq!(operations(&cluster), ["Canceled", "Succeeded", "Succeeded"]);
    assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn admin_state_of_the_pool_itself_carries_its_members() {
    let cluster = cluster_in_update(&["a"], Options::default()).await;
    // Node 1 is in each of the four pools.
    cluster.world.taint(1, &[SIGNAL]).await;
    sleep(2 * SECOND).await;
    assert_eq!(cluster.puts(), 2);
    sleep(6 * OPERATION).await;
    assert_updated(&cluster, &["a"]).await;
    for pool in ["default-a", "default-b", "default-c", NODE_POOL] {
        assert_eq!(
            cluster.world.down("kubernetes", pool),
            ["node-1".to_owned()].into(),
            "{pool}"
        );
    }
    assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (5, 1));
    let note = &cluster.notes(UPDATED, "a").await[0];
    assert_eq!(note, "Load balancer backend pool updated successfully");
}

#[tokio::test(start_paused = true)]
async fn answer_to_the_members_is_awaited_beside_the_read() {
    // ARM is late with the effect of the PUT, or with its answer alone. In the first case the first read is older than the write.
    for stall in [json!({"stall": "500ms"}), json!({"stall": "500ms", "when": "after"})] {
        let cluster = cluster_with(Options::default()).await;
        cluster.fault("PUT", PUT_OF_A, Some(1), &stall);
        send_update(&cluster, &["a"]).await;
        let took = time_to_down(&cluster, 4, NODE_POOL).await;
        assert!(took < SECOND, "{stall}: {took:?}");
        assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (2, 1), "{stall}");
        sleep(3 * OPERATION).await;
        assert_updated(&cluster, &["a"]).await;
        assert_eq!(cluster.puts(), 2, "{stall}");
    }
}

#[tokio::test(start_paused = true)]
async fn members_that_arm_refuses_while_they_are_overtaken_cost_a_retry() {
    let cluster = cluster_with(Options::default()).await;
    cluster.fault("PUT", PUT_OF_A, Some(1), &json!({"stall": "500ms"}));
    send_update(&cluster, &["a"]).await;
    // Another writer is faster, so ARM answers 412.
    cluster
        .world
        .control("PUT", "settings", &json!({"operationDelay": "0s"}));
    write_as_another(&cluster).await;
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(took < SECOND, "{took:?}");
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-a").await, nodes(&[1, 2]));
    assert_eq!(cluster.events("a").await, [1, 1, 0]);
    assert_eq!((cluster.outcomes(), cluster.metric("retries_total")), ((1, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn put_without_an_answer_is_overtaken_after_a_second() {
    let cluster = cluster_with(Options::default()).await;
    let stall = json!({"stall": "5m"});
    cluster.fault("PUT", PUT_OF_A, Some(1), &stall);
    begin_update(&cluster, &["a"]).await;
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(took < 3 * SECOND, "{took:?}");
    // ARM never got the members; the next ticks write them, and no retry was spent.
    assert_eq!(cluster.addresses("default-a").await, nodes(&[1]));
    sleep(4 * INTERVAL).await;
    assert_updated(&cluster, &["a"]).await;
    assert_eq!(cluster.metric("overtaken_total"), 1);
}

#[tokio::test(start_paused = true)]
async fn admin_state_waits_where_arm_refuses_to_supersede() {
    for status in [409, 429] {
        let cluster = cluster_in_update(&["a"], Options::default()).await;
        let refusal = json!({"answer": {"status": status, "code": "RetryableErrorDueToAnotherOperation"}});
        cluster.fault("PUT", PUT_OF_NODE_POOL, Some(1), &refusal);
        let took = time_to_down(&cluster, 4, NODE_POOL).await;
        assert!(took < OPERATION + 2 * SECOND, "{status}: {took:?}");
        sleep(3 * OPERATION).await;
        assert_updated(&cluster, &["a"]).await;
        let refused = cluster.puts();
        assert_eq!(
            refused, 3,
            "{status}: the members, the refused admin state, and the admin state"
        );

        // The leader does not try it again in this term.
        begin_update(&cluster, &["b"]).await;
        let took = time_to_down(&cluster, 3, NODE_POOL).await;
        assert!(ONE_OPERATION.contains(&took), "{status}: {took:?}");
        sleep(3 * OPERATION).await;
        assert_updated(&cluster, &["a", "b"]).await;
        assert_eq!(cluster.puts(), refused + 2, "{status}");
        assert_eq!(operations(&cluster), ["Succeeded"; 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn operation_of_another_writer_is_not_superseded() {
    let cluster = cluster_in_update(&["a"], Options::default()).await;
    // Another writer supersedes the update of members right before the admin state.
    write_as_another(&cluster).await;
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    // The other operation began after the update of members, and the leader looks for its end less and less often.
    assert!(took > *ONE_OPERATION.start(), "{took:?}");
    sleep(4 * OPERATION).await;
    let document = cluster.pool("kubernetes", "default-c").await;
    assert_eq!(document["futureField"], 7);
    // The other writer has canceled the update of members, and nothing its own operation.
    assert_eq!(operations(&cluster), ["Canceled", "Succeeded", "Succeeded"]);
    assert_eq!(cluster.addresses("default-a").await, nodes(&[1, 2]));
}

#[tokio::test(start_paused = true)]
async fn admin_state_waits_where_the_setting_says_so() {
    let options = Options {
        settings: LocalPoolsSettings {
            supersede: false,
            ..LocalPoolsSettings::default()
        },
        ..Options::default()
    };
    let cluster = cluster_in_update(&["a"], options).await;
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(ONE_OPERATION.contains(&took), "{took:?}");
    sleep(3 * OPERATION).await;
    assert_updated(&cluster, &["a"]).await;
    assert_eq!(operations(&cluster), ["Succeeded"; 2]);
    assert_eq!(cluster.metric("overtaken_total"), 0);
}

#[tokio::test(start_paused = true)]
async fn withdrawn_signal_leaves_the_update_alone() {
    let cluster = cluster_in_update(&["a"], Options::default()).await;
    // The read that an admin state needs takes so long that its signal is gone when it ends.
    cluster.fault("GET", "/loadBalancers/kubernetes$", Some(1), &json!({"stall": "3s"}));
    cluster.world.taint(4, &[SIGNAL]).await;
    sleep(SECOND).await;
    cluster.world.taint(4, &[]).await;
    sleep(3 * OPERATION).await;
    assert_updated(&cluster, &["a"]).await;
    assert_eq!((cluster.puts(), cluster.metric("overtaken_total")), (1, 1));
    assert_eq!(operations(&cluster), ["Succeeded"]);
}

#[tokio::test(start_paused = true)]
async fn late_answer_of_arm_is_awaited_while_it_is_busy() {
    let cluster = cluster_with(Options::default()).await;
    cluster.fault("PUT", PUT_OF_A, Some(1), &json!({"stall": "3s", "when": "after"}));
    send_update(&cluster, &["a"]).await;
    // Without the answer the version is unknown, so the operation could be another writer's.
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(took < 4 * SECOND, "{took:?}");
    sleep(3 * OPERATION).await;
    assert_updated(&cluster, &["a"]).await;
    assert_eq!(operations(&cluster), ["Canceled", "Succeeded"]);
}

#[tokio::test(start_paused = true)]
async fn lease_is_kept_to_the_end_of_the_operation_if_the_admin_state_is_not_sent() {
    // ARM throttles the subscription, or the read that the admin state needs fails.
    let throttled = json!({"answer": {"status": 429, "code": "SubscriptionRequestsThrottled", "retryAfter": 5}});
    let unreadable = json!({"answer": {"status": 403}});
    for (method, path, fault) in [
        ("PUT", PUT_OF_NODE_POOL, throttled),
        ("GET", "/loadBalancers/kubernetes$", unreadable),
    ] {
        let cluster = cluster_in_update(&["a"], Options::default()).await;
        cluster.fault(method, path, Some(1), &fault);
        cluster.world.taint(4, &[SIGNAL]).await;
        sleep(OPERATION / 2).await;
        assert!(!cluster.world.take_arm_lease().await, "{fault}");
        let took = time_to_down(&cluster, 4, NODE_POOL).await;
        assert!(took < OPERATION, "{fault}: {took:?}");
        sleep(3 * OPERATION).await;
        assert_updated(&cluster, &["a"]).await;
        // A 429 for all requests says nothing about superseding.
        begin_update(&cluster, &["b"]).await;
        let took = time_to_down(&cluster, 3, NODE_POOL).await;
        assert!(took < 2 * SECOND, "{fault}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn admin_state_that_is_deferred_overtakes_when_it_is_due_again() {
    let cluster = cluster_with(Options::default()).await;
    // Refused for good, so tried again after 30 s.
    cluster.fault("PUT", PUT_OF_NODE_POOL, Some(1), &json!({"answer": {"status": 400}}));
    cluster.world.taint(4, &[SIGNAL]).await;
    cluster
        .world
        .control("PUT", "settings", &json!({"operationDelay": "80s"}));
    let tainted = Instant::now();
    begin_update(&cluster, &["a"]).await;
    while cluster.world.down("kubernetes", NODE_POOL).is_empty() {
        sleep(SECOND / 2).await;
    }
    let took = tainted.elapsed();
    assert!(took > 29 * SECOND && took < 40 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn guard_does_not_count_a_member_that_is_only_about_to_join() {
    let options = Options {
        guard: GUARD.clone(),
        ..Options::default()
    };
    let cluster = cluster_in_update(&["a"], options).await;
    // Node 1 was alone in the pool `a`, and node 2 joins it. In the pool of all nodes others serve.
    let took = time_to_down(&cluster, 1, NODE_POOL).await;
    assert!(took < 2 * SECOND, "{took:?}");
    assert!(cluster.world.down("kubernetes", "default-a").is_empty());
    sleep(3 * OPERATION).await;
    assert_eq!(
        cluster.world.down("kubernetes", "default-a"),
        ["node-1".to_owned()].into()
    );
    assert_updated(&cluster, &["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn members_supersede_nothing_even_if_they_are_due_with_an_admin_state() {
    let mut pools = Vec::from(NAMES.map(|name| (format!("default-{name}"), entries([1], false))));
    pools[1].1 = entries([1, 3], false);
    let pools: Vec<_> = pools
        .iter()
        .map(|(name, entries)| (name.as_str(), entries.clone()))
        .collect();
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        operation_delay: OPERATION,
        ..Options::default()
    })
    .await;
    for (name, numbers) in [("a", &[1][..]), ("b", &[1, 3]), ("c", &[1])] {
        cluster.add_service(name).await;
        cluster.set_slice(name, &format!("{name}-1"), numbers).await;
    }
    cluster.tick().await;
    // Node 3 leaves the pool `b` with the same tick that updates `a`.
    cluster.set_slice("b", "b-1", &[1]).await;
    begin_update(&cluster, &["a"]).await;
    let took = time_to_down(&cluster, 3, "default-b").await;
    assert!(took < 2 * SECOND, "{took:?}");
    assert_eq!(cluster.addresses("default-b").await, nodes(&[1, 3]));
    sleep(2 * INTERVAL + 3 * OPERATION).await;
    assert_eq!(cluster.addresses("default-a").await, nodes(&[1, 2]));
    assert_eq!(cluster.addresses("default-b").await, nodes(&[1]));
    assert_eq!((cluster.outcomes(), cluster.metric("retries_total")), ((2, 0), 0));
    assert_eq!(operations(&cluster), ["Canceled", "Succeeded", "Succeeded"]);
}

#[tokio::test(start_paused = true)]
async fn refused_members_take_only_their_own_entries_out_of_the_ledger() {
    let cluster = cluster_with(Options::default()).await;
    cluster.world.taint(2, &[SIGNAL]).await;
    // Node 2 is to join `a` as `Down`, which the ledger records before the PUT.
    sleep(3 * OPERATION).await;
    cluster.fault("PUT", PUT_OF_A, Some(1), &json!({"stall": "500ms"}));
    cluster
        .world
        .control("PUT", "settings", &json!({"operationDelay": "0s"}));
    send_update(&cluster, &["a"]).await;
    write_as_another(&cluster).await;
    let took = time_to_down(&cluster, 4, NODE_POOL).await;
    assert!(took < SECOND, "{took:?}");
    sleep(3 * INTERVAL).await;
    assert_eq!(
        cluster.world.down("kubernetes", "default-a"),
        ["node-2".to_owned()].into()
    );
    // What is in the ledger is given back.
    for node in [2, 4] {
        cluster.world.taint(node, &[]).await;
    }
    sleep(INTERVAL).await;
    for pool in ["default-a", NODE_POOL] {
        assert_eq!(cluster.world.down("kubernetes", pool), [].into(), "{pool}");
    }
    assert_eq!(cluster.addresses("default-a").await, nodes(&[1, 2]));
}
