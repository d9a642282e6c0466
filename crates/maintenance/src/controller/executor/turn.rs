//! The objects of one turn, and its failures.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::telemetry::{ReconcileSpan, warn_if};
use tokio::time::Instant;

use super::super::writer::WriteError;
use crate::api::{Evacuation, NodeMaintenance};
use crate::snapshot::{PodFacts, Snapshot};

/// The objects of one turn.
pub(super) struct Turn<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) maintenances: BTreeMap<&'a str, &'a NodeMaintenance>,
    pub(super) evacuations: BTreeMap<&'a str, &'a Evacuation>,
    /// The pods of the snapshot, by UID.
    pub(super) pods: BTreeMap<&'a str, &'a PodFacts>,
    /// Nodes on which no Evacuation is created in this turn.
    pub(super) blocked_nodes: BTreeSet<String>,
    pub(super) failures: usize,
    /// Those of the failures that are not for another turn to resolve.
    pub(super) errors: usize,
    /// When a status is to be written that waits.
    pub(super) next_write_at: Option<Instant>,
    /// The span of the present write.
    pub(super) span: Option<ReconcileSpan>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        fn name(object: &NodeMaintenance) -> &str {
            object.metadata.name.as_deref().unwrap_or_default()
        }
        Self {
            snapshot,
            maintenances: snapshot.maintenances.iter().map(|one| (name(one), one)).collect(),
            evacuations: snapshot
                .evacuations
                .iter()
                .filter_map(|one| Some((one.metadata.uid.as_deref()?, one)))
                .collect(),
            pods: snapshot.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect(),
            blocked_nodes: BTreeSet::new(),
            failures: 0,
            errors: 0,
            next_write_at: None,
            span: None,
        }
    }

    pub(super) fn failed(&mut self, what: &str, name: &str, error: &WriteError) {
        self.failures += 1;
        match error {
            // Another writer was first, or the term is over: the next turn knows more.
            WriteError::Conflict | WriteError::Gone | WriteError::NotPermitted(_) => {
                tracing::debug!(what, name, %error, "maintenance write postponed");
            }
            WriteError::Refused(_) | WriteError::Failed(_) => {
                self.errors += 1;
                if let Some(span) = &self.span {
                    span.fail(error.outcome().as_str(), error);
                }
                let is_refused = matches!(error, WriteError::Refused(_));
                warn_if!(is_refused, what, name, %error, "maintenance not written; retrying");
            }
        }
    }
}
