//! The open connections of one listener: how many there may be, and how long each may wait.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::activity::{Activity, Phase};
use super::connection_limit::ConnectionLimit;
use super::metrics::{CloseReason, ListenerMetrics};
use super::proxy_protocol::ProxyProtocol;

/// The limits of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections. At the limit, the connection that has waited longest is closed for a new one.
    pub max_connections: usize,
    /// Time for a whole request, from its first byte or from the start of the connection.
    pub request_timeout: Duration,
    /// Time between two requests.
    pub idle_timeout: Duration,
    /// Time for the router's answer.
    pub answer_timeout: Duration,
    /// Time in which the peer must read some of what was written.
    pub write_timeout: Duration,
    /// Time for which a listener that closes still answers on open connections.
    pub linger_timeout: Duration,
    /// Whether a connection begins with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
}

impl Limits {
    /// For the health port, whose probers may keep a connection open for minutes.
    pub const HEALTH: Self = Self {
        // More probers than any load balancer has; about 10 KiB each at worst.
        max_connections: 1024,
        request_timeout: Duration::from_secs(15),
        idle_timeout: Duration::from_mins(2),
        answer_timeout: Duration::from_secs(5),
        write_timeout: Duration::from_secs(10),
        // Longer than most probe intervals, and well within a Pod's termination grace period of 30 s.
        linger_timeout: Duration::from_secs(10),
        proxy_protocol: ProxyProtocol::Disabled,
    };

    /// For the operations port and the probe socket, which serve a few scrapers and operators.
    pub const OPERATIONS: Self = Self {
        max_connections: 64,
        answer_timeout: Duration::from_secs(10),
        linger_timeout: Duration::ZERO,
        ..Self::HEALTH
    };
}

/// The open connections of a listener. It owns their tasks.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    shared_limit: ConnectionLimit,
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, Arc<Activity>)>,
    metrics: ListenerMetrics,
}

impl Connections {
    pub(super) fn new(limits: Limits, shared_limit: ConnectionLimit, metrics: ListenerMetrics) -> Self {
        Self {
            limits,
            shared_limit,
            tasks: JoinSet::new(),
            open: HashMap::new(),
            metrics,
        }
    }

    /// Starts the task of a new connection. If the listener's limit or the shared one is reached, the connection that
    /// has waited longest is closed first.
    pub(super) fn add<F>(&mut self, serve: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.open.len() >= self.limits.max_connections {
            let longest = self.open.iter().min_by_key(|(_, (_, activity))| activity.since());
            if let Some(id) = longest.map(|(id, _)| *id) {
                self.close(id, CloseReason::Evicted);
            }
        }
        self.shared_limit.make_room();
        let activity = Arc::new(Activity::new(self.shared_limit.origin()));
        let handle = self.tasks.spawn(serve(Arc::clone(&activity)));
        self.shared_limit
            .insert(handle.clone(), Arc::clone(&activity), self.metrics.clone());
        self.open.insert(handle.id(), (handle, activity));
        self.metrics.accepted.inc();
        self.update_gauge();
    }

    /// Closes the connection that has waited longest, of all listeners that share the limit.
    pub(super) fn evict(&mut self) {
        self.shared_limit.evict();
    }

    /// Closes every connection that has waited longer than its limit.
    pub(super) fn sweep(&mut self) {
        let (limits, now) = (self.limits, Instant::now());
        let late = |activity: &Activity| {
            let (limit, reason) = match activity.phase() {
                Phase::Idle => (limits.idle_timeout, CloseReason::Idle),
                Phase::Request => (limits.request_timeout, CloseReason::RequestTimeout),
                Phase::Answer => (limits.answer_timeout, CloseReason::AnswerTimeout),
                Phase::Write => (limits.write_timeout, CloseReason::WriteTimeout),
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
    pub(super) async fn join_next(&mut self) -> Result<(), JoinError> {
        match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => self.remove(id),
            Some(Err(error)) => {
                self.remove(error.id());
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

    /// Aborts the connections that are left.
    pub(super) async fn abort_all(&mut self) {
        self.tasks.shutdown().await;
        for (id, _) in self.open.drain() {
            self.shared_limit.remove(id);
        }
        self.update_gauge();
    }

    fn close(&mut self, id: Id, reason: CloseReason) {
        if let Some((handle, _)) = self.open.remove(&id) {
            handle.abort();
            // The shared limit has counted a connection that it evicted.
            if self.shared_limit.remove(id) {
                self.metrics.count_closed(reason);
            }
        }
        self.update_gauge();
    }

    fn remove(&mut self, id: Id) {
        self.open.remove(&id);
        self.shared_limit.remove(id);
        self.update_gauge();
    }

    fn update_gauge(&self) {
        self.metrics
            .connections
            .set(i64::try_from(self.open.len()).unwrap_or(i64::MAX));
    }
}
