//! Gives the updater the Nodes of the index that all features share. Pure.

use crate::local_pools::{Node, Updater};
use crate::pool::{ClusterNode, NodeIndex};

/// Gives the updater all Nodes, after a complete list and after each change. `is_draining` is whether the Node's target state
/// is `Down` and admin states are enforced.
pub fn apply_nodes(updater: &mut Updater, nodes: &NodeIndex, is_draining: impl Fn(&ClusterNode) -> bool) {
    for node in nodes.iter() {
        updater.apply_node(Node {
            name: node.name.clone(),
            created: node.created,
            internal_addresses: node.addresses.clone(),
            excluded_by: node.excluded,
            is_deleting: node.is_deleting,
            is_draining: is_draining(node),
        });
    }
    let names = nodes.iter().map(|node| node.name.to_ascii_lowercase());
    updater.retain_nodes(&names.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_pools::UpdaterSettings;

    #[test]
    fn all_nodes_are_given_to_the_updater_and_former_ones_removed() {
        let cluster_node = |number: u8| ClusterNode {
            name: format!("N{number}"),
            addresses: vec![[10, 0, 0, number].into()],
            ready: true,
            is_deleting: number == 2,
            ..ClusterNode::default()
        };
        let mut nodes = NodeIndex::default();
        nodes.apply(cluster_node(1));
        nodes.apply(cluster_node(2));
        let mut updater = Updater::new(UpdaterSettings::default());
        apply_nodes(&mut updater, &nodes, |node| node.name == "N1");
        let found = updater.nodes();
        let (first, second) = (found.get("n1").unwrap(), found.get("n2").unwrap());
        assert_eq!((first.is_draining, first.is_deleting), (true, false));
        assert_eq!((second.is_draining, second.is_deleting), (false, true));
        nodes.remove("N1");
        apply_nodes(&mut updater, &nodes, |_| false);
        assert_eq!(updater.nodes().names().collect::<Vec<_>>(), ["n2"]);
    }
}
