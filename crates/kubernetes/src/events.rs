//! Kubernetes events, for people with `kubectl`: one queue for all of a process.
//!
//! Invariant: recording never waits. An event beyond the queue's bound is logged and dropped, and so is one that cannot be
//! written, after 10 s at the latest. What an event says is left to those who record it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Two for each of 5,000 Nodes.
const MAX_EVENTS_QUEUED: usize = 10_000;
const MAX_CONCURRENT_WRITES: usize = 8;
/// Limit of writing one event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// For what is queued at the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// What the API server accepts.
const MAX_NOTE_BYTES: usize = 1024;

/// What an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind {
    /// The machine-readable reason, in `PascalCase`.
    pub reason: &'static str,
    /// What headgate did or could not do, in `PascalCase`.
    pub action: &'static str,
    /// Whether the type of the event is `Warning`.
    pub is_warning: bool,
}

impl EventKind {
    /// A kind of the type `Normal`.
    #[must_use]
    pub const fn normal(reason: &'static str, action: &'static str) -> Self {
        Self {
            reason,
            action,
            is_warning: false,
        }
    }

    /// A kind of the type `Warning`.
    #[must_use]
    pub const fn warning(reason: &'static str, action: &'static str) -> Self {
        Self {
            reason,
            action,
            is_warning: true,
        }
    }
}

/// An event as an observer gets it.
#[derive(Clone, Copy, Debug)]
pub struct ObservedEvent<'a> {
    /// The object that the event is about.
    pub about: &'a ObjectReference,
    /// What it reports.
    pub kind: EventKind,
    /// The sentence for operators.
    pub note: &'a str,
}

/// Gets each event before it is written. It must not block.
pub type EventObserver = Arc<dyn Fn(ObservedEvent<'_>) + Send + Sync>;

/// Records the events of a process. Clones share the queue.
#[derive(Clone)]
pub struct EventSink {
    queue: mpsc::Sender<QueuedEvent>,
    writer: Writer,
    observer: Option<EventObserver>,
    is_merged: bool,
}

/// The events that wait to be written.
#[derive(Debug)]
pub struct EventQueue(mpsc::Receiver<QueuedEvent>);

#[derive(Clone)]
struct Writer {
    client: Client,
    reporter: Reporter,
    /// For events that are merged; each other one has a recorder of its own.
    recorder: Recorder,
}

struct QueuedEvent {
    about: ObjectReference,
    kind: EventKind,
    note: String,
    is_merged: bool,
    writer: Writer,
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}

impl fmt::Debug for QueuedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedEvent")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl EventSink {
    /// A sink of the process on `node_name`, and the queue of its events. Each event keeps its own note.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> (Self, EventQueue) {
        let (sender, receiver) = mpsc::channel(MAX_EVENTS_QUEUED);
        let reporter = Reporter {
            controller: "headgate".to_owned(),
            instance: Some(node_name),
        };
        let sink = Self {
            queue: sender,
            writer: Writer {
                recorder: Recorder::new(client.clone(), reporter.clone()),
                client,
                reporter,
            },
            observer: None,
            is_merged: false,
        };
        (sink, EventQueue(receiver))
    }

    /// The same sink, which hands each event to `observer` as well.
    #[must_use]
    pub fn observed_by(self, observer: EventObserver) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// The same sink, which merges events of one kind about one object: within six minutes they are a series with the note of the
    /// first one.
    #[must_use]
    pub fn merged(self) -> Self {
        Self {
            is_merged: true,
            ..self
        }
    }

    /// The Node of this process. `kubectl describe node` finds events by the Node's UID, and, as for kubelet's events, by its
    /// name where the UID is not known.
    #[must_use]
    pub fn own_node(&self, uid: Option<&str>) -> ObjectReference {
        let name = self.writer.reporter.instance.as_deref().unwrap_or_default();
        node_reference(name, uid.unwrap_or(name))
    }

    /// Queues an event.
    pub fn record(&self, about: ObjectReference, kind: EventKind, note: impl Into<String>) {
        if self.queue.try_send(self.event(about, kind, note.into())).is_err() {
            tracing::warn!(reason = kind.reason, "event dropped, the queue is full");
        }
    }

    /// Writes an event now, for a process that is about to end.
    pub async fn write(&self, about: ObjectReference, kind: EventKind, note: impl Into<String>) {
        self.event(about, kind, note.into()).write().await;
    }

    fn event(&self, about: ObjectReference, kind: EventKind, mut note: String) -> QueuedEvent {
        note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
        if let Some(observer) = &self.observer {
            observer(ObservedEvent {
                about: &about,
                kind,
                note: &note,
            });
        }
        QueuedEvent {
            about,
            kind,
            note,
            is_merged: self.is_merged,
            writer: self.writer.clone(),
        }
    }
}

impl EventQueue {
    /// Writes the events until all sinks are dropped, or `stop` is ready. What is queued then is written within a second.
    pub async fn write_until(mut self, stop: impl Future<Output = ()>) {
        let events = stream::poll_fn(|context| self.0.poll_recv(context));
        let mut write = std::pin::pin!(events.for_each_concurrent(MAX_CONCURRENT_WRITES, QueuedEvent::write));
        tokio::select! {
            () = &mut write => {}
            () = stop => drop(timeout(SHUTDOWN_TIMEOUT, write).await),
        }
    }
}

impl QueuedEvent {
    async fn write(self) {
        let Self {
            about,
            kind: EventKind {
                reason,
                action,
                is_warning,
            },
            note,
            is_merged,
            writer,
        } = self;
        let event = Event {
            type_: if is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let recorder = if is_merged {
            writer.recorder
        } else {
            Recorder::new(writer.client, writer.reporter)
        };
        let kind = about.kind.as_deref().unwrap_or_default();
        match timeout(WRITE_TIMEOUT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(reason, kind, %error, "event not written"),
            Err(_) => tracing::warn!(reason, kind, timeout = ?WRITE_TIMEOUT, "event not written in time"),
        }
    }
}

/// Identifies a Node in events; `kubectl describe` finds them by the UID.
#[must_use]
pub fn node_reference(name: &str, uid: &str) -> ObjectReference {
    reference("Node", None, name, uid)
}

/// Identifies a Service in events.
#[must_use]
pub fn service_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    reference("Service", Some(namespace), name, uid)
}

/// Identifies a pod in events.
#[must_use]
pub fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    reference("Pod", Some(namespace), name, uid)
}

fn reference(kind: &str, namespace: Option<&str>, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
