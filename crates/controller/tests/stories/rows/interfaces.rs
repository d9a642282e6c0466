//! "Works with both NIC- and IP-based backend pools".

use headgate_azure::{RateLimit, RateLimits};
use headgate_controller::admin_state::GuardSettings;
use headgate_test_kubernetes::assert_contains;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::marker::marker;
use super::super::world::{ENFORCE, GROUP, arm_error, entries, load_balancer};
use super::cluster::{DOWN, DRAINING, FAILED, ROLE_MISSING, SECOND, TestCluster};

fn pool() -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/kubernetes/backendAddressPools/kubernetes")
}

/// A network interface in the pool.
fn interface(id: &str, machine: Option<&str>) -> Value {
    let mut resource = json!({"id": id, "location": "eastus", "properties": {
        "ipConfigurations": [{"name": "ipconfig1", "properties": {"primary": true, "privateIPAddress": "10.1.0.4",
            "loadBalancerBackendAddressPools": [{"id": pool()}]}}]}});
    if let Some(machine) = machine {
        resource["properties"]["virtualMachine"] = json!({"id": machine});
    }
    resource
}

/// A machine of a scale set.
fn instance(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/aks-pool/virtualMachines/{number}")
}

/// A machine that is not in a scale set.
fn machine(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/virtualMachines/node-{number}")
}

fn lone_interface(number: usize) -> String {
    format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/node-{number}-nic")
}

fn empty_pool() -> Value {
    empty_pool_beside(&[])
}

/// A load balancer with an empty pool and these pools.
fn empty_pool_beside(others: &[(&str, Value)]) -> Value {
    let pools = [&[("kubernetes", json!([]))], others].concat();
    let mut document = load_balancer("kubernetes", &pools);
    let pool = &mut document["properties"]["backendAddressPools"][0]["properties"];
    pool.as_object_mut().unwrap().remove("loadBalancerBackendAddresses");
    document
}

