//! Which Node decides about a pool entry if several Nodes claim its address or machine. Pure.
//!
//! kubelet's credentials may change `status.addresses` of the own Node, so a compromised node can claim another one's address; and a
//! machine belongs to every Node that is created with its `providerID`.
//! Invariants: the Node that an entry with an address names decides alone. Otherwise the claimant with the weakest reason to be
//! `Down` decides, so the entry becomes `Down` only if all of them have a signal. The name of an entry with an interface names no Node: a
//! Node could be created with it.

use std::cmp::Reverse;
use std::sync::Arc;

use super::interface_cache::InterfaceCache;
use super::pool_entry::{NodeMatcher, PoolEntry};
use super::{ClusterNode, NodeIndex};

/// The Node that decides about an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryOwner<'a> {
    /// The Node itself.
    pub node: &'a Arc<ClusterNode>,
    /// All Nodes that the entry may belong to, the owner among them: several if their claims are equal.
    pub claimants: &'a [Arc<ClusterNode>],
}

impl PoolEntry {
    /// The owner of the entry; `None` if no Node matches, or if the interface has not been looked up yet. `reason` is a
    /// Node's reason to be `Down`, the weakest first.
    pub fn owner<'a, T: Ord>(
        &self,
        nodes: &'a NodeIndex,
        interfaces: &InterfaceCache,
        reason: impl Fn(&ClusterNode) -> T,
    ) -> Option<EntryOwner<'a>> {
        let claimants = self.matcher.claimants(nodes, interfaces);
        let has_address = matches!(self.matcher, NodeMatcher::Address(_));
        let is_named = |node: &&Arc<ClusterNode>| has_address && self.name.as_deref() == Some(node.name.as_str());
        let alone = match claimants {
            [node] => Some(node),
            several => several.iter().find(is_named),
        };
        if let Some(node) = alone {
            let claimants = std::slice::from_ref(node);
            return Some(EntryOwner { node, claimants });
        }
        // An entry of an excluded Node is not set `Down`; among equals the younger Node is more likely to have the address.
        let rank = |node: &ClusterNode| (reason(node), node.excluded.is_some(), Reverse(node.created));
        let node = claimants
            .iter()
            .min_by(|one, other| rank(one).cmp(&rank(other)).then_with(|| other.uid.cmp(&one.uid)))?;
        Some(EntryOwner { node, claimants })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::super::fixtures::pool_of;
    use super::*;

    fn node(name: &str, created: i64, excluded: bool) -> ClusterNode {
        ClusterNode {
            name: name.into(),
            uid: format!("uid-{name}"),
            created: Timestamp::from_second(created).unwrap(),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            excluded: excluded.then_some("label"),
            ready: true,
            ..ClusterNode::default()
        }
    }

    /// The owner of an entry with this name, and the number of claimants that count.
    fn owner(nodes: &[ClusterNode], name: &str, signalled: &[&str]) -> Option<(String, usize)> {
        let mut index = NodeIndex::default();
        for node in nodes {
            index.apply(node.clone());
        }
        let pool = pool_of(&json!({"name": name, "properties": {"ipAddress": "10.0.0.1"}}));
        let entry = PoolEntry::new(pool.addresses().next()?);
        let reason = |node: &ClusterNode| signalled.contains(&node.name.as_str());
        let owner = entry.owner(&index, &InterfaceCache::default(), reason)?;
        Some((owner.node.name.clone(), owner.claimants.len()))
    }

    #[test]
    fn named_claimant_decides_alone() {
        let nodes = [node("old", 1, false), node("new", 2, false)];
        for signalled in [&[][..], &["old"], &["new"], &["old", "new"]] {
            assert_eq!(owner(&nodes, "old", signalled), Some(("old".into(), 1)));
            assert_eq!(owner(&nodes, "NEW", signalled), Some(("new".into(), 1)));
        }
    }

    #[test]
    fn without_a_name_the_claimant_without_a_signal_decides() {
        let nodes = [node("old", 1, false), node("new", 2, false)];
        for (signalled, expected) in [
            (&["old"][..], "new"),
            (&["new"], "old"),
            (&[], "new"),
            (&["old", "new"], "new"),
        ] {
            assert_eq!(
                owner(&nodes, "", signalled),
                Some((expected.into(), 2)),
                "{signalled:?}"
            );
            assert_eq!(owner(&nodes, "third", signalled), Some((expected.into(), 2)));
        }
        let excluded = [node("old", 1, false), node("new", 2, true)];
        assert_eq!(owner(&excluded, "", &["old", "new"]), Some(("old".into(), 2)));
    }

    /// An entry of a scale set's interface, which a second Node claims with the victim's `providerID`.
    #[test]
    fn claimants_of_a_machine_decide_together_whatever_the_name() {
        let machine = "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute/virtualmachinescalesets/v/virtualmachines/2";
        let mut index = NodeIndex::default();
        for (name, created) in [("victim", 1), ("rogue", 2)] {
            index.apply(ClusterNode {
                machine: machine.to_owned(),
                ..node(name, created, false)
            });
        }
        let pool = pool_of(&json!({"name": "rogue", "properties": {
            "networkInterfaceIPConfiguration": {"id": format!("{machine}/networkInterfaces/nic/ipConfigurations/c")}}}));
        let entry = PoolEntry::new(pool.addresses().next().unwrap());
        for (signalled, expected) in [
            (&["rogue"][..], "victim"),
            (&["victim"], "rogue"),
            (&["victim", "rogue"], "rogue"),
        ] {
            let reason = |node: &ClusterNode| signalled.contains(&node.name.as_str());
            let owner = entry.owner(&index, &InterfaceCache::default(), reason).unwrap();
            assert_eq!(
                (owner.node.name.as_str(), owner.claimants.len()),
                (expected, 2),
                "{signalled:?}"
            );
        }
    }

    #[test]
    fn only_claimant_decides_whatever_the_name() {
        assert_eq!(owner(&[node("n", 1, false)], "other", &[]), Some(("n".into(), 1)));
        assert_eq!(owner(&[], "n", &[]), None);
    }
}
