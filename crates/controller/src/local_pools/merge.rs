//! Brings the members of a pool's document to those that it is to have.
//!
//! Invariants: foreign entries and fields that are not known here stay as they were read, but for the virtual network, which
//! moves to the pool where members are added; an entry that stays keeps its admin state; entry names are unique in the pool;
//! without a change the document is not touched, and then no PUT is due.
//! Changes of admin states in the same document, and the PUT itself with its `If-Match`, are the writer's.
//!
//! Source: cloud-provider-azure `RemoveNodeIPAddressesFromBackendPool`, `AddNodeIPAddressesToBackendPool`; entry names
//! avoid its issues 9803 (empty names) and 10307 (duplicates).

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::local_pools::difference::{Entry, EntryAddress, MemberDifference, MemberRejection, compare};
use crate::local_pools::nodes::{NodeIndex, numbered_entry_name};
use crate::local_pools::operation::{DesiredMember, DesiredMembers};

const ADDRESSES: &str = "loadBalancerBackendAddresses";

/// The pool is to have these members.
#[derive(Clone, Copy, Debug)]
pub struct MemberEdit<'a> {
    /// The complete desired members of the pool.
    pub desired: &'a DesiredMembers,
    /// Distinguishes the entries of Nodes from foreign ones.
    pub nodes: &'a NodeIndex,
    /// The id of the cluster's virtual network, for a pool that has none, and no entry with one.
    pub virtual_network: Option<&'a str>,
}

/// An entry that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedMember {
    /// The name of the new entry, unique in the pool.
    pub name: String,
    /// The address of the node, in the pool's IP family.
    pub address: IpAddr,
    /// Whether the entry is added with `adminState: Down`, because the node has a drain signal. The ledger records it before
    /// the PUT.
    pub is_down: bool,
}

/// The changes that [`merge`] made to a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The entries that were added.
    pub added: Vec<AddedMember>,
    /// The addresses of the entries that were removed.
    pub removed: Vec<IpAddr>,
    /// Why the document stays as it is, although its members differ.
    pub rejected: Option<MemberRejection>,
}

impl Merged {
    /// Whether members were added or removed, so that a PUT is due.
    pub fn is_changed(&self) -> bool {
        !self.added.is_empty() || !self.removed.is_empty()
    }
}

/// Applies the edit to a pool's document as it was read.
pub fn merge(document: &mut Value, edit: &MemberEdit<'_>) -> Merged {
    let (difference, network) = match checked_difference(document, edit) {
        Ok(checked) => checked,
        Err(reason) => {
            return Merged {
                rejected: Some(reason),
                ..Merged::default()
            };
        }
    };
    let removed = remove(document, &difference.remove.iter().copied().collect());
    let added = if difference.add.is_empty() {
        Vec::new()
    } else {
        add(document, &difference.add, network.as_deref())
    };
    Merged {
        added,
        removed,
        rejected: None,
    }
}

/// The difference, where it can be carried out, and the id of the virtual network that the pool gets with new members; `None` if it has one.
fn checked_difference(
    document: &Value,
    edit: &MemberEdit<'_>,
) -> Result<(MemberDifference, Option<String>), MemberRejection> {
    let properties = match document {
        Value::Object(pool) => pool.get("properties").unwrap_or(&Value::Null),
        _ => return Err(MemberRejection::Malformed("document")),
    };
    if !properties.is_object() && !properties.is_null() {
        return Err(MemberRejection::Malformed("properties"));
    }
    let addresses = properties.get(ADDRESSES).unwrap_or(&Value::Null);
    if !addresses.is_array() && !addresses.is_null() {
        return Err(MemberRejection::Malformed(ADDRESSES));
    }
    let difference = compare(entries(document), edit.desired, edit.nodes)?;
    let network = properties.get("virtualNetwork").unwrap_or(&Value::Null);
    if !network.is_object() && !network.is_null() {
        return Err(MemberRejection::Malformed("virtualNetwork"));
    }
    if network_id(properties).is_some() {
        return Ok((difference, None));
    }
    let addresses = addresses.as_array().into_iter().flatten();
    let mut networks = addresses.filter_map(|entry| network_id(entry.get("properties")?));
    let network = networks.next().or(edit.virtual_network);
    if !difference.add.is_empty() && network.is_none() {
        return Err(MemberRejection::NoVirtualNetwork);
    }
    Ok((difference, network.map(str::to_owned)))
}

