use headgate_azure::Pool;
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::local_pools::DesiredMember;
use crate::local_pools::fixtures::nodes;
use crate::pool::fixtures::pool_id;

const STATES: [AdminState; 3] = [AdminState::None, AdminState::Up, AdminState::Down];

fn pool(entries: &[Value]) -> Pool {
    Pool {
        id: pool_id("default-web"),
        etag: None,
        document: json!({"name": "default-web", "futureField": 1, "properties": {"virtualNetwork": {"id": "v"},
            "loadBalancerBackendAddresses": entries}}),
    }
}

fn entries(pool: &Pool) -> &[Value] {
    pool.document["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap()
}

fn apply(edit: &PoolEdit, pool: &mut Pool) -> AppliedEdit {
    let mut draft = PoolDraft::from(pool.clone());
    let applied = edit.apply(&mut draft);
    pool.clone_from(draft.pool());
    applied
}

fn node(number: u8) -> ClusterNode {
    ClusterNode {
        name: format!("n{number}"),
        addresses: vec![[10, 0, 0, number].into()],
        ready: true,
        ..ClusterNode::default()
    }
}

fn state(index: usize, number: u8, to: AdminState) -> AdminStateChange {
    AdminStateChange {
        index,
        key: EntryKey::from_text(&format!("10.0.0.{number}")),
        node: Arc::new(node(number)),
        to,
    }
}

/// A change to these members; `true` for a draining one.
fn members(desired: &[(u8, bool)]) -> MemberChange {
    let member = |(number, is_draining): &(u8, bool)| DesiredMember {
        address: [10, 0, 0, *number].into(),
        node: format!("n{number}").into(),
        is_draining: *is_draining,
        is_leaving: false,
    };
    MemberChange {
        desired: desired.iter().map(member).collect(),
        nodes: Arc::new(nodes(9)),
        virtual_network: None,
        admin_states: Vec::new(),
    }
}

fn edit(admin_states: Vec<AdminStateChange>, members: Option<MemberChange>) -> PoolEdit {
    PoolEdit {
        pool: pool(&[]).id,
        admin_states,
        members,
    }
}

fn entry(number: u8) -> Value {
    json!({"name": format!("n{number}"), "properties": {"ipAddress": format!("10.0.0.{number}")}})
}

#[test]
fn both_sources_become_one_document() {
    let foreign =
        json!({"name": "vm", "properties": {"ipAddress": "10.9.9.9", "adminState": "Up", "subnet": {"id": "s"}}});
    let mut written = pool(&[
        json!({"name": "n1", "note": "kept", "properties": {"ipAddress": "10.0.0.1", "newer": true}}),
        entry(2),
        foreign.clone(),
    ]);
    let both = edit(
        vec![state(0, 1, AdminState::Down)],
        Some(members(&[(1, false), (3, true)])),
    );
    let applied = apply(&both, &mut written);
    assert_eq!(
        written,
        pool(&[
            json!({"name": "n1", "note": "kept", "properties": {"ipAddress": "10.0.0.1", "newer": true, "adminState": "Down"}}),
            foreign,
            json!({"name": "n3", "properties": {"ipAddress": "10.0.0.3", "adminState": "Down"}}),
        ])
    );
    let expected = AppliedEdit {
        has_admin_state_changes: true,
        has_member_changes: true,
        added_downs: vec![EntryKey::from_text("10.0.0.3")],
        rejected: None,
    };
    assert_eq!(applied, expected);
}

#[test]
fn admin_state_of_an_entry_that_leaves_is_no_change() {
    let down = |index, number| state(index, number, AdminState::Down);
    let mut written = pool(&[entry(1), entry(2)]);
    let leaving = edit(vec![down(0, 1), down(9, 9)], Some(members(&[(2, false)])));
    let applied = apply(&leaving, &mut written);
    assert!(!applied.has_admin_state_changes && applied.has_member_changes);
    assert_eq!(written, pool(&[entry(2)]));
    let mut written = pool(&[entry(1), entry(2)]);
    let staying = edit(vec![down(0, 1), down(1, 2)], Some(members(&[(2, false)])));
    assert!(apply(&staying, &mut written).has_admin_state_changes);
    assert_eq!(entries(&written)[0]["properties"]["adminState"], "Down");
}

#[test]
fn edit_that_is_true_already_changes_nothing() {
    let mut written = pool(&[entry(1)]);
    let same = edit(vec![state(0, 1, AdminState::None)], Some(members(&[(1, true)])));
    assert!(!apply(&same, &mut written).is_changed());
    assert_eq!(
        written,
        pool(&[entry(1)]),
        "a draining member that stays is not touched"
    );
}

#[test]
fn admin_states_alone_need_no_members() {
    let mut written = pool(&[
        json!({"name": "n1"}),
        json!({"properties": {"ipAddress": "10.0.0.2", "adminState": "Up"}}),
    ]);
    let states = vec![state(0, 1, AdminState::Down), state(1, 2, AdminState::None)];
    assert!(apply(&edit(states, None), &mut written).has_admin_state_changes);
    assert_eq!(entries(&written)[0]["properties"]["adminState"], "Down");
    assert_eq!(entries(&written)[1]["properties"]["adminState"], "None");
}

#[test]
fn rejected_members_do_not_hold_back_admin_states() {
    let nic = json!({"name": "nic", "properties": {"networkInterfaceIPConfiguration": {"id": "x"}}});
    let mut written = pool(&[nic]);
    let applied = apply(
        &edit(vec![state(0, 1, AdminState::Down)], Some(members(&[(1, false)]))),
        &mut written,
    );
    assert_eq!(applied.rejected, Some(MemberRejection::NetworkInterfaces));
    assert!(applied.has_admin_state_changes && !applied.has_member_changes);
    assert_eq!(entries(&written).len(), 1);
}

#[test]
fn equivalence_is_about_admin_states() {
    let down = || vec![state(0, 1, AdminState::Down)];
    let (with, without) = (edit(down(), Some(members(&[]))), edit(down(), None));
    assert!(with.is_equivalent(&without) && !with.is_members_only());
    let alone = with.clone().members_only().unwrap();
    assert!(alone.is_members_only() && !alone.is_equivalent(&with));
    assert_eq!(without.members_only(), None);
    let mixed = vec![state(0, 1, AdminState::Down), state(1, 2, AdminState::None)];
    let rest = edit(mixed, Some(members(&[]))).without_downs().unwrap();
    assert!(rest.members.is_none() && rest.admin_states.len() == 1);
    assert_eq!(rest.admin_states[0].to, AdminState::None);
}

proptest! {
    /// What an edit did to a document is what it says, and it leaves nothing to a second one.
    #[test]
    fn edit_is_exact_and_idempotent(
        present in btree_map(1..12_u8, 0..3_usize, 0..10),
        desired in btree_map(1..10_u8, any::<bool>(), 0..9),
        changed in btree_set(0..12_usize, 0..5),
        to in 0..3_usize,
    ) {
        let old: Vec<_> = present.iter().map(|(number, state)| {
            let mut entry = entry(*number);
            entry["properties"]["adminState"] = STATES[*state].as_str().into();
            entry
        }).collect();
        let numbers: Vec<u8> = present.keys().copied().collect();
        let changes: Vec<_> = changed.iter().filter(|index| **index < numbers.len())
            .map(|index| state(*index, numbers[*index], STATES[to])).collect();
        let desired: Vec<_> = desired.into_iter().collect();
        let both = edit(changes.clone(), Some(members(&desired)));
        let mut written = pool(&old);
        let applied = apply(&both, &mut written);
        prop_assert_eq!(applied.is_changed(), written != pool(&old));
        let mut addresses: Vec<_> = entries(&written).iter().map(|entry| entry["properties"]["ipAddress"].as_str().unwrap()).collect();
        addresses.sort_unstable();
        // Numbers above 9 are no Node's.
        let foreign = numbers.iter().filter(|number| **number > 9);
        let wanted = desired.iter().map(|(number, _)| number).chain(foreign);
        let mut wanted: Vec<_> = wanted.map(|number| format!("10.0.0.{number}")).collect();
        wanted.sort_unstable();
        prop_assert_eq!(addresses, wanted);
        for (index, number) in numbers.iter().enumerate() {
            let address = format!("10.0.0.{number}");
            let new = entries(&written).iter().find(|entry| entry["properties"]["ipAddress"] == *address);
            let Some(new) = new else { continue };
            let mut expected = old[index].clone();
            if changed.contains(&index) {
                expected["properties"]["adminState"] = STATES[to].as_str().into();
            }
            prop_assert_eq!(new, &expected);
        }
        let downs = desired.iter().filter(|(number, is_draining)| *is_draining && !numbers.contains(number));
        let downs: Vec<_> = downs.map(|(number, _)| EntryKey::from_text(&format!("10.0.0.{number}"))).collect();
        prop_assert_eq!(applied.added_downs, downs);
        let once = written.clone();
        prop_assert!(!apply(&edit(Vec::new(), both.members), &mut written).is_changed());
        prop_assert_eq!(written, once);
    }
}
