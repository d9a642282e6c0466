//! When the hold on each Node is written. Pure.
//!
//! A hold is written when it is new or changed, a minute after it was written last, and at once when the watch stops showing it. One
//! that is over is removed. Each Node has a backoff of its own, and Nodes whose last write failed never use all slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_clock::Moment;
use headgate_node::{HOLD_TTL, NodeHold};
use tokio::time::Instant;

use super::super::holds::DesiredHolds;
use crate::pool::ClusterNode;

/// Five renewals before the agent lets a hold end.
pub(super) const RENEW_INTERVAL: Duration = Duration::from_mins(1);
const _: () = assert!(RENEW_INTERVAL.as_secs() * 5 <= HOLD_TTL.as_secs());
/// Until a write that the watch has not shown yet is repeated.
pub(super) const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// From a failed write of a Node to the next one; doubles each time.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
const _: () = assert!(MAX_RETRY_DELAY.as_secs() + RENEW_INTERVAL.as_secs() < HOLD_TTL.as_secs());
pub(super) const MAX_CONCURRENT_WRITES: usize = 8;
/// Of these, writes of Nodes whose last write failed.
pub(super) const MAX_CONCURRENT_RETRIES: usize = 4;

/// The Nodes that have a hold, as the watch shows them, by name.
pub(super) type RecordedHolds = BTreeMap<String, Arc<ClusterNode>>;

/// A write that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldWrite {
    pub(super) node: String,
    pub(super) node_uid: String,
    /// `None` removes the hold.
    pub(super) hold: Option<NodeHold>,
}

impl HoldWrite {
    /// Whether both leave the same on the Node, apart from the time of the renewal.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_hold = match (&self.hold, &other.hold) {
            (Some(hold), Some(other)) => hold.is_same(other),
            (None, None) => true,
            _ => false,
        };
        is_same_hold && (&self.node, &self.node_uid) == (&other.node, &other.node_uid)
    }

    /// Whether the watch shows what this write leaves on the Node.
    fn is_shown(&self, recorded: &RecordedHolds) -> bool {
        let node = recorded.get(&self.node).filter(|node| node.uid == self.node_uid);
        let shown = node.and_then(|node| node.hold.as_ref());
        match (&self.hold, shown) {
            (Some(hold), Some(shown)) => {
                (&hold.pools, hold.probes_headgate, &hold.signals, &hold.pending)
                    == (&shown.pools, shown.probes_headgate, &shown.signals, &shown.pending)
            }
            (None, None) => true,
            _ => false,
        }
    }
}

/// The last write of a Node that succeeded in this term.
#[derive(Clone, Debug)]
struct Written {
    write: HoldWrite,
    at: Instant,
    /// Whether the watch has shown it since.
    is_shown: bool,
}

/// The last write of a Node, if it failed.
#[derive(Clone, Debug)]
struct Failure {
    write: HoldWrite,
    at: Instant,
    delay: Duration,
}

impl Failure {
    /// The earliest time of the next write. A write of something else does not wait for the backoff.
    fn retry_at(&self, next: &HoldWrite) -> Instant {
        let delay = if self.write.is_same(next) {
            self.delay
        } else {
            MIN_RETRY_DELAY
        };
        self.at + delay
    }
}

/// What is known about the writes of one Node.
#[derive(Clone, Debug, Default)]
struct NodeWrites {
    written: Option<Written>,
    failure: Option<Failure>,
    is_writing: bool,
}

impl NodeWrites {
    /// When this write is due.
    fn due_at(&self, write: &HoldWrite, recorded: &RecordedHolds, now: Instant) -> Instant {
        let written = self.written.as_ref().filter(|written| written.write.is_same(write));
        let due_at = written.map_or(now, |written| {
            let renewed_at = written.at + RENEW_INTERVAL;
            if write.is_shown(recorded) {
                renewed_at
            } else if written.is_shown {
                // Another writer has changed it since.
                now
            } else {
                written.at + CONFIRM_TIMEOUT
            }
        });
        let retry_at = self.failure.as_ref().map(|failure| failure.retry_at(write));
        retry_at.map_or(due_at, |retry_at| due_at.max(retry_at))
    }
}

