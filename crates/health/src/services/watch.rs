//! The watches of Services and EndpointSlices, which feed the index; each new table is published.
//!
//! Both watches run until the task is aborted. While one fails, the last table stays. `headgate-kubernetes` retries,
//! counts and logs the failures. The API server sends only Services of type LoadBalancer, where it can
//! select them (that of Kubernetes 1.30 cannot); it cannot select EndpointSlices by their Service's type, so it sends all.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use headgate_kubernetes::{LOAD_BALANCER_SERVICES, WatchFailure, WatchReporter, watch_events, with_selection_fallback};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::sync::watch;

use super::index::{ServiceIndex, ServiceTable};
use super::metrics::WatchedResource;
use super::slim_objects::LABEL_SELECTOR;

/// Objects in one page of a list, which are in memory in addition to what is kept.
const LIST_PAGE_SIZE: u32 = 100;

/// The reporters of the two watches.
#[derive(Debug)]
pub struct WatchReporters {
    pub(super) services: WatchReporter,
    pub(super) endpoint_slices: WatchReporter,
}

impl WatchReporters {
    /// The current failure of each watch.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<WatchedResource, watch::Receiver<Option<WatchFailure>>> {
        BTreeMap::from([
            (WatchedResource::Services, self.services.failure()),
            (WatchedResource::EndpointSlices, self.endpoint_slices.failure()),
        ])
    }
}

/// Watches Services and EndpointSlices and publishes the table of endpoints on the node `node_name` until the task is
/// aborted.
pub async fn watch_services(
    client: Client,
    node_name: String,
    tables: watch::Sender<Option<Arc<ServiceTable>>>,
    reporters: WatchReporters,
) {
    let config = || Config::default().labels(LABEL_SELECTOR).page_size(LIST_PAGE_SIZE);
    let load_balancers = config().fields(LOAD_BALANCER_SERVICES);
    let selecting = with_selection_fallback(&client);
    let mut services = watch_events(&selecting, Api::all, load_balancers, reporters.services);
    let mut slices = watch_events(&client, Api::all, config(), reporters.endpoint_slices);
    let mut index = ServiceIndex::new(node_name);
    loop {
        // The streams have reported their errors.
        let is_changed = tokio::select! {
            Some(event) = services.next() => event.is_ok_and(|event| index.apply_service(event)),
            Some(event) = slices.next() => event.is_ok_and(|event| index.apply_slice(event)),
            else => return,
        };
        if is_changed && let Some(table) = index.table() {
            if tables.borrow().is_none() {
                tracing::info!(services = table.len(), "Services and EndpointSlices listed");
            }
            tables.send_replace(Some(Arc::new(table)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use headgate_clock::Clock;
    use hyper::{Request, Response};
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tokio::time::{Instant, sleep, timeout};

    use super::super::metrics::Metrics;
    use super::super::slim_objects::ObjectKey;
    use super::*;

    /// The requests for EndpointSlices: whether each is a watch, and its time.
    type Requests = Arc<Mutex<Vec<(bool, Instant)>>>;

    fn list(kind: &str, items: &str) -> String {
        format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#)
    }

    /// An API server that refuses the first five watches of EndpointSlices and answers the sixth as expired. From
    /// then on, lists have no endpoint.
    async fn answer(requests: Requests, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let ok = |text: String| Ok(Response::new(Body::from(text.into_bytes())));
        if request.uri().path() == "/api/v1/services" {
            if is_watch {
                return std::future::pending().await;
            }
            let service = r#"{"metadata":{"namespace":"a","name":"b","uid":"u","resourceVersion":"7"},"spec":{"type":"LoadBalancer",
                "externalTrafficPolicy":"Local","healthCheckNodePort":30000,"clusterIPs":["10.0.0.1"]}}"#;
            return ok(list("ServiceList", service));
        }
        if request.uri().query() == Some("limit=1") {
            // The verification before a watch resumes.
            return ok(list("EndpointSliceList", ""));
        }
        let watches = {
            let mut requests = requests.lock().unwrap();
            requests.push((is_watch, Instant::now()));
            requests.iter().filter(|(is_watch, _)| *is_watch).count()
        };
        let endpoints = if watches > 5 {
            ""
        } else {
            r#"{"addresses":["10.1.0.1"],"nodeName":"n"}"#
        };
        let slice = format!(
            r#"{{"metadata":{{"namespace":"a","name":"b-1","resourceVersion":"7","labels":{{"kubernetes.io/service-name":"b"}}}},
                "addressType":"IPv4","endpoints":[{endpoints}],"ports":[{{"name":"","port":80}}]}}"#
        );
        match (is_watch, watches) {
            (false, _) => ok(list("EndpointSliceList", &slice)),
            (true, ..=5) => Err(std::io::ErrorKind::ConnectionRefused.into()),
            (true, 6) => {
                let status =
                    r#"{"status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
                ok(format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n"))
            }
            _ => std::future::pending().await,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_watch_starts_again_without_backoff() {
        let requests = Requests::default();
        let received = Arc::clone(&requests);
        let service = tower::service_fn(move |request| answer(Arc::clone(&received), request));
        let publisher = watch::Sender::new(None);
        let mut tables = publisher.subscribe();
        let metrics = Metrics::register(
            &mut Registry::default(),
            tables.clone(),
            watch::Sender::default().subscribe(),
        );
        let reporters = metrics.watch_reporters(&Clock::System);
        let failures = reporters.failures();
        let client = Client::new(service, "default");
        let watching = tokio::spawn(watch_services(client, "n".to_owned(), publisher, reporters));
        let count = |table: &ServiceTable| table.get(&ObjectKey::new("a", "b")).map(|served| served.endpoints.v4);
        for want in [1, 0] {
            let known = tables.wait_for(|table| table.as_ref().is_some_and(|table| count(table) == Some(want)));
            drop(timeout(Duration::from_mins(10), known).await.unwrap().unwrap());
        }
        sleep(Duration::from_secs(1)).await;
        assert!(failures.values().all(|failure| failure.borrow().is_none()));
        watching.abort();

        let requests = requests.lock().unwrap();
        let expired = requests.iter().filter(|(is_watch, _)| *is_watch).nth(5).unwrap().1;
        let lists: Vec<_> = requests.iter().filter(|(is_watch, _)| !is_watch).collect();
        assert_eq!(lists.len(), 2);
        assert_eq!(lists[1].1 - expired, Duration::ZERO, "no backoff between the two");
        assert!(
            expired - requests[1].1 > Duration::from_secs(10),
            "the backoff grows while watches are refused"
        );
    }
}
