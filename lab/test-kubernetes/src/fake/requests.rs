//! Requests: parsing, the client's faults and latency, and the call of the store.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::BoxError;

use super::client_faults::{ClientFaults, Fault};
use super::resources::{ObjectKey, Selector, Subresource};
use super::store::PatchType;
use super::validation::api_error;
use super::{FakeApi, RecordedRequest};
use crate::fault_points::ProcessPoints;

/// Latency of a request, and of its response, without a fault.
pub(super) const ONE_WAY_LATENCY: Duration = Duration::from_millis(5);
/// After this time without a response a request fails, as on the transport of the real client.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The error of a request whose response never comes.
async fn no_response() -> std::io::Error {
    sleep(RESPONSE_TIMEOUT).await;
    std::io::Error::from(std::io::ErrorKind::TimedOut)
}

/// The fields that select, of each kind.
const FIELDS: [(&str, &str); 3] = [
    ("Service", "spec.type"),
    ("Pod", "spec.nodeName"),
    ("Event", "reportingComponent"),
];

/// A request with its parsed path and query.
pub(super) struct ParsedRequest {
    pub(super) recorded: RecordedRequest,
    pub(super) key: ObjectKey,
    /// The field selectors other than by name, with their values.
    fields: Vec<(&'static str, String)>,
    /// The label selector of pods.
    labels: Vec<(String, String)>,
    subresource: Option<Subresource>,
    content: String,
    body: Bytes,
}

impl ParsedRequest {
    async fn parse(request: Request<Body>) -> Result<Self, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path().to_owned();
        let query: BTreeMap<_, _> = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
        let (mut key, subresource) = ObjectKey::parse_path(&path);

        let mut fields = Vec::new();
        let selectors = query.get("fieldSelector").into_iter().flat_map(|all| all.split(','));
        // The fake sends the events of all reasons and objects; clients filter them again.
        let is_about_events =
            |selector: &str| selector.starts_with("reason=") || selector.starts_with("involvedObject.");
        for selector in selectors.filter(|selector| !is_about_events(selector)) {
            let field = FIELDS.iter().find_map(|(kind, field)| {
                let selected = selector.strip_prefix(field)?.strip_prefix('=')?;
                (*kind == key.kind.name).then(|| (*field, selected.to_owned()))
            });
            if field.is_some() {
                fields.extend(field);
                continue;
            }
            let name = selector.strip_prefix("metadata.name=");
            name.unwrap_or_else(|| panic!("the fake has no selector {selector:?}"))
                .trim_start_matches('=')
                .clone_into(&mut key.name);
        }
        let labels = query.get("labelSelector").into_iter().flat_map(|all| all.split(','));
        let labels: Vec<_> = labels
            .map(|selector| {
                let equal = selector.split_once('=').filter(|_| key.kind.name == "Pod");
                let (label, value) = equal.unwrap_or_else(|| panic!("the fake has no selector {selector:?}"));
                (label.to_owned(), value.to_owned())
            })
            .collect();
        let content = parts.headers.get("content-type").and_then(|it| it.to_str().ok());
        Ok(Self {
            recorded: RecordedRequest {
                at: Instant::now(),
                is_watch: query.get("watch").is_some_and(|watch| watch == "true"),
                is_node_cordoned: None,
                method: parts.method,
                path,
                query,
            },
            key,
            fields,
            labels,
            subresource,
            content: content.unwrap_or_default().to_owned(),
            body,
        })
    }

    pub(super) fn selector(&self) -> Selector {
        Selector {
            key: self.key.clone(),
            fields: self.fields.clone(),
            labels: self.labels.clone(),
        }
    }

    /// Whether it is a watch that begins with all objects, of the present version.
    pub(super) fn is_streaming_list(&self) -> bool {
        let query = &self.recorded.query;
        let is_streaming = query.get("sendInitialEvents").is_some_and(|value| value == "true");
        let version = query.get("resourceVersionMatch").map(String::as_str);
        assert!(
            !is_streaming || version == Some("NotOlderThan") && !query.contains_key("resourceVersion"),
            "the fake has no such streaming list: {query:?}"
        );
        is_streaming
    }

    /// Whether the path names one object.
    fn is_single(&self) -> bool {
        !self.recorded.query.contains_key("fieldSelector") && !self.key.name.is_empty()
    }
}

pub(super) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

fn response(status: u16, value: &Value) -> Result<Response<ResponseBody>, BoxError> {
    let body = Full::from(serde_json::to_vec(value)?)
        .map_err(Into::into)
        .boxed_unsync();
    Ok(Response::builder().status(status).body(body)?)
}

