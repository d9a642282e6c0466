//! A pool as it will be once its due members are written, from which the admin states of the same PUT are planned. Pure.
//!
//! Invariant: one PUT leaves no pool without the entries that the guard keeps in service. An entry becomes `Down` in it only if
//! that is due both as the pool was read and as it will be; it is given back if either asks for it. So a node is released
//! only after a read has shown its replacement (`admin_state::guard`), and a node that the guard holds back joins in service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use headgate_azure::AdminState;
use headgate_local_pools::{DesiredMember, Entry, compare};

use super::observation::entry_address;
use crate::pool::{AdminStateChange, EntryKey, MemberChange, NodeMatcher, PoolEntry, PoolView};

/// A pool with its due members.
pub(super) struct FuturePool {
    /// The entries that stay, then the new ones, which have no admin state yet.
    pub(super) view: PoolView,
    /// The indexes of the entries that stay, as they were read.
    kept: Vec<usize>,
    /// The addresses of the new entries.
    added: Vec<IpAddr>,
}

impl FuturePool {
    /// `None` if the members are there already, or cannot be written.
    pub(super) fn new(pool: &PoolView, members: &MemberChange) -> Option<Self> {
        let entries = pool.entries.iter().map(|entry| Entry {
            name: entry.name.as_deref(),
            address: entry_address(entry),
        });
        let difference = compare(entries, &members.desired, &members.nodes).ok()?;
        if difference.is_empty() {
            return None;
        }
        let removed: BTreeSet<_> = difference.remove.into_iter().collect();
        let kept: Vec<_> = (0..pool.entries.len())
            .filter(|index| !removed.contains(index))
            .collect();
        let staying = kept.iter().filter_map(|index| pool.entries.get(*index).cloned());
        let view = PoolView {
            id: pool.id.clone(),
            entries: staying.chain(difference.add.iter().map(new_entry)).collect(),
            interfaces: pool.interfaces.clone(),
            rules: pool.rules.clone(),
        };
        let added = difference.add.iter().map(|member| member.address).collect();
        Some(Self { view, kept, added })
    }

    /// The admin states of the PUT, from those that are due as the pool was read and those that are due as it will be. Lets
    /// the new members join as `Down` or in service.
    pub(super) fn combine(
        &self,
        as_read: Vec<AdminStateChange>,
        as_will_be: Vec<AdminStateChange>,
        members: &mut MemberChange,
    ) -> Vec<AdminStateChange> {
        let mut joins_as_down: BTreeSet<IpAddr> = BTreeSet::new();
        let mut future = BTreeMap::new();
        for change in as_will_be {
            if let Some(index) = self.kept.get(change.index) {
                future.insert(
                    *index,
                    AdminStateChange {
                        index: *index,
                        ..change
                    },
                );
            } else if change.to == AdminState::Down {
                joins_as_down.extend(self.added.get(change.index - self.kept.len()));
            }
        }
        let mut combined = BTreeMap::new();
        let stays = |change: &AdminStateChange| self.kept.binary_search(&change.index).is_ok();
        for change in as_read.into_iter().filter(stays) {
            let is_due_later = future.get(&change.index).is_some_and(|later| later.to == change.to);
            if change.to != AdminState::Down || is_due_later {
                combined.insert(change.index, change);
            }
        }
        let given_back = future.into_iter().filter(|(_, change)| change.to != AdminState::Down);
        combined.extend(given_back);
        let desired = members.desired.as_slice().iter().map(|member| DesiredMember {
            is_draining: joins_as_down.contains(&member.address),
            ..member.clone()
        });
        members.desired = desired.collect();
        combined.into_values().collect()
    }
}

/// The entry that a new member will have; it is named for its node.
fn new_entry(member: &DesiredMember) -> PoolEntry {
    PoolEntry {
        key: Some(EntryKey::from_text(&member.address.to_string())),
        name: Some(member.node.to_ascii_lowercase().into()),
        matcher: NodeMatcher::Address(member.address),
        admin_state: Some(AdminState::None),
    }
}
