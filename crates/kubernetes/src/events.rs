//! Kubernetes events about Nodes, and about Services as seen from the own node.
//!
//! Events are for people with `kubectl`. Invariant: an event that cannot be written is logged and dropped, after 10 s at the
//! latest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::timeout;

/// Limit of writing one event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The content of a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarningEvent {
    /// The machine-readable reason, in `PascalCase`.
    pub reason: &'static str,
    /// What headgate did, in `PascalCase`.
    pub action: &'static str,
    /// A sentence for operators.
    pub note: String,
}

/// Identifies the Service that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct ServiceReference<'a> {
    /// The namespace of the Service.
    pub namespace: &'a str,
    /// The name of the Service.
    pub name: &'a str,
    /// The UID of the Service, by which `kubectl describe` finds the event.
    pub uid: &'a str,
}

/// Identifies the Node that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct NodeReference<'a> {
    /// The name of the Node.
    pub name: &'a str,
    /// The UID of the Node, by which `kubectl describe` finds the event.
    pub uid: &'a str,
}

/// An event of the leader's, as an observer gets it.
#[derive(Clone, Copy, Debug)]
pub struct ObservedEvent<'a> {
    /// The kind of the object that the event is about.
    pub kind: &'a str,
    /// The namespace of the object; empty for a Node.
    pub namespace: &'a str,
    /// The name of the object.
    pub name: &'a str,
    /// Whether its type is `Warning`.
    pub is_warning: bool,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The sentence for operators.
    pub note: &'a str,
}

/// Gets each event before it is written. It must not block.
pub type EventObserver = Arc<dyn Fn(ObservedEvent<'_>) + Send + Sync>;

/// Records events about any Node or Service, for the leader.
#[derive(Clone)]
pub struct ClusterEventRecorder {
    client: Client,
    node_name: String,
    observer: Option<EventObserver>,
}

impl fmt::Debug for ClusterEventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterEventRecorder")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl ClusterEventRecorder {
    /// A recorder of the process on `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> Self {
        Self {
            client,
            node_name,
            observer: None,
        }
    }

    /// The same recorder, which hands each event to `observer` as well.
    #[must_use]
    pub fn observed_by(self, observer: EventObserver) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// Records an event of type `Warning`.
    pub async fn record_warning(&self, about: NodeReference<'_>, reason: &'static str, note: String) {
        self.record(EventType::Warning, about, reason, note).await;
    }

    /// Records an event of type `Normal`.
    pub async fn record_normal(&self, about: NodeReference<'_>, reason: &'static str, note: String) {
        self.record(EventType::Normal, about, reason, note).await;
    }

    /// Records an event about a Service.
    pub async fn record_on_service(
        &self,
        about: ServiceReference<'_>,
        is_warning: bool,
        reason: &'static str,
        note: String,
    ) {
        let type_ = if is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        let event = event(type_, reason, "UpdateLoadBalancer", note);
        self.publish(&event, is_warning, reason, &service_reference(about))
            .await;
    }

    /// Records an event about any object; `action` says what headgate does.
    pub async fn record_about(
        &self,
        about: &ObjectReference,
        is_warning: bool,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let type_ = if is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        self.publish(&event(type_, reason, action, note), is_warning, reason, about)
            .await;
    }

    async fn record(&self, type_: EventType, about: NodeReference<'_>, reason: &'static str, note: String) {
        let is_warning = matches!(type_, EventType::Warning);
        let event = event(type_, reason, "UpdateLoadBalancer", note);
        self.publish(&event, is_warning, reason, &node_reference(about.name, about.uid))
            .await;
    }

    async fn publish(&self, event: &Event, is_warning: bool, reason: &'static str, about: &ObjectReference) {
        if let Some(observer) = &self.observer {
            observer(ObservedEvent {
                kind: about.kind.as_deref().unwrap_or_default(),
                namespace: about.namespace.as_deref().unwrap_or_default(),
                name: about.name.as_deref().unwrap_or_default(),
                is_warning,
                reason,
                note: event.note.as_deref().unwrap_or_default(),
            });
        }
        // A recorder merges equal events within six minutes into a series with the note of the first one. Here each event has
        // a note of its own, so each has a recorder.
        let recorder = recorder(self.client.clone(), self.node_name.clone());
        publish(&recorder, event, about).await;
    }
}

/// Records warnings about the own Node and about Services as seen from it.
#[derive(Clone)]
pub struct NodeEventRecorder {
    recorder: Recorder,
    node_name: String,
}

impl NodeEventRecorder {
    /// A recorder for the Node `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> Self {
        Self {
            recorder: recorder(client, node_name.clone()),
            node_name,
        }
    }

    /// Records a warning about the Node. `kubectl describe node` finds events by the Node's UID, and, as for kubelet's events,
    /// by its name where the UID is not known.
    pub async fn record_warning(&self, event: WarningEvent, uid: Option<String>) {
        let uid = uid.unwrap_or_else(|| self.node_name.clone());
        let node = node_reference(&self.node_name, &uid);
        publish(&self.recorder, &warning(event), &node).await;
    }

    /// Records a warning about a Service.
    pub async fn record_service_warning(&self, event: WarningEvent, service: ServiceReference<'_>) {
        publish(&self.recorder, &warning(event), &service_reference(service)).await;
    }
}

fn recorder(client: Client, node_name: String) -> Recorder {
    let reporter = Reporter {
        controller: "headgate".to_owned(),
        instance: Some(node_name),
    };
    Recorder::new(client, reporter)
}

fn node_reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

fn service_reference(service: ServiceReference<'_>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(service.namespace.to_owned()),
        name: Some(service.name.to_owned()),
        uid: Some(service.uid.to_owned()),
        ..ObjectReference::default()
    }
}

fn warning(content: WarningEvent) -> Event {
    event(EventType::Warning, content.reason, content.action, content.note)
}

fn event(type_: EventType, reason: &str, action: &str, note: String) -> Event {
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note),
        action: action.to_owned(),
        secondary: None,
    }
}

async fn publish(recorder: &Recorder, event: &Event, about: &ObjectReference) {
    let (reason, kind) = (&event.reason, about.kind.as_deref().unwrap_or_default());
    match timeout(WRITE_TIMEOUT, recorder.publish(event, about)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(reason, kind, %error, "event not written"),
        Err(_) => tracing::warn!(reason, kind, timeout = ?WRITE_TIMEOUT, "event not written in time"),
    }
}
