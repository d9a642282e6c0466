//! Pools as they were recorded, and as nobody should write them.

use serde_json::json;

use super::*;

fn pool(document: Value) -> Pool {
    let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";
    Pool::read(PoolId::parse(id).unwrap(), document, None).unwrap()
}

/// As recorded (specs azure-arm.md 1.3), with fields of every level that are not known here.
fn recorded() -> Pool {
    pool(json!({
        "name": "p", "id": "/…/p", "etag": "W/\"0e1d\"", "type": "Microsoft.Network/loadBalancers/backendAddressPools",
        "futureEnvelope": {"a": [1, null]},
        "properties": {
            "provisioningState": "Succeeded", "drainPeriodInSeconds": 30, "syncMode": "Automatic", "futurePool": 1.5,
            "virtualNetwork": {"id": "/…/net"}, "tunnelInterfaces": [{"port": 1}],
            "loadBalancingRules": [{"id": "/…/r"}], "outboundRules": [], "outboundRule": {"id": "/…/o"},
            "inboundNatRules": [], "backendIPConfigurations": [{"id": "/…/c"}],
            "loadBalancerBackendAddresses": [
                {"name": "node-1", "id": "/…/1", "etag": "W/\"0e1d\"", "type": "t", "futureAddress": true,
                 "properties": {"provisioningState": "Succeeded", "ipAddress": "10.0.0.1", "futureProperty": {"b": null},
                                "virtualNetwork": {"id": "/…/net"}, "inboundNatRulesPortMapping": []}},
                {"name": "nic-1", "etag": "x", "properties": {"adminState": "DOWN",
                 "networkInterfaceIPConfiguration": {"id": "/…/networkInterfaces/n/ipConfigurations/i"}}},
            ],
        },
    }))
}

#[test]
fn a_write_leaves_out_what_arm_writes_and_nothing_else() {
    assert_eq!(
        serde_json::to_value(recorded().put_body()).unwrap(),
        json!({
            "name": "p", "id": "/…/p", "futureEnvelope": {"a": [1, null]},
            "properties": {
                "drainPeriodInSeconds": 30, "syncMode": "Automatic", "futurePool": 1.5,
                "virtualNetwork": {"id": "/…/net"}, "tunnelInterfaces": [{"port": 1}],
                "loadBalancerBackendAddresses": [
                    {"name": "node-1", "id": "/…/1", "futureAddress": true,
                     "properties": {"ipAddress": "10.0.0.1", "futureProperty": {"b": null}, "virtualNetwork": {"id": "/…/net"}}},
                    {"name": "nic-1", "properties": {"adminState": "DOWN"}},
                ],
            },
        })
    );
}

#[test]
fn what_an_address_says() {
    let pool = recorded();
    let addresses: Vec<_> = pool.addresses().collect();
    assert_eq!(addresses[0].name(), Some("node-1"));
    assert_eq!(addresses[0].ip_address(), Some([10, 0, 0, 1].into()));
    assert_eq!(addresses[0].admin_state(), Some(AdminState::None));
    assert_eq!(addresses[1].admin_state(), Some(AdminState::Down));
    assert_eq!(
        addresses[1].network_interface_ip_configuration(),
        Some("/…/networkInterfaces/n/ipConfigurations/i")
    );
    assert_eq!(addresses[1].ip_address(), None);
    assert_eq!(pool.etag.as_ref().map(Etag::as_str), Some("W/\"0e1d\""));
}

#[test]
fn admin_states_are_set_in_place() {
    let mut pool = recorded();
    assert!(!pool.set_admin_state(0, AdminState::None), "absent is None");
    assert!(!pool.set_admin_state(1, AdminState::Down), "in any case");
    assert_eq!(pool, recorded());
    assert!(pool.set_admin_state(0, AdminState::Down));
    assert!(pool.set_admin_state(1, AdminState::None));
    let states: Vec<_> = pool.addresses().map(|address| address.admin_state().unwrap()).collect();
    assert_eq!(states, [AdminState::Down, AdminState::None]);
    assert!(!pool.set_admin_state(2, AdminState::Down), "there is no third");
}

