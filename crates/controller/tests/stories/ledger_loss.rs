//! The ledger survives its deletion and a rollback while a leader lives, and giving back never waits for it.

use headgate_controller::admin_state::{AdminStateMode, Policy};
use headgate_test_kubernetes::Fault;
use hyper::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DRAINING, FAILED, SECOND, TestCluster};
use super::world::{ENFORCE, dual_stack, one_pool};

const LEDGER: &str = "headgate-admin-state";
/// Longer than the interval at which a leader verifies the ledger.
const VERIFIED: u32 = 20;

/// The text of the ledger.
fn ledger_text(cluster: &TestCluster) -> String {
    let object: ConfigMap = cluster.fake.peek("kube-system", LEDGER).unwrap();
    object.data.unwrap()["ledger.json"].clone()
}

fn set_ledger_text(cluster: &TestCluster, text: &str) {
    let set = |object: &mut Value| object["data"]["ledger.json"] = json!(text);
    cluster.fake.change::<ConfigMap>("kube-system", LEDGER, set);
}

/// The part of the ledger that the entries are in.
fn entries_of(ledger: &Value) -> (&Value, &Value) {
    (&ledger["pools"], &ledger["entries"])
}

/// Kills the leader and removes all taints. Only the ledger can say to the next leader whose each `Down` is.
async fn assert_next_leader_restores(mut cluster: TestCluster) {
    cluster.kill();
    for node in 1..=3 {
        cluster.taint(node, &[]);
    }
    cluster.lead(ENFORCE).await;
    cluster.settle(&[]).await;
}

/// The label by which the installed objects, and earlier settings, are deleted.
#[tokio::test(start_paused = true)]
async fn ledger_does_not_have_the_name_label_of_the_installed_objects() {
    let cluster = TestCluster::with_node_2_down().await;
    let object: ConfigMap = cluster.fake.peek("kube-system", LEDGER).unwrap();
    let labels = object.metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("app.kubernetes.io/name"), "{labels:?}");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "headgate");
}

