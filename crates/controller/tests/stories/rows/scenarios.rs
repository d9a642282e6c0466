//! The rows of "User Scenarios".

use serde_json::json;
use tokio::time::sleep;

use super::cluster::{DOWN, DRAINING, NONE, OUT_OF_SERVICE, SECOND, SHUTDOWN, TestCluster};

#[tokio::test(start_paused = true)]
async fn out_of_service_by_an_operator() {
    let cluster = TestCluster::new(3).await;
    // The taint of the Kubernetes documentation.
    cluster.node(1, |node| {
        node["spec"]["taints"] = json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
    });
    let took = cluster.until_down(&["node-1"]).await;
    assert!(took < 6 * SECOND, "{took:?}, and a probe needs 10 s");
    sleep(5 * SECOND).await;
    let notes = cluster.notes(DOWN, "node-1").await;
    for part in [
        "kubernetes/kubernetes,",
        "kubernetes/kubernetes-IPv6",
        "kubernetes-internal/kubernetes",
        OUT_OF_SERVICE,
    ] {
        assert!(notes[0].contains(part), "{part}: {notes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_by_the_cloud_without_any_derived_taint() {
    let cluster = TestCluster::new(3).await;
    // The cloud node lifecycle controller adds it beside the taints of Kubernetes.
    cluster.node(1, |node| {
        node["spec"]["taints"] = json!([
            {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
            {"key": SHUTDOWN, "effect": "NoSchedule"}]);
        node["status"]["conditions"][0]["status"] = json!("Unknown");
    });
    cluster.settle(&["node-1"]).await;
    let notes = cluster.notes(DOWN, "node-1").await;
    assert!(
        notes[0].contains(SHUTDOWN) && !notes[0].contains("unreachable"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn spot_eviction_taint_by_hand() {
    for value in [json!("spot-eviction"), json!(null), json!("maintenance")] {
        let cluster = TestCluster::new(3).await;
        cluster.node(3, |node| {
            node["spec"]["taints"] = json!([{"key": DRAINING, "value": value, "effect": "NoSchedule"}]);
        });
        cluster.settle(&["node-3"]).await;
        assert_eq!(cluster.notes(DOWN, "node-3").await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn spot_eviction_survives_the_leader() {
    let mut cluster = TestCluster::new(3).await;
    cluster.taint(3, &[DRAINING]);
    cluster.settle(&["node-3"]).await;
    let before = cluster.puts().len();
    cluster.kill();
    cluster.lead(super::super::world::ENFORCE).await;
    sleep(60 * SECOND).await;
    assert_eq!(cluster.puts().len(), before, "it is Down already");
    assert_eq!(
        cluster.event_counts().await.values().sum::<usize>(),
        1,
        "the event exists already"
    );
    cluster.taint(3, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.notes(NONE, "node-3").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removed_signals_put_the_node_back() {
    for key in [OUT_OF_SERVICE, SHUTDOWN, DRAINING] {
        let cluster = TestCluster::new(3).await;
        cluster.taint(2, &[key]);
        cluster.settle(&["node-2"]).await;
        cluster.taint(2, &[]);
        let took = cluster.until_down(&[]).await;
        assert!(took < 8 * SECOND, "{key}: {took:?}");
        sleep(5 * SECOND).await;
        let notes = cluster.notes(NONE, "node-2").await;
        assert_eq!(notes.len(), 1, "{key}: {notes:?}");
        // Each further transition gets an event.
        cluster.taint(2, &[key]);
        cluster.settle(&["node-2"]).await;
        assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 2, "{key}");
        assert_eq!(cluster.puts().len(), 9);
    }
}

#[tokio::test(start_paused = true)]
async fn signal_that_replaces_another_causes_no_gap() {
    let cluster = TestCluster::new(3).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.taint(2, &[]);
    sleep(SECOND / 2).await;
    cluster.taint(2, &[SHUTDOWN]);
    sleep(30 * SECOND).await;
    assert_eq!(cluster.puts().len(), 3);
    assert_eq!(cluster.event_counts().await.values().sum::<usize>(), 1);
}
