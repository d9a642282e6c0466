//! What the last reads of all load balancers show of each Node with a signal: whether it is out of service. Pure.
//!
//! Invariant: that a Node is out follows only from [`prove`], and from a list of load balancers that was sent after its signal was
//! observed. What waits for it, such as a maintenance, is left to the receiver.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::ledger::LedgerStage;
use super::plan::EntryStatus;
use super::read_proof::{
    LastReads, MAX_LIST_AGE, MissingProof, OwnEntry, ReadProof, entries_by_node, present_signal, prove,
};
use super::rule_guard::HeldFor;
use super::settings::AdminStateMode;
use super::target_states::{SignalPeriod, TargetState};
use super::transitions::pool_names;
use crate::pool::{Claimed, ClusterNode};

/// What the last reads show of one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRead {
    /// There is no recent read that knows the Node's signal.
    Unknown {
        /// Why there is none.
        reason: String,
    },
    /// An entry of the Node gets new connections.
    In {
        /// In which pools, and why where it stays so.
        detail: String,
    },
    /// The guard keeps an entry of the Node in service.
    HeldBack {
        /// In which pools.
        detail: String,
    },
    /// All entries of the Node are `Down`.
    Out {
        /// When a read showed that first, in whole seconds.
        since: Timestamp,
    },
    /// No pool that a rule uses has an entry of the Node.
    NotUsed,
}

/// The reads by the name of the Node. Nodes without a signal are missing.
pub type NodeReads = BTreeMap<String, NodeRead>;

/// The reads of all Nodes whose signal counts. `previous` has since when those that were out before are out.
pub(super) fn node_reads(reads: &LastReads<'_>, previous: &NodeReads, now: Timestamp) -> NodeReads {
    let entries = entries_by_node(reads.load_balancers);
    let nodes = reads.targets.nodes.iter();
    let signalled = nodes.filter_map(|node| Some((node, present_signal(reads.targets, node)?)));
    signalled
        .map(|(node, period)| {
            let own = entries.get(node.uid.as_str()).map_or(&[][..], Vec::as_slice);
            let before = match previous.get(&node.name) {
                Some(NodeRead::Out { since }) => Some(*since),
                _ => None,
            };
            let since = before.or_else(|| recorded_since(own)).unwrap_or(now);
            let read = match unread(reads, node, period, own) {
                Some(reason) => NodeRead::Unknown { reason },
                None => node_read(reads, node, period, own, since),
            };
            (node.name.clone(), read)
        })
        .collect()
}

/// What a recent read shows. `since` is the time for a Node that is out.
fn node_read(
    reads: &LastReads<'_>,
    node: &ClusterNode,
    period: &SignalPeriod,
    own: &[OwnEntry<'_>],
    since: Timestamp,
) -> NodeRead {
    let unknown = |reason: String| NodeRead::Unknown { reason };
    match prove(reads, node, period, own) {
        ReadProof::Out if own.is_empty() => NodeRead::NotUsed,
        ReadProof::Out => NodeRead::Out {
            since: Timestamp::from_second(since.as_second()).unwrap_or(since),
        },
        ReadProof::InService { entries, .. } => in_service(reads.mode, node, &entries),
        ReadProof::Nothing(missing) => match missing {
            MissingProof::ModeOff => unknown("adminState.mode is off".to_owned()),
            MissingProof::NodesStale(_) => unknown("the leader's list of Nodes is stale".to_owned()),
            MissingProof::NotPlanned => unknown("not every load balancer is planned with the signal yet".to_owned()),
            MissingProof::NotListed => unknown(not_listed(reads)),
            MissingProof::NoLoadBalancer => unknown(
                "no load balancer has the cluster's names (azure.clusterName), which may be wrong: Services of type \
                 LoadBalancer exist, or cannot be listed"
                    .to_owned(),
            ),
            MissingProof::NotIdentified => unknown(
                "the Node has neither an InternalIP nor a providerID, by which pool entries are found".to_owned(),
            ),
            MissingProof::Contested(Claimed::Address(address)) => {
                unknown(format!("{address} is an InternalIP of another Node, too"))
            }
            MissingProof::Contested(Claimed::Machine(machine)) => {
                unknown(format!("{machine} is the machine of another Node, too"))
            }
            MissingProof::InterfaceUnknown => unknown("a network interface of a pool is not known yet".to_owned()),
            MissingProof::InterfaceUnreadable(message) => {
                unknown(format!("a pool has entries of unknown nodes: {message}"))
            }
        },
    }
}

fn in_service(mode: AdminStateMode, node: &ClusterNode, entries: &[&EntryStatus]) -> NodeRead {
    let (held_back, serving): (Vec<&EntryStatus>, Vec<_>) =
        entries.iter().partition(|entry| entry.held_for.is_needed());
    if serving.is_empty() {
        let detail = format!(
            "in service in {}{}",
            pool_names(&held_back),
            needed_by_services(&held_back)
        );
        return NodeRead::HeldBack { detail };
    }
    let because = match (mode, node.exempting_label()) {
        (_, Some(label)) => format!("; the label {label} keeps headgate from setting it Down"),
        (AdminStateMode::Observe, None) => "; adminState.mode is observe".to_owned(),
        (AdminStateMode::Enforce | AdminStateMode::Off, None) => {
            match HeldFor::union(serving.iter().copied()).reason() {
                reason if reason.is_empty() => reason,
                reason => format!("; {reason}"),
            }
        }
    };
    let detail = format!("in service in {}{because}", pool_names(&serving));
    NodeRead::In { detail }
}

/// Which Services need the entries, where some do.
fn needed_by_services(entries: &[&EntryStatus]) -> String {
    let held_for = HeldFor {
        services: HeldFor::union(entries.iter().copied()).services,
        ..HeldFor::default()
    };
    match held_for.reason() {
        reason if reason.is_empty() => reason,
        reason => format!(": {reason}"),
    }
}

/// When the last entry became `Down`. A new leader has the times of the one before from the ledger.
fn recorded_since(own: &[OwnEntry<'_>]) -> Option<Timestamp> {
    let recorded = own.iter().filter_map(|own| own.entry.ledger_entry);
    let recorded = recorded.filter(|entry| entry.stage == LedgerStage::Down);
    recorded.map(|entry| entry.since).max()
}

/// Why there is no read that a maintenance may rely on, if so. Beside what a proof needs, the list has to be sent after the signal:
/// an older one may not show a pool that the Node has joined since.
fn unread(reads: &LastReads<'_>, node: &ClusterNode, period: &SignalPeriod, own: &[OwnEntry<'_>]) -> Option<String> {
    if reads.mode == AdminStateMode::Off || reads.targets.stale_since().is_some() {
        return None;
    }
    let is_recent = reads
        .listing
        .requested_at
        .is_some_and(|at| at >= period.since.mono && reads.now < at + MAX_LIST_AGE);
    if !is_recent {
        return Some(not_listed(reads));
    }
    let target = reads.targets.target_state(node, reads.now).in_mode(reads.mode);
    let mut load_balancers = reads.load_balancers.iter();
    let is_planned = load_balancers.all(|one| one.status.has_planned(period.generation));
    let is_targeted = target == TargetState::Down && own.iter().all(|own| own.entry.target == target);
    (!is_planned || !is_targeted).then(|| "not every load balancer is planned with the signal yet".to_owned())
}

fn not_listed(reads: &LastReads<'_>) -> String {
    match &reads.listing.last_error {
        Some(error) => format!("load balancers are not listed: {}", error.message),
        None => "load balancers are not listed since the signal yet".to_owned(),
    }
}
