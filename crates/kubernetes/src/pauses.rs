//! How long to pause after a watch's error: kube's own growing pauses, but none where the watch was too old.
//!
//! kube's stream pauses after every error. A watch that was too old is none: it begins anew with a list, the usual
//! course of things after an outage, when something may have been waiting for long. Again and again it is not usual.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{DefaultBackoff, Event, Result};
use tokio::time::{Instant, sleep};

use crate::reason::{EXPIRED, reason};

/// A watch that is too old sooner than this after the last time is not let off its pause.
const USUAL_INTERVAL: Duration = Duration::from_mins(1);

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

/// Whether an event shows that the API server has answered: `Init` only says that a list is about to be asked for.
#[must_use]
pub fn is_answer<K>(event: &Event<K>) -> bool {
    !matches!(event, Event::Init)
}

/// What a watch tells, with a pause after each error; what is an answer makes the next pause short again.
#[must_use]
pub fn pausing<T: Send + 'static>(
    events: impl Stream<Item = Result<T>> + Send + 'static,
    is_answer: fn(&T) -> bool,
) -> BoxStream<'static, Result<T>> {
    let start = (events.boxed(), Pauses::default(), None);
    let next = move |(mut events, mut pauses, pause): (BoxStream<'static, Result<T>>, Pauses, Option<Duration>)| async move {
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        let event = events.next().await?;
        let pause = event.as_ref().err().map(|error| pauses.after(reason(error)));
        if event.as_ref().is_ok_and(is_answer) {
            pauses.answered();
        }
        Some((event, (events, pauses, pause)))
    };
    stream::unfold(start, next).boxed()
}
