//! A Machine of Cluster API that waits for its node, with a token of the controllers and the rights of `maintenance.automatic` with `machine`: they suffice,
//! each is needed, and the policy allows no other change of a Machine. Cluster API's controllers are in [`real`] alone: here the kind is a
//! stub with the fields of `cluster.x-k8s.io/v1beta2` that are read, and a finalizer stands for the machine controller.

mod real;

use std::time::Duration;

use headgate_core::node::CLUSTER_API_ANNOTATIONS;
use headgate_maintenance::automatic::{AutomaticMaintenances, Cause};
use headgate_maintenance::machine::HOOKS;
use serde_json::{Value, json};

use super::caller::{ApiRequest, Caller};
use super::leader::{Right, is_needed};
use super::maintenance::{Leader, MAINTENANCES, is_as_before, is_gone, maintained, until};
use super::rights::wait_for_status;

const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/kube-system/machines";
const ROLE: &str = "clusterroles/headgate-cluster-api";
const OTHER: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/other";

async fn create_kind(administrator: &Caller) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}});
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.x-k8s.io"},
        "spec": {"group": "cluster.x-k8s.io", "scope": "Namespaced", "versions": [version],
            "names": {"kind": "Machine", "listKind": "MachineList", "plural": "machines", "singular": "machine"}}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    administrator.post(path, kind).await;
    wait_for_status(administrator, ApiRequest::get(MACHINES), 200).await;
}

/// A Machine of a Node with both hooks of headgate and one of another tool, which somebody deletes.
async fn create_machine(administrator: &Caller, name: &str, of: &str) -> String {
    let annotations = json!({HOOKS[0]: "", HOOKS[1]: "", OTHER: ""});
    let machine = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "annotations": annotations, "finalizers": ["machine.cluster.x-k8s.io"]},
        "spec": {"clusterName": "c"}});
    administrator.post(MACHINES, machine).await;
    let path = format!("{MACHINES}/{name}");
    let status = json!({"status": {"nodeRef": {"name": of}}});
    administrator.merge(&format!("{path}/status"), status).await;
    administrator.delete(&path).await;
    let [namespace, machine] = CLUSTER_API_ANNOTATIONS;
    let annotations = json!({"metadata": {"annotations": {namespace: "kube-system", machine: name}}});
    administrator.merge(&format!("/api/v1/nodes/{of}"), annotations).await;
    path
}

#[tokio::test]
async fn permissions_of_the_component_suffice_to_release_a_machine_and_its_policy_allows_no_more() {
    let (control_plane, administrator, caller, own, drained) = maintained(json!({"automatic": ["machine"]})).await;
    create_kind(&administrator).await;
    let machine = create_machine(&administrator, "machine", &drained).await;
    let merge = |change: Value| ApiRequest::merge(&machine, change).dry_run();
    let change = |annotations: Value| merge(json!({"metadata": {"annotations": annotations}}));
    let all = "/apis/cluster.x-k8s.io/v1beta2/machines";
    for (verb, ask) in [
        ("list", ApiRequest::get(all)),
        ("patch", change(json!({HOOKS[0]: null}))),
    ] {
        is_needed(&administrator, &caller, Right::new(ROLE, ("machines", None), verb, ask)).await;
    }
    // The API server enforces a policy some time after the kind exists.
    wait_for_status(&caller, change(json!({OTHER: null})), 403).await;
    for (ask, words) in [
        (change(json!({OTHER: null})), OTHER),
        (change(json!({"example.com/new": "x"})), "example.com/new"),
        (change(json!({HOOKS[0]: "other"})), HOOKS[0]),
        (merge(json!({"metadata": {"labels": {"a": "b"}}})), "metadata.labels"),
        (merge(json!({"metadata": {"finalizers": null}})), "metadata.finalizers"),
        (merge(json!({"spec": {"clusterName": "other"}})), "spec"),
    ] {
        caller.refused(&ask, &[words]).await;
    }

    let automatic = AutomaticMaintenances {
        causes: [(Cause::Machine, Some(Duration::from_mins(1)))].into(),
    };
    let leader = Leader::start_with(&caller, &own, automatic);
    let path = format!("{MAINTENANCES}/automatic-{drained}");
    until(&administrator, "the maintenance", &path, |object| {
        object["spec"]["stage"] == "Drain"
    })
    .await;
    let held = administrator.get(&machine).await;
    assert!(
        HOOKS.iter().all(|hook| held["metadata"]["annotations"][*hook] == ""),
        "{held}"
    );
    leader.observe_out(&drained);
    let released = until(&administrator, "it is released", &machine, |object| {
        HOOKS
            .iter()
            .all(|hook| object["metadata"]["annotations"][*hook] == Value::Null)
    })
    .await;
    assert_eq!(released["metadata"]["annotations"], json!({OTHER: ""}));
    // Cluster API drains the node and deletes the machine; the Node stays here.
    administrator.get(&path).await;
    let done = json!({"metadata": {"finalizers": null}});
    administrator.merge(&machine, done).await;
    is_gone(&administrator, &path).await;
    is_as_before(&administrator, &drained).await;
    assert_eq!(
        leader.metric("headgate_maintenance_writes_total{outcome=\"refused\"}"),
        0
    );
    control_plane.stop().await;
}
