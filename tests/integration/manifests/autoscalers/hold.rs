//! `headgate hold` with the token of its `DaemonSet`, and that `DaemonSet`.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{create_node, met, own_control_plane, scratch};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::super::caller::{Account, ApiRequest, Caller, acting_on, apply};
use super::super::rights::{RBAC, node, wait_for_status};
use super::super::{assert_says, render};
use super::{SOON, STABLE, delaying, event_reasons, set_taints, until_event};

const HOLD: Account = Account {
    namespace: "kube-system",
    name: "headgate-hold",
};
const DISRUPTED: &str = "karpenter.sh/disrupted";

struct Holder(Process);

impl Holder {
    /// Starts the program as in the pod, and waits until it has its signal handlers.
    async fn start(name: &str, caller: &Caller, timeout: &str) -> Self {
        let directory = scratch("hold");
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command
            .current_dir(&directory)
            .env_remove("KUBECONFIG")
            .env("NODE_NAME", name);
        command.arg("hold").arg("--timeout").arg(timeout);
        command.arg("--kubeconfig").arg(&caller.kubeconfig);
        let process = Process::start("headgate hold", command, &directory.join("log")).unwrap();
        let holder = Self(process);
        holder.until_logged("waiting for SIGTERM").await;
        holder
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.0.log()).unwrap()
    }

    async fn until_logged(&self, words: &str) {
        headgate_test_kubernetes::eventually(SOON, words, async || {
            let log = self.log();
            met(log.contains(words), log)
        })
        .await;
    }

    fn terminate(&self) {
        self.0.signal(Signal::SIGTERM);
    }

    async fn exit(&mut self, limit: Duration) -> ExitStatus {
        let status = self.0.wait(limit).await;
        status.unwrap_or_else(|| panic!("still running after {limit:?}:\n{}", self.log()))
    }
}

/// Someone writes the marker.
async fn mark(administrator: &Caller, name: &str, status: &str) {
    let condition = json!({"type": "headgate.dev/OutOfLoadBalancers", "status": status, "reason": "Test", "message": "lb/pool",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = json!({"status": {"conditions": [condition]}});
    administrator
        .done(&ApiRequest::strategic(&format!("{}/status", node(name)), patch))
        .await;
}

#[tokio::test]
async fn the_process_holds_a_node_that_karpenter_removes_until_it_is_out() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    apply(&administrator.kubeconfig, &delaying());
    let name = create_node(&administrator.client, "held").await;
    let caller = acting_on(&control_plane, HOLD, &name).await;
    wait_for_status(&caller, ApiRequest::get("/api/v1/nodes"), 200).await;

    // A roll of the DaemonSet: nothing removes the node.
    let mut rolled = Holder::start(&name, &caller, "1h").await;
    rolled.terminate();
    assert!(rolled.exit(SOON).await.success());
    rolled.until_logged("node is not being removed").await;

    // Karpenter removes the node.
    let mut holder = Holder::start(&name, &caller, "1h").await;
    set_taints(&administrator, &name, &[DISRUPTED]).await;
    mark(&administrator, &name, "False").await;
    holder.terminate();
    holder.until_logged("Karpenter waits with the instance").await;
    assert!(
        holder.0.wait(STABLE).await.is_none(),
        "it is not out:\n{}",
        holder.log()
    );
    mark(&administrator, &name, "True").await;
    assert!(holder.exit(SOON).await.success());
    holder.until_logged("out of load balancers").await;
    assert!(event_reasons(&administrator, &name).await.is_empty());

    // Karpenter gives up, and the taint is withdrawn.
    mark(&administrator, &name, "False").await;
    let mut holder = Holder::start(&name, &caller, "1h").await;
    holder.terminate();
    assert!(holder.0.wait(STABLE).await.is_none(), "{}", holder.log());
    set_taints(&administrator, &name, &[]).await;
    assert!(holder.exit(SOON).await.success());

    // The timeout ends it with an event; without the right to record it, it ends as well.
    set_taints(&administrator, &name, &[DISRUPTED]).await;
    let mut holder = Holder::start(&name, &caller, "1s").await;
    holder.terminate();
    assert_eq!(holder.exit(SOON).await.code(), Some(1));
    until_event(&administrator, &name, "TerminationHoldTimedOut").await;
    for (kind, name) in [
        ("namespaces/default/rolebindings", "headgate-hold"),
        ("clusterrolebindings", "headgate-hold"),
    ] {
        administrator.delete(&format!("{RBAC}/{kind}/{name}")).await;
    }
    wait_for_status(&caller, ApiRequest::get("/api/v1/nodes"), 403).await;
    set_taints(&administrator, &name, &[]).await;
    let mut holder = Holder::start(&name, &caller, "2s").await;
    holder.terminate();
    assert_eq!(
        holder.exit(SOON).await.code(),
        Some(1),
        "a Node that it cannot read is held"
    );
    holder.until_logged("event not written").await;
    control_plane.stop().await;
}

#[test]
fn the_daemonset_is_one_that_karpenter_waits_for() {
    let objects = render(&delaying());
    let daemonset = objects
        .iter()
        .find(|object| object["kind"] == "DaemonSet" && object["metadata"]["name"] == "headgate-hold")
        .unwrap();
    let pod = &daemonset["spec"]["template"]["spec"];
    let tolerations = pod["tolerations"].as_array().unwrap();
    let tolerates = |toleration: &Value| {
        let matches = |field: &str, value: &str| toleration.get(field).is_none_or(|known| known == value);
        matches("key", DISRUPTED) && matches("effect", "NoSchedule")
    };
    assert!(!tolerations.iter().any(tolerates), "{tolerations:?}");
    assert_says(
        pod,
        &json!({"serviceAccountName": "headgate-hold", "nodeSelector": {"kubernetes.io/os": "linux"}}),
    );
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(
        terms,
        &json!([{"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "Exists"}]}])
    );
    let container = &pod["containers"][0];
    let mut words = vec!["headgate".to_owned()];
    words.extend(serde_json::from_value::<Vec<String>>(container["args"].clone()).unwrap());
    words.push("--node-name=n".to_owned());
    assert_says(&container["env"][0], &json!({"name": "NODE_NAME"}));
    let parsed = headgate::cli::definition().try_get_matches_from(words).unwrap();
    let timeout: &Duration = parsed.subcommand_matches("hold").unwrap().get_one("timeout").unwrap();
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace >= timeout.as_secs() + 20, "{grace} {timeout:?}");
    assert_eq!(
        container["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    // It cannot write Nodes.
    let role = objects
        .iter()
        .find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == "headgate-hold");
    assert_eq!(
        role.unwrap()["rules"],
        json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}])
    );
}
