//! The settings `adminState.*`.

use std::time::Duration;

use headgate_core::telemetry::words;

words! {
    /// `adminState.mode`: what the leader writes.
    #[derive(Default)]
    pub enum AdminStateMode {
        /// It writes admin states.
        #[default]
        Enforce = "enforce",
        /// It computes and shows what it would write, and writes nothing.
        Observe = "observe",
        /// It restores every `Down` in the ledger, and writes nothing else.
        Off = "off",
    }
}

words! {
    /// `adminState.foreignDown`: what happens to a `Down` that is not in the ledger.
    #[derive(Default)]
    pub enum ForeignDown {
        /// It stays as it is.
        #[default]
        Keep = "keep",
        /// It becomes `None` if its node has no signal.
        Restore = "restore",
    }
}

/// The settings under `adminState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminStateSettings {
    /// The setting `adminState.mode`: whether changes are written.
    pub mode: AdminStateMode,
    /// The setting `adminState.foreignDown`: what happens to a `Down` of others.
    pub foreign_down: ForeignDown,
    /// The setting `adminState.listFailureTimeout`.
    pub list_failure_timeout: Duration,
    /// The setting `adminState.staleNodesTimeout`.
    pub stale_nodes_timeout: Duration,
    /// The setting `adminState.leaseBypass`: how long before the eviction of a node its `Down` does not wait for the shared Lease; zero
    /// is never.
    pub lease_bypass: Duration,
}

impl Default for AdminStateSettings {
    fn default() -> Self {
        Self {
            mode: AdminStateMode::default(),
            foreign_down: ForeignDown::default(),
            list_failure_timeout: Duration::from_mins(2),
            stale_nodes_timeout: Duration::from_mins(5),
            lease_bypass: Duration::ZERO,
        }
    }
}
