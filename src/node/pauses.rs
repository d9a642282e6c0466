//! How long to pause after a watch's error: kube's own growing pauses, but none where the watch was too old.
//!
//! kube's stream pauses after every error. A watch that was too old is none: it begins anew with a list, the usual
//! course of things after an outage, when something may have been waiting for long. Again and again it is not usual.

use std::time::Duration;

use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::Instant;

/// A watch that is too old sooner than this after the last time is not let off its pause.
const USUAL_INTERVAL: Duration = Duration::from_mins(1);
/// The reason of a watch that was too old.
pub const EXPIRED: &str = "expired";

/// The pauses of one watch.
#[derive(Default)]
pub struct Pauses {
    growing: DefaultBackoff,
    began_anew: Option<Instant>,
}

impl Pauses {
    /// There was an answer: the next pause is short again.
    pub fn answered(&mut self) {
        self.growing.reset();
    }

    /// The pause after an error of this reason.
    pub fn after(&mut self, reason: &str) -> Duration {
        if reason == EXPIRED && self.began_anew.is_none_or(|at| at.elapsed() > USUAL_INTERVAL) {
            self.began_anew = Some(Instant::now());
            return Duration::ZERO;
        }
        // These pauses never end.
        self.growing.next().unwrap_or_default()
    }
}
