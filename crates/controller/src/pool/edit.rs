//! What is to change in one pool, as plain data, and how it changes the pool's document. Pure.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use headgate_azure::{AdminState, PoolDraft, PoolId};

use super::ClusterNode;
use super::pool_entry::EntryKey;
use crate::local_pools::{DesiredMembers, MemberEdit, MemberRejection, NodeIndex, merge};

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

/// The members that a pool is to have, from a due update of a Local Service.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberChange {
    /// The complete members.
    pub desired: DesiredMembers,
    /// Distinguishes the entries of Nodes from foreign ones.
    pub nodes: Arc<NodeIndex>,
    /// The id of the cluster's virtual network, for a pool that has none.
    pub virtual_network: Option<Arc<str>>,
    /// The admin states of a PUT with these members, in the place of the edit's own.
    pub admin_states: Vec<AdminStateChange>,
}

/// All changes of one pool, which become one PUT.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEdit {
    /// The pool to write.
    pub pool: PoolId,
    /// In the order of the entries; empty if the members alone change.
    pub admin_states: Vec<AdminStateChange>,
    /// The members, if an update of them is due.
    pub members: Option<MemberChange>,
}

/// What [`PoolEdit::apply`] did to a pool's document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedEdit {
    /// Whether an entry that stays has another admin state.
    pub has_admin_state_changes: bool,
    /// Whether members were added or removed.
    pub has_member_changes: bool,
    /// The added entries that are `Down`, because their nodes have a signal. The ledger records them before the PUT.
    pub added_downs: Vec<EntryKey>,
    /// Why the members were left as they are.
    pub rejected: Option<MemberRejection>,
}

impl AppliedEdit {
    /// Whether a PUT is due.
    pub fn is_changed(&self) -> bool {
        self.has_admin_state_changes || self.has_member_changes
    }
}

impl PoolEdit {
    /// Makes the changes in the document that they were planned from. An admin state of an entry that leaves is no change.
    pub fn apply(&self, pool: &mut PoolDraft) -> AppliedEdit {
        let mut applied = AppliedEdit::default();
        // Entries are found by their index, so admin states come before members.
        let mut set = Vec::new();
        for change in &self.admin_states {
            if pool.set_admin_state(change.index, change.to) {
                set.push(&change.key);
            }
        }
        if let Some(members) = &self.members {
            let edit = MemberEdit {
                desired: &members.desired,
                nodes: &members.nodes,
                virtual_network: members.virtual_network.as_deref(),
            };
            let merged = merge(&mut pool.pool().document, &edit);
            applied.has_member_changes = merged.is_changed();
            let removed: HashSet<_> = merged.removed.iter().map(IpAddr::to_string).collect();
            set.retain(|key| !removed.contains(key.as_str()));
            let downs = merged.added.iter().filter(|added| added.is_down);
            let downs = downs.map(|added| EntryKey::from_text(&added.address.to_string()));
            applied.added_downs = downs.collect();
            applied.rejected = merged.rejected;
        }
        applied.has_admin_state_changes = !set.is_empty();
        applied
    }

    /// Whether the members alone change.
    pub(crate) fn is_members_only(&self) -> bool {
        self.admin_states.is_empty()
    }

    /// The edit of the members alone; `None` if there is none.
    pub(crate) fn members_only(self) -> Option<Self> {
        self.members.is_some().then(|| Self {
            admin_states: Vec::new(),
            ..self
        })
    }

    /// Whether both edits give the same entries the same admin states, wherever the entries are in the document. Members do not
    /// count: an update of them joins one PUT at most.
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        let states = |edit: &Self| -> BTreeMap<EntryKey, AdminState> {
            let changes = edit.admin_states.iter();
            changes.map(|change| (change.key.clone(), change.to)).collect()
        };
        self.pool == other.pool && self.admin_states.len() == other.admin_states.len() && states(self) == states(other)
    }

    /// The admin states that set no entry `Down`; `None` if there are none.
    pub(crate) fn without_downs(&self) -> Option<Self> {
        let changes = self.admin_states.iter().filter(|change| change.to != AdminState::Down);
        let admin_states: Vec<_> = changes.cloned().collect();
        (!admin_states.is_empty()).then(|| Self {
            pool: self.pool.clone(),
            admin_states,
            members: None,
        })
    }

    /// Whether it sets an entry `Down`. Such edits are written first (docs/dev/decisions.md 32).
    pub(crate) fn sets_down(&self) -> bool {
        self.admin_states.iter().any(|change| change.to == AdminState::Down)
    }
}

#[cfg(test)]
mod tests;
