//! Evacuations of other instigators, and evacuations that are refused or hang.

use headgate_maintenance::api::{BlockerReason, Evacuation};
use headgate_test_kubernetes::{Fault, RecordedRequest};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{MINUTE, NAMESPACE, SECOND, World, at_once};

const OTHER_INSTIGATOR: &str = "evacuation.coordination.k8s.io/instigator_other.example";

/// An Evacuation of another instigator.
fn theirs(pod: &str, uid: &str) -> Value {
    json!({"metadata": {"name": format!("{uid}-{pod}"), "finalizers": [OTHER_INSTIGATOR]},
        "spec": {"podRef": {"name": pod, "uid": uid}, "progressDeadlineSeconds": 1800}})
}

pub(crate) fn registered(class: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {format!("evacuation.coordination.k8s.io/priority_{class}"): value}}})
}

#[tokio::test(start_paused = true)]
async fn an_evacuation_of_another_instigator_is_carried_out_without_any_maintenance() {
    let mut world = World::new(&["one"]).await;
    world
        .pod("one", "web", &registered("app.example", "not a number"))
        .await;
    let leader = world.lead().await;
    let uid = world.uid_of::<Pod>(NAMESPACE, "web");
    world.create::<Evacuation>(NAMESPACE, theirs("web", &uid)).await;
    // One of a pod that does not exist ends by itself.
    let of_none = theirs("web", "00000000-0000-4000-8000-00000000dead");
    world.create::<Evacuation>(NAMESPACE, of_none).await;
    world.until_gone(&["web"]).await;
    sleep(20 * SECOND).await;
    assert!(world.evacuation("web").await.is_none());
    assert!(world.is_given_back("one"));
    // Nothing needs the pods of its node any more.
    let requested = || {
        let requests = world.fake.requests();
        let selectors = requests.iter().filter_map(|request| request.query.get("fieldSelector"));
        selectors.filter(|selector| *selector == "spec.nodeName=one").count()
    };
    let before = requested();
    leader.faults.cut_watches();
    sleep(MINUTE).await;
    assert!(before > 0);
    assert_eq!(requested(), before);
}

