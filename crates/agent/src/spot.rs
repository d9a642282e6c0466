//! Eviction notices of Azure: the Scheduled Events of this VM, and the taint that announces an eviction.
//!
//! The node polls the instance metadata service (IMDS) each second. A `Preempt` event of the own VM is a signal at
//! once; then the Node gets a taint and an annotation that records the notice (docs/dev/decisions.md 13). Every other
//! event is shown only. headgate approves no event, because an approval starts the event early for all VMs that it
//! names. Where IMDS is not polled, the leader turns the Node event `PreemptScheduled` into the same taint (`node_event`).
//! An IMDS that hangs, fails or answers nonsense changes only its own metrics: only a readable document shows
//! that a notice exists or has ended.

mod document;
#[cfg(test)]
mod fixtures;
mod imds;
mod metrics;
mod node_edit;
mod node_event;
mod node_object;
mod notice;
mod preempt_message;
mod snapshot;
mod taint_action;
mod taint_reconciler;

pub use document::{DocumentError, EventStatus, EventType, EventsDocument, ScheduledEvent};
pub use imds::poll_imds;
pub use metrics::Metrics;
pub use node_edit::TaintChange;
pub use node_event::{edit_for_event, has_ended};
pub use node_object::read_node;
pub use notice::{Notice, NoticeTracker, NoticeTrackers, TrackedNotice, VmName};
pub use preempt_message::PreemptMessage;
pub use snapshot::{EventsSnapshot, ImdsError, ImdsErrorReason};
pub use taint_action::{NoticeRecord, TaintAction, next_taint_action};
pub use taint_reconciler::reconcile_taint;

use std::time::Duration;

/// How often IMDS is polled, and when a notice that is no longer listed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between two requests.
    pub poll_interval: Duration,
    /// Time from the first document without the notice to the end of its signal and of its taint.
    pub grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // As Azure recommends.
            poll_interval: Duration::from_secs(1),
            grace: Duration::from_mins(1),
        }
    }
}
