//! The cluster's Nodes, indexed by what a pool entry names: address, machine, name. Pure.
//!
//! Invariant: a Node that is deleted and created again under the same name is another Node, by its UID. Who owns an address or a
//! machine that several Nodes claim is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::reader::Node;

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
    nodes: BTreeMap<String, Arc<Node>>,
    /// Usually one Node; two while a new machine has an address of a Node that is not deleted yet, or if a node claims
    /// another one's.
    by_address: HashMap<IpAddr, Vec<Arc<Node>>>,
    /// What several Nodes claim.
    contested: BTreeSet<Claimed>,
    by_machine: HashMap<String, Vec<Arc<Node>>>,
}

impl Node {
    /// What it claims, by which pool entries are its own: its addresses and its machine.
    pub fn claims(&self) -> impl Iterator<Item = Claimed> {
        let machine = Some(&self.machine).filter(|machine| !machine.is_empty());
        let addresses = self.addresses.iter().copied().map(Claimed::Address);
        addresses.chain(machine.cloned().map(Claimed::Machine))
    }
}

impl NodeIndex {
    /// Adds or replaces a Node; returns whether anything changed.
    pub fn apply(&mut self, node: impl Into<Arc<Node>>) -> bool {
        let node = node.into();
        if self.nodes.get(&node.name) == Some(&node) {
            return false;
        }
        self.remove(&node.name);
        for claimed in node.claims() {
            let claimants = match &claimed {
                Claimed::Address(address) => self.by_address.entry(*address).or_default(),
                Claimed::Machine(machine) => self.by_machine.entry(machine.clone()).or_default(),
            };
            // A Node may list an address twice.
            if claimants.iter().all(|known| known.name != node.name) {
                claimants.push(Arc::clone(&node));
            }
            if claimants.len() > 1 {
                self.contested.insert(claimed);
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
        for claimed in node.claims() {
            match &claimed {
                Claimed::Address(address) => remove_from(&mut self.by_address, address, name),
                Claimed::Machine(machine) => remove_from(&mut self.by_machine, machine, name),
            }
            if self.claimants_of(&claimed).len() < 2 {
                self.contested.remove(&claimed);
            }
        }
        true
    }

    /// The Nodes in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// The number of Nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the index has no Node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Looks up a Node by `metadata.name`.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// The Nodes with this `InternalIP`.
    pub fn claimants(&self, address: IpAddr) -> &[Arc<Node>] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The Nodes on the virtual machine with this resource id, in lower case.
    pub fn machine_claimants(&self, machine: &str) -> &[Arc<Node>] {
        self.by_machine.get(machine).map_or(&[], Vec::as_slice)
    }

    /// The Nodes that claim this.
    pub fn claimants_of(&self, claimed: &Claimed) -> &[Arc<Node>] {
        match claimed {
            Claimed::Address(address) => self.claimants(*address),
            Claimed::Machine(machine) => self.machine_claimants(machine),
        }
    }

    /// What several Nodes claim, in order.
    pub fn contested(&self) -> impl Iterator<Item = (&Claimed, &[Arc<Node>])> {
        self.contested
            .iter()
            .map(|claimed| (claimed, self.claimants_of(claimed)))
    }
}

fn remove_from<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<Arc<Node>>>, key: &K, name: &str) {
    if let Some(nodes) = index.get_mut(key) {
        nodes.retain(|known| known.name != name);
        if nodes.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn node(name: &str, created: i64, address: &str) -> Node {
        Node {
            name: name.into(),
            uid: format!("{name}-{created}"),
            created: Timestamp::from_second(created).unwrap(),
            addresses: vec![address.parse().unwrap()],
            machine: format!("/vm/{name}"),
            ready: true,
            ..Node::default()
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
        assert_eq!(cluster.by_name("old").unwrap().uid, "old-1");
        assert!(cluster.by_name("new").is_none() && !cluster.is_empty());
        assert!(cluster.remove("old"));
        assert!(cluster.is_empty());
        assert!(at(&cluster, "10.0.0.1").is_empty());
        assert!(cluster.by_address.is_empty() && cluster.by_machine.is_empty());
    }

    #[test]
    fn shared_machine_has_all_claimants_until_they_are_removed() {
        let mut cluster = NodeIndex::default();
        for (name, address) in [("new", "10.0.0.1"), ("old", "10.0.0.2"), ("third", "10.0.0.2")] {
            cluster.apply(Node {
                machine: "/vm/shared".into(),
                ..node(name, 1, address)
            });
        }
        assert!(cluster.iter().map(|node| &*node.name).eq(["new", "old", "third"]));
        assert_eq!(cluster.len(), 3);
        let address = || Claimed::Address("10.0.0.2".parse().unwrap());
        let machine = || Claimed::Machine("/vm/shared".into());
        let third = cluster.by_name("third").unwrap();
        assert_eq!(third.claims().collect::<Vec<_>>(), [address(), machine()]);
        assert!(Node::default().claims().next().is_none());
        let claims = cluster
            .contested()
            .map(|(claimed, nodes)| (claimed.clone(), nodes.len()));
        assert_eq!(claims.collect::<Vec<_>>(), [(address(), 2), (machine(), 3)]);
        cluster.apply(node("fourth", 1, "10.0.0.2"));
        cluster.remove("third");
        assert_eq!(contested(&cluster), [address(), machine()], "two are left of each");
        cluster.remove("fourth");
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
        // Compared as an address, not as text.
        assert_eq!(at(&cluster, "fd00:0:0:0::2"), ["n-2"]);
        assert_eq!(cluster.machine_claimants("/vm/n")[0].uid, "n-2");
        assert_eq!(cluster.len(), 1);
    }
}
