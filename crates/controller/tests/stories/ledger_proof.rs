//! Ledger entries end only on proof: a load balancer that no list shows may still have headgate's `Down`.

use headgate_controller::admin_state::RestoreError;
use headgate_controller::admin_state::{Ledger, RestoreOutcome};
use headgate_test_kubernetes::Fault;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::rows::cluster::{DRAINING, SECOND, TestCluster};
use super::world::{ENFORCE, GROUP, WallOffset, arm_error, entries, load_balancer};

/// Longer than the lag of lists and the tail of `restored` entries together.
const EIGHT_MINUTES: u32 = 8 * 60;
const LOAD_BALANCERS: &str = "/loadBalancers$";
const BY_ID: &str = "/loadBalancers/kubernetes(-internal)?$";

/// A cluster whose second node is `Down`, and a leader with another cluster name.
async fn cluster_with_wrong_name() -> TestCluster {
    let mut cluster = TestCluster::with_node_2_down().await;
    cluster.stop().await;
    cluster.world.managed = vec!["renamed"];
    cluster.lead(ENFORCE).await;
    cluster
}

async fn correct_the_name(cluster: &mut TestCluster) {
    cluster.stop().await;
    cluster.world.managed = vec!["kubernetes"];
    cluster.lead(ENFORCE).await;
}

