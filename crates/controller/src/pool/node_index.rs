//! The cluster's Nodes, indexed by what a pool entry names: address, machine, name. Pure.
//!
//! Invariant: a Node that is deleted and created again under the same name is another Node, by its UID. `entry_owner` decides about
//! an address or a machine that several Nodes claim.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headgate_node::{EXCLUDE_LABEL, MarkerFact, Signal};
use jiff::Timestamp;

/// [`EXCLUDE_LABEL`] as Karpenter sets it, on Nodes that it is deleting.
pub(super) const EXCLUDED_BY_KARPENTER: &str = "node.kubernetes.io/exclude-from-external-load-balancers=karpenter";

/// A taint of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// By which the taint is matched.
    pub key: String,
    /// Shown to operators; never matched.
    pub effect: String,
}

/// The part of a Node that pools need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// The Node's name, `metadata.name`.
    pub name: String,
    /// The Node's UID, `metadata.uid`; a recreated Node has another.
    pub uid: String,
    /// The time of creation, `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// The addresses of type `InternalIP`, of both families.
    pub addresses: Vec<IpAddr>,
    /// The resource id of the virtual machine from `providerID`, in lower case; empty if there is none yet.
    pub machine: String,
    /// The label that excludes the Node from load balancers (cloud-provider-azure `shouldNodeExcludedFromLoadBalancer`), with its
    /// value if that is Karpenter's.
    pub excluded: Option<&'static str>,
    /// In the order of the Node's spec.
    pub taints: Vec<Taint>,
    /// The signals of the rules that the Node was read with, each with how long it must last before it counts.
    pub signals: BTreeMap<Signal, Duration>,
    /// The signals of the rules by which agents answer 503. Those that must last before they count are among them from the
    /// start: agents count by their own clocks.
    pub health_signals: BTreeSet<Signal>,
    /// The condition `headgate.dev/OutOfLoadBalancers`, without the time of its confirmation; `None` if the Node has none.
    pub marker: Option<MarkerFact>,
    /// The earliest time of the eviction that is recorded on the Node.
    pub eviction_at: Option<Timestamp>,
    /// Whether the condition `Ready` is `True`.
    pub ready: bool,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// Whether the Node says that the machine is about to end, or does not work, whatever its condition `Ready`: it is being deleted,
    /// its VM is evicted or shut down, or it is out of service.
    pub ends: bool,
    /// The hold that a leader has recorded on the Node.
    pub hold: Option<RecordedHold>,
}

/// A hold on a Node, without the time of its last renewal, which changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedHold {
    /// The pools, as `LOAD_BALANCER/POOL`.
    pub pools: BTreeSet<String>,
    /// Whether a rule of these pools probes headgate.
    pub probes_headgate: bool,
    /// The signals that the hold covers.
    pub signals: BTreeSet<String>,
    /// Those of them that did not count for admin states yet.
    pub pending: BTreeSet<String>,
    /// Why the Node stays in service.
    pub reason: String,
}

impl ClusterNode {
    /// Whether the machine is about to end, or may be: what a condition of the settings announces is not known.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.ends || self.signals.keys().any(|signal| !signal.is_revocable())
    }

    /// The label that keeps the Node's entries from being set `Down`: the one that excludes it, unless the Node is about to be
    /// removed. cloud-controller-manager removes an excluded Node from the pools only at its next sync, and Karpenter terminates
    /// the machine before that.
    #[must_use]
    pub fn exempting_label(&self) -> Option<&'static str> {
        self.excluded.filter(|label| match *label {
            EXCLUDED_BY_KARPENTER => false,
            EXCLUDE_LABEL => !self.is_deleting,
            _ => true,
        })
    }
}

/// What a Node claims for itself, by which pool entries are found to be its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimed {
    /// An `InternalIP`: `status.addresses`, which the node's kubelet writes.
    Address(IpAddr),
    /// A virtual machine, by its id in lower case: `spec.providerID`, set when the Node is created.
    Machine(String),
}

/// All Nodes of the cluster. Cloning copies the index, not the Nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    nodes: BTreeMap<String, Arc<ClusterNode>>,
    /// Usually one Node; two while a new machine has an address of a Node that is not deleted yet, or if a node claims
    /// another one's.
    by_address: HashMap<IpAddr, Vec<Arc<ClusterNode>>>,
    /// What several Nodes claim.
    contested: BTreeSet<Claimed>,
    by_machine: HashMap<String, Vec<Arc<ClusterNode>>>,
}

impl NodeIndex {
    /// Adds or replaces a Node; returns whether anything changed.
    pub fn apply(&mut self, node: ClusterNode) -> bool {
        if self.nodes.get(&node.name).is_some_and(|known| **known == node) {
            return false;
        }
        self.remove(&node.name);
        let node = Arc::new(node);
        for address in &node.addresses {
            let claimants = self.by_address.entry(*address).or_default();
            // A Node may list an address twice.
            if claimants.iter().all(|known| known.name != node.name) {
                claimants.push(Arc::clone(&node));
            }
            if claimants.len() > 1 {
                self.contested.insert(Claimed::Address(*address));
            }
        }
        if !node.machine.is_empty() {
            let nodes = self.by_machine.entry(node.machine.clone()).or_default();
            nodes.push(Arc::clone(&node));
            if nodes.len() > 1 {
                self.contested.insert(Claimed::Machine(node.machine.clone()));
            }
        }
        self.nodes.insert(node.name.clone(), node);
        true
    }

