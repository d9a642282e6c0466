//! The cluster's Nodes, found by name and by address.
//!
//! Invariants: an address that two Nodes have belongs to the younger; an address that a Node has no more is remembered for
//! a while, also while another has it, so that the pool entry of a deleted Node is known to be a Node's. Everything else in a pool is
//! foreign and stays, also an entry with the address of a Node and the name of something else: a Node can claim any address.
//! A Node that is being deleted, has gone or has lost its addresses is *leaving* for [`LEAVE_TIMEOUT`].

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::service::IpFamily;
use jiff::Timestamp;
use tokio::time::Instant;

/// For this long a Node that is being deleted, whose object has gone, or that has no address any more keeps the entries that it has. The
/// machine may still serve: its kubelet registers again, at first without addresses; or a list lacked it.
const LEAVE_TIMEOUT: Duration = Duration::from_mins(5);
/// The most former Nodes that are remembered; the one that left first is forgotten first.
const MAX_FORMER_NODES: usize = 10_000;

/// The most addresses of former Nodes that are remembered; the oldest is forgotten first. cloud-controller-manager removes
/// such entries itself, so a forgotten one is not lost.
const MAX_FORMER_ADDRESSES: usize = 10_000;

/// The fields of a Node that decide about members. Former Nodes are kept as well, so it is no whole Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The Node's name, `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`: an address that two Nodes have belongs to the younger.
    pub created: Timestamp,
    /// `status.addresses` of type `InternalIP`, of both families, in their order.
    pub internal_addresses: Vec<IpAddr>,
    /// The label for which cloud-controller-manager puts it into no load balancer.
    pub excluded_by: Option<&'static str>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// It has a drain signal that admin states follow. Set it only while admin states are enforced.
    pub is_draining: bool,
}

/// All Nodes of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIndex {
    by_name: HashMap<Arc<str>, Node>,
    /// The names of the Nodes with this address; mostly one.
    by_address: HashMap<IpAddr, Vec<Arc<str>>>,
    /// The addresses that a Node had: its name and the place in `former_order`. Another Node may have the address now.
    former: HashMap<IpAddr, (Arc<str>, u64)>,
    /// `former`, in the order in which they were left.
    former_order: BTreeMap<u64, IpAddr>,
    /// The Nodes that are being deleted, those that have gone, and those that have lost their addresses of a family.
    leaving: HashMap<Arc<str>, Leaving>,
}

/// A Node that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaving {
    /// As it was last.
    node: Node,
    /// The first [`NodeIndex::advance`] after it began to leave.
    since: Option<Instant>,
    /// Whether [`LEAVE_TIMEOUT`] has passed.
    is_over: bool,
}

impl Leaving {
    fn new(node: Node) -> Self {
        Self {
            node,
            since: None,
            is_over: false,
        }
    }

    /// Its time begins anew, also for addresses of the other family that it has lost before: an entry that is gone does not come back.
    fn after(mut node: Node, earlier: Option<Self>) -> Self {
        let lost = earlier.into_iter().flat_map(|earlier| earlier.node.internal_addresses);
        let lost: Vec<_> = lost.filter(|address| !node.has_address((*address).into())).collect();
        node.internal_addresses.extend(lost);
        Self::new(node)
    }
}

impl Node {
    fn has_address(&self, family: IpFamily) -> bool {
        let mut addresses = self.internal_addresses.iter();
        addresses.any(|address| IpFamily::from(*address) == family)
    }

    /// Whether its entries of a family follow from it: one without an address of the family may only have registered again.
    fn decides_for(&self, family: IpFamily) -> bool {
        self.is_deleting || self.excluded_by.is_some() || self.has_address(family)
    }

