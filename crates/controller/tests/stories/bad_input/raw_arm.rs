//! A fake ARM that keeps load balancers as they are, however malformed, and checks etags only.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::{Request, Response};
use serde_json::{Value, json};

use super::super::world::Intercept;

/// The documents. Clones share them.
#[derive(Clone)]
pub(super) struct RawArm(Arc<Mutex<State>>);

struct State {
    load_balancers: Vec<Value>,
    version: u64,
    puts: Vec<Value>,
}

impl RawArm {
    pub(super) fn new(load_balancers: Vec<Value>) -> Self {
        Self(Arc::new(Mutex::new(State {
            load_balancers,
            version: 1,
            puts: Vec::new(),
        })))
    }

    /// The documents without etags.
    pub(super) fn load_balancers(&self) -> Vec<Value> {
        self.0.lock().unwrap().load_balancers.clone()
    }

    /// The bodies of all writes.
    pub(super) fn puts(&self) -> Vec<Value> {
        self.0.lock().unwrap().puts.clone()
    }

    pub(super) fn intercept(&self) -> Intercept {
        let arm = self.clone();
        Arc::new(move |request| {
            let path = request.uri().path();
            let rest = path
                .starts_with("/subscriptions/")
                .then(|| path.split_once("/loadBalancers"))??
                .1;
            Some(arm.0.lock().unwrap().answer(request, rest))
        })
    }
}

fn has_name(document: &Value, name: &str) -> bool {
    document["name"]
        .as_str()
        .is_some_and(|known| known.eq_ignore_ascii_case(name))
}

fn answer(status: u16, document: &Value) -> Response<Bytes> {
    let body = Bytes::from(document.to_string());
    Response::builder().status(status).body(body).unwrap()
}

impl State {
    fn etag(&self) -> Value {
        json!(format!("W/\"{}\"", self.version))
    }

    /// A document with etags, as a GET returns it.
    fn with_etags(&self, kept: &Value) -> Value {
        let mut with_etags = kept.clone();
        with_etags["etag"] = self.etag();
        let pools = with_etags
            .pointer_mut("/properties/backendAddressPools")
            .and_then(Value::as_array_mut);
        for pool in pools.into_iter().flatten().filter(|pool| pool.is_object()) {
            pool["etag"] = self.etag();
        }
        with_etags
    }

    fn answer(&mut self, request: &Request<Bytes>, rest: &str) -> Response<Bytes> {
        let names: Vec<_> = rest.split('/').skip(1).collect();
        match (request.method().as_str(), names.as_slice()) {
            ("GET", []) => {
                let all: Vec<_> = self.load_balancers.iter().map(|kept| self.with_etags(kept)).collect();
                answer(200, &json!({"value": all}))
            }
            ("GET", [name]) => match self.load_balancers.iter().find(|kept| has_name(kept, name)) {
                Some(kept) => answer(200, &self.with_etags(kept)),
                None => answer(404, &json!({"error": {"code": "ResourceNotFound"}})),
            },
            ("PUT", [load_balancer, "backendAddressPools", pool]) => self.put(request, load_balancer, pool),
            (method, _) => panic!("{method} {rest}"),
        }
    }

    fn put(&mut self, request: &Request<Bytes>, load_balancer: &str, pool: &str) -> Response<Bytes> {
        let sent = request.headers()["if-match"].to_str().unwrap();
        if *sent != self.etag() {
            return answer(412, &json!({"error": {"code": "PreconditionFailed"}}));
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let found = self
            .load_balancers
            .iter_mut()
            .find(|kept| has_name(kept, load_balancer))
            .unwrap();
        let pools = found["properties"]["backendAddressPools"].as_array_mut().unwrap();
        *pools.iter_mut().find(|known| has_name(known, pool)).unwrap() = body.clone();
        self.version += 1;
        self.puts.push(body.clone());
        let mut with_etags = body;
        with_etags["properties"]["provisioningState"] = json!("Succeeded");
        answer(200, &with_etags)
    }
}
