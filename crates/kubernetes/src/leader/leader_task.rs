//! The leader task: the work of a term, started with the term, asked to stop at its end, and joined.
//!
//! Invariants: the published term is the one that the running work has, and no work runs once no term is published and
//! the task is idle. Only this module decides whether a term has failed. Work that fails ends the term, not the process.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use headgate_core::clock::Clock;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::candidate::{Event, Handover, TaskTarget, TermTarget, WorkOutcome};
use super::metrics::{LeaderMetrics, TermFailure, TermRecorder};
use super::term::{Reports, Term, TermOwner};

/// The task that runs the work of a term.
pub(super) struct LeaderTask<W> {
    work: Arc<W>,
    terms: watch::Sender<Option<Term>>,
    metrics: LeaderMetrics,
    clock: Clock,
    term: Option<TermOwner>,
    /// At most one task. It is aborted when this is dropped.
    running: JoinSet<Result<(), String>>,
    recorder: Option<TermRecorder>,
    /// A handover was requested, or the term was ended.
    is_stop_requested: bool,
    /// The term was given up, because the work cannot be done here.
    has_given_up: bool,
}

impl<W, F, E> LeaderTask<W>
where
    W: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    pub(super) fn new(work: W, terms: watch::Sender<Option<Term>>, metrics: LeaderMetrics, clock: Clock) -> Self {
        Self {
            work: Arc::new(work),
            terms,
            metrics,
            clock,
            term: None,
            running: JoinSet::new(),
            recorder: None,
            is_stop_requested: false,
            has_given_up: false,
        }
    }

    /// Brings the task to its target state, and returns an event that the candidate must handle before its next action.
    pub(super) fn reconcile(&mut self, target: TaskTarget) -> Option<Event> {
        match (target, &self.term) {
            (TaskTarget::Run(target), Some(term)) => {
                // A candidate whose renewals follow each other at once never waits for the end of the work.
                if let Some(result) = self.running.try_join_next() {
                    return Some(Event::WorkEnded(self.finish(result)));
                }
                let is_handover = target.handover.is_some();
                self.is_stop_requested |= is_handover;
                self.has_given_up |= matches!(target.handover, Some(Handover::GaveUp(_)));
                (!term.renew(target.until, target.renewed, is_handover)).then_some(Event::DeadlinePassed)
            }
            (TaskTarget::Run(target), None) => {
                let TermTarget { until, renewed, .. } = target;
                let clock = self.clock.clone();
                let (owner, term) = TermOwner::new(target.number, until, renewed, target.throttle, clock);
                self.start(owner, term);
                None
            }
            (TaskTarget::Stop { abort }, _) => {
                self.end_term();
                if abort {
                    self.running.abort_all();
                }
                let has_ended = self.running.is_empty();
                has_ended.then_some(Event::WorkEnded(WorkOutcome::Finished))
            }
            (TaskTarget::Idle, _) => {
                self.end_term();
                None
            }
        }
    }

    /// What the work of the current term has reported.
    pub(super) fn reports(&mut self) -> Reports {
        self.term.as_mut().map(TermOwner::reports).unwrap_or_default()
    }

    /// Waits for the end of the work, or for a new report.
    pub(super) async fn changed(&mut self) -> Event {
        let Self { running, term, .. } = self;
        let reports_changed = async {
            match term {
                Some(term) => term.reports_changed().await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            biased;
            Some(result) = running.join_next() => Some(result),
            () = reports_changed => None,
        };
        result.map_or(Event::Woke, |result| Event::WorkEnded(self.finish(result)))
    }

    fn start(&mut self, owner: TermOwner, term: Term) {
        tracing::info!(term = term.number(), "started leading");
        self.recorder = Some(self.metrics.term_started(&term, self.clock.now().wall));
        self.term = Some(owner);
        self.terms.send_replace(Some(term.clone()));
        (self.is_stop_requested, self.has_given_up) = (false, false);
        let work = Arc::clone(&self.work);
        self.running
            .spawn(async move { work(term).await.map_err(|error| error.to_string()) });
    }

    /// Records how the work ended, and decides whether the term has failed.
    fn finish(&mut self, result: Result<Result<(), String>, JoinError>) -> WorkOutcome {
        let is_stop_expected = self.is_stop_requested || !self.term.as_ref().is_some_and(TermOwner::is_valid);
        let failure = failure(result, is_stop_expected);
        if let Some(recorder) = self.recorder.take() {
            let gave_up = self.has_given_up.then_some(TermFailure::GaveUp);
            recorder.finished(failure.as_ref().map(|(failure, _)| *failure).or(gave_up));
        }
        let term = self.term.as_ref().map(TermOwner::number);
        match failure {
            None if self.has_given_up => {
                tracing::warn!(
                    term,
                    "stopped leading because load balancers cannot be listed here; another candidate takes over"
                );
                WorkOutcome::Finished
            }
            None => WorkOutcome::Finished,
            Some((failure, error)) if is_stop_expected => {
                tracing::info!(
                    term,
                    reason = failure.as_str(),
                    error,
                    "work of the term failed while it stopped"
                );
                WorkOutcome::Finished
            }
            Some((failure, error)) => {
                tracing::error!(
                    term,
                    reason = failure.as_str(),
                    error,
                    "work of the term failed; released the Lease, and stands again later"
                );
                WorkOutcome::Failed
            }
        }
    }

    fn end_term(&mut self) {
        if let Some(term) = self.term.take() {
            self.is_stop_requested = true;
            self.terms.send_replace(None);
            tracing::info!(term = term.number(), "stopped leading");
        }
    }
}

