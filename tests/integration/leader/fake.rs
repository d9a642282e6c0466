//! The Lease API in process, as far as the leader's election goes: read, create and replace with
//! `resourceVersion`, in tokio's (possibly paused) time, with what can go wrong on the way.
//!
//! `cases.rs` holds it to the real kube-apiserver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::BoxError;

const COLLECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// What happens to the requests of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// They arrive, and are answered, this much later; a caller who gives up has not sent them.
    Slow(Duration),
    /// They do not arrive.
    CutOff,
    /// They are answered with this status.
    Status(u16),
    /// They take effect; the answer does not arrive.
    AnswerLost,
    /// They take effect this much later, whether the caller waits or not.
    Late(Duration),
}

#[derive(Default)]
struct Store {
    leases: BTreeMap<String, Value>,
    version: u64,
    requests: Vec<(Instant, Method)>,
}

/// The API server.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<Store>>);

/// One caller's way to it.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<Fault>>);

impl Line {
    pub(crate) fn set(&self, fault: Fault) {
        *self.0.lock().unwrap() = fault;
    }
}

impl Fake {
    /// A caller's client, and what befalls its requests.
    pub(crate) fn client(&self) -> (Client, Line) {
        let line = Line(Arc::new(Mutex::new(Fault::None)));
        let (fake, fault) = (self.clone(), Arc::clone(&line.0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (fake, fault) = (fake.clone(), *fault.lock().unwrap());
            async move { fake.carry(request, fault).await }
        });
        (Client::new(service, "default"), line)
    }

    async fn carry(self, request: Request<Body>, fault: Fault) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path().to_owned();
        let way = match fault {
            Fault::Slow(way) => way,
            _ => Duration::from_millis(5),
        };
        sleep(way).await;
        let (status, value) = match fault {
            Fault::CutOff => std::future::pending().await,
            Fault::Status(status) => (status, refusal(status, "Injected", "a fault")),
            Fault::Late(late) => {
                tokio::spawn(async move {
                    sleep(late).await;
                    self.answer(&parts.method, &path, &body);
                });
                std::future::pending().await
            }
            Fault::AnswerLost => {
                self.answer(&parts.method, &path, &body);
                std::future::pending().await
            }
            Fault::None | Fault::Slow(_) => self.answer(&parts.method, &path, &body),
        };
        sleep(way).await;
        let body = Body::from(serde_json::to_vec(&value)?);
        Ok(Response::builder().status(status).body(body)?)
    }

    /// When requests arrived, and which.
    pub(crate) fn requests(&self) -> Vec<(Instant, Method)> {
        self.0.lock().unwrap().requests.clone()
    }

    /// The Lease as it is.
    pub(crate) fn lease(&self) -> Option<Lease> {
        let store = self.0.lock().unwrap();
        let lease = store.leases.get("headgate-leader")?;
        Some(serde_json::from_value(lease.clone()).unwrap())
    }

    /// Who holds it; empty if nobody.
    pub(crate) fn holder(&self) -> String {
        let spec = self.lease().and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    /// Which Lease it is; empty if there is none.
    pub(crate) fn uid(&self) -> String {
        self.lease().and_then(|lease| lease.metadata.uid).unwrap_or_default()
    }

    /// As if something else had been written.
    pub(crate) fn skip_versions(&self, versions: u64) {
        self.0.lock().unwrap().version += versions;
    }

    /// What people do with kubectl.
    pub(crate) fn delete(&self) {
        self.0.lock().unwrap().leases.clear();
    }

    /// What people do with kubectl, too.
    pub(crate) fn annotate(&self, name: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {name: value}}});
        self.0.lock().unwrap().annotate("headgate-leader", &patch);
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut store = self.0.lock().unwrap();
        store.requests.push((Instant::now(), method.clone()));
        let name = path.strip_prefix(COLLECTION).unwrap_or_else(|| panic!("{path}"));
        let name = name.strip_prefix('/');
        match (method, name) {
            (&Method::GET, Some(name)) => match store.leases.get(name) {
                Some(lease) => (200, lease.clone()),
                None => not_found(name),
            },
            (&Method::POST, None) => {
                let lease: Value = serde_json::from_slice(body).unwrap();
                let name = lease["metadata"]["name"].as_str().unwrap().to_owned();
                store.create(&name, lease)
            }
            (&Method::PATCH, Some(name)) => store.annotate(name, &serde_json::from_slice(body).unwrap()),
            (&Method::DELETE, Some(name)) => {
                let gone = store.leases.remove(name).is_some();
                if gone {
                    (200, json!({"kind": "Status", "status": "Success"}))
                } else {
                    not_found(name)
                }
            }
            (&Method::PUT, Some(name)) => store.replace(name, serde_json::from_slice(body).unwrap()),
            _ => panic!("{method} {path}"),
        }
    }
}

