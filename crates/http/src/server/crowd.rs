//! The connections of all listeners that share one bound. Ports may be many, and memory and file descriptors are
//! the process's: a bound on each alone would let a peer of many ports take all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

use super::activity::Activity;
use super::metrics::ListenerMetrics;

/// What several listeners share.
#[derive(Clone, Debug)]
pub struct Crowd(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    most: usize,
    /// One for all, so that their connections' waits can be compared.
    origin: Instant,
    open: Mutex<HashMap<Id, Member>>,
}

#[derive(Debug)]
struct Member {
    handle: AbortHandle,
    activity: Arc<Activity>,
    metrics: ListenerMetrics,
}

impl Crowd {
    /// A crowd of so many connections at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inside {
            most,
            origin: Instant::now(),
            open: Mutex::default(),
        }))
    }

    pub(super) fn origin(&self) -> Instant {
        self.0.origin
    }

    /// Closes the connection that has waited longest where no other fits in.
    pub(super) fn make_room(&self) {
        if self.open().len() >= self.0.most {
            self.evict();
        }
    }

    /// Closes the connection that has waited longest; its listener learns it from its task's end.
    pub(super) fn evict(&self) {
        let mut open = self.open();
        let longest = open.iter().min_by_key(|(_, member)| member.activity.since());
        let Some(id) = longest.map(|(id, _)| *id) else { return };
        if let Some(member) = open.remove(&id) {
            member.handle.abort();
            member.metrics.closed("evicted");
        }
    }

    pub(super) fn enter(&self, handle: AbortHandle, activity: Arc<Activity>, metrics: ListenerMetrics) {
        let member = Member {
            handle,
            activity,
            metrics,
        };
        self.open().insert(member.handle.id(), member);
    }

    /// Whether it was still in.
    pub(super) fn leave(&self, id: Id) -> bool {
        self.open().remove(&id).is_some()
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Id, Member>> {
        // What is in it is whole at any time.
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
