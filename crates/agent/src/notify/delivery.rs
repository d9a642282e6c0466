//! The queue of notices and the task that sends them, one after another.
//!
//! An attempt that failed is repeated with growing pauses until the time for retries is over; meanwhile later notices wait
//! in the queue. So notices arrive in order, and a receiver that is away costs one attempt at a time.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use headgate_core::clock::Clock;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::metrics::{Metrics, Outcome};
use super::notice::Notice;
use super::settings::NotificationSettings;
use super::webhook::AttemptError;

/// Notices beyond this are dropped: some 500 KB.
const MAX_QUEUED: usize = 1000;
/// The pause after the first failed attempt, before jitter.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, before jitter.
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Puts notices into the queue. Clones share it.
#[derive(Clone, Debug)]
pub struct Notifier(Option<Arc<Sending>>);

#[derive(Debug)]
struct Sending {
    queue: mpsc::Sender<Notice>,
    settings: NotificationSettings,
    metrics: Metrics,
}

/// The queue's other end.
#[derive(Debug)]
pub struct NoticeQueue(mpsc::Receiver<Notice>);

/// A queue for the events that `settings` name.
pub fn queue(settings: &NotificationSettings, metrics: &Metrics) -> (Notifier, NoticeQueue) {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let sending = Sending {
        queue: sender,
        settings: settings.clone(),
        metrics: metrics.clone(),
    };
    (Notifier(Some(Arc::new(sending))), NoticeQueue(receiver))
}

impl Notifier {
    /// A notifier that sends nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Queues a notice, if its event is sent. Never waits: a full queue drops it.
    pub fn notify(&self, notice: Notice) {
        let Some(sending) = self
            .0
            .as_ref()
            .filter(|sending| sending.settings.includes(&notice.event))
        else {
            return;
        };
        let event = notice.event.clone();
        // Counted before, so that the sender cannot count it down first.
        sending.metrics.queued(1);
        if sending.queue.try_send(notice).is_err() {
            sending.metrics.queued(-1);
            sending.metrics.ended(Outcome::Dropped);
            tracing::warn!(event, "notice dropped: the queue is full");
        }
    }
}

/// Sends the queue's notices until its last [`Notifier`] is dropped. `send` makes one attempt with a body, as
/// [`Webhook::send`](super::Webhook::send) does.
pub async fn deliver<F>(
    mut queue: NoticeQueue,
    send: impl Fn(String) -> F,
    settings: NotificationSettings,
    metrics: Metrics,
    clock: Clock,
) where
    F: Future<Output = Result<(), AttemptError>>,
{
    while let Some(notice) = queue.0.recv().await {
        let outcome = deliver_one(&notice, &send, &settings, &metrics, &clock).await;
        metrics.ended(outcome);
        metrics.queued(-1);
    }
}

async fn deliver_one<F>(
    notice: &Notice,
    send: impl Fn(String) -> F,
    settings: &NotificationSettings,
    metrics: &Metrics,
    clock: &Clock,
) -> Outcome
where
    F: Future<Output = Result<(), AttemptError>>,
{
    let started = clock.now().mono;
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build();
    loop {
        let attempt = match settings.template.render(notice) {
            Ok(body) => send(body).await,
            Err(error) => Err(AttemptError::Template(error.to_string())),
        };
        let Err(error) = attempt else {
            return Outcome::Delivered;
        };
        metrics.failed(error.reason());
        let (event, name) = (&notice.event, &notice.name);
        if error.is_final() {
            tracing::warn!(event, name, %error, "notice rejected");
            return Outcome::Rejected;
        }
        let pause = error
            .retry_after()
            .unwrap_or_default()
            .max(pauses.next().unwrap_or(MAX_PAUSE));
        if clock.now().mono.duration_since(started) + pause > settings.retry_timeout {
            tracing::warn!(event, name, %error, "notice given up");
            return Outcome::Expired;
        }
        tracing::info!(event, name, %error, retry_in = ?pause, "notice not delivered");
        sleep(pause).await;
    }
}
