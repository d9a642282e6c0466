//! Events about maintenances, Nodes and pods.

use headgate_core::telemetry::warn_if;
use headgate_kubernetes::{EventKind, EventSink, node_reference, pod_reference};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;

use super::grace_periods::GracePeriodCut;
use crate::api::NodeMaintenance;
use crate::evacuation::annotations::parse_evacuators;
use crate::snapshot::PodFacts;

/// The reason of the event about annotations of a pod that register no evacuator.
const MALFORMED_ANNOTATION: &str = "EvacuatorAnnotationMalformed";
/// The reason of the event about a pod that gets less time to end than it asks for.
const GRACE_PERIOD_CUT: &str = "GracePeriodCut";
/// The reason of the event about a Deployment whose rollout was restarted.
const ROLLOUT_RESTARTED: &str = "RolloutRestarted";

/// Where events are queued.
#[derive(Clone)]
pub(super) struct MaintenanceEvents(EventSink);

impl MaintenanceEvents {
    pub(super) fn new(sink: EventSink) -> Self {
        Self(sink)
    }

    /// Queues an event about a maintenance.
    pub(super) fn about_maintenance(
        &self,
        object: &NodeMaintenance,
        is_warning: bool,
        reason: &'static str,
        note: &str,
    ) {
        self.queue(object.object_ref(&()), None, is_warning, reason, note);
    }

    /// Queues an event about a Node of a maintenance.
    pub(super) fn about_maintained_node(
        &self,
        object: &NodeMaintenance,
        (name, uid): (&str, &str),
        is_warning: bool,
        reason: &'static str,
        note: &str,
    ) {
        let related = Some(object.object_ref(&()));
        self.queue(node_reference(name, uid), related, is_warning, reason, note);
    }

    /// Queues an event about a Node.
    pub(super) fn about_node(&self, name: &str, uid: &str, is_warning: bool, reason: &'static str, note: &str) {
        self.queue(node_reference(name, uid), None, is_warning, reason, note);
    }

    /// Queues one event about a pod whose annotations register no evacuator although they should, if any.
    pub(super) fn malformed_annotations(&self, pod: &PodFacts) {
        let Some(note) = parse_evacuators(&pod.evacuators).note() else {
            return;
        };
        let about = pod_reference(&pod.namespace, &pod.name, &pod.uid);
        self.queue(about, None, true, MALFORMED_ANNOTATION, &note);
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
        self.queue(about, None, true, GRACE_PERIOD_CUT, &note);
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
        self.queue(about, None, false, ROLLOUT_RESTARTED, note);
    }

    fn queue(
        &self,
        about: ObjectReference,
        related: Option<ObjectReference>,
        is_warning: bool,
        reason: &'static str,
        note: &str,
    ) {
        let name = about.name.as_deref().unwrap_or_default();
        let kind = about.kind.as_deref().unwrap_or_default();
        warn_if!(is_warning, kind, name, reason, note, "event recorded");
        let action = match reason {
            MALFORMED_ANNOTATION => "ReadAnnotations",
            ROLLOUT_RESTARTED => "RestartRollout",
            GRACE_PERIOD_CUT => "EvictPod",
            _ => "MaintainNode",
        };
        let kind = EventKind {
            reason,
            action,
            is_warning,
        };
        match related {
            Some(related) => self.0.record_related(about, related, kind, note),
            None => self.0.record(about, kind, note),
        }
    }
}
