//! Load balancers: references between their children, the checks of a write, and the fields that Azure derives.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::error::ErrorResponse;
use super::id::{ResourceId, same_name};
use super::pool;
use super::resource::{self, Object, Resource};

/// The type of a load balancer.
pub(super) const KIND: &str = "Microsoft.Network/loadBalancers";
/// The kind of its pools.
pub(super) const POOLS: &str = "backendAddressPools";
/// The kind of its rules for inbound traffic.
const RULES: &str = "loadBalancingRules";
/// Kinds of children that refer to others. The others list them in a field of this name.
const REFERRING: [&str; 4] = [RULES, "outboundRules", "inboundNatRules", "inboundNatPools"];
/// Fields that hold one reference or several, and the kind of child that they refer to.
const REFERENCES: [(&str, &str); 5] = [
    ("frontendIPConfiguration", "frontendIPConfigurations"),
    ("frontendIPConfigurations", "frontendIPConfigurations"),
    ("backendAddressPool", POOLS),
    ("backendAddressPools", POOLS),
    ("probe", "probes"),
];

/// The children that refer to each child: by its kind and lower-case name, the kind and id of each referring child.
#[derive(Debug, Default)]
pub(super) struct References(BTreeMap<(&'static str, String), Vec<(&'static str, String)>>);

impl References {
    /// Collects the references within a load balancer.
    pub(super) fn from_resource(load_balancer: &Resource) -> Self {
        let mut references = Self::default();
        for kind in REFERRING {
            for child in resource::children(&load_balancer.document, kind) {
                let id = load_balancer.child_id(kind, resource::name_of(child).unwrap_or_default());
                for (target, to) in referred(child) {
                    let Some(name) = to.rsplit('/').next() else { continue };
                    let referring = references.0.entry((target, name.to_lowercase())).or_default();
                    if !referring.contains(&(kind, id.clone())) {
                        referring.push((kind, id.clone()));
                    }
                }
            }
        }
        references
    }

    /// The children that refer to a child.
    fn to(&self, kind: &'static str, name: &str) -> &[(&'static str, String)] {
        self.0.get(&(kind, name.to_lowercase())).map_or(&[], Vec::as_slice)
    }
}

/// The kinds and ids that a child refers to.
fn referred(child: &Value) -> Vec<(&'static str, &str)> {
    let mut found = Vec::new();
    for (field, target) in REFERENCES {
        let Some(value) = child["properties"].get(field) else {
            continue;
        };
        let one = std::slice::from_ref(value);
        let list = value.as_array().map_or(one, Vec::as_slice);
        let ids = list
            .iter()
            .filter_map(|reference| reference.get("id").and_then(Value::as_str));
        found.extend(ids.map(|id| (target, id)));
    }
    found
}

/// Checks that every reference is to a child of the same load balancer.
///
/// # Errors
/// 400 for a reference to a missing child. Guess: the wording and, for rules and probes, the check itself.
pub(super) fn check(load_balancer: &ResourceId, document: &Object) -> Result<(), ErrorResponse> {
    let is_inside = |id: &ResourceId, kind: &str| {
        let is_child = id.segments.len() == 2 && id.ancestor(1).key() == load_balancer.key() && id.is_a(kind);
        is_child && resource::child(document, kind, id.name()).is_some()
    };
    for kind in REFERRING {
        for child in resource::children(document, kind) {
            let name = resource::name_of(child).unwrap_or_default();
            let from = format!("{load_balancer}/{kind}/{name}");
            for (target, to) in referred(child) {
                if !ResourceId::parse(to).is_some_and(|id| is_inside(&id, target)) {
                    return Err(ErrorResponse::bad_request(
                        "InvalidResourceReference",
                        format!(
                            "Resource {to} referenced by resource {from} was not found. Please make sure that the \
                             referenced resource exists, and that both resources are in the same region."
                        ),
                    )
                    .without_details());
                }
            }
        }
    }
    Ok(())
}

/// A child as a GET shows it, with the children that refer to it.
pub(super) fn show_child(
    load_balancer: &Resource,
    kind: &'static str,
    child: &Value,
    references: &References,
    view: &pool::View<'_>,
) -> Value {
    let name = resource::name_of(child).unwrap_or_default();
    let mut object = load_balancer.show_child(kind, child);
    if kind == POOLS {
        pool::show(load_balancer, name, &mut object, view);
    }
    let Some(properties) = resource::properties_mut(&mut object) else {
        return object.into();
    };
    for (from, id) in references.to(kind, name) {
        let list = properties.entry(*from).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(json!({"id": id}));
        }
        if kind == POOLS && *from == "outboundRules" {
            properties.entry("outboundRule").or_insert_with(|| json!({"id": id}));
        }
    }
    object.into()
}

/// Removes the fields that Azure derives for a child of this kind.
pub(super) fn strip_derived(kind: &str, properties: &mut Object) {
    let derived: &[&str] = match kind {
        "frontendIPConfigurations" => &REFERRING,
        POOLS => &[
            RULES,
            "outboundRules",
            "outboundRule",
            "inboundNatRules",
            "backendIPConfigurations",
        ],
        "probes" => &[RULES],
        "inboundNatRules" => &["backendIPConfiguration"],
        _ => &[],
    };
    for field in derived {
        properties.remove(*field);
    }
}

/// Checks that no child refers to the child that is to be deleted.
///
/// Inferred: load balancing rules do not prevent the deletion of their pool. cloud-provider-azure deletes the pool of a
/// Service before it changes the rules, and would never succeed otherwise.
///
/// # Errors
/// 400. Guess: the code and wording.
pub(super) fn check_deletable(load_balancer: &Resource, kind: &'static str, name: &str) -> Result<(), ErrorResponse> {
    let references = References::from_resource(load_balancer);
    let mut all = references.to(kind, name).iter();
    let Some((_, by)) = all.find(|(from, _)| kind != POOLS || *from != RULES) else {
        return Ok(());
    };
    let id = load_balancer.child_id(kind, name);
    let message = format!("Resource {id} is in use by {by} and cannot be deleted.");
    Err(ErrorResponse::bad_request("InUseResourceCannotBeDeleted", message).without_details())
}

/// Removes a child. Guess: rules that referred to a removed pool have no pool then.
pub(super) fn remove(document: &mut Object, kind: &str, name: &str) {
    if let Some(list) = resource::children_mut(document, kind) {
        list.retain(|child| resource::name_of(child).is_none_or(|found| !same_name(found, name)));
    }
    if kind != POOLS {
        return;
    }
    let named = |reference: &Value| {
        let id = reference.get("id").and_then(Value::as_str).unwrap_or_default();
        id.rsplit('/').next().is_some_and(|found| same_name(found, name))
    };
    let rules = resource::children_mut(document, RULES).into_iter().flatten();
    for properties in rules
        .filter_map(Value::as_object_mut)
        .filter_map(resource::properties_mut)
    {
        if properties.get("backendAddressPool").is_some_and(named) {
            properties.remove("backendAddressPool");
        }
        if let Some(Value::Array(pools)) = properties.get_mut("backendAddressPools") {
            pools.retain(|reference| !named(reference));
        }
    }
}
