//! What the API server has: Nodes, pods, events, Leases, the ledger, maintenances and settings, each in named fields.

use futures::{TryFutureExt as _, TryStreamExt as _};
use headgate_kubernetes::Decoded;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::archive::Part;
use super::parts::in_time;
use super::redact;
use crate::api_error::api_error_text;
use crate::readable_objects::pages;
use crate::why::maintenance_rows;

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
    match in_time(deadline, read).await {
        Ok(value) => Part::json(path, &value),
        Err(error) => Part::missing(path, error),
    }
}

/// The named fields of all objects.
async fn rows<K>(api: &Api<Decoded<K>>, params: &ListParams, row: fn(K) -> Value) -> Result<Value, String>
where
    K: Resource<DynamicType: Default> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut pages = pages(api, params.clone());
    let mut found = Vec::new();
    while found.len() < MAX_EVENTS * 2
        && let Some(page) = pages.try_next().await.map_err(|error| error.to_string())?
    {
        found.extend(page.into_iter().map(row));
    }
    Ok(found.into())
}

async fn maintenances(client: &Client) -> Result<Value, String> {
    let rows = maintenance_rows(client).await?;
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
        let object = object.map_err(|error| api_error_text(&error));
        let object = in_time(deadline, object).await?;
        let text = object.data.unwrap_or_default().remove(key);
        text.ok_or_else(|| format!("the ConfigMap {name} has no key {key}"))
    };
    let (ledger, settings) = futures::join!(
        data("headgate-admin-state", "ledger.json"),
        data("headgate-settings", "settings.yaml")
    );
    let settings = settings.and_then(|text| redact::settings(&text));
    (Part::read("ledger.json", ledger), Part::read("settings.yaml", settings))
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
