//! A filter for pool entries by the Nodes with a signal, shared by the plans of all load balancers. Pure.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::pool::{ClusterNode, FingerprintSet, InterfaceCache, NodeMatcher};

/// A filter for pool entries: most of several thousand entries belong to Nodes without a signal and need no lookup.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct SignalledNodes {
    names: HashSet<String>,
    /// Sorted. A binary search in a few addresses is faster than hashing each of thousands of entries.
    addresses: Vec<IpAddr>,
    machines: HashSet<String>,
    /// Of `machines`: no id of another machine is read.
    machine_fingerprints: FingerprintSet,
}

impl SignalledNodes {
    pub(super) fn new<'a>(nodes: impl Iterator<Item = &'a Arc<ClusterNode>>) -> Self {
        let mut signalled = Self::default();
        for node in nodes {
            signalled.names.insert(node.name.clone());
            signalled.addresses.extend(&node.addresses);
            signalled.machines.insert(node.machine.clone());
        }
        signalled.addresses.sort_unstable();
        signalled.machine_fingerprints = signalled.machines.iter().map(String::as_str).collect();
        signalled
    }

    /// Whether an entry may belong to one of these Nodes.
    pub(in super::super) fn may_match(&self, matcher: &NodeMatcher, interfaces: &InterfaceCache) -> bool {
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

/// A filter that is made with the first plan after a change.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedFilter(OnceLock<TimedFilter>);

#[derive(Clone, Debug)]
struct TimedFilter {
    nodes: Arc<SignalledNodes>,
    made_at: Instant,
    /// When time alone makes it another one.
    until: Option<Instant>,
}

impl SharedFilter {
    /// The filter at this time. `until` gives when time alone makes it another one.
    pub(super) fn at(
        &self,
        now: Instant,
        make: impl Fn() -> SignalledNodes,
        until: impl FnOnce() -> Option<Instant>,
    ) -> Arc<SignalledNodes> {
        let shared = self.0.get_or_init(|| TimedFilter {
            nodes: Arc::new(make()),
            made_at: now,
            until: until(),
        });
        if shared.made_at <= now && shared.until.is_none_or(|until| now < until) {
            Arc::clone(&shared.nodes)
        } else {
            Arc::new(make())
        }
    }
}
