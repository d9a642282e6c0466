//! Whether connections still pass through the own node while it has a signal, from one count after the other. Pure.
//!
//! Invariants: [`ConnectionsState::Drained`] follows two counts in a row that began after the node had left its load balancers and after
//! the last order, and found nothing; a failed count, one that may be too small, other Services, and a return to the load balancers begin
//! anew. A count holds for [`STALE_AFTER`], so a counter that is gone makes nothing wait for longer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::node::{MARKER_NO_SIGNAL, MAX_MARKER_MESSAGE_BYTES, MarkerCondition, MarkerStatus};
use jiff::Timestamp;
use tokio::time::Instant;

use super::count::ConnectionCount;

/// How long a count holds. Counts begin 40 s apart at most, and each takes 10 s at most.
pub(super) const STALE_AFTER: Duration = Duration::from_mins(1);
/// From the first order to its report. A wait may last longer by this time where nothing counts.
const FIRST_COUNT_TIMEOUT: Duration = Duration::from_secs(15);
/// From the signal to the first order: Services are listed first.
const FIRST_ORDER_TIMEOUT: Duration = Duration::from_secs(45);
/// The Services that are remembered since the signal.
const MAX_SEEN: usize = 10_000;
/// The least time between two writes of the condition, apart from those that are urgent.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// Counts without a connection in a row.
const ZEROS: u32 = 2;
/// Services that a message names.
pub(super) const NAMED_SERVICES: usize = 5;

/// What is known of the connections through a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConnectionsState {
    /// The node has no signal, so nothing counts.
    #[default]
    NoSignal,
    /// The first count is not there yet.
    NotCountedYet,
    /// Connections pass through the node.
    Open(Arc<ConnectionCount>),
    /// None do, but load balancers may still send new ones.
    InService,
    /// The last count found none, and the next one is to confirm it.
    Confirming,
    /// None do, and load balancers send no new ones.
    Drained,
    /// Nothing, and why.
    Unknown(String),
}

impl ConnectionsState {
    /// The condition `headgate.dev/ConnectionsDrained`.
    pub fn condition(&self) -> MarkerCondition {
        let (status, reason, mut message) = match self {
            Self::NoSignal => (
                MarkerStatus::False,
                MARKER_NO_SIGNAL,
                "The node has no signal.".to_owned(),
            ),
            Self::NotCountedYet => (
                MarkerStatus::False,
                "NotCountedYet",
                "The first count of connections is under way.".to_owned(),
            ),
            Self::Open(count) => (
                MarkerStatus::False,
                "ConnectionsOpen",
                format!("{}.", count.sentence(NAMED_SERVICES)),
            ),
            Self::InService => (
                MarkerStatus::False,
                "NotOutOfLoadBalancers",
                "No connection passes through this node, but load balancers may still send new ones.".to_owned(),
            ),
            Self::Confirming => (
                MarkerStatus::False,
                "Confirming",
                "The last count found no connection; the next one is to confirm it.".to_owned(),
            ),
            Self::Drained => (
                MarkerStatus::True,
                "NoConnections",
                "No connection passes through this node.".to_owned(),
            ),
            Self::Unknown(why) => (
                MarkerStatus::Unknown,
                "NotCounted",
                format!("Connections are not counted: {why}."),
            ),
        };
        message.truncate(message.floor_char_boundary(MAX_MARKER_MESSAGE_BYTES));
        MarkerCondition {
            status,
            reason,
            message,
        }
    }
}

/// A count that succeeded.
#[derive(Clone, Debug)]
struct LastCount {
    count: Arc<ConnectionCount>,
    at: Instant,
    taken_at: Timestamp,
}

/// The counts of one node.
#[derive(Debug, Default)]
pub(super) struct Connections {
    signalled_since: Option<Instant>,
    ordered_since: Option<Instant>,
    last_order_at: Option<Instant>,
    out_since: Option<Instant>,
    zeros: u32,
    last: Option<LastCount>,
    failure: Option<String>,
    seen: Arc<BTreeSet<String>>,
}

/// What others read of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionsView {
    /// What follows from them.
    pub state: ConnectionsState,
    /// The last one, and when it ended.
    pub last: Option<(Arc<ConnectionCount>, Timestamp)>,
    /// The Services that had a connection since the signal.
    pub seen: Arc<BTreeSet<String>>,
}

impl Connections {
    /// Adopts what the Node says: whether it has a signal, and whether it has left its load balancers.
    pub(super) fn observe_node(&mut self, is_signalled: bool, is_out: bool, now: Instant) {
        if !is_signalled {
            *self = Self::default();
            return;
        }
        self.signalled_since.get_or_insert(now);
        if is_out {
            self.out_since.get_or_insert(now);
        } else {
            self.out_since = None;
            self.zeros = 0;
        }
    }

    /// Adopts that something else is to be counted from now on.
    pub(super) fn observe_order(&mut self, now: Instant) {
        self.ordered_since.get_or_insert_with(|| {
            // It was of a list of Services, which has succeeded since.
            self.failure = None;
            now
        });
        self.last_order_at = Some(now);
        self.zeros = 0;
    }

