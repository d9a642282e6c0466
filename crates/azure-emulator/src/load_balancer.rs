//! What is special about load balancers: which of their children refer to which, what a writer may not
//! say, and what Azure adds when they are shown.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::error::ArmError;
use super::id::{ResourceId, is};
use super::pool;
use super::record::{self, Object, Record};

/// The type.
pub(super) const KIND: &str = "Microsoft.Network/loadBalancers";
/// Its pools.
pub(super) const POOLS: &str = "backendAddressPools";
/// Its rules for traffic from outside.
const RULES: &str = "loadBalancingRules";
/// Children that refer to others, and under which name the others show it.
const REFERRING: [&str; 4] = [RULES, "outboundRules", "inboundNatRules", "inboundNatPools"];
/// Fields by which they refer, to one or to several, and to what.
const REFERENCES: [(&str, &str); 5] = [
    ("frontendIPConfiguration", "frontendIPConfigurations"),
    ("frontendIPConfigurations", "frontendIPConfigurations"),
    ("backendAddressPool", POOLS),
    ("backendAddressPools", POOLS),
    ("probe", "probes"),
];

/// What refers to each child: by its kind and lower-case name, the kind and id of what refers to it.
#[derive(Debug, Default)]
pub(super) struct References(BTreeMap<(&'static str, String), Vec<(&'static str, String)>>);

impl References {
    /// The references in a load balancer.
    pub(super) fn of(load_balancer: &Record) -> Self {
        let mut references = Self::default();
        for kind in REFERRING {
            for child in record::children(&load_balancer.document, kind) {
                let id = load_balancer.child_id(kind, record::name_of(child).unwrap_or_default());
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

    /// What refers to a child.
    fn to(&self, kind: &'static str, name: &str) -> &[(&'static str, String)] {
        self.0.get(&(kind, name.to_lowercase())).map_or(&[], Vec::as_slice)
    }
}

/// The kinds and ids a child refers to.
fn referred(child: &Value) -> Vec<(&'static str, &str)> {
    let mut found = Vec::new();
    for (field, target) in REFERENCES {
        let Some(value) = child.get("properties").and_then(|properties| properties.get(field)) else {
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

/// Checks a load balancer that was written whole or in part.
///
/// # Errors
/// 400: two children of one name, or a reference to a child that is not there. Both are guesses in
/// their wording, and the check itself of rules and probes is one.
pub(super) fn check(load_balancer: &ResourceId, document: &Object) -> Result<(), ArmError> {
    let names = |kind: &str| -> BTreeSet<String> {
        let children = record::children(document, kind).iter();
        children.filter_map(record::name_of).map(str::to_lowercase).collect()
    };
    for kind in REFERRING {
        for child in record::children(document, kind) {
            let from = format!("{load_balancer}/{kind}/{}", record::name_of(child).unwrap_or_default());
            for (target, to) in referred(child) {
                let inside = ResourceId::parse(to).filter(|id| {
                    id.segments.len() == 2
                        && id.ancestor(1).key() == load_balancer.key()
                        && id.segments.last().is_some_and(|(kind, _)| is(kind, target))
                });
                if !inside.is_some_and(|id| names(target).contains(&id.name().to_lowercase())) {
                    return Err(ArmError::new(
                        StatusCode::BAD_REQUEST,
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

/// A child as a GET shows it.
pub(super) fn child(
    load_balancer: &Record,
    kind: &'static str,
    child: &Value,
    references: &References,
    view: &pool::View<'_>,
) -> Value {
    let name = record::name_of(child).unwrap_or_default();
    let mut object = load_balancer.child(kind, child);
    if kind == POOLS {
        pool::show(load_balancer, name, &mut object, view);
    }
    let Some(properties) = record::properties_mut(&mut object) else {
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

/// Takes away what Azure derives for a child of this kind.
pub(super) fn strip(kind: &str, properties: &mut Object) {
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

/// Why a pool or another child that is referred to cannot go, if it cannot.
///
/// Inferred: the rules of a pool do not keep it, since cloud-provider-azure deletes the pool of a Service
/// before it changes its rules, and where it cannot never gets on.
///
/// # Errors
/// 400. A guess: the code and wording.
pub(super) fn may_go(load_balancer: &Record, kind: &'static str, name: &str) -> Result<(), ArmError> {
    let references = References::of(load_balancer);
    let mut all = references.to(kind, name).iter();
    let Some((_, by)) = all.find(|(from, _)| kind != POOLS || *from != RULES) else {
        return Ok(());
    };
    let id = load_balancer.child_id(kind, name);
    let message = format!("Resource {id} is in use by {by} and cannot be deleted.");
    Err(ArmError::new(StatusCode::BAD_REQUEST, "InUseResourceCannotBeDeleted", message).without_details())
}

/// Removes a child. Rules of a pool that goes have none then: a guess.
pub(super) fn remove(document: &mut Object, kind: &str, name: &str) {
    if let Some(list) = record::children_mut(document, kind) {
        list.retain(|child| record::name_of(child).is_none_or(|found| !is(found, name)));
    }
    if kind != POOLS {
        return;
    }
    let named = |reference: &Value| {
        let id = reference.get("id").and_then(Value::as_str).unwrap_or_default();
        id.rsplit('/').next().is_some_and(|found| is(found, name))
    };
    let rules = record::children_mut(document, RULES).into_iter().flatten();
    for properties in rules
        .filter_map(Value::as_object_mut)
        .filter_map(record::properties_mut)
    {
        if properties.get("backendAddressPool").is_some_and(named) {
            properties.remove("backendAddressPool");
        }
        if let Some(Value::Array(pools)) = properties.get_mut("backendAddressPools") {
            pools.retain(|reference| !named(reference));
        }
    }
}
