//! Turns a document that a client sent into the document that is stored: checks names, removes read-only fields,
//! keeps unknown fields.

use std::collections::BTreeSet;

use serde_json::Value;

use super::error::ErrorResponse;
use super::id::{ResourceId, same_name};
use super::load_balancer::{self, POOLS};
use super::nic_members::NicMembers;
use super::pool::{self, PoolSource};
use super::resource::{self, Object, Resource, embedded, name_of, properties_mut};

/// Length of a resource name, in characters.
const MAX_NAME_CHARS: usize = 80;

/// Normalizes the document of a top-level resource.
///
/// # Errors
/// 400 for a wrong type, a child without a name, or two children of one name.
pub(super) fn normalize_document(
    mut document: Object,
    id: &ResourceId,
    existing: Option<&Resource>,
    members: &NicMembers,
    source: PoolSource,
) -> Result<Object, ErrorResponse> {
    check_name(id.name())?;
    resource::strip_read_only(&mut document);
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
                // Guess: the wording.
                return Err(ErrorResponse::bad_request("DuplicateResourceName", message).without_details());
            }
            let before =
                existing.and_then(|existing| resource::child(&existing.document, children, &name)?.as_object());
            let owner = existing.map_or(id, |existing| &existing.id);
            let path = format!("{owner}/{children}/{name}");
            normalize_child(value, children, &path, before, members, source)?;
        }
        if let Some(properties) = properties_mut(&mut document) {
            properties.insert((*children).into(), list.into());
        }
    }
    Ok(document)
}

/// Normalizes a child that is part of its parent's document.
///
/// # Errors
/// 400 for a wrong type, a bad name, or a bad pool.
pub(super) fn normalize_child(
    value: &mut Value,
    kind: &str,
    path: &str,
    existing: Option<&Object>,
    members: &NicMembers,
    source: PoolSource,
) -> Result<(), ErrorResponse> {
    let Some(object) = value.as_object_mut() else {
        return Err(malformed(path, "it is not an object"));
    };
    check_name(object.get("name").and_then(Value::as_str).unwrap_or_default())?;
    resource::strip_read_only(object);
    let Some(properties) = properties_mut(object) else {
        return Err(malformed(path, "properties is not an object"));
    };
    load_balancer::strip_derived(kind, properties);
    if same_name(kind, POOLS) {
        pool::normalize(object, path, existing, members.get(&path.to_lowercase()), source)?;
    }
    Ok(())
}

/// Checks the length of a resource name.
///
/// # Errors
/// 400 `InvalidResourceName`.
pub(super) fn check_name(name: &str) -> Result<(), ErrorResponse> {
    if (1..=MAX_NAME_CHARS).contains(&name.chars().count()) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_CHARS * 2).collect();
    Err(ErrorResponse::bad_request(
        "InvalidResourceName",
        format!(
            "Resource name {shown} is invalid. The name can be up to {MAX_NAME_CHARS} characters long. It must begin with a \
             word character, and it must end with a word character or with '_'. The name may contain word characters \
             or '.', '-', '_'."
        ),
    )
    .without_details())
}

/// The answer to a document with a wrong type.
pub(super) fn malformed(id: &str, what: &str) -> ErrorResponse {
    ErrorResponse::malformed("InvalidResource", id, what)
}