impl FakeApi {
    pub(super) async fn serve(
        self,
        request: Request<Body>,
        faults: ClientFaults,
    ) -> Result<Response<ResponseBody>, BoxError> {
        if request.uri().path() == "/version" {
            // It behaves as the newest one in the tests.
            return response(200, &json!({"major": "1", "minor": "36", "gitVersion": "fake"}));
        }
        let request = ParsedRequest::parse(request).await?;
        faults.tries.fetch_add(1, Ordering::Relaxed);
        let fault = faults.fault(&request.recorded);
        let latency = match fault {
            Fault::Slow(latency) => latency,
            _ => ONE_WAY_LATENCY,
        };
        sleep(latency).await;
        let (restarts, true) = self.availability() else {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        };
        let (status, value) = match fault {
            Fault::CutOff => return Err(no_response().await.into()),
            Fault::Status(status) => api_error(status, "Injected", "a fault"),
            Fault::Late(late) => {
                let fake = self.clone();
                tokio::spawn(async move {
                    sleep(late).await;
                    fake.answer(&request);
                });
                return Err(no_response().await.into());
            }
            Fault::AnswerLost => {
                self.answer(&request);
                return Err(no_response().await.into());
            }
            // As an API server that has none: fault points are in lists, and in the watches that follow them.
            Fault::None | Fault::Slow(_) if request.is_streaming_list() && faults.points.is_some() => {
                api_error(422, "Invalid", "the fake has no streaming lists beside fault points")
            }
            Fault::None | Fault::Slow(_) if request.recorded.is_watch => {
                self.record(&request);
                sleep(latency).await;
                return Ok(self.watch(&request, faults, restarts));
            }
            Fault::None | Fault::Slow(_) => match faults.points() {
                Some(points) => self.answer_at_points(&request, &points).await?,
                None => self.answer(&request),
            },
        };
        sleep(latency).await;
        if self.availability() != (restarts, true) {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        }
        response(status, &value)
    }

    fn record(&self, request: &ParsedRequest) {
        let recorded = RecordedRequest {
            at: Instant::now(),
            is_node_cordoned: self.store().is_node_cordoned(&request.key),
            ..request.recorded.clone()
        };
        self.0.recorded.lock().unwrap().push(recorded);
    }

    /// The answer to a request of a process with fault points.
    async fn answer_at_points(
        &self,
        request: &ParsedRequest,
        points: &ProcessPoints,
    ) -> Result<(u16, Value), BoxError> {
        let RecordedRequest { method, path, .. } = &request.recorded;
        assert!(
            method != Method::GET || !request.recorded.query.contains_key("resourceVersion"),
            "{method} {path} may be answered with an older version, which no fault point does"
        );
        let answer = async { self.answer(request) };
        let answer = if method != Method::GET || request.is_single() {
            points.exchange(method, path, answer).await
        } else {
            let answer = points.list(path, answer).await;
            let selector = request.recorded.query.get("fieldSelector").map_or("", String::as_str);
            answer.map(|(status, list)| (status, points.list_answer(&format!("{path}?{selector}"), list)))
        };
        answer.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
    }

    fn answer(&self, request: &ParsedRequest) -> (u16, Value) {
        self.record(request);
        let outcome = self.outcome(request);
        self.0.changes.send_replace(());
        if request.key.kind.name == "Pod" && request.recorded.method != Method::GET {
            self.end_if_terminating(&request.key);
        }
        outcome.unwrap_or_else(|error| error)
    }

    /// The kubelet of a pod: deletes it some time after it began to terminate. On a Node without a kubelet it stays.
    fn end_if_terminating(&self, key: &ObjectKey) {
        let metadata = self
            .store()
            .get(key)
            .map(|pod| pod["metadata"].clone())
            .unwrap_or_default();
        let Some(grace_period) = metadata["deletionGracePeriodSeconds"].as_u64() else {
            return;
        };
        let time = Duration::from_secs(grace_period).min(*self.0.pod_termination.lock().unwrap());
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}});
        let (fake, key) = (self.clone(), key.clone());
        tokio::spawn(async move {
            sleep(time).await;
            while fake.store().lacks_kubelet(&key) {
                sleep(Duration::from_secs(1)).await;
            }
            // It may be gone already.
            let _ = fake.store().delete(&key, &options);
            fake.0.changes.send_replace(());
        });
    }

    fn outcome(&self, request: &ParsedRequest) -> super::store::ApiResult {
        let ParsedRequest { key, subresource, .. } = request;
        let query = &request.recorded.query;
        let is_status = *subresource == Some(Subresource::Status);
        let object =
            || serde_json::from_slice(&request.body).map_err(|error| api_error(400, "BadRequest", &error.to_string()));
        let number = |name: &str| query.get(name).and_then(|value| value.parse().ok());
        let mut store = self.store();
        match (&request.recorded.method, request.is_single()) {
            (&Method::GET, true) => store.read(key),
            (&Method::GET, false) => {
                let token = query.get("continue").map_or("", String::as_str);
                let limit = number("limit").map(|limit: usize| limit.min(self.0.page_size.load(Ordering::Relaxed)));
                Ok((200, store.list(&request.selector(), limit.unwrap_or_default(), token)))
            }
            (&Method::POST, true) if *subresource == Some(Subresource::Eviction) => store.evict(key, &object()?),
            (&Method::POST, false) => store.create(key, object()?),
            (&Method::PUT, true) => store.replace(key, is_status, object()?),
            (&Method::PATCH, true) => {
                let patch_type = match request.content.as_str() {
                    "application/json-patch+json" => PatchType::Json,
                    "application/merge-patch+json" => PatchType::Merge,
                    "application/strategic-merge-patch+json" => PatchType::Strategic,
                    other => panic!("the fake has no patch of type {other:?}"),
                };
                store.patch(key, is_status, patch_type, &object()?)
            }
            (&Method::DELETE, true) => {
                let options = if request.body.is_empty() {
                    Value::Null
                } else {
                    object()?
                };
                store.delete(key, &options)
            }
            (method, _) => panic!("{method} {} is not supported by the fake", request.recorded.path),
        }
    }
}
