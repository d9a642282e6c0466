//! The own Node: its watch, what is remembered of it across a restart, its metrics, and what an agent asks of an autoscaler.
//!
//! What its fields mean is decided in [`headgate_core::node`].

mod deletion_delay;
mod metrics;
mod remembered_state;
mod termination_hold;
mod watch;

pub use deletion_delay::{
    DelayState, DelayTarget, DeletionDelay, DeletionDelayMetrics, DeletionDelayTask, delay_deletion,
};
pub use metrics::{Metrics, register_gauges};
pub use remembered_state::{Boot, RememberedState, store_reports};
pub use termination_hold::{HoldOutcome, ReleaseReason, hold_termination};
pub use watch::watch_own_node;