    /// Adopts the outcome of a count that began at `began_at`.
    pub(super) fn observe_count(
        &mut self,
        began_at: Instant,
        outcome: Result<ConnectionCount, String>,
        now: Instant,
        wall: Timestamp,
    ) {
        if self.signalled_since.is_none_or(|since| began_at < since) {
            return;
        }
        let count = match outcome {
            Ok(count) => count,
            Err(error) => {
                self.zeros = 0;
                self.failure = Some(error);
                return;
            }
        };
        if self.last.as_ref().is_some_and(|last| last.at + STALE_AFTER <= now) {
            self.zeros = 0;
        }
        let is_zero = count.total() == 0 && count.unreliable.is_none();
        // A count of the order before misses the Services that were added since.
        let is_of_last_order = self.last_order_at.is_none_or(|at| at <= began_at);
        if is_zero && is_of_last_order && self.out_since.is_some_and(|since| since <= began_at) {
            self.zeros = self.zeros.saturating_add(1);
        } else {
            self.zeros = 0;
        }
        self.failure = None;
        let seen = count.services.iter().map(|row| &row.service);
        let new: Vec<_> = seen.filter(|service| !self.seen.contains(*service)).cloned().collect();
        if !new.is_empty() && self.seen.len() < MAX_SEEN {
            Arc::make_mut(&mut self.seen).extend(new);
        }
        self.last = Some(LastCount {
            count: Arc::new(count),
            at: now,
            taken_at: wall,
        });
    }

    /// What is known now.
    pub(super) fn state(&self, now: Instant) -> ConnectionsState {
        let Some(since) = self.signalled_since else {
            return ConnectionsState::NoSignal;
        };
        let last = self.last.as_ref().filter(|last| now < last.at + STALE_AFTER);
        // Until there is an order, a failure is of a list of Services, and the next list may succeed in time.
        let has_failed_count = self.failure.is_some() && self.ordered_since.is_some();
        if self.last.is_none() && !has_failed_count && now < self.first_count_by(since) {
            return ConnectionsState::NotCountedYet;
        }
        match (last, &self.failure) {
            (Some(last), _) if last.count.total() > 0 => ConnectionsState::Open(Arc::clone(&last.count)),
            (_, Some(failure)) => ConnectionsState::Unknown(failure.clone()),
            (Some(LastCount { count, .. }), None) => match &count.unreliable {
                Some(why) => ConnectionsState::Unknown(why.clone()),
                None if self.out_since.is_none() => ConnectionsState::InService,
                None if self.zeros < ZEROS => ConnectionsState::Confirming,
                None => ConnectionsState::Drained,
            },
            (None, None) if self.ordered_since.is_none() => {
                ConnectionsState::Unknown("Services are not listed yet".to_owned())
            }
            (None, None) => ConnectionsState::Unknown(
                "no counter has reported; the container connections of the agent's Pod does".to_owned(),
            ),
        }
    }

    fn first_count_by(&self, signalled_since: Instant) -> Instant {
        let ordered = self.ordered_since.map(|since| since + FIRST_COUNT_TIMEOUT);
        ordered.unwrap_or(signalled_since + FIRST_ORDER_TIMEOUT)
    }

    /// When the state changes without another observation.
    pub(super) fn changes_at(&self, now: Instant) -> Option<Instant> {
        let first = self.signalled_since.map(|since| self.first_count_by(since));
        let stale = self.last.as_ref().map(|last| last.at + STALE_AFTER);
        [first, stale].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// What others read.
    pub(super) fn view(&self, now: Instant) -> ConnectionsView {
        ConnectionsView {
            state: self.state(now),
            last: (self.last.as_ref())
                .filter(|last| now < last.at + STALE_AFTER)
                .map(|last| (Arc::clone(&last.count), last.taken_at)),
            seen: Arc::clone(&self.seen),
        }
    }
}

/// Decides when a change is written: the start and the end of a signal, its first [`MarkerStatus::True`], and each change to
/// [`MarkerStatus::False`] at once, because anything else lets the node go; everything else [`WRITE_INTERVAL`] after the last write.
#[derive(Debug, Default)]
pub(super) struct ConditionPacer {
    current: Option<(MarkerCondition, Instant)>,
    was_drained: bool,
}

impl ConditionPacer {
    /// What the condition is to say now, and when it is to be asked again.
    pub(super) fn next(&mut self, wanted: MarkerCondition, now: Instant) -> (MarkerCondition, Option<Instant>) {
        let is_end = wanted.reason == MARKER_NO_SIGNAL;
        let is_urgent = |current: &MarkerCondition| {
            let is_wait_again = wanted.status == MarkerStatus::False && current.status != MarkerStatus::False;
            let is_first_true = wanted.status == MarkerStatus::True && !self.was_drained;
            is_end || current.reason == MARKER_NO_SIGNAL || is_wait_again || is_first_true
        };
        if let Some((current, at)) = &self.current
            && *current != wanted
            && !is_urgent(current)
            && now < *at + WRITE_INTERVAL
        {
            return (current.clone(), Some(*at + WRITE_INTERVAL));
        }
        self.was_drained = !is_end && (self.was_drained || wanted.status == MarkerStatus::True);
        if self.current.as_ref().is_none_or(|(current, _)| *current != wanted) {
            self.current = Some((wanted.clone(), now));
        }
        (wanted, None)
    }
}

#[cfg(test)]
mod tests;
