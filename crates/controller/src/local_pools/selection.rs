//! The members that a Local Service's pool is to have: from its EndpointSlices to node addresses.
//!
//! Invariants: all slices of a Service count together; an address counts once; a node that was never known gives no member.
//! A node that is being deleted or has gone gives a member that is not added and, for a while, not removed
//! (`nodes`); where more than half of the nodes with an endpoint are unknown, none of them is removed for that.
//! A Service without any slice has no desired members at all, which is not the same as an empty set: its pools stay as
//! they are.
//!
//! Source: cloud-provider-azure `getDesiredStateForLocalService` (pull request 10730) for what is counted,
//! `shouldNodeExcludedFromLoadBalancer` for the nodes that are left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::local_pools::nodes::{Node, NodeIndex, numbered_entry_name};
use crate::local_pools::operation::{DesiredMember, DesiredMembers};
use headgate_core::service::{EndpointSliceObject, IpFamily};

/// The most members of one family that a node gives, as a node writes its own addresses.
const MAX_NODE_ADDRESSES: usize = 4;

/// Why a node with an endpoint is not a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberSkipReason {
    /// The endpoint has no `nodeName`.
    NoNodeName,
    /// No Node of this name is known.
    UnknownNode,
    /// The Node is being deleted.
    NodeDeleting,
    /// The Node has this label, which keeps it out of load balancers.
    Excluded(&'static str),
    /// The Node has no `InternalIP` of the pool's family.
    NoAddress(IpFamily),
}

impl std::fmt::Display for MemberSkipReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoNodeName => f.write_str("an endpoint has no nodeName"),
            Self::UnknownNode => f.write_str("there is no Node of this name"),
            Self::NodeDeleting => f.write_str("the Node is being deleted"),
            Self::Excluded(label) => write!(f, "the Node has the label {label}"),
            Self::NoAddress(family) => write!(f, "the Node has no {family} InternalIP"),
        }
    }
}

/// A node with an endpoint that is not a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSkip {
    /// Its name; `None` where the endpoint has none.
    pub node: Option<Arc<str>>,
    /// Why the node is not a member.
    pub reason: MemberSkipReason,
}

/// The members of one pool, and the nodes that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSelection {
    /// What the pool is to have.
    pub members: DesiredMembers,
    /// The nodes that are not members, each once.
    pub skipped: Vec<MemberSkip>,
}

/// The nodes of one slice: each once, with whether one of its endpoints there is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SliceNodes {
    nodes: Box<[(Arc<str>, bool)]>,
    has_endpoint_without_node: bool,
}

impl SliceNodes {
    /// Names of known Nodes are shared with `nodes`, because there are many slices.
    pub(crate) fn new(slice: &EndpointSliceObject, nodes: &NodeIndex) -> Self {
        let mut found: BTreeMap<String, bool> = BTreeMap::new();
        let mut has_endpoint_without_node = false;
        for endpoint in slice.endpoints.iter().flatten() {
            match endpoint.node_name.as_deref() {
                None | Some("") => has_endpoint_without_node = true,
                Some(name) => *found.entry(name.to_ascii_lowercase()).or_default() |= endpoint.is_ready(),
            }
        }
        let shared = |name: String| {
            nodes
                .key(&name)
                .map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
        };
        Self {
            nodes: found.into_iter().map(|(name, ready)| (shared(name), ready)).collect(),
            has_endpoint_without_node,
        }
    }
}

/// The nodes with an endpoint in any of these slices. `None` where there are no slices.
pub(crate) fn select_members<'a>(
    slices: impl IntoIterator<Item = &'a SliceNodes>,
    is_ready_required: bool,
    family: IpFamily,
    nodes: &NodeIndex,
) -> Option<MemberSelection> {
    let mut names: BTreeMap<&Arc<str>, bool> = BTreeMap::new();
    let (mut has_slices, mut has_endpoint_without_node) = (false, false);
    for slice in slices {
        has_slices = true;
        has_endpoint_without_node |= slice.has_endpoint_without_node;
        for (name, ready) in &slice.nodes {
            *names.entry(name).or_default() |= ready;
        }
    }
    let mut members = Vec::new();
    let mut skipped = Vec::new();
    if has_endpoint_without_node {
        skipped.push(MemberSkip {
            node: None,
            reason: MemberSkipReason::NoNodeName,
        });
    }
    names.retain(|_, ready| !is_ready_required || *ready);
    let unknown = names.keys().filter(|name| nodes.is_unknown(name, family)).count();
    let keeps_unknown = unknown * 2 > names.len();
    for name in names.into_keys() {
        let found = members_of(name, family, nodes);
        if let Err(reason) = found.map(|found| members.extend(found)) {
            members.extend(leaving_members(name, family, nodes, keeps_unknown));
            skipped.push(MemberSkip {
                node: Some(Arc::clone(name)),
                reason,
            });
        }
    }
    // Of several nodes with an endpoint and one address, the youngest: it is more likely to have the address.
    // One that leaves counts last.
    members.sort_by_key(|(node, member)| (member.is_leaving, Reverse((node.created, node.name.clone()))));
    let mut members: Vec<_> = members.into_iter().map(|(_, member)| member).collect();
    share_addresses(&mut members);
    has_slices.then(|| MemberSelection {
        members: members.into_iter().collect(),
        skipped,
    })
}

