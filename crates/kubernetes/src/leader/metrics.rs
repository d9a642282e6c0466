//! The metrics of the election: the terms of this instance and how they ended.
//!
//! Invariant: `headgate_leader` is 1 only while a term is valid by the clock at the time of the scrape.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headgate_core::telemetry::{ByLabel, MetricTable, words};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;

use super::term::Term;

words! {
    /// Why the work of a term failed.
    pub(super) enum TermFailure {
        /// It returned an error.
        Error = "error",
        /// It returned before the term ended and without a handover.
        Returned = "returned",
        /// The task of the work panicked.
        Panic = "panic",
        /// It did not end in time and was aborted.
        Aborted = "aborted",
        /// It could not be done here, and the term was given up to a candidate that volunteered.
        GaveUp = "gave_up",
    }
}

/// The metrics of the election. Clones share the counts.
#[derive(Clone, Debug)]
pub struct LeaderMetrics {
    running: Arc<Mutex<Option<(Term, Timestamp)>>>,
    is_candidate: Arc<AtomicBool>,
    transitions: ByLabel<Counter>,
    failures: ByLabel<Counter>,
}

impl Default for LeaderMetrics {
    /// Metrics that nothing shows.
    fn default() -> Self {
        Self::register(MetricTable::unregistered())
    }
}

impl LeaderMetrics {
    /// Registers the counters, and the gauges that are computed at each scrape.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        let metrics = Self {
            running: Arc::default(),
            is_candidate: Arc::default(),
            transitions: table.by_label(
                "headgate_leader_transitions",
                "Beginnings (to: leader) and ends (to: follower) of this instance's terms",
                "to",
                ["leader", "follower"],
            ),
            failures: table.by_label(
                "headgate_leader_failed_terms",
                "Terms of this instance whose work failed, by reason: an error, a return before the end of the term, a panic, aborted \
                because it did not end in time, or gave_up because load balancers could not be listed and another candidate \
                volunteered",
                "reason",
                TermFailure::ALL.map(TermFailure::as_str),
            ),
        };
        let shown = metrics.clone();
        table.at_scrape(move |gauges| {
            gauges.gauge(
                "headgate_leader_candidate",
                "1 while this instance stands for election or leads, 0 otherwise.",
                i64::from(shown.is_candidate.load(Ordering::Relaxed)),
            )?;
            let current = shown.current_term();
            gauges.gauge(
                "headgate_leader",
                "1 while this instance is the leader, 0 otherwise.",
                i64::from(current.is_some()),
            )?;
            gauges.gauge(
                "headgate_leader_term",
                "Number of the term that this instance leads in, unique in the cluster; 0 while it does not lead.",
                current.map_or(0, |(number, _)| number),
            )
        });
        metrics
    }

    /// The number of the term that this instance leads in now, and the wall-clock time at which its work began; `None` while it does not lead.
    pub fn current_term(&self) -> Option<(i32, Timestamp)> {
        let running = self.running();
        let (term, since) = running.as_ref().filter(|(term, _)| term.permit().is_ok())?;
        Some((term.number(), *since))
    }

    /// Records whether this instance stands for election.
    pub(super) fn stands_for_election(&self, is_candidate: bool) {
        self.is_candidate.store(is_candidate, Ordering::Relaxed);
    }

    /// Records that the work of a term has begun.
    pub(super) fn term_started(&self, term: &Term, since: Timestamp) -> TermRecorder {
        *self.running() = Some((term.clone(), since));
        self.transitions.of("leader").inc();
        TermRecorder {
            metrics: self.clone(),
            failure: Some(TermFailure::Aborted),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<(Term, Timestamp)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records the end of a term. Work that is dropped before its end counts as aborted.
#[derive(Debug)]
#[must_use = "dropping it records that the work was aborted"]
pub(super) struct TermRecorder {
    metrics: LeaderMetrics,
    failure: Option<TermFailure>,
}

impl TermRecorder {
    /// The work has ended, with this failure if it failed.
    pub(super) fn finished(mut self, failure: Option<TermFailure>) {
        self.failure = failure;
    }
}

impl Drop for TermRecorder {
    fn drop(&mut self) {
        if let Some(failure) = self.failure {
            self.metrics.failures.of(failure.as_str()).inc();
        }
        *self.metrics.running() = None;
        self.metrics.transitions.of("follower").inc();
    }
}