/// The writes of all Nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldSchedule {
    nodes: BTreeMap<String, NodeWrites>,
}

impl HoldSchedule {
    /// The writes to start now, and when to ask again if nothing changes until then.
    pub(super) fn start_due(
        &mut self,
        desired: &DesiredHolds,
        recorded: &RecordedHolds,
        now: Moment,
    ) -> (Vec<HoldWrite>, Option<Instant>) {
        self.observe(desired, recorded);
        let mut next_at: Option<Instant> = None;
        let mut due = Vec::new();
        for write in target_writes(desired, recorded, now) {
            let node = self.nodes.entry(write.node.clone()).or_default();
            if node.is_writing {
                continue;
            }
            let due_at = node.due_at(&write, recorded, now.mono);
            if due_at <= now.mono {
                due.push((node.failure.is_some(), write));
            } else {
                next_at = Some(next_at.map_or(due_at, |next_at| next_at.min(due_at)));
            }
        }
        let is_writing = |node: &&NodeWrites| node.is_writing;
        let mut writing = self.nodes.values().filter(is_writing).count();
        let mut retrying = self.nodes.values().filter(is_writing);
        let mut retrying = retrying.by_ref().filter(|node| node.failure.is_some()).count();
        due.sort_by_key(|(is_retry, _)| *is_retry);
        let mut started = Vec::new();
        for (is_retry, write) in due {
            // Those that are left out start when one that is under way ends.
            if writing >= MAX_CONCURRENT_WRITES || is_retry && retrying >= MAX_CONCURRENT_RETRIES {
                continue;
            }
            writing += 1;
            retrying += usize::from(is_retry);
            self.nodes.entry(write.node.clone()).or_default().is_writing = true;
            started.push(write);
        }
        (started, next_at)
    }

    /// Records how a write ended. Returns the delay of the next attempt if it failed.
    pub(super) fn finish(&mut self, write: HoldWrite, is_written: bool, now: Instant) -> Option<Duration> {
        let node = self.nodes.entry(write.node.clone()).or_default();
        node.is_writing = false;
        if is_written {
            node.failure = None;
            node.written = Some(Written {
                write,
                at: now,
                is_shown: false,
            });
            return None;
        }
        let previous = node.failure.as_ref().map(|failure| failure.delay);
        let delay = previous.map_or(MIN_RETRY_DELAY, |delay| MAX_RETRY_DELAY.min(delay * 2));
        node.failure = Some(Failure { write, at: now, delay });
        Some(delay)
    }

    /// Notes which writes the watch shows, and forgets the Nodes about which nothing is left to know.
    fn observe(&mut self, desired: &DesiredHolds, recorded: &RecordedHolds) {
        self.nodes.retain(|name, node| {
            if let Some(written) = &mut node.written {
                written.is_shown |= written.write.is_shown(recorded);
            }
            node.is_writing || desired.contains_key(name) || recorded.contains_key(name)
        });
    }
}

/// What is to be on each Node that has a hold or is to have one.
fn target_writes(desired: &DesiredHolds, recorded: &RecordedHolds, now: Moment) -> Vec<HoldWrite> {
    let names: BTreeSet<&String> = desired.keys().chain(recorded.keys()).collect();
    let write = |name: &String| {
        let hold = desired.get(name).and_then(|desired| desired.record(now.wall));
        // A hold that cannot be recorded is removed, like one that is over.
        let node = match &hold {
            Some(_) => desired.get(name).map(|desired| &desired.node),
            None => recorded.get(name),
        }?;
        Some(HoldWrite {
            node: name.clone(),
            node_uid: node.uid.clone(),
            hold,
        })
    };
    names.into_iter().filter_map(write).collect()
}
