//! What is to change in one pool, as plain data, and how it changes the pool's document. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_azure::{AdminState, Pool, PoolId};

use super::node_index::ClusterNode;
use super::pool_entry::EntryKey;

/// A new admin state for one pool entry.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminStateChange {
    /// The entry's index in the pool's document as it was read.
    pub index: usize,
    /// Identifies the entry in another read of the pool.
    pub key: EntryKey,
    /// The Node that the entry belongs to.
    pub node: Arc<ClusterNode>,
    /// The admin state to write.
    pub to: AdminState,
}

/// All changes of one pool, which become one PUT.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEdit {
    /// The pool to write.
    pub pool: PoolId,
    /// In the order of the entries; never empty.
    pub admin_states: Vec<AdminStateChange>,
}

impl PoolEdit {
    /// Makes the changes in the document that they were planned from.
    pub fn apply(&self, pool: &mut Pool) {
        for change in &self.admin_states {
            pool.set_admin_state(change.index, change.to);
        }
    }

    /// Whether both edits give the same entries the same admin states, wherever the entries are in the document.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let states = |edit: &Self| -> BTreeMap<EntryKey, AdminState> {
            let changes = edit.admin_states.iter();
            changes.map(|change| (change.key.clone(), change.to)).collect()
        };
        self.pool == other.pool && self.admin_states.len() == other.admin_states.len() && states(self) == states(other)
    }

    /// The part that sets no entry `Down`; `None` if there is none.
    #[must_use]
    pub fn without_downs(&self) -> Option<Self> {
        let changes = self.admin_states.iter().filter(|change| change.to != AdminState::Down);
        let admin_states: Vec<_> = changes.cloned().collect();
        let pool = self.pool.clone();
        (!admin_states.is_empty()).then_some(Self { pool, admin_states })
    }

    /// Whether it sets an entry `Down`. Such edits are written first (docs/decisions.md 32).
    #[must_use]
    pub fn sets_down(&self) -> bool {
        self.admin_states.iter().any(|change| change.to == AdminState::Down)
    }
}
