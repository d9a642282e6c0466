//! Why an update failed, as far as the updater has to know.
//!
//! The ARM client has the one table of error classes (docs/dev/decisions.md 11), and this module does not depend on it: the caller passes
//! the class as plain data.

use tokio::time::Instant;

/// What a failed attempt means for its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The pool is gone. The operations are dropped without an event or a metric.
    Missing,
    /// The next attempt may succeed; so does every failure that is not known to be final.
    Retriable {
        /// Not before this time; `None` for the next tick.
        not_before: Option<Instant>,
    },
    /// Each attempt fails until an operator changes something. The operations are dropped with an event.
    Terminal,
}
