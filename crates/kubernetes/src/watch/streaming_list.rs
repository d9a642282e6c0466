//! The list of a stream of one object, requested as a streaming list: a watch that begins with the object, says when that is all, and goes on with
//! its changes. So such a stream costs the API server one request in each period, and none of them is a list.
//!
//! For kube's watcher these are two requests, a list and the watch from its version. kube's own streaming lists are not used: they begin at any
//! version, however old the API server's cache is, and fail where the API server has none. As a list does, this one names no version, so it is
//! as new as the request.
//!
//! Kubernetes has streaming lists from 1.32 on, by default not in 1.33. Otherwise the object is listed, as after any answer that is no
//! streaming list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::list_pages::{MAX_PAGE_BYTES, next_frame, received};
use super::resume::Parameters;

/// What makes a list a streaming list, besides its timeout.
const PARAMETERS: &str = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
/// How long a watch of kube's lasts by default.
const DEFAULT_TIMEOUT_SECONDS: u32 = 290;
/// The annotation of the event after the first ones.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

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
    /// Whether the API server has refused one. Then no further one is requested.
    is_unsupported: bool,
    /// What follows the last list.
    changes: Option<Changes>,
}

/// The rest of the response that a list is the beginning of.
struct Changes {
    /// The version of the list.
    version: String,
    response: Response<ResponseBody>,
}

/// An event of a watch.
#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The object of an event, as far as its metadata.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// What the first events have shown so far.
#[derive(Default)]
struct InitialEvents {
    /// The object as text, if it exists.
    object: Option<Box<RawValue>>,
    /// The version that the end names.
    version: Option<String>,
}

impl InitialEvents {
    /// Adopts the event of a line; `None` if it is none of a streaming list.
    fn adopt(&mut self, line: &[u8]) -> Option<()> {
        let event: Event<'_> = serde_json::from_slice(line).ok()?;
        match event.r#type {
            "ADDED" | "MODIFIED" => self.object = Some(event.object.to_owned()),
            "DELETED" => self.object = None,
            "BOOKMARK" => {
                let Metadata {
                    resource_version,
                    annotations,
                } = serde_json::from_str::<Object>(event.object.get()).ok()?.metadata;
                self.version = annotations.contains_key(INITIAL_EVENTS_END).then_some(resource_version);
            }
            _ => return None,
        }
        Some(())
    }
}

impl StreamingList {
    /// For a stream whose watches last so many seconds.
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
        let Some(uri) = self.uri(&head.uri) else {
            return Ok(None);
        };
        {
            let mut state = self.state();
            state.changes = None;
            if state.is_unsupported {
                return Ok(None);
            }
        }
        let mut head = head.clone();
        head.uri = uri;
        let response = client.send(Request::from_parts(head, Body::empty())).await?;
        match response.status() {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
                self.state().is_unsupported = true;
                return Ok(None);
            }
            status if !status.is_success() => return Ok(Some(received(response).await?)),
            _ => {}
        }

        let (head, mut body) = response.into_parts();
        let (mut events, mut text, mut bytes) = (InitialEvents::default(), Vec::new(), 0);
        let version = loop {
            let Some(end) = text.iter().position(|byte| *byte == b'\n') else {
                let frame = next_frame(&mut body).await?;
                let data = frame.and_then(|frame| frame.into_data().ok());
                bytes += data.as_ref().map_or(0, Bytes::len);
                let Some(data) = data.filter(|_| bytes <= MAX_PAGE_BYTES) else {
                    return Ok(None);
                };
                text.extend(data);
                continue;
            };
            if events.adopt(&text[..end]).is_none() {
                return Ok(None);
            }
            text.drain(..=end);
            if let Some(version) = events.version.take() {
                break version;
            }
        };
        let rest = stream::iter([Ok(Frame::data(text.into()))]).chain(BodyStream::new(body));
        self.state().changes = Some(Changes {
            version: version.clone(),
            response: Response::from_parts(head, StreamBody::new(rest).boxed_unsync()),
        });
        let object = events.object.as_ref().map_or("", |object| object.get());
        let version = serde_json::Value::String(version);
        let list = format!(r#"{{"metadata":{{"resourceVersion":{version}}},"items":[{object}]}}"#);
        Ok(Some(Response::new(list.into_bytes().into())))
    }

    /// The response to the watch for `uri`, if it continues the last list.
    pub(super) fn take_changes(&self, uri: &Uri) -> Option<Response<ResponseBody>> {
        let changes = self.state().changes.take()?;
        let version = Parameters::new(uri).version?;
        (changes.version.parse() == Ok(version)).then_some(changes.response)
    }

    /// The address of the streaming list in place of this list.
    fn uri(&self, list: &Uri) -> Option<Uri> {
        let parameters = list.query().into_iter().flat_map(|query| query.split('&'));
        let selectors = parameters.filter(|parameter| parameter.starts_with("fieldSelector="));
        let timeout = format!("timeoutSeconds={}", self.timeout_seconds);
        let query: Vec<_> = selectors.chain([PARAMETERS, &timeout]).collect();
        let mut parts = list.clone().into_parts();
        parts.path_and_query = Some(format!("{}?{}", list.path(), query.join("&")).parse().ok()?);
        Uri::from_parts(parts).ok()
    }
}

#[cfg(test)]
mod tests;
