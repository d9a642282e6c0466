//! What is reported of one watch: its errors and their end, when it was verified, and the objects that it skips.

use headgate_core::clock::Clock;
use headgate_core::telemetry::warn_if;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::{WatchErrorCounter, WatchErrorReason, WatchFailure};
use super::undecodable_objects::{Skipping, UndecodableObjects};
use crate::EventSink;

/// Reports the errors of one watch and their end.
#[derive(Debug)]
pub struct WatchReporter {
    resource: &'static str,
    name: Option<String>,
    errors: WatchErrorCounter,
    clock: Clock,
    failure: watch::Sender<Option<WatchFailure>>,
    verified_at: watch::Sender<Instant>,
    undecodable: watch::Sender<UndecodableObjects>,
    events: Option<EventSink>,
}

impl WatchReporter {
    /// A reporter for the watch of `resource`, the plural name in the API such as `nodes`; it counts in `errors`.
    pub fn new(resource: &'static str, errors: WatchErrorCounter, clock: Clock) -> Self {
        Self {
            resource,
            name: None,
            errors,
            clock,
            failure: watch::Sender::new(None),
            verified_at: watch::Sender::new(Instant::now()),
            undecodable: watch::Sender::default(),
            events: None,
        }
    }

    /// The same, which records an event, where it has a recorder, about each object that cannot be decoded.
    #[must_use]
    pub fn with_events(self, events: Option<EventSink>) -> Self {
        Self { events, ..self }
    }

    /// The objects that exist, cannot be decoded, and are skipped.
    pub fn undecodable(&self) -> watch::Receiver<UndecodableObjects> {
        self.undecodable.subscribe()
    }

    pub(super) fn skipping(&self, kind: String) -> Skipping {
        Skipping::new(self.resource, kind, self.undecodable.clone(), self.events.clone())
    }

    /// The same for the watch of the one object `name`, which logs then include.
    #[must_use]
    pub fn for_object(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    /// The current failure; `None` while the watch works.
    pub fn failure(&self) -> watch::Receiver<Option<WatchFailure>> {
        self.failure.subscribe()
    }

    /// When the API server confirmed last that the consumer's state is current; at first, when the reporter was made. A watch
    /// without changes is confirmed at the start of each of its periods.
    pub fn verified_at(&self) -> watch::Receiver<Instant> {
        self.verified_at.subscribe()
    }

    pub(super) fn verified(&self) {
        self.verified_at.send_replace(Instant::now());
    }

    pub(super) fn failed(&self, error: &watcher::Error) -> WatchErrorReason {
        let reason = WatchErrorReason::from(error);
        self.errors.increment(reason);
        let is_known = |failure: &WatchFailure| failure.reason == reason;
        // A watch expires as usual; a list does where its pages take longer than etcd keeps its version.
        let is_usual = reason == WatchErrorReason::Expired && !matches!(error, watcher::Error::InitialListFailed(_));
        if is_usual || self.failure.borrow().as_ref().is_some_and(is_known) {
            return reason;
        }
        let error = headgate_core::telemetry::error_chain(error);
        warn_if!(
            !reason.is_outage(),
            resource = self.resource,
            name = self.name,
            reason = reason.as_str(),
            error,
            "watch failed; the last known state stays in use"
        );
        let since = self.clock.now().wall;
        self.failure.send_replace(Some(WatchFailure { reason, error, since }));
        reason
    }

    pub(super) fn succeeded(&self) {
        if self.failure.send_if_modified(|failure| failure.take().is_some()) {
            tracing::info!(resource = self.resource, name = self.name, "watch recovered");
        }
    }
}
