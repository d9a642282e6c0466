//! A real cluster with its controllers and scheduler accepts the manifests, and the `DaemonSet` behaves
//! as described.

use std::path::Path;
use std::process::Command;

use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{eventually, kubectl, met, own_control_plane};
use serde_json::{Value, json};

use super::caller::{ApiRequest, Caller};
use super::prometheus_operator::definitions;
use super::rendering::{PROFILES, folder, hardened};
use super::settings::overlay;
use super::{SOON, repository, stdout_of};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
pub(super) const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// A control plane with its controllers, except the one that taints Nodes without a kubelet.
pub(super) async fn with_controllers() -> (ControlPlane, Caller) {
    let mut control_plane = own_control_plane().await;
    let arguments = ["--controllers=*,-node-lifecycle-controller"];
    control_plane.start_controller_manager(&arguments).unwrap();
    let administrator = Caller::administrator(&control_plane);
    (control_plane, administrator)
}

/// The result for each object: the last word of each line of kubectl's output.
fn outcomes(command: &mut Command) -> Vec<String> {
    let stdout = stdout_of(command);
    let last = |line: &str| match line.rsplit(' ').next().unwrap() {
        // kubectl reports a Secret's base64, which kustomize folds, and a budget's selector, which patches replace, as
        // changed; the API server does not change them.
        "configured" if line.starts_with("secret/") || line.starts_with("poddisruptionbudget.") => {
            "unchanged".to_owned()
        }
        outcome => outcome.to_owned(),
    };
    stdout.lines().map(last).collect()
}

pub(super) fn in_folder(caller: &Caller, verb: &[&str], folder: &Path) -> Command {
    let mut command = kubectl(&caller.kubeconfig);
    command.args(verb).arg("-k").arg(folder);
    command
}

#[tokio::test]
async fn each_overlay_applies_reapplies_unchanged_and_is_deleted_completely() {
    let (control_plane, administrator) = with_controllers().await;
    let definitions = definitions();
    for verb in [
        ["create"].as_slice(),
        &["wait", "--for=condition=Established", "--timeout=60s"],
    ] {
        stdout_of(
            kubectl(&administrator.kubeconfig)
                .args(verb)
                .arg("-f")
                .arg(&definitions),
        );
    }
    let folders = [("healthz", 11), ("azure", 38), ("aks", 38), ("everything", 72)];
    assert_eq!(folders.map(|(folder, _)| folder), PROFILES, "none is left out");
    for (folder, objects) in folders {
        let path = repository("manifests").join(folder);
        let run = |verb: &[&str]| outcomes(&mut in_folder(&administrator, verb, &path));
        let dry = run(&["apply", "--dry-run=server"]);
        assert_eq!(dry, vec!["run)"; objects], "{folder}");
        let made = run(&["apply"]);
        assert_eq!(made.len(), objects, "{folder}");
        assert!(
            made.iter().all(|outcome| outcome == "created"),
            "all are new in {folder}: {made:?}"
        );
        assert_eq!(run(&["apply"]), vec!["unchanged"; objects], "{folder}");
        let gone = run(&["delete", "--timeout=60s", "-o", "name"]);
        assert_eq!(gone.len(), objects, "{folder}: {gone:?}");
        let left = run(&["get", "--ignore-not-found", "-o", "name"]);
        assert_eq!(left, Vec::<String>::new(), "{folder}");
    }
    admission_policy_expressions_pass_type_checking(&administrator).await;
    control_plane.stop().await;
}

async fn admission_policy_expressions_pass_type_checking(administrator: &Caller) {
    stdout_of(&mut in_folder(administrator, &["apply"], &folder(&hardened())));
    let mut wrong = administrator.get(&format!("{POLICIES}/headgate-nodes")).await;
    wrong["metadata"] = json!({"name": "wrong"});
    wrong["spec"]["validations"] = json!([{"expression": "object.spec.nosuchfield == 1"}]);
    administrator.post(POLICIES, wrong).await;
    for (name, warnings) in [("wrong", true), ("headgate-nodes", false), ("headgate-leader", false)] {
        let path = format!("{POLICIES}/{name}");
        let checked = eventually(SOON, "type-checked", async || {
            let policy = administrator.get(&path).await;
            if policy["status"]["observedGeneration"] == policy["metadata"]["generation"] {
                Ok(policy["status"]["typeChecking"].clone())
            } else {
                Err(policy["status"].to_string())
            }
        })
        .await;
        assert_eq!(
            checked["expressionWarnings"].is_array(),
            warnings,
            "{name}: {checked:#}"
        );
    }
}

