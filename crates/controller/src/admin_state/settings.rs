//! The settings `adminState.*`, and what has no setting beside them.

use std::time::Duration;

use headgate_core::telemetry::words;

words! {
    /// `adminState.mode`: what the leader writes.
    #[derive(Default)]
    pub enum AdminStateMode {
        /// It writes admin states.
        #[default]
        Enforce = "Enforce",
        /// It computes and shows what it would write, and writes nothing.
        Observe = "Observe",
        /// It restores every `Down` in the ledger, and writes nothing else.
        Disabled = "Disabled",
    }
}

words! {
    /// `adminState.foreignDown`: what happens to a `Down` that is not in the ledger.
    #[derive(Default)]
    pub enum ForeignDown {
        /// It stays as it is.
        #[default]
        Keep = "Keep",
        /// It becomes `None` if its node has no signal.
        Restore = "Restore",
    }
}

/// For how long lists of load balancers, or tokens for them, may fail before the leader looks for a successor.
pub const LIST_FAILURE_TIMEOUT: Duration = Duration::from_mins(2);
/// For how long the leader follows Nodes that the API server does not confirm.
pub const STALE_NODES_TIMEOUT: Duration = Duration::from_mins(5);
