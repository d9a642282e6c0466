//! The work of a term: one task, begun with the term, told of its end, and joined.
//!
//! Invariant: the term that is published is the one that its work has, and it has ended before anybody is told that
//! there is none. What the task does wrong ends the term, not the process.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::candidate::{Duty, Event};
use super::term::{Tenure, Term};

/// The office that a leader holds.
pub(super) struct Office<W> {
    work: Arc<W>,
    terms: watch::Sender<Option<Term>>,
    tenure: Option<Tenure>,
    /// One task at most; it is aborted with this.
    task: JoinSet<Result<(), String>>,
    told_to_end: bool,
}

impl<W, F, E> Office<W>
where
    W: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display,
{
    pub(super) fn new(work: W, terms: watch::Sender<Option<Term>>) -> Self {
        Self {
            work: Arc::new(work),
            terms,
            tenure: None,
            task: JoinSet::new(),
            told_to_end: false,
        }
    }

    /// Does what is due, and says what has to be known at once.
    pub(super) fn perform(&mut self, duty: Duty) -> Option<Event> {
        match (duty, &self.tenure) {
            (Duty::Lead { until, leaving, .. }, Some(tenure)) => {
                self.told_to_end |= leaving;
                (!tenure.goes_on(until, leaving)).then_some(Event::Lapsed)
            }
            (Duty::Lead { number, until, .. }, None) => {
                let (tenure, term) = Tenure::begin(number, until);
                tracing::info!(term = number, "this instance is the leader");
                self.tenure = Some(tenure);
                self.terms.send_replace(Some(term.clone()));
                self.told_to_end = false;
                let work = Arc::clone(&self.work);
                self.task
                    .spawn(async move { work(term).await.map_err(|error| error.to_string()) });
                None
            }
            (Duty::WindUp { abort }, _) => {
                self.end_term();
                if abort {
                    self.task.abort_all();
                }
                self.task.is_empty().then_some(Event::WorkEnded)
            }
            (Duty::Idle, _) => {
                self.end_term();
                None
            }
        }
    }

    /// Waits for the work to end.
    pub(super) async fn work_ended(&mut self) {
        let Some(outcome) = self.task.join_next().await else {
            return std::future::pending().await;
        };
        let error = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(error) => Some(error.to_string()),
        };
        if self.told_to_end || !self.tenure.as_ref().is_some_and(Tenure::lasts) {
            if let Some(error) = error {
                tracing::warn!(error, "the leader's work did not end in good order");
            }
        } else {
            let error = error.unwrap_or_else(|| "it ended of itself".to_owned());
            tracing::error!(
                error,
                "the leader's work failed: the Lease is given back, and this instance rests"
            );
        }
    }

    fn end_term(&mut self) {
        if self.tenure.take().is_some() {
            self.told_to_end = true;
            let term = self.terms.send_replace(None);
            tracing::info!(
                term = term.map(|term| term.number()),
                "this instance is no longer the leader"
            );
        }
    }
}