/// The failure of work that ended with `result`, and its text.
fn failure(result: Result<Result<(), String>, JoinError>, is_stop_expected: bool) -> Option<(TermFailure, String)> {
    match result {
        Ok(Ok(())) if is_stop_expected => None,
        Ok(Ok(())) => Some((
            TermFailure::Returned,
            "the work returned before the end of the term".to_owned(),
        )),
        Ok(Err(error)) => Some((TermFailure::Error, error)),
        Err(error) if error.is_panic() => Some((TermFailure::Panic, error.to_string())),
        Err(error) => Some((TermFailure::Aborted, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::telemetry::{MetricsFormat, encode_metrics};
    use headgate_core::throttle::ThrottledUntil;
    use prometheus_client::registry::Registry;
    use tokio::time::{Instant, advance};

    use super::super::successor_request::InabilityReason;
    use super::*;

    /// What the work of the test's terms does.
    #[derive(Clone, Copy)]
    enum Work {
        UntilHandover,
        Error,
        Return,
        Panic,
        Never,
    }

    async fn work(kind: Work, term: Term) -> Result<(), String> {
        match kind {
            Work::UntilHandover => term.handover_requested().await,
            Work::Error => return Err("an error".to_owned()),
            Work::Return => {}
            Work::Panic => panic!("a defect"),
            Work::Never => std::future::pending().await,
        }
        Ok(())
    }

    fn run(number: i32, handover: Option<Handover>) -> TaskTarget {
        TaskTarget::Run(TermTarget {
            number,
            until: Instant::now() + Duration::from_secs(1),
            renewed: Clock::anchored(jiff::Timestamp::UNIX_EPOCH).now(),
            handover,
            throttle: ThrottledUntil::default(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn each_term_is_counted_with_its_failure() {
        let mut registry = Registry::default();
        let metrics = LeaderMetrics::register(&mut registry);
        let shows = |line: &str| {
            let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        };
        shows("headgate_leader 0");
        let clock = Clock::anchored(jiff::Timestamp::UNIX_EPOCH);
        let terms = watch::Sender::new(None);
        let task = |kind| {
            let work = move |term| work(kind, term);
            LeaderTask::new(work, terms.clone(), metrics.clone(), clock.clone())
        };

        let mut finished = task(Work::UntilHandover);
        assert_eq!(finished.reconcile(run(7, None)), None);
        shows("headgate_leader 1");
        shows("headgate_leader_term 7");
        assert_eq!(metrics.current_term(), Some((7, jiff::Timestamp::UNIX_EPOCH)));
        assert_eq!(finished.reconcile(run(7, Some(Handover::Requested))), None);
        assert_eq!(finished.changed().await, Event::WorkEnded(WorkOutcome::Finished));
        shows("headgate_leader 0");

        for (kind, term) in [(Work::Error, 8), (Work::Return, 9), (Work::Panic, 10)] {
            let mut failed = task(kind);
            assert_eq!(failed.reconcile(run(term, None)), None);
            assert_eq!(failed.changed().await, Event::WorkEnded(WorkOutcome::Failed));
            assert_eq!(failed.reconcile(TaskTarget::Idle), None);
            assert!(terms.borrow().is_none());
        }

        let mut given_up = task(Work::UntilHandover);
        assert_eq!(given_up.reconcile(run(11, None)), None);
        let target = run(11, Some(Handover::GaveUp(InabilityReason::Lists)));
        assert_eq!(given_up.reconcile(target), None);
        assert_eq!(given_up.changed().await, Event::WorkEnded(WorkOutcome::Finished));
        assert_eq!(given_up.reconcile(TaskTarget::Idle), None);

        let mut aborted = task(Work::Never);
        assert_eq!(aborted.reconcile(run(11, None)), None);
        assert_eq!(aborted.reconcile(TaskTarget::Stop { abort: false }), None);
        assert_eq!(aborted.reconcile(TaskTarget::Stop { abort: true }), None);
        assert_eq!(aborted.changed().await, Event::WorkEnded(WorkOutcome::Finished));
        let stopped = Event::WorkEnded(WorkOutcome::Finished);
        assert_eq!(aborted.reconcile(TaskTarget::Stop { abort: true }), Some(stopped));

        let mut dropped = task(Work::Never);
        assert_eq!(dropped.reconcile(run(12, None)), None);
        shows("headgate_leader 1");
        // The term has ended by the clock, whatever its work does.
        advance(Duration::from_secs(1)).await;
        shows("headgate_leader 0");
        assert_eq!(dropped.reconcile(run(12, None)), Some(Event::DeadlinePassed));
        drop(dropped);
        shows("headgate_leader_transitions_total{to=\"leader\"} 7");
        shows("headgate_leader_transitions_total{to=\"follower\"} 7");
        for (reason, count) in [
            ("error", 1),
            ("returned", 1),
            ("panic", 1),
            ("aborted", 2),
            ("gave_up", 1),
        ] {
            let series = format!("headgate_leader_failed_terms_total{{reason=\"{reason}\"}}");
            shows(&format!("{series} {count}"));
        }
    }
}
