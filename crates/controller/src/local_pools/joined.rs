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
        has_unmatched_entry: pool.has_unmatched_entry,
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::local_pools::fixtures::{nodes, observation};

    /// The pool of the first six nodes, as it was read.
    fn pool(properties: impl Fn(u8) -> Value) -> PoolView {
        let entry = |number| json!({"name": format!("n{number}"), "properties": properties(number)});
        let entries = (1..=6).map(entry).collect();
        let observation = observation("lb", &[("p".to_owned(), entries, vec![])]);
        PoolView::clone(&observation.view.pools[0])
    }

    fn addressed() -> PoolView {
        pool(|number| json!({"ipAddress": format!("10.0.0.{number}")}))
    }

    fn members(desired: std::ops::RangeInclusive<u8>, draining: u8) -> MemberChange {
        let member = |number| DesiredMember {
            address: [10, 0, 0, number].into(),
            node: format!("n{number}").into(),
            is_draining: number == draining,
            is_leaving: false,
        };
        MemberChange {
            desired: desired.map(member).collect(),
            nodes: Arc::new(nodes(8)),
            virtual_network: None,
            admin_states: Vec::new(),
        }
    }

    fn changes(due: &[(usize, AdminState)]) -> Vec<AdminStateChange> {
        let change = |(index, to): &(usize, AdminState)| AdminStateChange {
            index: *index,
            key: EntryKey::from_text("k"),
            node: Arc::default(),
            to: *to,
        };
        due.iter().map(change).collect()
    }

    #[test]
    fn an_entry_becomes_down_if_both_plans_ask_and_is_given_back_if_one_does() {
        use AdminState::{Down, None as Back};
        // The first leaves, so that the indexes of the others change. The seventh and the eighth join.
        let as_read = changes(&[(0, Down), (1, Down), (2, Down), (4, Back)]);
        let mut members = members(2..=8, 8);
        join_members(&addressed(), &as_read, &mut members, |pool| {
            let names: Vec<_> = pool.entries.iter().filter_map(|entry| entry.name.as_deref()).collect();
            assert_eq!(names, ["n2", "n3", "n4", "n5", "n6", "n7", "n8"]);
            assert_eq!(pool.entries[5].admin_state, Some(Back));
            changes(&[(0, Down), (1, Back), (2, Down), (4, Back), (5, Down), (6, Back)])
        });
        let states = members.admin_states.iter().map(|change| (change.index, change.to));
        assert_eq!(states.collect::<Vec<_>>(), [(1, Down), (2, Back), (4, Back), (5, Back)]);
        let desired = members.desired.as_slice().iter();
        let down: Vec<_> = desired
            .filter(|member| member.is_draining)
            .map(|member| &*member.node)
            .collect();
        assert_eq!(down, ["n7"]);
    }

    #[test]
    fn members_that_change_nothing_leave_the_admin_states_as_they_are_due() {
        let machines =
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines";
        let configuration = |number| format!("{machines}/{number}/networkInterfaces/nic/ipConfigurations/c");
        let with_interfaces = pool(|number| json!({"networkInterfaceIPConfiguration": {"id": configuration(number)}}));
        for (pool, desired) in [(addressed(), 1..=6), (with_interfaces, 1..=8)] {
            let as_read = changes(&[(0, AdminState::Down), (1, AdminState::None)]);
            let mut members = members(desired, 3);
            let before = members.desired.clone();
            join_members(&pool, &as_read, &mut members, |_| panic!("nothing is planned"));
            assert_eq!((members.admin_states, members.desired), (as_read, before));
        }
    }
}
