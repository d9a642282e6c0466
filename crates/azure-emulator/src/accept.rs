//! What a writer sent, made into what is kept: names checked, read-only fields taken away, unknown
//! ones left.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::Value;

use super::error::ArmError;
use super::id::{ResourceId, is};
use super::load_balancer::{self, POOLS};
use super::members::Members;
use super::pool::{self, WrittenBy};
use super::record::{self, Object, Record, embedded, name_of, properties_mut};

/// A name may have this many characters.
const MAX_NAME: usize = 80;

/// The document of a top-level resource, as it will be kept.
///
/// # Errors
/// 400.
pub(super) fn document(
    mut document: Object,
    id: &ResourceId,
    existing: Option<&Record>,
    members: &Members,
    by: WrittenBy,
) -> Result<Object, ArmError> {
    check_name(id.name())?;
    record::strip(&mut document);
    document.remove("name");
    for (field, valid) in [
        ("location", Value::is_string as fn(&Value) -> bool),
        ("tags", Value::is_object),
        ("sku", Value::is_object),
        ("properties", |value| value.is_object() || value.is_null()),
    ] {
        if document
            .get(field)
            .is_some_and(|value| !valid(value) && !value.is_null())
        {
            return Err(malformed(&id.to_string(), &format!("{field} has the wrong type")));
        }
    }
    if let Some(existing) = existing {
        for field in ["location", "sku"] {
            let kept = existing.document.get(field);
            if let (None, Some(kept)) = (document.get(field), kept) {
                document.insert(field.into(), kept.clone());
            }
        }
    }
    let kind = id.kind();
    for children in embedded(&kind) {
        let Some(properties) = properties_mut(&mut document) else {
            break;
        };
        let mut list = match properties.remove(*children) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(list)) => list,
            Some(_) => return Err(malformed(&id.to_string(), &format!("{children} is not a list"))),
        };
        let mut names = BTreeSet::new();
        for value in &mut list {
            let Some(name) = name_of(value).map(str::to_owned) else {
                return Err(malformed(&id.to_string(), &format!("one of {children} has no name")));
            };
            if !names.insert(name.to_lowercase()) {
                let message = format!("Resource {id} has two child resources {children}/{name}.");
                // A guess: the wording.
                return Err(ArmError::new(StatusCode::BAD_REQUEST, "DuplicateResourceName", message).without_details());
            }
            let before = existing.and_then(|existing| {
                let list = record::children(&existing.document, children);
                list[record::position(list, &name)?].as_object()
            });
            let owner = existing.map_or(id, |existing| &existing.id);
            let path = format!("{owner}/{children}/{name}");
            child(value, children, &path, before, members, by)?;
        }
        if let Some(properties) = properties_mut(&mut document) {
            properties.insert((*children).into(), list.into());
        }
    }
    Ok(document)
}

/// A child that lives in its parent's document, as it will be kept.
///
/// # Errors
/// 400.
pub(super) fn child(
    value: &mut Value,
    kind: &str,
    path: &str,
    existing: Option<&Object>,
    members: &Members,
    by: WrittenBy,
) -> Result<(), ArmError> {
    let Some(object) = value.as_object_mut() else {
        return Err(malformed(path, "it is not an object"));
    };
    check_name(object.get("name").and_then(Value::as_str).unwrap_or_default())?;
    record::strip(object);
    let Some(properties) = properties_mut(object) else {
        return Err(malformed(path, "properties is not an object"));
    };
    load_balancer::strip(kind, properties);
    if is(kind, POOLS) {
        pool::accept(object, path, existing, members.of(&path.to_lowercase()), by)?;
    }
    Ok(())
}

/// Checks a name.
///
/// # Errors
/// 400.
pub(super) fn check_name(name: &str) -> Result<(), ArmError> {
    if (1..=MAX_NAME).contains(&name.chars().count()) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME * 2).collect();
    Err(ArmError::new(
        StatusCode::BAD_REQUEST,
        "InvalidResourceName",
        format!(
            "Resource name {shown} is invalid. The name can be up to {MAX_NAME} characters long. It must begin with a \
             word character, and it must end with a word character or with '_'. The name may contain word characters \
             or '.', '-', '_'."
        ),
    )
    .without_details())
}

/// A guess: the code is one that Azure uses for requests it cannot read; the wording is ours.
pub(super) fn malformed(id: &str, what: &str) -> ArmError {
    ArmError::new(
        StatusCode::BAD_REQUEST,
        "InvalidRequestFormat",
        "Cannot parse the request.",
    )
    .detail("InvalidResource", format!("{id}: {what}."))
}
