//! Kubernetes events about the own Node, written without holding anybody up.
//!
//! Events are for people with `kubectl`; one that cannot be written is logged and dropped.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::time::timeout;

/// How long writing one event may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A warning about the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Why, in `PascalCase`.
    pub reason: &'static str,
    /// What was being done.
    pub action: &'static str,
    /// A sentence for people.
    pub note: String,
}

/// Writes events about one Node.
#[derive(Clone)]
pub struct NodeEvents {
    recorder: Recorder,
    node_name: String,
}

impl NodeEvents {
    /// A writer of events about `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> Self {
        let reporter = Reporter {
            controller: "headgate".to_owned(),
            instance: Some(node_name.clone()),
        };
        Self {
            recorder: Recorder::new(client, reporter),
            node_name,
        }
    }

    /// Writes a warning. `uid` is the Node's where it is known; `kubectl describe node` looks events up
    /// by it, and takes the Node's name where nothing better is there, as kubelet's events do.
    pub async fn warn(&self, event: NodeEvent, uid: Option<String>) {
        let node = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node_name.clone()),
            uid: Some(uid.unwrap_or_else(|| self.node_name.clone())),
            ..ObjectReference::default()
        };
        let reason = event.reason;
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(event.note),
            action: event.action.to_owned(),
            secondary: None,
        };
        match timeout(WRITE_TIMEOUT, self.recorder.publish(&event, &node)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(reason, %error, "an event about the Node could not be written"),
            Err(_) => tracing::warn!(reason, "an event about the Node was not accepted in time"),
        }
    }
}