#[tokio::test(start_paused = true)]
async fn budgets_that_cannot_be_listed_count_as_full() {
    let world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world.budget("web", "web", 0).await;
    let (leader, _terms) = world.start_leader();
    leader.faults.set_for(Fault::Status(403), |request| {
        request.path.ends_with("/poddisruptionbudgets")
    });
    let uid = world.uid_of::<Pod>(NAMESPACE, "web");
    world.create::<Evacuation>(NAMESPACE, theirs("web", &uid)).await;
    sleep(11 * MINUTE).await;
    let evictions = world.requests("POST", "web/eviction");
    assert!(
        (4..=7).contains(&evictions),
        "after 10 s, 20 s, 40 s and so on: {evictions}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_evacuation_of_another_instigator_for_a_pod_of_a_daemon_set_blocks_no_drain() {
    let mut world = World::new(&["one"]).await;
    world.daemon_pod("one", "log", false).await;
    let _leader = world.lead().await;
    let uid = world.uid_of::<Pod>(NAMESPACE, "log");
    world.create::<Evacuation>(NAMESPACE, theirs("log", &uid)).await;
    sleep(60 * MINUTE).await;
    assert!(world.has_pod("log"), "no maintenance drains its node");
    world.observe_out("one");
    world.drain_one(0).await;
    world.until_gone(&["log"]).await;
    assert_eq!(world.requests("POST", "/eviction"), 0);
}

/// A webhook that fails, or the missing right to delete pods.
#[tokio::test(start_paused = true)]
async fn a_pod_of_a_daemon_set_whose_deletion_is_refused_is_a_blocker_until_it_is_deleted() {
    let mut world = World::new(&["one"]).await;
    world.daemon_pod("one", "log", false).await;
    // No budget keeps it.
    world.budget("log", "log", 0).await;
    let leader = world.lead().await;
    leader.faults.set_for(Fault::Status(403), deletes_log);
    world.observe_out("one");
    world.drain_one(0).await;
    sleep(MINUTE).await;
    let node = world.node_status("m", "one");
    assert_eq!(node.blockers_total, 1);
    let (reason, message) = (node.blockers[0].reason, &node.blockers[0].message);
    assert_eq!(reason, BlockerReason::EvictionFailed);
    assert!(
        message.contains("evictions failed; ") && message.contains("a fault"),
        "{message}"
    );
    assert_eq!(world.condition("m", "Blocked"), "True EvictionFailed");
    leader.faults.set(Fault::None);
    world.until_gone(&["log"]).await;
}

/// A quota or a policy of the pod's namespace.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_evacuation_is_refused_is_a_blocker_until_it_is_created() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    let leader = world.lead().await;
    world.observe_out("one");
    let creates = |request: &RecordedRequest| request.method == "POST" && request.path.ends_with("/evacuations");
    let writes_status =
        |request: &RecordedRequest| request.method == "PUT" && request.path.ends_with("/nodemaintenances/m/status");
    leader.faults.set_for(Fault::Status(403), writes_status);
    world.drain_one(0).await;
    for is_refused in [writes_status, creates] {
        leader.faults.set_for(Fault::Status(403), is_refused);
        let refused = || world.metric("headgate_maintenance_writes_total{outcome=\"refused\"}");
        let before = refused();
        // However much else changes, the request is repeated each 5 s.
        for second in 0..60 {
            world.observe_in(&format!("other-{second}"));
            sleep(SECOND).await;
        }
        let refused = refused() - before;
        assert!((10.9..13.1).contains(&refused), "{refused}");
    }
    let node = world.node_status("m", "one");
    assert_eq!((node.pods_pending_evacuation, node.blockers_total), (1, 1));
    let (reason, message) = (node.blockers[0].reason, &node.blockers[0].message);
    assert_eq!(reason, BlockerReason::EvictionFailed);
    assert!(
        message.contains("no Evacuation: ") && message.contains("a fault"),
        "{message}"
    );
    assert_eq!(world.condition("m", "Blocked"), "True EvictionFailed");
    // One that fails is tried again after a second, and then as often, with no change besides.
    leader.faults.set_for(Fault::Status(500), creates);
    world.pod("one", "db", &json!({})).await;
    sleep(SECOND / 2).await;
    leader.faults.set(Fault::None);
    sleep(2 * SECOND).await;
    assert!(!world.has_pod("db"));
    leader.faults.set_for(Fault::Status(500), creates);
    world.pod("one", "cache", &json!({})).await;
    sleep(MINUTE).await;
    leader.faults.set(Fault::None);
    sleep(6 * SECOND).await;
    assert!(!world.has_pod("cache"));
    assert!(world.metric("headgate_maintenance_writes_total{outcome=\"failed\"}") > 10.0);
    world.until_gone(&["web"]).await;
    sleep(10 * SECOND).await;
    assert_eq!(world.node_status("m", "one").blockers_total, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_daemon_set_whose_deletion_hangs_delays_no_other() {
    let mut world = World::new(&["one", "two"]).await;
    world.daemon_pod("one", "log", false).await;
    world.daemon_pod("two", "metrics", false).await;
    let leader = world.lead().await;
    leader.faults.set_for(Fault::Slow(60 * MINUTE), deletes_log);
    world.observe_out("one");
    world.observe_out("two");
    world.drain_one(0).await;
    world.until_evacuating("log").await;
    sleep(3 * SECOND).await;
    world.maintain("n", "Drain", &["two"], &at_once()).await;
    world.until_evacuating("metrics").await;
    sleep(2 * SECOND).await;
    assert!(!world.has_pod("metrics"), "within a few seconds");
}

fn deletes_log(request: &RecordedRequest) -> bool {
    request.method == "DELETE" && request.path.ends_with("/pods/log")
}

/// Who may create Evacuations in one namespace evicts no pod of another one, whose UID every event about it tells.
#[tokio::test(start_paused = true)]
async fn an_evacuation_with_the_uid_of_another_pod_ends_without_an_eviction() {
    let mut world = World::new(&["one"]).await;
    for pod in ["web", "api"] {
        world.pod("one", pod, &json!({})).await;
    }
    // The pods of a node under maintenance are cached; its load balancer keeps them.
    world.observe_in("one");
    let _leader = world.lead().await;
    world.maintain("m", "Drain", &["one"], &json!({})).await;
    world.until("isolated", |world| world.isolation("one").0).await;
    let uid = world.uid_of::<Pod>(NAMESPACE, "web");
    for (namespace, pod) in [("other", "web"), (NAMESPACE, "api")] {
        world.create::<Evacuation>(namespace, theirs(pod, &uid)).await;
    }
    sleep(2 * MINUTE).await;
    assert_eq!(world.requests("POST", "/eviction"), 0);
    for namespace in ["other", NAMESPACE] {
        let all = Api::<Evacuation>::namespaced(world.client.clone(), namespace);
        let left = all.list(&ListParams::default()).await.unwrap().items;
        assert!(left.is_empty(), "{left:?}");
    }
    world.observe_out("one");
    world.until_gone(&["web", "api"]).await;
}
