//! What a connection waits for and since when, in one atomic word. The connection's task writes it; the sweep reads
//! it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first byte of the next request.
    Idle,
    /// The rest of a request, or the first byte on a new connection.
    Request,
    /// The answer of the router to a complete request.
    Answer,
    /// The peer, to read what was written.
    Write,
}

/// A phase and its start in milliseconds since `origin`.
#[derive(Debug)]
pub(super) struct Activity {
    origin: Instant,
    word: AtomicU64,
}

/// The low bits of the word; the milliseconds are above them.
const PHASE_BITS: u32 = 2;

impl Activity {
    /// The activity of a connection that was just accepted.
    pub(super) fn new(origin: Instant) -> Self {
        let activity = Self {
            origin,
            word: AtomicU64::new(0),
        };
        activity.enter(Phase::Request);
        activity
    }

    /// Records that `phase` starts now.
    pub(super) fn enter(&self, phase: Phase) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> PHASE_BITS);
        // One task writes, and readers only compare times: relaxed ordering is enough.
        self.word
            .store((millis << PHASE_BITS) | phase as u64, Ordering::Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.word.load(Ordering::Relaxed) & ((1 << PHASE_BITS) - 1) {
            0 => Phase::Idle,
            1 => Phase::Request,
            2 => Phase::Answer,
            _ => Phase::Write,
        }
    }

    /// How long the current phase has lasted.
    pub(super) fn waiting(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.origin).saturating_sub(self.since())
    }

    /// The start of the current phase, after `origin`.
    pub(super) fn since(&self) -> Duration {
        Duration::from_millis(self.word.load(Ordering::Relaxed) >> PHASE_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn phase_and_age_survive_packing() {
        let activity = Activity::new(Instant::now());
        for phase in [Phase::Request, Phase::Answer, Phase::Write, Phase::Idle] {
            activity.enter(phase);
            tokio::time::advance(Duration::from_millis(1234)).await;
            assert_eq!(activity.phase(), phase);
            assert_eq!(activity.waiting(Instant::now()), Duration::from_millis(1234));
        }
    }
}
