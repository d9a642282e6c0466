//! The answers over HTTP: at a path of the health port, or on a Service's own port, where kube-proxy looks
//! at neither method nor path.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use headgate_clock::Clock;
use hyper::Uri;
use tokio::sync::watch;

use super::super::proxy::Family;
use super::super::routes::not_found;
use super::super::verdict::Inputs;
use super::answer::answer;
use super::index::Table;
use super::metrics::Metrics;
use super::object::ObjectKey;

const PATH: &str = "/healthz/services/";
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// What the answers are made from.
#[derive(Clone, Debug)]
pub struct Routes {
    /// The Services, once they are known.
    pub tables: watch::Receiver<Option<Arc<Table>>>,
    /// For the proxy's health.
    pub inputs: Inputs,
    /// Where answers are counted.
    pub metrics: Metrics,
    /// The time.
    pub clock: Clock,
}

impl Routes {
    /// `/healthz/services/{namespace}/{name}`. Until Services are known each answers 503, then one that
    /// is not there, or needs no such check, is not found.
    pub fn path_router(self) -> Router {
        let handler = move |uri: Uri| {
            let answer = self.at_path(uri.path());
            async move {
                match answer {
                    Some(answer) => answer,
                    None => not_found().await.into_response(),
                }
            }
        };
        Router::new().route(&format!("{PATH}{{namespace}}/{{name}}"), any(handler))
    }

    fn at_path(&self, path: &str) -> Option<Response> {
        let (namespace, name) = path.strip_prefix(PATH)?.split_once('/')?;
        let key = ObjectKey::new(namespace, name);
        let endpoints = match &*self.tables.borrow() {
            None => 0,
            Some(table) => table.get(&key)?.endpoints_of_any_family(),
        };
        Some(self.respond(&key, endpoints))
    }

    /// Every path and method of a Service's port, in one family. Once the Service is gone, or has another
    /// port, what is still open answers 503 (in kube-proxy: an empty 200).
    pub fn port_router(self, key: Arc<ObjectKey>, family: Family, port: u16) -> Router {
        Router::new().fallback(move || {
            let endpoints = self.tables.borrow().as_ref().and_then(|table| {
                let served = table.get(&key)?;
                let ours = served.service.port == port && *served.service.families.get(family);
                ours.then_some(*served.endpoints.get(family))
            });
            let response = self.respond(&key, endpoints.unwrap_or(0));
            async move { response }
        })
    }

    fn respond(&self, key: &ObjectKey, endpoints: u32) -> Response {
        // The node's signals do not count: only whether the proxy keeps up.
        let healthy = self.inputs.proxy.borrow().health(self.clock.now()).healthy;
        let answer = answer(key, endpoints, healthy);
        self.metrics.answers.count(answer.status.is_success());
        let mut response = (
            answer.status,
            [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")],
            answer.body,
        )
            .into_response();
        response.headers_mut().insert(WEIGHT, answer.weight.into());
        response
    }
}
