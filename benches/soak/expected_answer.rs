//! What `/healthz` has to answer: the taint's state as far as the API server has confirmed it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an agent may take to say what the API server has said.
pub(crate) const LAG: Duration = Duration::from_secs(2);

/// The state of the taint, and since when it is certain.
#[derive(Debug)]
pub(crate) struct ExpectedAnswer(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    code: u16,
    /// None while it is being changed.
    since: Option<Instant>,
}

/// What is demanded of an answer, if anything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) code: u16,
    since: Instant,
}

impl Default for ExpectedAnswer {
    fn default() -> Self {
        Self(Mutex::new(State {
            code: 200,
            since: Some(Instant::now()),
        }))
    }
}

impl ExpectedAnswer {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The taint is about to be changed: either answer is right.
    pub(crate) fn changing(&self) {
        self.state().since = None;
    }

    /// The taint is such that `code` is the right answer from now on.
    pub(crate) fn settled(&self, code: u16) {
        *self.state() = State {
            code,
            since: Some(Instant::now()),
        };
    }

    /// What an answer asked for now has to be; nothing while the taint changes or has just changed.
    pub(crate) fn demand(&self) -> Option<Demand> {
        let State { code, since } = *self.state();
        let since = since.filter(|since| since.elapsed() >= LAG)?;
        Some(Demand { code, since })
    }

    /// Whether a demand made before still holds.
    pub(crate) fn holds(&self, demand: Demand) -> bool {
        self.state().since == Some(demand.since)
    }
}
