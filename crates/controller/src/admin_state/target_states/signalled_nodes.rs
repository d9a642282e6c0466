//! A filter for pool entries by the Nodes with a signal. Pure.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::pool::{ClusterNode, FingerprintSet, InterfaceCache, NodeMatcher};

/// A filter for pool entries: most of several thousand entries belong to Nodes without a signal and need no lookup.
#[derive(Clone, Debug, Default)]
pub struct SignalledNodes<'a> {
    names: HashSet<&'a str>,
    /// Sorted. A binary search in a few addresses is faster than hashing each of thousands of entries.
    addresses: Vec<IpAddr>,
    machines: HashSet<&'a str>,
    /// Of `machines`: no id of another machine is read.
    machine_fingerprints: FingerprintSet,
}

impl<'a> SignalledNodes<'a> {
    pub(super) fn new(nodes: impl Iterator<Item = &'a Arc<ClusterNode>>) -> Self {
        let (mut signalled, mut machines) = (Self::default(), HashSet::new());
        for node in nodes {
            signalled.names.insert(&*node.name);
            signalled.addresses.extend(&node.addresses);
            machines.insert(&*node.machine);
        }
        signalled.addresses.sort_unstable();
        signalled.machine_fingerprints = machines.iter().copied().collect();
        signalled.machines = machines;
        signalled
    }

    /// Whether an entry may belong to one of these Nodes.
    #[must_use]
    pub fn may_match(&self, matcher: &NodeMatcher, interfaces: &InterfaceCache) -> bool {
        if self.names.is_empty() {
            return false;
        }
        match matcher {
            NodeMatcher::Address(ip) => self.addresses.binary_search(ip).is_ok(),
            NodeMatcher::Machine(machine) => {
                self.machine_fingerprints.may_contain(machine.fingerprint()) && self.machines.contains(machine.as_str())
            }
            NodeMatcher::Interface(id) => interfaces
                .machine_of(id)
                .is_some_and(|machine| self.machines.contains(machine)),
            NodeMatcher::Name(name) => self.names.contains(name.as_str()),
            NodeMatcher::Unmatched => false,
        }
    }
}
