//! Backend address pools: what a writer may change, and what a GET shows.
//!
//! IP-based pools are replaced whole by each write. NIC-based pools get their members from network
//! interfaces; a write may only say more about the members there are.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::ArmError;
use super::id::is;
use super::load_balancer::POOLS;
use super::members::{Member, Members};
use super::record::{self, Object, Record, name_of, properties_mut};

/// The list of addresses in a pool's properties.
pub(super) const ADDRESSES: &str = "loadBalancerBackendAddresses";
/// In an address's properties: the IP configuration of a NIC member.
const CONFIGURATION: &str = "networkInterfaceIPConfiguration";
/// Admin states as they are shown. `Drain` was one until API version 2022-09-01.
const ADMIN_STATES: [&str; 3] = ["None", "Up", "Down"];

/// What showing a pool takes besides the document.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) members: &'a Members,
    /// Whether an admin state that was set back to None is shown.
    pub(super) show_none: bool,
}

/// Which document a pool was written by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenBy {
    /// Its own.
    Itself,
    /// The load balancer's.
    LoadBalancer,
    /// A seed file: what stands there is so.
    Seed,
}

/// Makes what a writer sent of a pool into what is kept, or refuses it.
///
/// # Errors
/// 400.
pub(super) fn accept(
    pool: &mut Object,
    id: &str,
    existing: Option<&Object>,
    members: Option<&BTreeMap<String, Member>>,
    by: WrittenBy,
) -> Result<(), ArmError> {
    let kept = existing.map(addresses).unwrap_or_default();
    let Some(properties) = properties_mut(pool) else {
        return Err(malformed(id, "properties is not an object"));
    };
    let given = match properties.remove(ADDRESSES) {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(list),
        Some(_) => return Err(malformed(id, "loadBalancerBackendAddresses is not a list")),
    };
    let automatic = properties
        .get("syncMode")
        .and_then(Value::as_str)
        .is_some_and(|mode| is(mode, "Automatic"));
    let said_nothing = given.is_none();
    let mut list = given.unwrap_or_default();
    let mut names = BTreeSet::new();
    for address in &mut list {
        let name = accept_address(address, id)?;
        if !names.insert(name.to_lowercase()) {
            return Err(malformed(id, &format!("the address {name} is there twice")));
        }
    }
    let of_interfaces: BTreeMap<String, String> = of_interfaces(kept, members)
        .map(|(name, configuration)| (name.to_lowercase(), configuration.to_owned()))
        .collect();
    if by != WrittenBy::Seed {
        let same = of_interfaces.keys().eq(names.iter());
        let by_address = list.iter().any(|address| {
            address
                .get("properties")
                .is_some_and(|properties| properties.get("ipAddress").is_some())
        });
        let by_interface = list.iter().any(|address| configuration(address).is_some());
        let refused = if of_interfaces.is_empty() {
            by_interface
        } else {
            // A load balancer's document may leave the members of a NIC-based pool out.
            by_address || !(same || said_nothing && by == WrittenBy::LoadBalancer)
        };
        if refused {
            return Err(not_by_pool(id));
        }
        if automatic && of_interfaces.is_empty() && !list.is_empty() {
            // Reported: pools that Azure keeps in step with a scale set refuse addresses.
            return Err(malformed(id, "a pool with syncMode Automatic takes no addresses"));
        }
        for address in &mut list {
            let Some(properties) = address.as_object_mut().and_then(properties_mut) else {
                continue;
            };
            properties.remove(CONFIGURATION);
        }
        // What came from a seed without its interface is known from nowhere else.
        for address in &mut list {
            let from = name_of(address)
                .and_then(|name| of_interfaces.get(&name.to_lowercase()))
                .cloned();
            if let (Some(from), Some(properties)) = (from, address.as_object_mut().and_then(properties_mut)) {
                properties.insert(CONFIGURATION.into(), json!({"id": from}));
            }
        }
    }
    if let Some(properties) = properties_mut(pool) {
        properties.insert(ADDRESSES.into(), list.into());
    }
    Ok(())
}

/// Makes one address into what is kept; its name.
fn accept_address(address: &mut Value, pool: &str) -> Result<String, ArmError> {
    let Some(object) = address.as_object_mut() else {
        return Err(malformed(pool, "an address is not an object"));
    };
    record::strip(object);
    let Some(name) = object
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return Err(malformed(pool, "an address has no name"));
    };
    let name = name.to_owned();
    super::accept::check_name(&name)?;
    let Some(properties) = properties_mut(object) else {
        return Err(malformed(
            pool,
            &format!("the properties of address {name} are not an object"),
        ));
    };
    properties.remove("inboundNatRulesPortMapping");
    if let Some(ip) = properties.get("ipAddress") {
        let valid = ip.as_str().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok());
        if !valid && !ip.is_null() {
            return Err(malformed(
                pool,
                &format!("the ipAddress of address {name} is not an IP address"),
            ));
        }
    }
    match properties.get("adminState") {
        None => {}
        Some(Value::Null) => drop(properties.remove("adminState")),
        Some(Value::String(state)) => {
            let Some(known) = ADMIN_STATES.iter().find(|known| is(known, state)) else {
                let message = format!("the adminState of address {name} is {state}, not None, Up or Down");
                return Err(malformed(pool, &message));
            };
            properties.insert("adminState".into(), (*known).into());
        }
        Some(_) => {
            return Err(malformed(
                pool,
                &format!("the adminState of address {name} is not a string"),
            ));
        }
    }
    Ok(name)
}

