//! The faults that a test injects into the requests of one client.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::RecordedRequest;
use crate::fault_points::ProcessPoints;

/// A fault of the connection between one client and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Requests and responses take the usual latency.
    None,
    /// Requests and responses are delayed by this time each. A request whose client gives up before has no effect.
    Slow(Duration),
    /// No request arrives. Open watches send no event until the fault ends.
    CutOff,
    /// Requests are answered with this HTTP status and have no effect.
    Status(u16),
    /// Requests take effect, and their responses are lost.
    AnswerLost,
    /// Requests take effect after this time, even if the client has given up. Their responses are lost.
    Late(Duration),
}

/// Selects the requests that a fault applies to.
pub type RequestFilter = fn(&RecordedRequest) -> bool;

/// Handle on the faults of one client. Clones share the state.
#[derive(Clone)]
pub struct ClientFaults {
    fault: Arc<Mutex<(Fault, RequestFilter)>>,
    pub(super) tries: Arc<AtomicUsize>,
    /// Number of times that the open watches were closed; marked as changed with every new fault.
    pub(super) changes: watch::Sender<u64>,
    pub(super) points: Option<ProcessPoints>,
}

impl Default for ClientFaults {
    fn default() -> Self {
        Self {
            fault: Arc::new(Mutex::new((Fault::None, |_| true))),
            tries: Arc::default(),
            changes: watch::Sender::new(0),
            points: None,
        }
    }
}

impl ClientFaults {
    pub(super) fn with_points(points: Option<ProcessPoints>) -> Self {
        Self {
            points,
            ..Self::default()
        }
    }

    /// Applies a fault to all requests from now on.
    pub fn set(&self, fault: Fault) {
        self.set_for(fault, |_| true);
    }

    /// Applies a fault to the requests that `filter` selects.
    pub fn set_for(&self, fault: Fault, filter: RequestFilter) {
        *self.fault.lock().unwrap() = (fault, filter);
        self.changes.send_modify(|_| ());
    }

    /// Closes all open watches with a connection reset.
    pub fn cut_watches(&self) {
        self.changes.send_modify(|cuts| *cuts += 1);
    }

    /// The number of requests that were sent, with those that did not arrive.
    pub fn tries(&self) -> usize {
        self.tries.load(Ordering::Relaxed)
    }

    /// The fault points of the client's process, if it has any.
    pub fn points(&self) -> Option<ProcessPoints> {
        self.points.clone()
    }

    /// Waits until the client's process has crashed: what is left of it is to be aborted.
    pub async fn crashed(&self) {
        match &self.points {
            Some(points) => points.crashed().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn fault(&self, request: &RecordedRequest) -> Fault {
        let (fault, filter) = *self.fault.lock().unwrap();
        if filter(request) { fault } else { Fault::None }
    }
}