    /// Whether it has no address of a family in which it had one.
    fn has_lost_addresses(&self, before: &Self) -> bool {
        let lost = |family| before.has_address(family) && !self.has_address(family);
        lost(IpFamily::IPv4) || lost(IpFamily::IPv6)
    }
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
        let leaving = self.leaving.remove(&name);
        let known = self.take(&name, &node.internal_addresses);
        let was_deleting = known.as_ref().is_some_and(|known| known.is_deleting);
        let leaving = match (known.filter(|known| node.has_lost_addresses(known)), leaving) {
            (Some(known), earlier) => Some(Leaving::after(known, earlier)),
            (None, Some(leaving)) if was_deleting && node.is_deleting => Some(leaving),
            (None, Some(leaving)) if node.has_lost_addresses(&leaving.node) => {
                let begins_anew = node.is_deleting;
                Some(if begins_anew {
                    Leaving::new(leaving.node)
                } else {
                    leaving
                })
            }
            (None, _) => node.is_deleting.then(|| Leaving::new(node.clone())),
        };
        self.leaving.extend(leaving.map(|leaving| (Arc::clone(&name), leaving)));
        for address in &node.internal_addresses {
            if let Some((_, place)) = self.former.get(address).filter(|(former, _)| *former == name) {
                self.former_order.remove(place);
                self.former.remove(address);
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
        let Some(node) = self.take(&name, &[]) else {
            return false;
        };
        let earlier = self.leaving.remove(&*name);
        self.leaving.insert(name.into(), Leaving::after(node, earlier));
        if self.leaving.len() > MAX_FORMER_NODES {
            self.forget_first();
        }
        true
    }

    /// Takes a Node out, and remembers its addresses but for those that it keeps.
    fn take(&mut self, name: &str, kept: &[IpAddr]) -> Option<Node> {
        let node = self.by_name.remove(name)?;
        for address in node.internal_addresses.iter().copied() {
            if let Some(names) = self.by_address.get_mut(&address) {
                names.retain(|known| **known != *name);
                if names.is_empty() {
                    self.by_address.remove(&address);
                }
            }
            if !kept.contains(&address) {
                self.remember(address, name.into());
            }
        }
        Some(node)
    }

    /// Forgets the Node that left first.
    fn forget_first(&mut self) {
        let gone = self
            .leaving
            .iter()
            .filter(|(name, _)| !self.by_name.contains_key(*name));
        // One that has no time yet left last.
        let first = gone.min_by_key(|(_, leaving)| (leaving.since.is_none(), leaving.since));
        if let Some(name) = first.map(|(name, _)| Arc::clone(name)) {
            self.leaving.remove(&name);
        }
    }

    /// Whether a Node leaves whose time has not passed yet.
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving.values().any(|leaving| !leaving.is_over)
    }

    /// Sets the time. Returns whether the time of a Node that leaves has passed with it.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        let mut is_changed = false;
        for leaving in self.leaving.values_mut().filter(|leaving| !leaving.is_over) {
            let since = *leaving.since.get_or_insert(now);
            leaving.is_over = now.saturating_duration_since(since) >= LEAVE_TIMEOUT;
            is_changed |= leaving.is_over;
        }
        is_changed
    }

    /// Whether there is no Node of this name, or one that has lost its addresses of the family.
    pub(crate) fn is_unknown(&self, name: &str, family: IpFamily) -> bool {
        self.get(name).is_none_or(|node| {
            !node.decides_for(family)
                && self
                    .leaving(name)
                    .is_some_and(|(_, before, _)| before.has_address(family))
        })
    }

    /// A Node that leaves, as it was last with addresses, and whether its time has passed.
    pub(crate) fn leaving(&self, name: &str) -> Option<(&Arc<str>, &Node, bool)> {
        let (name, leaving) = self.leaving.get_key_value(name.to_ascii_lowercase().as_str())?;
        Some((name, &leaving.node, leaving.is_over))
    }

    fn remember(&mut self, address: IpAddr, name: Arc<str>) {
        let place = self.former_order.last_key_value().map_or(0, |(last, _)| last + 1);
        if let Some((_, before)) = self.former.insert(address, (name, place)) {
            self.former_order.remove(&before);
        }
        self.former_order.insert(place, address);
        if self.former_order.len() > MAX_FORMER_ADDRESSES
            && let Some((_, oldest)) = self.former_order.pop_first()
        {
            self.former.remove(&oldest);
        }
    }

    /// The Node of this name, in any case.
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

    /// Whether a pool entry is a Node's and not foreign: it is named for a Node that has addresses of its family, or that leaves the
    /// load balancers; or it has no name or that of a former Node, and its address is or was a Node's. The name of a Node without an
    /// address proves nothing to a leader that has not seen it with one: the machine may serve.
    pub fn owns_entry(&self, name: Option<&str>, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let former = self.former.get(&address).map(|(name, _)| name);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return former.is_some() || self.by_address.contains_key(&address);
        };
        if self.get(name).is_some_and(|node| node.decides_for(address.into())) {
            return true;
        }
        let mut names = self.by_address.get(&address).into_iter().flatten().chain(former);
        names.any(|node| is_entry_name(name, node, address))
    }

    /// The names of all Nodes, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }
}

/// The name of a further entry of a node, whose own name the pool has already.
pub(crate) fn numbered_entry_name(node: &str, address: IpAddr) -> String {
    format!("{node}-{}", address.to_string().replace(['.', ':'], "-"))
}

