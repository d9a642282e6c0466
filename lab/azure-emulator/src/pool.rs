//! Backend address pools: what a write may change, and what a GET shows.
//!
//! Each write replaces an IP-based pool. The members of a NIC-based pool come from the network interfaces; a write may
//! only add settings, such as the admin state, to the existing members.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::error::ErrorResponse;
use super::id::same_name;
use super::load_balancer::POOLS;
use super::nic_members::{NicMember, NicMembers};
use super::resource::{self, Object, Resource, name_of, properties_mut};

/// The field with the addresses, in a pool's properties.
pub(super) const ADDRESSES: &str = "loadBalancerBackendAddresses";
/// The field with the IP configuration of a NIC member, in an address's properties.
const IP_CONFIGURATION: &str = "networkInterfaceIPConfiguration";
/// Admin states as ARM spells them. `Drain` was one until API version 2022-09-01.
const ADMIN_STATES: [&str; 3] = ["None", "Up", "Down"];

/// What a GET of a pool needs besides the document.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) members: &'a NicMembers,
    /// Whether an admin state that was set back to `None` is shown.
    pub(super) show_none: bool,
}

/// The document in which a pool was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolSource {
    Pool,
    LoadBalancer,
    /// A seed, which is stored without checks of the members.
    Seed,
}

/// Normalizes a pool that a client sent.
///
/// # Errors
/// 400 for a wrong type, an unknown admin state, a change of a NIC-based pool's members, or an address whose virtual network is nowhere or
/// at both levels.
pub(super) fn normalize(
    pool: &mut Object,
    id: &str,
    existing: Option<&Object>,
    members: Option<&BTreeMap<String, NicMember>>,
    source: PoolSource,
) -> Result<(), ErrorResponse> {
    let kept = existing.map_or(&[][..], |pool| resource::children(pool, ADDRESSES));
    let Some(properties) = properties_mut(pool) else {
        return Err(malformed(id, "properties is not an object"));
    };
    let given = match properties.remove(ADDRESSES) {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(list),
        Some(_) => return Err(malformed(id, "loadBalancerBackendAddresses is not a list")),
    };
    let is_automatic = properties
        .get("syncMode")
        .and_then(Value::as_str)
        .is_some_and(|mode| same_name(mode, "Automatic"));
    let has_network = names_resource(properties, "virtualNetwork");
    let is_absent = given.is_none();
    let mut list = given.unwrap_or_default();
    let mut names = BTreeSet::new();
    for address in &mut list {
        let name = normalize_address(address, id)?;
        if !names.insert(name.to_lowercase()) {
            return Err(malformed(id, &format!("the address {name} is there twice")));
        }
    }
    let nic_members: BTreeMap<String, String> = nic_members(kept, members)
        .map(|(name, configuration)| (name.to_lowercase(), configuration.to_owned()))
        .collect();
    if source != PoolSource::Seed {
        let same = nic_members.keys().eq(names.iter());
        let by_address = list
            .iter()
            .any(|address| address["properties"].get("ipAddress").is_some());
        let by_interface = list.iter().any(|address| configuration(address).is_some());
        let is_refused = if nic_members.is_empty() {
            by_interface
        } else {
            // A load balancer's document may leave out the members of a NIC-based pool.
            by_address || !(same || is_absent && source == PoolSource::LoadBalancer)
        };
        if is_refused {
            return Err(membership_is_read_only(id));
        }
        if is_automatic && nic_members.is_empty() && !list.is_empty() {
            // Reported: pools that Azure synchronizes with a scale set refuse addresses.
            return Err(malformed(id, "a pool with syncMode Automatic takes no addresses"));
        }
        check_networks(id, has_network, &list)?;
        // A seed may have a member without its interface; then only the pool has the configuration.
        for address in &mut list {
            let from = name_of(address).and_then(|name| nic_members.get(&name.to_lowercase()));
            let Some(properties) = address.as_object_mut().and_then(properties_mut) else {
                continue;
            };
            properties.remove(IP_CONFIGURATION);
            if let Some(from) = from {
                properties.insert(IP_CONFIGURATION.into(), json!({"id": from}));
            }
        }
    }
    if let Some(properties) = properties_mut(pool) {
        properties.insert(ADDRESSES.into(), list.into());
    }
    Ok(())
}

/// Reported: an address is in the virtual network of its pool or in one of its own, which a subnet names, too. Guess: code and wording.
fn check_networks(pool: &str, has_network: bool, addresses: &[Value]) -> Result<(), ErrorResponse> {
    for properties in addresses.iter().filter_map(|address| address["properties"].as_object()) {
        let has_own = names_resource(properties, "virtualNetwork");
        let what = match (has_network, has_own) {
            (true, true) => "the pool and an address of it both have a virtual network",
            (false, false) if !names_resource(properties, "subnet") => {
                "neither the pool nor an address of it has a virtual network"
            }
            _ => continue,
        };
        if properties.get("ipAddress").is_some_and(Value::is_string) {
            return Err(malformed(pool, what));
        }
    }
    Ok(())
}

/// Whether this field of a pool or an address has the id of another resource.
fn names_resource(properties: &Object, field: &str) -> bool {
    let id = properties.get(field).and_then(|reference| reference.get("id"));
    id.and_then(Value::as_str).is_some_and(|id| !id.is_empty())
}