impl Store {
    fn create(&mut self, name: &str, mut lease: Value) -> (u16, Value) {
        if let Some(refused) = invalid(&lease) {
            return refused;
        }
        if !lease["metadata"]["resourceVersion"].is_null() {
            let told = "resourceVersion should not be set on objects to be created";
            return (500, refusal(500, "InternalError", told));
        }
        if self.leases.contains_key(name) {
            return (409, refusal(409, "AlreadyExists", "already exists"));
        }
        self.version += 1;
        lease["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        (201, self.keep(name, lease))
    }

    fn replace(&mut self, name: &str, mut lease: Value) -> (u16, Value) {
        let metadata = &lease["metadata"];
        let Some(present) = self.leases.get(name) else {
            // A Lease may be created by PUT, but not from another's remains.
            if metadata["uid"].is_null() && metadata["resourceVersion"].is_null() {
                return self.create(name, lease);
            }
            return conflict();
        };
        if let Some(refused) = invalid(&lease) {
            return refused;
        }
        if metadata["resourceVersion"].is_null() {
            return (
                422,
                refusal(
                    422,
                    "Invalid",
                    "metadata.resourceVersion: must be specified for an update",
                ),
            );
        }
        let theirs = &present["metadata"];
        let other_uid = !metadata["uid"].is_null() && metadata["uid"] != theirs["uid"];
        if metadata["resourceVersion"] != theirs["resourceVersion"] || other_uid {
            return conflict();
        }
        lease["metadata"]["uid"] = theirs["uid"].clone();
        if lease == *present {
            return (200, lease);
        }
        self.version += 1;
        (200, self.keep(name, lease))
    }

    /// A merge patch of annotations, which is all that is needed.
    fn annotate(&mut self, name: &str, patch: &Value) -> (u16, Value) {
        let Some(mut lease) = self.leases.get(name).cloned() else {
            return not_found(name);
        };
        for (annotation, value) in patch["metadata"]["annotations"].as_object().unwrap() {
            lease["metadata"]["annotations"][annotation] = value.clone();
        }
        self.version += 1;
        (200, self.keep(name, lease))
    }

    fn keep(&mut self, name: &str, mut lease: Value) -> Value {
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        lease["metadata"]["namespace"] = json!("kube-system");
        self.leases.insert(name.to_owned(), lease.clone());
        lease
    }
}

fn invalid(lease: &Value) -> Option<(u16, Value)> {
    let spec = &lease["spec"];
    let wrong = |field: &str, least: i64| spec[field].as_i64().is_some_and(|value| value < least);
    let is_invalid = wrong("leaseDurationSeconds", 1) || wrong("leaseTransitions", 0);
    is_invalid.then(|| (422, refusal(422, "Invalid", "spec: must be greater than 0")))
}

fn not_found(name: &str) -> (u16, Value) {
    (404, refusal(404, "NotFound", &format!("leases \"{name}\" not found")))
}

fn conflict() -> (u16, Value) {
    (409, refusal(409, "Conflict", "the object has been modified"))
}

fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": message})
}
