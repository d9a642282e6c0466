//! What programs look for in the answer to `GET state` of the control API.

use serde_json::Value;

/// The pools of all load balancers.
pub fn pools_in(state: &Value) -> impl Iterator<Item = &Value> {
    let resources = state["resources"].as_array().into_iter().flatten();
    let pools = resources.filter_map(|resource| resource["properties"]["backendAddressPools"].as_array());
    pools.flatten()
}

/// The entries of a pool.
pub fn entries_of(pool: &Value) -> impl Iterator<Item = &Value> {
    let entries = pool["properties"]["loadBalancerBackendAddresses"].as_array();
    entries.into_iter().flatten()
}
