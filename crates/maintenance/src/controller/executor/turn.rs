//! The objects of one turn, and its failures.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::telemetry::{ReconcileSpan, warn_if};
use tokio::time::Instant;

use super::super::writer::WriteError;
use super::spans::written_object;
use crate::api::{Evacuation, NodeMaintenance};
use crate::plan::action::{Action, EvacuationChange, Event};
use crate::snapshot::{PodFacts, Snapshot};

/// The objects of one turn.
pub(super) struct Turn<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) maintenances: BTreeMap<&'a str, &'a NodeMaintenance>,
    /// The pods of the snapshot, by UID.
    pub(super) pods: BTreeMap<&'a str, &'a PodFacts>,
    /// What is recorded once a status is written, by maintenance.
    pub(super) events: BTreeMap<String, Vec<Event>>,
    /// Nodes on which no Evacuation is created in this turn.
    pub(super) blocked_nodes: BTreeSet<String>,
    pub(super) failures: usize,
    /// Those of the failures that are not for another turn to resolve.
    pub(super) errors: usize,
    /// When something is to be written that waits.
    pub(super) next_write_at: Option<Instant>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        fn name(object: &NodeMaintenance) -> &str {
            object.metadata.name.as_deref().unwrap_or_default()
        }
        Self {
            snapshot,
            maintenances: snapshot.maintenances.iter().map(|one| (name(one), one)).collect(),
            pods: snapshot.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect(),
            events: BTreeMap::new(),
            blocked_nodes: BTreeSet::new(),
            failures: 0,
            errors: 0,
            next_write_at: None,
        }
    }

    /// The node of the pod that an Evacuation is about.
    pub(super) fn node_of(&self, evacuation: &Evacuation) -> Option<&'a str> {
        let pod = self.pods.get(evacuation.spec.pod_ref.uid.as_str());
        pod.map(|pod| pod.node.as_str())
    }

    /// Whether an action creates an Evacuation on a node where none is created now.
    pub(super) fn is_blocked(&self, action: &Action) -> bool {
        let Action::ChangeEvacuation {
            change: EvacuationChange::Create,
            evacuation,
        } = action
        else {
            return false;
        };
        let node = self.node_of(evacuation);
        node.is_some_and(|node| self.blocked_nodes.contains(node))
    }

    /// Keeps back what depends on a write that is not done in this turn.
    pub(super) fn keep_back(&mut self, action: &Action) {
        if let Action::UpdateStatus { status, .. } = action {
            let nodes = status.node_statuses.iter().map(|node| node.node_ref.name.clone());
            self.blocked_nodes.extend(nodes);
        }
    }

    /// Remembers that something is to be written then.
    pub(super) fn write_at(&mut self, at: Instant) {
        self.next_write_at = Some(self.next_write_at.map_or(at, |before| before.min(at)));
    }

    /// Counts and logs a write that failed, and keeps back what depends on it. One that is known to fail so is no news.
    pub(super) fn failed(&mut self, action: &Action, span: &ReconcileSpan, error: &WriteError, is_known: bool) {
        self.failures += 1;
        self.keep_back(action);
        let (what, name) = written_object(action);
        match error {
            // Another writer was first, or the term is over: the next turn knows more.
            WriteError::Conflict | WriteError::Gone | WriteError::NotPermitted(_) => {
                tracing::debug!(what, name, %error, "maintenance write postponed");
            }
            WriteError::Refused(_) | WriteError::Failed(_) => {
                self.errors += 1;
                span.fail(error.outcome().as_str(), error);
                let needs_somebody = matches!(error, WriteError::Refused(_)) && !is_known;
                warn_if!(needs_somebody, what, name, %error, "maintenance not written; retrying");
            }
        }
    }
}
