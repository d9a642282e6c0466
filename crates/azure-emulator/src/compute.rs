//! What is special about `Microsoft.Compute`: instance views, and the listing of providers.

use serde_json::{Value, json};

use super::id::{ResourceId, is};
use super::record::Record;

/// Adds the instance view where it is asked for, takes it away where not.
pub(super) fn expand(shown: &mut Value, id: &ResourceId, expand: Option<&str>) {
    if !is(&id.namespace, "Microsoft.Compute")
        || !id.segments.last().is_some_and(|(kind, _)| is(kind, "virtualMachines"))
    {
        return;
    }
    let wanted = expand.is_some_and(|expand| is(expand, "instanceView"));
    let Some(properties) = shown.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    if wanted {
        properties.entry("instanceView").or_insert_with(running);
    } else {
        properties.remove("instanceView");
    }
}

/// What stands at a word below a resource that is no collection, if it is one of those.
pub(super) fn view(record: &Record, word: &str) -> Option<Value> {
    let machine = record
        .id
        .segments
        .last()
        .is_some_and(|(kind, _)| is(kind, "virtualMachines"));
    if !(is(word, "instanceView") && machine) {
        return None;
    }
    let kept = record
        .document
        .get("properties")
        .and_then(|properties| properties.get("instanceView"));
    Some(kept.cloned().unwrap_or_else(running))
}

/// The instance view of a machine that nothing is known about.
fn running() -> Value {
    json!({"statuses": [
        {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"},
        {"code": "PowerState/running", "level": "Info", "displayStatus": "VM running"},
    ]})
}

/// The providers of a subscription, or one of them. An unknown one is registered without types.
pub(super) fn providers(subscription: &str, namespace: Option<&str>) -> Value {
    const TYPES: [(&str, &[&str]); 2] = [
        (
            "Microsoft.Compute",
            &[
                "virtualMachines",
                "virtualMachineScaleSets",
                "availabilitySets",
                "disks",
            ],
        ),
        (
            "Microsoft.Network",
            &[
                "loadBalancers",
                "publicIPAddresses",
                "networkSecurityGroups",
                "virtualNetworks",
                "routeTables",
                "networkInterfaces",
                "privateLinkServices",
            ],
        ),
    ];
    let provider = |namespace: &str| {
        let types = TYPES
            .iter()
            .find(|(known, _)| is(known, namespace))
            .map_or(&[] as &[&str], |(_, types)| types);
        let types: Vec<Value> = types
            .iter()
            .map(|kind| {
                json!({
                    "resourceType": kind, "locations": ["East US"], "apiVersions": ["2026-03-01", "2025-05-01", "2025-04-01"],
                    "zoneMappings": [{"location": "East US", "zones": ["1", "2", "3"]}],
                    "capabilities": "SupportsTags, SupportsLocation",
                })
            })
            .collect();
        json!({
            "id": format!("/subscriptions/{subscription}/providers/{namespace}"), "namespace": namespace,
            "registrationState": "Registered", "registrationPolicy": "RegistrationRequired", "resourceTypes": types,
        })
    };
    match namespace {
        Some(namespace) => provider(namespace),
        None => json!({"value": TYPES.map(|(namespace, _)| provider(namespace))}),
    }
}
