//! The span of one step of an Evacuation: the requests of the step are its children.

use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};

use crate::api::Evacuation;
use crate::snapshot::PodFacts;

/// A span with the pod's node, if a cache has the pod.
pub(super) fn evacuation_span(term: i32, evacuation: &Evacuation, pod: Option<&PodFacts>) -> ReconcileSpan {
    ReconcileSpan::start(Reconciled::Evacuation, || Reconcile {
        term: Some(term),
        node: pod.map(|pod| pod.node.as_str()),
        namespace: evacuation.metadata.namespace.as_deref(),
        evacuation: evacuation.metadata.name.as_deref(),
        pod: Some(&evacuation.spec.pod_ref.name),
        ..Reconcile::default()
    })
}
