//! What the updater reports: events on Services, from a bounded queue, and metrics.
//!
//! Invariant: reporting never waits. An event beyond the queue's bound is logged and dropped; metrics are counted from the
//! updater's own counters, each once.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, stream};
use headgate_clock::Clock;
use headgate_kubernetes::{ClusterEventRecorder, ServiceReference};
use headgate_local_pools::{Counters, EventReason, NamespacedName, ServiceEvent, Updater};
use tokio::sync::mpsc;

use super::metrics::Metrics;

/// As many as there may be Services with a failed update in one tick.
const MAX_EVENTS_QUEUED: usize = 10_000;
const MAX_CONCURRENT_EVENT_WRITES: usize = 8;

/// An event with the UID of its Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNotice {
    event: ServiceEvent,
    uid: String,
}

/// Reports for the updater of one term. Clones are the same reporter.
#[derive(Clone, Debug)]
pub struct Reporter {
    events: mpsc::Sender<ServiceNotice>,
    metrics: Metrics,
    clock: Clock,
    /// What the metrics have of the updater's counters.
    exported: Arc<Mutex<Counters>>,
}

impl Reporter {
    /// A reporter, and the queue of events for [`record_service_events`].
    #[must_use]
    pub fn new(metrics: Metrics, clock: Clock) -> (Self, mpsc::Receiver<ServiceNotice>) {
        let (events, queue) = mpsc::channel(MAX_EVENTS_QUEUED);
        let reporter = Self {
            events,
            metrics,
            clock,
            exported: Arc::default(),
        };
        (reporter, queue)
    }

    /// Queues events. A Service that was deleted in the meantime has none.
    pub fn report(&self, updater: &Updater, events: Vec<ServiceEvent>) {
        for event in events {
            let Some(uid) = updater.service_uid(&event.service) else {
                continue;
            };
            let (service, reason) = (event.service.to_string(), event.reason.as_str());
            if event.reason.is_warning() {
                tracing::warn!(service, reason, note = event.message, "local service pool event");
            } else {
                tracing::info!(service, reason, note = event.message, "local service pool event");
            }
            let uid = uid.to_owned();
            if self.events.try_send(ServiceNotice { event, uid }).is_err() {
                tracing::warn!(service, reason, "event dropped, the queue is full");
            }
        }
    }

    /// Reports that a Service's pool is not updated at all.
    pub fn report_skip(&self, updater: &Updater, service: &NamespacedName, reason: &str) {
        let event = ServiceEvent {
            service: service.clone(),
            reason: EventReason::Failed,
            message: format!("Backend pool update failed (non-retriable): {reason}."),
        };
        self.report(updater, vec![event]);
    }

    /// Brings the metrics and the shown queue to the present state of the updater.
    pub fn publish(&self, updater: &Updater) {
        let counters = updater.counters();
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.add(counters, *exported);
        *exported = counters;
        drop(exported);
        self.metrics.publish_queue(updater, self.clock.now());
    }
}

/// Records the events of the queue until all its senders are dropped.
pub async fn record_service_events(recorder: ClusterEventRecorder, mut queue: mpsc::Receiver<ServiceNotice>) {
    let events = stream::poll_fn(|context| queue.poll_recv(context));
    let record = |notice: ServiceNotice| {
        let recorder = recorder.clone();
        async move {
            let ServiceNotice { event, uid } = notice;
            let reference = ServiceReference {
                namespace: event.service.namespace(),
                name: event.service.name(),
                uid: &uid,
            };
            let (is_warning, reason) = (event.reason.is_warning(), event.reason.as_str());
            recorder
                .record_on_service(reference, is_warning, reason, event.message)
                .await;
        }
    };
    events.for_each_concurrent(MAX_CONCURRENT_EVENT_WRITES, record).await;
}
