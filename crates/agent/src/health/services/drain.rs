//! Whether the answer about a Service fails because of the node's signals, although the node has ready endpoints. Pure.
//!
//! On a node that is about to end it fails at once. Otherwise it fails only while a read shows another node that keeps serving the
//! Service. A read counts if it began after this process observed the node's signals, and for [`READ_TTL`]. Such a node is Ready,
//! not about to end, in load balancers (a control-plane node only if the own one is one, too), has an agent and a ready endpoint, and
//! - has no signal, or
//! - has signals and a name before the own one, once the own signals have lasted for [`SIGNALLED_WAIT`] in this process, or the own Node
//!   has the marker of failed probes for so long.
//!
//! Invariant: of the nodes that serve a Service in an IP family and are not about to end, one answers 200, whoever observes what how late.
//! Take the one whose signals began last, if all have some. Each of its reads shows signals on all others, so it does not fail in the first
//! [`SIGNALLED_WAIT`]. Later, no read from before its signals counts any more on any node, so nobody finds a node without a signal, and
//! the first of all names finds no other. While a node has the marker, no other one takes it for a node without a signal, so a new process
//! on it need not wait again. This needs reads that are not answered from a cache, and clocks that run equally fast to within the difference
//! of the two times. Three limits: a node that ends, or loses its endpoint, counts until the next read, within seconds; where no marker is
//! written, a node whose signals have ended counts although its agent may not know yet; an endpoint counts once a read shows it ready,
//! although load balancers may not have found its node yet.

use headgate_core::service::NamespacedName;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use headgate_core::clock::{Moment, age_by_wall_clock};
use headgate_core::node::{MARKER_TTL, MarkerFact, Node, NodeObjectState, NodeReport, Signal};
use jiff::Timestamp;
use tokio::time::Instant;

use super::super::failed_probes::PROBES_FAILED;

/// From the start of a read to the end of its validity. Without the API server the node returns then, if it works: whether it has become the
/// last one is unknown.
pub(super) const READ_TTL: Duration = Duration::from_secs(30);
/// How long the node's signals must have lasted before it relies on a node that has signals, too.
pub(super) const SIGNALLED_WAIT: Duration = Duration::from_secs(40);

/// The other nodes with a ready endpoint of a Service that keep serving it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OtherNodes {
    /// One without a signal.
    pub(super) without_signal: Option<String>,
    /// One with signals, whose name is before the own one.
    pub(super) with_earlier_name: Option<String>,
    /// Whether the own Node has the marker for so long that no read that still counts shows it without a signal.
    pub(super) own_is_long_out: bool,
}

impl OtherNodes {
    /// Adds a node that was read. Another one counts only if it works, is not about to end, and has an agent.
    pub(super) fn add(&mut self, node: &Node, own_name: &str, now: Moment) {
        if node.name == own_name {
            self.own_is_long_out = has_long_been_out(node, now);
            return;
        }
        let may_serve = node.ready && !node.is_terminal() && node.excluded.is_none();
        // Nobody answers the probes of headgate's path there. Where kube-proxy answers those of the Service's port, this node only stays longer.
        if !may_serve || node.lacks_agent {
            return;
        }
        // Signals that must last before they count are among them: the other agent counts by its own clock. One that has ended ends for
        // that agent when it observes so, which the marker shows.
        if node.signals.is_empty() {
            let shows_signal = |marker: &MarkerFact| !marker.is_without_signal() && !is_leftover(marker, now);
            if !node.marker.as_ref().is_some_and(shows_signal) {
                self.without_signal.get_or_insert_with(|| node.name.clone());
            }
        } else if *node.name < *own_name {
            self.with_earlier_name.get_or_insert_with(|| node.name.clone());
        }
    }
}

/// Whether the marker is from before the feature was switched off. Elsewhere it is confirmed for as long as the signal lasts, or the node's
/// agent makes it `Unknown`: then load balancers may still have the node `Down`.
fn is_leftover(marker: &MarkerFact, now: Moment) -> bool {
    let is_old = |at| age_by_wall_clock(at, now) >= 2 * marker.ttl(MARKER_TTL);
    marker.needs_confirmation() && marker.confirmed_at.is_some_and(is_old)
}

/// Whether the own marker has said for [`SIGNALLED_WAIT`] that the node's probes have failed, as an earlier process has written it.
fn has_long_been_out(own: &Node, now: Moment) -> bool {
    let is_current =
        |marker: &&MarkerFact| marker.is_out() && marker.reason == PROBES_FAILED && !is_leftover(marker, now);
    let since = own.marker.as_ref().filter(is_current).and_then(|marker| marker.since);
    since.is_some_and(|since| age_by_wall_clock(since, now) >= SIGNALLED_WAIT)
}

/// A read of a Service's other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceRead {
    /// When the first request of the read was sent.
    pub(super) started_at: Instant,
    /// What it showed.
    pub(super) others: OtherNodes,
}

/// The signals of the own Node, each with its start.
pub(super) type Signals = BTreeMap<Signal, Timestamp>;

