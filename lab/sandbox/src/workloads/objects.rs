//! The objects of the workloads, and whether their pods run.

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::NAMESPACE;

/// The replicas of each Deployment, with the priority class of its pods.
const DEPLOYMENTS: [(&str, i64, Option<&str>); 2] = [("web", 6, None), ("database", 3, Some(DATABASE_PRIORITY))];
/// The priority class of the database, whose pods leave after those of `web`.
const DATABASE_PRIORITY: &str = "database";
const DAEMON_SET: &str = "log-agent";

/// All objects, in the order in which they are created.
pub(super) fn all() -> Vec<Value> {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": DATABASE_PRIORITY},
            "value": 10_000}),
    ];
    for (name, replicas, class) in DEPLOYMENTS {
        let mut workload = workload("Deployment", name);
        workload["spec"]["replicas"] = replicas.into();
        // Evenly over the nodes.
        workload["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": name}}}]);
        if let Some(class) = class {
            workload["spec"]["template"]["spec"]["priorityClassName"] = class.into();
        }
        objects.push(workload);
        objects.push(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}}}));
    }
    objects.push(workload("DaemonSet", DAEMON_SET));
    objects
}

fn workload(kind: &str, name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "none"}]}}}})
}

/// The API of an object's kind.
pub(super) fn api(client: &Client, object: &DynamicObject) -> Api<DynamicObject> {
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    match object.metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Which workloads have fewer ready pods than they want, in words; empty if none has.
pub(super) async fn missing(client: &Client, nodes: usize) -> Result<String, kube::Error> {
    let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
    let wanted = DEPLOYMENTS.map(|(name, replicas, _)| ("Deployment", name, replicas));
    let mut missing = Vec::new();
    for (kind, name, replicas) in wanted.into_iter().chain([("DaemonSet", DAEMON_SET, nodes)]) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind));
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &resource);
        let one = ListParams::default().fields(&format!("metadata.name={name}"));
        let status = api
            .list(&one)
            .await?
            .items
            .pop()
            .map(|object| object.data["status"].clone());
        let status = status.unwrap_or_default();
        let ready = status["readyReplicas"]
            .as_i64()
            .or(status["numberReady"].as_i64())
            .unwrap_or(0);
        if ready < replicas {
            missing.push(format!("{ready} of {replicas} pods of {kind} {name} are ready"));
        }
    }
    // The eviction API answers by what the budgets' controller has counted.
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("policy", "v1", "PodDisruptionBudget"));
    let budgets = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &resource);
    for budget in budgets.list(&ListParams::default()).await? {
        if budget.data["status"]["disruptionsAllowed"].as_i64() != Some(1) {
            let name = budget.metadata.name.unwrap_or_default();
            missing.push(format!("PodDisruptionBudget {name} does not allow 1 disruption"));
        }
    }
    Ok(missing.join(", "))
}
