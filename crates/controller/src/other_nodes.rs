//! Whether the leader may write Nodes other than its own.
//!
//! Invariant: only a process of the controllers may, because its `ServiceAccount` has no token on every node;
//! the policy `headgate-nodes` refuses all others (docs/dev/decisions.md 54). A feature that writes other Nodes checks this at the start
//! of each term, and does nothing after a refusal. The writes themselves are left to the feature.

use headgate_kubernetes::leader::CandidatePlacement;
use headgate_kubernetes::{EventKind, EventSink};

const REFUSED: EventKind = EventKind::warning("ControllerRequired", "WriteNode");

/// The leader may not write Nodes other than its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{feature} writes other Nodes, which only the ServiceAccount headgate-controller may: let controllers lead \
     (azure.leaderOnNodes: false in the chart)"
)]
pub struct ControllerRequired {
    feature: &'static str,
}

/// Checks the right to write other Nodes for the features of one process.
#[derive(Clone)]
pub struct OtherNodes {
    placement: CandidatePlacement,
    events: EventSink,
}

impl std::fmt::Debug for OtherNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherNodes")
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

impl OtherNodes {
    /// The check of a candidate at `placement`.
    pub fn new(events: EventSink, placement: CandidatePlacement) -> Self {
        Self { placement, events }
    }

    /// Whether `feature`, the setting that enables it, may write other Nodes. A refusal is logged and recorded as the event
    /// `ControllerRequired` on the own Node.
    ///
    /// # Errors
    /// If the candidates are the pods of the `DaemonSet`.
    pub fn check(&self, feature: &'static str) -> Result<(), ControllerRequired> {
        if self.placement == CandidatePlacement::Replicas {
            return Ok(());
        }
        let refusal = ControllerRequired { feature };
        tracing::warn!(feature, error = %refusal, "feature not started: this process may not write other Nodes");
        let note = format!("{refusal}. It does nothing until then.");
        self.events.record(self.events.own_node(None), REFUSED, note);
        Err(refusal)
    }
}
