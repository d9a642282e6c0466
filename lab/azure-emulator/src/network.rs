//! Other network resources: the addresses that Azure assigns, and references to public addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::error::ErrorResponse;
use super::id::{ResourceId, same_name};
use super::load_balancer;
use super::resource::{self, Object, Resource, properties_mut};
use super::store::Store;

const PUBLIC_ADDRESS: &str = "Microsoft.Network/publicIPAddresses";
/// The children that have addresses: those of a load balancer and those of an interface.
const CONFIGURATIONS: [&str; 2] = ["frontendIPConfigurations", "ipConfigurations"];
/// Public addresses are from the ranges for benchmarks (RFC 2544, 131,070 addresses) and documentation (RFC 3849).
const PUBLIC_V4: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const PUBLIC_V6: u128 = 0x2001_0db8_0000_0000_0000_0000_0000_0000;
/// Private addresses, for configurations with a subnet and no address, are from the end of 10.0.0.0/8 and from
/// `fd00::/8`.
const PRIVATE_V4: u32 = u32::from_be_bytes([10, 255, 0, 0]);
const PRIVATE_V6: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0000;
/// Addresses that are tried of each range.
const RANGE_SIZE: u32 = 0xffff;

/// Assigns the addresses that a write of this resource needs. Addresses that are assigned already stay.
///
/// # Errors
/// 400 when a range has no free address.
pub(super) fn assign(
    store: &Store,
    id: &ResourceId,
    document: &mut Object,
    is_seed: bool,
) -> Result<(), ErrorResponse> {
    let existing = store.find(id);
    if same_name(&id.kind(), PUBLIC_ADDRESS) {
        let kept = existing.and_then(|resource| resource::property(&resource.document, "ipAddress").cloned());
        let location = document
            .get("location")
            .and_then(Value::as_str)
            .unwrap_or("eastus")
            .to_owned();
        let Some(properties) = properties_mut(document) else {
            return Ok(());
        };
        let v6 = properties.get("publicIPAddressVersion").and_then(Value::as_str) == Some("IPv6");
        let given = properties.remove("ipAddress").filter(|_| is_seed);
        let address = match given.or(kept) {
            Some(address) => address,
            None => free(v6, PUBLIC_V4, PUBLIC_V6, &public_in_use(store))?.into(),
        };
        properties.insert("ipAddress".into(), address);
        properties.remove("ipConfiguration");
        for (field, default) in [
            ("publicIPAddressVersion", json!("IPv4")),
            ("idleTimeoutInMinutes", json!(4)),
        ] {
            properties.entry(field).or_insert(default);
        }
        if let Some(dns) = properties.get_mut("dnsSettings").and_then(Value::as_object_mut)
            && let Some(label) = dns.get("domainNameLabel").and_then(Value::as_str)
        {
            let name = format!("{label}.{location}.cloudapp.azure.com");
            dns.insert("fqdn".into(), name.into());
        }
    }
    let [of_load_balancer, of_interface] = CONFIGURATIONS;
    if same_name(&id.kind(), load_balancer::KIND) {
        assign_private(store, existing, of_load_balancer, document)?;
    }
    if super::nic_members::is_interface(id) {
        assign_private(store, existing, of_interface, document)?;
    }
    Ok(())
}

