//! Deployments of one replica behind budgets that need it: they are replaced before they leave.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use headgate_test_kubernetes::{eventually, met};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::pods::{is_blocked, on_node};
use crate::cluster::{NODES, SOON};
use crate::follow::follow;
use crate::scene::Scene;

/// How many endpoints of each Service are ready, as its `EndpointSlices` say; what the watch shows is every state of them.
struct Endpoints {
    seen: Rc<RefCell<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// The ready endpoints of each slice, by Service and slice.
    ready: BTreeMap<String, BTreeMap<String, usize>>,
    /// Services that had a ready endpoint and then had none.
    lost: Vec<String>,
}

impl Endpoints {
    fn follow(scene: &Scene) -> Self {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let (client, namespace, states) = (scene.cluster.client.clone(), scene.namespace.clone(), seen.clone());
        let task = tokio::task::spawn_local(async move {
            follow(client, "discovery.k8s.io", "v1", "EndpointSlice", |slice| {
                if slice["metadata"]["namespace"] == namespace.as_str() {
                    states.borrow_mut().see(&slice);
                }
            })
            .await;
        });
        Self {
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    async fn until_ready(&self, service: &str) {
        eventually(SOON, service, async || {
            met(self.seen.borrow().count(service) > 0, "no ready endpoint")
        })
        .await;
    }
}

impl Seen {
    fn see(&mut self, slice: &Value) {
        let service = slice["metadata"]["labels"]["kubernetes.io/service-name"]
            .as_str()
            .unwrap_or_default();
        let name = slice["metadata"]["name"].as_str().unwrap_or_default();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .count();
        let before = self.count(service);
        self.ready
            .entry(service.to_owned())
            .or_default()
            .insert(name.to_owned(), ready);
        if before > 0 && self.count(service) == 0 {
            self.lost.push(format!("{service}: {slice}"));
        }
    }

    fn count(&self, service: &str) -> usize {
        self.ready.get(service).into_iter().flat_map(BTreeMap::values).sum()
    }
}

/// A Deployment of one replica with a Service, and a budget that needs it.
async fn single_replica(scene: &Scene, name: &str) {
    scene.workload("deployments", name, 1, &json!({})).await;
    let service = json!({"metadata": {"name": name}, "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}});
    scene.create(&scene.path("v1", "services"), &service).await;
    scene
        .budget(name, json!({"app": name}), &json!({"spec": {"minAvailable": 1}}), 0)
        .await;
}

fn allowed() -> Value {
    json!({"evacuation": {"rollout": "Allow"}})
}

async fn generation(scene: &Scene, name: &str) -> i64 {
    let path = format!("{}/{name}", scene.path("apps/v1", "deployments"));
    scene.get(&path).await.unwrap()["metadata"]["generation"]
        .as_i64()
        .unwrap()
}

pub(super) async fn single_replicas(scene: Scene) {
    let name = format!("{}-nm", scene.namespace);
    let [node, other] = [scene.nodes[0], scene.nodes[1]];
    scene.observer.allow_rollouts_in(&scene.namespace);
    let cordon = |is_cordoned: bool| json!({"spec": {"unschedulable": is_cordoned}});
    scene.merge(&format!("{NODES}/{other}"), cordon(true)).await;
    let endpoints = Endpoints::follow(&scene);
    for app in ["web", "api"] {
        single_replica(&scene, app).await;
        endpoints.until_ready(app).await;
    }
    scene.merge(&format!("{NODES}/{other}"), cordon(false)).await;
    let before = [generation(&scene, "web").await, generation(&scene, "api").await];
    scene.maintain(&name, &[node], &allowed()).await;
    scene.drained(&name).await;
    let after = [generation(&scene, "web").await, generation(&scene, "api").await];
    assert_eq!(after, before.map(|generation| generation + 1), "each is restarted once");
    for app in ["web", "api"] {
        assert_eq!(on_node(&scene, app, node).await, Vec::<Value>::new());
        assert_eq!(on_node(&scene, app, other).await.len(), 1);
    }
    let lost = endpoints.seen.borrow().lost.clone();
    assert_eq!(lost, Vec::<String>::new(), "a Service had no ready endpoint");
    scene.end(&name).await;
}

pub(super) async fn broken_successor(scene: Scene) {
    let (name, node, other) = ("broken-nm", scene.nodes[0], scene.nodes[1]);
    scene.observer.allow_rollouts_in(&scene.namespace);
    let endpoints = Endpoints::follow(&scene);
    single_replica(&scene, "web").await;
    endpoints.until_ready("web").await;
    let path = format!("{}/web", scene.path("apps/v1", "deployments"));
    scene
        .merge(&path, json!({"spec": {"progressDeadlineSeconds": 15}}))
        .await;
    let before = generation(&scene, "web").await;
    // The only node for the successor, whose kubelet the row plays: it cannot pull the image.
    scene.cluster.create_node_without_kubelet(&scene.namespace, other).await;
    let kubelet = {
        let (scene, path) = (scene.clone(), format!("{NODES}/{other}/status"));
        tokio::task::spawn_local(async move {
            loop {
                let heartbeat = json!({"type": "Ready", "status": "True", "reason": "Test",
                    "lastHeartbeatTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
                scene.merge(&path, json!({"status": {"conditions": [heartbeat]}})).await;
                sleep(Duration::from_secs(5)).await;
            }
        })
    };
    scene.maintain(name, &[node], &allowed()).await;
    let successor = eventually(SOON, "a successor", async || {
        let pods = on_node(&scene, "web", other).await;
        let pod = pods.first().ok_or("no pod")?;
        Ok(pod["metadata"]["name"].as_str().unwrap().to_owned())
    })
    .await;
    let successor = format!("{}/{successor}", scene.pods());
    let waiting = json!({"reason": "ImagePullBackOff", "message": "Back-off pulling image \"none\""});
    let container = json!({"name": "c", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": waiting}});
    scene
        .merge(
            &format!("{successor}/status"),
            json!({"status": {"phase": "Pending", "containerStatuses": [container]}}),
        )
        .await;
    let cause = "container c: ImagePullBackOff: Back-off pulling image";
    // The cause stays where the deadline is named too.
    for text in [cause, "ProgressDeadlineExceeded", cause] {
        let blocked = |object: &Value| is_blocked(object, node, "DisruptionBudget", text);
        scene.until_maintenance(text, name, blocked).await;
    }
    assert_eq!(on_node(&scene, "web", node).await.len(), 1, "the old pod stays");
    assert_eq!(generation(&scene, "web").await, before + 1, "it is restarted once");
    // The image is there, and the drain goes on.
    let conditions = ["Initialized", "ContainersReady", "Ready"].map(|kind| json!({"type": kind, "status": "True"}));
    let running = json!({"name": "c", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
    let ready = json!({"phase": "Running", "podIP": "10.250.0.1", "podIPs": [{"ip": "10.250.0.1"}],
        "conditions": conditions, "containerStatuses": [running]});
    scene
        .merge(&format!("{successor}/status"), json!({"status": ready}))
        .await;
    scene.drained(name).await;
    let lost = endpoints.seen.borrow().lost.clone();
    assert_eq!(lost, Vec::<String>::new(), "the Service had no ready endpoint");
    scene.end(name).await;
    kubelet.abort();
    // No kubelet ends the pod.
    scene.observer.ignore_deletions_in(&scene.namespace);
    scene.delete(&path).await;
    scene.gone(&path).await;
    scene.delete(&format!("{successor}?gracePeriodSeconds=0")).await;
    scene.gone(&successor).await;
}
