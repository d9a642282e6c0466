//! What the API server has: Nodes, pods, events, Leases, the ledger, maintenances and settings, each in named fields.

use std::future::Future;

use headgate_kubernetes::Decoded;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::archive::Part;
use super::parts::TOO_LATE;
use super::redact;
use crate::api_error::api_error_text;
use crate::readable_objects::readable_objects;
use crate::why::list_maintenances;

/// Objects in one response.
const PAGE: u32 = 500;
/// Events that are kept, of each namespace.
const MAX_EVENTS: usize = 5000;
/// The namespace of the events of Nodes.
const NODE_EVENTS: &str = "default";
const HEADGATE_PODS: &str = "app.kubernetes.io/name=headgate";

/// All parts.
pub(super) async fn parts(client: &Client, namespace: &str, deadline: Instant) -> Vec<Part> {
    let nodes = Api::<Decoded<Node>>::all(client.clone());
    let pods = Api::<Decoded<Pod>>::namespaced(client.clone(), namespace);
    let leases = Api::<Decoded<Lease>>::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let own = ListParams::default().labels(HEADGATE_PODS);
    let (nodes, pods, own_events, node_events, leases, maintenances, (ledger, settings)) = futures::join!(
        within(deadline, "nodes.json", rows(&nodes, &all, node)),
        within(deadline, "pods.json", rows(&pods, &own, pod)),
        within(deadline, "events/headgate.json", events(client, namespace, &all)),
        within(deadline, "events/nodes.json", node_events(client)),
        within(deadline, "leases.json", rows(&leases, &all, lease)),
        within(deadline, "maintenances.json", maintenances(client)),
        config_maps(client, namespace, deadline)
    );
    vec![
        settings,
        leases,
        nodes,
        pods,
        own_events,
        node_events,
        maintenances,
        ledger,
    ]
}

async fn within(deadline: Instant, path: &str, read: impl Future<Output = Result<Value, String>>) -> Part {
    match timeout_at(deadline, read).await {
        Err(_) => Part::missing(path, TOO_LATE),
        Ok(Err(error)) => Part::missing(path, error),
        Ok(Ok(value)) => Part::json(path, &value),
    }
}

/// The named fields of all objects.
async fn rows<K>(api: &Api<Decoded<K>>, params: &ListParams, row: fn(K) -> Value) -> Result<Value, String>
where
    K: Resource<DynamicType: Default> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut params = params.clone().limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| api_error_text(&error))?;
        let next = page.metadata.continue_.clone();
        found.extend(readable_objects(page).into_iter().map(row));
        match next.filter(|token| !token.is_empty()) {
            Some(token) if found.len() < MAX_EVENTS * 2 => params.continue_token = Some(token),
            _ => return Ok(found.into()),
        }
    }
}

async fn maintenances(client: &Client) -> Result<Value, String> {
    let rows = list_maintenances(client).await?;
    serde_json::to_value(rows).map_err(|error| error.to_string())
}

async fn events(client: &Client, namespace: &str, params: &ListParams) -> Result<Value, String> {
    let api = Api::<Decoded<Event>>::namespaced(client.clone(), namespace);
    rows(&api, params, event).await
}

/// The events on Nodes that headgate recorded.
async fn node_events(client: &Client) -> Result<Value, String> {
    let params = ListParams::default().fields("involvedObject.kind=Node");
    let found = events(client, NODE_EVENTS, &params).await?;
    let is_own = |event: &&Value| {
        let reporter = event["reporter"].as_str().unwrap_or_default();
        reporter.contains("headgate")
    };
    let own = found.as_array().into_iter().flatten().filter(is_own).cloned();
    Ok(own.collect::<Vec<_>>().into())
}

/// The ledger and the settings, each from its `ConfigMap`.
async fn config_maps(client: &Client, namespace: &str, deadline: Instant) -> (Part, Part) {
    let api = Api::<Decoded<ConfigMap>>::namespaced(client.clone(), namespace);
    let data = async |name: &str, key: &str| -> Result<String, String> {
        let object = async { api.get(name).await?.into_object() };
        let object = timeout_at(deadline, object).await.map_err(|_| TOO_LATE.to_owned())?;
        let object = object.map_err(|error| api_error_text(&error))?;
        let text = object.data.unwrap_or_default().remove(key);
        text.ok_or_else(|| format!("the ConfigMap {name} has no key {key}"))
    };
    let (ledger, settings) = futures::join!(
        data("headgate-admin-state", "ledger.json"),
        data("headgate-settings", "settings.yaml")
    );
    let ledger = match ledger {
        Ok(text) => Part::text("ledger.json", &text),
        Err(error) => Part::missing("ledger.json", error),
    };
    let settings = match settings.and_then(|text| redact::settings(&text)) {
        Ok(text) => Part::text("settings.yaml", &text),
        Err(error) => Part::missing("settings.yaml", error),
    };
    (ledger, settings)
}

fn node(object: Node) -> Value {
    let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
    let annotations = object.metadata.annotations.unwrap_or_default();
    let own: serde_json::Map<_, _> = annotations
        .into_iter()
        .filter(|(name, _)| name.contains("headgate.dev/"))
        .map(|(name, value)| (name, value.into()))
        .collect();
    json!({"name": object.metadata.name, "uid": object.metadata.uid, "created": object.metadata.creation_timestamp,
        "deleted": object.metadata.deletion_timestamp, "labels": object.metadata.labels, "annotations": own,
        "taints": spec.taints, "unschedulable": spec.unschedulable, "providerID": spec.provider_id,
        "addresses": status.addresses, "conditions": status.conditions,
        "kubelet": status.node_info.map(|info| info.kubelet_version)})
}

fn pod(object: Pod) -> Value {
    let (spec, status) = (object.spec.unwrap_or_default(), object.status.unwrap_or_default());
    // Neither arguments nor environment: they may have anything in them.
    let containers = spec.containers.into_iter();
    let images = containers
        .map(|container| json!({"name": container.name, "image": container.image, "resources": container.resources}));
    json!({"name": object.metadata.name, "labels": object.metadata.labels, "created": object.metadata.creation_timestamp,
        "deleted": object.metadata.deletion_timestamp, "node": spec.node_name, "containers": images.collect::<Vec<_>>(),
        "phase": status.phase, "reason": status.reason, "conditions": status.conditions,
        "containerStatuses": status.container_statuses})
}

fn lease(object: Lease) -> Value {
    let Lease { metadata, spec } = object;
    json!({"name": metadata.name, "annotations": metadata.annotations, "spec": spec})
}

fn event(object: Event) -> Value {
    let source = object.source.and_then(|source| source.component);
    let about = object.involved_object;
    json!({"time": object.event_time, "first": object.first_timestamp, "last": object.last_timestamp,
        "count": object.series.and_then(|series| series.count).or(object.count), "type": object.type_, "reason": object.reason,
        "about": format!("{}/{}", about.kind.unwrap_or_default(), about.name.unwrap_or_default()), "note": object.message,
        "reporter": object.reporting_component.filter(|name| !name.is_empty()).or(source)})
}
