//! A load balancer as it was read, as the updater's input. Pure.
//!
//! The view does not say whether an entry without an address has properties, so such an entry counts as foreign here. The
//! document is what decides when the pool is written.

use tokio::time::Instant;

use crate::local_pools::EntryAddress;
use crate::local_pools::objects::{BackendPool, LoadBalancer, PoolEntry};
use crate::pool::{LoadBalancerView, NodeMatcher, PoolView};

/// The updater's input for a load balancer, from a read or list that was sent at `requested_at`.
#[must_use]
pub fn convert_load_balancer(view: &LoadBalancerView, requested_at: Instant) -> LoadBalancer {
    LoadBalancer {
        name: view.id.name().to_owned(),
        requested_at,
        pools: view.pools.iter().map(|pool| convert_pool(pool)).collect(),
    }
}

fn convert_pool(view: &PoolView) -> BackendPool {
    let entry = |entry: &crate::pool::PoolEntry| PoolEntry {
        // Shared with the view: there may be a million entries.
        name: entry.name.clone(),
        address: entry_address(entry),
    };
    BackendPool {
        name: view.id.name().to_owned(),
        entries: view.entries.iter().map(entry).collect(),
        rules: view.rules.iter().map(|rule| rule.name.clone()).collect(),
    }
}

/// What an entry stands for.
pub(super) fn entry_address(entry: &crate::pool::PoolEntry) -> EntryAddress {
    match &entry.matcher {
        NodeMatcher::Address(address) => EntryAddress::Ip(*address),
        NodeMatcher::Machine(_) | NodeMatcher::Interface(_) => EntryAddress::Missing,
        NodeMatcher::Name(_) | NodeMatcher::Unmatched => EntryAddress::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::{LoadBalancer as Document, LoadBalancerId};
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_interfaces_and_rules_are_kept() {
        let id = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/LB1";
        let interface =
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic/ipConfigurations/c";
        let document = json!({"id": id, "properties": {
            "backendAddressPools": [{"name": "Default-Web", "properties": {"loadBalancerBackendAddresses": [
                {"name": "n1", "properties": {"ipAddress": "::ffff:10.0.0.1"}},
                {"name": "n2", "properties": {"networkInterfaceIPConfiguration": {"id": interface}}},
                {"name": "n3"}]}}],
            "loadBalancingRules": [{"name": "rule", "properties": {
                "backendAddressPool": {"id": format!("{id}/backendAddressPools/default-web")}}}]}});
        let view = LoadBalancerView::new(&Document {
            id: LoadBalancerId::parse(id).unwrap(),
            etag: None,
            document,
        });
        let found = convert_load_balancer(&view, Instant::now());
        let [pool] = found.pools.as_slice() else {
            panic!("{found:?}")
        };
        assert_eq!((found.name.as_str(), pool.name.as_str()), ("LB1", "Default-Web"));
        assert_eq!(pool.rules, ["rule"]);
        let addresses: Vec<_> = pool.entries.iter().map(|entry| entry.address).collect();
        let address = EntryAddress::Ip("10.0.0.1".parse().unwrap());
        assert_eq!(addresses, [address, EntryAddress::Missing, EntryAddress::Unreadable]);
    }
}