/// The number of ledger entries.
async fn ledger_entries(cluster: &TestCluster) -> usize {
    match cluster.ledger().await {
        Value::Null => 0,
        ledger => serde_json::from_value::<Ledger>(ledger).unwrap().entries().count(),
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_cluster_name_forgets_nothing() {
    let mut cluster = cluster_with_wrong_name().await;
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 3);
    cluster.until_down(&["node-2"]).await;
    correct_the_name(&mut cluster).await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn signal_that_ends_under_a_wrong_name_is_restored_there() {
    let mut cluster = cluster_with_wrong_name().await;
    let before = cluster.puts().len();
    // Another node's signal sets nothing `Down` in load balancers that are not configured.
    cluster.taint(3, &[DRAINING]);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.puts().len(), before + 3);
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 0, "read back, and the tail is over");
    correct_the_name(&mut cluster).await;
    cluster.settle(&["node-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn foreign_states_of_other_load_balancers_are_left_alone() {
    let mut cluster = cluster_with_wrong_name().await;
    cluster.stop().await;
    let policy = headgate_controller::admin_state::Policy {
        foreign_down: headgate_controller::admin_state::ForeignDown::Restore,
        ..ENFORCE
    };
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-1", "Down")
        .await;
    cluster.lead(policy).await;
    cluster.taint(2, &[]);
    sleep(EIGHT_MINUTES * SECOND).await;
    let down: Vec<_> = cluster.world.down("kubernetes", "kubernetes").into_iter().collect();
    assert_eq!(down, ["node-1"]);
}

#[tokio::test(start_paused = true)]
async fn load_balancer_that_cannot_be_read_forgets_nothing() {
    for answer in [
        json!({"answer": {"status": 403}}),
        arm_error(404, "SubscriptionNotFound"),
        // Not an answer of ARM.
        json!({"answer": {"status": 404, "text": "404 page not found"}}),
        json!({"answer": {"status": 500}}),
    ] {
        let mut cluster = cluster_with_wrong_name().await;
        cluster.fault("GET", BY_ID, None, &answer);
        sleep(3 * EIGHT_MINUTES * SECOND).await;
        assert_eq!(ledger_entries(&cluster).await, 3, "{answer}");
        cluster.clear_faults();
        correct_the_name(&mut cluster).await;
        cluster.taint(2, &[]);
        cluster.settle(&[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_expires_while_lists_fail() {
    let cluster = TestCluster::with_node_2_down().await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(ledger_entries(&cluster).await, 3);
    sleep(20 * SECOND).await;
    // A stale write may come at any time of these, and no list would show it.
    cluster.fault("GET", LOAD_BALANCERS, None, &json!({"answer": {"status": 500}}));
    sleep(2 * EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 3);
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-2", "Down")
        .await;
    cluster.clear_faults();
    cluster.settle(&[]).await;
}

/// The leader, or the next one, has a clock that is minutes away from the one that wrote the ledger.
#[tokio::test(start_paused = true)]
async fn entries_end_neither_sooner_nor_later_by_clocks_that_are_wrong() {
    const TEN_MINUTES: i64 = 600_000;
    for (before, after, is_other_leader) in [
        (0, TEN_MINUTES, false),
        (TEN_MINUTES, 0, false),
        (0, TEN_MINUTES, true),
        (TEN_MINUTES, 0, true),
    ] {
        let case = format!("{before} ms ahead, then {after}");
        let wall = WallOffset::default();
        let mut cluster = TestCluster::with_node_2_down().await;
        cluster.stop().await;
        cluster.world.clock = wall.of(&cluster.world.clock);
        wall.set_millis(before);
        cluster.lead(ENFORCE).await;
        cluster.taint(2, &[]);
        cluster.settle(&[]).await;
        if is_other_leader {
            cluster.stop().await;
        }
        wall.set_millis(after);
        if is_other_leader {
            cluster.lead(ENFORCE).await;
        }
        sleep(120 * SECOND).await;
        assert_eq!(ledger_entries(&cluster).await, 3, "{case}");
        sleep(EIGHT_MINUTES * SECOND).await;
        assert_eq!(ledger_entries(&cluster).await, 0, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_resource_group_forgets_nothing() {
    let mut cluster = TestCluster::with_node_2_down().await;
    cluster.stop().await;
    cluster.fault("GET", LOAD_BALANCERS, None, &arm_error(404, "ResourceNotFound"));
    cluster.lead(ENFORCE).await;
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 3);
    // The list is empty, but each load balancer can be read.
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_load_balancer_and_deleted_pool_are_proof() {
    let one_pool = |name: &str| load_balancer(name, &[("kubernetes", entries(1..=3, false))]);
    let cluster = TestCluster::with(3, &[one_pool("kubernetes"), one_pool("kubernetes-internal")]).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    assert_eq!(ledger_entries(&cluster).await, 2);
    let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes-internal");
    cluster.other("DELETE", &path, &Value::Null).await;
    sleep(60 * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 2, "the tail of `restored`");
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 1);
    let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes");
    let mut document = cluster.get(&path).await;
    document["properties"]["backendAddressPools"] = json!([]);
    document["properties"]["loadBalancingRules"] = json!([]);
    cluster.other("PUT", &path, &document).await;
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_deleted_node_leaves_in_a_pool_is_forgotten_once_it_is_not_down() {
    let cluster = TestCluster::with_node_2_down().await;
    cluster.remove_node(2).await;
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 3, "the entries are Down");
    for (load_balancer, pool) in [
        ("kubernetes", "kubernetes"),
        ("kubernetes", "kubernetes-IPv6"),
        ("kubernetes-internal", "kubernetes"),
    ] {
        cluster.foreign_state(load_balancer, pool, "node-2", "None").await;
    }
    sleep(EIGHT_MINUTES * SECOND).await;
    assert_eq!(ledger_entries(&cluster).await, 0);
}

#[tokio::test(start_paused = true)]
async fn restore_gives_back_in_load_balancers_that_are_not_configured() {
    let mut cluster = cluster_with_wrong_name().await;
    cluster.kill();
    let outcome = cluster.restore().await;
    assert_eq!(outcome.restored.len(), 3, "{outcome:?}");
    assert!(outcome.not_restored.is_empty(), "{outcome:?}");
    cluster.until_down(&[]).await;
}

/// Restores in a cluster whose second node is `Down` and whose leader is gone, while the next lists show what was before that.
async fn restore_after_lists_of_before(lists: u32, then: Option<Value>) -> (TestCluster, RestoreOutcome) {
    let mut cluster = TestCluster::new(3).await;
    let list = cluster
        .get(&format!("{GROUP}/providers/Microsoft.Network/loadBalancers"))
        .await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.kill();
    let before = json!({"answer": {"status": 200, "body": list}});
    cluster.fault("GET", LOAD_BALANCERS, Some(lists), &before);
    if let Some(action) = then {
        cluster.fault("GET", LOAD_BALANCERS, None, &action);
    }
    let outcome = cluster.restore().await;
    (cluster, outcome)
}

#[tokio::test(start_paused = true)]
async fn restore_gives_back_what_two_lists_do_not_show() {
    let (cluster, outcome) = restore_after_lists_of_before(2, None).await;
    assert!(outcome.not_restored.is_empty(), "{outcome:?}");
    cluster.until_down(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn restore_forgets_nothing_without_a_second_list() {
    let (cluster, outcome) = restore_after_lists_of_before(1, Some(json!({"answer": {"status": 500}}))).await;
    let counts = (outcome.restored.len(), outcome.not_restored.len());
    assert_eq!((counts, ledger_entries(&cluster).await), ((0, 3), 3), "{outcome:?}");
    assert!(!cluster.ledger().await.to_string().contains("restored"));
    cluster.clear_faults();
    let outcome = cluster.restore().await;
    assert!(outcome.not_restored.is_empty(), "{outcome:?}");
    cluster.until_down(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn restore_does_not_take_what_a_node_leaves_in_the_pools_for_restored() {
    let mut cluster = TestCluster::with_node_2_down().await;
    cluster.kill();
    let before = cluster.puts().len();
    cluster.fault("PUT", "", None, &json!({"answer": {"status": 500}}));
    let deletion = async {
        cluster.until("a PUT", |cluster| cluster.puts().len() > before).await;
        cluster.remove_node(2).await;
    };
    let (outcome, ()) = tokio::join!(cluster.restore(), deletion);
    assert!(outcome.restored.is_empty(), "{outcome:?}");
    let left: Vec<_> = outcome.not_restored.keys().map(|entry| entry.node.as_deref()).collect();
    assert_eq!(left, [Some("node-2"); 3], "{outcome:?}");
    cluster.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn restore_that_loses_its_term_after_a_write_does_not_say_that_nothing_was_written() {
    let mut cluster = TestCluster::with_node_2_down().await;
    cluster.kill();
    let (client, line) = cluster.fake.client();
    let fails = json!({"answer": {"status": 500}});
    cluster.fault("PUT", "kubernetes-internal/", None, &fails);
    let cut_off = async {
        cluster
            .until("a write", |cluster| cluster.down()["kubernetes/kubernetes"].is_empty())
            .await;
        line.set(Fault::CutOff);
    };
    let restored = timeout(60 * SECOND, cluster.restore_with(client));
    let (outcome, ()) = tokio::join!(restored, cut_off);
    // The end of the term is seen by the work, which sums up, or by what runs it.
    let says_what_is_left = match &outcome {
        Ok(Ok(outcome)) => !outcome.restored.is_empty() && !outcome.not_restored.is_empty(),
        Ok(Err(error)) => matches!(error, RestoreError::TermEnded),
        Err(_) => false,
    };
    assert!(says_what_is_left, "{outcome:?}");
}
