//! Lists and watches: their events, the version from which they start, and their end.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use headgate_core::clock::Clock;
use headgate_kubernetes::{
    LOAD_BALANCER_SERVICES, WatchErrorCounter, WatchReporter, watch_events, with_selection_fallback,
};
use headgate_test_kubernetes::{FakeApi, control_plane, is_kubernetes_1_30, own_control_plane};
use hyper::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, WatchParams};
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{NAMESPACE, Requests, by_name, code, config_map, config_maps, parse, resource_version};

async fn a_list_selects_by_name_and_has_pages(client: Client, name: &str) {
    let maps = config_maps(client);
    let named = ListParams::default().fields(&format!("metadata.name={name}-1"));
    assert!(maps.0.list(&named).await.unwrap().items.is_empty());
    for number in 0..3 {
        maps.create(config_map(&format!("{name}-{number}"), "1")).await.unwrap();
    }
    let list = maps.0.list(&named).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].name_any(), format!("{name}-1"));
    assert!(list.metadata.resource_version.is_some());
    let mut params = ListParams::default().limit(2);
    let mut paged = Vec::new();
    loop {
        let page = maps.0.list(&params).await.unwrap();
        assert!(page.items.len() <= 2);
        paged.extend(page.items.into_iter().map(|map| map.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    paged.retain(|other| other.starts_with(&format!("{name}-")));
    assert_eq!(paged, [0, 1, 2].map(|number| format!("{name}-{number}")));
}

async fn a_watch_by_name_reports_one_object(client: Client, name: &str) {
    let maps = config_maps(client);
    let params = by_name(name).disable_bookmarks();
    let version = maps.0.list(&ListParams::default()).await.unwrap();
    let version = version.metadata.resource_version.unwrap();
    let watch = maps.watched(&params, &version, 3);
    let change = async {
        maps.create(config_map(&format!("{name}-other"), "1")).await.unwrap();
        let one = maps.create(config_map(name, "1")).await.unwrap();
        let two = maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
        maps.delete(name, &DeleteParams::default()).await.unwrap();
        [one, two].map(|map| resource_version(&map))
    };
    let (seen, [one, two]) = tokio::join!(watch, change);
    assert_eq!(seen[..2], [("added", one.clone()), ("modified", two.clone())]);
    // A deletion has its own version, from which a watch continues.
    assert_eq!(seen[2].0, "deleted");
    let number = |version: &str| version.parse::<u64>().unwrap();
    assert!(number(&seen[2].1) > number(&two) && number(&two) > number(&one));
    // From an older version: all events since.
    let resumed = maps.watched(&params, &one, 2).await;
    assert_eq!(resumed, seen[1..]);
}

fn service(name: &str, service_type: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": service_type, "ports": [{"port": 80, "protocol": "TCP"}]}})
}

/// Kubernetes 1.30 refuses the selector; a client with the fallback gets all Services.
async fn services_are_not_selected_by_1_30(client: &Client, other: &str) {
    let list = ListParams::default().fields(LOAD_BALANCER_SERVICES);
    let services = |client: &Client| Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let error = services(client).list(&list).await.unwrap_err();
    assert_eq!(code(&error), 400, "{error}");
    let listed = services(&with_selection_fallback(client)).list(&list).await.unwrap();
    assert!(listed.items.iter().any(|service| service.name_any() == other));
}

async fn services_are_selected_by_type(client: Client, name: &str) {
    let services = Requests::<Service>(Api::namespaced(client.clone(), NAMESPACE));
    let other = services
        .create(service(&format!("{name}-0"), "ClusterIP"))
        .await
        .unwrap();
    if is_kubernetes_1_30(&client).await {
        return services_are_not_selected_by_1_30(&client, &other.name_any()).await;
    }
    let named = |name: &str| format!("metadata.name={name},{LOAD_BALANCER_SERVICES}");
    let list = ListParams::default().fields(LOAD_BALANCER_SERVICES);
    let selected = async |name: &str| {
        let list = services.0.list(&list).await.unwrap();
        list.items.iter().any(|service| service.name_any() == name)
    };
    assert!(!selected(&other.name_any()).await);
    let params = WatchParams::default().fields(&named(name)).disable_bookmarks();
    let watch = services.watched(&params, other.meta().resource_version.as_deref().unwrap(), 3);
    let change = async {
        services.create(service(name, "ClusterIP")).await.unwrap();
        let set_type = |service_type: &str| json!({"spec": {"type": service_type}});
        let one = services.merge(name, set_type("LoadBalancer")).await.unwrap();
        assert!(selected(name).await);
        let two = services
            .merge(name, json!({"metadata": {"annotations": {"a": "b"}}}))
            .await
            .unwrap();
        services.merge(name, set_type("NodePort")).await.unwrap();
        assert!(!selected(name).await);
        [one, two].map(|service| resource_version(&service))
    };
    let (seen, [one, two]) = tokio::join!(watch, change);
    // What is no longer selected is deleted, as far as the watch is concerned.
    assert_eq!(seen[..2], [("added", one), ("modified", two)]);
    assert_eq!(seen[2].0, "deleted");
}

async fn endpoint_slices_are_listed_and_watched(client: Client, name: &str) {
    let slices = Requests::<EndpointSlice>(Api::namespaced(client, NAMESPACE));
    let slice = |address: &str| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "nodeName": "n1", "conditions": {"ready": false}}]})
    };
    let created = slices.create(slice("10.1.0.1")).await.unwrap();
    let patch = json!({"endpoints": [{"addresses": ["10.1.0.2"], "nodeName": "n2"}]});
    let patched = slices.merge(name, patch).await.unwrap();
    assert_eq!(patched.endpoints[0].node_name.as_deref(), Some("n2"));
    slices.delete(name, &DeleteParams::default()).await.unwrap();
    let seen = slices.watched(&by_name(name), &resource_version(&created), 2).await;
    assert_eq!([seen[0].0, seen[1].0], ["modified", "deleted"]);
    assert_eq!(slices.replace(&parse(slice("10.1.0.3"))).await.unwrap_err(), 404);
}

