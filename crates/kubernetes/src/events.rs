//! Kubernetes events, for people with `kubectl`: one queue for all of a process.
//!
//! Invariants: recording never waits. An event beyond the queue's bound is logged and dropped, and so is one that cannot be
//! written, after 10 s at the latest. An event that repeats one of the last six minutes counts that one up, and is none of its own. What an
//! event says is left to those who record it.

use headgate_core::telemetry::warn_if;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
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
const MAX_INSTANCE_BYTES: usize = 128;
/// Of the name of the object, in the name of an event: with a dot and 16 digits, 253 at most.
const MAX_NAME_BYTES: usize = 236;
/// How long after its last one an event is counted up.
const SERIES_TTL: Duration = Duration::from_mins(6);
/// The reporter of an agent, unless [`EventSink::reported_by`] sets another one.
pub const AGENT: &str = "headgate.dev/agent";
/// The reporter of what a leader does.
pub const CONTROLLER: &str = "headgate.dev/controller";

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
    pub const fn normal(reason: &'static str, action: &'static str) -> Self {
        Self {
            reason,
            action,
            is_warning: false,
        }
    }

    /// A kind of the type `Warning`.
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
    writer: Arc<Writer>,
    node_name: String,
    /// The component that reports, and the instance of it.
    controller: &'static str,
    instance: String,
    observer: Option<EventObserver>,
    is_merged: bool,
}

/// The events that wait to be written.
#[derive(Debug)]
pub struct EventQueue(mpsc::Receiver<QueuedEvent>);

struct Writer {
    client: Client,
    /// The events of the last minutes, by what they have in common.
    series: Mutex<HashMap<u64, Series>>,
}

/// An event that was written.
struct Series {
    name: String,
    count: i32,
    last_at: Timestamp,
}

struct QueuedEvent {
    event: Event,
    kind: EventKind,
    /// What it has in common with an event that it repeats.
    key: u64,
    writer: Arc<Writer>,
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
    /// A sink of the agent on `node_name`, and the queue of its events.
    pub fn new(client: Client, node_name: String) -> (Self, EventQueue) {
        let (sender, receiver) = mpsc::channel(MAX_EVENTS_QUEUED);
        let series = Mutex::default();
        let sink = Self {
            queue: sender,
            writer: Arc::new(Writer { client, series }),
            instance: node_name.clone(),
            node_name,
            controller: AGENT,
            observer: None,
            is_merged: false,
        };
        (sink, EventQueue(receiver))
    }

    /// The same sink for another component.
    #[must_use]
    pub fn reported_by(self, controller: &'static str) -> Self {
        Self { controller, ..self }
    }

    /// The same sink for the process in this pod. Without a pod its instance has the name of the node.
    #[must_use]
    pub fn in_pod(self, pod: Option<String>) -> Self {
        let instance = pod.unwrap_or(self.instance);
        Self { instance, ..self }
    }

    /// The same sink, which hands each event to `observer` as well.
    #[must_use]
    pub fn observed_by(self, observer: EventObserver) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// The same sink, for which an event repeats another one of the same kind about the same object whatever their notes: the first stays.
    #[must_use]
    pub fn merged(self) -> Self {
        Self {
            is_merged: true,
            ..self
        }
    }

    /// The Node of this process. `kubectl describe node` finds events by the Node's UID, and, as for kubelet's events, by its
    /// name where the UID is not known.
    pub fn own_node(&self, uid: Option<&str>) -> ObjectReference {
        node_reference(&self.node_name, uid.unwrap_or(&self.node_name))
    }

    /// Queues an event.
    pub fn record(&self, about: ObjectReference, kind: EventKind, note: impl Into<String>) {
        self.queue(self.event(about, None, kind, note.into()));
    }

    /// Queues an event about an object, because of another one.
    pub fn record_related(
        &self,
        about: ObjectReference,
        related: ObjectReference,
        kind: EventKind,
        note: impl Into<String>,
    ) {
        self.queue(self.event(about, Some(related), kind, note.into()));
    }

    fn queue(&self, event: QueuedEvent) {
        let reason = event.kind.reason;
        if self.queue.try_send(event).is_err() {
            tracing::warn!(reason, "event dropped: the queue is full");
        }
    }

    /// Writes an event now, for a process that is about to end.
    pub async fn write(&self, about: ObjectReference, kind: EventKind, note: impl Into<String>) {
        self.event(about, None, kind, note.into()).write().await;
    }