/// Fills in what a GET of a pool shows of its addresses.
pub(super) fn show(load_balancer: &Record, pool: &str, object: &mut Object, view: &View<'_>) {
    let id = load_balancer.child_id(POOLS, pool);
    let members = view.members.of(&id.to_lowercase());
    let Some(properties) = properties_mut(object) else {
        return;
    };
    let mut list = match properties.remove(ADDRESSES) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let missing: Vec<Value> = of_interfaces(&list, members)
        .skip(list.iter().filter(|address| configuration(address).is_some()).count())
        .map(|(name, configuration)| json!({"name": name, "properties": {CONFIGURATION: {"id": configuration}}}))
        .collect();
    list.extend(missing);
    let configurations: Vec<Value> = list
        .iter()
        .filter_map(configuration)
        .map(|id| json!({"id": id}))
        .collect();
    if !configurations.is_empty() {
        properties.insert("backendIPConfigurations".into(), configurations.into());
    }
    let kind = format!("{}/{POOLS}/{ADDRESSES}", load_balancer.id.kind());
    let shown = list.into_iter().map(|address| {
        let mut object = match address {
            Value::Object(object) => object,
            _ => Object::new(),
        };
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default();
        let id = format!("{id}/{ADDRESSES}/{name}");
        if let Some(properties) = properties_mut(&mut object)
            && !view.show_none
            && properties.get("adminState").and_then(Value::as_str) == Some("None")
        {
            properties.remove("adminState");
        }
        Value::Object(load_balancer.filled(object, id, kind.clone()))
    });
    properties.insert(ADDRESSES.into(), shown.collect());
}

/// The names and IP configurations of a pool's NIC members: those it keeps something about, then the others.
fn of_interfaces<'a>(
    kept: &'a [Value],
    members: Option<&'a BTreeMap<String, Member>>,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let known: BTreeSet<String> = kept.iter().filter_map(configuration).map(str::to_lowercase).collect();
    let kept = kept
        .iter()
        .filter_map(|address| Some((name_of(address)?, configuration(address)?)));
    let members = members.into_iter().flatten().map(|(_, member)| member);
    let others = members.filter(move |member| !known.contains(&member.configuration.to_lowercase()));
    kept.chain(others.map(|member| (member.name.as_str(), member.configuration.as_str())))
}

/// Forgets what a pool keeps about IP configurations of a network interface that are not in it any more.
pub(super) fn forget(pool: &mut Object, interface: &str, members: Option<&BTreeMap<String, Member>>) {
    let prefix = format!("{}/", interface.to_lowercase());
    let still = |id: &str| {
        let mut members = members.into_iter().flatten();
        members.any(|(_, member)| is(&member.configuration, id))
    };
    let Some(list) = record::children_mut(pool, ADDRESSES) else {
        return;
    };
    list.retain(|address| configuration(address).is_none_or(|id| !id.to_lowercase().starts_with(&prefix) || still(id)));
}

/// The addresses kept of a pool.
fn addresses(pool: &Object) -> &[Value] {
    record::children(pool, ADDRESSES)
}

/// The IP configuration of an address that comes from a network interface.
fn configuration(address: &Value) -> Option<&str> {
    // Asked of every address of a large pool: `pointer` would take a fifth of a GET.
    address.get("properties")?.get(CONFIGURATION)?.get("id")?.as_str()
}

fn not_by_pool(id: &str) -> ArmError {
    ArmError::new(
        StatusCode::BAD_REQUEST,
        "ModificationOfNICIpConfigBackendPoolNotSupported",
        format!(
            "Operation on backend pool {id} not allowed since it adds/modifies/deletes backend address pool members \
             that are specified with a network interface IP configuration."
        ),
    )
    .without_details()
}

/// A guess: the code is one that Azure uses for requests it cannot read; the wording is ours.
fn malformed(id: &str, what: &str) -> ArmError {
    ArmError::new(
        StatusCode::BAD_REQUEST,
        "InvalidRequestFormat",
        "Cannot parse the request.",
    )
    .detail("InvalidBackendAddressPool", format!("{id}: {what}."))
}
