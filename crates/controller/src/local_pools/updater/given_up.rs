//! Updates that were given up: exhausted, terminal, or of a pool that was gone.
//!
//! Invariant: such an update is tried again when its Service or slices change, when its members change, or after the
//! resync interval, and not because the pool was merely read again. Otherwise the retry budget would mean nothing.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::local_pools::operation::{DesiredMembers, Operation, OperationKey};
use headgate_core::service::NamespacedName;

/// What was given up, and when it may be tried again.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUp(HashMap<OperationKey, (DesiredMembers, Instant)>);

impl GivenUp {
    pub(super) fn add(&mut self, operation: Operation, again_at: Instant) {
        self.0.insert(operation.key, (operation.members, again_at));
    }

    /// Whether these members were given up and it is not time to try them again.
    pub(super) fn holds(&self, key: &OperationKey, members: &DesiredMembers, now: Instant) -> bool {
        let held = self.0.get(key);
        held.is_some_and(|(given_up, again_at)| now < *again_at && given_up.has_same_addresses(members))
    }

    /// Forgets what was given up for a pool.
    pub(super) fn remove(&mut self, key: &OperationKey) {
        self.0.remove(key);
    }

    /// The Services with an update that may be tried again.
    pub(super) fn expired(&self, now: Instant) -> impl Iterator<Item = &NamespacedName> {
        let expired = self.0.iter().filter(move |(_, (_, again_at))| *again_at <= now);
        expired.map(|(key, _)| &key.service)
    }

    pub(super) fn retain(&mut self, is_relevant: impl Fn(&OperationKey) -> bool) {
        self.0.retain(|key, _| is_relevant(key));
    }
}
