//! "Concurrency with backend pool changes": the Lease that is held around writes.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::time::sleep;

use super::super::world::{entries, load_balancer};
use super::stage::{DOWN, DRAINING, FAILED, SECOND, Stage, entry};

const NAME: &str = "aks-managed-resource-locker";

/// Somebody holds the Lease from now on, as cloud-controller-manager does.
async fn take(stage: &Stage, holder: &str) {
    let now: Timestamp = stage.world.clock.now().wall;
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 900, "acquireTime": format!("{now:.6}"), "renewTime": format!("{now:.6}")});
    if stage.fake.peek::<Lease>("kube-system", NAME).is_some() {
        stage
            .fake
            .change::<Lease>("kube-system", NAME, |lease| lease["spec"] = spec);
        return;
    }
    let lease = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec})).unwrap();
    let leases: Api<Lease> = Api::namespaced(stage.world.client.clone(), "kube-system");
    leases.create(&PostParams::default(), &lease).await.unwrap();
}

fn give_back(stage: &Stage) {
    stage.fake.change::<Lease>("kube-system", NAME, |lease| {
        lease["spec"]["holderIdentity"] = json!("");
        lease["metadata"]["annotations"] =
            json!({"aks-managed-resource-locker-previous-holder": "cloud-controller-manager"});
    });
}

#[tokio::test(start_paused = true)]
async fn while_another_has_the_lease_nothing_is_written_and_it_is_told() {
    let stage = Stage::new(3).await;
    take(&stage, "cloud-controller-manager").await;
    stage.taint(2, &[DRAINING]);
    sleep(50 * SECOND).await;
    assert!(stage.world.events().await.is_empty(), "a minute is not long");
    sleep(240 * SECOND).await;
    assert!(stage.puts().is_empty());
    let notes = stage.notes(FAILED, "node-2").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains(NAME) && notes[0].contains("cloud-controller-manager"),
        "{notes:?}"
    );
    give_back(&stage);
    let took = stage.until_down(&["node-2"]).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    let lease: Lease = stage.fake.peek("kube-system", NAME).unwrap();
    assert_eq!(
        lease.spec.unwrap().holder_identity.as_deref(),
        Some(""),
        "it is given back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_gives_back_is_had_when_it_has_expired() {
    let stage = Stage::new(3).await;
    take(&stage, "dead").await;
    stage.taint(2, &[DRAINING]);
    sleep(890 * SECOND).await;
    assert!(stage.puts().is_empty());
    stage.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_other_undid_under_the_lease_is_done_again_within_a_second() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    stage.world.control("PUT", "settings", &json!({"operationDelay": "0s"}));
    for _ in 0..5 {
        // Away from the lists of every 15 s.
        sleep(3 * SECOND).await;
        take(&stage, "cloud-controller-manager").await;
        stage
            .foreign("kubernetes", "kubernetes", |pool| {
                entry(pool, "node-2")["properties"]["adminState"] = json!("None");
            })
            .await;
        sleep(SECOND).await;
        give_back(&stage);
        let took = stage.until_down(&["node-2"]).await;
        assert!(took <= SECOND, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_ends_while_the_lease_is_awaited_costs_no_write() {
    let stage = Stage::new(3).await;
    take(&stage, "cloud-controller-manager").await;
    stage.taint(2, &[DRAINING]);
    sleep(30 * SECOND).await;
    stage.taint(2, &[]);
    sleep(10 * SECOND).await;
    give_back(&stage);
    sleep(60 * SECOND).await;
    assert!(stage.puts().is_empty());
    assert!(stage.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_is_not_sent_once_another_has_the_lease() {
    let stage = Stage::with(
        3,
        &[load_balancer("kubernetes", &[("kubernetes", entries(1..=3, false))])],
    )
    .await;
    // It is tried again after some 0.8 s.
    stage.fault("PUT", "", Some(1), &json!({"answer": {"status": 503}}));
    stage.taint(2, &[DRAINING]);
    stage.until("a first try", |stage| stage.puts().len() == 1).await;
    take(&stage, "cloud-controller-manager").await;
    sleep(40 * SECOND).await;
    assert_eq!(stage.puts().len(), 1);
    give_back(&stage);
    stage.until_down(&["node-2"]).await;
    sleep(5 * SECOND).await;
    let statuses: Vec<_> = stage.puts().iter().map(|put| put.status).collect();
    assert_eq!(statuses, [503, 200]);
    assert!(stage.notes(FAILED, "node-2").await.is_empty(), "it was nobody's fault");
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
}
