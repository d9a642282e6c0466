//! The rows of "Admin State Lifecycle".

use headgate_node::DEFAULT_SIGNAL_TAINTS;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{address, entries, load_balancer};
use super::stage::{DOWN, DRAINING, FAILED, NONE, OUT_OF_SERVICE, SECOND, SHUTDOWN, Stage, entry};

#[tokio::test(start_paused = true)]
async fn none_to_down_by_each_signal() {
    for key in DEFAULT_SIGNAL_TAINTS {
        let stage = Stage::new(3).await;
        stage.taint(2, &["other.example/taint", key]);
        let took = stage.until_down(&["node-2"]).await;
        assert!(took < 6 * SECOND, "{key}: {took:?}");
        sleep(5 * SECOND).await;
        let notes = stage.notes(DOWN, "node-2").await;
        assert_eq!(notes.len(), 1, "{key}: {notes:?}");
        assert!(notes[0].contains(key), "{notes:?}");
        assert!(!notes[0].contains("other.example"), "{notes:?}");
        assert_eq!(stage.puts().len(), 3, "one for each pool");
    }
}

#[tokio::test(start_paused = true)]
async fn none_to_down_of_every_entry_of_the_node() {
    // One node, four entries: an address is it, whatever its name and spelling.
    let own = json!([
        {"name": "node-1", "properties": {"ipAddress": address(1, false)}},
        {"name": "node-2", "properties": {"ipAddress": address(2, false)}},
        {"name": "other-name", "properties": {"ipAddress": address(2, false)}},
        {"name": "long", "properties": {"ipAddress": "FD00:0:0:0::2"}},
    ]);
    let stage = Stage::with(
        2,
        &[load_balancer(
            "kubernetes",
            &[("kubernetes", own.clone()), ("second", own)],
        )],
    )
    .await;
    stage.taint(2, &[SHUTDOWN]);
    stage.settle(&["node-2", "other-name", "long"]).await;
    assert_eq!(stage.puts().len(), 2);
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    assert_eq!(stage.puts().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn down_to_none_once_all_signals_are_gone() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[OUT_OF_SERVICE, SHUTDOWN, DRAINING]);
    stage.settle(&["node-2"]).await;
    for left in [&[SHUTDOWN, DRAINING][..], &[DRAINING]] {
        stage.taint(2, left);
        sleep(60 * SECOND).await;
        stage.until_down(&["node-2"]).await;
    }
    assert_eq!(stage.puts().len(), 3, "nothing was written meanwhile");
    assert!(stage.notes(NONE, "node-2").await.is_empty());
    stage.taint(2, &["other.example/taint"]);
    let took = stage.until_down(&[]).await;
    // A moment without a signal, and ARM's second for each pool.
    assert!(took >= SECOND && took < 8 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(stage.notes(NONE, "node-2").await.len(), 1);
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(stage.puts().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn down_to_removed_costs_no_write_when_the_node_is_deleted() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let before = stage.puts().len();
    stage.world.remove_node(2).await;
    sleep(60 * SECOND).await;
    assert_eq!(stage.puts().len(), before, "an entry of no Node is left alone");
    stage.until_down(&["node-2"]).await;
    // Whoever reconciles takes the entries out.
    for (load_balancer, pool, v6) in [
        ("kubernetes", "kubernetes", false),
        ("kubernetes", "kubernetes-IPv6", true),
        ("kubernetes-internal", "kubernetes", false),
    ] {
        let left = entries([1, 3], v6);
        stage
            .foreign(load_balancer, pool, |document| {
                document["properties"]["loadBalancerBackendAddresses"] = left;
            })
            .await;
        sleep(5 * SECOND).await;
    }
    stage.until_down(&[]).await;
    sleep(400 * SECOND).await;
    assert_eq!(stage.puts().len(), before + 3, "none but the three of somebody else");
    assert!(stage.notes(NONE, "node-2").await.is_empty());
    let ledger = stage.world.ledger().await;
    assert_eq!(ledger, json!({"pools": {}}), "nothing of it is remembered for ever");
}

#[tokio::test(start_paused = true)]
async fn down_to_removed_when_the_node_goes_before_anything_is_written() {
    let stage = Stage::new(3).await;
    stage.fault(
        "PUT",
        "",
        None,
        &json!({"answer": {"status": 409, "body": {"error": {"code": "AnotherOperationInProgress", "message": "m"}}}}),
    );
    stage.taint(2, &[DRAINING]);
    stage.until("an attempt", |stage| !stage.puts().is_empty()).await;
    stage.world.remove_node(2).await;
    sleep(SECOND).await;
    stage.no_faults();
    let before = stage.puts().len();
    sleep(120 * SECOND).await;
    assert_eq!(stage.puts().len(), before);
    stage.until_down(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_signal_again_changes_nothing() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    for taint in [
        json!({"key": DRAINING, "value": "spot-eviction", "effect": "NoExecute"}),
        json!({"key": DRAINING, "value": "spot-eviction", "effect": "NoSchedule", "timeAdded": "2026-11-21T10:00:00Z"}),
        json!({"key": DRAINING, "effect": "PreferNoSchedule"}),
    ] {
        stage.node(2, |node| node["spec"]["taints"] = json!([taint]));
        sleep(20 * SECOND).await;
    }
    assert_eq!(stage.puts().len(), 3);
    assert_eq!(
        stage.told().await.values().sum::<usize>(),
        1,
        "{:?}",
        stage.told().await
    );
    stage.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_leaves_the_state_as_it_was_and_is_told_and_retried() {
    let stage = Stage::new(3).await;
    // ARM cannot be reached at all.
    stage.fault("", "/subscriptions/", None, &json!({"cut": "before"}));
    stage.taint(2, &[OUT_OF_SERVICE]);
    sleep(60 * SECOND).await;
    stage.until_down(&[]).await;
    let notes = stage.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("no answer from ARM") && notes[0].contains("tried again"),
        "{notes:?}"
    );
    stage.no_faults();
    // No later than the longest pause between two attempts.
    let took = stage.until_down(&["node-2"]).await;
    assert!(took < 26 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(stage.notes(FAILED, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_undoes_is_done_again() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage
        .foreign("kubernetes", "kubernetes", |document| {
            entry(document, "node-2")["properties"]["adminState"] = json!("None");
        })
        .await;
    // Seen by the next list at the latest.
    let took = stage.until_down(&["node-2"]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(
        stage.told().await.values().sum::<usize>(),
        1,
        "one transition, one event"
    );
}
