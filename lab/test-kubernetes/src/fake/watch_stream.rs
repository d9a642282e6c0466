//! Watches: the objects or the changes since a version, then every further change, until the timeout or a fault.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower::BoxError;

use super::client_faults::{ClientFaults, Fault};
use super::requests::{ONE_WAY_LATENCY, ParsedRequest, ResponseBody};
use super::resources::{ObjectKey, Selector};
use super::validation::api_error;
use super::{FakeApi, RecordedRequest};
use crate::fault_points::EventFault;

struct WatchStream {
    fake: FakeApi,
    faults: ClientFaults,
    recorded: RecordedRequest,
    selector: Selector,
    /// Version up to which all changes are in `pending` or sent.
    version: u64,
    pending: VecDeque<String>,
    ends_at: Instant,
    restarts: u64,
    cuts: u64,
    changes: watch::Receiver<()>,
    fault_changes: watch::Receiver<u64>,
    is_closed: bool,
}

impl FakeApi {
    pub(super) fn watch(&self, request: &ParsedRequest, faults: ClientFaults, restarts: u64) -> Response<ResponseBody> {
        let number = |name: &str| {
            request
                .recorded
                .query
                .get(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        let cuts = *faults.changes.borrow();
        let mut watch = WatchStream {
            changes: self.0.changes.subscribe(),
            fault_changes: faults.changes.subscribe(),
            cuts,
            recorded: request.recorded.clone(),
            selector: request.selector(),
            version: number("resourceVersion").unwrap_or_default(),
            pending: VecDeque::new(),
            ends_at: Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(290)),
            fake: self.clone(),
            faults,
            restarts,
            is_closed: false,
        };
        if watch.version == 0 {
            let store = self.store();
            watch.version = store.version();
            let added = |(_, object): (&ObjectKey, &Value)| line("ADDED", object);
            watch.pending = store.objects(&watch.selector).map(added).collect();
            if request.is_streaming_list() {
                watch.pending.push_back(initial_events_end(watch.version));
            }
        }
        let points = watch.faults.points.as_ref();
        if points.is_some_and(|points| points.take_expired(&watch.recorded.path)) {
            watch.expire();
        }
        let frames = stream::unfold(watch, |mut watch| async move {
            let text = watch.next().await?;
            Some((text.map(Frame::data), watch))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// An event, with its members in the order of the API server's.
fn line(kind: &str, object: &Value) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// The event after those of a streaming list.
fn initial_events_end(version: u64) -> String {
    let metadata =
        json!({"resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
    line("BOOKMARK", &json!({"metadata": metadata}))
}

impl WatchStream {
    /// The next events; `None` after the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if let Some(points) = &self.faults.points {
                points.alive().await;
            }
            if self.is_closed && self.pending.is_empty() {
                return None;
            }
            if self.fake.availability().0 != self.restarts || *self.faults.changes.borrow() != self.cuts {
                self.is_closed = true;
                self.pending.clear();
                return Some(Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()));
            }
            if Instant::now() >= self.ends_at {
                return None;
            }
            self.changes.borrow_and_update();
            self.fault_changes.borrow_and_update();
            // Events of the time while the client is cut off are sent afterwards.
            if self.faults.fault(&self.recorded) != Fault::CutOff {
                if self.pending.is_empty() {
                    self.read_changes();
                }
                if !self.pending.is_empty() {
                    sleep(ONE_WAY_LATENCY).await;
                    return Some(Ok(self.take_pending().await.into()));
                }
            }
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.fault_changes.changed() => {}
                () = sleep_until(self.ends_at) => {}
            }
        }
    }

    /// The next events: all that are pending, or one of them where each is a fault point.
    async fn take_pending(&mut self) -> String {
        let points = self.faults.points.as_ref().filter(|_| !self.is_closed);
        let Some(points) = points else {
            return self.pending.drain(..).collect();
        };
        let event = self.pending.pop_front().unwrap_or_default();
        match points.event(&self.recorded.path, &event) {
            EventFault::None => {}
            EventFault::Delay(time) => sleep(time).await,
            EventFault::Duplicate => self.expire(),
            EventFault::Drop => {
                self.expire();
                return self.pending.drain(..).collect();
            }
        }
        event
    }

    /// Ends the watch with 410, whatever is pending.
    fn expire(&mut self) {
        let (_, status) = api_error(410, "Expired", "too old resource version");
        self.pending = [line("ERROR", &status)].into();
        self.is_closed = true;
    }

    fn read_changes(&mut self) {
        let store = self.fake.store();
        let Some(changes) = store.changes_since(self.version, &self.selector) else {
            drop(store);
            self.expire();
            return;
        };
        // A restored snapshot has an earlier version.
        self.version = self.version.max(store.version());
        let event = |change: super::store::Change| line(change.kind, &change.object);
        self.pending.extend(changes.into_iter().map(event));
    }
}
