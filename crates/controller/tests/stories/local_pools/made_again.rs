//! Services that change at an inconvenient time: beside a change of a Node, or deleted and created again during their PUT.

use std::time::Duration;

use headgate_controller::local_service::LocalPoolsTarget;
use headgate_test_kubernetes::Fault;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::SECOND;
use super::cluster::{INTERVAL, LocalCluster, Options, nodes, several_load_balancers};

const PUT_OF_WEB: &str = "/backendAddressPools/default-web$";

#[tokio::test(start_paused = true)]
async fn annotation_retries_a_failed_update_although_a_node_changes_in_the_same_tick() {
    let cluster = LocalCluster::start().await;
    cluster.fault("PUT", PUT_OF_WEB, None, &json!({"answer": {"status": 403}}));
    cluster.set_slice("web", "web-1", &[2]).await;
    cluster.tick().await;
    assert_eq!(cluster.events("web").await, [0, 0, 1]);
    cluster.clear_faults();
    cluster
        .patch_service("web", &json!({"metadata": {"annotations": {"operator": "retry"}}}))
        .await;
    cluster.world.taint(4, &["ToBeDeletedByClusterAutoscaler"]).await;
    cluster.tick().await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.events("web").await, [1, 0, 1]);
}

/// The Service's PUT, whose operation takes this long and then fails, has been sent.
async fn failing_put(operation_delay: Duration) -> LocalCluster {
    let cluster = LocalCluster::with(Options {
        operation_delay,
        target: LocalPoolsTarget {
            max_retries: Some(0),
            ..several_load_balancers()
        },
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[2]).await;
    let conflict =
        json!({"operation": "fail", "error": {"code": "Conflict", "message": "m", "details": []}, "effect": "lost"});
    cluster.fault("PUT", PUT_OF_WEB, Some(1), &conflict);
    while cluster.puts() == 0 {
        sleep(SECOND).await;
    }
    cluster
}

#[tokio::test(start_paused = true)]
async fn failure_of_an_old_update_is_not_reported_on_a_service_created_again() {
    // The next tick makes the new Service's update due before the old one ends.
    let cluster = failing_put(INTERVAL + 10 * SECOND).await;
    cluster.delete_service("web").await;
    cluster.add_service("web").await;
    sleep(4 * INTERVAL).await;
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!((cluster.puts(), cluster.outcomes()), (2, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn service_created_again_is_another_one_although_its_deletion_was_not_observed() {
    let cluster = failing_put(8 * INTERVAL).await;
    cluster
        .faults
        .set_for(Fault::Status(403), |request| request.path.ends_with("/services"));
    cluster.faults.cut_watches();
    sleep(SECOND).await;
    cluster.delete_service("web").await;
    cluster.add_service("web").await;
    // The watch cannot go on from where it was, so the next list shows the new Service alone.
    cluster.fake.compact();
    sleep(SECOND).await;
    cluster.faults.set(Fault::None);
    sleep(20 * INTERVAL).await;
    assert_eq!(cluster.events("web").await, [1, 0, 0]);
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.outcomes(), (1, 0));
}
