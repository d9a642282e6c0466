//! `/metadata/instance`: the document, a part of it by path, or a leaf as text.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

use super::super::query::Parameters;
use super::super::request::JsonResponse;

/// The document if the seed has none.
pub(super) fn default_document() -> Value {
    json!({
        "compute": {
            "azEnvironment": "AzurePublicCloud",
            "location": "eastus",
            "name": "node-1",
            "osType": "Linux",
            "platformFaultDomain": "0",
            "platformUpdateDomain": "0",
            "provider": "Microsoft.Compute",
            "resourceGroupName": "headgate",
            "resourceId": "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/headgate/providers/\
                           Microsoft.Compute/virtualMachines/node-1",
            "subscriptionId": "00000000-0000-0000-0000-000000000000",
            "tags": "",
            "tagsList": [],
            "vmId": "5eed0000-0000-4000-8000-000000000001",
            "vmScaleSetName": "",
            "vmSize": "Standard_D2s_v5",
            "zone": "",
        },
        "network": {
            "interface": [{
                "ipv4": {
                    "ipAddress": [{"privateIpAddress": "10.0.0.4", "publicIpAddress": ""}],
                    "subnet": [{"address": "10.0.0.0", "prefix": "24"}],
                },
                "ipv6": {"ipAddress": []},
                "macAddress": "000D3A000001",
            }],
        },
    })
}

/// The part of the document at `path`. With `format=text`, an object or array is the list of its members.
pub(super) fn answer(document: &Value, path: &[&str], query: &Parameters) -> Response<Bytes> {
    let part = path.iter().try_fold(document, |part, step| match part {
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        Value::Object(fields) => fields.get(*step),
        _ => None,
    });
    let Some(part) = part else {
        return not_found();
    };
    let text = match (query.get("format"), part) {
        (Some("text"), Value::Object(fields)) => lines(fields.iter().map(|(key, value)| (key.clone(), value))),
        (Some("text"), Value::Array(items)) => lines(
            items
                .iter()
                .enumerate()
                .map(|(index, value)| (index.to_string(), value)),
        ),
        (Some("text"), Value::String(text)) => text.clone(),
        (Some("text"), leaf) => leaf.to_string(),
        // Guess: 404. Documented is only that leaves are available as text only.
        (_, leaf) if !(leaf.is_object() || leaf.is_array()) => return not_found(),
        (_, part) => return JsonResponse::new(StatusCode::OK, part.clone()).response(),
    };
    let mut response = Response::new(Bytes::from(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// One member a line; those that have members themselves end in a slash.
fn lines<'a>(members: impl Iterator<Item = (String, &'a Value)>) -> String {
    let line = |(name, value): (String, &Value)| match value {
        Value::Object(_) | Value::Array(_) => format!("{name}/"),
        _ => name,
    };
    members.map(line).collect::<Vec<_>>().join("\n")
}

fn not_found() -> Response<Bytes> {
    let body = json!({"error": "Not found"});
    JsonResponse::new(StatusCode::NOT_FOUND, body).response()
}