/// The Node that an entry names decides about it alone. An address that several nodes with an endpoint claim gets a name that is no Node's, so that
/// all of them decide: a compromised node takes nothing but itself out.
fn share_addresses(members: &mut [DesiredMember]) {
    let mut claims: BTreeMap<IpAddr, BTreeMap<Arc<str>, bool>> = BTreeMap::new();
    let stay = |member: &&mut DesiredMember| !member.is_leaving;
    for member in members.iter_mut().filter(stay) {
        let claimants = claims.entry(member.address.to_canonical()).or_default();
        claimants.insert(Arc::clone(&member.node), member.is_draining);
    }
    for member in members.iter_mut().filter(stay) {
        let claimants = claims.get(&member.address.to_canonical());
        if let Some(claimants) = claimants.filter(|claimants| claimants.len() > 1) {
            member.node = numbered_entry_name(&member.node, member.address).into();
            member.is_draining = claimants.values().all(|is_draining| *is_draining);
        }
    }
}

/// A member for every address of the family that the node with the endpoint has. Another Node that claims the address
/// does not name the member: the Node that an entry names decides about it.
fn members_of<'a>(
    name: &str,
    family: IpFamily,
    nodes: &'a NodeIndex,
) -> Result<Vec<(&'a Node, DesiredMember)>, MemberSkipReason> {
    let (name, node) = nodes.key(name).ok_or(MemberSkipReason::UnknownNode)?;
    if let Some(label) = node.excluded_by {
        return Err(MemberSkipReason::Excluded(label));
    }
    if node.is_deleting {
        return Err(MemberSkipReason::NodeDeleting);
    }
    let members: Vec<_> = addresses_of(name, node, family, false).collect();
    if members.is_empty() {
        return Err(MemberSkipReason::NoAddress(family));
    }
    Ok(members)
}

