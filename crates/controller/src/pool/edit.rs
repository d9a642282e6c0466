//! What is to be changed in one pool, as plain data, and the change itself. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_azure::{AdminState, Pool, PoolId};

use super::cluster::ClusterNode;
use super::member::Key;

/// One entry is to get another admin state.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its place among the pool's entries, as they were read.
    pub place: usize,
    /// What it is recognised by.
    pub key: Key,
    /// Whose it is.
    pub node: Arc<ClusterNode>,
    /// What it is to be.
    pub to: AdminState,
}

/// The changes of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEdit {
    /// Which.
    pub pool: PoolId,
    /// At least one, by place.
    pub changes: Vec<Change>,
}

impl PoolEdit {
    /// Makes the changes in the document that they were planned from.
    pub fn apply(&self, pool: &mut Pool) {
        for change in &self.changes {
            pool.set_admin_state(change.place, change.to);
        }
    }

    /// Whether it is the same that is wanted, whatever else is known of the Nodes, and wherever their entries stand.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let wanted = |edit: &Self| -> BTreeMap<Key, AdminState> {
            edit.changes
                .iter()
                .map(|change| (change.key.clone(), change.to))
                .collect()
        };
        self.pool == other.pool && self.changes.len() == other.changes.len() && wanted(self) == wanted(other)
    }

    /// Whether it takes somebody out, which is more urgent than letting somebody in.
    #[must_use]
    pub fn takes_out(&self) -> bool {
        self.changes.iter().any(|change| change.to == AdminState::Down)
    }
}
