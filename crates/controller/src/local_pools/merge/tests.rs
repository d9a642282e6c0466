use super::*;
use crate::local_pools::fixtures;

const NETWORK: &str = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/vnet";

fn member(address: &str, node: &str, is_draining: bool) -> DesiredMember {
    DesiredMember {
        address: address.parse().unwrap(),
        node: node.into(),
        is_draining,
        is_leaving: false,
    }
}

fn entry(name: &str, address: &str) -> Value {
    json!({"name": name, "properties": {"ipAddress": address}})
}

fn pool(entries: &[Value]) -> Value {
    json!({"name": "default-web", "etag": "W/\"1\"", "futureField": {"a": [1]},
        "properties": {"virtualNetwork": {"id": "other"}, "drainPeriodInSeconds": 7, ADDRESSES: entries}})
}

/// Merges, and checks that merging again changes nothing.
fn merged(document: &mut Value, desired: &[DesiredMember]) -> Merged {
    let nodes = fixtures::nodes(4);
    let desired: DesiredMembers = desired.iter().cloned().collect();
    let edit = MemberEdit {
        desired: &desired,
        nodes: &nodes,
        virtual_network: Some(NETWORK),
    };
    let result = merge(document, &edit);
    let before = document.clone();
    assert!(!merge(document, &edit).is_changed(), "a second merge changes nothing");
    assert_eq!(*document, before);
    result
}

