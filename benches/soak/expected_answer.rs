//! The expected answer of `/healthz`: the taint's state that the API server has confirmed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time within which an agent must show a change that the API server has confirmed.
pub(crate) const AGENT_LAG_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the taint, and the time since which it is certain.
#[derive(Debug)]
pub(crate) struct ExpectedAnswer(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    code: u16,
    /// `None` during a change.
    since: Option<Instant>,
}

/// The expectation for one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expectation {
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

    /// Begins a change of the taint: either answer is valid.
    pub(crate) fn changing(&self) {
        self.state().since = None;
    }

    /// Ends a change of the taint: `code` is the expected answer from now on.
    pub(crate) fn settled(&self, code: u16) {
        *self.state() = State {
            code,
            since: Some(Instant::now()),
        };
    }

    /// The expectation for a probe that starts now; `None` during a change and shortly after it.
    pub(crate) fn expectation(&self) -> Option<Expectation> {
        let State { code, since } = *self.state();
        let since = since.filter(|since| since.elapsed() >= AGENT_LAG_TIMEOUT)?;
        Some(Expectation { code, since })
    }

    /// Whether an expectation is still valid.
    pub(crate) fn holds(&self, expectation: Expectation) -> bool {
        self.state().since == Some(expectation.since)
    }
}