/// The reads since the node's signals began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainReads {
    /// The signals. Reads for signals that have all ended count no more.
    pub(super) signals: Signals,
    /// When this process observed them.
    pub(super) observed_at: Instant,
    /// The latest read of each Service with endpoints on this node.
    pub(super) services: BTreeMap<NamespacedName, ServiceRead>,
}

impl DrainReads {
    /// The reads of a period that has just been observed: none.
    pub(super) fn new(signals: Signals, observed_at: Instant) -> Self {
        Self {
            signals,
            observed_at,
            services: BTreeMap::new(),
        }
    }

    /// A read of the Service that shows one other node: without a signal, or with one and an earlier name.
    #[cfg(test)]
    pub(crate) fn example(report: &NodeReport, service: &NamespacedName, has_signal: bool, now: Moment) -> Self {
        let other = |is_this: bool| is_this.then(|| "other".to_owned());
        let mut others = OtherNodes {
            without_signal: other(!has_signal),
            with_earlier_name: other(has_signal),
            own_is_long_out: false,
        };
        if let Some(own) = &report.node {
            others.add(own, &own.name, now);
        }
        let started_at = now.mono;
        Self {
            services: [(service.clone(), ServiceRead { started_at, others })].into(),
            ..Self::new(report.signals().clone(), started_at)
        }
    }

    /// Whether the node has had signals without a gap since these were observed, if it has these now.
    pub(super) fn continues_with(&self, signals: &Signals) -> bool {
        signals
            .iter()
            .any(|(signal, since)| self.signals.get(signal) == Some(since))
    }
}

/// What the node's own state says about its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnState {
    /// No signal.
    Eligible,
    /// It has signals, and the leader keeps it in service in some pool.
    HeldByLeader,
    /// It has signals that may be taken back, none of them in its Node object, so that the other nodes do not see them.
    Unpublished,
    /// It has signals that may be taken back.
    Signalled,
    /// It has signals and ends whatever others do, or no load balancer has it.
    Ending,
}

impl OwnState {
    /// Reads the own state. `others` are the signals that are not in the Node object.
    pub(super) fn read(report: &NodeReport, others: &[&Signal], now: Instant) -> Self {
        if report.signals().is_empty() && others.is_empty() {
            return Self::Eligible;
        }
        let is_ending = |node: &Node| node.ends || node.excluded.is_some();
        let is_ending = others.iter().any(|signal| !signal.is_revocable())
            || report.object_state == NodeObjectState::Deleted
            || report.node.as_ref().is_some_and(is_ending);
        let names: Vec<_> = others.iter().map(|signal| signal.name()).collect();
        if is_ending {
            Self::Ending
        } else if report.is_held_in_a_pool(&names, now) {
            Self::HeldByLeader
        } else if report.node.as_ref().is_some_and(Node::is_terminal) {
            Self::Ending
        } else if report.signals().is_empty() {
            Self::Unpublished
        } else {
            Self::Signalled
        }
    }
}

/// What signals make of the answer about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceDrain {
    /// The node has no signal.
    Eligible,
    /// The answer is 503.
    Failing,
    /// The answer does not depend on the signals.
    KeepsServing(HoldReason),
}

/// Why the answer about a Service does not fail although the node has signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// The leader keeps the node in service.
    Leader,
    /// The signals are not in the Node object, so that of two nodes with such signals each would count the other.
    Unpublished,
    /// The other nodes are not read yet, or could not be read lately.
    NotRead,
    /// No other node keeps serving.
    LastServing,
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "keeps serving: the leader keeps the node in service",
            Self::Unpublished => "keeps serving: other nodes cannot see the signals, which are not in the Node object",
            Self::NotRead => "keeps serving: the other nodes with a ready endpoint could not be read within 30 s",
            Self::LastServing => "keeps serving: last serving node",
        })
    }
}

/// What the node's signals make of the answer about a Service with endpoints here.
pub(super) fn service_drain(
    own: OwnState,
    reads: Option<&DrainReads>,
    service: &NamespacedName,
    now: Instant,
) -> ServiceDrain {
    match own {
        OwnState::Eligible => return ServiceDrain::Eligible,
        OwnState::Ending => return ServiceDrain::Failing,
        OwnState::HeldByLeader => return ServiceDrain::KeepsServing(HoldReason::Leader),
        OwnState::Unpublished => return ServiceDrain::KeepsServing(HoldReason::Unpublished),
        OwnState::Signalled => {}
    }
    let not_read = ServiceDrain::KeepsServing(HoldReason::NotRead);
    let Some((reads, read)) = reads.and_then(|reads| Some((reads, reads.services.get(service)?))) else {
        return not_read;
    };
    if read.started_at < reads.observed_at || now >= read.started_at + READ_TTL {
        return not_read;
    }
    let relies_on_signalled = read.others.own_is_long_out || now >= reads.observed_at + SIGNALLED_WAIT;
    let is_served =
        read.others.without_signal.is_some() || relies_on_signalled && read.others.with_earlier_name.is_some();
    if is_served {
        ServiceDrain::Failing
    } else {
        ServiceDrain::KeepsServing(HoldReason::LastServing)
    }
}

#[cfg(test)]
mod tests;