async fn a_watch_without_a_version_starts_with_the_objects(client: Client, name: &str) {
    let maps = config_maps(client);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    for version in ["0", ""] {
        let seen = maps.watched(&by_name(name), version, 1).await;
        assert_eq!(seen, [("added", resource_version(&created))], "{version:?}");
    }
}

async fn a_watch_ends_after_its_timeout(client: Client, name: &str) {
    let maps = config_maps(client);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    let params = by_name(name).timeout(1);
    let seen = maps.watched(&params, &resource_version(&created), 1).await;
    assert_eq!(seen, [], "the watch ends without an event");
}

/// As after a restore of etcd.
async fn a_watch_from_a_version_in_the_future_has_no_event(client: Client, name: &str) {
    let maps = config_maps(client);
    let created = maps.create(config_map(name, "1")).await.unwrap();
    let number = |version: Option<String>| version.unwrap().parse::<u64>().unwrap();
    let future = number(created.metadata.resource_version) + 1_000_000;
    let params = by_name(name).timeout(2);
    let future_version = future.to_string();
    let watch = maps.watched(&params, &future_version, 1);
    let change = async {
        sleep(Duration::from_millis(500)).await;
        maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap()
    };
    let (seen, changed) = tokio::join!(watch, change);
    assert_eq!(seen, [], "no event and no error");
    let list = maps.0.list_metadata(&ListParams::default().limit(1)).await.unwrap();
    let current = number(list.metadata.resource_version);
    assert!(
        current >= number(changed.metadata.resource_version) && current < future,
        "a list of one object shows the current version"
    );
}

