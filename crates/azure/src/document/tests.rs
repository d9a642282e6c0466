//! Pools as recorded from Azure, and malformed ones.

use serde_json::json;

use super::*;

fn pool(document: Value) -> Pool {
    let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";
    Pool::from_document(PoolId::parse(id).unwrap(), document, None).unwrap()
}

/// A recorded pool, with unknown fields added at every level.
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
fn put_body_omits_only_read_only_fields() {
    let expected = json!({
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
    });
    assert_eq!(serde_json::to_value(recorded().put_body()).unwrap(), expected);
}

#[test]
fn fields_of_addresses() {
    let pool = recorded();
    let addresses: Vec<_> = pool.addresses().collect();
    assert_eq!(addresses[0].name(), Some("node-1"));
    assert_eq!(addresses[0].ip_address(), Some([10, 0, 0, 1].into()));
    assert_eq!(addresses[0].admin_state(), Some(AdminState::None));
    assert_eq!(addresses[1].admin_state(), Some(AdminState::Down));
    let configuration = addresses[1].network_interface_ip_configuration();
    assert_eq!(configuration, Some("/…/networkInterfaces/n/ipConfigurations/i"));
    assert_eq!(addresses[1].ip_address(), None);
    assert_eq!(pool.etag.as_ref().map(Etag::as_str), Some("W/\"0e1d\""));
}

#[test]
fn admin_states_are_set_in_place() {
    let mut pool = recorded();
    assert!(!pool.set_admin_state(0, AdminState::None), "absent is None");
    assert!(!pool.set_admin_state(1, AdminState::Down), "the case does not matter");
    assert_eq!(pool, recorded());
    assert!(pool.set_admin_state(0, AdminState::Down));
    assert!(pool.set_admin_state(1, AdminState::None));
    let states: Vec<_> = pool.addresses().map(|address| address.admin_state().unwrap()).collect();
    assert_eq!(states, [AdminState::Down, AdminState::None]);
    assert!(!pool.set_admin_state(2, AdminState::Down), "there is no third entry");
}

#[test]
fn malformed_pools_are_kept_as_read() {
    for document in [
        json!({}),
        json!({"properties": null}),
        json!({"properties": {"loadBalancerBackendAddresses": null}}),
        json!({"properties": {"loadBalancerBackendAddresses": {}}}),
        json!({"properties": {"loadBalancerBackendAddresses": [null, 1, "a", {}, {"properties": null}, {"name": 7},
            {"name": "a", "properties": {"ipAddress": "none", "adminState": 1}}]}}),
        json!({"properties": {"loadBalancerBackendAddresses": [{"name": "a", "properties": []}]}}),
    ] {
        let mut pool = pool(document.clone());
        assert_eq!(serde_json::to_value(pool.put_body()).unwrap(), document);
        let count = pool.addresses().count();
        for index in 0..count {
            pool.set_admin_state(index, AdminState::Down);
        }
        assert_eq!(pool.addresses().count(), count);
    }
    assert!(Pool::from_document(recorded().id, json!([]), None).is_err());
}

#[test]
fn load_balancers_and_their_pools() {
    let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";
    let document = json!({"id": id, "etag": "W/\"1\"", "properties": {"provisioningState": "Updating",
        "backendAddressPools": [{"name": "p", "etag": "W/\"1\""}, {"name": "q", "properties": {"provisioningState": "Failed"}}, {}, null]}});
    let load_balancer = LoadBalancerSummary::from_document(&document, |_| ()).unwrap();
    assert_eq!(load_balancer.provisioning_state, ProvisioningState::Busy);
    let pools = load_balancer.pools;
    assert_eq!(pools.iter().map(|pool| pool.id.name()).collect::<Vec<_>>(), ["p", "q"]);
    assert_eq!(pools[1].etag, load_balancer.etag);
    assert_eq!(pools[1].provisioning_state, ProvisioningState::Settled);
    assert!(LoadBalancerSummary::from_document(&json!({"id": "/x"}), |_| ()).is_err());
}

#[test]
fn entry_that_is_malformed_has_no_admin_state() {
    for (entry, expected) in [
        (json!({}), Some(AdminState::None)),
        (json!({"properties": null}), Some(AdminState::None)),
        (json!({"properties": {"adminState": null}}), Some(AdminState::None)),
        (json!({"properties": {"adminState": 1}}), None),
        (json!({"properties": "x"}), None),
        (json!("x"), None),
        (json!(null), None),
    ] {
        let pool = pool(json!({"properties": {"loadBalancerBackendAddresses": [entry]}}));
        assert_eq!(pool.addresses().next().unwrap().admin_state(), expected, "{entry}");
    }
}

#[test]
fn admin_states_are_parsed_in_any_case() {
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
