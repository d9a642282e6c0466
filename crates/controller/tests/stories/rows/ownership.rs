//! The owner of each admin state, and the modes: "Regression tests" and "API and Configuration Impact".

use headgate_controller::admin_state::Policy;
use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{ENFORCE, one_pool};
use super::cluster::{DRAINING, FAILED, NONE, SECOND, TestCluster};

const OBSERVE: Policy = Policy {
    mode: AdminStateMode::Observe,
    ..ENFORCE
};
const OFF: Policy = Policy {
    mode: AdminStateMode::Disabled,
    ..ENFORCE
};

async fn foreign_state(cluster: &TestCluster, name: &str, word: &str) {
    cluster.foreign_state("kubernetes", "kubernetes", name, word).await;
    sleep(5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn services_without_a_node_out_of_service_see_nothing() {
    let cluster = TestCluster::new(3).await;
    sleep(3600 * SECOND).await;
    assert!(cluster.puts().is_empty() && cluster.world.events().await.is_empty());
    let lists = cluster.sent("GET", "").len();
    assert!(lists <= 16, "a list every five minutes: {lists}");
    assert_eq!(cluster.ledger().await, serde_json::Value::Null);
}

#[tokio::test(start_paused = true)]
async fn foreign_down_is_kept() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    foreign_state(&cluster, "node-1", "Down").await;
    // A signal comes and goes, on its Node and on another one.
    cluster.taint(1, &[DRAINING]);
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-1", "node-2"]).await;
    cluster.taint(1, &[]);
    cluster.taint(2, &[]);
    cluster.settle(&["node-1"]).await;
    sleep(400 * SECOND).await;
    cluster.until_down(&["node-1"]).await;
    assert!(cluster.notes(NONE, "node-1").await.is_empty());
    assert_eq!(cluster.puts().len(), 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn down_of_a_write_without_an_answer_is_headgates_and_after_a_refused_one_anothers() {
    for (fault, left) in [
        (json!({"cut": "after"}), &[][..]),
        (json!({"answer": {"status": 400}}), &["node-2"]),
    ] {
        let cluster = TestCluster::with(3, &one_pool(3)).await;
        cluster.fault("PUT", "", Some(1), &fault);
        cluster.taint(2, &[DRAINING]);
        sleep(SECOND).await;
        foreign_state(&cluster, "node-2", "Down").await;
        cluster.taint(2, &[]);
        sleep(60 * SECOND).await;
        cluster.settle(left).await;
        // What is over is no reason for a warning about another node.
        cluster.taint(3, &[DRAINING]);
        cluster.settle(&[left, &["node-3"]].concat()).await;
        assert!(cluster.notes(FAILED, "node-3").await.is_empty(), "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn mode_observe_writes_nothing() {
    let mut cluster = TestCluster::without_leader(3, &one_pool(3)).await;
    foreign_state(&cluster, "node-1", "Down").await;
    cluster
        .lead(Policy {
            foreign_down: ForeignDown::Restore,
            ..OBSERVE
        })
        .await;
    cluster.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    assert_eq!(cluster.metric("headgate_pool_desired_down", &["kubernetes"]), Some(1.0));
    cluster.taint(2, &[]);
    sleep(400 * SECOND).await;
    cluster.until_down(&["node-1"]).await;
    assert_eq!(cluster.puts().len(), 1);
    assert!(
        cluster.world.events().await.is_empty(),
        "{:?}",
        cluster.world.events().await
    );
    assert_eq!(cluster.ledger().await, serde_json::Value::Null);
    let takes = cluster.fake.requests();
    let mut leases = takes
        .iter()
        .filter(|asked| asked.path.ends_with("aks-managed-resource-locker"));
    assert!(
        leases.all(|asked| asked.method == hyper::Method::GET),
        "the Lease is not acquired"
    );
}

#[tokio::test(start_paused = true)]
async fn mode_off_restores_and_stops_requests() {
    for by_azure_json in [false, true] {
        let mut cluster = TestCluster::with(3, &one_pool(3)).await;
        foreign_state(&cluster, "node-1", "Down").await;
        cluster.taint(2, &[DRAINING]);
        cluster.settle(&["node-1", "node-2"]).await;
        cluster.stop().await;
        cluster.world.enabled = !by_azure_json;
        cluster.lead(if by_azure_json { ENFORCE } else { OFF }).await;
        cluster.settle(&["node-1"]).await;
        assert_eq!(cluster.notes(NONE, "node-2").await.len(), 1);
        cluster.taint(3, &[DRAINING]);
        sleep(700 * SECOND).await;
        cluster.until_down(&["node-1"]).await;
        let requests = cluster.sent("", "").len();
        sleep(3600 * SECOND).await;
        assert_eq!(cluster.sent("", "").len(), requests, "no more requests to ARM");
        assert_eq!(cluster.puts().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn handover_leaves_no_partial_write() {
    let mut cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.taint(2, &[DRAINING]);
    cluster.until("sent", |cluster| cluster.puts().len() == 1).await;
    cluster.stop().await;
    sleep(5 * SECOND).await;
    assert_eq!(cluster.puts().len(), 1);
    cluster.lead(ENFORCE).await;
    cluster.settle(&["node-2"]).await;
    assert_eq!(cluster.puts().len(), 1, "an accepted write is not repeated");
    assert_eq!(
        cluster.event_counts().await.values().sum::<usize>(),
        1,
        "{:?}",
        cluster.event_counts().await
    );
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.notes(NONE, "node-2").await.len(), 1);
}
