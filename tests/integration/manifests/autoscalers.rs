//! What makes autoscalers wait, on the real API server with the shipped rights: the annotation of an agent for Cluster Autoscaler here, the
//! pod for Karpenter in `hold`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION};
use headgate_sandbox::control_plane::ControlPlane;
use headgate_test_kubernetes::{create_node, eventually, met, own_control_plane};
use serde_json::{Value, json};

use super::caller::{AGENT, ApiRequest, CONTROLLER, Caller, acting_on, apply};
use super::leader_policy::in_force;
use super::rendering::{delays, folder, hardened_with_identity, merged, with_condition};
use super::rights::{RBAC, events_in, node, wait_for_status};
use super::{SOON, stdout_of};
use crate::harness::AgentOptions;
use crate::harness::agent::Agent;

mod hold;

const HARD_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Longer than the agent takes to react, on a busy machine.
const STABLE: Duration = Duration::from_secs(2);

/// Both autoscalers are delayed.
fn delaying() -> PathBuf {
    folder(&merged(hardened_with_identity(), delays()))
}

/// The agent's request, which is not carried out.
fn annotate(name: &str, annotation: &str) -> ApiRequest {
    ApiRequest::merge(&node(name), json!({"metadata": {"annotations": {annotation: "true"}}})).dry_run()
}

/// Replaces the taints of a Node by these, each with the present time as its value.
async fn set_taints(administrator: &Caller, name: &str, keys: &[&str]) {
    let now = Clock::System.now().wall.as_second().to_string();
    let taint = |key: &&str| json!({"key": key, "value": now, "effect": "NoSchedule"});
    let taints: Value = keys.iter().map(taint).collect();
    let patch = json!({"spec": {"taints": taints}});
    administrator.merge(&node(name), patch).await;
}

async fn is_delayed(administrator: &Caller, name: &str) -> bool {
    let found = administrator.get(&node(name)).await;
    found["metadata"]["annotations"][DELETION_DELAY_ANNOTATION] == "true"
}

async fn until_delayed(administrator: &Caller, name: &str, expected: bool) {
    eventually(SOON, &format!("the deletion is delayed: {expected}"), async || {
        met(is_delayed(administrator, name).await == expected, "it is not so")
    })
    .await;
}

/// The reasons of the events about a Node.
async fn event_reasons(administrator: &Caller, name: &str) -> Vec<String> {
    let events = administrator.get(&events_in("default")).await;
    let all = events["items"].as_array().unwrap().iter();
    let about = all.filter(|event| event["regarding"]["name"] == name);
    about
        .map(|event| event["reason"].as_str().unwrap().to_owned())
        .collect()
}

async fn until_event(administrator: &Caller, name: &str, reason: &str) {
    eventually(SOON, reason, async || {
        let reasons = event_reasons(administrator, name).await;
        let is_recorded = reasons.iter().any(|known| known == reason);
        is_recorded.then_some(()).ok_or_else(|| format!("{reasons:?}"))
    })
    .await;
}

#[tokio::test]
async fn deletions_are_delayed_with_the_rights_of_the_component() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    the_right_to_delay_deletions_is_needed_and_limited(&control_plane, &administrator).await;
    an_agent_delays_cluster_autoscaler_until_the_node_is_out(&control_plane, &administrator).await;
    a_delay_ends_with_its_timeout_and_needs_the_component(&control_plane, &administrator).await;
    control_plane.stop().await;
}

async fn the_right_to_delay_deletions_is_needed_and_limited(control_plane: &ControlPlane, administrator: &Caller) {
    apply(
        &administrator.kubeconfig,
        &folder(&merged(hardened_with_identity(), with_condition())),
    );
    let own = create_node(&administrator.client, "delayed").await;
    let other = create_node(&administrator.client, "other").await;
    let agent = acting_on(control_plane, AGENT, &own).await;
    let controller = acting_on(control_plane, CONTROLLER, &own).await;
    wait_for_status(&agent, ApiRequest::get(&node(&own)), 200).await;
    let ask = annotate(&own, DELETION_DELAY_ANNOTATION);
    agent.refused(&ask, &["cannot patch resource"]).await;

    apply(&administrator.kubeconfig, &delaying());
    in_force(&controller).await;
    wait_for_status(&agent, annotate(&own, DELETION_DELAY_ANNOTATION), 200).await;
    let prefix = DELETION_DELAY_ANNOTATION.split_once('/').unwrap().0;
    let delay = DELETION_DELAY_ANNOTATION.to_owned();
    let own_ones = "only annotations headgate.dev/*";
    for (caller, name, annotation, words) in [
        (&agent, &other, delay.clone(), "only its own Node"),
        (&agent, &own, format!("{prefix}/other"), own_ones),
        (&agent, &own, prefix.to_owned(), own_ones),
        (&controller, &own, delay, own_ones),
    ] {
        let ask = annotate(name, &annotation);
        caller.refused(&ask, &["'headgate-nodes'", words]).await;
    }
    // Not along with a change of the status, either.
    let along = json!({"metadata": {"annotations": {DELETION_DELAY_ANNOTATION: "true"}}});
    let ask = ApiRequest::merge(&format!("{}/status", node(&own)), along).dry_run();
    agent.refused(&ask, &["not metadata.annotations"]).await;
}

