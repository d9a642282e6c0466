//! The admin states of a PUT that writes due members: planned from the pool as it will be, too. Pure.
//!
//! Invariant: one PUT leaves no pool without the entries that the guard keeps in service. An entry becomes `Down` in it only if
//! that is due both as the pool was read and as it will be; it is given back if either asks for it. So a node is released
//! only after a read has shown its replacement (`admin_state::guard`), and a node that the guard holds back joins in service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use headgate_azure::AdminState;

use crate::local_pools::{DesiredMember, Entry, compare};
use crate::pool::{AdminStateChange, EntryKey, MemberChange, NodeMatcher, PoolEntry, PoolView};

/// Sets the admin states of the PUT with these members, from those that are due in the pool as it was read and those that `plan` makes of
/// it as it will be; and lets the new members join as `Down` or in service.
pub(crate) fn join_members(
    pool: &PoolView,
    as_read: &[AdminStateChange],
    members: &mut MemberChange,
    plan: impl FnOnce(PoolView) -> Vec<AdminStateChange>,
) {
    members.admin_states = as_read.to_vec();
    let entries = pool.entries.iter().map(Entry::of);
    // Members that are there already or cannot be written change nothing.
    let Ok(difference) = compare(entries, &members.desired, &members.nodes) else {
        return;
    };
    if difference.is_empty() {
        return;
    }
    let removed: BTreeSet<_> = difference.remove.into_iter().collect();
    // By their indexes as they were read.
    let kept: Vec<_> = (0..pool.entries.len())
        .filter(|index| !removed.contains(index))
        .collect();
    let staying = kept.iter().filter_map(|index| pool.entries.get(*index).cloned());
    let as_will_be = plan(PoolView {
        id: pool.id.clone(),
        entries: staying.chain(difference.add.iter().map(new_entry)).collect(),
        interfaces: pool.interfaces.clone(),
        rules: pool.rules.clone(),
    });
    let mut joins_as_down: BTreeSet<IpAddr> = BTreeSet::new();
    let mut future = BTreeMap::new();
    for change in as_will_be {
        if let Some(index) = kept.get(change.index) {
            future.insert(
                *index,
                AdminStateChange {
                    index: *index,
                    ..change
                },
            );
        } else if change.to == AdminState::Down {
            let added = difference.add.get(change.index - kept.len());
            joins_as_down.extend(added.map(|member| member.address));
        }
    }
    let stays = |change: &AdminStateChange| !removed.contains(&change.index);
    let mut combined = BTreeMap::new();
    for change in members.admin_states.drain(..).filter(stays) {
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
    members.admin_states = combined.into_values().collect();
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
