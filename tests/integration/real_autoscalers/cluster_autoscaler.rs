//! The real Cluster Autoscaler with its kwok provider removes a node: empty, with a pod, and with a rollback; with and without
//! `delayTermination.clusterAutoscaler`.

use std::time::Duration;

use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

use super::cluster::{Cluster, ClusterOptions, NODE_GROUP, program};
use super::timeline::Step;

const HELP: &str = "set CLUSTER_AUTOSCALER_DIR to the directory cluster-autoscaler of a checkout of kubernetes/autoscaler, in which the \
                    program was built with the build tag kwok";
/// A write to Azure takes longer than Cluster Autoscaler waits for an empty node.
const SLOW: &str = "7s";

/// The node that Cluster Autoscaler makes from.
fn template() -> Value {
    let room = json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "8Gi", "pods": "110"});
    let labels = json!({(NODE_GROUP): "workers", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": "template"});
    json!({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "template", "labels": labels, "annotations": {}},
        "status": {"capacity": room, "allocatable": room}}]})
}

/// Starts it as measured in docs/guides/autoscalers.md: its flags change only what comes before the hard taint.
async fn start(cluster: &Cluster) -> Process {
    let program = program("CLUSTER_AUTOSCALER_DIR", "cluster-autoscaler", HELP);
    let config = json!({"apiVersion": "v1alpha1", "readNodesFrom": "configmap", "configmap": {"name": "kwok-provider-templates"},
        "nodegroups": {"fromNodeLabelKey": NODE_GROUP}, "nodes": {"skipTaint": true}});
    for (name, key, text) in [
        ("kwok-provider-config", "config", config.to_string()),
        ("kwok-provider-templates", "templates", template().to_string()),
    ] {
        cluster
            .apply(
                &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
                "data": {key: text}}),
            )
            .await;
    }
    let directory = scratch("cluster-autoscaler");
    let mut command = command_in(program, &directory);
    let kubeconfig = cluster.shared.kubeconfig.as_os_str();
    command
        .env("POD_NAMESPACE", "default")
        .env("KWOK_PROVIDER_MODE", "local")
        .env("KUBECONFIG", kubeconfig);
    command.arg("--kubeconfig").arg(kubeconfig);
    command.args([
        "--cloud-provider=kwok",
        "--namespace=default",
        "--leader-elect=false",
        "--address=127.0.0.1:0",
        "--scan-interval=2s",
        "--scale-down-unneeded-time=8s",
        "--scale-down-delay-after-add=2s",
        "--scale-down-delay-after-failure=10s",
        "--unremovable-node-recheck-timeout=5s",
        "--v=2",
    ]);
    Process::start("cluster-autoscaler", command, &directory.join("log")).unwrap()
}

/// A cluster with a node that Cluster Autoscaler has made for a pod; with `small`, a second pod runs there that can move.
async fn scaled_up(holds: bool, small: bool) -> (Cluster, Process, String) {
    let cluster = Cluster::start(ClusterOptions {
        operation_delay: SLOW,
        holds,
    })
    .await;
    let autoscaler = start(&cluster).await;
    cluster.deploy("big", 1, "3", json!({})).await;
    let node = cluster.node_of(NODE_GROUP, 1).await;
    if small {
        let term = json!({"matchExpressions": [{"key": NODE_GROUP, "operator": "Exists"}]});
        let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}});
        cluster.deploy("small", 1, "100m", json!({"affinity": affinity})).await;
        cluster.node_of(NODE_GROUP, 2).await;
    }
    (cluster, autoscaler, node)
}

async fn end(cluster: Cluster, mut autoscaler: Process) {
    assert!(autoscaler.try_wait().is_none(), "it has ended by itself");
    autoscaler.kill().await;
    cluster.stop().await;
}

/// Removes a node; returns the cluster with the finished timeline.
async fn removal(case: &str, holds: bool, small: bool) -> (Cluster, Process, String) {
    let (cluster, autoscaler, node) = scaled_up(holds, small).await;
    cluster.scale("big", 0).await;
    cluster.until(&node, Step::Gone, &autoscaler).await;
    cluster.report(case, &node).await;
    let timelines = &cluster.shared.timelines;
    timelines.assert_order(&node, Step::Candidate, Step::Signal);
    timelines.assert_order(&node, Step::Signal, Step::Unhealthy);
    (cluster, autoscaler, node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_is_terminated_before_azure_lets_go_without_a_hold() {
    let (cluster, autoscaler, node) = removal("Cluster Autoscaler, empty", false, false).await;
    let timelines = &cluster.shared.timelines;
    let terminated = timelines.after_signal(&node, Step::Terminated).unwrap();
    assert!(terminated >= 4.9, "{terminated}");
    assert!(!timelines.has(&node, Step::Delayed) && !timelines.has(&node, Step::Out));
    end(cluster, autoscaler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, autoscaler, node) = removal("Cluster Autoscaler, empty, held", true, false).await;
    assert_held(&cluster, &node);
    end(cluster, autoscaler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_pod_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, autoscaler, node) = removal("Cluster Autoscaler, one pod to move, held", true, true).await;
    assert_held(&cluster, &node);
    end(cluster, autoscaler).await;
}

#[track_caller]
fn assert_held(cluster: &Cluster, node: &str) {
    let timelines = &cluster.shared.timelines;
    for (first, second) in [
        (Step::Candidate, Step::Delayed),
        (Step::Delayed, Step::Signal),
        (Step::Signal, Step::Put),
        (Step::Put, Step::Down),
        (Step::Down, Step::Out),
        (Step::Out, Step::Undelayed),
        (Step::Undelayed, Step::Terminated),
    ] {
        timelines.assert_order(node, first, second);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_returns_the_node() {
    let (cluster, autoscaler, node) = scaled_up(true, true).await;
    cluster.scale("big", 0).await;
    cluster.until(&node, Step::Signal, &autoscaler).await;
    // A budget that appears after the decision: the eviction fails.
    cluster
        .apply(&json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "late", "namespace": "default"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "small"}}}}))
        .await;
    for step in [Step::Unhealthy, Step::SignalEnded, Step::Undelayed, Step::HealthyAgain] {
        cluster.until(&node, step, &autoscaler).await;
    }
    if cluster.shared.timelines.has(&node, Step::Down) {
        cluster.until(&node, Step::Up, &autoscaler).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster
        .report("Cluster Autoscaler, rollback by a budget, held", &node)
        .await;
    assert!(!cluster.shared.timelines.has(&node, Step::Terminated));
    cluster
        .shared
        .timelines
        .assert_order(&node, Step::SignalEnded, Step::HealthyAgain);
    end(cluster, autoscaler).await;
}