/// The id of the virtual network that a pool or an entry names.
fn network_id(properties: &Value) -> Option<&str> {
    let id = properties.pointer("/virtualNetwork/id").and_then(Value::as_str);
    id.filter(|id| !id.is_empty())
}

/// Sets the virtual network of a pool, and removes those of its entries, as cloud-provider-azure does: ARM refuses both.
fn set_network(properties: &mut Map<String, Value>, id: &str) {
    let entries = properties.get_mut(ADDRESSES).and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        if let Some(own) = entry.get_mut("properties").and_then(Value::as_object_mut) {
            own.remove("virtualNetwork");
        }
    }
    if let Some(network) = object_at(properties, "virtualNetwork") {
        network.insert("id".to_owned(), id.into());
    }
}

/// The entries of a pool's document, in their order.
fn entries(document: &Value) -> impl Iterator<Item = Entry<'_>> {
    let addresses = document
        .get("properties")
        .and_then(|properties| properties.get(ADDRESSES));
    let addresses = addresses.and_then(Value::as_array).into_iter().flatten();
    addresses.map(|entry| Entry {
        name: entry.get("name").and_then(Value::as_str),
        address: match entry.get("properties") {
            Some(Value::Object(properties)) => match properties.get("ipAddress") {
                None | Some(Value::Null) => EntryAddress::Missing,
                Some(Value::String(text)) if text.is_empty() => EntryAddress::Missing,
                Some(value) => parse_address(value),
            },
            _ => EntryAddress::Unreadable,
        },
    })
}

fn parse_address(value: &Value) -> EntryAddress {
    let address = value.as_str().and_then(|text| text.parse().ok());
    address.map_or(EntryAddress::Unreadable, EntryAddress::Ip)
}

/// The list of entries, if the document has one.
fn entries_mut(document: &mut Value) -> Option<&mut Vec<Value>> {
    document.get_mut("properties")?.get_mut(ADDRESSES)?.as_array_mut()
}

/// The object under this key, which is made where it is absent or null. `None` where something else is there.
fn object_at<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

fn remove(document: &mut Value, places: &BTreeSet<usize>) -> Vec<IpAddr> {
    if places.is_empty() {
        return Vec::new();
    }
    let addresses = entries(document)
        .enumerate()
        .filter(|(place, _)| places.contains(place));
    let addresses = addresses.filter_map(|(_, entry)| match entry.address {
        EntryAddress::Ip(address) => Some(address),
        EntryAddress::Unreadable | EntryAddress::Missing => None,
    });
    let addresses = addresses.collect();
    if let Some(entries) = entries_mut(document) {
        let mut place = 0..;
        entries.retain(|_| place.next().is_some_and(|place| !places.contains(&place)));
    }
    addresses
}

/// Appends an entry for each member, and sets this virtual network if there is one.
fn add(document: &mut Value, members: &[DesiredMember], network: Option<&str>) -> Vec<AddedMember> {
    let mut names: HashSet<String> = entries(document)
        .filter_map(|entry| entry.name.map(str::to_ascii_lowercase))
        .collect();
    let added: Vec<_> = members
        .iter()
        .map(|member| AddedMember {
            name: unique_name(member, &mut names),
            address: member.address,
            is_down: member.is_draining,
        })
        .collect();
    let Some(properties) = document.as_object_mut().and_then(|pool| object_at(pool, "properties")) else {
        return Vec::new();
    };
    if let Some(id) = network {
        set_network(properties, id);
    }
    let addresses = properties.entry(ADDRESSES).or_insert(Value::Null);
    if addresses.is_null() {
        *addresses = Value::Array(Vec::new());
    }
    let Value::Array(addresses) = addresses else {
        return Vec::new();
    };
    addresses.extend(added.iter().map(|member| {
        let mut entry = json!({"name": member.name, "properties": {"ipAddress": member.address.to_string()}});
        if member.is_down {
            entry["properties"]["adminState"] = "Down".into();
        }
        entry
    }));
    added
}

/// The node's name, as cloud-provider-azure names entries; with the address after it where the pool has that name already.
fn unique_name(member: &DesiredMember, names: &mut HashSet<String>) -> String {
    let with_address = numbered_entry_name(&member.node, member.address);
    let numbered = (2..).map(|number: u32| format!("{with_address}-{number}"));
    let candidates = [member.node.to_string(), with_address.clone()];
    let mut free = candidates
        .into_iter()
        .chain(numbered)
        .filter(|name| names.insert(name.to_ascii_lowercase()));
    free.next().unwrap_or_else(|| with_address.clone())
}

#[cfg(test)]
mod tests;
