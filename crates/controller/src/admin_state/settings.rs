//! The settings `adminState.*`.

use std::time::Duration;

/// `adminState.mode`: what the leader writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminStateMode {
    /// It writes admin states.
    #[default]
    Enforce,
    /// It computes and shows what it would write, and writes nothing.
    Observe,
    /// It restores every `Down` in the ledger, and writes nothing else.
    Off,
}

impl AdminStateMode {
    /// In the order of the settings reference.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Off];

    /// The value in the settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

/// `adminState.foreignDown`: what happens to a `Down` that is not in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignDown {
    /// It stays as it is.
    #[default]
    Keep,
    /// It becomes `None` if its node has no signal.
    Restore,
}

impl ForeignDown {
    /// In the order of the settings reference.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Restore];

    /// The value in the settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Restore => "restore",
        }
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
