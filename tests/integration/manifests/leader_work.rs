//! The work of a leader whose only token is that of its pod, with the shipped roles and policies: the policies hold back none of its
//! writes to its Leases and the ledger.

use std::time::Duration;

use headgate_test_kubernetes::{eventually, met};
use serde_json::json;

use super::SOON;
use super::caller::{AGENT, ApiRequest, CONTROLLER, Caller, acting_on, apply};
use super::leader::{LEASES, LEDGER, LOCK, MAPS, OWN};
use super::leader_policy::in_force;
use super::rendering::{folder, hardened, merged, on_nodes};
use crate::harness::AgentOptions;
use crate::status::world::World;

const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
/// An election, and writes of two pools, on a busy machine.
const BOTH_POOLS: Duration = Duration::from_mins(2);

async fn down(world: &World, nodes: &[&str]) {
    eventually(BOTH_POOLS, &format!("{nodes:?} are Down"), async || {
        let down = world.all_down().await;
        met(
            ["kubernetes", "kubernetes-IPv6"]
                .iter()
                .all(|pool| down[*pool] == nodes),
            format!("{down:?}"),
        )
    })
    .await;
}

/// An installation whose policies come last, as Helm's do.
#[tokio::test]
async fn nothing_leads_before_its_policies_are_in_force() {
    let world = World::start().await;
    let administrator = Caller::administrator(&world.control_plane);
    let folder = folder(&hardened());
    apply(&administrator.kubeconfig, &folder);
    let caller = acting_on(&world.control_plane, CONTROLLER, "node-1").await;
    let foreign = in_force(&caller).await;
    let binding = format!("{BINDINGS}/headgate-leader");
    administrator.delete(&binding).await;
    eventually(SOON, "the policy is not in force", async || {
        let (status, body) = caller.ask(&foreign).await;
        met(status == 201, body)
    })
    .await;

    let azure = format!("--azure-config-file={}", world.azure_json.display());
    let agent = AgentOptions::new("node-1", &caller.kubeconfig)
        .argument(&azure)
        .start()
        .await;
    eventually(SOON, "the event", async || {
        let events = administrator
            .get("/apis/events.k8s.io/v1/namespaces/default/events")
            .await;
        let events = events["items"].as_array().unwrap().clone();
        let mut notes = events.iter().filter(|event| event["reason"] == "PolicyMissing");
        let note = notes.next().map(|event| event["note"].to_string());
        let is_named = note.is_some_and(|note| note.contains("headgate-leader") && !note.contains("headgate-nodes"));
        met(is_named, format!("{events:?} {}", agent.log()))
    })
    .await;
    let (status, _) = administrator.ask(&ApiRequest::get(&format!("{LEASES}/{OWN}"))).await;
    assert_eq!(status, 404, "no candidate");

    apply(&administrator.kubeconfig, &folder);
    eventually(BOTH_POOLS, "it leads", async || {
        let (status, lease) = administrator.ask(&ApiRequest::get(&format!("{LEASES}/{OWN}"))).await;
        met(status == 200, lease)
    })
    .await;
    drop(agent);
    world.control_plane.stop().await;
}

/// Where the leader runs on all nodes; where it is apart, `marker` runs one.
#[tokio::test]
async fn a_leader_with_a_pod_token_takes_a_node_out_and_back() {
    let folder = folder(&merged(hardened(), on_nodes()));
    let world = World::start().await;
    let administrator = Caller::administrator(&world.control_plane);
    apply(&administrator.kubeconfig, &folder);
    let caller = acting_on(&world.control_plane, AGENT, "node-1").await;
    in_force(&caller).await;

    let azure = format!("--azure-config-file={}", world.azure_json.display());
    let options = AgentOptions::new("node-1", &caller.kubeconfig).argument(&azure);
    let agent = options.start().await;
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    world.taint("node-2", taint).await;
    down(&world, &["node-2"]).await;
    let lease = administrator.get(&format!("{LEASES}/{OWN}")).await;
    assert!(
        lease["spec"]["holderIdentity"].as_str().unwrap().starts_with("node-1_"),
        "{lease}"
    );
    let ledger = administrator.get(&format!("{MAPS}/{LEDGER}")).await["data"]["ledger.json"].to_string();
    assert!(ledger.contains("127.0.0.2"), "{ledger}");
    world.taint("node-2", json!([])).await;
    down(&world, &[]).await;
    eventually(SOON, "the shared Lease is released", async || {
        let lease = administrator.get(&format!("{LEASES}/{LOCK}")).await;
        let previous = &lease["metadata"]["annotations"]["aks-managed-resource-locker-previous-holder"];
        met(lease["spec"]["holderIdentity"] == "" && previous == "headgate", lease)
    })
    .await;
    let log = agent.log();
    assert!(!log.contains("orbidden") && !log.contains("denied request"), "{log}");
    drop(agent);
    world.control_plane.stop().await;
}