async fn start_agent(name: &str, caller: &Caller, delay: &str) -> Agent {
    let options = AgentOptions::new(name, &caller.kubeconfig);
    let settings = format!(
        "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {{source: FailedProbes, failedProbes: 1}}\ndelayTermination: {{clusterAutoscaler: {delay}}}\n"
    );
    options.settings(&settings).start().await
}

async fn an_agent_delays_cluster_autoscaler_until_the_node_is_out(
    control_plane: &ControlPlane,
    administrator: &Caller,
) {
    let name = create_node(&administrator.client, "delays").await;
    let caller = acting_on(control_plane, AGENT, &name).await;
    wait_for_status(&caller, annotate(&name, DELETION_DELAY_ANNOTATION), 200).await;
    let agent = start_agent(&name, &caller, "2m").await;
    assert!(!is_delayed(administrator, &name).await);

    // The soft taint comes and is withdrawn, and comes again.
    set_taints(administrator, &name, &[CANDIDATE_TAINT]).await;
    until_delayed(administrator, &name, true).await;
    assert_eq!(agent.healthz().await.status, 200, "the soft taint is no signal");
    set_taints(administrator, &name, &[]).await;
    until_delayed(administrator, &name, false).await;
    set_taints(administrator, &name, &[CANDIDATE_TAINT]).await;
    until_delayed(administrator, &name, true).await;

    // The hard taint: delayed until the load balancer's probe has failed.
    set_taints(administrator, &name, &[CANDIDATE_TAINT, HARD_TAINT]).await;
    eventually(SOON, "the marker is written", async || {
        let found = administrator.get(&node(&name)).await;
        let conditions = found["status"]["conditions"].to_string();
        conditions.contains("ProbesNotFailed").then_some(()).ok_or(conditions)
    })
    .await;
    tokio::time::sleep(STABLE).await;
    assert!(is_delayed(administrator, &name).await, "no probe has failed");
    assert_eq!(agent.healthz().await.status, 503);
    until_delayed(administrator, &name, false).await;
    // The API server shows a write before its answer is counted.
    let rows = [
        // Twice set, twice removed.
        "headgate_node_writes_total{field=\"deletion_delay\",outcome=\"written\"} 4",
        "headgate_deletion_delay_timeouts_total 0",
        "headgate_deletion_delayed 0",
    ];
    eventually(SOON, "every write is counted", async || {
        let metrics = agent.metrics().await;
        let missing = rows.iter().find(|row| !metrics.lines().any(|line| line == **row));
        missing.map_or(Ok(()), |row| Err(format!("no {row} in\n{metrics}")))
    })
    .await;
    let reasons = event_reasons(administrator, &name).await;
    assert!(
        reasons.iter().all(|reason| reason.starts_with("NodeSignal")),
        "{reasons:?}"
    );

    // A roll keeps the annotation, and `headgate clean-nodes` removes it.
    set_taints(administrator, &name, &[CANDIDATE_TAINT]).await;
    until_delayed(administrator, &name, true).await;
    assert!(agent.stop(SOON).await.success());
    assert!(
        is_delayed(administrator, &name).await,
        "an agent that stops removes nothing"
    );
    let mut clean = Command::new(env!("CARGO_BIN_EXE_headgate"));
    stdout_of(
        clean
            .args(["clean-nodes", "--kubeconfig"])
            .arg(&administrator.kubeconfig),
    );
    assert!(!is_delayed(administrator, &name).await);
}

async fn a_delay_ends_with_its_timeout_and_needs_the_component(control_plane: &ControlPlane, administrator: &Caller) {
    let name = create_node(&administrator.client, "bound").await;
    let caller = acting_on(control_plane, AGENT, &name).await;
    wait_for_status(&caller, annotate(&name, DELETION_DELAY_ANNOTATION), 200).await;
    let agent = start_agent(&name, &caller, "10s").await;
    set_taints(administrator, &name, &[CANDIDATE_TAINT]).await;
    until_delayed(administrator, &name, true).await;
    set_taints(administrator, &name, &[CANDIDATE_TAINT, HARD_TAINT]).await;
    // No probe comes.
    until_delayed(administrator, &name, false).await;
    until_event(administrator, &name, "DeletionDelayTimedOut").await;

    let binding = format!("{RBAC}/clusterrolebindings/headgate-delay-deletion");
    administrator.delete(&binding).await;
    wait_for_status(&caller, annotate(&name, DELETION_DELAY_ANNOTATION), 403).await;
    set_taints(administrator, &name, &[CANDIDATE_TAINT]).await;
    eventually(SOON, "two refused writes are counted", async || {
        let metrics = agent.metrics().await;
        let prefix = "headgate_node_writes_total{field=\"deletion_delay\",outcome=\"refused\"} ";
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix(prefix)?.parse::<u32>().ok());
        met(count.unwrap_or_default() >= 2, format!("{count:?}"))
    })
    .await;
    let hint = "delayTermination.clusterAutoscaler of the chart grants";
    assert_eq!(agent.log().matches(hint).count(), 1, "{}", agent.log());
}