/// The members that a node keeps while it leaves. One that is excluded keeps none.
fn leaving_members<'a>(
    name: &str,
    family: IpFamily,
    nodes: &'a NodeIndex,
    keeps_unknown: bool,
) -> impl Iterator<Item = (&'a Node, DesiredMember)> + use<'a> {
    let keeps = keeps_unknown && nodes.is_unknown(name, family);
    let leaving = nodes.leaving(name).filter(|(_, node, is_over)| {
        let is_excluded = nodes.get(name).unwrap_or(node).excluded_by.is_some();
        !is_excluded && (keeps || !is_over)
    });
    leaving
        .into_iter()
        .flat_map(move |(name, node, _)| addresses_of(name, node, family, true))
}

fn addresses_of<'a>(
    name: &'a Arc<str>,
    node: &'a Node,
    family: IpFamily,
    is_leaving: bool,
) -> impl Iterator<Item = (&'a Node, DesiredMember)> + use<'a> {
    let addresses = node.internal_addresses.iter().copied();
    let addresses = addresses.filter(move |address| IpFamily::from(*address) == family);
    addresses.take(MAX_NODE_ADDRESSES).map(move |address| {
        let member = DesiredMember {
            address,
            node: Arc::clone(name),
            is_draining: node.is_draining,
            is_leaving,
        };
        (node, member)
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::local_pools::fixtures::slice;

    fn node(name: &str, addresses: &[&str]) -> Node {
        Node {
            name: name.into(),
            internal_addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..Node::default()
        }
    }

    fn nodes() -> NodeIndex {
        let mut index = NodeIndex::default();
        index.apply(node("n1", &["10.0.0.1", "fd00::1"]));
        index.apply(node("n2", &["10.0.0.2", "fd00::2"]));
        index.apply(node("two", &["10.0.0.3", "10.0.0.4"]));
        index.apply(Node {
            excluded_by: Some("node.kubernetes.io/exclude-from-external-load-balancers"),
            ..node("excluded", &["10.0.0.5"])
        });
        index.apply(Node {
            is_deleting: true,
            ..node("deleting", &["10.0.0.6"])
        });
        index.apply(Node {
            is_draining: true,
            ..node("draining", &["10.0.0.7"])
        });
        index
    }

    fn select(
        slices: &[&[(&str, Option<bool>)]],
        is_ready_required: bool,
        family: IpFamily,
    ) -> Option<MemberSelection> {
        let nodes = nodes();
        let slices: Vec<_> = slices
            .iter()
            .map(|endpoints| SliceNodes::new(&slice("web-1", Some("web"), endpoints), &nodes))
            .collect();
        select_members(&slices, is_ready_required, family, &nodes)
    }

    fn addresses(selected: &MemberSelection) -> Vec<String> {
        let members = selected.members.as_slice().iter();
        members.map(|member| member.address.to_string()).collect()
    }

    #[test]
    fn every_endpoint_of_every_slice_counts_once() {
        let slices: &[&[_]] = &[
            &[("n1", None), ("N1", Some(true))],
            &[("n2", Some(false)), ("n1", None)],
        ];
        let all = select(slices, false, IpFamily::IPv4).unwrap();
        assert_eq!(addresses(&all), ["10.0.0.1", "10.0.0.2"], "whatever the conditions");
        let v6 = select(slices, false, IpFamily::IPv6).unwrap();
        assert_eq!(addresses(&v6), ["fd00::1", "fd00::2"]);
        let ready = select(slices, true, IpFamily::IPv4).unwrap();
        assert_eq!(addresses(&ready), ["10.0.0.1"], "a missing condition means ready");
    }

    #[test]
    fn one_ready_endpoint_makes_its_node_ready() {
        let slices: &[&[_]] = &[&[("n1", Some(false))], &[("n1", Some(true)), ("n1", Some(false))]];
        let ready = select(slices, true, IpFamily::IPv4).unwrap();
        assert_eq!(addresses(&ready), ["10.0.0.1"]);
    }

    #[test]
    fn no_slice_is_not_an_empty_slice() {
        assert_eq!(select(&[], false, IpFamily::IPv4), None);
        let empty = select(&[&[]], false, IpFamily::IPv4).unwrap();
        assert!(empty.members.as_slice().is_empty() && empty.skipped.is_empty());
    }

    #[test]
    fn nodes_that_are_left_out_have_a_reason() {
        let endpoints = ["", "gone", "excluded", "deleting", "two", "draining"].map(|name| (name, None));
        let selected = select(&[&endpoints], false, IpFamily::IPv4).unwrap();
        assert_eq!(
            addresses(&selected),
            ["10.0.0.3", "10.0.0.4", "10.0.0.6", "10.0.0.7"],
            "every address of a node"
        );
        let members = selected.members.as_slice().iter();
        let leaving: Vec<_> = members.map(|member| member.is_leaving).collect();
        assert_eq!(leaving, [false, false, true, false], "the Node that is being deleted");
        let draining: Vec<_> = selected
            .members
            .as_slice()
            .iter()
            .map(|member| member.is_draining)
            .collect();
        assert_eq!(draining, [false, false, false, true]);
        let skipped: Vec<_> = selected
            .skipped
            .iter()
            .map(|skip| (skip.node.as_deref(), skip.reason.to_string()))
            .collect();
        assert_eq!(
            skipped,
            [
                (None, "an endpoint has no nodeName".to_owned()),
                (Some("deleting"), "the Node is being deleted".to_owned()),
                (
                    Some("excluded"),
                    "the Node has the label node.kubernetes.io/exclude-from-external-load-balancers".to_owned()
                ),
                (Some("gone"), "there is no Node of this name".to_owned()),
            ]
        );
        let v6 = select(&[&[("two", None)]], false, IpFamily::IPv6).unwrap();
        assert_eq!(v6.skipped[0].reason, MemberSkipReason::NoAddress(IpFamily::IPv6));
    }

    #[test]
    fn an_address_of_two_nodes_with_an_endpoint_is_that_of_both() {
        let mut nodes = nodes();
        nodes.apply(Node {
            created: Timestamp::from_second(9).unwrap(),
            is_draining: true,
            ..node("younger", &["10.0.0.1"])
        });
        let slices = [SliceNodes::new(
            &slice("web-1", Some("web"), &[("n1", None), ("younger", None)]),
            &nodes,
        )];
        let selected = select_members(&slices, false, IpFamily::IPv4, &nodes).unwrap();
        let [member] = selected.members.as_slice() else {
            panic!("{selected:?}")
        };
        assert_eq!(
            (&*member.node, member.is_draining),
            ("younger-10-0-0-1", false),
            "no Node's name"
        );
        assert!(nodes.owns_entry(Some(&*member.node), member.address));
    }

    #[test]
    fn node_that_only_claims_an_address_does_not_name_the_member() {
        let mut nodes = nodes();
        nodes.apply(Node {
            created: Timestamp::from_second(9).unwrap(),
            is_draining: true,
            ..node("younger", &["10.0.0.1"])
        });
        let slices = [SliceNodes::new(&slice("web-1", Some("web"), &[("n1", None)]), &nodes)];
        let selected = select_members(&slices, false, IpFamily::IPv4, &nodes).unwrap();
        let [member] = selected.members.as_slice() else {
            panic!("{selected:?}")
        };
        assert_eq!((&*member.node, member.is_draining), ("n1", false));
    }
}
