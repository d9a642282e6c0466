//! What Azure assigns or derives for resources other than load balancers: addresses, and who uses them.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::ArmError;
use super::id::{ResourceId, is};
use super::load_balancer;
use super::record::{self, Object, Record, properties_mut};
use super::store::Store;

const PUBLIC_ADDRESS: &str = "Microsoft.Network/publicIPAddresses";
/// Public addresses come from RFC 2544's range for benchmarks (131,070 of them) and RFC 3849's for documentation.
const PUBLIC_V4: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const PUBLIC_V6: u128 = 0x2001_0db8_0000_0000_0000_0000_0000_0000;
/// Private ones, where a subnet is named but no address, from the end of 10.0.0.0/8 and from `fd00::/8`.
const PRIVATE_V4: u32 = u32::from_be_bytes([10, 255, 0, 0]);
const PRIVATE_V6: u128 = 0xfd00_0000_0000_0000_0000_0000_0000_0000;
/// Size of the smaller ranges, and so of what is searched.
const RANGE: u32 = 0xffff;

/// Fills in what a write of this resource gets assigned; what was assigned before stays.
///
/// # Errors
/// 400 where there are no addresses left.
pub(super) fn assign(store: &Store, id: &ResourceId, document: &mut Object, seeded: bool) -> Result<(), ArmError> {
    let existing = store.find(id);
    if is(&id.kind(), PUBLIC_ADDRESS) {
        let kept = existing.and_then(|record| record.document.get("properties")?.get("ipAddress").cloned());
        let location = document
            .get("location")
            .and_then(Value::as_str)
            .unwrap_or("eastus")
            .to_owned();
        let Some(properties) = properties_mut(document) else {
            return Ok(());
        };
        let v6 = properties.get("publicIPAddressVersion").and_then(Value::as_str) == Some("IPv6");
        let given = properties.remove("ipAddress").filter(|_| seeded);
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
    for (kind, address) in [
        ("frontendIPConfigurations", is(&id.kind(), load_balancer::KIND)),
        ("ipConfigurations", super::members::is_interface(id)),
    ] {
        if address {
            assign_private(store, existing, kind, document)?;
        }
    }
    Ok(())
}

/// Gives every child with a subnet and no address one.
fn assign_private(store: &Store, existing: Option<&Record>, kind: &str, document: &mut Object) -> Result<(), ArmError> {
    let mut used: Option<Vec<String>> = None;
    let Some(list) = properties_mut(document).and_then(|properties| properties.get_mut(kind)) else {
        return Ok(());
    };
    for child in list.as_array_mut().into_iter().flatten() {
        let kept = existing.and_then(|record| {
            let list = record::children(&record.document, kind);
            let before = &list[record::position(list, record::name_of(child)?)?];
            before.pointer("/properties/privateIPAddress").cloned()
        });
        let Some(properties) = child.as_object_mut().and_then(properties_mut) else {
            continue;
        };
        let wants = properties.get("subnet").is_some_and(Value::is_object)
            && properties.get("privateIPAddress").is_none_or(Value::is_null);
        if !wants {
            continue;
        }
        let v6 = properties.get("privateIPAddressVersion").and_then(Value::as_str) == Some("IPv6");
        let address = if let Some(kept) = kept {
            kept
        } else {
            let used = used.get_or_insert_with(|| private_in_use(store));
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

/// The first address of a range that is not in use.
fn free(v6: bool, first_v4: u32, first_v6: u128, used: &[String]) -> Result<String, ArmError> {
    let candidates = (1..RANGE).map(|number| {
        if v6 {
            Ipv6Addr::from(first_v6 + u128::from(number)).to_string()
        } else {
            Ipv4Addr::from(first_v4 + number).to_string()
        }
    });
    let used: std::collections::HashSet<&str> = used.iter().map(String::as_str).collect();
    let free = candidates
        .into_iter()
        .find(|candidate| !used.contains(candidate.as_str()));
    free.ok_or_else(|| {
        ArmError::new(
            StatusCode::BAD_REQUEST,
            "NoAddressLeft",
            "There is no IP address left to assign.",
        )
    })
}

fn public_in_use(store: &Store) -> Vec<String> {
    let addresses = store
        .below("/", None)
        .filter(|record| is(&record.id.kind(), PUBLIC_ADDRESS));
    let text = |record: &Record| {
        Some(
            record
                .document
                .get("properties")?
                .get("ipAddress")?
                .as_str()?
                .to_owned(),
        )
    };
    addresses.filter_map(text).collect()
}

fn private_in_use(store: &Store) -> Vec<String> {
    let mut used = Vec::new();
    for record in store.below("/", None) {
        for kind in ["frontendIPConfigurations", "ipConfigurations"] {
            let children = record::children(&record.document, kind).iter();
            let addresses = children.filter_map(|child| child.pointer("/properties/privateIPAddress")?.as_str());
            used.extend(addresses.map(str::to_owned));
        }
    }
    used
}

/// Adds what a GET shows beside what was written.
pub(super) fn show(store: &Store, record: &Record, properties: &mut Object) {
    if is(&record.id.kind(), PUBLIC_ADDRESS)
        && let Some(user) = user(store, &record.id)
    {
        properties.insert("ipConfiguration".into(), json!({"id": user}));
    }
}

/// The frontend or IP configuration that uses a public address.
fn user(store: &Store, address: &ResourceId) -> Option<String> {
    let key = address.key();
    store.below("/", None).find_map(|record| {
        ["frontendIPConfigurations", "ipConfigurations"]
            .into_iter()
            .find_map(|kind| {
                let list = record::children(&record.document, kind);
                let uses = |child: &&Value| {
                    let id = child.pointer("/properties/publicIPAddress/id").and_then(Value::as_str);
                    id.is_some_and(|id| id.to_lowercase() == key)
                };
                let child = list.iter().find(uses)?;
                Some(record.child_id(kind, record::name_of(child)?))
            })
    })
}

/// Whether a resource may be deleted.
///
/// # Errors
/// 400 for a public address in use.
pub(super) fn may_go(store: &Store, id: &ResourceId) -> Result<(), ArmError> {
    let Some(user) = Some(id)
        .filter(|id| is(&id.kind(), PUBLIC_ADDRESS))
        .and_then(|id| user(store, id))
    else {
        return Ok(());
    };
    Err(ArmError::new(
        StatusCode::BAD_REQUEST,
        "PublicIPAddressCannotBeDeleted",
        format!(
            "Public IP address {id} can not be deleted since it is still allocated to resource {user}. In order to \
                 delete the public IP, disassociate/detach the Public IP address from the resource."
        ),
    )
    .without_details())
}
