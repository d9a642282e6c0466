//! What the emulated Azure begins with: a pool of almost all nodes, one with a single node, which the guard keeps in service, and
//! one that cannot be written.

use serde_json::{Value, json};

use crate::rows::{GUARDED, ROWS, STUBBORN};

pub(crate) const TENANT: &str = "7e4a0000-0000-4000-8000-000000000001";
pub(crate) const APPLICATION: &str = "c11e0000-0000-4000-8000-000000000002";
pub(crate) const SECRET: &str = "a secret";
const GROUP: &str = "/subscriptions/sub/resourceGroups/cluster";

/// All nodes, of all rows.
pub(crate) fn nodes() -> impl Iterator<Item = &'static str> {
    ROWS.iter().flat_map(|row| row.nodes.iter().copied())
}

/// The address of a node.
pub(crate) fn address(node: &str) -> String {
    let number = nodes().position(|name| name == node).unwrap();
    format!("10.0.{}.{}", number / 200, number % 200 + 1)
}

/// The id of a node's virtual machine, in its `providerID`.
pub(crate) fn provider_id(node: &str) -> String {
    format!("azure://{GROUP}/providers/Microsoft.Compute/virtualMachines/{node}")
}

fn load_balancer_id(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}")
}

fn load_balancer(name: &str, pools: &[(&str, Vec<&str>)]) -> Value {
    let id = load_balancer_id(name);
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let entry = |node: &&str| json!({"name": node, "properties": {"ipAddress": address(node)}});
    let pool = |(name, nodes): &(&str, Vec<&str>)| {
        let entries: Vec<_> = nodes.iter().map(entry).collect();
        json!({"name": name, "properties": {"loadBalancerBackendAddresses": entries}})
    };
    let rule = |(index, (name, _)): (usize, &(&str, Vec<&str>))| {
        json!({"name": name, "properties": {
            "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
            "backendAddressPool": inside("backendAddressPools", name), "probe": inside("probes", "probe"),
            "protocol": "Tcp", "frontendPort": 80 + index, "backendPort": 80 + index}})
    };
    json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
        "frontendIPConfigurations": [{"name": "front", "properties": {"privateIPAddress": "10.9.9.9"}}],
        "backendAddressPools": pools.iter().map(pool).collect::<Vec<_>>(),
        "loadBalancingRules": pools.iter().enumerate().map(rule).collect::<Vec<_>>(),
        "probes": [{"name": "probe", "properties": {"protocol": "Http", "port": 10456, "requestPath": "/healthz",
            "intervalInSeconds": 5}}]}})
}

/// The emulator's seed.
pub(crate) fn seed() -> Value {
    let others = nodes().filter(|node| ![GUARDED, STUBBORN].contains(node)).collect();
    json!({
        "identity": {"accounts": [{"tenantId": TENANT, "clientId": APPLICATION, "clientSecret": SECRET}]},
        "resources": [
            load_balancer("kubernetes", &[("kubernetes", others), ("single", vec![GUARDED])]),
            load_balancer("kubernetes-internal", &[("stubborn", vec![STUBBORN, "in-service"])]),
        ],
    })
}

/// A fault: Azure refuses each write of the pool `stubborn`.
pub(crate) fn fault() -> Value {
    json!({"match": {"method": "PUT", "path": "/stubborn$"}, "action": {"answer": {"status": 409}}})
}
