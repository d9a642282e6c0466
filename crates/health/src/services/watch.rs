//! The watches of Services and EndpointSlices, which feed the index; its table is published.
//!
//! Both run for ever, pausing as the own Node's watch does. While the API server cannot be reached or refuses,
//! the last table stays; the trouble is logged when it starts, changes and ends, and counted each time.
//! The API server is asked for Services of type LoadBalancer only; of EndpointSlices it has to send all.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use headgate_clock::Clock;
use headgate_kubernetes::{EXPIRED, is_answer, pausing, watch_error_reason};
use headgate_node::Trouble;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;

use super::index::{Index, Table};
use super::metrics::{Metrics, Resource};
use super::object::{LABEL_SELECTOR, SlimService, SlimSlice};

/// Objects in one answer to a list: what is held in memory beside what is kept.
const PAGE: u32 = 100;

/// Where the watches publish what they learn.
#[derive(Debug)]
pub struct Outlet {
    /// The Services with their counts; `None` until both kinds were listed.
    pub tables: watch::Sender<Option<Arc<Table>>>,
    /// The state of the watches themselves: of Services, of EndpointSlices.
    pub troubles: watch::Sender<[Option<Trouble>; 2]>,
}

type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<K>>>;

/// Watches for endpoints on `node` and publishes the counts; never returns of itself.
pub async fn run(client: Client, node: String, outlet: Outlet, metrics: Metrics, clock: Clock) {
    let config = || watcher::Config::default().labels(LABEL_SELECTOR).page_size(PAGE);
    let of_type = config().fields("spec.type=LoadBalancer");
    let mut services: Events<SlimService> = pausing(watcher(Api::all(client.clone()), of_type), is_answer);
    let mut slices: Events<SlimSlice> = pausing(watcher(Api::all(client), config()), is_answer);
    let mut index = Index::new(node);
    let troubles = Troubles {
        sender: outlet.troubles,
        metrics,
        clock,
    };
    loop {
        let changed = tokio::select! {
            Some(event) = services.next() => troubles.heed(Resource::Services, event).is_some_and(|event| index.service(event)),
            Some(event) = slices.next() => troubles.heed(Resource::Slices, event).is_some_and(|event| index.slice(event)),
            else => return,
        };
        if changed && let Some(table) = index.table() {
            if outlet.tables.borrow().is_none() {
                tracing::info!(services = table.len(), "the Services are known");
            }
            outlet.tables.send_replace(Some(Arc::new(table)));
        }
    }
}

struct Troubles {
    sender: watch::Sender<[Option<Trouble>; 2]>,
    metrics: Metrics,
    clock: Clock,
}

impl Troubles {
    /// Says in the log when a watch gets into trouble and out of it; hands events on.
    fn heed<K>(&self, resource: Resource, event: watcher::Result<watcher::Event<K>>) -> Option<watcher::Event<K>> {
        let (name, index) = (resource.as_str(), resource as usize);
        match event {
            Ok(event) => {
                // An answer to a list or watch; `Init` only says that one is about to be asked for.
                if !matches!(event, watcher::Event::Init)
                    && self
                        .sender
                        .send_if_modified(|troubles| troubles[index].take().is_some())
                {
                    tracing::info!(resource = name, "watched again");
                }
                Some(event)
            }
            Err(error) => {
                let reason = watch_error_reason(&error);
                self.metrics.error(resource, reason);
                let known = self.sender.borrow()[index].as_ref().map(|trouble| trouble.reason);
                // One that was too old begins anew at once: no trouble.
                if reason != EXPIRED && known != Some(reason) {
                    let error = headgate_telemetry::chain(&error);
                    tracing::warn!(
                        resource = name,
                        reason,
                        error,
                        "cannot be watched; the last known state of Services goes on"
                    );
                    let since = self.clock.now().wall;
                    self.sender
                        .send_modify(|troubles| troubles[index] = Some(Trouble { reason, error, since }));
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use hyper::{Request, Response};
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tokio::time::{Instant, sleep, timeout};

    use super::super::object::ObjectKey;
    use super::*;

    /// Requests for EndpointSlices: a watch or a list, and when.
    type Seen = Arc<Mutex<Vec<(bool, Instant)>>>;

    fn list(kind: &str, items: &str) -> String {
        format!(r#"{{"kind":"{kind}","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#)
    }

    /// An API server that is away for the first watches of slices, then finds the watch too old; the list after
    /// that has lost the only endpoint.
    async fn answer(seen: Seen, request: Request<Body>) -> Result<Response<Body>, std::io::Error> {
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
        let watches = {
            let mut seen = seen.lock().unwrap();
            seen.push((is_watch, Instant::now()));
            seen.iter().filter(|(is_watch, _)| *is_watch).count()
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
    async fn a_watch_that_was_too_old_begins_anew_at_once() {
        let seen = Seen::default();
        let asked = Arc::clone(&seen);
        let service = tower::service_fn(move |request| answer(Arc::clone(&asked), request));
        let outlet = Outlet {
            tables: watch::Sender::new(None),
            troubles: watch::Sender::default(),
        };
        let (mut tables, troubles) = (outlet.tables.subscribe(), outlet.troubles.subscribe());
        let metrics = Metrics::register(
            &mut Registry::default(),
            tables.clone(),
            watch::Sender::default().subscribe(),
        );
        let client = Client::new(service, "default");
        let watching = tokio::spawn(run(client, "n".to_owned(), outlet, metrics, Clock::System));
        let count = |table: &Table| table.get(&ObjectKey::new("a", "b")).map(|served| served.endpoints.v4);
        for want in [1, 0] {
            let known = tables.wait_for(|table| table.as_ref().is_some_and(|table| count(table) == Some(want)));
            drop(timeout(Duration::from_mins(10), known).await.unwrap().unwrap());
        }
        sleep(Duration::from_secs(1)).await;
        assert_eq!(*troubles.borrow(), [None, None]);
        watching.abort();

        let seen = seen.lock().unwrap();
        let expired = seen.iter().filter(|(is_watch, _)| *is_watch).nth(5).unwrap().1;
        let lists: Vec<_> = seen.iter().filter(|(is_watch, _)| !is_watch).collect();
        assert_eq!(lists.len(), 2);
        assert_eq!(lists[1].1 - expired, Duration::ZERO, "no pause between the two");
        assert!(
            expired - seen[1].1 > Duration::from_secs(10),
            "pauses grow while it is away"
        );
    }
}
