//! Lists and load balancers of many megabytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use headgate_controller::admin_state::{AdminStateMode, Policy};
use hyper::{Method, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DOWN, DRAINING, FAILED, SECOND, TestCluster};
use super::world::{ENFORCE, entries, id_of, load_balancer, pool_path};

const MIB: usize = 1024 * 1024;
const LISTS: &str = "/loadBalancers$";
const POOL: &str = "/loadBalancers/kubernetes/backendAddressPools/kubernetes$";

fn kubernetes() -> Value {
    load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])
}

#[tokio::test(start_paused = true)]
async fn list_page_above_16_mib_is_read() {
    let mut other = load_balancer("other", &[("pool", entries(1..=3, false))]);
    other["tags"] = json!({"note": "x".repeat(17 * MIB)});
    let cluster = TestCluster::with(3, &[other, kubernetes()]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert_eq!(cluster.world.down("kubernetes", "kubernetes").len(), 1);
    assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    cluster.taint(2, &[]);
    sleep(5 * SECOND).await;
    assert!(cluster.world.down("kubernetes", "kubernetes").is_empty());
    assert!(cluster.world.down("other", "pool").is_empty());
}

#[tokio::test(start_paused = true)]
async fn pool_of_a_load_balancer_that_is_too_large_to_keep_is_read_before_its_write() {
    let mut large = kubernetes();
    large["tags"] = json!({"note": "x".repeat(7 * MIB)});
    let pool = &mut large["properties"]["backendAddressPools"][0];
    pool["futurePool"] = json!("pool");
    pool["properties"]["loadBalancerBackendAddresses"][0]["futureAddress"] = json!({"deep": [null, 1.5]});
    let cluster = TestCluster::with(3, &[large]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert_eq!(cluster.world.down("kubernetes", "kubernetes").len(), 1);
    assert_eq!((cluster.sent("GET", POOL).len(), cluster.puts().len()), (1, 1));
    let path = pool_path("kubernetes", "kubernetes");
    let written = cluster.get(&path).await;
    assert_eq!(written["futurePool"], "pool", "the PUT has every field");
    let address = &written["properties"]["loadBalancerBackendAddresses"][0];
    assert_eq!(address["futureAddress"], json!({"deep": [null, 1.5]}));
}

#[tokio::test(start_paused = true)]
async fn changed_pool_of_a_large_load_balancer_is_planned_anew() {
    let mut large = kubernetes();
    large["tags"] = json!({"note": "x".repeat(7 * MIB)});
    let mut cluster = TestCluster::without_leader(3, &[large]).await;
    // Between the read of the load balancer and that of its pool another writer was there, once.
    let is_due = Arc::new(AtomicBool::new(true));
    let stale = Arc::clone(&is_due);
    cluster.world.intercept = Some(Arc::new(move |request| {
        let path = request.uri().path();
        let is_pool = request.method() == Method::GET && path.ends_with("/backendAddressPools/kubernetes");
        if !is_pool || !stale.swap(false, Ordering::SeqCst) {
            return None;
        }
        let body = json!({"name": "kubernetes", "etag": "W/\"another\"", "properties": {"loadBalancerBackendAddresses": entries(3..=3, false)}});
        Some(Response::new(Bytes::from(body.to_string())))
    }));
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    let down: Vec<_> = cluster.world.down("kubernetes", "kubernetes").into_iter().collect();
    assert_eq!(down, ["node-2"]);
    assert!(!is_due.load(Ordering::SeqCst));
    assert_eq!(cluster.puts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lists_of_many_entries_wait_for_signals_but_not_for_another_writer() {
    let pool = entries(1..=4000, false);
    let mut cluster = TestCluster::without_leader(3, &[load_balancer("kubernetes", &[("kubernetes", pool)])]).await;
    // Without writes, only the lists need requests.
    let mode = AdminStateMode::Observe;
    cluster.lead(Policy { mode, ..ENFORCE }).await;
    sleep(5 * SECOND).await;
    let lists = || cluster.sent("GET", LISTS).len();
    let before = lists();
    cluster.taint(1, &[DRAINING]);
    sleep(SECOND / 2).await;
    assert_eq!(lists() - before, 1, "the first signal does not wait");
    cluster.taint(2, &[DRAINING]);
    sleep(SECOND / 2).await;
    assert_eq!(lists() - before, 1, "4,000 entries: 1.2 s");
    sleep(SECOND).await;
    assert_eq!(lists() - before, 2);
    cluster.taint(3, &[DRAINING]);
    assert!(cluster.take_arm_lease().await);
    cluster.release_arm_lease().await;
    sleep(3 * SECOND / 10).await;
    assert_eq!(lists() - before, 3, "another writer was there");
}

#[tokio::test(start_paused = true)]
async fn load_balancers_are_read_one_by_one_if_the_list_is_too_large() {
    let internal = load_balancer("kubernetes-internal", &[("kubernetes", entries(1..=3, false))]);
    let mut cluster = TestCluster::without_leader(3, &[kubernetes(), internal]).await;
    // The parser of a debug build is slow, so it gets nothing to do.
    let page = Bytes::from(vec![b'x'; 65 * MIB]);
    cluster.world.intercept = Some(Arc::new(move |request| {
        let is_list = request.method() == Method::GET && request.uri().path().ends_with("/loadBalancers");
        is_list.then(|| Response::new(page.clone()))
    }));
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert_eq!(cluster.world.down("kubernetes", "kubernetes").len(), 1);
    assert_eq!(cluster.world.down("kubernetes-internal", "kubernetes").len(), 1);
    assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    assert!(cluster.sent("GET", LISTS).is_empty(), "the lists did not reach ARM");
    // One that does not exist is no failure.
    cluster.taint(2, &[]);
    sleep(5 * SECOND).await;
    assert!(cluster.world.down("kubernetes", "kubernetes").is_empty());
}

/// Leaders of this cluster read bodies of up to this many bytes.
const LOW_LIMIT: usize = 200_000;

/// A load balancer with these pools of three nodes, each with so many bytes more, and the last one without a rule.
fn oversized(pools: &[&str], more_bytes: usize) -> Value {
    let pools: Vec<_> = pools.iter().map(|name| (*name, entries(1..=3, false))).collect();
    let mut large = load_balancer("kubernetes", &pools);
    for pool in large["properties"]["backendAddressPools"].as_array_mut().unwrap() {
        pool["futurePool"] = json!("x".repeat(more_bytes));
    }
    large["properties"]["loadBalancingRules"].as_array_mut().unwrap().pop();
    large
}

async fn limited_cluster(resources: &[Value]) -> TestCluster {
    TestCluster::configured(3, resources, |world| world.max_streamed_bytes = Some(LOW_LIMIT)).await
}

/// The pools in which node-2 is `Down`.
fn pools_with_node_2_down(cluster: &TestCluster) -> Vec<String> {
    let down = cluster.down().into_iter();
    let down = down.filter(|(_, nodes)| nodes.contains("node-2"));
    down.map(|(pool, _)| pool).collect()
}

#[tokio::test(start_paused = true)]
async fn load_balancer_is_assembled_from_single_pools_if_their_list_is_too_large() {
    let mut cluster = limited_cluster(&[oversized(&["a", "b", "unused"], 90_000)]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(10 * SECOND).await;
    assert_eq!(pools_with_node_2_down(&cluster), ["kubernetes/a", "kubernetes/b"]);
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    let path = pool_path("kubernetes", "a");
    assert_eq!(cluster.get(&path).await["futurePool"].as_str().unwrap().len(), 90_000);
    // An hour of resyncs later nothing is lost or written again, and no ledger entry has ended.
    sleep(3600 * SECOND).await;
    assert_eq!(cluster.puts().len(), 2);
    assert_eq!(cluster.ledger().await["pools"].as_array().unwrap().len(), 2);
    // While no instance leads, the rule of one pool goes, and so does the signal. Only the ledger names this pool.
    cluster.kill();
    let mut document = cluster.get(&id_of("kubernetes")).await;
    let rules = document["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["name"] != "b-rule");
    cluster.other("PUT", &id_of("kubernetes"), &document).await;
    cluster.taint(2, &[]);
    cluster.lead(ENFORCE).await;
    sleep(20 * SECOND).await;
    assert_eq!(pools_with_node_2_down(&cluster), Vec::<String>::new());
    sleep(700 * SECOND).await;
    assert_eq!(cluster.ledger().await["entries"], json!([]));
    // `status` and `restore` read the same parts.
    cluster.taint(2, &[DRAINING]);
    sleep(10 * SECOND).await;
    assert_eq!(pools_with_node_2_down(&cluster), ["kubernetes/a"]);
    cluster.stop().await;
    let restored = cluster.restore().await;
    assert_eq!((restored.restored.len(), restored.not_restored.len()), (1, 0));
    assert_eq!(pools_with_node_2_down(&cluster), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn changes_of_other_writers_survive_in_an_assembled_load_balancer() {
    let cluster = limited_cluster(&[oversized(&["a", "b", "unused"], 90_000)]).await;
    cluster.taint(2, &[DRAINING]);
    for round in 0..5 {
        sleep(SECOND / 2).await;
        cluster
            .foreign("kubernetes", "a", |pool| pool["round"] = json!(round))
            .await;
        cluster
            .foreign("kubernetes", "b", |pool| pool["round"] = json!(round))
            .await;
    }
    sleep(60 * SECOND).await;
    assert_eq!(pools_with_node_2_down(&cluster), ["kubernetes/a", "kubernetes/b"]);
    for name in ["a", "b"] {
        let pool = cluster.get(&pool_path("kubernetes", name)).await;
        assert_eq!(pool["round"], json!(4));
    }
}