/// Creates a ready Node with capacity for Pods.
pub(super) async fn node(administrator: &Caller, name: &str, labels: Value, spec: Value) {
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
    administrator.post("/api/v1/nodes", node).await;
    let room = json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "pods": "10"});
    let status = json!({"status": {"capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True"}]}});
    administrator
        .merge(&format!("/api/v1/nodes/{name}/status"), status)
        .await;
}

/// Waits until this number of headgate's Pods is scheduled and none is pending.
async fn placed(administrator: &Caller, count: usize) -> Vec<Value> {
    eventually(SOON, &format!("{count} Pods are placed"), async || {
        let pods = administrator.get(PODS).await["items"].as_array().unwrap().clone();
        let on_nodes = pods.iter().filter(|pod| pod["spec"]["nodeName"].is_string());
        if on_nodes.count() == count && pods.len() == count {
            Ok(pods)
        } else {
            let brief = |pod: &Value| {
                json!([
                    pod["metadata"]["name"],
                    pod["spec"]["nodeName"],
                    pod["status"]["conditions"]
                ])
            };
            Err(pods.iter().map(|pod| brief(pod).to_string()).collect())
        }
    })
    .await
}

/// Writes the status that kubelet would write.
pub(super) async fn ready(administrator: &Caller, pod: &Value) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let status = json!({"status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    administrator
        .done(&ApiRequest::strategic(&format!("{PODS}/{name}/status"), status))
        .await;
}

#[tokio::test]
async fn the_daemonset_pod_runs_on_a_cordoned_node_and_surges_on_new_settings() {
    let (mut control_plane, administrator) = with_controllers().await;
    control_plane.start_scheduler().unwrap();
    let linux = json!({"kubernetes.io/os": "linux"});
    let taints: Vec<Value> = [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
        ("node.kubernetes.io/network-unavailable", "NoSchedule"),
        ("example.com/mine", "NoExecute"),
    ]
    .map(|(key, effect)| json!({"key": key, "effect": effect}))
    .into();
    node(
        &administrator,
        "drained",
        linux,
        json!({"unschedulable": true, "taints": taints}),
    )
    .await;
    let r#virtual = json!({"kubernetes.io/os": "linux", "type": "virtual-kubelet"});
    node(&administrator, "virtual", r#virtual, json!({})).await;
    let fargate = json!({"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"});
    node(&administrator, "fargate", fargate, json!({})).await;
    node(
        &administrator,
        "windows",
        json!({"kubernetes.io/os": "windows"}),
        json!({}),
    )
    .await;

    stdout_of(&mut in_folder(
        &administrator,
        &["apply"],
        &repository("manifests/healthz"),
    ));
    let pods = placed(&administrator, 1).await;
    let old = &pods[0];
    assert_eq!(old["spec"]["nodeName"], "drained");
    assert_eq!(old["spec"]["priority"], 2_000_001_000, "system-node-critical");
    ready(&administrator, old).await;

    stdout_of(&mut in_folder(
        &administrator,
        &["apply"],
        &overlay("logFormat: Text\n"),
    ));
    let pods = placed(&administrator, 2).await;
    let new = pods
        .iter()
        .find(|pod| pod["metadata"]["uid"] != old["metadata"]["uid"])
        .unwrap();
    assert_eq!(new["spec"]["nodeName"], "drained");
    assert!(
        pods.iter()
            .all(|pod| pod["metadata"].get("deletionTimestamp").is_none()),
        "the old one goes on until the new one is ready"
    );
    ready(&administrator, new).await;
    let name = old["metadata"]["name"].as_str().unwrap();
    eventually(SOON, "the old one is asked to stop", async || {
        let (_, pod) = administrator.ask(&ApiRequest::get(&format!("{PODS}/{name}"))).await;
        met(
            pod["kind"] == "Status" || pod["metadata"].get("deletionTimestamp").is_some(),
            &pod["status"],
        )
    })
    .await;
    control_plane.stop().await;
}
