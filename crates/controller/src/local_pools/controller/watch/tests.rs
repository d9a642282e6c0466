use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::service::IpFamily;
use headgate_kubernetes::{WatchErrorCounter, service_store};
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::*;
use crate::local_pools::fixtures::observation;
use crate::local_pools::{Node, UpdaterSettings};
use crate::service_index::Unknown;

const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn service(policy: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": "web", "uid": UID, "resourceVersion": "7"},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": policy, "healthCheckNodePort": 32000}})
}

fn slice(name: &str, node: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": name, "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": node}], "ports": [{"name": "", "port": 80}]})
}

fn slim<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// All Services: that of the policy, if there is one.
fn services(policies: &[&str]) -> BTreeMap<String, Arc<Service>> {
    let read = |policy: &&str| {
        Service::read(slim(service(policy))).map(|service| ("default/web".to_owned(), Arc::new(service)))
    };
    policies.iter().filter_map(read).collect()
}

/// With three nodes and the pool of the Service, which is empty.
fn updater() -> Updater {
    let mut updater = Updater::new(UpdaterSettings::default());
    for number in 1..=3_u8 {
        updater.apply_node(Node {
            name: format!("n{number}"),
            internal_addresses: vec![[10, 0, 0, number].into()],
            ..Node::default()
        });
    }
    let nodes = updater.nodes().names().map(str::to_owned).collect();
    updater.retain_nodes(&nodes);
    let rules = vec!["a0f8fad5bd9cb469fa16570867728950-TCP-80".to_owned()];
    updater.observe(vec![observation("lb", &[("default-web".to_owned(), json!([]), rules)])]);
    updater
}

fn feed() -> ServiceFeed {
    ServiceFeed {
        updater: Some(SharedUpdater::new(updater())),
        index: watch::Sender::default(),
    }
}

/// The addresses that the only pending update gives to the pool; `None` without one.
fn pending(updater: &mut Updater) -> Option<Vec<String>> {
    updater.begin_tick(Instant::now());
    updater.compare_some(Instant::now(), usize::MAX);
    let operation = updater.queue().iter().next()?;
    let members = operation.members.as_slice().iter();
    Some(members.map(|member| member.address.to_string()).collect())
}

#[test]
fn nothing_is_pending_before_both_lists_are_complete() {
    let feed = feed();
    let mut slices = HashSet::new();
    assert!(
        feed.apply_services(&services(&[])),
        "the list is known now, although it is empty"
    );
    assert!(!feed.apply_services(&services(&[])));
    feed.apply_services(&services(&["Local"]));
    feed.apply_slice(&mut slices, Event::Init);
    feed.apply_slice(&mut slices, Event::InitApply(slim(slice("web-1", "n1"))));
    assert_eq!(pending(&mut feed.updater().unwrap()), None, "another slice may follow");
    feed.apply_slice(&mut slices, Event::InitApply(slim(slice("web-2", "n2"))));
    feed.apply_slice(&mut slices, Event::InitDone);
    assert_eq!(pending(&mut feed.updater().unwrap()).unwrap(), ["10.0.0.1", "10.0.0.2"]);
}

/// A feed for which everything was listed, with one slice on `n1`.
fn listed() -> ServiceFeed {
    let feed = feed();
    let mut slices = HashSet::new();
    feed.apply_services(&services(&["Local"]));
    feed.apply_slice(&mut slices, Event::InitApply(slim(slice("web-1", "n1"))));
    feed.apply_slice(&mut slices, Event::InitDone);
    feed
}

#[test]
fn events_change_the_members() {
    let (feed, mut names) = (listed(), HashSet::new());
    feed.apply_slice(&mut names, Event::Apply(slim(slice("web-2", "n3"))));
    assert_eq!(pending(&mut feed.updater().unwrap()).unwrap(), ["10.0.0.1", "10.0.0.3"]);
    feed.apply_slice(&mut names, Event::Delete(slim(slice("web-1", "n1"))));
    assert_eq!(pending(&mut feed.updater().unwrap()).unwrap(), ["10.0.0.3"]);
    feed.apply_services(&services(&["Cluster"]));
    assert_eq!(pending(&mut feed.updater().unwrap()), None);
    feed.apply_services(&services(&["Local"]));
    assert_eq!(pending(&mut feed.updater().unwrap()).unwrap(), ["10.0.0.3"]);
    feed.apply_services(&services(&[]));
    assert_eq!(pending(&mut feed.updater().unwrap()), None);
}

#[test]
fn a_new_list_forgets_what_it_does_not_have() {
    let (feed, mut names) = (listed(), HashSet::new());
    feed.apply_slice(&mut names, Event::Init);
    feed.apply_slice(&mut names, Event::InitApply(slim(slice("web-2", "n2"))));
    assert_eq!(
        pending(&mut feed.updater().unwrap()).unwrap(),
        ["10.0.0.1", "10.0.0.2"],
        "the list is not complete"
    );
    feed.apply_slice(&mut names, Event::InitDone);
    assert_eq!(pending(&mut feed.updater().unwrap()).unwrap(), ["10.0.0.2"]);
    feed.apply_services(&services(&[]));
    assert_eq!(pending(&mut feed.updater().unwrap()), None);
}

