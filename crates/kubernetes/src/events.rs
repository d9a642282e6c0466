//! Kubernetes events about Nodes and about Services on the own one, written without holding anybody up.
//!
//! Events are for people with `kubectl`; one that cannot be written is logged and dropped.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::timeout;

/// How long writing one event may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarningEvent {
    /// Why, in `PascalCase`.
    pub reason: &'static str,
    /// What was being done.
    pub action: &'static str,
    /// A sentence for people.
    pub note: String,
}

/// The Service that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct ServiceReference<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID, by which `kubectl describe` finds the event.
    pub uid: &'a str,
}

/// Any Node that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct NodeReference<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID, by which `kubectl describe` finds the event.
    pub uid: &'a str,
}

/// Writes events about any Node, for whoever looks after all of them.
#[derive(Clone)]
pub struct ClusterEventRecorder {
    client: Client,
    node_name: String,
}

impl ClusterEventRecorder {
    /// A writer of events that runs on `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> Self {
        Self { client, node_name }
    }

    /// Writes a warning about a Node.
    pub async fn record_warning(&self, about: NodeReference<'_>, reason: &'static str, note: String) {
        self.write(EventType::Warning, about, reason, note).await;
    }

    /// Writes what went well with a Node.
    pub async fn record_normal(&self, about: NodeReference<'_>, reason: &'static str, note: String) {
        self.write(EventType::Normal, about, reason, note).await;
    }

    async fn write(&self, type_: EventType, about: NodeReference<'_>, reason: &'static str, note: String) {
        let event = WarningEvent {
            reason,
            action: "UpdateLoadBalancer",
            note,
        };
        // A recorder makes what it wrote within six minutes a series under the first one's note, and each of these has
        // its own.
        let recorder = recorder(self.client.clone(), self.node_name.clone());
        publish(&recorder, type_, event, &about_node(about.name, about.uid)).await;
    }
}

fn recorder(client: Client, node_name: String) -> Recorder {
    let reporter = Reporter {
        controller: "headgate".to_owned(),
        instance: Some(node_name),
    };
    Recorder::new(client, reporter)
}

fn about_node(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

async fn publish(recorder: &Recorder, type_: EventType, event: WarningEvent, about: &ObjectReference) {
    let (reason, kind) = (event.reason, about.kind.as_deref().unwrap_or_default());
    let event = Event {
        type_,
        reason: reason.to_owned(),
        note: Some(event.note),
        action: event.action.to_owned(),
        secondary: None,
    };
    match timeout(WRITE_TIMEOUT, recorder.publish(&event, about)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(reason, %error, "an event about the {kind} could not be written"),
        Err(_) => tracing::warn!(reason, "an event about the {kind} was not accepted in time"),
    }
}

/// Writes events about one Node.
#[derive(Clone)]
pub struct NodeEventRecorder {
    recorder: Recorder,
    node_name: String,
}

impl NodeEventRecorder {
    /// A writer of events about `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> Self {
        Self {
            recorder: recorder(client, node_name.clone()),
            node_name,
        }
    }

    /// Writes a warning. `uid` is the Node's where it is known; `kubectl describe node` looks events up
    /// by it, and takes the Node's name where nothing better is there, as kubelet's events do.
    pub async fn record_warning(&self, event: WarningEvent, uid: Option<String>) {
        let uid = uid.unwrap_or_else(|| self.node_name.clone());
        let node = about_node(&self.node_name, &uid);
        publish(&self.recorder, EventType::Warning, event, &node).await;
    }

    /// Writes a warning about a Service, as seen from this node.
    pub async fn record_service_warning(&self, event: WarningEvent, service: ServiceReference<'_>) {
        let service = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(service.namespace.to_owned()),
            name: Some(service.name.to_owned()),
            uid: Some(service.uid.to_owned()),
            ..ObjectReference::default()
        };
        publish(&self.recorder, EventType::Warning, event, &service).await;
    }
}
