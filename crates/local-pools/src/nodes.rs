//! The cluster's Nodes, found by name and by address.
//!
//! Invariants: an address that two Nodes have belongs to the younger; an address that no Node has any more is
//! remembered for a while, so that the pool entry of a deleted Node is known to be a Node's. Everything else in a pool is
//! foreign and stays.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::objects::Node;

/// The most addresses of former Nodes that are remembered; the oldest is forgotten first. cloud-controller-manager removes
/// such entries itself, so a forgotten one is not lost.
const MAX_FORMER_ADDRESSES: usize = 10_000;

/// All Nodes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIndex {
    by_name: HashMap<Arc<str>, Node>,
    /// The names of the Nodes with this address; mostly one.
    by_address: HashMap<IpAddr, Vec<Arc<str>>>,
    /// The addresses that no Node has any more, each with its place in `former_order`.
    former: HashMap<IpAddr, u64>,
    /// `former`, in the order in which they were left.
    former_order: BTreeMap<u64, IpAddr>,
}

impl NodeIndex {
    /// Adds or replaces a Node. Returns whether anything about it changed.
    pub fn apply(&mut self, mut node: Node) -> bool {
        for address in &mut node.internal_addresses {
            *address = address.to_canonical();
        }
        let name: Arc<str> = node.name.to_ascii_lowercase().into();
        if self.by_name.get(&name).is_some_and(|known| *known == node) {
            return false;
        }
        self.remove(&name);
        for address in &node.internal_addresses {
            if let Some(place) = self.former.remove(address) {
                self.former_order.remove(&place);
            }
            let names = self.by_address.entry(*address).or_default();
            if !names.contains(&name) {
                names.push(Arc::clone(&name));
            }
        }
        self.by_name.insert(name, node);
        true
    }

    /// Removes a Node. Returns whether it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let Some(node) = self.by_name.remove(name.as_str()) else {
            return false;
        };
        for address in node.internal_addresses {
            if let Some(names) = self.by_address.get_mut(&address) {
                names.retain(|known| **known != *name);
                if names.is_empty() {
                    self.by_address.remove(&address);
                    self.remember(address);
                }
            }
        }
        true
    }

    fn remember(&mut self, address: IpAddr) {
        let place = self.former_order.last_key_value().map_or(0, |(last, _)| last + 1);
        self.former.insert(address, place);
        self.former_order.insert(place, address);
        if self.former_order.len() > MAX_FORMER_ADDRESSES
            && let Some((_, oldest)) = self.former_order.pop_first()
        {
            self.former.remove(&oldest);
        }
    }

    /// The Node of this name, in any case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.key(name).map(|(_, node)| node)
    }

    /// The Node of this name and the lower-case name itself, which can be shared.
    pub(crate) fn key(&self, name: &str) -> Option<(&Arc<str>, &Node)> {
        if let Some(found) = self.by_name.get_key_value(name) {
            return Some(found);
        }
        self.by_name.get_key_value(name.to_ascii_lowercase().as_str())
    }

    /// Whether a pool entry is a Node's and not foreign: its address is or was a Node's, or it is named for a Node.
    #[must_use]
    pub fn owns_entry(&self, name: Option<&str>, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.by_address.contains_key(&address)
            || self.former.contains_key(&address)
            || name.is_some_and(|name| self.key(name).is_some())
    }

    /// The number of Nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there are no Nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The names of all Nodes, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn node(name: &str, created: i64, addresses: &[&str]) -> Node {
        Node {
            name: name.into(),
            created: Timestamp::from_second(created).unwrap(),
            internal_addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            excluded_by: None,
            is_deleting: false,
            is_draining: false,
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_known_while_one_of_its_nodes_exists() {
        let mut index = NodeIndex::default();
        assert!(index.apply(node("new", 2, &["10.0.0.1"])));
        assert!(index.apply(node("old", 1, &["10.0.0.1"])));
        assert!(!index.apply(node("old", 1, &["10.0.0.1"])), "nothing changed");
        assert!(index.remove("NEW") && !index.remove("new"));
        assert!(index.get("new").is_none());
        assert_eq!(index.get("OLD").unwrap().name, "old");
        assert!(index.owns_entry(None, ip("10.0.0.1")));
    }

    #[test]
    fn entries_of_present_and_former_nodes_are_known() {
        let mut index = NodeIndex::default();
        index.apply(node("n1", 1, &["10.0.0.1", "::ffff:10.0.0.9"]));
        index.apply(node("n2", 1, &["10.0.0.2"]));
        index.remove("n2");
        index.apply(node("n1", 1, &["10.0.0.3"]));
        for (name, address, is_known) in [
            (None, "10.0.0.3", true),
            (None, "10.0.0.1", true),
            (None, "10.0.0.9", true),
            (None, "10.0.0.2", true),
            (Some("N1"), "10.0.0.77", true),
            (Some("other"), "10.0.0.77", false),
            (None, "10.0.0.77", false),
        ] {
            assert_eq!(index.owns_entry(name, ip(address)), is_known, "{name:?} {address}");
        }
        assert_eq!(index.len(), 1);
    }

    #[test]
    fn former_addresses_are_bounded() {
        let mut index = NodeIndex::default();
        for number in 0..=u32::try_from(MAX_FORMER_ADDRESSES).unwrap() {
            let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            index.apply(node("n", 1, &[&address.to_string()]));
            index.remove("n");
        }
        assert_eq!(
            (index.former.len(), index.former_order.len()),
            (MAX_FORMER_ADDRESSES, MAX_FORMER_ADDRESSES)
        );
        assert!(!index.owns_entry(None, ip("10.0.0.0")), "the oldest is forgotten");
        assert!(index.owns_entry(None, ip("10.0.0.1")));
    }

    #[test]
    fn address_of_a_node_that_was_updated_long_ago_is_remembered_from_its_deletion() {
        let mut index = NodeIndex::default();
        index.apply(node("n1", 1, &["10.9.0.1"]));
        let draining = Node {
            is_draining: true,
            ..node("n1", 1, &["10.9.0.1"])
        };
        assert!(index.apply(draining));
        let leave = |index: &mut NodeIndex, numbers: std::ops::Range<u32>| {
            for number in numbers {
                index.apply(node(
                    "n",
                    1,
                    &[&IpAddr::from((0x0a00_0000 + number).to_be_bytes()).to_string()],
                ));
                index.remove("n");
            }
        };
        let most = u32::try_from(MAX_FORMER_ADDRESSES).unwrap();
        leave(&mut index, 0..most - 1);
        index.remove("n1");
        leave(&mut index, most..most + 1);
        assert!(index.owns_entry(None, ip("10.9.0.1")));
        assert_eq!(index.former.len(), MAX_FORMER_ADDRESSES);
    }
}