/// Assigns an address to every child that has a subnet and no address.
fn assign_private(
    store: &Store,
    existing: Option<&Resource>,
    kind: &str,
    document: &mut Object,
) -> Result<(), ErrorResponse> {
    let mut used: Option<Vec<String>> = None;
    let Some(list) = properties_mut(document).and_then(|properties| properties.get_mut(kind)) else {
        return Ok(());
    };
    let children = list.as_array().into_iter().flatten();
    let stated = children.filter_map(|child| child.pointer("/properties/privateIPAddress")?.as_str());
    let stated: Vec<_> = stated.map(str::to_owned).collect();
    for child in list.as_array_mut().into_iter().flatten() {
        let kept = existing.and_then(|resource| {
            let before = resource::child(&resource.document, kind, resource::name_of(child)?)?;
            before.pointer("/properties/privateIPAddress").cloned()
        });
        let Some(properties) = child.as_object_mut().and_then(properties_mut) else {
            continue;
        };
        let needs_address = properties.get("subnet").is_some_and(Value::is_object)
            && properties.get("privateIPAddress").is_none_or(Value::is_null);
        if !needs_address {
            continue;
        }
        let v6 = properties.get("privateIPAddressVersion").and_then(Value::as_str) == Some("IPv6");
        let address = if let Some(kept) = kept {
            kept
        } else {
            let used = used.get_or_insert_with(|| [private_in_use(store), stated.clone()].concat());
            let address = free(v6, PRIVATE_V4, PRIVATE_V6, used)?;
            used.push(address.clone());
            address.into()
        };
        properties.insert("privateIPAddress".into(), address);
        properties
            .entry("privateIPAllocationMethod")
            .or_insert_with(|| json!("Dynamic"));
    }
    Ok(())
}

/// The first free address of a range.
fn free(v6: bool, first_v4: u32, first_v6: u128, used: &[String]) -> Result<String, ErrorResponse> {
    let candidates = (1..RANGE_SIZE).map(|number| {
        if v6 {
            Ipv6Addr::from(first_v6 + u128::from(number)).to_string()
        } else {
            Ipv4Addr::from(first_v4 + number).to_string()
        }
    });
    let used: std::collections::HashSet<&str> = used.iter().map(String::as_str).collect();
    let mut free = candidates.filter(|candidate| !used.contains(candidate.as_str()));
    free.next()
        .ok_or_else(|| ErrorResponse::bad_request("NoAddressLeft", "There is no IP address left to assign."))
}

fn public_in_use(store: &Store) -> Vec<String> {
    let addresses = store
        .all()
        .filter(|resource| same_name(&resource.id.kind(), PUBLIC_ADDRESS));
    let text = |resource: &Resource| {
        Some(
            resource::property(&resource.document, "ipAddress")?
                .as_str()?
                .to_owned(),
        )
    };
    addresses.filter_map(text).collect()
}

fn private_in_use(store: &Store) -> Vec<String> {
    let mut used = Vec::new();
    for resource in store.all() {
        for kind in CONFIGURATIONS {
            let children = resource::children(&resource.document, kind).iter();
            let addresses = children.filter_map(|child| child.pointer("/properties/privateIPAddress")?.as_str());
            used.extend(addresses.map(str::to_owned));
        }
    }
    used
}

/// Adds the fields that a GET shows and no client writes.
pub(super) fn show(store: &Store, resource: &Resource, properties: &mut Object) {
    if same_name(&resource.id.kind(), PUBLIC_ADDRESS)
        && let Some(user) = user(store, &resource.id)
    {
        properties.insert("ipConfiguration".into(), json!({"id": user}));
    }
}

/// The id of the frontend or IP configuration that uses a public address.
fn user(store: &Store, address: &ResourceId) -> Option<String> {
    let key = address.key();
    store.all().find_map(|resource| {
        CONFIGURATIONS.into_iter().find_map(|kind| {
            let list = resource::children(&resource.document, kind);
            let uses = |child: &&Value| {
                let id = child.pointer("/properties/publicIPAddress/id").and_then(Value::as_str);
                id.is_some_and(|id| id.to_lowercase() == key)
            };
            let child = list.iter().find(uses)?;
            Some(resource.child_id(kind, resource::name_of(child)?))
        })
    })
}

/// Checks that a resource may be deleted.
///
/// # Errors
/// 400 for a public address that is in use.
pub(super) fn check_deletable(store: &Store, id: &ResourceId) -> Result<(), ErrorResponse> {
    let is_address = same_name(&id.kind(), PUBLIC_ADDRESS);
    let Some(user) = is_address.then(|| user(store, id)).flatten() else {
        return Ok(());
    };
    Err(ErrorResponse::bad_request(
        "PublicIPAddressCannotBeDeleted",
        format!(
            "Public IP address {id} can not be deleted since it is still allocated to resource {user}. In order to \
                 delete the public IP, disassociate/detach the Public IP address from the resource."
        ),
    )
    .without_details())
}