    /// Removes a Node; returns whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(node) = self.nodes.remove(name) else {
            return false;
        };
        for address in &node.addresses {
            remove_from(&mut self.by_address, address, name);
            if self.claimants(*address).len() < 2 {
                self.contested.remove(&Claimed::Address(*address));
            }
        }
        remove_from(&mut self.by_machine, &node.machine, name);
        if self.machine_claimants(&node.machine).len() < 2 {
            self.contested.remove(&Claimed::Machine(node.machine.clone()));
        }
        true
    }

    /// The Nodes in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.nodes.values()
    }

    /// The number of Nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the index has no Node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Looks up a Node by `metadata.name`.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<ClusterNode>> {
        self.nodes.get(name)
    }

    /// The Nodes with this `InternalIP`.
    #[must_use]
    pub fn claimants(&self, address: IpAddr) -> &[Arc<ClusterNode>] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The Nodes on the virtual machine with this resource id, in lower case.
    #[must_use]
    pub fn machine_claimants(&self, machine: &str) -> &[Arc<ClusterNode>] {
        self.by_machine.get(machine).map_or(&[], Vec::as_slice)
    }

    /// The Nodes that claim this.
    #[must_use]
    pub fn claimants_of(&self, claimed: &Claimed) -> &[Arc<ClusterNode>] {
        match claimed {
            Claimed::Address(address) => self.claimants(*address),
            Claimed::Machine(machine) => self.machine_claimants(machine),
        }
    }

    /// What several Nodes claim, in order.
    pub fn contested(&self) -> impl Iterator<Item = (&Claimed, &[Arc<ClusterNode>])> {
        self.contested
            .iter()
            .map(|claimed| (claimed, self.claimants_of(claimed)))
    }
}

fn remove_from<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<Arc<ClusterNode>>>, key: &K, name: &str) {
    if let Some(nodes) = index.get_mut(key) {
        nodes.retain(|known| known.name != name);
        if nodes.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, created: i64, address: &str) -> ClusterNode {
        ClusterNode {
            name: name.into(),
            uid: format!("{name}-{created}"),
            created: Timestamp::from_second(created).unwrap(),
            addresses: vec![address.parse().unwrap()],
            machine: format!("/vm/{name}"),
            excluded: None,
            taints: Vec::new(),
            signals: BTreeMap::new(),
            health_signals: BTreeSet::new(),
            marker: None,
            eviction_at: None,
            ready: true,
            ends: false,
            hold: None,
            is_deleting: false,
        }
    }

    fn at(cluster: &NodeIndex, address: &str) -> Vec<String> {
        let nodes = cluster.claimants(address.parse().unwrap());
        nodes.iter().map(|node| node.uid.clone()).collect()
    }

    fn contested(cluster: &NodeIndex) -> Vec<Claimed> {
        cluster.contested().map(|(claimed, _)| claimed.clone()).collect()
    }

    #[test]
    fn shared_address_has_all_claimants_until_they_are_removed() {
        let mut cluster = NodeIndex::default();
        assert!(cluster.apply(node("new", 2, "10.0.0.1")));
        assert!(cluster.apply(node("old", 1, "10.0.0.1")));
        assert!(!cluster.apply(node("old", 1, "10.0.0.1")), "unchanged");
        assert_eq!(at(&cluster, "10.0.0.1"), ["new-2", "old-1"]);
        assert_eq!(contested(&cluster), [Claimed::Address("10.0.0.1".parse().unwrap())]);
        assert!(cluster.remove("new") && !cluster.remove("new"));
        assert_eq!(at(&cluster, "10.0.0.1"), ["old-1"]);
        assert!(contested(&cluster).is_empty());
        assert!(cluster.remove("old"));
        assert!(at(&cluster, "10.0.0.1").is_empty());
        assert!(cluster.by_address.is_empty() && cluster.by_machine.is_empty());
    }

    #[test]
    fn shared_machine_has_all_claimants_until_they_are_removed() {
        let mut cluster = NodeIndex::default();
        for (name, address) in [("new", "10.0.0.1"), ("old", "10.0.0.2")] {
            cluster.apply(ClusterNode {
                machine: "/vm/shared".into(),
                ..node(name, 1, address)
            });
        }
        assert_eq!(cluster.machine_claimants("/vm/shared").len(), 2);
        assert_eq!(contested(&cluster), [Claimed::Machine("/vm/shared".into())]);
        cluster.remove("new");
        assert_eq!(cluster.machine_claimants("/vm/shared")[0].name, "old");
        assert!(contested(&cluster).is_empty());
    }

    #[test]
    fn address_that_one_node_lists_twice_is_not_contested() {
        let mut cluster = NodeIndex::default();
        let mut twice = node("n", 1, "10.0.0.1");
        twice.addresses.push("10.0.0.1".parse().unwrap());
        cluster.apply(twice);
        assert_eq!(at(&cluster, "10.0.0.1"), ["n-1"]);
        assert!(contested(&cluster).is_empty());
        cluster.apply(node("m", 1, "10.0.0.1"));
        cluster.apply(node("n", 1, "10.0.0.2"));
        assert!(contested(&cluster).is_empty(), "the claim ended with an update");
    }

    #[test]
    fn recreated_node_replaces_the_old_one_in_every_index() {
        let mut cluster = NodeIndex::default();
        cluster.apply(node("n", 1, "10.0.0.1"));
        cluster.apply(node("n", 2, "fd00::2"));
        assert!(at(&cluster, "10.0.0.1").is_empty());
        assert_eq!(
            at(&cluster, "fd00:0:0:0::2"),
            ["n-2"],
            "compared as an address, not as text"
        );
        assert_eq!(cluster.machine_claimants("/vm/n")[0].uid, "n-2");
        assert_eq!(cluster.len(), 1);
    }
}
