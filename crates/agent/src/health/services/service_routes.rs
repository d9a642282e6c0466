//! The answers about Services over HTTP: at a path of the health port, or on a Service's own port, where every method
//! and path gets the answer, as from kube-proxy.

use headgate_core::service::{IpFamily, NamespacedName};
use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use headgate_core::clock::Clock;
use hyper::Uri;
use tokio::sync::watch;

use super::super::routes::not_found;
use super::drain::ServiceDrain;
use super::index::ServiceTable;
use super::metrics::Metrics;
use super::service_answer::service_answer;
use super::service_drains::ServiceDrains;

const PATH_PREFIX: &str = "/healthz/services/";
const WEIGHT_HEADER: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The routes that answer about Services, with what the answers are computed from.
#[derive(Clone, Debug)]
pub struct ServiceRoutes {
    /// The latest table; `None` until Services and EndpointSlices were listed.
    pub tables: watch::Receiver<Option<Arc<ServiceTable>>>,
    /// Read for kube-proxy's health, and for what the node's signals make of the answers.
    pub drains: ServiceDrains,
    /// Counts the answers about Services by status code.
    pub metrics: Metrics,
    /// The clock of the evaluation.
    pub clock: Clock,
}

impl ServiceRoutes {
    /// Waits until the answers are those of a process that has run for a while: the Services are listed, the Node is known and, while it has
    /// signals, the other nodes were read. Never returns if the process stops before.
    pub async fn known(&self) {
        let (mut tables, mut node, mut reads) = (
            self.tables.clone(),
            self.drains.inputs.node.clone(),
            self.drains.reads.clone(),
        );
        loop {
            let is_known = |table: &ServiceTable| self.drains.are_known(table, self.clock.now());
            if tables.borrow_and_update().as_deref().is_some_and(is_known) {
                return;
            }
            tokio::select! {
                Ok(()) = tables.changed() => {}
                Ok(()) = node.changed() => {}
                Ok(()) = reads.changed() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// The route `/healthz/services/{namespace}/{name}`. It answers 503 until there is a table, and 404 for a Service
    /// that does not exist or has no service health.
    pub fn path_router(self) -> Router {
        let handler = move |uri: Uri| {
            let answer = self.answer_at(uri.path());
            async move {
                match answer {
                    Some(answer) => answer,
                    None => not_found().await.into_response(),
                }
            }
        };
        Router::new().route(&format!("{PATH_PREFIX}{{namespace}}/{{name}}"), any(handler))
    }

    fn answer_at(&self, path: &str) -> Option<Response> {
        let (namespace, name) = path.strip_prefix(PATH_PREFIX)?.split_once('/')?;
        let key = NamespacedName::new(namespace, name);
        // Objects have names in lower case, and only those.
        if (key.namespace(), key.name()) != (namespace, name) {
            return None;
        }
        let endpoints = match &*self.tables.borrow() {
            None => 0,
            Some(table) => table.get(&key)?.endpoints_of_any_family(),
        };
        Some(self.respond(&key, endpoints))
    }

    /// The routes of a Service's port in one IP family. When the Service is deleted or gets another port, open
    /// connections get 503; kube-proxy answers them with an empty 200.
    pub(crate) fn port_router(self, key: Arc<NamespacedName>, family: IpFamily, port: u16) -> Router {
        Router::new().fallback(move || {
            let endpoints = self.tables.borrow().as_ref().and_then(|table| {
                let served = table.get(&key)?;
                let is_current = served.service.port == port && *served.service.families.get(family);
                is_current.then_some(*served.endpoints.get(family))
            });
            let response = self.respond(&key, endpoints.unwrap_or(0));
            async move { response }
        })
    }

    fn respond(&self, key: &NamespacedName, endpoints: u32) -> Response {
        let now = self.clock.now();
        let healthy = self.drains.inputs.proxy.borrow().health(now).healthy;
        let is_drained = endpoints > 0 && self.drains.drain(key, now) == ServiceDrain::Failing;
        let answer = service_answer(key, endpoints, healthy, is_drained);
        self.metrics.answers.increment(answer.status.is_success());
        if let Some(by_service) = &self.metrics.by_service
            && self
                .tables
                .borrow()
                .as_ref()
                .is_some_and(|table| table.get(key).is_some())
        {
            by_service.count(key, answer.status.is_success(), now.mono);
        }
        let mut response = (
            answer.status,
            [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")],
            answer.body,
        )
            .into_response();
        response.headers_mut().insert(WEIGHT_HEADER, answer.weight.into());
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::node::NodeReport;
    use prometheus_client::registry::Registry;
    use tokio::time::{Instant, sleep};

    use super::super::super::fixtures::{Channels, MAINTENANCE, initial, report, table, tainted};
    use super::super::drain::{DrainReads, OtherNodes, ServiceRead};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_answers_are_known_with_the_services_the_node_and_while_it_has_signals_the_others() {
        let channels = Channels::default();
        let states = watch::Sender::default();
        let routes = ServiceRoutes {
            metrics: Metrics::register(
                &mut Registry::default(),
                channels.tables.subscribe(),
                states.subscribe(),
                None,
            ),
            tables: channels.tables.subscribe(),
            drains: channels.drains(),
            clock: Clock::System,
        };
        let signalled = report(tainted(&[MAINTENANCE]));
        let read = |services: &[&str]| {
            let started_at = Instant::now();
            let mut found = DrainReads::new(signalled.signals().clone(), started_at);
            let read = || ServiceRead {
                started_at,
                others: OtherNodes::default(),
            };
            let services = services
                .iter()
                .map(|name| (NamespacedName::new("default", name), read()));
            found.services = services.collect();
            Some(Arc::new(found))
        };
        let lists = |web, far| drop(channels.tables.send_replace(Some(table(&[("web", web), ("far", far)]))));
        let observes = |report: NodeReport| drop(channels.node.send_replace(report));
        let reads = |read| drop(channels.reads.send_replace(read));
        let wait = || {
            let routes = routes.clone();
            tokio::spawn(async move { routes.known().await })
        };
        let steps: [(&dyn Fn(), bool); 9] = [
            (&|| lists(1, 0), false),
            (&|| observes(initial().without_node()), true),
            (&|| observes(signalled.clone()), false),
            (&|| reads(read(&[])), false),
            (&|| reads(read(&["web"])), true),
            (&|| lists(1, 1), false),
            (&|| lists(2, 0), true),
            (&|| reads(None), false),
            (&|| observes(report(tainted(&[]))), true),
        ];
        let mut waiting = wait();
        for (number, (change, is_known)) in steps.into_iter().enumerate() {
            let was_known = waiting.is_finished();
            change();
            if was_known {
                waiting = wait();
            }
            sleep(Duration::from_millis(1)).await;
            assert_eq!(waiting.is_finished(), is_known, "step {number}");
        }
    }
}