    fn event(
        &self,
        about: ObjectReference,
        related: Option<ObjectReference>,
        kind: EventKind,
        mut note: String,
    ) -> QueuedEvent {
        note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
        if let Some(observer) = &self.observer {
            observer(ObservedEvent {
                about: &about,
                kind,
                note: &note,
            });
        }
        let mut key = DefaultHasher::new();
        let note_in_key = Some(&note).filter(|_| !self.is_merged);
        (&about.kind, &about.namespace, &about.name, &about.uid).hash(&mut key);
        (self.controller, kind.reason, kind.action, kind.is_warning, note_in_key).hash(&mut key);
        let now = Timestamp::now();
        let instance = &self.instance[..self.instance.floor_char_boundary(MAX_INSTANCE_BYTES)];
        let name = about.name.as_deref().unwrap_or_default();
        let name = name[..name.floor_char_boundary(MAX_NAME_BYTES)].trim_end_matches(['-', '.']);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(if kind.is_warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(kind.reason.to_owned()),
            action: Some(kind.action.to_owned()),
            note: Some(note),
            regarding: Some(about),
            related,
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..Event::default()
        };
        QueuedEvent {
            event,
            kind,
            key: key.finish(),
            writer: Arc::clone(&self.writer),
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
        let reason = self.kind.reason;
        let about = self.event.regarding.as_ref();
        let kind = about.and_then(|about| about.kind.clone()).unwrap_or_default();
        match timeout(WRITE_TIMEOUT, self.publish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let is_refused = matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403));
                warn_if!(is_refused, reason, kind, %error, "event not written");
            }
            Err(_) => tracing::info!(reason, kind, timeout = ?WRITE_TIMEOUT, "event not written in time"),
        }
    }

    /// Creates the event, or counts up the one that it repeats.
    async fn publish(self) -> kube::Result<()> {
        let Self { event, key, writer, .. } = self;
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events = Api::<Event>::namespaced(writer.client.clone(), namespace);
        let now = Timestamp::now();
        if let Some((name, count)) = writer.repeated(key, now) {
            let series = json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
            match events
                .patch(&name, &PatchParams::default(), &Patch::Merge(series))
                .await
            {
                // It has expired.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                counted => return counted.map(|_| writer.remember(key, name, count, now)),
            }
        }
        events.create(&PostParams::default(), &event).await?;
        writer.remember(key, event.metadata.name.unwrap_or_default(), 1, now);
        Ok(())
    }
}

impl Writer {
    fn series(&self) -> MutexGuard<'_, HashMap<u64, Series>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the event that one with this key repeats, and how often it has happened now.
    fn repeated(&self, key: u64, now: Timestamp) -> Option<(String, i32)> {
        let mut series = self.series();
        series.retain(|_, one| now.duration_since(one.last_at).unsigned_abs() < SERIES_TTL);
        let repeated = series.get(&key)?;
        Some((repeated.name.clone(), repeated.count.saturating_add(1)))
    }

    fn remember(&self, key: u64, name: String, count: i32, last_at: Timestamp) {
        let series = Series { name, count, last_at };
        drop(self.series().insert(key, series));
    }
}

/// Identifies a Node in events; `kubectl describe` finds them by the UID.
pub fn node_reference(name: &str, uid: &str) -> ObjectReference {
    reference("Node", None, name, uid)
}

/// Identifies a Service in events.
pub fn service_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    reference("Service", Some(namespace), name, uid)
}

/// Identifies a pod in events.
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

#[cfg(test)]
mod tests {
    use headgate_test_kubernetes::FakeApi;
    use kube::api::ListParams;

    use super::*;

    const KIND: EventKind = EventKind::normal("Tested", "Test");

    #[tokio::test]
    async fn an_event_that_repeats_another_counts_it_up() {
        let client = FakeApi::default().client().0;
        let (sink, _queue) = EventSink::new(client.clone(), "n".repeat(253));
        let merged = sink.clone().merged().reported_by(CONTROLLER);
        let merged = merged.in_pod(Some("pod".to_owned()));
        let about = || node_reference(&"o".repeat(253), "u");
        for (sink, note) in [(&sink, "a"), (&sink, "b"), (&sink, "a"), (&merged, "a"), (&merged, "b")] {
            sink.write(about(), KIND, note).await;
        }
        let related = node_reference("m", "v");
        let event = sink.event(about(), Some(related.clone()), KIND, "c".to_owned());
        event.write().await;
        let events = Api::<Event>::namespaced(client, "default");
        let events = events.list(&ListParams::default()).await.unwrap();
        let seen = events.into_iter().map(|event| {
            assert!(event.metadata.name.unwrap().len() <= 253);
            let count = event.series.map(|series| series.count);
            let reporter = (event.reporting_controller.unwrap(), event.reporting_instance.unwrap());
            (event.note.unwrap(), count, reporter, event.related)
        });
        let mut seen: Vec<_> = seen.collect();
        seen.sort_by_key(|(note, count, reporter, _)| (reporter.clone(), note.clone(), *count));
        let of = |controller: &str, instance: &str| (controller.to_owned(), instance.to_owned());
        let (agent, controller) = (of(AGENT, &"n".repeat(128)), of(CONTROLLER, "pod"));
        let expected = [
            ("a".to_owned(), Some(2), agent.clone(), None),
            ("b".to_owned(), None, agent.clone(), None),
            ("c".to_owned(), None, agent, Some(related)),
            ("a".to_owned(), Some(2), controller, None),
        ];
        assert_eq!(seen, expected);
    }
}
