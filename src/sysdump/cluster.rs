//! What the API server has: Nodes, pods, events, Leases, the ledger, maintenances and settings, each in named fields.

use std::collections::BTreeSet;

use futures::{TryFutureExt as _, TryStreamExt as _};
use headgate_kubernetes::leader::LeaseName;
use headgate_kubernetes::{AGENT, CONTROLLER, Decoded};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Volume};
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

/// Objects that are kept, of each list.
const MAX_ROWS: usize = 10_000;
/// The namespace of the events of Nodes.
const NODE_EVENTS: &str = "default";
const LEDGER: &str = "headgate-admin-state";
/// The settings where no pod names them.
const SETTINGS: &str = "headgate-settings";
const HEADGATE_PODS: &str = "app.kubernetes.io/name=headgate";

/// All parts.
pub(super) async fn parts(client: &Client, namespace: &str, deadline: Instant) -> Vec<Part> {
    // The Leases and the ledger are there wherever headgate runs.
    let system = LeaseName::default().namespace;
    let nodes = Api::<Decoded<Node>>::all(client.clone());
    let pods = Api::<Decoded<Pod>>::namespaced(client.clone(), namespace);
    let leases = Api::<Decoded<Lease>>::namespaced(client.clone(), &system);
    let all = ListParams::default();
    let own = ListParams::default().labels(HEADGATE_PODS);
    let pods_and_settings = async {
        let pods = in_time(deadline, rows(&pods, &own, pod)).await;
        let names = settings_names(pods.as_ref().map_or(&[], |pods| &pods.found));
        (
            part("pods.json", pods),
            settings(client, namespace, names, deadline).await,
        )
    };
    let (nodes, (pods, settings), own_events, node_events, leases, maintenances, ledger) = futures::join!(
        within(deadline, "nodes.json", rows(&nodes, &all, node)),
        pods_and_settings,
        within(deadline, "events/headgate.json", events(client, namespace, &all)),
        within(deadline, "events/nodes.json", node_events(client)),
        within(deadline, "leases.json", rows(&leases, &all, lease)),
        within(deadline, "maintenances.json", maintenances(client)),
        config_map(client, &system, (LEDGER, "ledger.json"), deadline)
    );
    let mut parts = settings;
    parts.extend([leases, nodes, pods, own_events, node_events, maintenances]);
    parts.push(Part::read("ledger.json", ledger));
    parts
}

/// The named fields of the objects of a list.
#[derive(Default)]
struct Rows {
    found: Vec<Value>,
    /// Whether there are more objects.
    is_cut: bool,
}

async fn within(deadline: Instant, path: &str, read: impl Future<Output = Result<Rows, String>>) -> Part {
    part(path, in_time(deadline, read).await)
}

fn part(path: &str, read: Result<Rows, String>) -> Part {
    match read {
        Ok(Rows { found, is_cut }) => {
            Part::json(path, &found).cut(is_cut.then(|| format!("cut after {MAX_ROWS} objects of a list")))
        }
        Err(error) => Part::missing(path, error),
    }
}

async fn rows<K>(api: &Api<Decoded<K>>, params: &ListParams, row: fn(K) -> Value) -> Result<Rows, String>
where
    K: Resource<DynamicType: Default> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut pages = pages(api, params.clone());
    let mut rows = Rows::default();
    while !rows.is_cut
        && let Some(page) = pages.try_next().await.map_err(|error| error.to_string())?
    {
        rows.found.extend(page.into_iter().map(row));
        rows.is_cut = rows.found.len() > MAX_ROWS;
        rows.found.truncate(MAX_ROWS);
    }
    Ok(rows)
}

async fn maintenances(client: &Client) -> Result<Rows, String> {
    let rows = maintenance_rows(client).await?.into_iter().map(serde_json::to_value);
    let found = rows.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(Rows { found, is_cut: false })
}

async fn events(client: &Client, namespace: &str, params: &ListParams) -> Result<Rows, String> {
    let api = Api::<Decoded<Event>>::namespaced(client.clone(), namespace);
    rows(&api, params, event).await
}

/// The events on Nodes that headgate recorded.
async fn node_events(client: &Client) -> Result<Rows, String> {
    let mut all = Rows::default();
    for reporter in [AGENT, CONTROLLER] {
        // The API server selects: there may be many of others.
        let fields = format!("involvedObject.kind=Node,reportingComponent={reporter}");
        let rows = events(client, NODE_EVENTS, &ListParams::default().fields(&fields)).await?;
        all.found.extend(rows.found);
        all.is_cut |= rows.is_cut;
    }
    Ok(all)
}

/// A key of a `ConfigMap`.
async fn config_map(
    client: &Client,
    namespace: &str,
    (name, key): (&str, &str),
    deadline: Instant,
) -> Result<String, String> {
    let api = Api::<Decoded<ConfigMap>>::namespaced(client.clone(), namespace);
    let object = async { api.get(name).await?.into_object() };
    let object = object.map_err(|error| api_error_text(&error));
    let object = in_time(deadline, object).await?;
    let text = object.data.unwrap_or_default().remove(key);
    text.ok_or_else(|| format!("the ConfigMap {name} has no key {key}"))
}

/// The settings of the pods: of one `ConfigMap` in settings.yaml; during a rollout each of them in a file of its own.
async fn settings(client: &Client, namespace: &str, names: BTreeSet<String>, deadline: Instant) -> Vec<Part> {
    let is_one = names.len() == 1;
    let mut parts = Vec::new();
    for name in names {
        let text = config_map(client, namespace, (&name, "settings.yaml"), deadline).await;
        let path = if is_one {
            "settings.yaml".to_owned()
        } else {
            format!("settings/{name}.yaml")
        };
        parts.push(Part::read(path, text.and_then(|text| redact::settings(&text))));
    }
    parts
}

