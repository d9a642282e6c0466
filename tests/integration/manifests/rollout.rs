//! The restart of a rollout with a token of the controllers and the rights of `maintenance.rollout`: they suffice, each is needed, and the
//! policy allows no other change of a Deployment.

use serde_json::{Value, json};

use super::caller::{ApiRequest, Caller};
use super::leader::{Right, is_needed};
use super::maintenance::{Leader, MAINTENANCES, create_budget, create_pod, maintained, maintenance, runs, until};
use super::rights::wait_for_status;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/kube-system/deployments";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/kube-system/replicasets";
const ROLE: &str = "clusterroles/headgate-rollout";

/// A Deployment of one replica on a node, as its controllers would make it.
async fn create_deployment(administrator: &Caller, name: &str, on: &str) {
    let labels = json!({"app": name});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels, "annotations": {"example.com/kept": "yes"}},
            "spec": {"containers": [{"name": "c", "image": "none"}]}}});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec});
    let deployment = administrator.post(DEPLOYMENTS, object).await;
    let status = json!({"status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "availableReplicas": 1}});
    administrator
        .merge(&format!("{DEPLOYMENTS}/{name}/status"), status)
        .await;
    let owner = |kind: &str, of: &Value| {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": of["metadata"]["name"], "uid": of["metadata"]["uid"],
            "controller": true}])
    };
    let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {"replicas": 1, "selector": spec["selector"],
        "template": spec["template"]},
        "metadata": {"name": format!("{name}-1"), "ownerReferences": owner("Deployment", &deployment)}});
    let replica_set = administrator.post(REPLICA_SETS, object).await;
    create_pod(administrator, name, on, owner("ReplicaSet", &replica_set)).await;
    runs(administrator, name).await;
    create_budget(administrator, name, name, 0).await;
}

#[tokio::test]
async fn permissions_of_the_component_suffice_for_a_restart_and_its_policy_allows_no_more() {
    let (control_plane, administrator, caller, own, drained) = maintained(json!({"rollout": true})).await;
    create_deployment(&administrator, "web", &drained).await;
    let web = format!("{DEPLOYMENTS}/web");
    each_permission_is_needed(&administrator, &caller, &web).await;
    the_policy_allows_nothing_but_the_restart(&caller, &web).await;

    let leader = Leader::start(&caller, &own);
    let mut object = maintenance("m", "Drain", &drained);
    object["spec"]["evacuation"] = json!({"rollout": "Allow"});
    let created = administrator.post(MAINTENANCES, object).await;
    leader.observe_out(&drained);
    let uid = &created["metadata"]["uid"];
    let restarted = until(&administrator, "it is restarted", &web, |deployment| {
        deployment["spec"]["template"]["metadata"]["annotations"]["headgate.dev/restarted-for"] == *uid
    })
    .await;
    let annotations = &restarted["spec"]["template"]["metadata"]["annotations"];
    assert!(
        annotations["kubectl.kubernetes.io/restartedAt"].is_string(),
        "{annotations}"
    );
    assert_eq!(annotations["example.com/kept"], "yes");
    let path = format!("{MAINTENANCES}/m");
    until(&administrator, "the blocker", &path, |object| {
        object["status"]["nodeStatuses"][0]["blockers"]
            .to_string()
            .contains("waits for the rollout of Deployment web")
    })
    .await;
    assert_eq!(
        leader.metric("headgate_maintenance_writes_total{outcome=\"refused\"}"),
        0
    );
    control_plane.stop().await;
}

async fn each_permission_is_needed(administrator: &Caller, caller: &Caller, web: &str) {
    let restart = json!({"spec": {"template": {"metadata": {"annotations": {"headgate.dev/restarted-for": "uid"}}}}});
    let autoscalers = "/apis/autoscaling/v2/namespaces/kube-system/horizontalpodautoscalers";
    for (resource, verb, ask) in [
        ("replicasets", "get", ApiRequest::get(&format!("{REPLICA_SETS}/web-1"))),
        ("deployments", "get", ApiRequest::get(web)),
        ("deployments", "patch", ApiRequest::merge(web, restart).dry_run()),
        ("horizontalpodautoscalers", "list", ApiRequest::get(autoscalers)),
    ] {
        let right = Right::new(ROLE, (resource, None), verb, ask);
        is_needed(administrator, caller, right).await;
    }
}

/// Changes of the Deployment.
const FORBIDDEN_CHANGES: &str = "
merge WEB {spec: {template: {spec: {containers: [{name: c, image: other}]}}}} → , not spec.template.spec
merge WEB {spec: {template: {spec: {serviceAccountName: headgate-controller}}}} → , not spec.template.spec
merge WEB {spec: {template: {metadata: {labels: {a: b}}}}} → , not spec.template.metadata.labels
merge WEB {spec: {template: {metadata: {annotations: {example.com/new: x}}}}} → , not spec.template.metadata.annotations[example.com/new]
merge WEB {spec: {template: {metadata: {annotations: {example.com/kept: null}}}}} → , not spec.template.metadata.annotations[example.com/kept]
merge WEB {spec: {replicas: 2}} → , not spec.replicas
merge WEB {spec: {strategy: {type: Recreate, rollingUpdate: null}}} → , not spec.strategy
merge WEB {metadata: {labels: {a: b}}} → , not metadata.labels
merge WEB {metadata: {annotations: {headgate.dev/rollout: Allow}}} → , not metadata.annotations
";

async fn the_policy_allows_nothing_but_the_restart(caller: &Caller, web: &str) {
    let dry = format!("{web}?dryRun=All");
    // The API server enforces a policy some time after its creation.
    wait_for_status(caller, ApiRequest::merge(&dry, json!({"spec": {"replicas": 2}})), 403).await;
    for (ask, words) in ApiRequest::refusals(&FORBIDDEN_CHANGES.replace("WEB", &dry)) {
        caller.refused(&ask, &[words]).await;
    }
    let restart = json!({"headgate.dev/restarted-for": "a", "kubectl.kubernetes.io/restartedAt": "b"});
    let restart = json!({"spec": {"template": {"metadata": {"annotations": restart}}}});
    wait_for_status(caller, ApiRequest::merge(&dry, restart), 200).await;
}