#[test]
fn strange_pools_are_read_as_far_as_they_go_and_lose_nothing() {
    for document in [
        json!({}),
        json!({"properties": null}),
        json!({"properties": {"loadBalancerBackendAddresses": null}}),
        json!({"properties": {"loadBalancerBackendAddresses": {}}}),
        json!({"properties": {"loadBalancerBackendAddresses": [null, 1, "a", {}, {"properties": null}, {"name": 7},
            {"name": "a", "properties": {"ipAddress": "none", "adminState": 1}}]}}),
        json!({"properties": {"loadBalancerBackendAddresses": [{"name": "a", "properties": []}]}}),
    ] {
        let mut strange = pool(document.clone());
        assert_eq!(serde_json::to_value(strange.put_body()).unwrap(), document);
        assert!(strange.shows(&strange.clone()));
        let places = strange.addresses().count();
        for place in 0..places {
            strange.set_admin_state(place, AdminState::Down);
        }
        assert_eq!(strange.addresses().count(), places);
    }
    assert!(Pool::read(recorded().id, json!([]), None).is_err());
}

#[test]
fn what_a_read_shows_of_a_write() {
    let members = |members: &[(&str, &str, Option<&str>)]| {
        let addresses: Vec<_> = members
            .iter()
            .map(|(name, ip, state)| json!({"name": name, "properties": {"ipAddress": ip, "adminState": state}}))
            .collect();
        pool(json!({"properties": {"loadBalancerBackendAddresses": addresses}}))
    };
    let written = members(&[("a", "fd00::1", Some("Down")), ("b", "10.0.0.2", None)]);
    for (read, shown) in [
        (&[("a", "fd00::1", Some("Down")), ("b", "10.0.0.2", None)][..], true),
        // Another order, spelling, case.
        (
            &[("B", "10.0.0.2", Some("None")), ("A", "fd00:0::0001", Some("DOWN"))],
            true,
        ),
        (&[("a", "fd00::1", None), ("b", "10.0.0.2", None)], false),
        (&[("a", "fd00::1", Some("Down"))], false),
        (&[("a", "fd00::1", Some("Down")), ("b", "10.0.0.3", None)], false),
        (
            &[
                ("a", "fd00::1", Some("Down")),
                ("b", "10.0.0.2", None),
                ("c", "10.0.0.3", None),
            ],
            false,
        ),
        (
            &[
                ("a", "fd00::1", Some("Down")),
                ("b", "10.0.0.2", None),
                ("b", "10.0.0.2", None),
            ],
            false,
        ),
    ] {
        assert_eq!(members(read).shows(&written), shown, "{read:?}");
    }
}

#[test]
fn a_load_balancer_and_its_pools() {
    let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";
    let document = json!({"id": id, "etag": "W/\"1\"", "properties": {"provisioningState": "Updating",
        "backendAddressPools": [{"name": "p", "etag": "W/\"1\""}, {"name": "q", "properties": {"provisioningState": "Failed"}}, {}, null]}});
    let load_balancer = LoadBalancer::read(document, None).unwrap();
    assert_eq!(load_balancer.provisioning_state(), ProvisioningState::Busy);
    let pools = load_balancer.clone().take_pools();
    assert_eq!(pools.iter().map(|pool| pool.id.name()).collect::<Vec<_>>(), ["p", "q"]);
    assert_eq!(pools[1].etag, load_balancer.etag);
    assert_eq!(pools[1].provisioning_state(), ProvisioningState::Settled);
    assert!(LoadBalancer::read(json!({"id": "/x"}), None).is_err());
}

#[test]
fn admin_states_have_three_words() {
    for (text, state) in [
        ("None", Some(AdminState::None)),
        ("UP", Some(AdminState::Up)),
        ("down", Some(AdminState::Down)),
        ("Drain", None),
        ("", None),
    ] {
        assert_eq!(AdminState::parse(text), state, "{text}");
    }
}
