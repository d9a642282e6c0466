//! A Deployment of one replica behind a budget that needs it: its rollout is restarted, and the pod leaves when its successor is ready.
//! The test plays the Deployment controller.

use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::api::names::{RESTARTED_AT_ANNOTATION, RESTARTED_FOR_ANNOTATION};
use headgate_test_kubernetes::Fault;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{MINUTE, NAMESPACE, SECOND, World, at_once, is_about};

fn owned_by(kind: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}])
}

/// A ReplicaSet of the Deployment's present template with one pod, which is called as the ReplicaSet with `-pod`.
async fn replica_set(world: &World, app: &str, name: &str, node: &str, status: &Value) {
    let deployment = world.fake.peek::<Deployment>(NAMESPACE, app).unwrap();
    let object = json!({"metadata": {"name": name, "namespace": NAMESPACE,
        "ownerReferences": owned_by("Deployment", app, &world.uid_of::<Deployment>(NAMESPACE, app))},
        "spec": {"selector": {}, "template": deployment.spec.unwrap().template}});
    world.create::<ReplicaSet>(NAMESPACE, object).await;
    let owner = owned_by("ReplicaSet", name, &world.uid_of::<ReplicaSet>(NAMESPACE, name));
    let fields = json!({"metadata": {"ownerReferences": owner, "labels": {"app": app}}, "status": status});
    world.pod(node, &format!("{name}-pod"), &fields).await;
}

fn ready() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
}

