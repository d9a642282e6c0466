//! Watches: the objects or the changes since a version, then every further change, until the timeout or a fault.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower::BoxError;

use super::client_faults::{ClientFaults, Fault};
use super::requests::{ONE_WAY_LATENCY, ParsedRequest, ResponseBody};
use super::resources::{ObjectKey, Selector};
use super::validation::api_error;
use super::{FakeApi, RecordedRequest};

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
        let number = |name: &str| request.query.get(name).and_then(|value| value.parse::<u64>().ok());
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

impl WatchStream {
    /// The next events; `None` after the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.is_closed {
                return None;
            }
            if self.fake.availability().0 != self.restarts || *self.faults.changes.borrow() != self.cuts {
                self.is_closed = true;
                return Some(Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()));
            }
            if Instant::now() >= self.ends_at {
                return None;
            }
            self.changes.borrow_and_update();
            self.fault_changes.borrow_and_update();
            // Events of the time while the client is cut off are sent afterwards.
            if self.faults.fault(&self.recorded) != Fault::CutOff {
                self.read_changes();
                if !self.pending.is_empty() {
                    sleep(ONE_WAY_LATENCY).await;
                    return Some(Ok(self.pending.drain(..).collect::<String>().into()));
                }
            }
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.fault_changes.changed() => {}
                () = sleep_until(self.ends_at) => {}
            }
        }
    }

    fn read_changes(&mut self) {
        let store = self.fake.store();
        let Some(changes) = store.changes_since(self.version, &self.selector) else {
            let (_, status) = api_error(410, "Expired", "too old resource version");
            self.pending.push_back(line("ERROR", &status));
            self.version = store.version();
            self.is_closed = true;
            return;
        };
        // A restored snapshot has an earlier version.
        self.version = self.version.max(store.version());
        let event = |change: super::store::Change| line(change.kind, &change.object);
        self.pending.extend(changes.into_iter().map(event));
    }
}
