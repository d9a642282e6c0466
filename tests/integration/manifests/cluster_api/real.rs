//! A Machine with headgate's hooks under Cluster API's own controllers, which wait for it. The program and the kinds are those that
//! `make cluster-api` builds. Two things stand for an infrastructure provider: a kind, and its objects, which nobody reconciles. Both nodes
//! of the control plane are those of one cluster, which manages itself: the leader's has the Machine of a control plane.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_maintenance::automatic::{AutomaticMaintenances, Cause};
use headgate_maintenance::machine::HOOKS;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::{kubectl, scratch};
use serde_json::{Value, json};

use super::super::caller::{ApiRequest, Caller};
use super::super::maintenance::{Leader, MAINTENANCES, PODS, create_pod, is_gone, maintained, until};
use super::super::rights::{node, wait_for_status};
use super::MACHINES;

const CLUSTERS: &str = "/apis/cluster.x-k8s.io/v1beta2/namespaces/kube-system/clusters";
const INFRASTRUCTURE: &str = "/apis/infrastructure.example.com/v1/namespaces/kube-system/examplemachines";
const CLUSTER: &str = "c";

fn built() -> PathBuf {
    let directory = std::env::var_os("CLUSTER_API").map(PathBuf::from);
    directory.expect("CLUSTER_API names no directory: run make cluster-api")
}

/// Cluster API's kinds, and one of an infrastructure provider.
async fn create_kinds(administrator: &Caller) {
    let mut create = kubectl(&administrator.kubeconfig);
    create.args(["create", "-f"]).arg(built().join("crds"));
    let output = create.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}});
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "examplemachines.infrastructure.example.com", "labels": {"cluster.x-k8s.io/v1beta2": "v1"}},
        "spec": {"group": "infrastructure.example.com", "scope": "Namespaced", "versions": [version], "names":
            {"kind": "ExampleMachine", "listKind": "ExampleMachineList", "plural": "examplemachines", "singular": "examplemachine"}}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    administrator.post(path, kind).await;
    for path in [MACHINES, CLUSTERS, INFRASTRUCTURE] {
        wait_for_status(administrator, ApiRequest::get(path), 200).await;
    }
}

/// Cluster API's core controllers. The certificate is for webhooks that nobody calls.
fn start(control_plane: &ControlPlane) -> Process {
    let directory = scratch("cluster-api");
    let mut command = command_in(built().join("core"), &directory);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    command.arg("--kubeconfig").arg(control_plane.kubeconfig());
    command
        .arg("--webhook-cert-dir")
        .arg(control_plane.directory().join("control-plane/pki"));
    command.args([
        "--webhook-cert-name=kube-apiserver.crt",
        "--webhook-key-name=kube-apiserver.key",
    ]);
    command.arg(format!("--webhook-port={port}"));
    command.args([
        "--health-addr=127.0.0.1:0",
        "--diagnostics-address=127.0.0.1:0",
        "--insecure-diagnostics",
    ]);
    command.arg("--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields");
    Process::start("Cluster API's controllers", command, &directory.join("log")).unwrap()
}

/// The cluster that its own API server manages.
async fn create_cluster(administrator: &Caller, kubeconfig: &Path) {
    let secret = json!({"metadata": {"name": format!("{CLUSTER}-kubeconfig"), "labels": {"cluster.x-k8s.io/cluster-name": CLUSTER}},
        "type": "cluster.x-k8s.io/secret", "stringData": {"value": std::fs::read_to_string(kubeconfig).unwrap()}});
    administrator
        .post("/api/v1/namespaces/kube-system/secrets", secret)
        .await;
    let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": CLUSTER},
        "spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}}});
    administrator.post(CLUSTERS, cluster).await;
}

/// A Machine of a Node, and waits until Cluster API has found that.
async fn create_machine(administrator: &Caller, of: &str, labels: Value, annotations: Value) -> String {
    let provider_id = administrator.get(&node(of)).await["spec"]["providerID"].clone();
    let machine = json!({"apiVersion": "infrastructure.example.com/v1", "kind": "ExampleMachine", "metadata": {"name": of},
        "spec": {"providerID": provider_id}});
    administrator.post(INFRASTRUCTURE, machine).await;
    let provisioned = json!({"status": {"initialization": {"provisioned": true}}});
    administrator
        .merge(&format!("{INFRASTRUCTURE}/{of}/status"), provisioned)
        .await;
    let infrastructure = json!({"apiGroup": "infrastructure.example.com", "kind": "ExampleMachine", "name": of});
    let machine = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": of, "labels": labels, "annotations": annotations},
        "spec": {"clusterName": CLUSTER, "bootstrap": {"dataSecretName": "none"}, "infrastructureRef": infrastructure}});
    administrator.post(MACHINES, machine).await;
    let path = format!("{MACHINES}/{of}");
    until(administrator, "Cluster API finds the Node", &path, |machine| {
        machine["status"]["nodeRef"]["name"] == of
    })
    .await;
    until(administrator, "Cluster API names the Machine", &node(of), |node| {
        node["metadata"]["annotations"]["cluster.x-k8s.io/machine"] == of
    })
    .await;
    path
}

/// The reason of a Machine's condition `Deleting`.
fn deleting(machine: &Value) -> Option<&str> {
    let mut conditions = machine["status"]["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == "Deleting")?["reason"].as_str()
}

#[tokio::test]
#[ignore = "it needs Cluster API's program: make cluster-api"]
async fn the_real_machine_controller_waits_until_the_node_is_out() {
    let (control_plane, administrator, caller, own, drained) = maintained(json!({"automatic": ["machine"]})).await;
    create_kinds(&administrator).await;
    let cluster_api = start(&control_plane);
    create_cluster(&administrator, control_plane.kubeconfig()).await;
    let label = |role: &str| json!({"cluster.x-k8s.io/cluster-name": CLUSTER, role: ""});
    create_machine(
        &administrator,
        &own,
        label("cluster.x-k8s.io/control-plane"),
        Value::Null,
    )
    .await;
    let hooks = json!({HOOKS[0]: "", HOOKS[1]: ""});
    let machine = create_machine(&administrator, &drained, label("worker"), hooks).await;
    create_pod(&administrator, "web", &drained, json!([])).await;
    let automatic = AutomaticMaintenances {
        causes: [(Cause::Machine, Some(Duration::from_mins(10)))].into(),
    };
    let leader = Leader::start_with(&caller, &own, automatic);

    administrator.delete(&machine).await;
    until(&administrator, "Cluster API waits for the hook", &machine, |machine| {
        deleting(machine) == Some("WaitingForPreDrainHook")
    })
    .await;
    let path = format!("{MAINTENANCES}/automatic-{drained}");
    until(&administrator, "the maintenance", &path, |object| {
        object["status"]["nodeStatuses"][0]["loadBalancer"]["state"] == "Pending"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = administrator.get(&machine).await;
    assert_eq!(deleting(&held), Some("WaitingForPreDrainHook"), "{held}");
    administrator.get(&format!("{PODS}/web")).await;

    leader.observe_out(&drained);
    is_gone(&administrator, &format!("{PODS}/web")).await;
    is_gone(&administrator, &machine).await;
    is_gone(&administrator, &format!("{INFRASTRUCTURE}/{drained}")).await;
    is_gone(&administrator, &node(&drained)).await;
    is_gone(&administrator, &path).await;
    assert_eq!(
        leader.metric("headgate_maintenance_writes_total{outcome=\"refused\"}"),
        0
    );
    cluster_api.kill().await;
    control_plane.stop().await;
}
