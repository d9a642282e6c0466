//! `adminState.leaseBypass`: a `Down` close to an eviction does not wait for the shared Lease.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tokio::time::sleep;

use super::rows::cluster::{DRAINING, TestCluster, entry};
use super::world::{ENFORCE, SECOND, two_load_balancers};

/// A leader with this setting, while cloud-controller-manager holds the shared Lease.
async fn cluster(bypass: Duration) -> TestCluster {
    let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
    cluster.world.lease_bypass = bypass;
    cluster.lead(ENFORCE).await;
    assert!(cluster.world.take_arm_lease().await);
    cluster
}

/// Records a notice of an eviction that begins after this time, and taints the node.
fn announce_eviction(cluster: &TestCluster, node: usize, after: SignedDuration) {
    let at = cluster.world.clock.now().wall.checked_add(after).unwrap();
    let record = json!({"eventId": "E", "notBefore": at, "bootId": "b"}).to_string();
    cluster.node(node, |node| {
        node["metadata"]["annotations"]["headgate.dev/spot-notice"] = json!(record);
        node["spec"]["taints"] = json!([{"key": DRAINING, "value": "spot-eviction", "effect": "NoSchedule"}]);
    });
}

fn is_down(cluster: &TestCluster, node: &str) -> bool {
    cluster.down().values().all(|down| down.contains(node))
}

#[tokio::test(start_paused = true)]
async fn a_down_close_to_the_eviction_does_not_wait_for_the_lease() {
    let cluster = cluster(10 * SECOND).await;
    announce_eviction(&cluster, 2, SignedDuration::from_secs(25));
    // A signal without a notice waits, also in the same pools.
    cluster.taint(3, &[DRAINING]);
    sleep(14 * SECOND).await;
    assert!(cluster.puts().is_empty(), "the eviction is not near yet");
    let took = cluster
        .until("node 2 is Down", |cluster| is_down(cluster, "node-2"))
        .await;
    assert!(took <= 3 * SECOND, "{took:?}");
    assert!(cluster.puts().iter().all(|put| put.if_match.is_some()));
    // Its holder undoes it once, and the leader repeats it while the eviction is near.
    cluster
        .foreign("kubernetes", "kubernetes", |document| {
            entry(document, "node-2")["properties"]["adminState"] = json!("None");
        })
        .await;
    let took = cluster
        .until("node 2 is Down again", |cluster| is_down(cluster, "node-2"))
        .await;
    assert!(took <= 16 * SECOND, "{took:?}");
    assert!(
        !cluster.down().values().any(|down| down.contains("node-3")),
        "{:?}",
        cluster.down()
    );
    assert!(cluster.metric("headgate_arm_lock_bypasses_total", &[]).unwrap() >= 2.0);
    cluster.world.release_arm_lease().await;
    cluster
        .until("node 3 is Down", |cluster| is_down(cluster, "node-3"))
        .await;
    let ledger = cluster.world.ledger().await.to_string();
    assert!(ledger.contains("down"), "{ledger}");
}

#[tokio::test(start_paused = true)]
async fn off_by_default_and_without_a_near_eviction_every_write_waits() {
    for (bypass, after) in [(0, 5), (10, 300), (10, -120)] {
        let cluster = cluster(bypass * SECOND).await;
        announce_eviction(&cluster, 2, SignedDuration::from_secs(after));
        sleep(50 * SECOND).await;
        assert!(cluster.puts().is_empty(), "{bypass} {after}");
        assert_eq!(cluster.metric("headgate_arm_lock_bypasses_total", &[]), Some(0.0));
        cluster.world.release_arm_lease().await;
        cluster
            .until("node 2 is Down", |cluster| is_down(cluster, "node-2"))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_bypass_does_not_write_while_arm_is_busy() {
    let cluster = cluster(10 * SECOND).await;
    // The holder of the Lease has an operation under way for four seconds.
    cluster
        .world
        .control("PUT", "settings", &json!({"operationDelay": "4s"}));
    cluster
        .foreign("kubernetes", "kubernetes", |document| {
            document["properties"]["drainPeriodInSeconds"] = json!(7);
        })
        .await;
    let before = cluster.puts().len();
    announce_eviction(&cluster, 2, SignedDuration::from_secs(5));
    sleep(2 * SECOND).await;
    let to_busy = cluster.sent("PUT", "loadBalancers/kubernetes/").len();
    assert_eq!(to_busy, before, "its operation would be cancelled");
    cluster
        .until("node 2 is Down", |cluster| is_down(cluster, "node-2"))
        .await;
}
