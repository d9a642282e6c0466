//! The sandbox with workloads: its printed commands drain nodes by two maintenances that have one node in common.

use std::path::Path;

use headgate_test_kubernetes::kubectl;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::command::Sandbox;
use crate::harness::succeed;

/// The arguments of the printed command that contains `part`, without the kubeconfig.
fn printed<'a>(hints: &'a str, part: &str) -> Vec<&'a str> {
    let line = hints
        .lines()
        .find(|line| line.contains(part))
        .unwrap_or_else(|| panic!("{part}: {hints}"));
    line.split_whitespace().skip(3).collect()
}

#[tokio::test]
async fn two_maintenances_drain_the_workloads_with_the_printed_commands() {
    let mut sandbox = Sandbox::start(&["--workloads"]);
    let description = sandbox.description().await;
    let kubeconfig = Path::new(description["kubeconfig"].as_str().unwrap()).to_owned();
    let hints = sandbox.errors();
    let kube = |arguments: &[&str]| succeed(kubectl(&kubeconfig).args(arguments));
    let pods_on = |nodes: [&str; 3]| {
        let list: Value = serde_json::from_str(&kube(&["-n", "shop", "get", "pods", "-o", "json"])).unwrap();
        let pods = list["items"].as_array().unwrap();
        let on = |pod: &&Value| nodes.iter().any(|node| pod["spec"]["nodeName"] == *node);
        pods.iter().filter(on).count()
    };
    let drained = ["node-1", "node-2", "node-3"];
    assert!(pods_on(drained) > 0, "there is something to drain");

    kube(&printed(&hints, " apply -f "));
    let both = ["nodemaintenance/maintenance-a", "nodemaintenance/maintenance-b"];
    kube(&[&["wait", "--for=condition=Drained", "--timeout=600s"], &both[..]].concat());
    assert_eq!(pods_on(drained), 0);
    let ready = kube(&[
        "-n",
        "shop",
        "get",
        "deployments",
        "-o",
        "jsonpath={.items[*].status.readyReplicas}",
    ]);
    assert!(!ready.is_empty(), "the others run elsewhere");
    for pool in ["kubernetes/kubernetes", "kubernetes-nic/kubernetes"] {
        let is_out = |line: &Value| line["down"].as_array().is_some_and(|down| down.len() == drained.len());
        sandbox.wait_for_line(pool, is_out).await;
    }

    kube(&printed(&hints, " delete hgnm "));
    let nodes: Value = serde_json::from_str(&kube(&["get", "nodes", "-o", "json"])).unwrap();
    for node in nodes["items"].as_array().unwrap() {
        assert!(
            node["spec"]["unschedulable"].is_null() && node["spec"]["taints"].is_null(),
            "{node}"
        );
    }
    sandbox.stop(Signal::SIGINT).await;
}

#[tokio::test]
async fn workloads_need_a_node_that_is_not_drained() {
    let mut sandbox = Sandbox::start(&["--workloads", "--nodes", "3"]);
    assert_eq!(sandbox.exit_code().await, Some(1));
    let errors = sandbox.errors();
    assert!(errors.contains("--workloads needs at least 4 nodes"), "{errors}");
}
