//! The cluster's Nodes as backend pools see them, findable by what stands in a pool. Pure.
//!
//! Invariants: a Node is known by its UID, so that one which is made anew under the same name is another; an address
//! or machine that two Nodes claim belongs to the younger.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

/// A taint, as far as it counts here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its effect, for people: a taint counts by its key.
    pub effect: String,
}

/// One Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When it was made.
    pub created: Timestamp,
    /// Its addresses of type `InternalIP`, of both families.
    pub addresses: Vec<IpAddr>,
    /// The resource id of its virtual machine, in lower case; empty where the cloud has not said.
    pub machine: String,
    /// Why it belongs in no load balancer, where it does not (cloud-provider-azure `shouldNodeExcludedFromLoadBalancer`).
    pub excluded: Option<&'static str>,
    /// Its taints, in their order.
    pub taints: Vec<Taint>,
    /// Whether kubelet says it is ready.
    pub ready: bool,
}

/// All Nodes.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    nodes: BTreeMap<String, Arc<ClusterNode>>,
    /// Those who claim an address; mostly one.
    by_address: HashMap<IpAddr, Vec<Arc<ClusterNode>>>,
    by_machine: HashMap<String, Vec<Arc<ClusterNode>>>,
}

impl Cluster {
    /// Takes in a Node as it is now; whether that is news.
    pub fn apply(&mut self, node: ClusterNode) -> bool {
        if self.nodes.get(&node.name).is_some_and(|known| **known == node) {
            return false;
        }
        self.remove(&node.name);
        let node = Arc::new(node);
        for address in &node.addresses {
            self.by_address.entry(*address).or_default().push(Arc::clone(&node));
        }
        if !node.machine.is_empty() {
            let claims = self.by_machine.entry(node.machine.clone()).or_default();
            claims.push(Arc::clone(&node));
        }
        self.nodes.insert(node.name.clone(), node);
        true
    }

    /// Forgets a Node; whether it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(node) = self.nodes.remove(name) else {
            return false;
        };
        for address in &node.addresses {
            forget(&mut self.by_address, address, name);
        }
        forget(&mut self.by_machine, &node.machine, name);
        true
    }

    /// The Nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.nodes.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The Node of this name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Arc<ClusterNode>> {
        self.nodes.get(name)
    }

    /// Whose address this is.
    #[must_use]
    pub fn by_address(&self, address: IpAddr) -> Option<&Arc<ClusterNode>> {
        youngest(self.by_address.get(&address)?)
    }

    /// The Node on this virtual machine, given its resource id in lower case.
    #[must_use]
    pub fn by_machine(&self, machine: &str) -> Option<&Arc<ClusterNode>> {
        youngest(self.by_machine.get(machine)?)
    }
}

fn youngest(claims: &[Arc<ClusterNode>]) -> Option<&Arc<ClusterNode>> {
    claims
        .iter()
        .max_by(|one, other| (one.created, &one.uid).cmp(&(other.created, &other.uid)))
}

fn forget<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<Arc<ClusterNode>>>, key: &K, name: &str) {
    if let Some(claims) = index.get_mut(key) {
        claims.retain(|known| known.name != name);
        if claims.is_empty() {
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
            ready: true,
        }
    }

    fn at(cluster: &Cluster, address: &str) -> Option<String> {
        cluster
            .by_address(address.parse().unwrap())
            .map(|node| node.uid.clone())
    }

    #[test]
    fn an_address_is_the_younger_nodes_and_the_others_again_afterwards() {
        let mut cluster = Cluster::default();
        assert!(cluster.apply(node("new", 2, "10.0.0.1")));
        assert!(cluster.apply(node("old", 1, "10.0.0.1")));
        assert!(!cluster.apply(node("old", 1, "10.0.0.1")), "no news");
        assert_eq!(at(&cluster, "10.0.0.1").as_deref(), Some("new-2"));
        assert!(cluster.remove("new") && !cluster.remove("new"));
        assert_eq!(at(&cluster, "10.0.0.1").as_deref(), Some("old-1"));
        assert!(cluster.remove("old"));
        assert_eq!(at(&cluster, "10.0.0.1"), None);
        assert!(cluster.by_address.is_empty() && cluster.by_machine.is_empty());
    }

    #[test]
    fn a_node_made_anew_leaves_nothing_of_the_old() {
        let mut cluster = Cluster::default();
        cluster.apply(node("n", 1, "10.0.0.1"));
        cluster.apply(node("n", 2, "fd00::2"));
        assert_eq!(at(&cluster, "10.0.0.1"), None);
        assert_eq!(
            at(&cluster, "fd00:0:0:0::2").as_deref(),
            Some("n-2"),
            "an address, not a text"
        );
        assert_eq!(cluster.by_machine("/vm/n").unwrap().uid, "n-2");
        assert_eq!(cluster.len(), 1);
    }
}