/// Normalizes one address and returns its name.
fn normalize_address(address: &mut Value, pool: &str) -> Result<String, ErrorResponse> {
    let wrong = |what: &str| malformed(pool, what);
    let object = address
        .as_object_mut()
        .ok_or_else(|| wrong("an address is not an object"))?;
    resource::strip_read_only(object);
    let name = object
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        return Err(wrong("an address has no name"));
    }
    super::normalize::check_name(&name)?;
    let Some(properties) = properties_mut(object) else {
        return Err(wrong(&format!("the properties of address {name} are not an object")));
    };
    properties.remove("inboundNatRulesPortMapping");
    if let Some(ip) = properties.get("ipAddress") {
        let valid = ip.as_str().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
        if !valid && !ip.is_null() {
            return Err(wrong(&format!("the ipAddress of address {name} is not an IP address")));
        }
    }
    match properties.get("adminState") {
        None => {}
        Some(Value::Null) => drop(properties.remove("adminState")),
        Some(Value::String(state)) => {
            let Some(known) = ADMIN_STATES.iter().find(|known| same_name(known, state)) else {
                return Err(wrong(&format!(
                    "the adminState of address {name} is {state}, not None, Up or Down"
                )));
            };
            properties.insert("adminState".into(), (*known).into());
        }
        Some(_) => return Err(wrong(&format!("the adminState of address {name} is not a string"))),
    }
    Ok(name)
}

/// Adds the fields that a GET of a pool shows.
pub(super) fn show(load_balancer: &Resource, pool: &str, object: &mut Object, view: &View<'_>) {
    let id = load_balancer.child_id(POOLS, pool);
    let members = view.members.get(&id.to_lowercase());
    let Some(properties) = properties_mut(object) else {
        return;
    };
    let list = properties.get_mut(ADDRESSES).and_then(Value::as_array_mut);
    let mut list = list.map(std::mem::take).unwrap_or_default();
    let missing: Vec<Value> = nic_members(&list, members)
        .skip(list.iter().filter(|address| configuration(address).is_some()).count())
        .map(|(name, configuration)| json!({"name": name, "properties": {IP_CONFIGURATION: {"id": configuration}}}))
        .collect();
    list.extend(missing);
    let configurations = list.iter().filter_map(configuration);
    let configurations: Vec<Value> = configurations.map(|id| json!({"id": id})).collect();
    if !configurations.is_empty() {
        properties.insert("backendIPConfigurations".into(), configurations.into());
    }
    let kind = format!("{}/{POOLS}/{ADDRESSES}", load_balancer.id.kind());
    let shown = list.iter_mut().map(|address| {
        let mut object = address.as_object_mut().map(std::mem::take).unwrap_or_default();
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default();
        let id = format!("{id}/{ADDRESSES}/{name}");
        if let Some(properties) = properties_mut(&mut object)
            && !view.show_none
            && properties.get("adminState").and_then(Value::as_str) == Some("None")
        {
            properties.remove("adminState");
        }
        Value::Object(load_balancer.with_read_only_fields(object, id, kind.clone()))
    });
    properties.insert(ADDRESSES.into(), shown.collect());
}

/// The names and IP configurations of a pool's NIC members: first those in its document, then the others.
fn nic_members<'a>(
    kept: &'a [Value],
    members: Option<&'a BTreeMap<String, NicMember>>,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let known: BTreeSet<String> = kept.iter().filter_map(configuration).map(str::to_lowercase).collect();
    let kept = kept
        .iter()
        .filter_map(|address| Some((name_of(address)?, configuration(address)?)));
    let members = members.into_iter().flatten().map(|(_, member)| member);
    let others = members.filter(move |member| !known.contains(&member.configuration.to_lowercase()));
    kept.chain(others.map(|member| (member.name.as_str(), member.configuration.as_str())))
}

/// The members of the pool with this name in the document of a load balancer.
pub(super) fn members_mut<'a>(load_balancer: &'a mut Object, name: &str) -> Option<&'a mut Value> {
    let mut pools = resource::children_mut(load_balancer, POOLS)?.iter_mut();
    let pool = pools.find(|pool| name_of(pool).is_some_and(|known| same_name(known, name)))?;
    pool.pointer_mut("/properties/loadBalancerBackendAddresses")
}

/// Removes the addresses of an interface's IP configurations that are no longer in the pool.
pub(super) fn remove_departed(pool: &mut Object, interface: &str, members: Option<&BTreeMap<String, NicMember>>) {
    let prefix = format!("{}/", interface.to_lowercase());
    let still = |id: &str| {
        let mut members = members.into_iter().flatten();
        members.any(|(_, member)| same_name(&member.configuration, id))
    };
    let Some(list) = resource::children_mut(pool, ADDRESSES) else {
        return;
    };
    list.retain(|address| configuration(address).is_none_or(|id| !id.to_lowercase().starts_with(&prefix) || still(id)));
}

/// The IP configuration of an address that comes from a network interface.
fn configuration(address: &Value) -> Option<&str> {
    // Called for every address of a large pool: with `pointer` it would take a fifth of a GET.
    address.get("properties")?.get(IP_CONFIGURATION)?.get("id")?.as_str()
}

fn membership_is_read_only(id: &str) -> ErrorResponse {
    ErrorResponse::bad_request(
        "ModificationOfNICIpConfigBackendPoolNotSupported",
        format!(
            "Operation on backend pool {id} not allowed since it adds/modifies/deletes backend address pool members \
             that are specified with a network interface IP configuration."
        ),
    )
    .without_details()
}

fn malformed(id: &str, what: &str) -> ErrorResponse {
    ErrorResponse::malformed("InvalidBackendAddressPool", id, what)
}
