//! The real Karpenter with its kwok provider removes a node: consolidation of an empty one, deletion of a `NodeClaim` and of a
//! Node; with and without its delay.

use std::sync::Arc;

use futures::StreamExt as _;
use headgate_sandbox::process::{Process, command_in, last_log_lines};
use headgate_test_kubernetes::{eventually, scratch};
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::cluster::{Cluster, ClusterOptions, NODE_POOL, PATIENCE, Shared, built};
use super::timeline::Step;

/// A write to Azure takes longer than Karpenter waits.
const SLOW: &str = "7s";

struct Karpenter {
    process: Process,
    claims: JoinHandle<()>,
}

async fn start(cluster: &Cluster) -> Karpenter {
    let crds = built().join("crds");
    cluster
        .kubectl(&["apply", "--server-side", "-f", crds.to_str().unwrap()])
        .await;
    cluster
        .kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=120s",
            "-f",
            crds.to_str().unwrap(),
        ])
        .await;
    let requirement = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
    cluster
        .apply(&json!({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}))
        .await;
    cluster
        .apply(&json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "default"}, "spec": {
            "template": {"spec": {
                "requirements": [requirement("karpenter.sh/capacity-type", &["on-demand"]),
                    requirement("kubernetes.io/arch", &["amd64"]), requirement("kubernetes.io/os", &["linux"])],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}}},
            "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "5s", "budgets": [{"nodes": "100%"}]}}}))
        .await;
    let directory = scratch("karpenter");
    let mut command = command_in(built().join("karpenter"), &directory);
    let kubeconfig = cluster.shared.kubeconfig.as_os_str();
    command.env("KUBECONFIG", kubeconfig).env("SYSTEM_NAMESPACE", "default");
    // Free ports for metrics and health, which the test does not use.
    command.args([
        "--metrics-port=0",
        "--health-probe-port=0",
        "--disable-leader-election=true",
        "--log-level=debug",
    ]);
    let process = Process::start("karpenter", command, &directory.join("log")).unwrap();
    let claims = tokio::spawn(watch_claims(Arc::clone(&cluster.shared)));
    Karpenter { process, claims }
}

/// Records when Karpenter has terminated an instance.
async fn watch_claims(shared: Arc<Shared>) {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
    let claims = Api::<DynamicObject>::all_with(shared.client.clone(), &kind);
    let mut events = watcher::watcher(claims, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(claim) | Event::InitApply(claim)) = event else {
            continue;
        };
        let status = &claim.data["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let is_terminating =
            |condition: &Value| condition["type"] == "InstanceTerminating" && condition["status"] == "True";
        if let Some(node) = status["nodeName"].as_str()
            && conditions.iter().any(is_terminating)
        {
            shared.timelines.record(node, Step::Terminated);
        }
    }
}

/// A cluster with a node that Karpenter has made for a pod.
async fn provisioned(holds: bool) -> (Cluster, Karpenter, String) {
    let cluster = Cluster::start(ClusterOptions {
        operation_delay: SLOW,
        holds,
    })
    .await;
    let karpenter = start(&cluster).await;
    let pool = json!({"nodeSelector": {(NODE_POOL): "default"}});
    cluster.deploy("big", 1, "3", pool).await;
    let node = cluster.node_of(NODE_POOL, 1).await;
    (cluster, karpenter, node)
}

/// Waits for the end of the node; prints and checks its timeline.
async fn end(case: &str, cluster: Cluster, karpenter: Karpenter, node: &str, holds: bool) {
    let Karpenter { mut process, claims } = karpenter;
    cluster.until(node, Step::Gone, &process).await;
    cluster.report(case, node).await;
    let timelines = &cluster.shared.timelines;
    timelines.assert_order(node, Step::Signal, Step::Unhealthy);
    if holds {
        for (first, second) in [
            (Step::Signal, Step::HoldStopping),
            (Step::Signal, Step::Put),
            (Step::Put, Step::Down),
            (Step::Down, Step::Out),
            (Step::Out, Step::HoldGone),
            (Step::HoldGone, Step::Terminated),
        ] {
            timelines.assert_order(node, first, second);
        }
    } else {
        let terminated = timelines.after_signal(node, Step::Terminated).unwrap();
        assert!(terminated >= 4.0, "{terminated}");
        assert!(
            !timelines.has(node, Step::Out),
            "Azure is too slow to be out:\n{}",
            timelines.row(case, node)
        );
    }
    assert!(process.try_wait().is_none(), "{}", last_log_lines(process.log()));
    claims.abort();
    process.kill().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_is_terminated_before_azure_lets_go_without_a_hold() {
    let (cluster, karpenter, node) = provisioned(false).await;
    cluster.scale("big", 0).await;
    end("Karpenter, consolidation, empty", cluster, karpenter, &node, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_node_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, karpenter, node) = provisioned(true).await;
    cluster.scale("big", 0).await;
    end("Karpenter, consolidation, empty, held", cluster, karpenter, &node, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_node_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, karpenter, node) = provisioned(true).await;
    cluster
        .deploy("small", 1, "100m", json!({"nodeSelector": {(NODE_POOL): "default"}}))
        .await;
    cluster.node_of(NODE_POOL, 2).await;
    // The pod that is left fits on a cheaper machine.
    cluster.scale("big", 0).await;
    end(
        "Karpenter, consolidation, with a replacement, held",
        cluster,
        karpenter,
        &node,
        true,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_claim_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, karpenter, node) = provisioned(true).await;
    let claims = cluster.kubectl(&["get", "nodeclaims", "-o", "name"]).await;
    cluster.kubectl(&["delete", "--wait=false", claims.trim()]).await;
    end(
        "Karpenter, kubectl delete nodeclaim, held",
        cluster,
        karpenter,
        &node,
        true,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_is_terminated_after_the_marker_with_a_hold() {
    let (cluster, karpenter, node) = provisioned(true).await;
    cluster.kubectl(&["delete", "--wait=false", "node", &node]).await;
    end("Karpenter, kubectl delete node, held", cluster, karpenter, &node, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_is_terminated_before_azure_lets_go_without_a_hold() {
    let (cluster, karpenter, node) = provisioned(false).await;
    cluster.kubectl(&["delete", "--wait=false", "node", &node]).await;
    end("Karpenter, kubectl delete node", cluster, karpenter, &node, false).await;
}
