//! The list of a stream of one object, requested as a streaming list: a watch that begins with the object, says when that is all, and goes on with
//! its changes. So where the API server has these, such a stream costs it one request in each period, and none of them is a list.
//!
//! For kube's watcher these are two requests, a list and the watch from its version. kube's own streaming lists are not used: they begin at any
//! version, however old the API server's cache is, and fail where the API server has none. As a list does, this one names no version, so it is
//! as new as the request.
//!
//! Kubernetes has streaming lists from 1.32 on, by default not in 1.33. After an answer that is none, and where none arrives, the object is
//! listed for [`PAUSE`]: an API server may be replaced by a newer one, and a proxy that stops watches may let lists through.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ACCEPT_ENCODING, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

use super::list_pages::{FRAME_TIMEOUT, MAX_PAGE_BYTES, received};

/// What makes a list a streaming list, besides its timeout.
const PARAMETERS: &str = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
/// How long a watch of kube's lasts by default.
const DEFAULT_TIMEOUT_SECONDS: u32 = 290;
/// The annotation of the event after the first ones.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
/// No streaming list is requested for so long after a request for one has failed.
const PAUSE: Duration = Duration::from_hours(1);

/// A body of kube's, or what is left of one.
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, kube::Error>;

/// The streaming lists of one stream, one after another.
#[derive(Clone)]
pub(super) struct StreamingList {
    /// How long each lasts, its watch included.
    timeout_seconds: u32,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The object is listed until then.
    paused_until: Option<Instant>,
    /// The rest of the response that the last list was the beginning of.
    changes: Option<Response<ResponseBody>>,
}

/// An event of a watch.
#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The object of a bookmark.
#[derive(Deserialize)]
struct Bookmark {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// What the first events show.
struct InitialEvents {
    /// The object as text, if it exists.
    object: Option<Box<RawValue>>,
    version: String,
    /// What was received after them.
    rest: Bytes,
}

impl InitialEvents {
    /// Reads the first events from the body; `None` if it has no such events of one object.
    async fn read(body: &mut Body) -> Result<Option<Self>, kube::Error> {
        let (mut object, mut text, mut bytes) = (None, Vec::new(), 0);
        loop {
            let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
                let frame = body.frame().await.transpose()?;
                let data = frame.and_then(|frame| frame.into_data().ok());
                bytes += data.as_ref().map_or(0, Bytes::len);
                let Some(data) = data.filter(|_| bytes <= MAX_PAGE_BYTES) else {
                    return Ok(None);
                };
                text.extend(data);
                continue;
            };
            let Ok(event) = serde_json::from_slice::<Event<'_>>(&text[..end]) else {
                return Ok(None);
            };
            match event.r#type {
                // A second object.
                "ADDED" if object.is_some() => return Ok(None),
                "ADDED" | "MODIFIED" => object = Some(event.object.to_owned()),
                "DELETED" => object = None,
                "BOOKMARK" => {
                    let Ok(Bookmark { metadata }) = serde_json::from_str(event.object.get()) else {
                        return Ok(None);
                    };
                    if metadata.annotations.contains_key(INITIAL_EVENTS_END) {
                        return Ok(Some(Self {
                            object,
                            version: metadata.resource_version,
                            rest: Bytes::copy_from_slice(&text[end + 1..]),
                        }));
                    }
                }
                _ => return Ok(None),
            }
            text.drain(..=end);
        }
    }

    /// The same as a list.
    fn into_list(self) -> Response<Body> {
        let object = self.object.as_ref().map_or("", |object| object.get());
        let version = Value::String(self.version);
        let list = format!(r#"{{"metadata":{{"resourceVersion":{version}}},"items":[{object}]}}"#);
        Response::new(list.into_bytes().into())
    }
}

impl StreamingList {
    /// `timeout_seconds`: how long a watch of the stream lasts; kube's default if `None`.
    pub(super) fn new(timeout_seconds: Option<u32>) -> Self {
        Self {
            timeout_seconds: timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No section that holds the mutex can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the list `head`. `None` if it has to be requested as an ordinary one.
    pub(super) async fn request(&self, client: &Client, head: &Parts) -> Result<Option<Response<Body>>, kube::Error> {
        let is_paused = {
            let mut state = self.state();
            state.changes = None;
            state.paused_until.is_some_and(|until| Instant::now() < until)
        };
        let Some(uri) = self.uri(&head.uri).filter(|_| !is_paused) else {
            return Ok(None);
        };
        let mut head = head.clone();
        head.uri = uri;
        // As kube's watches: an API server compresses a watch one member per event.
        head.headers
            .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let answer = self.send(client, Request::from_parts(head, Body::empty())).await;
        if !matches!(answer, Ok(Some(_))) {
            tracing::debug!(
                error = answer.as_ref().err().map(tracing::field::display),
                "no streaming list; listing for an hour"
            );
            self.state().paused_until = Some(Instant::now() + PAUSE);
        }
        answer
    }

    /// Sends the request for a streaming list. `None` if the answer is none, nor an error of the list.
    async fn send(&self, client: &Client, request: Request<Body>) -> Result<Option<Response<Body>>, kube::Error> {
        let response = client.send(request).await?;
        match response.status() {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => return Ok(None),
            status if !status.is_success() => return Ok(Some(received(response).await?)),
            _ => {}
        }
        let (head, mut body) = response.into_parts();
        let events = timeout(FRAME_TIMEOUT, InitialEvents::read(&mut body)).await;
        let events =
            events.map_err(|_| kube::Error::Service("the API server did not end a streaming list".into()))??;
        let Some(events) = events else { return Ok(None) };
        let changes = stream::iter([Ok(Frame::data(events.rest.clone()))]).chain(BodyStream::new(body));
        let changes = Response::from_parts(head, StreamBody::new(changes).boxed_unsync());
        self.state().changes = Some(changes);
        Ok(Some(events.into_list()))
    }

    /// The response to the watch that follows the last list, if that was a streaming list. The next call returns `None`.
    pub(super) fn take_changes(&self) -> Option<Response<ResponseBody>> {
        self.state().changes.take()
    }

    /// The address of the streaming list in place of this list; `None` for a further page.
    fn uri(&self, list: &Uri) -> Option<Uri> {
        let query = list.query().unwrap_or_default();
        let parameters = || query.split('&').filter(|parameter| !parameter.is_empty());
        if parameters().any(|parameter| parameter.starts_with("continue=")) {
            return None;
        }
        let selectors = parameters().filter(|parameter| !parameter.starts_with("limit="));
        let timeout = format!("timeoutSeconds={}", self.timeout_seconds);
        let query: Vec<_> = selectors.chain([PARAMETERS, &timeout]).collect();
        let mut parts = list.clone().into_parts();
        parts.path_and_query = Some(format!("{}?{}", list.path(), query.join("&")).parse().ok()?);
        Uri::from_parts(parts).ok()
    }
}

#[cfg(test)]
mod tests;
