//! "Stale state": a Node that is made anew under the same name inherits nothing.

use serde_json::json;
use tokio::time::sleep;

use super::super::world::{ENFORCE, address, entries, load_balancer};
use super::stage::{DOWN, DRAINING, NONE, OUT_OF_SERVICE, SECOND, Stage, entry};

#[tokio::test(start_paused = true)]
async fn a_node_made_anew_does_not_inherit_down() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.world.remove_node(2).await;
    sleep(30 * SECOND).await;
    stage.until_down(&["node-2"]).await;
    stage.world.add_node(2).await;
    let took = stage.until_down(&[]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    // It is a transition of the new one; and its own signal counts.
    assert_eq!(stage.notes(NONE, "node-2").await.len(), 1);
    stage.taint(2, &[OUT_OF_SERVICE]);
    stage.settle(&["node-2"]).await;
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_made_anew_at_once_does_not_inherit_down() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    // The watch tells of both in one breath.
    stage.world.remove_node(2).await;
    stage.world.add_node(2).await;
    stage.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_made_anew_does_not_inherit_down_of_a_leader_that_died() {
    for how in ["killed", "stopped", "killed before it had told"] {
        let mut stage = Stage::new(3).await;
        stage.taint(2, &[DRAINING]);
        stage.until_down(&["node-2"]).await;
        if how != "killed before it had told" {
            sleep(5 * SECOND).await;
        }
        if how == "stopped" {
            stage.stop().await;
        } else {
            stage.kill();
        }
        stage.world.remove_node(2).await;
        sleep(60 * SECOND).await;
        stage.world.add_node(2).await;
        stage.lead(ENFORCE).await;
        stage.settle(&[]).await;
        sleep(400 * SECOND).await;
        assert_eq!(stage.puts().len(), 6, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_ended_while_nobody_led_is_undone() {
    let mut stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.kill();
    stage.taint(2, &[]);
    sleep(600 * SECOND).await;
    stage.lead(ENFORCE).await;
    stage.settle(&[]).await;
    assert_eq!(stage.notes(NONE, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_another_node_has_now_is_the_other_nodes() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    // Scaled in, and a new machine got its address while the old Node lingers; its entry has another name.
    stage.world.add_node(4).await;
    stage.node(4, |node| {
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": address(2, false)}]);
    });
    stage.settle(&[]).await;
    stage
        .foreign("kubernetes", "kubernetes", |pool| {
            entry(pool, "node-2")["name"] = json!("node-4");
        })
        .await;
    sleep(30 * SECOND).await;
    stage.until_down(&[]).await;
    // The old Node's signal is not the new one's; its own is.
    stage.taint(4, &[DRAINING]);
    stage.settle(&["node-4"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_down_that_a_stale_write_brings_back_is_undone() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    sleep(60 * SECOND).await;
    // Somebody writes the pool as he had read it two minutes ago.
    stage
        .foreign("kubernetes", "kubernetes", |pool| {
            entry(pool, "node-2")["properties"]["adminState"] = json!("Down");
        })
        .await;
    let took = stage.until_down(&[]).await;
    assert!(took < 20 * SECOND, "{took:?}");
    // After five minutes a Down is somebody's who means it.
    sleep(400 * SECOND).await;
    stage
        .foreign("kubernetes", "kubernetes", |pool| {
            entry(pool, "node-2")["properties"]["adminState"] = json!("Down");
        })
        .await;
    sleep(400 * SECOND).await;
    stage.until_down(&["node-2"]).await;
    assert_eq!(stage.notes(NONE, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_no_watch_told_of_it_is_seen() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    // The API server forgets what happened meanwhile.
    stage.line.cut_watches();
    stage.taint(2, &[]);
    stage.taint(3, &[DRAINING]);
    stage.world.remove_node(1).await;
    stage.fake.compact();
    stage.settle(&["node-3"]).await;
    // It is away, and what was known goes on.
    stage.fake.restart(8 * SECOND);
    sleep(5 * SECOND).await;
    stage.until_down(&["node-3"]).await;
    stage.taint(3, &[]);
    stage.settle(&[]).await;
}
