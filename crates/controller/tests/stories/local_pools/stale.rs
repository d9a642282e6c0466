//! A leader whose watch of Nodes, Services or `EndpointSlices` is stale: the members of pools stay as they are.

use std::time::Duration;

use headgate_test_kubernetes::{Fault, RecordedSpans};
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{SECOND, entries, pool_path};
use super::cluster::{INTERVAL, LocalCluster, nodes};

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn stale_slices_are_not_enforced_against_another_writer() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    cluster
        .faults
        .set_for(Fault::Status(403), |request| request.path.ends_with("/endpointslices"));
    cluster.faults.cut_watches();
    sleep(6 * MINUTE).await;
    let puts = cluster.puts();
    // The leader does not see this move; cloud-controller-manager does.
    cluster.set_slice("web", "web-1", &[2]).await;
    let pool =
        json!({"properties": {"virtualNetwork": {"id": "nodes"}, "loadBalancerBackendAddresses": entries([2], false)}});
    let path = pool_path("kubernetes", "default-web");
    assert!(cluster.put(&path, &pool, None).await.status().is_success());
    sleep(20 * MINUTE).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
    assert_eq!(cluster.puts(), puts, "nothing is written");

    cluster.faults.set(Fault::None);
    sleep(2 * MINUTE).await;
    cluster.set_slice("web", "web-1", &[3]).await;
    sleep(INTERVAL + 10 * SECOND).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[3]));
}

#[tokio::test(start_paused = true)]
async fn members_wait_while_the_nodes_are_stale() {
    let cluster = LocalCluster::start().await;
    cluster.tick().await;
    cluster
        .faults
        .set_for(Fault::Status(403), |request| request.path == "/api/v1/nodes");
    cluster.faults.cut_watches();
    sleep(6 * MINUTE).await;
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    sleep(20 * MINUTE).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1]));
    cluster.faults.set(Fault::None);
    sleep(2 * MINUTE).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[1, 2]));
}

#[tokio::test(start_paused = true)]
async fn slices_that_become_stale_while_a_tick_waits_for_the_lease_are_not_written() {
    let (spans, _guard) = RecordedSpans::start();
    let cluster = LocalCluster::start().await;
    assert!(cluster.take_arm_lease().await);
    cluster.set_slice("web", "web-1", &[2]).await;
    // Every second interval a tick waits for the Lease. The slices were confirmed last in one of these.
    cluster.tick().await;
    cluster.set_slice("web", "web-1", &[3]).await;
    sleep(SECOND).await;
    cluster
        .faults
        .set_for(Fault::Status(403), |request| request.path.ends_with("/endpointslices"));
    cluster.faults.cut_watches();
    sleep(5 * MINUTE).await;
    let began = spans.named("reconcile_local_pools").len();
    cluster.release_arm_lease().await;
    sleep(2 * INTERVAL).await;
    assert_eq!(cluster.puts(), 0);
    let ticks = spans.named("reconcile_local_pools");
    assert_eq!(ticks.len(), began, "it waited already");
    let tick = ticks.last().unwrap();
    assert_eq!(
        (tick.field("error.type"), tick.field("otel.status_description")),
        ("Stale", "endpointslices not confirmed for too long")
    );
}

#[tokio::test(start_paused = true)]
async fn quiet_services_are_not_stale() {
    let cluster = LocalCluster::start().await;
    sleep(60 * MINUTE).await;
    cluster.set_slice("web", "web-1", &[2]).await;
    sleep(INTERVAL + 10 * SECOND).await;
    assert_eq!(cluster.addresses("default-web").await, nodes(&[2]));
}
