//! A subscriber whose output waits, as standard error does while its pipe is full.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::recorded_spans::OTHER_SUBSCRIBERS;

struct BlockedLogs(Mutex<Receiver<()>>);

/// The subscriber. Each event waits until the sender is dropped.
pub fn blocked_logs() -> (impl Subscriber + Send + Sync, Sender<()>) {
    LazyLock::force(&OTHER_SUBSCRIBERS);
    let (sender, blocked) = channel();
    (BlockedLogs(Mutex::new(blocked)), sender)
}

impl Subscriber for BlockedLogs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let blocked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Its error is the end of the wait.
        let _ = blocked.recv();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
