//! "Stale state": a Node that is created again under the same name inherits nothing.

use tokio::time::sleep;

use super::super::world::{ENFORCE, one_pool};
use super::cluster::{DOWN, DRAINING, NONE, OUT_OF_SERVICE, SECOND, TestCluster};

#[tokio::test(start_paused = true)]
async fn recreated_node_does_not_inherit_down() {
    for later in [0, 30] {
        let cluster = TestCluster::with_node_2_down().await;
        cluster.remove_node(2).await;
        sleep(later * SECOND).await;
        cluster.until_down(&["node-2"]).await;
        cluster.add_node(2).await;
        let took = cluster.until_down(&[]).await;
        assert!(took < 20 * SECOND, "{took:?}");
        sleep(5 * SECOND).await;
        // The new Node gets the event, and its own signal counts.
        assert_eq!(cluster.notes(NONE, "node-2").await.len(), 1);
        cluster.taint(2, &[OUT_OF_SERVICE]);
        cluster.settle(&["node-2"]).await;
        assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn recreated_node_does_not_inherit_down_of_a_dead_leader() {
    for how in ["killed", "stopped", "killed before its event"] {
        let mut cluster = TestCluster::new(3).await;
        cluster.taint(2, &[DRAINING]);
        cluster.until_down(&["node-2"]).await;
        if how != "killed before its event" {
            sleep(5 * SECOND).await;
        }
        if how == "stopped" {
            cluster.stop().await;
        } else {
            cluster.kill();
        }
        cluster.remove_node(2).await;
        sleep(60 * SECOND).await;
        cluster.add_node(2).await;
        cluster.lead(ENFORCE).await;
        cluster.settle(&[]).await;
        sleep(400 * SECOND).await;
        assert_eq!(cluster.puts().len(), 6, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn down_from_a_stale_write_is_restored() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    sleep(60 * SECOND).await;
    // Another writer writes the pool as it read it two minutes ago.
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-2", "Down")
        .await;
    let took = cluster.until_down(&[]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    // After five minutes a `Down` counts as foreign.
    sleep(400 * SECOND).await;
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-2", "Down")
        .await;
    sleep(400 * SECOND).await;
    cluster.until_down(&["node-2"]).await;
    assert_eq!(cluster.notes(NONE, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_broken_watch_are_observed() {
    let cluster = TestCluster::with_node_2_down().await;
    // The API server compacts the events away.
    cluster.line.cut_watches();
    cluster.taint(2, &[]);
    cluster.taint(3, &[DRAINING]);
    cluster.remove_node(1).await;
    cluster.fake.compact();
    cluster.settle(&["node-3"]).await;
    // While it is away, the last known state stays in use.
    cluster.fake.restart(8 * SECOND);
    sleep(5 * SECOND).await;
    cluster.until_down(&["node-3"]).await;
    cluster.taint(3, &[]);
    cluster.settle(&[]).await;
}
