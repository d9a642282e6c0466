//! One caller's way to the API server, and what befalls requests on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tower::BoxError;

use super::kinds::At;
use super::rules::refusal;
use super::store::Form;
use super::{Asked, FakeApi};

/// How long a request is under way where nothing is wrong, and an answer too.
pub(super) const WAY: Duration = Duration::from_millis(5);

/// What happens to the requests of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is wrong.
    None,
    /// They arrive, and are answered, this much later; a caller who gives up has not sent them.
    Slow(Duration),
    /// They do not arrive; watches that are open tell nothing until it is over.
    CutOff,
    /// They are answered with this status.
    Status(u16),
    /// They take effect; the answer does not arrive.
    AnswerLost,
    /// They take effect this much later, whether the caller waits or not.
    Late(Duration),
}

/// Which requests a fault befalls.
pub type Which = fn(&Asked) -> bool;

/// What befalls the requests of one caller, and how often its watches were cut.
#[derive(Clone)]
pub struct Line {
    fault: Arc<Mutex<(Fault, Which)>>,
    tries: Arc<AtomicUsize>,
    pub(super) changes: watch::Sender<u64>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            fault: Arc::new(Mutex::new((Fault::None, |_| true))),
            tries: Arc::default(),
            changes: watch::Sender::new(0),
        }
    }
}

impl Line {
    /// From now on all requests fail like this.
    pub fn set(&self, fault: Fault) {
        self.set_for(fault, |_| true);
    }

    /// Only these requests fail.
    pub fn set_for(&self, fault: Fault, which: Which) {
        *self.fault.lock().unwrap() = (fault, which);
        self.changes.send_modify(|_| ());
    }

    /// The watches that are open break off.
    pub fn cut_watches(&self) {
        self.changes.send_modify(|cuts| *cuts += 1);
    }

    /// How many requests were sent, whether they arrived or not.
    #[must_use]
    pub fn tries(&self) -> usize {
        self.tries.load(Ordering::Relaxed)
    }

    pub(super) fn fault(&self, asked: &Asked) -> Fault {
        let (fault, which) = *self.fault.lock().unwrap();
        if which(asked) { fault } else { Fault::None }
    }
}

/// A request as it is understood.
pub(super) struct Understood {
    pub(super) asked: Asked,
    pub(super) at: At,
    status: bool,
    pub(super) query: BTreeMap<String, String>,
    content: String,
    body: Bytes,
}

impl Understood {
    async fn of(request: Request<Body>) -> Result<Self, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path().to_owned();
        let query: BTreeMap<_, _> = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
        let (mut at, status) = At::of_path(&path);
        for selector in query.get("fieldSelector").into_iter().flat_map(|all| all.split(',')) {
            let name = selector.strip_prefix("metadata.name=");
            name.unwrap_or_else(|| panic!("the selector {selector:?} is not made up"))
                .trim_start_matches('=')
                .clone_into(&mut at.name);
        }
        assert!(!query.contains_key("labelSelector"), "labels are not made up");
        assert!(
            !query.contains_key("sendInitialEvents"),
            "lists by watch are not made up"
        );
        let content = parts.headers.get("content-type").and_then(|it| it.to_str().ok());
        Ok(Self {
            asked: Asked {
                at: Instant::now(),
                watch: query.get("watch").is_some_and(|watch| watch == "true"),
                method: parts.method,
                path,
            },
            at,
            status,
            query,
            content: content.unwrap_or_default().to_owned(),
            body,
        })
    }

    /// Whether it is about one object by the path.
    fn is_single(&self) -> bool {
        !self.query.contains_key("fieldSelector") && !self.at.name.is_empty()
    }
}

pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

fn response(status: u16, value: &Value) -> Result<Response<AnswerBody>, BoxError> {
    let body = Full::from(serde_json::to_vec(value)?)
        .map_err(Into::into)
        .boxed_unsync();
    Ok(Response::builder().status(status).body(body)?)
}

impl FakeApi {
    pub(super) async fn carry(self, request: Request<Body>, line: Line) -> Result<Response<AnswerBody>, BoxError> {
        let request = Understood::of(request).await?;
        line.tries.fetch_add(1, Ordering::Relaxed);
        let fault = line.fault(&request.asked);
        let way = match fault {
            Fault::Slow(way) => way,
            _ => WAY,
        };
        sleep(way).await;
        let (restarts, true) = self.life() else {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        };
        let (status, value) = match fault {
            Fault::CutOff => std::future::pending().await,
            Fault::Status(status) => refusal(status, "Injected", "a fault"),
            Fault::Late(late) => {
                let late_to = self.clone();
                tokio::spawn(async move {
                    sleep(late).await;
                    late_to.answer(&request);
                });
                std::future::pending().await
            }
            Fault::AnswerLost => {
                self.answer(&request);
                std::future::pending().await
            }
            Fault::None | Fault::Slow(_) if request.asked.watch => {
                self.note(&request.asked);
                sleep(way).await;
                return Ok(self.watch(&request, line, restarts));
            }
            Fault::None | Fault::Slow(_) => self.answer(&request),
        };
        sleep(way).await;
        if self.life() != (restarts, true) {
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
        }
        response(status, &value)
    }

    fn note(&self, asked: &Asked) {
        let asked = Asked {
            at: Instant::now(),
            ..asked.clone()
        };
        self.0.asked.lock().unwrap().push(asked);
    }

    fn answer(&self, request: &Understood) -> (u16, Value) {
        self.note(&request.asked);
        let outcome = self.outcome(request);
        self.0.changes.send_replace(());
        outcome.unwrap_or_else(|refusal| refusal)
    }

    fn outcome(&self, request: &Understood) -> super::store::Outcome {
        let Understood { at, status, query, .. } = request;
        let object =
            || serde_json::from_slice(&request.body).map_err(|error| refusal(400, "BadRequest", &error.to_string()));
        let number = |name: &str| query.get(name).and_then(|value| value.parse().ok());
        let mut store = self.store();
        match (&request.asked.method, request.is_single()) {
            (&Method::GET, true) => store.read(at),
            (&Method::GET, false) => {
                let after = query.get("continue").map_or("", String::as_str);
                Ok((200, store.list(at, number("limit").unwrap_or_default(), after)))
            }
            (&Method::POST, false) => store.create(at, object()?),
            (&Method::PUT, true) => store.replace(at, *status, object()?),
            (&Method::PATCH, true) => {
                let form = match request.content.as_str() {
                    "application/json-patch+json" => Form::Json,
                    "application/merge-patch+json" => Form::Merge,
                    other => panic!("a patch as {other:?} is not made up"),
                };
                store.patch(at, *status, form, &object()?)
            }
            (&Method::DELETE, true) => {
                let options = if request.body.is_empty() {
                    Value::Null
                } else {
                    object()?
                };
                store.delete(at, &options)
            }
            (method, _) => panic!("{method} {} is not made up", request.asked.path),
        }
    }
}
