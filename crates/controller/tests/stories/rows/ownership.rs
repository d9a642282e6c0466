//! Whose a `Down` is, and what the modes leave alone: "Regression tests" and "API and Configuration Impact".

use headgate_controller::admin_state::Policy;
use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{ENFORCE, entries, load_balancer};
use super::stage::{DRAINING, NONE, SECOND, Stage, entry};

const OBSERVE: Policy = Policy {
    mode: AdminStateMode::Observe,
    ..ENFORCE
};
const OFF: Policy = Policy {
    mode: AdminStateMode::Off,
    ..ENFORCE
};
const RESTORE: Policy = Policy {
    foreign_down: ForeignDown::Restore,
    ..ENFORCE
};

async fn foreign_state(stage: &Stage, name: &str, word: &str) {
    let set = |pool: &mut serde_json::Value| entry(pool, name)["properties"]["adminState"] = json!(word);
    stage.foreign("kubernetes", "kubernetes", set).await;
    sleep(5 * SECOND).await;
}

fn one_pool() -> Vec<serde_json::Value> {
    vec![load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])]
}

#[tokio::test(start_paused = true)]
async fn services_without_a_node_out_of_service_see_nothing() {
    let stage = Stage::new(3).await;
    sleep(3600 * SECOND).await;
    assert!(stage.puts().is_empty() && stage.world.events().await.is_empty());
    let lists = stage.sent("GET", "").len();
    assert!(lists <= 16, "a list every five minutes: {lists}");
    assert_eq!(stage.world.ledger().await, serde_json::Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_down_is_kept() {
    let stage = Stage::with(3, &one_pool()).await;
    foreign_state(&stage, "node-1", "Down").await;
    // With a signal and without one again, on its Node and on another.
    stage.taint(1, &[DRAINING]);
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-1", "node-2"]).await;
    stage.taint(1, &[]);
    stage.taint(2, &[]);
    stage.settle(&["node-1"]).await;
    sleep(400 * SECOND).await;
    stage.until_down(&["node-1"]).await;
    assert!(stage.notes(NONE, "node-1").await.is_empty());
    assert_eq!(stage.puts().len(), 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_down_is_taken_back_where_that_is_wished() {
    let mut stage = Stage::set(3, &one_pool()).await;
    foreign_state(&stage, "node-1", "Down").await;
    stage.lead(RESTORE).await;
    stage.settle(&[]).await;
    foreign_state(&stage, "node-3", "Down").await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_up_is_left_alone() {
    let mut stage = Stage::set(3, &one_pool()).await;
    foreign_state(&stage, "node-2", "Up").await;
    stage.lead(RESTORE).await;
    stage.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    stage.taint(2, &[]);
    sleep(60 * SECOND).await;
    assert_eq!(stage.world.states("kubernetes", "kubernetes")["node-2"], "Up");
    assert_eq!(stage.puts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_down_that_somebody_made_up_is_his() {
    let stage = Stage::with(3, &one_pool()).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    foreign_state(&stage, "node-2", "Up").await;
    stage.taint(2, &[]);
    sleep(60 * SECOND).await;
    assert_eq!(stage.world.states("kubernetes", "kubernetes")["node-2"], "Up");
    assert_eq!(stage.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn observing_writes_nothing() {
    let mut stage = Stage::set(3, &one_pool()).await;
    foreign_state(&stage, "node-1", "Down").await;
    stage
        .lead(Policy {
            foreign_down: ForeignDown::Restore,
            ..OBSERVE
        })
        .await;
    stage.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    assert_eq!(stage.metric("headgate_pool_desired_down", &["kubernetes"]), Some(1.0));
    stage.taint(2, &[]);
    sleep(400 * SECOND).await;
    stage.until_down(&["node-1"]).await;
    assert_eq!(stage.puts().len(), 1);
    assert!(
        stage.world.events().await.is_empty(),
        "{:?}",
        stage.world.events().await
    );
    assert_eq!(stage.world.ledger().await, serde_json::Value::Null);
    let takes = stage.fake.requests();
    let mut leases = takes
        .iter()
        .filter(|asked| asked.path.ends_with("aks-managed-resource-locker"));
    assert!(
        leases.all(|asked| asked.method == hyper::Method::GET),
        "nor is the Lease taken"
    );
}

#[tokio::test(start_paused = true)]
async fn off_gives_back_what_is_ours_and_rests() {
    for by_azure_json in [false, true] {
        let mut stage = Stage::with(3, &one_pool()).await;
        foreign_state(&stage, "node-1", "Down").await;
        stage.taint(2, &[DRAINING]);
        stage.settle(&["node-1", "node-2"]).await;
        stage.stop().await;
        stage.world.enabled = !by_azure_json;
        stage.lead(if by_azure_json { ENFORCE } else { OFF }).await;
        stage.settle(&["node-1"]).await;
        assert_eq!(stage.notes(NONE, "node-2").await.len(), 1);
        stage.taint(3, &[DRAINING]);
        sleep(700 * SECOND).await;
        stage.until_down(&["node-1"]).await;
        let requests = stage.sent("", "").len();
        sleep(3600 * SECOND).await;
        assert_eq!(stage.sent("", "").len(), requests, "ARM is not asked any more");
        assert_eq!(stage.puts().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_that_is_given_back_leaves_nothing_half_done() {
    let mut stage = Stage::with(3, &one_pool()).await;
    stage.taint(2, &[DRAINING]);
    stage.until("sent", |stage| stage.puts().len() == 1).await;
    stage.stop().await;
    sleep(5 * SECOND).await;
    assert_eq!(stage.puts().len(), 1);
    stage.lead(ENFORCE).await;
    stage.settle(&["node-2"]).await;
    assert_eq!(stage.puts().len(), 1, "what was accepted is not written again");
    assert_eq!(
        stage.told().await.values().sum::<usize>(),
        1,
        "{:?}",
        stage.told().await
    );
    stage.taint(2, &[]);
    stage.settle(&[]).await;
}
