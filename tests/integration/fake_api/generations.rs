//! What raises `metadata.generation`, of which kinds.

use headgate_maintenance::api::NodeMaintenance;
use headgate_test_kubernetes::own_cluster;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::*;
use crate::maintenance::apply_kinds;

/// The generations of an object that has been created, annotated, got this status and then this spec, and is being deleted.
async fn generations<K>(objects: Api<K>, spec: Value, status: Value, changed: Value) -> Vec<Option<i64>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let (name, objects) = ("counted", Requests(objects));
    let created = json!({"metadata": {"name": name, "finalizers": ["headgate.dev/test"]}, "spec": spec});
    let created = objects.create(created).await.unwrap();
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    let annotated = objects.merge(name, annotated).await.unwrap();
    let (params, status) = (PatchParams::default(), Patch::Merge(json!({"status": status})));
    let with_status = objects.0.patch_status(name, &params, &status).await.unwrap();
    let changed = objects.merge(name, json!({"spec": changed})).await.unwrap();
    objects.delete(name, &DeleteParams::default()).await.unwrap();
    let deleted = objects.0.get(name).await.unwrap();
    let released = json!({"metadata": {"finalizers": null}});
    objects.merge(name, released).await.unwrap();
    let all = [created, annotated, with_status, changed, deleted];
    all.map(|object| object.meta().generation).into()
}

async fn changes_of_a_spec_are_counted(client: Client) {
    let selector = json!({"matchLabels": {"app": "counted"}});
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]);
    let maintenances = generations::<NodeMaintenance>(
        Api::all(client.clone()),
        json!({"nodeSelector": {"nodeSelectorTerms": terms}, "stage": "Idle"}),
        json!({"observedGeneration": 1}),
        json!({"stage": "Cordon"}),
    );
    assert_eq!(maintenances.await, [1, 1, 1, 2, 3].map(Some));
    let budgets = generations::<PodDisruptionBudget>(
        Api::namespaced(client.clone(), NAMESPACE),
        json!({"minAvailable": 1, "selector": selector}),
        json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}),
        json!({"minAvailable": 2}),
    );
    assert_eq!(budgets.await, [1, 1, 1, 2, 3].map(Some));
    let template =
        json!({"metadata": {"labels": {"app": "counted"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
    let deployments = generations::<Deployment>(
        Api::namespaced(client.clone(), NAMESPACE),
        json!({"replicas": 1, "selector": selector, "template": template}),
        json!({"observedGeneration": 1, "replicas": 1}),
        json!({"replicas": 2}),
    );
    assert_eq!(deployments.await, [1, 2, 2, 3, 4].map(Some));
    let nodes = generations::<Node>(
        Api::all(client.clone()),
        json!({}),
        json!({"phase": "Running"}),
        json!({"unschedulable": true}),
    );
    assert_eq!(nodes.await, [None; 5]);
}

#[tokio::test(start_paused = true)]
async fn the_fake_counts_the_changes_of_a_spec() {
    changes_of_a_spec_are_counted(FakeApi::default().client().0).await;
}

#[tokio::test]
async fn kube_apiserver_counts_the_changes_of_a_spec() {
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    changes_of_a_spec_are_counted(client).await;
    control_plane.stop().await;
}