#[test]
fn members_come_and_go_and_the_rest_stays() {
    let mut document = pool(&[
        json!({"name": "n1", "note": "kept", "properties": {"ipAddress": "10.0.0.1", "newer": true}}),
        entry("n2", "10.0.0.2"),
        json!({"name": "vm", "properties": {"ipAddress": "10.9.9.9", "adminState": "Up", "subnet": {"id": "s"}}}),
    ]);
    let desired = [member("10.0.0.1", "n1", false), member("10.0.0.3", "n3", true)];
    let result = merged(&mut document, &desired);
    assert_eq!(
        document,
        pool(&[
            json!({"name": "n1", "note": "kept", "properties": {"ipAddress": "10.0.0.1", "newer": true}}),
            json!({"name": "vm", "properties": {"ipAddress": "10.9.9.9", "adminState": "Up", "subnet": {"id": "s"}}}),
            json!({"name": "n3", "properties": {"ipAddress": "10.0.0.3", "adminState": "Down"}}),
        ])
    );
    assert_eq!(result.removed, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!((result.added[0].name.as_str(), result.added[0].is_down), ("n3", true));
}

#[test]
fn without_a_difference_nothing_is_written() {
    let mut document = json!({"properties": {ADDRESSES: [entry("n1", "10.0.0.1")]}});
    let before = document.clone();
    let result = merged(&mut document, &[member("10.0.0.1", "n1", true)]);
    assert!(!result.is_changed());
    assert_eq!(
        document, before,
        "not even the virtual network is set, and a draining member that stays is not touched"
    );
}

#[test]
fn the_virtual_network_is_ensured_where_members_are_added() {
    for (before, id) in [
        (json!({}), NETWORK),
        (json!({"properties": null}), NETWORK),
        (json!({"properties": {"virtualNetwork": null}}), NETWORK),
        (
            json!({"properties": {"virtualNetwork": {"id": ""}, ADDRESSES: null}}),
            NETWORK,
        ),
        (json!({"properties": {"virtualNetwork": {"id": "other"}}}), "other"),
    ] {
        let mut document = before.clone();
        let result = merged(&mut document, &[member("10.0.0.1", "n1", false)]);
        assert!(result.is_changed() && result.rejected.is_none(), "{before}");
        assert_eq!(document["properties"]["virtualNetwork"]["id"], id, "{before}");
        assert_eq!(
            document["properties"][ADDRESSES],
            json!([entry("n1", "10.0.0.1")]),
            "{before}"
        );
    }
}

#[test]
fn the_virtual_network_of_entries_becomes_the_pools_where_members_are_added() {
    let nodes = fixtures::nodes(4);
    let desired: DesiredMembers = [member("10.0.0.1", "n1", false)].into_iter().collect();
    let with_network = |name: &str, address: &str| json!({"name": name, "properties": {"ipAddress": address, "virtualNetwork": {"id": "own"}}});
    for (before, after) in [
        // One that stays, and one that leaves.
        (with_network("vm", "10.9.9.9"), vec![entry("vm", "10.9.9.9")]),
        (with_network("n2", "10.0.0.2"), vec![]),
    ] {
        for virtual_network in [None, Some(NETWORK)] {
            let edit = MemberEdit {
                desired: &desired,
                nodes: &nodes,
                virtual_network,
            };
            let mut document = json!({"properties": {ADDRESSES: [before]}});
            assert!(merge(&mut document, &edit).is_changed());
            let addresses = [after.clone(), vec![entry("n1", "10.0.0.1")]].concat();
            assert_eq!(
                document,
                json!({"properties": {"virtualNetwork": {"id": "own"}, ADDRESSES: addresses}})
            );
        }
    }
}

#[test]
fn a_pool_can_become_empty() {
    let mut document = pool(&[entry("n1", "10.0.0.1"), entry("N2", "10.0.0.2")]);
    let result = merged(&mut document, &[]);
    assert_eq!((result.removed.len(), &document), (2, &pool(&[])));
    let mut nothing = json!({"properties": {ADDRESSES: null}});
    assert!(
        !merged(&mut nothing, &[]).is_changed(),
        "an empty set in an empty pool is no change"
    );
}

#[test]
fn entry_names_are_unique_and_never_empty() {
    let mut document = pool(&[json!({"name": "N1"})]);
    let desired = [
        member("10.0.0.1", "n1", false),
        member("10.0.0.2", "n2", false),
        member("10.0.0.3", "n2", false),
        member("fd00::1", "n2", false),
    ];
    let result = merged(&mut document, &desired);
    let names: Vec<_> = result.added.iter().map(|added| added.name.as_str()).collect();
    assert_eq!(names, ["n1-10-0-0-1", "n2", "n2-10-0-0-3", "n2-fd00--1"]);
}

#[test]
fn rejected_members_leave_the_document_as_it_is() {
    let nic = json!({"name": "nic", "properties": {"networkInterfaceIPConfiguration": {"id": "x"}}});
    let mut document = pool(std::slice::from_ref(&nic));
    let result = merged(&mut document, &[member("10.0.0.1", "n1", false)]);
    assert_eq!(result.rejected, Some(MemberRejection::NetworkInterfaces));
    assert!(!result.is_changed());
    assert_eq!(document, pool(&[nic]));

    let nodes = fixtures::nodes(4);
    let desired: DesiredMembers = [member("10.0.0.1", "n1", false)].into_iter().collect();
    let edit = MemberEdit {
        desired: &desired,
        nodes: &nodes,
        virtual_network: None,
    };
    for (document, reason) in [
        (json!({"properties": {}}), MemberRejection::NoVirtualNetwork),
        (
            json!({"properties": {"virtualNetwork": {"id": ""}}}),
            MemberRejection::NoVirtualNetwork,
        ),
        (
            json!({"properties": {ADDRESSES: [{"properties": {"ipAddress": ""}}]}}),
            MemberRejection::NetworkInterfaces,
        ),
        (json!([]), MemberRejection::Malformed("document")),
        (json!({"properties": 7}), MemberRejection::Malformed("properties")),
        (
            json!({"properties": {ADDRESSES: {}}}),
            MemberRejection::Malformed(ADDRESSES),
        ),
        (
            json!({"properties": {"virtualNetwork": []}}),
            MemberRejection::Malformed("virtualNetwork"),
        ),
    ] {
        let mut written = document.clone();
        assert_eq!(merge(&mut written, &edit).rejected, Some(reason), "{document}");
        assert_eq!(written, document);
    }
    let has_added = |document: &mut Value| merge(document, &edit).is_changed();
    assert!(has_added(&mut pool(&[])), "the pool has a virtual network");
    let has_all = json!({"properties": {ADDRESSES: [entry("n1", "10.0.0.1")]}});
    let result = merge(&mut has_all.clone(), &edit);
    assert_eq!(result.rejected, None, "nothing is added");
}

#[test]
fn entries_without_properties_or_with_odd_addresses_are_foreign() {
    let odd = [
        json!(null),
        json!({"name": "a"}),
        json!({"name": "b", "properties": {"ipAddress": "here"}}),
        json!(7),
    ];
    let mut document = pool(&odd);
    let result = merged(&mut document, &[]);
    assert!(!result.is_changed() && result.rejected.is_none());
    assert_eq!(document, pool(&odd));
}