/// Whether an entry is named for this node.
fn is_entry_name(name: &str, node: &str, address: IpAddr) -> bool {
    let numbered = numbered_entry_name(node, address);
    let name = name.to_ascii_lowercase();
    name == node
        || name
            .strip_prefix(&*numbered)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, created: i64, addresses: &[&str]) -> Node {
        Node {
            name: name.into(),
            created: Timestamp::from_second(created).unwrap(),
            internal_addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..Node::default()
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
        assert_eq!(index.names().collect::<Vec<_>>(), ["n1"]);
    }

    #[test]
    fn entry_with_the_name_of_another_member_is_foreign() {
        let mut index = NodeIndex::default();
        index.apply(node("n1", 1, &["10.0.0.1"]));
        index.apply(node("n2", 1, &["10.0.0.2"]));
        index.remove("n2");
        index.apply(node("n9", 1, &["10.0.0.2"]));
        for (name, address, is_owned) in [
            (Some("vm"), "10.0.0.1", false),
            (Some("n10"), "10.0.0.1", false),
            (Some("n1-10-0-0-1"), "10.0.0.1", true),
            (Some("N1-10-0-0-1-2"), "10.0.0.1", true),
            (Some(""), "10.0.0.1", true),
            // Named for the Node that had the address before.
            (Some("n2"), "10.0.0.2", true),
            (Some("n2"), "10.0.0.1", false),
        ] {
            assert_eq!(index.owns_entry(name, ip(address)), is_owned, "{name:?} {address}");
        }
    }

    #[test]
    fn entry_of_a_former_node_is_known_also_where_another_has_its_address_meanwhile() {
        let entry_of = |index: &NodeIndex| index.owns_entry(Some("n2"), ip("10.0.0.2"));
        // The other one is there before it goes.
        let mut index = NodeIndex::default();
        index.apply(node("n2", 1, &["10.0.0.2"]));
        index.apply(node("n9", 1, &["10.0.0.2"]));
        index.remove("n2");
        assert!(entry_of(&index));
        // And changes after it.
        let draining = Node {
            is_draining: true,
            ..node("n9", 1, &["10.0.0.2"])
        };
        index.apply(draining);
        assert!(entry_of(&index));
    }

    #[test]
    fn node_leaves_for_a_while_and_the_time_begins_anew_when_its_object_goes() {
        let mut index = NodeIndex::default();
        let start = Instant::now();
        index.apply(node("n1", 1, &["10.0.0.1"]));
        assert!(!index.has_leaving() && index.leaving("n1").is_none());
        let deleting = Node {
            is_deleting: true,
            ..node("n1", 1, &["10.0.0.1"])
        };
        let is_over = |index: &NodeIndex| index.leaving("N1").map(|(_, _, is_over)| is_over);
        index.apply(deleting.clone());
        assert!(!index.advance(start) && index.has_leaving());
        index.apply(Node {
            is_draining: true,
            ..deleting
        });
        assert!(!index.advance(start + LEAVE_TIMEOUT / 2));
        assert!(index.advance(start + LEAVE_TIMEOUT) && !index.has_leaving());
        assert_eq!(is_over(&index), Some(true));
        index.remove("n1");
        assert!(!index.advance(start + LEAVE_TIMEOUT));
        assert_eq!(is_over(&index), Some(false));
        index.apply(node("n1", 2, &["10.0.0.1"]));
        assert_eq!(is_over(&index), None);
    }

    #[test]
    fn time_begins_anew_when_the_other_family_is_lost() {
        let start = Instant::now();
        let mut index = NodeIndex::default();
        let left = |index: &NodeIndex| {
            let (_, node, is_over) = index.leaving("n1").unwrap();
            (node.internal_addresses.clone(), is_over)
        };
        index.apply(node("n1", 1, &["10.0.0.1", "fd00::1"]));
        index.apply(node("n1", 1, &["10.0.0.1"]));
        assert_eq!(left(&index), (vec![ip("10.0.0.1"), ip("fd00::1")], false));
        for lost_after in [LEAVE_TIMEOUT / 2, LEAVE_TIMEOUT] {
            for deletes in [false, true] {
                let mut index = index.clone();
                index.advance(start);
                index.advance(start + lost_after);
                if deletes {
                    index.remove("n1");
                }
                index.apply(node("n1", 1, &[]));
                let both = vec![ip("10.0.0.1"), ip("fd00::1")];
                assert_eq!(left(&index), (both, false), "{lost_after:?} {deletes}");
                // Other changes of the Node do not renew it.
                index.advance(start + lost_after);
                index.apply(Node {
                    is_draining: true,
                    ..node("n1", 1, &[])
                });
                index.advance(start + lost_after + LEAVE_TIMEOUT);
                assert!(left(&index).1);
            }
        }
    }

    #[test]
    fn former_nodes_are_bounded() {
        let mut index = NodeIndex::default();
        let start = Instant::now();
        for number in 0..=MAX_FORMER_NODES {
            let name = format!("n{number}");
            index.apply(node(&name, 1, &[]));
            index.remove(&name);
            if number == 0 {
                index.advance(start);
            }
        }
        assert_eq!(index.leaving.len(), MAX_FORMER_NODES);
        assert!(index.leaving("n0").is_none(), "the first is forgotten");
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
