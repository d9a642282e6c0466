//! The checks of objects that headgate writes, and the errors of kube-apiserver.

use serde_json::{Value, json};

use super::resources::ResourceKind;

/// An HTTP status and a body of kind `Status`.
pub(super) type ApiError = (u16, Value);

/// Largest size of all values of a `ConfigMap` or Secret together.
const MAX_DATA_BYTES: usize = 1024 * 1024;

/// Checks an object without regard to the stored one.
pub(super) fn validate(kind: &ResourceKind, object: &Value) -> Result<(), ApiError> {
    let mistake = match kind.name {
        "Lease" => lease(&object["spec"]),
        "Event" if kind.api_version != "v1" => event(object),
        "ConfigMap" => size(&object["data"]).or_else(|| size(&object["binaryData"])),
        "Secret" => size(&object["data"]),
        _ => None,
    };
    match mistake {
        Some(message) => Err(api_error(422, "Invalid", &message)),
        None => Ok(()),
    }
}

fn lease(spec: &Value) -> Option<String> {
    let is_less = |field: &str, least: i64| spec[field].as_i64().is_some_and(|value| value < least);
    let is_invalid = is_less("leaseDurationSeconds", 1) || is_less("leaseTransitions", 0);
    is_invalid.then(|| "spec: must be greater than 0".to_owned())
}

fn event(event: &Value) -> Option<String> {
    for field in [
        "eventTime",
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
    ] {
        if event[field].as_str().is_none_or(str::is_empty) {
            return Some(format!("{field}: Required value"));
        }
    }
    if !matches!(event["type"].as_str(), Some("Normal" | "Warning")) {
        return Some("type: Invalid value".to_owned());
    }
    let namespace = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let regarding = event["regarding"]["namespace"].as_str().unwrap_or_default();
    let is_misplaced = regarding.is_empty() && !matches!(namespace, "default" | "kube-system");
    is_misplaced.then(|| "involvedObject.namespace: Invalid value: does not match event.namespace".to_owned())
}

fn size(data: &Value) -> Option<String> {
    let values = data.as_object()?.values();
    let bytes: usize = values.map(|value| value.as_str().unwrap_or_default().len()).sum();
    (bytes > MAX_DATA_BYTES).then(|| format!("data: Too long: may not be more than {MAX_DATA_BYTES} bytes"))
}

pub(super) fn not_found(kind: &ResourceKind, name: &str) -> ApiError {
    api_error(404, "NotFound", &format!("{} \"{name}\" not found", kind.plural))
}

pub(super) fn conflict() -> ApiError {
    api_error(409, "Conflict", "the object has been modified")
}

pub(super) fn api_error(code: u16, reason: &str, message: &str) -> ApiError {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": message});
    (code, status)
}
