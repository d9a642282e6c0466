//! What the last reads of all load balancers show of each Node with a signal: whether it is out of service. Pure.
//!
//! Invariant: that a Node is out follows only from a list of load balancers that was sent after its signal was observed and is not
//! older than [`MAX_LIST_AGE`], and from plans of all of them that know the signal. What waits for it, such as a maintenance,
//! is left to the receiver.

use std::collections::BTreeMap;

use headgate_azure::AdminState;
use headgate_clock::Moment;
use jiff::Timestamp;

use super::editor::LoadBalancerStatus;
use super::ledger::LedgerStage;
use super::plan::EntryStatus;
use super::settings::AdminStateMode;
use super::target_states::{TargetState, TargetStates};
use super::transitions::pool_names;
use crate::pool::{ClusterNode, Listing};

/// Lists are repeated every 15 s while a Node has a signal, so an older one means that they fail.
const MAX_LIST_AGE: std::time::Duration = std::time::Duration::from_mins(1);

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

/// What the reads are derived from.
#[derive(Clone, Copy)]
pub(super) struct ReadInputs<'a> {
    pub(super) targets: &'a TargetStates,
    /// Of all load balancers.
    pub(super) load_balancers: &'a [LoadBalancerStatus],
    pub(super) listing: &'a Listing,
    pub(super) mode: AdminStateMode,
    pub(super) now: Moment,
}

/// The reads of all Nodes whose signal counts. `previous` has since when those that were out before are out.
pub(super) fn node_reads(inputs: ReadInputs<'_>, previous: &NodeReads) -> NodeReads {
    let mut entries: BTreeMap<&str, Vec<&EntryStatus>> = BTreeMap::new();
    for status in inputs
        .load_balancers
        .iter()
        .flat_map(|load_balancer| &load_balancer.entries)
    {
        entries.entry(&status.node.uid).or_default().push(status);
    }
    let has_signal = |node: &ClusterNode| {
        let period = inputs.targets.signal_period(node);
        period.is_some_and(|period| period.ended_at.is_none())
    };
    let signalled = inputs.targets.nodes.iter().filter(|node| has_signal(node));
    signalled
        .map(|node| {
            let own = entries.get(node.uid.as_str()).map_or(&[][..], Vec::as_slice);
            let before = match previous.get(&node.name) {
                Some(NodeRead::Out { since }) => Some(*since),
                _ => None,
            };
            (node.name.clone(), node_read(inputs, node, own, before))
        })
        .collect()
}

fn node_read(
    inputs: ReadInputs<'_>,
    node: &ClusterNode,
    entries: &[&EntryStatus],
    before: Option<Timestamp>,
) -> NodeRead {
    if let Some(reason) = unknown(inputs, node, entries) {
        return NodeRead::Unknown { reason };
    }
    let not_down = |is_held_back: bool| -> Vec<&EntryStatus> {
        let all = entries.iter().copied();
        all.filter(|entry| entry.observed != Some(AdminState::Down) && entry.is_held_back == is_held_back)
            .collect()
    };
    let (held_back, serving) = (not_down(true), not_down(false));
    if !serving.is_empty() {
        let because = match (inputs.mode, node.exempting_label()) {
            (_, Some(label)) => format!("; the label {label} keeps headgate from setting it Down"),
            (AdminStateMode::Observe, None) => "; adminState.mode is observe".to_owned(),
            _ => String::new(),
        };
        let detail = format!("in service in {}{because}", pool_names(&serving));
        return NodeRead::In { detail };
    }
    if !held_back.is_empty() {
        let detail = format!("in service in {}", pool_names(&held_back));
        return NodeRead::HeldBack { detail };
    }
    if entries.is_empty() {
        return NodeRead::NotUsed;
    }
    // A new leader has the times of the one before from the ledger.
    let recorded = entries.iter().filter_map(|entry| entry.ledger_entry);
    let recorded = recorded.filter(|entry| entry.stage == LedgerStage::Down);
    let since = before
        .or_else(|| recorded.map(|entry| entry.since).max())
        .unwrap_or(inputs.now.wall);
    let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
    NodeRead::Out { since }
}

/// Why the reads say nothing about a Node, if so.
fn unknown(inputs: ReadInputs<'_>, node: &ClusterNode, entries: &[&EntryStatus]) -> Option<String> {
    if inputs.mode == AdminStateMode::Off {
        return Some("adminState.mode is off".to_owned());
    }
    if inputs.targets.stale_since().is_some() {
        return Some("the leader's list of Nodes is stale".to_owned());
    }
    let period = inputs.targets.signal_period(node)?;
    let error = inputs.listing.last_error.as_ref().map(|error| error.message.as_str());
    let is_recent = inputs
        .listing
        .requested_at
        .is_some_and(|at| at >= period.since.mono && inputs.now.mono.saturating_duration_since(at) <= MAX_LIST_AGE);
    if !is_recent {
        return Some(match error {
            Some(error) => format!("load balancers are not listed: {error}"),
            None => "load balancers are not listed since the signal yet".to_owned(),
        });
    }
    let target = inputs.targets.target_state(node, inputs.now.mono).in_mode(inputs.mode);
    let mut load_balancers = inputs.load_balancers.iter();
    let is_planned = load_balancers.all(|load_balancer| load_balancer.has_planned(period.generation));
    if target != TargetState::Down || !is_planned || entries.iter().any(|entry| entry.target != target) {
        return Some("not every load balancer is planned with the signal yet".to_owned());
    }
    // An entry in a pool with an interface that cannot be read may be the Node's.
    let mut unreadable = inputs
        .load_balancers
        .iter()
        .flat_map(|load_balancer| &load_balancer.unreadable_pools);
    let unread = unreadable.find(|unreadable| !entries.iter().any(|entry| entry.pool == unreadable.pool))?;
    Some(format!(
        "pool {} has entries of unknown nodes: {}",
        unread.pool.name(),
        unread.last_error.message
    ))
}
