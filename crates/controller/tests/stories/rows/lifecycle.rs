//! The rows of "Admin State Lifecycle".

use headgate_core::node::DEFAULT_SIGNAL_TAINTS;
use headgate_test_kubernetes::assert_contains;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{address, entries, load_balancer};
use super::cluster::{DOWN, DRAINING, FAILED, NONE, OUT_OF_SERVICE, SECOND, SHUTDOWN, TestCluster};

#[tokio::test(start_paused = true)]
async fn none_to_down_by_each_signal() {
    for key in DEFAULT_SIGNAL_TAINTS {
        let cluster = TestCluster::new(3).await;
        cluster.taint(2, &["other.example/taint", key]);
        let took = cluster.until_down(&["node-2"]).await;
        assert!(took < 6 * SECOND, "{key}: {took:?}");
        sleep(5 * SECOND).await;
        let notes = cluster.notes(DOWN, "node-2").await;
        assert_eq!(notes.len(), 1, "{key}: {notes:?}");
        assert!(notes[0].contains(key), "{notes:?}");
        assert!(!notes[0].contains("other.example"), "{notes:?}");
        assert_eq!(cluster.puts().len(), 3, "one for each pool");
    }
}

#[tokio::test(start_paused = true)]
async fn none_to_down_of_every_entry_of_the_node() {
    // Entries match by address, whatever their names and the spelling of the address.
    let own = json!([
        {"name": "node-1", "properties": {"ipAddress": address(1, false)}},
        {"name": "node-2", "properties": {"ipAddress": address(2, false)}},
        {"name": "other-name", "properties": {"ipAddress": address(2, false)}},
        {"name": "long", "properties": {"ipAddress": "FD00:0:0:0::2"}},
    ]);
    let cluster = TestCluster::with(
        2,
        &[load_balancer(
            "kubernetes",
            &[("kubernetes", own.clone()), ("second", own)],
        )],
    )
    .await;
    cluster.taint(2, &[SHUTDOWN]);
    cluster.settle(&["node-2", "other-name", "long"]).await;
    assert_eq!(cluster.puts().len(), 2);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.puts().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn down_to_none_once_all_signals_are_gone() {
    let cluster = TestCluster::new(3).await;
    cluster.taint(2, &[OUT_OF_SERVICE, SHUTDOWN, DRAINING]);
    cluster.settle(&["node-2"]).await;
    for left in [&[SHUTDOWN, DRAINING][..], &[DRAINING]] {
        cluster.taint(2, left);
        sleep(60 * SECOND).await;
        cluster.until_down(&["node-2"]).await;
    }
    assert_eq!(cluster.puts().len(), 3, "nothing was written meanwhile");
    assert!(cluster.notes(NONE, "node-2").await.is_empty());
    cluster.taint(2, &["other.example/taint"]);
    let took = cluster.until_down(&[]).await;
    // The debounce, and a second of ARM for each pool.
    assert!(took >= SECOND && took < 8 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(cluster.notes(NONE, "node-2").await.len(), 1);
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(cluster.puts().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn down_to_removed_costs_no_write_when_the_node_is_deleted() {
    let cluster = TestCluster::with_node_2_down().await;
    let before = cluster.puts().len();
    cluster.remove_node(2).await;
    sleep(60 * SECOND).await;
    assert_eq!(cluster.puts().len(), before, "an entry of no Node is left alone");
    cluster.until_down(&["node-2"]).await;
    // cloud-controller-manager removes the entries.
    for (load_balancer, pool, v6) in [
        ("kubernetes", "kubernetes", false),
        ("kubernetes", "kubernetes-IPv6", true),
        ("kubernetes-internal", "kubernetes", false),
    ] {
        let left = entries([1, 3], v6);
        cluster
            .foreign(load_balancer, pool, |document| {
                document["properties"]["loadBalancerBackendAddresses"] = left;
            })
            .await;
        sleep(5 * SECOND).await;
    }
    cluster.until_down(&[]).await;
    sleep(400 * SECOND).await;
    assert_eq!(cluster.puts().len(), before + 3, "only the three foreign writes");
    assert!(cluster.notes(NONE, "node-2").await.is_empty());
    let ledger = cluster.ledger().await;
    assert_eq!(ledger["entries"], json!([]), "all its entries expired");
}

#[tokio::test(start_paused = true)]
async fn failure_leaves_the_state_and_is_reported_and_retried() {
    let cluster = TestCluster::new(3).await;
    // ARM is unreachable.
    cluster.fault("", "/subscriptions/", None, &json!({"cut": "before"}));
    cluster.taint(2, &[OUT_OF_SERVICE]);
    sleep(60 * SECOND).await;
    cluster.until_down(&[]).await;
    let notes = cluster.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "no answer from ARM", "headgate retries");
    cluster.clear_faults();
    // Within the longest backoff.
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 26 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(cluster.notes(FAILED, "node-2").await.len(), 1);
}
