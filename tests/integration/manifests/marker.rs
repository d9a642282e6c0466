//! The Node condition `headgate.dev/OutOfLoadBalancers` on the real API server, with the shipped rights: `kubectl wait` on it, who may
//! write it, and the agents that write it after failed probes. The commands are those of `docs/guides/spot-and-upgrades.md`.

use std::path::Path;
use std::time::Duration;

use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{create_node, eventually, kubectl, own_control_plane};
use serde_json::{Value, json};

use super::SOON;
use super::caller::{AGENT, ApiRequest, CONTROLLER, Caller, acting_on, apply};
use super::leader_policy::in_force;
use super::rendering::{folder, hardened, hardened_with_identity, merged, with_condition};
use super::rights::{node, wait_for_status};
use crate::harness::{AgentOptions, start_controller};
use crate::status::world::World;

const WAIT: &str = "--for=condition=headgate.dev/OutOfLoadBalancers";
const TIMEOUT: &str = "--timeout=120s";

/// Runs kubectl, and returns what it printed.
async fn run_kubectl(administrator: &Caller, arguments: &[&str]) -> String {
    let mut command = kubectl(&administrator.kubeconfig);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

async fn reason(administrator: &Caller, name: &str) -> String {
    let path = "jsonpath={.status.conditions[?(@.type==\"headgate.dev/OutOfLoadBalancers\")].reason}";
    run_kubectl(administrator, &["get", "node", name, "-o", path]).await
}

/// A controller that writes the marker. Dropping it kills the process.
fn controller_process(caller: &Caller, azure_json: &Path) -> Process {
    let settings = "outOfLoadBalancers: {source: AdminState}\n";
    let azure = [("--azure-config-file", azure_json)];
    start_controller("node-1", &caller.kubeconfig, settings, &azure)
}

fn condition(status: &str) -> Value {
    json!({"status": {"conditions": [{"type": "headgate.dev/OutOfLoadBalancers", "status": status, "reason": "Test", "message": "m",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}

fn mark(name: &str) -> ApiRequest {
    ApiRequest::strategic(&format!("{}/status", node(name)), condition("True")).dry_run()
}

#[tokio::test]
async fn kubectl_waits_for_the_marker_of_a_leader_with_a_pod_token() {
    let world = World::start().await;
    let administrator = Caller::administrator(&world.control_plane);
    apply(
        &administrator.kubeconfig,
        &folder(&merged(hardened_with_identity(), with_condition())),
    );
    let controller = acting_on(&world.control_plane, CONTROLLER, "node-1").await;
    in_force(&controller).await;
    let leader = controller_process(&controller, &world.azure_json);

    let taint = ["taint", "node", "node-2", "headgate.dev/maintenance=:NoSchedule"];
    run_kubectl(&administrator, &taint).await;
    let wait = ["wait", WAIT, "node/node-2", TIMEOUT];
    let text = run_kubectl(&administrator, &wait).await;
    assert!(text.contains("condition met"), "{text}");
    let down = world.all_down().await;
    assert_eq!(down["kubernetes"], ["node-2"]);
    assert_eq!(down["kubernetes-IPv6"], ["node-2"]);
    assert_eq!(reason(&administrator, "node-2").await, "AdminStateDown");
    let drain = ["drain", "node-2", "--ignore-daemonsets", "--timeout=60s"];
    run_kubectl(&administrator, &drain).await;
    run_kubectl(
        &administrator,
        &["taint", "node", "node-2", "headgate.dev/maintenance-"],
    )
    .await;
    run_kubectl(&administrator, &["uncordon", "node-2"]).await;
    let is_back = format!("{WAIT}=False");
    run_kubectl(&administrator, &["wait", &is_back, "node/node-2", TIMEOUT]).await;
    assert_eq!(reason(&administrator, "node-2").await, "NoSignal");

    let log = std::fs::read_to_string(leader.log()).unwrap();
    assert!(!log.contains("orbidden") && !log.contains("denied request"), "{log}");
    drop(leader);
    world.control_plane.stop().await;
}

#[tokio::test]
async fn the_right_to_write_the_marker_is_needed_and_limited() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    apply(&administrator.kubeconfig, &folder(&hardened()));
    let own = create_node(&administrator.client, "marked").await;
    let other = create_node(&administrator.client, "other").await;
    let agent = acting_on(&control_plane, AGENT, &own).await;
    let controller = acting_on(&control_plane, CONTROLLER, &own).await;
    for caller in [&agent, &controller] {
        wait_for_status(caller, ApiRequest::get(&node(&own)), 200).await;
        caller.refused(&mark(&own), &["cannot patch resource"]).await;
    }
    apply(
        &administrator.kubeconfig,
        &folder(&merged(hardened_with_identity(), with_condition())),
    );
    for (caller, name, expected) in [
        (&agent, &own, 200),
        (&agent, &other, 403),
        (&controller, &own, 200),
        (&controller, &other, 200),
    ] {
        wait_for_status(caller, mark(name), expected).await;
    }
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.9.9.9"}]}});
    for caller in [&agent, &controller] {
        let ask = ApiRequest::strategic(&format!("{}/status", node(&own)), addresses.clone());
        caller.refused(&ask.dry_run(), &["not status.addresses"]).await;
        // A whole status by another verb needs a right that no account has.
        let whole = administrator.get(&node(&own)).await;
        let ask = ApiRequest::put(&format!("{}/status", node(&own)), whole);
        caller.refused(&ask.dry_run(), &["cannot update resource"]).await;
    }
    an_agent_without_a_leader_writes_the_marker_after_failed_probes(&control_plane, &administrator).await;
    control_plane.stop().await;
}

async fn an_agent_without_a_leader_writes_the_marker_after_failed_probes(
    control_plane: &ControlPlane,
    administrator: &Caller,
) {
    let name = create_node(&administrator.client, "probed").await;
    let caller = acting_on(control_plane, AGENT, &name).await;
    wait_for_status(&caller, mark(&name), 200).await;
    let options = AgentOptions::new(&name, &caller.kubeconfig);
    let settings = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\n";
    let agent = options.settings(settings).start().await;
    let taint = ["taint", "node", &name, "headgate.dev/maintenance=:NoSchedule"];
    run_kubectl(administrator, &taint).await;
    eventually(SOON, "the verdict is 503, without a probe", async || {
        match reason(administrator, &name).await.as_str() {
            "ProbesNotFailed" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    assert_eq!(agent.healthz().await.status, 503);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        reason(administrator, &name).await,
        "ProbesNotFailed",
        "one probe of two"
    );
    assert_eq!(agent.healthz().await.status, 503);
    let target = format!("node/{name}");
    run_kubectl(administrator, &["wait", WAIT, &target, TIMEOUT]).await;
    assert_eq!(reason(administrator, &name).await, "ProbesFailed");
    run_kubectl(administrator, &["taint", "node", &name, "headgate.dev/maintenance-"]).await;
    let is_back = format!("{WAIT}=False");
    run_kubectl(administrator, &["wait", &is_back, &target, TIMEOUT]).await;
    assert_eq!(reason(administrator, &name).await, "NoSignal");
}
