//! `Microsoft.Compute`: instance views, and the list of resource providers.

use serde_json::{Value, json};

use super::id::{ResourceId, same_name};
use super::resource::{self, Resource};

const MACHINES: &str = "virtualMachines";

/// Adds the instance view where `$expand` requests it, and removes it otherwise.
pub(super) fn expand(shown: &mut Value, id: &ResourceId, expand: Option<&str>) {
    if !same_name(&id.namespace, "Microsoft.Compute") || !id.is_a(MACHINES) {
        return;
    }
    let is_requested = expand.is_some_and(|expand| same_name(expand, "instanceView"));
    let Some(properties) = shown.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    if is_requested {
        properties.entry("instanceView").or_insert_with(running);
    } else {
        properties.remove("instanceView");
    }
}

/// The view at `RESOURCE/word`, such as `instanceView`, where `word` is not a collection.
pub(super) fn view(resource: &Resource, word: &str) -> Option<Value> {
    if !same_name(word, "instanceView") || !resource.id.is_a(MACHINES) {
        return None;
    }
    let kept = resource::property(&resource.document, "instanceView");
    Some(kept.cloned().unwrap_or_else(running))
}

/// The instance view of a machine whose document has none.
fn running() -> Value {
    json!({"statuses": [
        {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"},
        {"code": "PowerState/running", "level": "Info", "displayStatus": "VM running"},
    ]})
}

/// All resource providers of a subscription, or one. An unknown one is shown as registered, without types.
pub(super) fn providers(subscription: &str, namespace: Option<&str>) -> Value {
    const TYPES: [(&str, &[&str]); 2] = [
        (
            "Microsoft.Compute",
            &[MACHINES, "virtualMachineScaleSets", "availabilitySets", "disks"],
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
            .find(|(known, _)| same_name(known, namespace))
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
