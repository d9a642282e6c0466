//! "Concurrency with backend pool changes": the shared Lease.

use headgate_test_kubernetes::{FakeApi, assert_contains};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::super::world::{ENFORCE, World, dual_stack, one_pool};
use super::cluster::{DOWN, DRAINING, FAILED, SECOND, TestCluster};

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
fn release(fake: &FakeApi) {
    fake.change::<Lease>("kube-system", NAME, |lease| {
        lease["spec"]["holderIdentity"] = json!("");
        lease["metadata"]["annotations"] =
            json!({"aks-managed-resource-locker-previous-holder": "cloud-controller-manager"});
    });
}

pub(crate) fn holder(cluster: &TestCluster) -> String {
    let lease: Lease = cluster.fake.peek("kube-system", NAME).unwrap();
    lease.spec.unwrap().holder_identity.unwrap()
}

/// Nothing can be read or written without one.
#[tokio::test(start_paused = true)]
async fn lease_is_not_acquired_without_a_token() {
    for action in [json!({"stall": "5m"}), json!({"answer": {"status": 400}})] {
        let cluster = TestCluster::with(3, &one_pool(3)).await;
        cluster.fault("POST", "/token$", None, &action);
        // The present one is valid for an hour.
        sleep(3700 * SECOND).await;
        cluster.taint(2, &[DRAINING]);
        sleep(180 * SECOND).await;
        let takes = cluster.fake.requests();
        let mut leases = takes.iter().filter(|asked| asked.path.ends_with(NAME));
        assert!(leases.all(|asked| asked.method == hyper::Method::GET), "{action}");
        let notes = cluster.notes(FAILED, "node-2").await;
        assert!(notes.len() == 1 && notes[0].contains("no token"), "{action}: {notes:?}");
        cluster.clear_faults();
        cluster.until_down(&["node-2"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn read_that_stalls_keeps_the_lease_no_longer_than_it_admits_a_write() {
    // The load balancer, and of a large one the pool alone.
    for (path, max_kept_bytes) in [
        ("/loadBalancers/kubernetes$", None),
        ("/backendAddressPools/kubernetes$", Some(0)),
    ] {
        let limit = |world: &mut World| world.max_kept_bytes = max_kept_bytes;
        let mut cluster = TestCluster::configured(3, &one_pool(3), limit).await;
        cluster.fault("GET", path, None, &json!({"stall": "5m"}));
        cluster.taint(2, &[DRAINING]);
        let (mut held, mut longest, mut free) = (0, 0, 0);
        for _ in 0..600 {
            sleep(SECOND).await;
            held = if holder(&cluster).is_empty() { 0 } else { held + 1 };
            free += u32::from(held == 0);
            longest = longest.max(held);
        }
        assert!(
            longest > 10 && longest <= 33 && free > 100,
            "{path}: {longest} s, and free for {free} s"
        );
        cluster.clear_faults();
        cluster.until_down(&["node-2"]).await;
        cluster.stop().await;
    }
}

/// As where a load balancer is so large that each pool is read alone.
#[tokio::test(start_paused = true)]
async fn pool_whose_read_outlasts_the_hold_delays_no_other_pool_for_long() {
    let cluster = TestCluster::configured(3, &[dual_stack(3)], |world| world.max_kept_bytes = Some(0)).await;
    for slow in ["kubernetes", "kubernetes-IPv6"] {
        let path = format!("/backendAddressPools/{slow}$");
        cluster.fault("GET", &path, None, &json!({"stall": "5m"}));
        cluster.taint(2, &[DRAINING]);
        sleep(120 * SECOND).await;
        let down = cluster.down();
        assert_eq!(
            down.values().filter(|down| down.contains("node-2")).count(),
            1,
            "{slow}: {down:?}"
        );
        assert!(down[&format!("kubernetes/{slow}")].is_empty(), "{slow}: {down:?}");
        cluster.clear_faults();
        cluster.until_down(&["node-2"]).await;
        cluster.taint(2, &[]);
        cluster.settle(&[]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_kept_while_a_write_may_arrive_that_a_change_of_the_configuration_ended() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    cluster.fault("PUT", "", Some(1), &json!({"stall": "5m"}));
    cluster.taint(2, &[DRAINING]);
    cluster.until("sent", |cluster| cluster.puts().len() == 1).await;
    cluster.reconfigure(None);
    for _ in 0..90 {
        assert_eq!(holder(&cluster), "headgate");
        sleep(SECOND / 10).await;
    }
    cluster.until("another one", |cluster| cluster.puts().len() == 2).await;
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
    assert_contains!(notes[0], NAME, "cloud-controller-manager");
    release(&cluster.fake);
    let took = cluster.until_down(&["node-2"]).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    assert_eq!(holder(&cluster), "");
}

#[tokio::test(start_paused = true)]
async fn reset_under_the_lease_is_repaired_within_a_second_of_its_release() {
    let cluster = TestCluster::with_node_2_down().await;
    for _ in 0..5 {
        // Between two resyncs.
        sleep(3 * SECOND).await;
        acquire(&cluster, "cloud-controller-manager").await;
        cluster
            .foreign_state("kubernetes", "kubernetes", "node-2", "None")
            .await;
        sleep(SECOND).await;
        release(&cluster.fake);
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
    release(&cluster.fake);
    sleep(60 * SECOND).await;
    assert!(cluster.puts().is_empty());
    assert!(cluster.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_write_is_not_sent_after_the_lease_is_lost() {
    let cluster = TestCluster::with(3, &one_pool(3)).await;
    // The client retries after 0.8 s or so.
    cluster.fault("PUT", "", Some(1), &json!({"answer": {"status": 503}}));
    cluster.taint(2, &[DRAINING]);
    cluster.until("a first try", |cluster| cluster.puts().len() == 1).await;
    acquire(&cluster, "cloud-controller-manager").await;
    sleep(40 * SECOND).await;
    assert_eq!(cluster.puts().len(), 1);
    release(&cluster.fake);
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

#[tokio::test(start_paused = true)]
async fn no_write_begins_at_the_end_of_a_handover() {
    for (millis, puts) in [(500, 1), (1_200, 0)] {
        let mut cluster = TestCluster::with(3, &one_pool(3)).await;
        acquire(&cluster, "cloud-controller-manager").await;
        cluster.taint(2, &[DRAINING]);
        sleep(5 * SECOND).await;
        let fake = cluster.fake.clone();
        let other = tokio::spawn(async move {
            sleep(SECOND * millis / 1000).await;
            release(&fake);
        });
        cluster.stop().await;
        other.await.unwrap();
        assert_eq!((cluster.puts().len(), holder(&cluster)), (puts, String::new()));
        assert!(cluster.notes(FAILED, "node-2").await.is_empty());
        cluster.lead(ENFORCE).await;
        cluster.settle(&["node-2"]).await;
        assert_eq!(cluster.puts().len(), 1);
    }
}

/// The write has no answer, and its retry comes too late for the handover.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_write_without_an_answer_is_left_to_the_next_leader() {
    let mut cluster = TestCluster::with(3, &one_pool(3)).await;
    acquire(&cluster, "cloud-controller-manager").await;
    cluster.configure(&json!({"operationDelay": "20s"}));
    cluster.fault("PUT", "", Some(1), &json!({"cut": "after"}));
    cluster.taint(2, &[DRAINING]);
    sleep(5 * SECOND).await;
    let fake = cluster.fake.clone();
    let other = tokio::spawn(async move {
        sleep(SECOND / 2).await;
        release(&fake);
    });
    cluster.stop().await;
    other.await.unwrap();
    assert_eq!((cluster.puts().len(), &*holder(&cluster)), (1, "headgate"));
    cluster.lead(ENFORCE).await;
    cluster.settle(&["node-2"]).await;
    assert_eq!(holder(&cluster), "");
}

/// The next leader takes it over.
#[tokio::test(start_paused = true)]
async fn the_lease_is_not_released_while_a_write_is_on_its_way() {
    for (stall, left) in [("1500ms", ""), ("1m", "headgate")] {
        let mut cluster = TestCluster::with(3, &one_pool(3)).await;
        cluster.fault("PUT", "", Some(1), &json!({"stall": stall}));
        cluster.taint(2, &[DRAINING]);
        cluster
            .until("a write", |cluster| {
                let ledger = cluster.fake.peek::<ConfigMap>("kube-system", "headgate-admin-state");
                ledger.is_some_and(|ledger| ledger.data.is_some_and(|data| data["ledger.json"].contains("10.0.0.2")))
            })
            .await;
        let began = Instant::now();
        cluster.stop().await;
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        assert_eq!(holder(&cluster), left, "{stall}");
        cluster.lead(ENFORCE).await;
        cluster.settle(&["node-2"]).await;
        assert_eq!(holder(&cluster), "");
        assert!(cluster.notes(FAILED, "node-2").await.is_empty());
        cluster.stop().await;
    }
}