/// Two versions of an object, then a restart of the API server.
async fn a_restart_compacts_the_history(client: Client, stop: impl AsyncFnOnce(), start: impl AsyncFnOnce()) {
    let name = "restarted";
    let maps = config_maps(client);
    let old = maps.create(config_map(name, "1")).await.unwrap();
    let new = maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
    let version = resource_version(&new);
    let mut events = pin!(
        maps.0
            .watch(&by_name(name).disable_bookmarks(), &version)
            .await
            .unwrap()
    );
    stop().await;
    let end = timeout(Duration::from_secs(10), events.try_next()).await;
    assert!(matches!(end, Ok(Err(_) | Ok(None))), "the watch ends: {end:?}");
    let refused = maps.0.get(name).await.unwrap_err();
    assert!(!matches!(refused, kube::Error::Api(_)), "{refused}");
    start().await;
    assert_eq!(maps.0.get(name).await.unwrap(), new);
    let params = by_name(name).timeout(2);
    let seen = maps.watched(&params, &resource_version(&old), 2).await;
    assert_eq!(seen, [("error", "410".to_owned())], "one error, then the end");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_fake_compacts_the_history() {
    let fake = FakeApi::default();
    let away = Duration::from_secs(5);
    let stop = async || fake.restart(away);
    let start = async || sleep(away).await;
    a_restart_compacts_the_history(fake.client().0, stop, start).await;
}

#[tokio::test]
async fn a_restart_of_kube_apiserver_compacts_the_history() {
    let control_plane = tokio::sync::Mutex::new(own_control_plane().await);
    let client = Client::try_from(control_plane.lock().await.client_config()).unwrap();
    let stop = async || control_plane.lock().await.stop_apiserver().await;
    let start = async || control_plane.lock().await.start_apiserver().await.unwrap();
    a_restart_compacts_the_history(client, stop, start).await;
    control_plane.into_inner().stop().await;
}

/// The product's stream of one object: what it shows, and what it asks the API server for.
async fn a_stream_of_one_object_needs_no_list(client: Client, name: &str) {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let (inner, seen) = (client.clone(), Arc::clone(&queries));
    let recording = tower::service_fn(move |request: Request<Body>| {
        seen.lock()
            .unwrap()
            .push(request.uri().query().unwrap_or_default().to_owned());
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    let recording = Client::new(recording, NAMESPACE);
    let reporter = WatchReporter::new("configmaps", WatchErrorCounter::default(), Clock::System);
    let named = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watch_events::<ConfigMap>(&recording, Api::default_namespaced, named, reporter);
    let mut next = async || {
        timeout(Duration::from_secs(10), events.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    };
    let maps = config_maps(client.clone());
    let mut shown = Vec::new();
    for step in 0..3 {
        let event = next().await;
        shown.push(match event {
            watcher::Event::Init => ("init", String::new()),
            watcher::Event::InitDone => {
                maps.create(config_map(name, "1")).await.unwrap();
                ("init done", String::new())
            }
            watcher::Event::InitApply(map) | watcher::Event::Apply(map) => ("apply", map.data.unwrap()["text"].clone()),
            watcher::Event::Delete(map) => ("delete", map.name_any()),
        });
        if step == 2 {
            maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
        }
    }
    assert_eq!(
        shown,
        [("init", ""), ("init done", ""), ("apply", "1")].map(|(event, text)| (event, text.to_owned()))
    );
    assert!(matches!(next().await, watcher::Event::Apply(map) if map.data.as_ref().unwrap()["text"] == "2"));
    maps.delete(name, &DeleteParams::default()).await.unwrap();
    assert!(matches!(next().await, watcher::Event::Delete(_)));
    let queries = queries.lock().unwrap().clone();
    let kinds: Vec<_> = queries
        .iter()
        .map(|query| (query.contains("watch=true"), query.contains("sendInitialEvents=true")))
        .collect();
    let expected: &[_] = if is_kubernetes_1_30(&client).await {
        &[(true, true), (false, false), (true, false)]
    } else {
        &[(true, true)]
    };
    assert_eq!(kinds, expected, "{queries:?}");
}

on_both! {
    a_stream_of_one_object_needs_no_list
    services_are_selected_by_type
    endpoint_slices_are_listed_and_watched
    a_list_selects_by_name_and_has_pages
    a_watch_by_name_reports_one_object
    a_watch_without_a_version_starts_with_the_objects
    a_watch_ends_after_its_timeout
    a_watch_from_a_version_in_the_future_has_no_event
}
