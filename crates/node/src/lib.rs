//! What this node is told: the drain signals on its own Node object, now or as last remembered.
//!
//! Invariants: the last state known goes on until a newer one is seen (an API server that is away, a
//! Node that is deleted, a restart); a taint is matched by key, never by value or effect; one Node
//! object is held in memory. What the node *says* because of it is `health`'s business.

mod metrics;
mod object;
mod remembered;
mod report;
mod signal;
mod watch;

pub use metrics::Metrics;
pub use object::SlimNode;
pub use remembered::{Memory, RememberedError, keep as remember};
pub use report::{Presence, Report, Source};
pub use signal::{DEFAULT_SIGNALS, DRAINING_TAINT, Facts, Signal, signals};
pub use watch::{Outlet, Trouble, run as watch};
