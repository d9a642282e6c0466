//! What separates the members of a pool as it was read from those it is to have.
//!
//! Invariants: an entry that is no Node's is foreign and stays; an entry that stays is not touched; a pool with an entry
//! that has no IP address is rejected as a whole, because its members are written elsewhere.
//!
//! Source: cloud-provider-azure `isNICPool`, `RemoveNodeIPAddressesFromBackendPool`, `AddNodeIPAddressesToBackendPool`.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::local_pools::nodes::NodeIndex;
use crate::local_pools::operation::{DesiredMember, DesiredMembers};
use crate::pool::{NodeMatcher, PoolEntry};

/// What an entry of a pool stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAddress {
    /// The address in `properties.ipAddress`.
    Ip(IpAddr),
    /// The entry has no `properties`, or its `ipAddress` is not an address. It is foreign.
    Unreadable,
    /// `properties` without `ipAddress`: a network interface, or a frontend of another load balancer.
    Missing,
}

/// An entry of a pool: its name and what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The field `name` of the entry; `None` if it has none.
    pub name: Option<&'a str>,
    /// What it stands for.
    pub address: EntryAddress,
}

impl<'a> Entry<'a> {
    /// The entry as it was read. The view does not say whether an entry without an address has properties, so such an entry counts as
    /// foreign here. The document is what decides when the pool is written.
    pub(crate) fn of(entry: &'a PoolEntry) -> Self {
        let address = match &entry.matcher {
            NodeMatcher::Address(address) => EntryAddress::Ip(*address),
            NodeMatcher::Machine(_) | NodeMatcher::Interface(_) => EntryAddress::Missing,
            NodeMatcher::Name(_) | NodeMatcher::Unmatched => EntryAddress::Unreadable,
        };
        Self {
            name: entry.name.as_deref(),
            address,
        }
    }
}

/// Why the members of a pool cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberRejection {
    /// An entry has no IP address.
    #[error("the backend pool has entries without an IP address; only pools of IP addresses are updated")]
    NetworkInterfaces,
    /// The pool has no virtual network and the settings name none: ARM rejects such a pool.
    #[error("the backend pool has no virtualNetwork; set vnetName in azure.json")]
    NoVirtualNetwork,
    /// The document has another shape than a pool's.
    #[error("the backend pool's {0} has an unexpected type")]
    Malformed(&'static str),
}

/// What is to be added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberDifference {
    /// The places of entries to remove, in their order.
    pub remove: Vec<usize>,
    /// Members without an entry, in the order of their addresses.
    pub add: Vec<DesiredMember>,
}

impl MemberDifference {
    /// Whether the pool has exactly the desired members.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }
}

/// Compares the entries of a pool with the members that it is to have.
///
/// # Errors
/// The pool has entries without an IP address.
pub fn compare<'a>(
    entries: impl IntoIterator<Item = Entry<'a>>,
    desired: &DesiredMembers,
    nodes: &NodeIndex,
) -> Result<MemberDifference, MemberRejection> {
    let mut present = HashSet::new();
    let mut remove = Vec::new();
    for (place, entry) in entries.into_iter().enumerate() {
        let address = match entry.address {
            EntryAddress::Ip(address) => address.to_canonical(),
            EntryAddress::Unreadable => continue,
            EntryAddress::Missing => return Err(MemberRejection::NetworkInterfaces),
        };
        let stays = if desired.contains(address) {
            present.insert(address) || !nodes.owns_entry(entry.name, address)
        } else {
            !nodes.owns_entry(entry.name, address)
        };
        if !stays {
            remove.push(place);
        }
    }
    let members = desired.as_slice().iter();
    let add = members
        .filter(|member| !member.is_leaving && !present.contains(&member.address))
        .cloned()
        .collect();
    Ok(MemberDifference { remove, add })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::local_pools::fixtures::{members, nodes, observation};

    fn found(entries: &[(&str, &str)], wanted: &[&str]) -> (Vec<usize>, Vec<String>) {
        let entries = entries.iter().map(|(name, address)| Entry {
            name: (!name.is_empty()).then_some(*name),
            address: address.parse().map_or(EntryAddress::Unreadable, EntryAddress::Ip),
        });
        let difference = compare(entries, &members(wanted), &nodes(4)).unwrap();
        let add = difference.add.iter().map(|member| member.address.to_string());
        (difference.remove, add.collect())
    }

    #[test]
    fn only_entries_of_nodes_are_removed() {
        for (entries, wanted, remove, add) in [
            (&[][..], &[][..], vec![], vec![]),
            (&[], &["10.0.0.1"], vec![], vec!["10.0.0.1"]),
            (&[("n1", "10.0.0.1")], &["10.0.0.1"], vec![], vec![]),
            (&[("n1", "10.0.0.1")], &[], vec![0], vec![]),
            (
                &[("n1", "10.0.0.1"), ("n2", "10.0.0.2")],
                &["10.0.0.2", "10.0.0.3"],
                vec![0],
                vec!["10.0.0.3"],
            ),
            // Foreign: an address of no Node, and an entry that cannot be read.
            (&[("vm", "10.9.9.9"), ("odd", "")], &[], vec![], vec![]),
            // Named for a Node, with an address that it does not have any more.
            (&[("N1", "10.9.9.9")], &["10.0.0.1"], vec![0], vec!["10.0.0.1"]),
            // One address twice, in two spellings.
            (
                &[("n1", "10.0.0.1"), ("", "::ffff:10.0.0.1")],
                &["10.0.0.1"],
                vec![1],
                vec![],
            ),
            (
                &[("n1", "10.0.0.1"), ("n1-10-0-0-1-2", "10.0.0.1")],
                &["10.0.0.1"],
                vec![1],
                vec![],
            ),
            // Foreign, although a Node claims the address: neither removed nor added again.
            (&[("vm", "10.0.0.1")], &[], vec![], vec![]),
            (&[("vm", "10.0.0.1")], &["10.0.0.1"], vec![], vec![]),
            (&[("n1", "10.0.0.1"), ("vm", "10.0.0.1")], &["10.0.0.1"], vec![], vec![]),
        ] {
            let add: Vec<String> = add.into_iter().map(str::to_owned).collect();
            assert_eq!(found(entries, wanted), (remove, add), "{entries:?} {wanted:?}");
        }
    }

    #[test]
    fn a_pool_of_network_interfaces_is_rejected() {
        let entries = [
            Entry {
                name: Some("n1"),
                address: EntryAddress::Ip("10.0.0.1".parse().unwrap()),
            },
            Entry {
                name: Some("nic"),
                address: EntryAddress::Missing,
            },
        ];
        let result = compare(entries, &members(&["10.0.0.1"]), &nodes(4));
        assert_eq!(result, Err(MemberRejection::NetworkInterfaces));
    }

    #[test]
    fn entries_stand_for_addresses_interfaces_or_nothing() {
        let id =
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic/ipConfigurations/c";
        let entries = json!([{"name": "n1", "properties": {"ipAddress": "::ffff:10.0.0.1"}},
            {"name": "n2", "properties": {"networkInterfaceIPConfiguration": {"id": id}}}, {"name": "n3"}]);
        let read = observation("lb", &[("default-web".to_owned(), entries, Vec::new())]);
        let addresses = read.view.pools[0].entries.iter().map(|entry| Entry::of(entry).address);
        let address = EntryAddress::Ip("10.0.0.1".parse().unwrap());
        assert!(addresses.eq([address, EntryAddress::Missing, EntryAddress::Unreadable]));
    }
}
