//! A limit on open connections that several listeners share. Memory and file descriptors belong to the process: with
//! a limit for each listener alone, a peer that reaches many ports could take all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use super::activity::Activity;
use super::metrics::{CloseReason, ListenerMetrics};

/// The number of connections that the listeners with a clone of this may have open together. At the limit, the
/// connection that has waited longest is closed for a new one.
#[derive(Clone, Debug)]
pub struct ConnectionLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_connections: usize,
    /// The same for all listeners, so that waiting times can be compared.
    origin: Instant,
    open: Mutex<HashMap<Id, OpenConnection>>,
}

#[derive(Debug)]
struct OpenConnection {
    handle: AbortHandle,
    activity: Arc<Activity>,
    metrics: ListenerMetrics,
}

impl ConnectionLimit {
    /// A limit that no listener uses yet.
    pub fn new(max_connections: usize) -> Self {
        Self(Arc::new(Shared {
            max_connections,
            origin: Instant::now(),
            open: Mutex::default(),
        }))
    }

    pub(super) fn origin(&self) -> Instant {
        self.0.origin
    }

    /// Closes the connection that has waited longest if the limit is reached.
    pub(super) fn make_room(&self) {
        if self.open().len() >= self.0.max_connections {
            self.evict();
        }
    }

    /// Closes the connection that has waited longest. Its listener notices when the task ends.
    pub(super) fn evict(&self) {
        let mut open = self.open();
        let longest = open.iter().min_by_key(|(_, connection)| connection.activity.since());
        let Some(id) = longest.map(|(id, _)| *id) else { return };
        if let Some(connection) = open.remove(&id) {
            connection.handle.abort();
            connection.metrics.count_closed(CloseReason::Evicted);
        }
    }

    pub(super) fn insert(&self, handle: AbortHandle, activity: Arc<Activity>, metrics: ListenerMetrics) {
        let connection = OpenConnection {
            handle,
            activity,
            metrics,
        };
        self.open().insert(connection.handle.id(), connection);
    }

    /// Removes a connection; false if it was evicted before.
    pub(super) fn remove(&self, id: Id) -> bool {
        self.open().remove(&id).is_some()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Id, OpenConnection>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the map consistent.
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
