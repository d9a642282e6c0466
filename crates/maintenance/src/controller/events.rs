//! Events about maintenances, Nodes and pods.

use headgate_core::telemetry::warn_if;
use headgate_kubernetes::{EventKind, EventSink, node_reference, pod_reference};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;

use super::grace_periods::GracePeriodCut;
use crate::api::NodeMaintenance;
use crate::evacuation::annotations::parse_evacuators;
use crate::snapshot::PodFacts;

/// Annotations of a pod register no evacuator.
const MALFORMED_ANNOTATION: EventKind = EventKind::warning("EvacuatorAnnotationMalformed", "ReadAnnotations");
/// A pod gets less time to end than it asks for.
const GRACE_PERIOD_CUT: EventKind = EventKind::warning("GracePeriodCut", "EvictPod");
/// The rollout of a Deployment was restarted.
const ROLLOUT_RESTARTED: EventKind = EventKind::normal("RolloutRestarted", "RestartRollout");
/// What headgate does in the events about maintenances and their Nodes.
pub(super) const MAINTAIN_NODE: &str = "MaintainNode";

/// Where events are queued.
#[derive(Clone)]
pub(super) struct MaintenanceEvents(EventSink);

impl MaintenanceEvents {
    pub(super) fn new(sink: EventSink) -> Self {
        Self(sink)
    }

    /// Queues an event about a maintenance.
    pub(super) fn about_maintenance(&self, object: &NodeMaintenance, kind: EventKind, note: &str) {
        self.queue(object.object_ref(&()), None, kind, note);
    }

    /// Queues an event about a Node of a maintenance.
    pub(super) fn about_maintained_node(
        &self,
        object: &NodeMaintenance,
        (name, uid): (&str, &str),
        kind: EventKind,
        note: &str,
    ) {
        self.queue(node_reference(name, uid), Some(object.object_ref(&())), kind, note);
    }

    /// Queues an event about a Node.
    pub(super) fn about_node(&self, name: &str, uid: &str, kind: EventKind, note: &str) {
        self.queue(node_reference(name, uid), None, kind, note);
    }

    /// Queues one event about a pod whose annotations register no evacuator although they should, if any.
    pub(super) fn malformed_annotations(&self, pod: &PodFacts) {
        let Some(note) = parse_evacuators(&pod.evacuators).note() else {
            return;
        };
        let about = pod_reference(&pod.namespace, &pod.name, &pod.uid);
        self.queue(about, None, MALFORMED_ANNOTATION, &note);
    }

    /// Queues an event about a pod that gets less time to end than it asks for.
    pub(super) fn grace_period_cut(&self, pod: &PodFacts, cut: GracePeriodCut) {
        let about = pod_reference(&pod.namespace, &pod.name, &pod.uid);
        let note = format!(
            "the grace period of {} s is cut to {} s: node {} is expected to be gone at {:.0}",
            cut.asked.as_secs(),
            cut.seconds,
            pod.node,
            cut.deadline
        );
        self.queue(about, None, GRACE_PERIOD_CUT, &note);
    }

    /// Queues an event about a Deployment whose rollout was restarted.
    pub(super) fn rollout_restarted(&self, namespace: &str, name: &str, uid: &str, note: &str) {
        let about = ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some("Deployment".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        self.queue(about, None, ROLLOUT_RESTARTED, note);
    }

    fn queue(&self, about: ObjectReference, related: Option<ObjectReference>, kind: EventKind, note: &str) {
        let EventKind { reason, is_warning, .. } = kind;
        let name = about.name.as_deref().unwrap_or_default();
        let about_kind = about.kind.as_deref().unwrap_or_default();
        warn_if!(is_warning, kind = about_kind, name, reason, note, "event recorded");
        match related {
            Some(related) => self.0.record_related(about, related, kind, note),
            None => self.0.record(about, kind, note),
        }
    }
}
