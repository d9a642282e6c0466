//! The bullets of "User Scenarios".

use serde_json::json;
use tokio::time::sleep;

use super::stage::{DOWN, DRAINING, NONE, OUT_OF_SERVICE, SECOND, SHUTDOWN, Stage};

#[tokio::test(start_paused = true)]
async fn out_of_service_by_an_operator() {
    let stage = Stage::new(3).await;
    // As the documentation of Kubernetes has it.
    stage.node(1, |node| {
        node["spec"]["taints"] = json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
    });
    let took = stage.until_down(&["node-1"]).await;
    assert!(took < 6 * SECOND, "{took:?}, and a probe needs 10 s");
    sleep(5 * SECOND).await;
    let notes = stage.notes(DOWN, "node-1").await;
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
    let stage = Stage::new(3).await;
    // The node lifecycle controller sets it together with what Kubernetes sets of itself.
    stage.node(1, |node| {
        node["spec"]["taints"] = json!([
            {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
            {"key": SHUTDOWN, "effect": "NoSchedule"}]);
        node["status"]["conditions"][0]["status"] = json!("Unknown");
    });
    stage.settle(&["node-1"]).await;
    let notes = stage.notes(DOWN, "node-1").await;
    assert!(
        notes[0].contains(SHUTDOWN) && !notes[0].contains("unreachable"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn spot_eviction_taint_by_hand() {
    for value in [json!("spot-eviction"), json!(null), json!("maintenance")] {
        let stage = Stage::new(3).await;
        stage.node(3, |node| {
            node["spec"]["taints"] = json!([{"key": DRAINING, "value": value, "effect": "NoSchedule"}]);
        });
        stage.settle(&["node-3"]).await;
        assert_eq!(stage.notes(DOWN, "node-3").await.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn spot_eviction_survives_the_leader() {
    let mut stage = Stage::new(3).await;
    stage.taint(3, &[DRAINING]);
    stage.settle(&["node-3"]).await;
    let before = stage.puts().len();
    stage.kill();
    stage.lead(super::super::world::ENFORCE).await;
    sleep(60 * SECOND).await;
    assert_eq!(stage.puts().len(), before, "it is Down already");
    assert_eq!(stage.told().await.values().sum::<usize>(), 1, "and people know");
    stage.taint(3, &[]);
    stage.settle(&[]).await;
    assert_eq!(stage.notes(NONE, "node-3").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removed_signals_put_the_node_back() {
    for key in [OUT_OF_SERVICE, SHUTDOWN, DRAINING] {
        let stage = Stage::new(3).await;
        stage.taint(2, &[key]);
        stage.settle(&["node-2"]).await;
        stage.taint(2, &[]);
        let took = stage.until_down(&[]).await;
        assert!(took < 8 * SECOND, "{key}: {took:?}");
        sleep(5 * SECOND).await;
        let notes = stage.notes(NONE, "node-2").await;
        assert_eq!(notes.len(), 1, "{key}: {notes:?}");
        // Again, and each turn is told.
        stage.taint(2, &[key]);
        stage.settle(&["node-2"]).await;
        assert_eq!(stage.notes(DOWN, "node-2").await.len(), 2, "{key}");
        assert_eq!(stage.puts().len(), 9);
    }
}

#[tokio::test(start_paused = true)]
async fn one_signal_in_anothers_place_lets_nobody_in_between() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.taint(2, &[]);
    sleep(SECOND / 2).await;
    stage.taint(2, &[SHUTDOWN]);
    sleep(30 * SECOND).await;
    assert_eq!(stage.puts().len(), 3);
    assert_eq!(stage.told().await.values().sum::<usize>(), 1);
}