#[tokio::test(start_paused = true)]
async fn scale_set_interfaces_need_no_lookup() {
    // cloud-provider-azure has the resource group in lower case in the id, as Go has it.
    let instance =
        |group: &str, number| instance(number).replace(GROUP, &format!("/subscriptions/sub/resourceGroups/{group}"));
    let mut resources = vec![empty_pool()];
    resources.extend(
        (1..=3).map(|number| interface(&format!("{}/networkInterfaces/nic", instance("RG-ÜBUNG", number)), None)),
    );
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    for number in 1..=3 {
        // The id in another case, and no address.
        cluster.node(number, |node| {
            node["spec"]["providerID"] = json!(format!(
                "azure://{}",
                instance("rg-übung", number).replace("virtualMachineScaleSets", "virtualmachinescalesets")
            ));
            node["status"]["addresses"] = json!([]);
        });
    }
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    cluster
        .until("Down", |cluster| cluster.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(5 * SECOND).await;
    assert!(cluster.sent("GET", "networkInterfaces").is_empty(), "no lookup");
    let puts = cluster.puts();
    assert_eq!(puts.len(), 1);
    let entries = puts[0].body["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap();
    assert_eq!(entries.len(), 3, "all members, or ARM would refuse");
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_interface_in_pools_of_two_load_balancers_is_looked_up_once() {
    let mut internal = load_balancer("kubernetes-internal", &[("kubernetes", json!([]))]);
    let pool_of_internal = &mut internal["properties"]["backendAddressPools"][0]["properties"];
    pool_of_internal
        .as_object_mut()
        .unwrap()
        .remove("loadBalancerBackendAddresses");
    let mut resources = vec![empty_pool(), internal];
    for number in 1..=3 {
        resources.push(json!({"id": machine(number), "location": "eastus", "properties": {
            "networkProfile": {"networkInterfaces": [{"id": lone_interface(number), "properties": {"primary": true}}]}}}));
        let mut interface = interface(&lone_interface(number), Some(&machine(number).to_uppercase()));
        let pools =
            &mut interface["properties"]["ipConfigurations"][0]["properties"]["loadBalancerBackendAddressPools"];
        let other = json!({"id": pool().replace("loadBalancers/kubernetes/", "loadBalancers/kubernetes-internal/")});
        pools.as_array_mut().unwrap().push(other);
        resources.push(interface);
    }
    let cluster = TestCluster::with(3, &resources).await;
    cluster.taint(2, &[DRAINING]);
    cluster
        .until("Down in both", |cluster| {
            cluster.down().values().filter(|down| down.len() == 1).count() == 2
        })
        .await;
    sleep(5 * SECOND).await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    sleep(600 * SECOND).await;
    assert_eq!(cluster.puts().len(), 4);
    assert_eq!(cluster.sent("GET", "networkInterfaces").len(), 3, "each once an hour");
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn unreadable_interface_delays_no_other_node_and_is_reported() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(1), Some(&machine(1))));
    resources.push(interface(&lone_interface(2), Some(&machine(2))));
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    let forbidden = arm_error(403, "AuthorizationFailed");
    // No entry but the node's would serve.
    cluster.world.guard = GuardSettings::DISABLED;
    cluster.fault("GET", "node-1-nic", None, &forbidden);
    cluster.lead(ENFORCE).await;
    cluster.taint(1, &[DRAINING]);
    cluster.taint(2, &[DRAINING]);
    cluster
        .until("Down", |cluster| cluster.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    for reason in [FAILED, ROLE_MISSING] {
        assert!(cluster.notes(reason, "node-2").await.is_empty());
    }
    // The lookup is repeated; once it succeeds, the entry is written.
    sleep(300 * SECOND).await;
    assert!(cluster.sent("GET", "node-1-nic").len() <= 7);
    let notes = cluster.notes(ROLE_MISSING, "node-1").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_contains!(notes[0], "node-1-nic", "Microsoft.Network/networkInterfaces/read");
    assert!(cluster.notes(FAILED, "node-2").await.is_empty());
    cluster.clear_faults();
    cluster
        .until("both Down", |cluster| {
            cluster.down()["kubernetes/kubernetes"].len() == 2
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn interface_that_gets_its_machine_after_its_lookup_does_not_leave_the_node_out() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(1), None));
    resources.push(interface(&lone_interface(9), None));
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    cluster.world.guard = GuardSettings::DISABLED;
    cluster.world.marker = true;
    cluster.lead(ENFORCE).await;
    sleep(5 * SECOND).await;
    let with_machine = interface(&lone_interface(1), Some(&machine(1)));
    cluster.other("PUT", &lone_interface(1), &with_machine).await;
    cluster.taint(1, &[DRAINING]);
    let began = Instant::now();
    while marker(&cluster, 1)["status"] != "True" {
        sleep(SECOND / 10).await;
        assert!(began.elapsed() < 30 * SECOND);
    }
    assert_eq!(cluster.down()["kubernetes/kubernetes"].len(), 1);
    // The other one stays without a machine, and costs a moment.
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lookup_that_fails_for_a_moment_is_repeated_with_the_next_list() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(2), Some(&machine(2))));
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    cluster.world.guard = GuardSettings::DISABLED;
    let throttled = json!({"answer": {"status": 429, "retryAfter": 5}});
    cluster.fault("GET", "node-2-nic", Some(1), &throttled);
    cluster.taint(2, &[DRAINING]);
    cluster.lead(ENFORCE).await;
    let is_down = |cluster: &TestCluster| cluster.down()["kubernetes/kubernetes"].len() == 1;
    let took = cluster.until("Down", is_down).await;
    assert!(took < 25 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_interface_lookup_delays_no_other_node() {
    let mut resources = vec![empty_pool_beside(&[("addresses", entries(1..=3, false))])];
    resources.extend([1, 2].map(|number| interface(&lone_interface(number), Some(&machine(number)))));
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    // No entry but the node's would serve.
    cluster.world.guard = GuardSettings::DISABLED;
    cluster.fault("GET", "node-1-nic", None, &json!({"stall": "100s"}));
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    let in_all = |cluster: &TestCluster| cluster.down().values().all(|down| down.len() == 1);
    let took = cluster.until("Down in both pools", in_all).await;
    assert!(took < 5 * SECOND, "{took:?}");
    sleep(5 * SECOND).await;
    assert!(
        cluster.notes(DOWN, "node-2").await.is_empty(),
        "the other interface may be the node's, too"
    );
    // Once the lookup has failed, the event is recorded.
    sleep(120 * SECOND).await;
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    assert!(
        cluster.notes(FAILED, "node-2").await.is_empty(),
        "the node has an entry in that pool"
    );
    assert_eq!(cluster.puts().len(), 2);
    cluster.clear_faults();
    cluster.taint(1, &[DRAINING]);
    cluster
        .until("both Down", |cluster| {
            cluster.down().values().all(|down| down.len() == 2)
        })
        .await;
    cluster.taint(1, &[]);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn interface_lookups_leave_reads_for_a_down() {
    let slow = RateLimit { qps: 1.0, bucket: 5 };
    let fast = RateLimit {
        qps: 100.0,
        bucket: 100,
    };
    let of_settings = RateLimits {
        read: slow,
        write: fast,
    };
    let unavailable = json!({"answer": {"status": 503, "body": {}}});
    let forbidden = json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed"}}}});
    let stalled = json!({"stall": "10m"});
    // ARM's own limits are 250 reads and 25 a second, and the emulator's pages have 100 items.
    for (interfaces, rate_limits, fault, sent) in [
        (350, None, None, Some((4, 0))),
        (40, Some(of_settings), None, Some((1, 0))),
        // Without the list each is read by itself.
        (150, None, Some(("networkInterfaces$", &forbidden)), Some((1, 150))),
        (150, None, Some(("networkInterfaces$", &stalled)), Some((1, 150))),
        // None is read, and each attempt counts.
        (40, Some(of_settings), Some(("networkInterfaces", &unavailable)), None),
    ] {
        let mut resources = vec![empty_pool_beside(&[("addresses", entries(1..=3, false))])];
        let numbers = (4..3 + interfaces).chain([2]);
        resources.extend(numbers.map(|number| interface(&lone_interface(number), Some(&machine(number)))));
        let mut cluster = TestCluster::without_leader(3, &resources).await;
        cluster.world.rate_limits = rate_limits;
        // No entry but the node's would serve.
        cluster.world.guard = GuardSettings::DISABLED;
        if let Some((path, fault)) = fault {
            cluster.fault("GET", path, None, fault);
        }
        // Each leader begins without what the one before knew.
        for term in 1..=2 {
            cluster.lead(ENFORCE).await;
            if fault.is_some() {
                sleep(40 * SECOND).await;
            }
            cluster.taint(2, &[DRAINING]);
            let is_down = |cluster: &TestCluster| {
                let down = cluster.down();
                let is_down = |pool: &str| down[pool].len() == 1;
                is_down("kubernetes/addresses") && (sent.is_none() || is_down("kubernetes/kubernetes"))
            };
            let took = cluster.until("Down beside the interfaces", is_down).await;
            assert!(took < 5 * SECOND, "{interfaces} interfaces: {took:?}");
            sleep(20 * SECOND).await;
            if let Some((pages, lookups)) = sent {
                let sent = ["networkInterfaces$", "networkInterfaces/"].map(|path| cluster.sent("GET", path).len());
                assert_eq!(sent, [term * pages, term * lookups], "{fault:?}");
            }
            cluster.taint(2, &[]);
            cluster.settle(&[]).await;
            cluster.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn interfaces_without_machines_are_looked_up_once_for_each_list() {
    let slow = RateLimit { qps: 2.0, bucket: 5 };
    let mut resources = vec![empty_pool()];
    resources.extend((4..14).map(|number| interface(&lone_interface(number), None)));
    let mut cluster = TestCluster::without_leader(3, &resources).await;
    cluster.world.rate_limits = Some(RateLimits {
        read: slow,
        write: slow,
    });
    cluster.lead(ENFORCE).await;
    sleep(60 * SECOND).await;
    let lookups = |cluster: &TestCluster| cluster.sent("GET", "networkInterfaces").len();
    assert_eq!(lookups(&cluster), 10, "by the first list");
    // Lists come more often now.
    cluster.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    let (lists, lookups) = (cluster.sent("GET", "loadBalancers$").len(), lookups(&cluster));
    assert!(
        lists >= 4 && lookups > 10 && lookups <= 10 * lists,
        "{lookups} for {lists} lists"
    );
}

/// A cluster without a leader, in which the interface of a node is `Down`.
async fn stopped_with_a_down() -> TestCluster {
    let mut resources = vec![empty_pool()];
    resources.extend([1, 2].map(|number| interface(&lone_interface(number), Some(&machine(number)))));
    let mut cluster = TestCluster::with(3, &resources).await;
    cluster.taint(2, &[DRAINING]);
    cluster
        .until("Down", |cluster| cluster.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(5 * SECOND).await;
    cluster.stop().await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn restore_waits_for_slow_interface_lookups() {
    let cluster = stopped_with_a_down().await;
    cluster.fault("GET", "node-2-nic", None, &json!({"stall": "20s"}));
    let restored = cluster.restore().await;
    assert_eq!(
        (restored.restored.len(), restored.not_restored.len()),
        (1, 0),
        "{restored:?}"
    );
    cluster.settle(&[]).await;
}

/// `None` for a fault that lasts: it is reported, and what is `Down` is not called restored.
#[tokio::test(start_paused = true)]
async fn restore_leaves_no_entry_unmentioned_whose_interface_cannot_be_read() {
    let forbidden = arm_error(403, "AuthorizationFailed");
    let unavailable = json!({"answer": {"status": 503}});
    for (fault, times) in [(&forbidden, None), (&unavailable, None), (&unavailable, Some(4))] {
        let cluster = stopped_with_a_down().await;
        cluster.fault("GET", "node-2-nic", times, fault);
        let start = Instant::now();
        let outcome = cluster.restore().await;
        let counts = (outcome.restored.len(), outcome.not_restored.len());
        let restored = usize::from(times.is_some());
        assert_eq!(counts, (restored, 1 - restored), "{fault}: {outcome:?}");
        for why in outcome.not_restored.values() {
            assert!(why.contains("the network interface node-2-nic"), "{why}");
        }
        if fault == &forbidden {
            assert!(
                start.elapsed() < 30 * SECOND,
                "a right that is missing is not waited for"
            );
        }
        if restored == 1 {
            cluster.settle(&[]).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn machine_without_a_node_is_left_alone() {
    let mut resources = vec![empty_pool()];
    resources.push(interface(&lone_interface(1), Some(&machine(1))));
    resources.push(interface(&lone_interface(8), Some(&machine(8))));
    resources.push(interface(&lone_interface(9), None));
    // No entry but the node's would serve.
    let cluster = TestCluster::configured(3, &resources, |world| world.guard = GuardSettings::DISABLED).await;
    cluster.taint(1, &[DRAINING]);
    cluster
        .until("Down", |cluster| cluster.down()["kubernetes/kubernetes"].len() == 1)
        .await;
    sleep(120 * SECOND).await;
    assert_eq!(cluster.down()["kubernetes/kubernetes"].len(), 1);
    assert_eq!(cluster.puts().len(), 1);
}
