//! The connections of one listener, among those of a crowd of listeners: how many there may be, and how long each
//! may wait.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::activity::{Activity, Phase};
use super::crowd::Crowd;
use super::metrics::ListenerMetrics;
use super::proxy_protocol::ProxyProtocol;

/// What peers are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once; one more closes the one that has waited longest.
    pub connections: usize,
    /// Time for a whole request, from its first byte, or from the start of the connection.
    pub request: Duration,
    /// Time between requests.
    pub idle: Duration,
    /// Time for our own answer.
    pub answer: Duration,
    /// Time in which a peer must read something of what was written to it.
    pub write: Duration,
    /// Time for which a closing listener goes on answering on connections that are already open.
    pub linger: Duration,
    /// Whether a connection begins with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
}

impl Limits {
    /// Limits of the health port: probers may keep a connection for minutes, and are let finish.
    pub const HEALTH: Self = Self {
        // More probers than any load balancer has; some 10 KiB each at the worst.
        connections: 1024,
        request: Duration::from_secs(15),
        idle: Duration::from_mins(2),
        answer: Duration::from_secs(5),
        write: Duration::from_secs(10),
        // Longer than most probe intervals, well within a Pod's grace period of 30 s.
        linger: Duration::from_secs(10),
        proxy_protocol: ProxyProtocol::Off,
    };

    /// Limits of the operations port and the probe socket: a few scrapers and people.
    pub const OPERATIONS: Self = Self {
        connections: 64,
        answer: Duration::from_secs(10),
        linger: Duration::ZERO,
        ..Self::HEALTH
    };
}

/// The open connections; their tasks are owned here.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    crowd: Crowd,
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, Arc<Activity>)>,
    metrics: ListenerMetrics,
}

impl Connections {
    pub(super) fn new(limits: Limits, crowd: Crowd, metrics: ListenerMetrics) -> Self {
        Self {
            limits,
            crowd,
            tasks: JoinSet::new(),
            open: HashMap::new(),
            metrics,
        }
    }

    /// Takes one more, closing the one that has waited longest where there are too many, of this listener or of all.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.open.len() >= self.limits.connections {
            let longest = self.open.iter().min_by_key(|(_, (_, activity))| activity.since());
            if let Some(id) = longest.map(|(id, _)| *id) {
                self.close(id, "evicted");
            }
        }
        self.crowd.make_room();
        let activity = Arc::new(Activity::new(self.crowd.origin()));
        let handle = self.tasks.spawn(serve(Arc::clone(&activity)));
        self.crowd
            .enter(handle.clone(), Arc::clone(&activity), self.metrics.clone());
        self.open.insert(handle.id(), (handle, activity));
        self.metrics.accepted.inc();
        self.count();
    }

    /// Closes the connection that has waited longest, of whichever listener.
    pub(super) fn evict(&mut self) {
        self.crowd.evict();
    }

    /// Closes every connection that has waited longer than it may.
    pub(super) fn sweep(&mut self) {
        let (limits, now) = (self.limits, Instant::now());
        let late = |activity: &Activity| {
            let (limit, reason) = match activity.phase() {
                Phase::Idle => (limits.idle, "idle"),
                Phase::Request => (limits.request, "request-timeout"),
                Phase::Answer => (limits.answer, "answer-timeout"),
                Phase::Write => (limits.write, "write-timeout"),
            };
            (activity.waiting(now) >= limit).then_some(reason)
        };
        let late: Vec<_> = self
            .open
            .iter()
            .filter_map(|(id, (_, activity))| Some((*id, late(activity)?)))
            .collect();
        for (id, reason) in late {
            self.close(id, reason);
        }
    }

    /// Waits for a connection to end; for ever while there is none.
    ///
    /// # Errors
    /// When its task panicked.
    pub(super) async fn ended(&mut self) -> Result<(), JoinError> {
        match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => self.forget(id),
            Some(Err(error)) => {
                self.forget(error.id());
                if error.is_panic() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Ends all that are left.
    pub(super) async fn abort(&mut self) {
        self.tasks.shutdown().await;
        for (id, _) in self.open.drain() {
            self.crowd.leave(id);
        }
        self.count();
    }

    fn close(&mut self, id: Id, reason: &str) {
        if let Some((handle, _)) = self.open.remove(&id) {
            handle.abort();
            // One that the crowd has closed is counted there.
            if self.crowd.leave(id) {
                self.metrics.closed(reason);
            }
        }
        self.count();
    }

    fn forget(&mut self, id: Id) {
        self.open.remove(&id);
        self.crowd.leave(id);
        self.count();
    }

    fn count(&self) {
        self.metrics
            .connections
            .set(i64::try_from(self.open.len()).unwrap_or(i64::MAX));
    }
}
