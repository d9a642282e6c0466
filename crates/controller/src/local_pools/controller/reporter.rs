//! What the updater reports: events on Services, and metrics.
//!
//! Invariant: reporting never waits. Metrics are counted from the updater's own counters, each once.

use std::sync::{Arc, Mutex, PoisonError};

use headgate_core::clock::Clock;
use headgate_core::telemetry::warn_if;
use headgate_kubernetes::{EventKind, EventSink, service_reference};

use super::metrics::Metrics;
use headgate_core::service::NamespacedName;

use crate::local_pools::{Counters, EventReason, ServiceEvent, Updater};

/// What headgate does, in events.
const ACTION: &str = "UpdateLoadBalancer";

/// Reports for the updater of one term. Clones are the same reporter.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    events: EventSink,
    metrics: Metrics,
    clock: Clock,
    /// What the metrics have of the updater's counters.
    exported: Arc<Mutex<Counters>>,
}

impl Reporter {
    /// A reporter that records events in `events`.
    pub(crate) fn new(events: EventSink, metrics: Metrics, clock: Clock) -> Self {
        Self {
            events,
            metrics,
            clock,
            exported: Arc::default(),
        }
    }

    /// Queues events. A Service that was deleted in the meantime has none.
    pub(crate) fn report(&self, updater: &Updater, events: impl IntoIterator<Item = ServiceEvent>) {
        for event in events {
            let Some(uid) = updater.service_uid(&event.service) else {
                continue;
            };
            let kind = EventKind {
                reason: event.reason.as_str(),
                action: ACTION,
                is_warning: event.reason.is_warning(),
            };
            let (service, reason) = (event.service.to_string(), kind.reason);
            warn_if!(
                kind.is_warning,
                service,
                reason,
                note = event.message,
                "event recorded on the Service"
            );
            let about = service_reference(event.service.namespace(), event.service.name(), uid);
            self.events.record(about, kind, event.message);
        }
    }

    /// Reports that a Service's pool is not updated at all.
    pub(crate) fn report_skip(&self, updater: &Updater, service: &NamespacedName, reason: &str) {
        let event = ServiceEvent {
            service: service.clone(),
            reason: EventReason::Failed,
            message: format!("Backend pool update failed (non-retriable): {reason}."),
        };
        self.report(updater, [event]);
    }

    /// Brings the metrics and the shown queue to the present state of the updater.
    pub(crate) fn publish(&self, updater: &Updater) {
        let counters = updater.counters();
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.add(counters, *exported);
        *exported = counters;
        drop(exported);
        self.metrics.publish_queue(updater, self.clock.now());
    }
}
