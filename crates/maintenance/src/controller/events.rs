//! Events about maintenances and Nodes, in a bounded queue of their own: a slow answer delays no maintenance.

use headgate_kubernetes::ClusterEventRecorder;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Resource;
use tokio::sync::mpsc;

use crate::api::NodeMaintenance;
use crate::evacuation::annotations::parse_evacuators;
use crate::snapshot::PodFacts;

/// Events that wait to be written; further ones are dropped and logged.
const MAX_EVENTS_QUEUED: usize = 1000;
/// The API server accepts 1,024 bytes.
const MAX_NOTE_BYTES: usize = 1000;
/// The reason of the event about annotations of a pod that register no evacuator.
const MALFORMED_ANNOTATION: &str = "EvacuatorAnnotationMalformed";
/// What headgate does, in events.
const ACTION: &str = "MaintainNode";

/// An event to write.
#[derive(Debug)]
pub(super) struct QueuedEvent {
    about: ObjectReference,
    is_warning: bool,
    reason: &'static str,
    note: String,
}

/// Where events are queued.
#[derive(Clone)]
pub(super) struct EventQueue(mpsc::Sender<QueuedEvent>);

impl EventQueue {
    pub(super) fn new() -> (Self, mpsc::Receiver<QueuedEvent>) {
        let (sender, receiver) = mpsc::channel(MAX_EVENTS_QUEUED);
        (Self(sender), receiver)
    }

    /// Queues an event about a maintenance.
    pub(super) fn about_maintenance(
        &self,
        object: &NodeMaintenance,
        is_warning: bool,
        reason: &'static str,
        note: &str,
    ) {
        self.queue(object.object_ref(&()), is_warning, reason, note);
    }

    /// Queues an event about a Node.
    pub(super) fn about_node(&self, name: &str, uid: &str, is_warning: bool, reason: &'static str, note: &str) {
        let about = ObjectReference {
            api_version: Some(Node::api_version(&()).into_owned()),
            kind: Some(Node::kind(&()).into_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.queue(about, is_warning, reason, note);
    }

    /// Queues one event about a pod whose annotations register no evacuator although they should, if any.
    pub(super) fn malformed_annotations(&self, pod: &PodFacts) {
        let mistakes = parse_evacuators(&pod.evacuators).mistakes;
        if mistakes.is_empty() {
            return;
        }
        let about = ObjectReference {
            api_version: Some(Pod::api_version(&()).into_owned()),
            kind: Some(Pod::kind(&()).into_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        let mistakes: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        self.queue(about, true, MALFORMED_ANNOTATION, &mistakes.join("; "));
    }

    fn queue(&self, about: ObjectReference, is_warning: bool, reason: &'static str, note: &str) {
        let name = about.name.as_deref().unwrap_or_default();
        if is_warning {
            tracing::warn!(name, reason, note, "maintenance event");
        } else {
            tracing::info!(name, reason, note, "maintenance event");
        }
        let event = QueuedEvent {
            note: note[..note.floor_char_boundary(MAX_NOTE_BYTES)].to_owned(),
            about,
            is_warning,
            reason,
        };
        if self.0.try_send(event).is_err() {
            tracing::warn!(reason, "event dropped, the queue is full");
        }
    }
}

/// Writes queued events. Ends when the loops that queue them have ended.
pub(super) async fn record(recorder: ClusterEventRecorder, mut queue: mpsc::Receiver<QueuedEvent>) {
    while let Some(event) = queue.recv().await {
        let QueuedEvent {
            about,
            is_warning,
            reason,
            note,
        } = event;
        recorder.record_about(&about, is_warning, reason, ACTION, note).await;
    }
}
