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
            by_service.count(key, answer.status.is_success());
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
