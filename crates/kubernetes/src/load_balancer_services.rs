//! The selection of Services of type `LoadBalancer` by the API server, which that of Kubernetes 1.30 refuses.
//!
//! Invariant: a refused request is sent again without the selector, and later ones have none, so a caller gets at least the Services
//! that it selected. It looks at `spec.type` of each itself: a Service that changes its type arrives as a change, not as a deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headgate_core::service::Service;
use hyper::http::HeaderMap;
use hyper::{Request, StatusCode, Uri};
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use tokio::sync::Notify;

use crate::store::Store;
use crate::watch::WatchReporter;

/// The field selector.
pub const LOAD_BALANCER_SERVICES: &str = "spec.type=LoadBalancer";
/// The same in a query.
const PARAMETER: &str = "fieldSelector=spec.type%3DLoadBalancer";

/// All Services of type `LoadBalancer`, by `namespace/name`. They are asked for once somebody reads them.
#[derive(Clone, Debug)]
pub struct ServiceStore {
    store: Store<Arc<Service>>,
    is_read: Arc<Notify>,
}

impl ServiceStore {
    /// The store, whose watch begins with this.
    pub fn read(&self) -> Store<Arc<Service>> {
        self.is_read.notify_one();
        self.store.clone()
    }
}

/// All Services of type `LoadBalancer`, and their watch, which never ends by itself.
pub fn service_store(client: &Client, reporter: WatchReporter) -> (ServiceStore, impl Future<Output = ()> + use<>) {
    let read = |object| Service::read(object).map(Arc::new);
    let selecting = with_selection_fallback(client);
    let (store, watch) = Store::new(&selecting, Some(LOAD_BALANCER_SERVICES), reporter, read);
    let is_read = Arc::<Notify>::default();
    let services = ServiceStore {
        store,
        is_read: Arc::clone(&is_read),
    };
    let watch = async move {
        is_read.notified().await;
        watch.await;
    };
    (services, watch)
}

/// A client and the parameters for one list of Services of type `LoadBalancer`; where the API server cannot select them, the list has
/// all.
pub fn load_balancer_services(client: &Client) -> (Client, ListParams) {
    let selected = ListParams::default().fields(LOAD_BALANCER_SERVICES);
    (with_selection_fallback(client), selected)
}

/// A client of the same API server, for lists and watches with [`LOAD_BALANCER_SERVICES`].
pub fn with_selection_fallback(client: &Client) -> Client {
    let is_refused = Arc::new(AtomicBool::new(false));
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, is_refused) = (inner.clone(), Arc::clone(&is_refused));
        async move {
            let Some(uri) = without_selector(request.uri()) else {
                return inner.send(request).await;
            };
            let headers = request.headers().clone();
            if !is_refused.load(Ordering::Relaxed) {
                let response = inner.send(request).await?;
                if response.status() != StatusCode::BAD_REQUEST {
                    return Ok(response);
                }
            }
            let response = inner.send(get(uri, headers)).await?;
            // Otherwise the selector was not what the API server refused.
            if response.status().is_success() && !is_refused.swap(true, Ordering::Relaxed) {
                tracing::info!("API server selects no Services by their type, all are listed and watched");
            }
            Ok::<_, kube::Error>(response)
        }
    });
    Client::new(service, namespace)
}

fn get(uri: Uri, headers: HeaderMap) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}

/// The address without the selector; `None` if it has none.
fn without_selector(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    let kept: Vec<&str> = query.split('&').filter(|parameter| *parameter != PARAMETER).collect();
    if kept.len() == query.split('&').count() {
        return None;
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), kept.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hyper::Response;
    use k8s_openapi::api::core::v1::Service;
    use kube::Api;
    use serde_json::json;

    use super::*;

    /// An API server that refuses what `refuses` says of a query; and the queries that it got.
    fn api_server(refuses: fn(&str) -> bool) -> (Client, Arc<Mutex<Vec<String>>>) {
        let queries = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&queries);
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            received.lock().unwrap().push(query.clone());
            async move {
                let failure = json!({"kind": "Status", "status": "Failure", "message": "not a known field selector", "reason": "BadRequest", "code": 400});
                let listed = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "web"}}]});
                let (status, body) = if refuses(&query) { (400, failure) } else { (200, listed) };
                let body = Body::from(body.to_string().into_bytes());
                let response = Response::builder().status(status).body(body);
                Ok::<_, std::io::Error>(response.unwrap())
            }
        });
        (with_selection_fallback(&Client::new(service, "default")), queries)
    }

    async fn list(client: &Client) -> kube::Result<usize> {
        let selected = ListParams::default().fields(LOAD_BALANCER_SERVICES).limit(5);
        let listed = Api::<Service>::all(client.clone()).list(&selected).await;
        listed.map(|list| list.items.len())
    }

    #[tokio::test]
    async fn refused_selector_is_left_out_from_then_on() {
        let (client, queries) = api_server(|query| query.contains("fieldSelector"));
        for _ in 0..2 {
            assert_eq!(list(&client).await.unwrap(), 1);
        }
        let queries = queries.lock().unwrap();
        let selected: Vec<_> = queries.iter().map(|query| query.contains(PARAMETER)).collect();
        assert_eq!(selected, [true, false, false], "{queries:?}");
        assert!(queries.iter().all(|query| query.contains("limit=5")), "{queries:?}");
    }

    #[tokio::test]
    async fn known_selector_is_sent_and_other_refusals_are_returned() {
        let (client, queries) = api_server(|_| false);
        assert_eq!(list(&client).await.unwrap(), 1);
        Api::<Service>::all(client).list(&ListParams::default()).await.unwrap();
        assert_eq!(queries.lock().unwrap().len(), 2);
        let (client, queries) = api_server(|_| true);
        for requests in [2, 4] {
            let kube::Error::Api(status) = list(&client).await.unwrap_err() else {
                panic!("no status")
            };
            assert_eq!((status.code, queries.lock().unwrap().len()), (400, requests));
        }
    }
}
