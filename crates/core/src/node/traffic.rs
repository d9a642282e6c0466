//! Whether load balancers send new connections to a node, as far as reads prove it. Pure.
//!
//! [`NodeTraffic`] is the one value for this: the leader derives it from its reads of the pools, or from the condition that an agent
//! writes after failed probes. The marker, and by it the delays of autoscalers and `why`, and the gate of a maintenance follow from it. How
//! long an answer may be awaited is left to them. Events and the entries of `status` say less: what an entry was read as.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

/// What reads prove about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeTraffic {
    /// No load balancer sends new connections to the node.
    Out {
        /// When a read showed that first, in whole seconds; `None` if no pool that a rule uses has an entry of the node.
        since: Option<Timestamp>,
    },
    /// An entry of the node gets new connections.
    InService {
        /// In which pools, and why where it stays so.
        detail: String,
    },
    /// The guard keeps an entry of the node in service, because too few others can serve.
    HeldBack {
        /// In which pools.
        detail: String,
    },
    /// Nothing.
    Unknown(Unproved),
}

/// By the name of the Node. Nodes that nothing is to take out are missing.
pub type TrafficByNode = BTreeMap<String, NodeTraffic>;

/// Why the reads prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// The leader sets no Node `Down`.
    #[error("adminState.mode is Disabled")]
    ModeOff,
    /// The Nodes are known as of then only.
    #[error("the leader's list of Nodes is stale since {0:.0}")]
    NodesStale(Timestamp),
    /// Not every load balancer was planned with the signal.
    #[error("not every load balancer is planned with the signal yet")]
    NotPlanned,
    /// A pool entry that only the last list shows may be the Node's.
    #[error("the last list shows a pool entry that is not planned yet")]
    EntryNotPlanned,
    /// There is no list of load balancers that is recent and newer than the signal.
    #[error("load balancers are not listed{}", .0.as_ref().map_or_else(|| " since the signal yet".to_owned(), |error| format!(": {error}")))]
    NotListed(Option<String>),
    /// No load balancer has the cluster's names, which may be wrong.
    #[error(
        "no load balancer has the cluster's names (azure.clusterName), which may be wrong: Services of type LoadBalancer have frontends, or \
         cannot be listed; headgate status shows the names"
    )]
    NoLoadBalancer,
    /// The Node lacks that by which its entries are found, or an entry has it in no known form.
    #[error(
        "the Node lacks an InternalIP or a providerID of Azure, by which entries of its pools are found, or a pool does not say whose its entries are"
    )]
    NotIdentified,
    /// A pool entry with this address may be another Node's.
    #[error("{0} is an InternalIP of another Node, too")]
    AddressContested(IpAddr),
    /// A pool entry of this machine may be another Node's.
    #[error("{0} is the machine of another Node, too")]
    MachineContested(String),
    /// The entry of an interface that is not known yet may be the Node's.
    #[error("a network interface of a pool is not known yet")]
    InterfaceUnknown,
    /// The entry of an interface that cannot be read may be the Node's. The message names pool and interface.
    #[error("a pool has entries of unknown nodes: {0}")]
    InterfaceUnreadable(String),
    /// What the node's agent wrote proves nothing, or nothing was written or read at all.
    #[error("{0}")]
    NotConfirmed(String),
}

impl Unproved {
    /// Whether nothing but a newer read is missing. The others say that the node may serve again, or that no read will tell.
    pub fn is_missing_read(&self) -> bool {
        match self {
            Self::NodesStale(_)
            | Self::NotPlanned
            | Self::NotListed(_)
            | Self::InterfaceUnknown
            | Self::NotConfirmed(_) => true,
            Self::ModeOff
            | Self::EntryNotPlanned
            | Self::NoLoadBalancer
            | Self::NotIdentified
            | Self::AddressContested(_)
            | Self::MachineContested(_)
            | Self::InterfaceUnreadable(_) => false,
        }
    }

    /// The reason of the marker.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ModeOff => "AdminStateOff",
            Self::NodesStale(_) => "NodesStale",
            Self::NotPlanned
            | Self::EntryNotPlanned
            | Self::NotListed(_)
            | Self::InterfaceUnknown
            | Self::InterfaceUnreadable(_) => "NotRead",
            Self::NoLoadBalancer => "NoLoadBalancer",
            Self::NotIdentified => "NotIdentified",
            Self::AddressContested(_) => "AddressContested",
            Self::MachineContested(_) => "MachineContested",
            Self::NotConfirmed(_) => "NotConfirmed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unproved_has_a_reason_and_may_be_a_matter_of_the_next_read() {
        let text = || "it".to_owned();
        for (unproved, reason, is_missing_read) in [
            (Unproved::ModeOff, "AdminStateOff", false),
            (Unproved::NodesStale(Timestamp::UNIX_EPOCH), "NodesStale", true),
            (Unproved::NotPlanned, "NotRead", true),
            (Unproved::EntryNotPlanned, "NotRead", false),
            (Unproved::NotListed(None), "NotRead", true),
            (Unproved::NoLoadBalancer, "NoLoadBalancer", false),
            (Unproved::NotIdentified, "NotIdentified", false),
            (
                Unproved::AddressContested([10, 0, 0, 1].into()),
                "AddressContested",
                false,
            ),
            (Unproved::MachineContested(text()), "MachineContested", false),
            (Unproved::InterfaceUnknown, "NotRead", true),
            (Unproved::InterfaceUnreadable(text()), "NotRead", false),
            (Unproved::NotConfirmed(text()), "NotConfirmed", true),
        ] {
            let found = (unproved.reason(), unproved.is_missing_read());
            assert_eq!(found, (reason, is_missing_read), "{unproved}");
        }
    }
}
