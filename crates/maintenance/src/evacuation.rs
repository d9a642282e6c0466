//! Evacuations: who evacuates a pod, when the turn passes on, and what the Eviction API answers.

pub mod annotations;
pub mod daemon_set;
pub mod eviction;
pub mod state;

use crate::api::Evacuation;
use crate::snapshot::PodFacts;

/// Whether a pod is the one that an Evacuation is about. UIDs are no secrets: one in another namespace may say a pod's UID, too.
pub fn is_about(evacuation: &Evacuation, pod: &PodFacts) -> bool {
    let reference = &evacuation.spec.pod_ref;
    let is_in_namespace = evacuation.metadata.namespace.as_ref() == Some(&pod.namespace);
    is_in_namespace && (&reference.uid, &reference.name) == (&pod.uid, &pod.name)
}
