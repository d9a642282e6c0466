//! "Works with both NIC- and IP-based backend pools".

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{GROUP, entries, load_balancer};
use super::stage::{DOWN, DRAINING, FAILED, SECOND, Stage};

fn pool() -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes/backendAddressPools/kubernetes")
}

/// An interface in the pool.
fn interface(id: &str, machine: Option<&str>) -> Value {
    let mut resource = json!({"id": id, "location": "eastus", "properties": {
        "ipConfigurations": [{"name": "ipconfig1", "properties": {"primary": true, "privateIPAddress": "10.1.0.4",
            "loadBalancerBackendAddressPools": [{"id": pool()}]}}]}});
    if let Some(machine) = machine {
        resource["properties"]["virtualMachine"] = json!({"id": machine});
    }
    resource
}

/// The machine of a scale set.
fn instance(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/aks-pool/virtualMachines/{number}")
}

/// A machine of its own, as the world's Nodes are.
fn machine(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/virtualMachines/node-{number}")
}

fn lone_interface(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/node-{number}-nic")
}

fn empty_pool() -> Value {
    empty_pool_beside(&[])
}

/// The same in a load balancer with these pools of addresses.
fn empty_pool_beside(others: &[(&str, Value)]) -> Value {
    let pools = [&[("kubernetes", json!([]))], others].concat();
    let mut document = load_balancer("kubernetes", &pools);
    let pool = &mut document["properties"]["backendAddressPools"][0]["properties"];
    pool.as_object_mut().unwrap().remove("loadBalancerBackendAddresses");
    document
}

#[tokio::test(start_paused = true)]
async fn members_of_a_scale_set_are_known_by_their_ids() {
    let mut resources = vec![empty_pool()];
    resources.extend((1..=3).map(|number| interface(&format!("{}/networkInterfaces/nic", instance(number)), None)));
    let mut stage = Stage::set(3, &resources).await;
    for number in 1..=3 {
        // ARM's ids in another case, and no address that stands anywhere.
        stage.node(number, |node| {
            node["spec"]["providerID"] = json!(format!(
                "azure://{}",
                instance(number).replace("virtualMachineScaleSets", "virtualmachinescalesets")
            ));
            node["status"]["addresses"] = json!([]);
        });
    }
    stage.lead(super::super::world::ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    stage
        .until("Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(5 * SECOND).await;
    assert!(
        stage.sent("GET", "networkInterfaces").is_empty(),
        "nothing had to be asked"
    );
    let puts = stage.puts();
    assert_eq!(puts.len(), 1);
    let entries = puts[0].body["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap();
    assert_eq!(entries.len(), 3, "all members, or ARM would refuse");
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    assert_eq!(stage.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn members_of_other_machines_are_asked_about_once() {
    let mut resources = vec![empty_pool()];
    for number in 1..=3 {
        resources.push(json!({"id": machine(number), "location": "eastus", "properties": {
            "networkProfile": {"networkInterfaces": [{"id": lone_interface(number), "properties": {"primary": true}}]}}}));
        resources.push(interface(
            &lone_interface(number),
            Some(&machine(number).to_uppercase()),
        ));
    }
    let stage = Stage::with(3, &resources).await;
    stage.taint(2, &[DRAINING]);
    stage
        .until("Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(5 * SECOND).await;
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    sleep(600 * SECOND).await;
    assert_eq!(stage.puts().len(), 2);
    assert_eq!(stage.sent("GET", "networkInterfaces").len(), 3, "each once an hour");
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_cannot_be_read_keeps_nobody_else_waiting_and_is_told() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(1), Some(&machine(1))));
    resources.push(interface(&lone_interface(2), Some(&machine(2))));
    let mut stage = Stage::set(3, &resources).await;
    let forbidden =
        json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed", "message": "m"}}}});
    stage.fault("GET", "node-1-nic", None, &forbidden);
    stage.lead(super::super::world::ENFORCE).await;
    stage.taint(1, &[DRAINING]);
    stage.taint(2, &[DRAINING]);
    stage
        .until("Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    assert!(stage.notes(FAILED, "node-2").await.is_empty());
    // Asked again now and then: once it can be read, it is done.
    sleep(300 * SECOND).await;
    assert!(stage.sent("GET", "node-1-nic").len() <= 7);
    let notes = stage.notes(FAILED, "node-1").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("node-1-nic") && notes[0].contains("Microsoft.Network/networkInterfaces/read"),
        "{notes:?}"
    );
    assert!(stage.notes(FAILED, "node-2").await.is_empty());
    stage.no_faults();
    stage
        .until("both Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 2)
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_is_slow_to_be_read_keeps_nobody_else_waiting() {
    let mut resources = vec![empty_pool_beside(&[("addresses", entries(1..=3, false))])];
    resources.extend([1, 2].map(|number| interface(&lone_interface(number), Some(&machine(number)))));
    let mut stage = Stage::set(3, &resources).await;
    stage.fault("GET", "node-1-nic", None, &json!({"stall": "100s"}));
    stage.lead(super::super::world::ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    let in_all = |stage: &Stage| stage.down().values().all(|down| down.len() == 1);
    let took = stage.until("Down in both pools", in_all).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert!(
        stage.notes(DOWN, "node-2").await.is_empty(),
        "the other interface may be its own, too"
    );
    // Once it is clear that it cannot be had, what there is is told.
    sleep(120 * SECOND).await;
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    assert!(
        stage.notes(FAILED, "node-2").await.is_empty(),
        "it has its entry in that pool"
    );
    assert_eq!(stage.puts().len(), 2);
    stage.no_faults();
    stage.taint(1, &[DRAINING]);
    stage
        .until("both Down", |stage| stage.down().values().all(|down| down.len() == 2))
        .await;
    stage.taint(1, &[]);
    stage.taint(2, &[]);
    stage.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_waits_for_interfaces_that_are_slow_to_be_read() {
    let mut resources = vec![empty_pool()];
    resources.extend([1, 2].map(|number| interface(&lone_interface(number), Some(&machine(number)))));
    let mut stage = Stage::with(3, &resources).await;
    stage.taint(2, &[DRAINING]);
    stage
        .until("Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(5 * SECOND).await;
    stage.stop().await;
    stage.fault("GET", "node-2-nic", None, &json!({"stall": "20s"}));
    let restored = stage.restore().await;
    assert_eq!((restored.given_back.len(), restored.left.len()), (1, 0), "{restored:?}");
    stage.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_a_node_is_left_alone() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(1), Some(&machine(1))));
    resources.push(interface(&lone_interface(8), Some(&machine(8))));
    resources.push(interface(&lone_interface(9), None));
    let stage = Stage::with(3, &resources).await;
    stage.taint(1, &[DRAINING]);
    stage
        .until("Down", |stage| stage.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(120 * SECOND).await;
    assert_eq!(stage.down()["kubernetes/kubernetes"].len(), 1);
    assert_eq!(stage.puts().len(), 1);
}
