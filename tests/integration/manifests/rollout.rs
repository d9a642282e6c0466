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
        (
            "deployments",
            "patch",
            ApiRequest::merge(&format!("{web}?dryRun=All"), restart),
        ),
        ("horizontalpodautoscalers", "list", ApiRequest::get(autoscalers)),
    ] {
        is_needed(
            administrator,
            caller,
            Right::new(ROLE, (resource, None), verb, ask).answered(200),
        )
        .await;
    }
}

async fn the_policy_allows_nothing_but_the_restart(caller: &Caller, web: &str) {
    let template = |change: Value| json!({"spec": {"template": change}});
    let annotations = |annotations: Value| template(json!({"metadata": {"annotations": annotations}}));
    let dry = format!("{web}?dryRun=All");
    // The API server enforces a policy some time after its creation.
    wait_for_status(caller, ApiRequest::merge(&dry, json!({"spec": {"replicas": 2}})), 403).await;
    for (change, named) in [
        (
            template(json!({"spec": {"containers": [{"name": "c", "image": "other"}]}})),
            "spec.template.spec",
        ),
        (
            template(json!({"spec": {"serviceAccountName": "headgate-controller"}})),
            "spec.template.spec",
        ),
        (
            template(json!({"metadata": {"labels": {"a": "b"}}})),
            "spec.template.metadata.labels",
        ),
        (
            annotations(json!({"example.com/new": "x"})),
            "spec.template.metadata.annotations[example.com/new]",
        ),
        (
            annotations(json!({"example.com/kept": null})),
            "spec.template.metadata.annotations[example.com/kept]",
        ),
        (json!({"spec": {"replicas": 2}}), "spec.replicas"),
        (
            json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}),
            "spec.strategy",
        ),
        (json!({"metadata": {"labels": {"a": "b"}}}), "metadata.labels"),
        (
            json!({"metadata": {"annotations": {"headgate.dev/rollout": "Allow"}}}),
            "metadata.annotations",
        ),
    ] {
        let ask = ApiRequest::merge(&dry, change);
        caller.refused(&ask, &[&format!(", not {named}")]).await;
    }
    let restart = annotations(json!({"headgate.dev/restarted-for": "a", "kubectl.kubernetes.io/restartedAt": "b"}));
    wait_for_status(caller, ApiRequest::merge(&dry, restart), 200).await;
}