#[tokio::test(start_paused = true)]
async fn deleted_ledger_is_written_again_by_a_live_leader() {
    let cluster = TestCluster::with_node_2_down().await;
    let before = cluster.ledger().await;
    cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
    sleep(VERIFIED * SECOND).await;
    let after = cluster.ledger().await;
    assert_eq!(
        (entries_of(&after), &after["version"]),
        (entries_of(&before), &json!(1))
    );
    assert!(after["generation"].as_u64() > before["generation"].as_u64(), "{after}");
    assert_next_leader_restores(cluster).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_ledger_is_written_again_at_once_with_the_next_entry() {
    let cluster = TestCluster::with_node_2_down().await;
    cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
    cluster.taint(3, &[DRAINING]);
    cluster.until_down(&["node-2", "node-3"]).await;
    assert_next_leader_restores(cluster).await;
}

#[tokio::test(start_paused = true)]
async fn ledger_from_a_backup_is_replaced_by_a_live_leader() {
    let cluster = TestCluster::with_node_2_down().await;
    let backup = ledger_text(&cluster);
    cluster.taint(3, &[DRAINING]);
    cluster.settle(&["node-2", "node-3"]).await;
    let written = cluster.ledger().await;
    set_ledger_text(&cluster, &backup);
    sleep(VERIFIED * SECOND).await;
    assert_eq!(entries_of(&cluster.ledger().await), entries_of(&written));
    // Edited by hand, without a higher generation.
    let mut edited = cluster.ledger().await;
    edited["entries"] = json!([]);
    set_ledger_text(&cluster, &edited.to_string());
    sleep(VERIFIED * SECOND).await;
    assert_eq!(entries_of(&cluster.ledger().await), entries_of(&written));
    // A text that is no ledger, too.
    set_ledger_text(&cluster, "{");
    sleep(VERIFIED * SECOND).await;
    assert_eq!(entries_of(&cluster.ledger().await), entries_of(&written));
    assert_next_leader_restores(cluster).await;
}

#[tokio::test(start_paused = true)]
async fn ledger_beside_which_something_else_has_changed_is_not_written_again() {
    let cluster = TestCluster::with_node_2_down().await;
    let written = cluster.ledger().await;
    let label = |object: &mut Value| object["metadata"]["labels"]["team"] = json!("edge");
    cluster.fake.change::<ConfigMap>("kube-system", LEDGER, label);
    sleep(VERIFIED * SECOND).await;
    assert_eq!(cluster.ledger().await, written);
}

#[tokio::test(start_paused = true)]
async fn deletion_just_before_a_change_of_the_configuration_loses_nothing() {
    let cluster = TestCluster::with_node_2_down().await;
    cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
    cluster.reconfigure(None);
    sleep(VERIFIED * SECOND).await;
    assert_next_leader_restores(cluster).await;
}

/// The leader that stops is the only one that knows what the ledger had. Found by the randomised stories (seed 1784).
#[tokio::test(start_paused = true)]
async fn deletion_just_before_a_handover_loses_nothing() {
    let mut cluster = TestCluster::with_node_2_down().await;
    let before = cluster.ledger().await;
    cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
    cluster.stop().await;
    assert_eq!(entries_of(&cluster.ledger().await), entries_of(&before));
    cluster.taint(2, &[]);
    cluster.lead(ENFORCE).await;
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn mode_off_accepts_the_deletion() {
    let mut cluster = TestCluster::with_node_2_down().await;
    cluster.stop().await;
    cluster.fault("PUT", "", None, &json!({"answer": {"status": 403}}));
    let off = Policy {
        mode: AdminStateMode::Disabled,
        ..ENFORCE
    };
    cluster.lead(off).await;
    sleep(VERIFIED * SECOND).await;
    cluster.fake.delete::<ConfigMap>("kube-system", LEDGER);
    sleep(VERIFIED * SECOND).await;
    cluster.clear_faults();
    sleep(600 * SECOND).await;
    assert_eq!(cluster.ledger().await, Value::Null);
    cluster.until_down(&["node-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn giving_back_does_not_wait_for_a_ledger_that_cannot_be_written() {
    let mut cluster = TestCluster::with(4, &one_pool(4)).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.line.set_for(Fault::Status(403), |request| {
        request.path.ends_with(LEDGER) && request.method != Method::GET
    });
    // One edit of one pool: one entry becomes `Down`, and one is given back.
    cluster.taint(3, &[DRAINING]);
    cluster.taint(2, &[]);
    let took = cluster.until_down(&[]).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(10 * SECOND).await;
    assert_eq!(cluster.puts().len(), 2, "what is not recorded is not written");
    let notes = cluster.notes(FAILED, "node-3").await;
    assert!(
        notes.len() == 1 && notes[0].contains("could not be recorded"),
        "{notes:?}"
    );
    cluster.line.set(Fault::None);
    cluster.settle(&["node-3"]).await;
    assert_eq!(cluster.puts().len(), 3);
    assert!(cluster.take_arm_lease().await);
    cluster.taint(4, &[DRAINING]);
    cluster.taint(3, &[]);
    sleep(5 * SECOND).await;
    cluster.release_arm_lease().await;
    cluster.settle(&["node-4"]).await;
    assert_eq!(cluster.puts().len(), 4, "one write for both, once it can be recorded");
    cluster.taint(4, &[]);
    cluster.settle(&[]).await;
    cluster.stop().await;
}

/// One pool is refused for minutes, or until ARM's `Retry-After`, while the `Down` of the other cannot be recorded.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_recorded_does_not_wait_for_a_refused_pool() {
    // In 100 s: at once, after 30 s and after 60 more; and at once.
    for (refusal, attempts) in [
        (json!({"status": 400}), 3),
        (json!({"status": 409, "retryAfter": 300}), 1),
    ] {
        let cluster = TestCluster::with(3, &[dual_stack(3)]).await;
        cluster.taint(2, &[DRAINING]);
        cluster.settle(&["node-2"]).await;
        let pool = "/backendAddressPools/kubernetes$";
        cluster.fault("PUT", pool, None, &json!({"answer": refusal}));
        cluster.line.set_for(Fault::Status(403), |request| {
            request.path.ends_with(LEDGER) && request.method != Method::GET
        });
        cluster.taint(3, &[DRAINING]);
        cluster.taint(2, &[]);
        sleep(100 * SECOND).await;
        let puts = cluster.puts();
        let refused = puts
            .iter()
            .filter(|put| Some(put.status) == refusal["status"].as_u64())
            .count();
        assert!((1..=attempts).contains(&refused), "{refusal}: {refused} attempts");
        let notes = cluster.notes(FAILED, "node-2").await;
        let status = refusal["status"].to_string();
        assert!(notes.iter().any(|note| note.contains(&status)), "{notes:?}");
        cluster.line.set(Fault::None);
        let is_down = |cluster: &TestCluster| cluster.down()["kubernetes/kubernetes-IPv6"].contains("node-3");
        let took = cluster.until("the other pool", is_down).await;
        assert!(took < 25 * SECOND, "{refusal}: {took:?}");
        // Once its `Down` could be recorded the refused pool was tried again, and waits for its own time.
        cluster.clear_faults();
        let is_down = |cluster: &TestCluster| cluster.down()["kubernetes/kubernetes"].contains("node-3");
        sleep(250 * SECOND).await;
        cluster.until("the refused pool", is_down).await;
        cluster.settle(&["node-3"]).await;
    }
}
