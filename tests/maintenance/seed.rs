//! What the emulated Azure begins with: a pool of almost all nodes, one with a single node, which the guard keeps in service, and
//! one that cannot be written.

use headgate_azure_emulator::probed_load_balancer;
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

fn load_balancer(name: &str, pools: &[(&str, Vec<&str>)]) -> Value {
    let entry = |node: &&str| json!({"name": node, "properties": {"ipAddress": address(node)}});
    let pool = |(name, nodes): &(_, Vec<_>)| (*name, nodes.iter().map(entry).collect());
    probed_load_balancer(GROUP, name, &pools.iter().map(pool).collect::<Vec<_>>())
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
