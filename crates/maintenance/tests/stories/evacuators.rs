//! Evacuators of other authors, and Evacuations that are not of a maintenance.

use headgate_maintenance::api::Evacuation;
use headgate_maintenance::api::names::{INSTIGATOR_FINALIZER, PROTECTION_FINALIZER};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Leader, MINUTE, NAMESPACE, SECOND, World};

const FOREIGN: &str = "example.com/backup";
const OTHER_INSTIGATOR: &str = "evacuation.coordination.k8s.io/instigator_other.example";

fn registered(class: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {format!("evacuation.coordination.k8s.io/priority_{class}"): value}}})
}

/// A node out of its load balancers with one pod under a drain.
async fn draining(pod: &Value) -> (World, Leader) {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", pod).await;
    world.observe_out("one");
    let leader = world.lead().await;
    let gate = json!({"loadBalancer": {"drainSeconds": 0}});
    world.maintain("m", "Drain", &["one"], &gate).await;
    world.until_evacuating("web").await;
    (world, leader)
}

async fn active(world: &World) -> (Option<String>, bool) {
    let status = world.evacuation("web").await.unwrap().status.unwrap_or_default();
    (status.active_evacuator_class, status.active_evacuator_completed)
}

async fn finalizers(world: &World) -> Vec<String> {
    world
        .evacuation("web")
        .await
        .unwrap()
        .metadata
        .finalizers
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_registered_evacuator_gets_its_turn_and_the_eviction_follows_its_completion() {
    let (world, _leader) = draining(&registered("app.example", "20000")).await;
    sleep(2 * SECOND).await;
    assert_eq!(active(&world).await, (Some("app.example".to_owned()), false));
    // It works: each heartbeat moves the deadline of 30 minutes.
    for _ in 0..3 {
        sleep(20 * MINUTE).await;
        let now = world.now();
        world
            .change_evacuation("web", |one| {
                one["status"]["evacuationProgressTimestamp"] = json!(format!("{now:.0}"));
            })
            .await;
    }
    assert_eq!(world.requests("POST", "web/eviction"), 0);
    world
        .change_evacuation("web", |one| {
            one["status"]["activeEvacuatorCompleted"] = json!(true);
        })
        .await;
    world.until("the eviction", |world| !world.has_pod("web")).await;
}

#[tokio::test(start_paused = true)]
async fn an_evacuator_without_progress_loses_its_turn() {
    let (world, _leader) = draining(&registered("app.example", "20000")).await;
    sleep(29 * MINUTE).await;
    assert!(world.has_pod("web"));
    sleep(2 * MINUTE).await;
    assert!(!world.has_pod("web"));
}

#[tokio::test(start_paused = true)]
async fn an_evacuation_that_forbids_its_cancellation_survives_the_maintenance() {
    let (world, _leader) = draining(&registered("app.example", "20000")).await;
    sleep(2 * SECOND).await;
    world
        .change_evacuation("web", |one| {
            one["status"]["evacuationCancellationPolicy"] = json!("Forbid");
        })
        .await;
    sleep(2 * SECOND).await;
    assert!(finalizers(&world).await.contains(&PROTECTION_FINALIZER.to_owned()));
    world.delete_maintenance("m").await;
    world
        .until("the maintenance is over", |world| world.maintenance("m").is_none())
        .await;
    assert_eq!(world.isolation("one"), (false, Vec::new(), None));
    assert_eq!(finalizers(&world).await, [PROTECTION_FINALIZER]);
    // Its deletion waits for the pod as well.
    let evacuation = world.evacuation("web").await.unwrap();
    let all = Api::<Evacuation>::namespaced(world.client.clone(), NAMESPACE);
    let name = evacuation.metadata.name.unwrap();
    all.delete(&name, &DeleteParams::default()).await.unwrap();
    sleep(MINUTE).await;
    assert!(world.evacuation("web").await.is_some());
    world.remove_pod("web");
    sleep(20 * SECOND).await;
    assert!(
        world.evacuation("web").await.is_none(),
        "{:?}",
        world.evacuation("web").await
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_drain_takes_back_what_may_be_cancelled() {
    let (world, _leader) = draining(&registered("app.example", "20000")).await;
    world.delete_maintenance("m").await;
    world
        .until("the maintenance is over", |world| world.maintenance("m").is_none())
        .await;
    assert!(world.evacuation("web").await.is_none());
    assert!(world.has_pod("web"));
    assert_eq!(world.isolation("one"), (false, Vec::new(), None));
    assert_eq!(world.node_conditions("one"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_others_stay_and_keep_the_evacuation() {
    let (world, _leader) = draining(&registered("app.example", "20000")).await;
    world
        .change_evacuation("web", |one| {
            let finalizers = one["metadata"]["finalizers"].as_array_mut().unwrap();
            finalizers.extend([json!(FOREIGN), json!(OTHER_INSTIGATOR)]);
        })
        .await;
    world.delete_maintenance("m").await;
    world
        .until("the maintenance is over", |world| world.maintenance("m").is_none())
        .await;
    assert_eq!(finalizers(&world).await, [FOREIGN, OTHER_INSTIGATOR]);
    // The pod ends: instigators are finished with it, the foreign finalizer is its owner's.
    world.remove_pod("web");
    sleep(20 * SECOND).await;
    let left = world.evacuation("web").await.unwrap();
    assert_eq!(left.metadata.finalizers.unwrap(), [FOREIGN]);
    assert!(left.metadata.deletion_timestamp.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_evacuation_of_another_instigator_is_carried_out_without_any_maintenance() {
    let mut world = World::new(&["one"]).await;
    world
        .pod("one", "web", &registered("app.example", "not a number"))
        .await;
    let _leader = world.lead().await;
    let uid = world
        .fake
        .peek::<k8s_openapi::api::core::v1::Pod>(NAMESPACE, "web")
        .unwrap()
        .metadata
        .uid
        .unwrap();
    let all = Api::<Evacuation>::namespaced(world.client.clone(), NAMESPACE);
    let evacuation = |uid: &str| -> Evacuation {
        serde_json::from_value(
            json!({"metadata": {"name": format!("{uid}-web"), "finalizers": [OTHER_INSTIGATOR]},
            "spec": {"podRef": {"name": "web", "uid": uid}, "progressDeadlineSeconds": 1800}}),
        )
        .unwrap()
    };
    all.create(&PostParams::default(), &evacuation(&uid)).await.unwrap();
    // One of a pod that does not exist ends by itself.
    all.create(
        &PostParams::default(),
        &evacuation("00000000-0000-4000-8000-00000000dead"),
    )
    .await
    .unwrap();
    world.until("the pod is evicted", |world| !world.has_pod("web")).await;
    sleep(20 * SECOND).await;
    assert!(world.evacuation("web").await.is_none());
    assert_eq!(world.isolation("one"), (false, Vec::new(), None));
}

#[tokio::test(start_paused = true)]
async fn a_maintenance_joins_an_evacuation_that_exists() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &registered("app.example", "20000")).await;
    let uid = world
        .fake
        .peek::<k8s_openapi::api::core::v1::Pod>(NAMESPACE, "web")
        .unwrap()
        .metadata
        .uid
        .unwrap();
    let all = Api::<Evacuation>::namespaced(world.client.clone(), NAMESPACE);
    let evacuation = json!({"metadata": {"name": format!("{uid}-web"), "finalizers": [OTHER_INSTIGATOR]},
        "spec": {"podRef": {"name": "web", "uid": uid}, "progressDeadlineSeconds": 1800}});
    all.create(&PostParams::default(), &serde_json::from_value(evacuation).unwrap())
        .await
        .unwrap();
    world.observe_out("one");
    let _leader = world.lead().await;
    world
        .maintain("m", "Drain", &["one"], &json!({"loadBalancer": {"drainSeconds": 0}}))
        .await;
    sleep(10 * SECOND).await;
    assert_eq!(finalizers(&world).await, [OTHER_INSTIGATOR, INSTIGATOR_FINALIZER]);
    // The annotations of the pod are filled in.
    let evacuators = world.evacuation("web").await.unwrap().spec.evacuators.unwrap();
    assert_eq!(evacuators[0].evacuator_class, "app.example");
    world.delete_maintenance("m").await;
    world
        .until("the maintenance is over", |world| world.maintenance("m").is_none())
        .await;
    assert_eq!(finalizers(&world).await, [OTHER_INSTIGATOR]);
    assert!(world.has_pod("web"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_daemonset_above_the_targets_is_left_alone() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &registered("app.example", "20000")).await;
    world.daemon_pod("one", "log", false).await;
    world.observe_out("one");
    let _leader = world.lead().await;
    world
        .maintain("m", "Drain", &["one"], &json!({"loadBalancer": {"drainSeconds": 0}}))
        .await;
    world.until_evacuating("web").await;
    // Another instigator is too early.
    let uid = world
        .fake
        .peek::<k8s_openapi::api::core::v1::Pod>(NAMESPACE, "log")
        .unwrap()
        .metadata
        .uid
        .unwrap();
    let all = Api::<Evacuation>::namespaced(world.client.clone(), NAMESPACE);
    let evacuators = json!([{"evacuatorClass": "daemonset.apps.k8s.io", "priority": 10000, "role": "controller"}]);
    let evacuation = json!({"metadata": {"name": format!("{uid}-log"), "finalizers": [OTHER_INSTIGATOR]},
        "spec": {"podRef": {"name": "log", "uid": uid}, "progressDeadlineSeconds": 1800, "evacuators": evacuators}});
    all.create(&PostParams::default(), &serde_json::from_value(evacuation).unwrap())
        .await
        .unwrap();
    sleep(10 * MINUTE).await;
    assert!(world.has_pod("log"));
    let status = world.evacuation("log").await.unwrap().status.unwrap();
    assert!(!status.active_evacuator_completed, "{status:?}");
    world.remove_pod("web");
    world.until("its turn", |world| !world.has_pod("log")).await;
}
