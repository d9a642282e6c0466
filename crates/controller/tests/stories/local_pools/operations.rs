//! What is not a definite end of an operation: the leader retries, and the pool gets its members. Until when it holds the shared Lease,
//! `operation_end` shows.

use std::time::Duration;

use headgate_azure_emulator::Settings;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::super::world::{SECOND, entries, load_balancer, pool_path};
use super::cluster::{INTERVAL, LocalCluster, Options, RETRYING, nodes, operations_of};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";
/// Far longer than the rest of a write.
const OPERATION: Duration = Duration::from_secs(20);
/// A pool of all nodes, which is no Service's.
pub(super) const NODE_POOL: &str = "kubernetes";
const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";

async fn cluster() -> LocalCluster {
    cluster_with(operations_of(OPERATION)).await
}

/// A cluster with a pool of `web`, which has the first node, and a pool of all nodes.
pub(super) async fn cluster_with(azure: Settings) -> LocalCluster {
    let pools = [("default-web", entries([1], false)), (NODE_POOL, entries(1..=4, false))];
    let options = Options {
        load_balancers: vec![load_balancer("kubernetes", &pools)],
        azure,
        ..Options::default()
    };
    let cluster = LocalCluster::with_web(options, &[1]).await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 0, "nothing differs");
    cluster
}

/// Gives `web` the second node, and returns when ARM has got the PUT.
async fn begin_update(cluster: &LocalCluster) -> Instant {
    let before = cluster.puts();
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    while cluster.puts() == before {
        sleep(SECOND / 20).await;
    }
    Instant::now()
}

/// Which other codes are not final, `local_pools::failure` has in a table.
#[tokio::test(start_paused = true)]
async fn failure_that_is_not_final_is_retried_until_the_pool_has_its_members() {
    let cluster = cluster().await;
    let error = json!({"code": "SomethingNew", "message": "m", "details": []});
    let failed = json!({"operation": "fail", "effect": "lost", "error": error});
    cluster.fault("PUT", PUT_OF_WEB, Some(2), &failed);
    begin_update(&cluster).await;
    sleep(5 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!((cluster.puts(), cluster.events("web").await), (3, [1, 2, 0]));
}

#[tokio::test(start_paused = true)]
async fn operation_that_succeeds_with_an_empty_pool_is_noticed_by_the_read_back() {
    let cluster = cluster().await;
    let emptied = json!({"operation": "succeed", "effect": "emptied"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &emptied);
    let sent = begin_update(&cluster).await;
    while cluster.events("web").await == [0, 0, 0] {
        sleep(SECOND / 4).await;
    }
    assert!(sent.elapsed() < OPERATION + 3 * SECOND, "{:?}", sent.elapsed());
    assert_eq!(cluster.addresses("default-web").await, nodes(&[]));
    assert_eq!(cluster.events("web").await, [0, 1, 0], "not a success");
    sleep(3 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!((cluster.puts(), cluster.events("web").await), (2, [1, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn success_that_no_read_confirms_is_not_reported_as_one() {
    let cluster = cluster().await;
    let emptied = json!({"operation": "succeed", "effect": "emptied"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &emptied);
    begin_update(&cluster).await;
    cluster.fault("GET", "/loadBalancers/", None, &json!({"answer": {"status": 500}}));
    sleep(2 * OPERATION).await;
    assert_eq!(cluster.events("web").await[0], 0, "nothing is known");
    cluster.clear_faults();
    sleep(10 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!(cluster.events("web").await[0], 1);
}

#[tokio::test(start_paused = true)]
async fn members_that_a_newer_write_of_another_writer_loses_are_written_again() {
    let cluster = cluster().await;
    let lost = json!({"operation": "succeed", "effect": "lostWhenSuperseded"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &lost);
    begin_update(&cluster).await;
    sleep(SECOND).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]), "as accepted");
    let path = pool_path("kubernetes", NODE_POOL);
    let mut document = cluster.get(&path).await;
    document["futureField"] = json!(7);
    assert!(cluster.put(&path, &document, None).await.status().is_success());
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]), "lost silently");
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!(cluster.events("web").await, [1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn admin_state_waits_for_the_operation_in_flight_and_supersedes_nothing() {
    let cluster = cluster().await;
    // If it superseded the update, the members would be lost.
    let lost = json!({"operation": "succeed", "effect": "lostWhenSuperseded"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &lost);
    let sent = begin_update(&cluster).await;
    sleep(SECOND).await;
    cluster.world.taint(4, &[SIGNAL]).await;
    while !cluster.world.down("kubernetes", NODE_POOL).contains("node-4") {
        sleep(SECOND / 20).await;
        assert!(sent.elapsed() < 4 * OPERATION);
    }
    assert!(sent.elapsed() >= OPERATION, "{:?}", sent.elapsed());
    assert!(sent.elapsed() < OPERATION + 3 * SECOND, "{:?}", sent.elapsed());
    sleep(2 * OPERATION).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    assert_eq!((cluster.puts(), cluster.events("web").await), (2, [1, 0, 0]));
}

/// The twin of the story about admin states in `rows/risks.rs`.
#[tokio::test(start_paused = true)]
async fn read_that_outlasts_a_hold_of_the_lease_costs_the_service_a_retry() {
    let cluster = cluster_with(operations_of(2 * SECOND)).await;
    cluster.fault("GET", "/loadBalancers/kubernetes$", None, &json!({"stall": "35s"}));
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.puts(), 0);
    assert_eq!(cluster.events("web").await, [0, 1, 0]);
    let notes = cluster.notes(RETRYING, "web").await;
    assert!(notes[0].contains("no hold of the shared Lease lasted"), "{notes:?}");
    cluster.clear_faults();
    sleep(3 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
    // Reads for a signal alone cost a later update none.
    let before = cluster.events("web").await;
    cluster.fault("GET", "/loadBalancers/kubernetes$", None, &json!({"stall": "35s"}));
    cluster.world.taint(4, &[SIGNAL]).await;
    sleep(120 * SECOND).await;
    cluster.world.taint(4, &[]).await;
    sleep(60 * SECOND).await;
    cluster.clear_faults();
    cluster.set_slice("web", "web-1", &[1]).await;
    sleep(3 * INTERVAL).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
    assert_eq!(cluster.events("web").await[1], before[1]);
}