/// The `ConfigMaps` with settings that these rows of pods name: the chart and kustomize append a hash of the text.
fn settings_names(pods: &[Value]) -> BTreeSet<String> {
    let settings = pods
        .iter()
        .filter_map(|pod| pod["settings"].as_str().map(str::to_owned));
    let mut names: BTreeSet<_> = settings.collect();
    if names.is_empty() {
        names.insert(SETTINGS.to_owned());
    }
    names
}

/// The `ConfigMap` of the volume with the settings, which controllers have beside azure.json.
fn settings_of(volumes: Vec<Volume>) -> Option<String> {
    let settings = volumes.into_iter().find(|volume| volume.name == "settings")?;
    let projected = settings.projected.and_then(|volume| volume.sources);
    let in_projected = projected.into_iter().flatten().find_map(|source| source.config_map);
    let name = settings.config_map.map(|map| map.name);
    name.or(in_projected.map(|map| map.name))
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
        "settings": settings_of(spec.volumes.unwrap_or_default()), "phase": status.phase, "reason": status.reason, "conditions": status.conditions,
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use headgate_test_kubernetes::FakeApi;
    use hyper::{Request, Response};
    use kube::api::PostParams;
    use kube::client::Body;

    use super::super::Bundle;
    use super::*;

    #[tokio::test]
    async fn the_ledger_and_the_leases_are_in_kube_system_wherever_headgate_runs() {
        let client = FakeApi::default().client().0;
        let (params, metadata) = (
            PostParams::default(),
            json!({"namespace": "kube-system", "name": LEDGER}),
        );
        let ledger = serde_json::from_value(json!({"metadata": metadata, "data": {"ledger.json": "the ledger"}}));
        let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
        maps.create(&params, &ledger.unwrap()).await.unwrap();
        let lease = json!({"metadata": {"namespace": "kube-system", "name": "headgate-leader"}});
        let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
        leases
            .create(&params, &serde_json::from_value(lease).unwrap())
            .await
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let read = Box::pin(parts(&client, "headgate", deadline)).await;
        for (file, expected) in [("ledger.json", "the ledger"), ("leases.json", "headgate-leader")] {
            let is_there =
                |part: &Part| matches!(part, Part::File { path, text, .. } if path == file && text.contains(expected));
            assert!(read.iter().any(is_there), "{file}");
        }
    }

    #[tokio::test]
    async fn a_list_without_an_end_is_cut_and_named_and_hides_no_event_of_headgate() {
        let service = tower::service_fn(|request: Request<Body>| {
            let uri = request.uri().to_string();
            let events = |count, reporter: &str| {
                vec![json!({"metadata": {}, "involvedObject": {}, "reportingComponent": reporter}); count]
            };
            let own = ["headgate.dev%2Fagent", "headgate.dev%2Fcontroller"];
            let reporter = own
                .into_iter()
                .find(|reporter| uri.contains(&format!("reportingComponent%3D{reporter}")));
            let list = match reporter {
                Some(reporter) => json!({"metadata": {}, "items": events(1, &reporter.replace("%2F", "/"))}),
                None => json!({"metadata": {"continue": "more"}, "items": events(500, "kubelet")}),
            };
            let (code, body) = if uri.contains("/events?") {
                (200, list.to_string())
            } else {
                (404, String::new())
            };
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let client = Client::new(service, "default");
        let deadline = Instant::now() + Duration::from_mins(1);
        let read = Box::pin(parts(&client, "headgate", deadline)).await;
        let reporters = |file: &str| {
            let text = read.iter().find_map(|part| match part {
                Part::File { path, text, .. } if path == file => Some(text),
                _ => None,
            });
            let rows: Vec<Value> = serde_json::from_str(text.unwrap()).unwrap();
            rows.into_iter().map(|row| row["reporter"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(
            reporters("events/nodes.json"),
            ["headgate.dev/agent", "headgate.dev/controller"]
        );
        assert_eq!(reporters("events/headgate.json").len(), MAX_ROWS);
        let mut bundle = Bundle::default();
        for part in read {
            bundle.add(part);
        }
        let missing = bundle.missing().iter().filter(|(what, _)| what.starts_with("events/"));
        let expected = (
            "events/headgate.json".to_owned(),
            "cut after 10000 objects of a list".to_owned(),
        );
        assert_eq!(missing.collect::<Vec<_>>(), [&expected]);
    }

    #[test]
    fn settings_are_those_that_the_pods_name() {
        let row = |volumes: Value| {
            let object = json!({"spec": {"containers": [], "volumes": volumes}});
            pod(serde_json::from_value(object).unwrap())
        };
        let agent = row(json!([{"name": "state", "emptyDir": {}},
            {"name": "settings", "configMap": {"name": "headgate-settings-1"}}]));
        let controller = row(
            json!([{"name": "settings", "projected": {"sources": [{"secret": {"name": "headgate-azure"}},
            {"configMap": {"name": "headgate-settings-2"}}]}}]),
        );
        let hold = row(json!([]));
        let names = |pods: &[&Value]| {
            settings_names(&pods.iter().copied().cloned().collect::<Vec<_>>())
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[&hold, &agent, &agent]), ["headgate-settings-1"]);
        assert_eq!(
            names(&[&agent, &controller]),
            ["headgate-settings-1", "headgate-settings-2"]
        );
        assert_eq!(names(&[&hold]), ["headgate-settings"]);
        let many = [&[&agent; 1000][..], &[&controller]].concat();
        assert_eq!(
            names(&many),
            ["headgate-settings-1", "headgate-settings-2"],
            "of a rollout that has begun"
        );
        assert_eq!(settings_names(&[]).len(), 1);
    }
}
