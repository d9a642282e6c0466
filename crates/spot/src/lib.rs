//! Notices of eviction: Azure's Scheduled Events for this very VM, and the taint that says so.
//!
//! The node asks the instance metadata service (IMDS) each second. A `Preempt` of its own VM is a signal
//! at once, and then a taint with the notice recorded beside it (DESIGN decision 13); every other event
//! is shown and not acted on. Nothing is ever approved: approving lets an event proceed early for all the
//! VMs it names. An IMDS that hangs, fails or talks nonsense changes nothing but its own metrics: only a
//! document that can be read proves that a notice is there, or gone.

mod document;
mod edit;
#[cfg(test)]
mod fixtures;
mod imds;
mod keeper;
mod metrics;
mod notice;
mod seen;
mod taint;

pub use document::{Document, Event, Kind, Malformed, State};
pub use edit::TAINT_VALUE;
pub use imds::poll;
pub use keeper::keep;
pub use metrics::Metrics;
pub use notice::{Follow, Followed, Notice, ResourceName};
pub use seen::{PREEMPT, Seen, Trouble};
pub use taint::{ANNOTATION, Record, Wish, wish};

use std::time::Duration;

/// How often IMDS is asked, and how long a notice has to be gone before it counts as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From one question to the next.
    pub poll_interval: Duration,
    /// From the first document without the notice to the end of its signal and of its taint.
    pub grace: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // Azure's own advice.
            poll_interval: Duration::from_secs(1),
            grace: Duration::from_mins(1),
        }
    }
}