/// A Deployment of one replica on node `one`, and a budget that needs it.
async fn single_replica(world: &World, app: &str) {
    let object = json!({"metadata": {"name": app, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c"}]}}}});
    world.create::<Deployment>(NAMESPACE, object).await;
    set_replicas(world, app, 1);
    replica_set(world, app, &format!("{app}-1"), "one", &ready()).await;
    world.budget(app, app, 0).await;
}

/// The Deployment controller has seen the Deployment, and has so many replicas, of which one is updated and one available.
fn set_replicas(world: &World, app: &str, replicas: i32) {
    world.fake.change::<Deployment>(NAMESPACE, app, |deployment| {
        deployment["status"] = json!({"observedGeneration": deployment["metadata"]["generation"],
            "replicas": replicas, "updatedReplicas": 1, "availableReplicas": 1});
    });
}

fn annotations(world: &World, app: &str) -> Value {
    let deployment = world.fake.peek::<Deployment>(NAMESPACE, app).unwrap();
    json!(deployment.spec.unwrap().template.metadata.unwrap().annotations)
}

fn restarts(world: &World, app: &str) -> usize {
    world.requests("PATCH", &format!("deployments/{app}"))
}

/// A maintenance of node `one`, whose gate is open.
async fn drain(world: &World, spec: &Value) {
    let mut all = at_once();
    json_patch::merge(&mut all, spec);
    world.observe_out("one");
    world.maintain("m", "Drain", &["one"], &all).await;
}

fn allowed() -> Value {
    json!({"evacuation": {"rollout": "Allow"}})
}

fn blocker(world: &World) -> String {
    let status = world.maintenance("m").and_then(|maintenance| maintenance.status);
    let nodes = status.into_iter().flat_map(|status| status.node_statuses);
    let mut blockers = nodes.flat_map(|node| node.blockers);
    blockers.next().map_or_else(String::new, |blocker| blocker.message)
}

/// The rollout has begun: the successor is on node `two`. A budget with a number counts the pods that are there.
async fn begin(world: &World, app: &str, successor: &Value) {
    set_replicas(world, app, 2);
    replica_set(world, app, &format!("{app}-2"), "two", successor).await;
    expect_pods(world, app, 2);
}

fn expect_pods(world: &World, budget: &str, pods: i32) {
    world.fake.change::<PodDisruptionBudget>(NAMESPACE, budget, |budget| {
        budget["status"]["expectedPods"] = json!(pods);
    });
}

/// The successor is available, and the Deployment controller ends the old pod.
fn end(world: &World, app: &str) {
    set_replicas(world, app, 1);
    world.fake.delete::<Pod>(NAMESPACE, &format!("{app}-1-pod"));
    expect_pods(world, app, 1);
}

/// Waits until the Deployment `web` is restarted, and not a moment longer.
async fn until_restarted(world: &World) {
    while restarts(world, "web") == 0 {
        sleep(SECOND / 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn single_replicas_are_replaced_before_they_leave() {
    let mut world = World::new(&["one", "two"]).await;
    for app in ["web", "api"] {
        single_replica(&world, app).await;
    }
    let leader = world.lead().await;
    drain(&world, &allowed()).await;
    world
        .until("both are restarted", |world| {
            restarts(world, "web") == 1 && restarts(world, "api") == 1
        })
        .await;
    let uid = world.uid_of::<NodeMaintenance>("", "m");
    assert_eq!(annotations(&world, "web")[RESTARTED_FOR_ANNOTATION], uid);
    assert!(annotations(&world, "web")[RESTARTED_AT_ANNOTATION].is_string());
    assert!(world.isolation("one").0, "the successor cannot start on the node");

    // It takes an hour, and another leader follows. Nothing is restarted again, and nothing is evicted.
    for app in ["web", "api"] {
        begin(&world, app, &json!({"phase": "Pending"})).await;
    }
    sleep(20 * MINUTE).await;
    leader.kill();
    let _leader = world.lead().await;
    sleep(40 * MINUTE).await;
    assert_eq!((restarts(&world, "web"), restarts(&world, "api")), (1, 1));
    assert_eq!(world.requests("POST", "/eviction"), 0);
    assert_eq!(
        blocker(&world),
        "PodDisruptionBudget api allows 0 disruptions; waits for the rollout of Deployment api: 1 of 1 replicas updated, 1 available"
    );
    let evacuation = world.evacuation("web-1-pod").await.unwrap();
    let restarted = &evacuation.status.unwrap().conditions[0];
    assert_eq!(
        (restarted.type_.as_str(), restarted.status.as_str()),
        ("RolloutRestarted", "True")
    );

    for app in ["web", "api"] {
        end(&world, app);
    }
    world.until_drained("m").await;
    sleep(MINUTE).await;
    assert!(world.evacuation("web-1-pod").await.is_none());
    assert_eq!(world.requests("POST", "/eviction"), 0);
    assert!(world.has_pod("web-2-pod") && world.has_pod("api-2-pod"));
    let mut events = world.events(NAMESPACE).await;
    events.retain(|event| is_about(event, "web"));
    let reasons: Vec<_> = events.iter().map(|event| event.reason.as_deref()).collect();
    assert_eq!(reasons, [Some("RolloutRestarted")]);
}

/// What cannot be decoded exists: a rollout that was restarted for it is not restarted for it again.
#[tokio::test(start_paused = true)]
async fn a_record_keeps_a_maintenance_that_cannot_be_decoded() {
    let mut world = World::new(&["one", "two"]).await;
    single_replica(&world, "web").await;
    world.maintain("newer", "Idle", &["two"], &json!({})).await;
    let newer = world.uid_of::<NodeMaintenance>("", "newer");
    world.fake.change::<NodeMaintenance>("", "newer", |object| {
        object["spec"]["loadBalancer"]["confirmation"] = json!("Newer");
    });
    let record = |object: &mut Value| {
        object["spec"]["template"]["metadata"]["annotations"] = json!({RESTARTED_FOR_ANNOTATION: newer});
    };
    world.fake.change::<Deployment>(NAMESPACE, "web", record);
    world.fake.change::<ReplicaSet>(NAMESPACE, "web-1", record);
    set_replicas(&world, "web", 1);
    let _leader = world.lead().await;
    drain(&world, &allowed()).await;
    until_restarted(&world).await;
    let restarted_for = annotations(&world, "web")[RESTARTED_FOR_ANNOTATION].clone();
    let drained = world.uid_of::<NodeMaintenance>("", "m");
    for uid in [&newer, &drained] {
        assert!(restarted_for.as_str().unwrap().contains(uid), "{restarted_for}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_leave_the_eviction_api_decides_until_the_deployment_allows_it() {
    let mut world = World::new(&["one", "two"]).await;
    single_replica(&world, "web").await;
    let _leader = world.lead().await;
    drain(&world, &json!({})).await;
    world
        .until("the advice", |world| {
            blocker(world).contains("annotate it with headgate.dev/rollout: Allow")
        })
        .await;
    world.until_requested("POST", "/eviction").await;
    sleep(10 * MINUTE).await;
    let reads = world.requests("GET", "deployments/web");
    assert!(reads <= 12, "{reads} reads in ten minutes");
    world
        .fake
        .annotate::<Deployment>(NAMESPACE, "web", "headgate.dev/rollout", "Allow");
    set_replicas(&world, "web", 1);
    world
        .until("it is restarted", |world| restarts(world, "web") == 1)
        .await;
    begin(&world, "web", &ready()).await;
    end(&world, "web");
    world.until_drained("m").await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_killed_after_the_restart_is_followed_by_one_that_knows_of_it() {
    for fault in [Fault::None, Fault::AnswerLost] {
        let mut world = World::new(&["one", "two"]).await;
        single_replica(&world, "web").await;
        let leader = world.lead().await;
        leader.faults.set_for(fault, |request| {
            request.method == hyper::Method::PATCH && request.path.ends_with("deployments/web")
        });
        drain(&world, &allowed()).await;
        until_restarted(&world).await;
        if fault == Fault::None {
            leader.kill();
            let _leader = world.lead().await;
            sleep(5 * MINUTE).await;
        } else {
            sleep(5 * MINUTE).await;
        }
        assert_eq!(restarts(&world, "web"), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_restarted_while_an_autoscaler_scales() {
    let mut world = World::new(&["one", "two"]).await;
    single_replica(&world, "web").await;
    let autoscaler = json!({"metadata": {"name": "scaler", "namespace": NAMESPACE},
        "spec": {"maxReplicas": 5, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
        "status": {"currentReplicas": 1, "desiredReplicas": 2}});
    world.create::<HorizontalPodAutoscaler>(NAMESPACE, autoscaler).await;
    let _leader = world.lead().await;
    drain(&world, &allowed()).await;
    world
        .until("it waits", |world| {
            blocker(world).contains("HorizontalPodAutoscaler scaler, which changes the replicas from 1 to 2")
        })
        .await;
    sleep(5 * MINUTE).await;
    assert_eq!(restarts(&world, "web"), 0);
    world
        .fake
        .change::<HorizontalPodAutoscaler>(NAMESPACE, "scaler", |object| {
            object["status"]["desiredReplicas"] = json!(1);
        });
    world
        .until("it is restarted", |world| restarts(world, "web") == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn without_the_component_the_blocker_names_it_and_reads_are_rare() {
    let mut world = World::new(&["one", "two"]).await;
    single_replica(&world, "web").await;
    let owner = owned_by("StatefulSet", "db", "db");
    let fields = json!({"metadata": {"ownerReferences": owner}, "status": ready()});
    world.pod("one", "db-0", &fields).await;
    world.budget("db-0", "db-0", 0).await;
    let leader = world.lead().await;
    leader
        .faults
        .set_for(Fault::Status(403), |request| request.path.contains("/apis/apps/"));
    drain(&world, &allowed()).await;
    sleep(10 * MINUTE).await;
    let blockers = world.node_status("m", "one").blockers;
    let messages: Vec<_> = blockers.iter().map(|blocker| blocker.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "PodDisruptionBudget db-0 allows 0 disruptions; StatefulSet db ends a pod before it starts the next one: add a replica, \
             or let the budget allow a disruption",
            "PodDisruptionBudget web allows 0 disruptions; to have its Deployment start a replacement first, headgate needs the \
             rights that the chart value maintenance.rollout gives it",
        ]
    );
    assert!(
        world.requests("POST", "web-1-pod/eviction") > 0,
        "the Eviction API is asked as ever"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_restarted_once_its_maintenance_has_ended() {
    let mut world = World::new(&["one", "two"]).await;
    for number in 0..20 {
        single_replica(&world, &format!("app-{number}")).await;
    }
    let all = |world: &World| -> usize { (0..20).map(|number| restarts(world, &format!("app-{number}"))).sum() };
    let _leader = world.lead().await;
    drain(&world, &allowed()).await;
    world.until("the first restart", |world| all(world) > 0).await;
    world.delete_maintenance("m").await;
    sleep(SECOND).await;
    let restarted = all(&world);
    sleep(MINUTE).await;
    assert_eq!(all(&world), restarted);
    assert!(restarted < 5, "{restarted}");
}