/// An API server with one Service and one slice, whose watches stay silent.
async fn answer(request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
    let query = request.uri().query().unwrap_or_default();
    if query.contains("watch=true") {
        return std::future::pending().await;
    }
    let (kind, item) = if request.uri().path() == "/api/v1/services" {
        assert!(query.contains("fieldSelector=spec.type%3DLoadBalancer"), "{query}");
        ("ServiceList", service("Local"))
    } else {
        assert_eq!(request.uri().path(), "/apis/discovery.k8s.io/v1/endpointslices");
        ("EndpointSliceList", slice("web-1", "n2"))
    };
    let list = json!({"kind": kind, "metadata": {"resourceVersion": "7"}, "items": [item]});
    Ok(Response::new(Body::from(list.to_string().into_bytes())))
}

/// Both watches, as in a term.
async fn watched(client: Client, feed: ServiceFeed) {
    let reporter = |resource| WatchReporter::new(resource, WatchErrorCounter::default(), Clock::System);
    let (services, watch) = service_store(&client, reporter("services"));
    let (services, slices) = (services.read(), reporter("endpointslices"));
    let freshness = Freshness::new(&services, &slices, Duration::from_mins(5));
    tokio::join!(watch, watch_services(client, feed, services, slices, freshness));
}

#[tokio::test(start_paused = true)]
async fn lists_feed_the_updater() {
    let client = Client::new(tower::service_fn(answer), "default");
    let updater = SharedUpdater::new(updater());
    let index = watch::Sender::default();
    let published = index.subscribe();
    let sinks = ServiceFeed {
        updater: Some(updater.clone()),
        index,
    };
    let watching = tokio::spawn(watched(client, sinks));
    let fed = async {
        loop {
            if let Some(addresses) = pending(&mut updater.lock()) {
                return addresses;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(timeout(Duration::from_mins(1), fed).await.unwrap(), ["10.0.0.2"]);
    {
        let index = published.borrow();
        let service = index.service_with_port(32000).unwrap();
        assert_eq!(
            (index.unknown(), service.nodes(IpFamily::IPv4).collect::<Vec<_>>()),
            (None, vec!["n2"])
        );
    }
    // Both watches stay silent: without a confirmation, nothing is known from the stale timeout on.
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert!(matches!(published.borrow().unknown(), Some(Unknown::Stale(_))));
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn services_are_stale_only_until_they_are_confirmed_however_often_slices_change() {
    let start = Instant::now();
    // Each watch ends after an event; that of the Services is refused at first.
    let answer_with_events = move |request: Request<Body>| async move {
        let is_of_services = request.uri().path() == "/api/v1/services";
        let query = request.uri().query().unwrap_or_default();
        let body = if query == "limit=1" {
            r#"{"metadata":{"resourceVersion":"7"}}"#.to_owned()
        } else if !query.contains("watch=true") {
            return answer(request).await;
        } else if is_of_services && start.elapsed() < Duration::from_mins(6) {
            return Ok(Response::builder().status(429).body(Body::empty()).unwrap());
        } else {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let node = ["n1", "n2"][usize::from(start.elapsed().subsec_millis() < 500)];
            let object = if is_of_services {
                service("Local")
            } else {
                slice("web-1", node)
            };
            format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")
        };
        Ok(Response::new(Body::from(body.into_bytes())))
    };
    let client = Client::new(tower::service_fn(answer_with_events), "default");
    let index = watch::Sender::default();
    let published = index.subscribe();
    let watching = tokio::spawn(watched(client, ServiceFeed { updater: None, index }));
    tokio::time::sleep(Duration::from_secs(330)).await;
    assert_eq!(published.borrow().unknown(), Some(Unknown::Stale("services")));
    // The backoff of the watch is part of it.
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(published.borrow().unknown(), None);
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn refused_lists_are_overdue_after_a_while_and_need_no_updater() {
    let refuse = |_: Request<Body>| async {
        let status =
            json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"});
        let answer = Response::builder()
            .status(403)
            .body(Body::from(status.to_string().into_bytes()));
        Ok::<_, std::io::Error>(answer.unwrap())
    };
    let client = Client::new(tower::service_fn(refuse), "default");
    let index = watch::Sender::default();
    let mut indexed = index.subscribe();
    let sinks = ServiceFeed { updater: None, index };
    let watching = tokio::spawn(watched(client, sinks));
    assert_eq!(indexed.borrow().unknown(), Some(Unknown::Listing));
    timeout(Duration::from_mins(1), indexed.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(indexed.borrow().unknown(), Some(Unknown::NotListed));
    watching.abort();
}
