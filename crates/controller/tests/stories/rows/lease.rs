//! "Concurrency with backend pool changes": the shared Lease.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{entries, load_balancer};
use super::cluster::{DOWN, DRAINING, FAILED, SECOND, TestCluster, entry};

const NAME: &str = "aks-managed-resource-locker";

/// Makes another holder have the Lease.
async fn acquire(cluster: &TestCluster, holder: &str) {
    let now: Timestamp = cluster.world.clock.now().wall;
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 900, "acquireTime": format!("{now:.6}"), "renewTime": format!("{now:.6}")});
    if cluster.fake.peek::<Lease>("kube-system", NAME).is_some() {
        cluster
            .fake
            .change::<Lease>("kube-system", NAME, |lease| lease["spec"] = spec);
        return;
    }
    let lease = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec})).unwrap();
    let leases: Api<Lease> = Api::namespaced(cluster.world.client.clone(), "kube-system");
    leases.create(&PostParams::default(), &lease).await.unwrap();
}

/// Releases the Lease as cloud-controller-manager does.
fn release(cluster: &TestCluster) {
    cluster.fake.change::<Lease>("kube-system", NAME, |lease| {
        lease["spec"]["holderIdentity"] = json!("");
        lease["metadata"]["annotations"] =
            json!({"aks-managed-resource-locker-previous-holder": "cloud-controller-manager"});
    });
}

#[tokio::test(start_paused = true)]
async fn held_lease_prevents_writes_and_is_reported() {
    let cluster = TestCluster::new(3).await;
    acquire(&cluster, "cloud-controller-manager").await;
    cluster.taint(2, &[DRAINING]);
    sleep(50 * SECOND).await;
    assert!(
        cluster.world.events().await.is_empty(),
        "waiting for up to a minute is no failure"
    );
    sleep(240 * SECOND).await;
    assert!(cluster.puts().is_empty());
    let notes = cluster.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains(NAME) && notes[0].contains("cloud-controller-manager"),
        "{notes:?}"
    );
    release(&cluster);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    let lease: Lease = cluster.fake.peek("kube-system", NAME).unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""), "released");
}

#[tokio::test(start_paused = true)]
async fn reset_under_the_lease_is_repaired_within_a_second() {
    let cluster = TestCluster::with_node_2_down().await;
    cluster
        .world
        .control("PUT", "settings", &json!({"operationDelay": "0s"}));
    for _ in 0..5 {
        // Between two resyncs.
        sleep(3 * SECOND).await;
        acquire(&cluster, "cloud-controller-manager").await;
        cluster
            .foreign("kubernetes", "kubernetes", |pool| {
                entry(pool, "node-2")["properties"]["adminState"] = json!("None");
            })
            .await;
        sleep(SECOND).await;
        release(&cluster);
        let took = cluster.until_down(&["node-2"]).await;
        assert!(took <= SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn signal_that_ends_while_waiting_for_the_lease_causes_no_write() {
    let cluster = TestCluster::new(3).await;
    acquire(&cluster, "cloud-controller-manager").await;
    cluster.taint(2, &[DRAINING]);
    sleep(30 * SECOND).await;
    cluster.taint(2, &[]);
    sleep(10 * SECOND).await;
    release(&cluster);
    sleep(60 * SECOND).await;
    assert!(cluster.puts().is_empty());
    assert!(cluster.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_write_is_not_sent_after_the_lease_is_lost() {
    let cluster = TestCluster::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    // The client retries after 0.8 s or so.
    cluster.fault("PUT", "", Some(1), &json!({"answer": {"status": 503}}));
    cluster.taint(2, &[DRAINING]);
    cluster.until("a first try", |cluster| cluster.puts().len() == 1).await;
    acquire(&cluster, "cloud-controller-manager").await;
    sleep(40 * SECOND).await;
    assert_eq!(cluster.puts().len(), 1);
    release(&cluster);
    cluster.until_down(&["node-2"]).await;
    sleep(5 * SECOND).await;
    let statuses: Vec<_> = cluster.puts().iter().map(|put| put.status).collect();
    assert_eq!(statuses, [503, 200]);
    assert!(
        cluster.notes(FAILED, "node-2").await.is_empty(),
        "a lost Lease is no failure"
    );
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
}
