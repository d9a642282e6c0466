//! Lists and watches that continue after errors, with backoff, logs without repetition, and a metric.
//!
//! Invariant: a stream of this module never ends. An error is counted each time; it is logged, and shown as the current
//! [`WatchFailure`], when it is the first one or of another kind than the one before. The failure is over when an event
//! arrives, or when the API server has accepted a list or a watch of this stream and no error follows within 1 s, even if
//! nothing has changed in the meantime: kube has no event for that, so each stream has a client of its own that observes
//! the responses. In the same way a stream verifies that the consumer's state is current: by a complete list, by a change, or
//! by a watch that is accepted and has no error within 1 s.
//!
//! Before a watch resumes, `resume` verifies that the API server's `resourceVersion` has not gone backwards.
//!
//! What an event means, and which state stays in use while the watch fails, is the consumer's decision.

mod backoff;
mod error;
mod resume;

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use headgate_clock::Clock;
use hyper::Request;
use kube::client::Body;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use backoff::WatchBackoff;
pub use error::{WatchErrorCounter, WatchErrorReason, WatchFailure};
use resume::{Resumption, Verification, is_watch};

/// How long an accepted list or watch must stay without an error before it ends a failure. Some errors follow each
/// response, such as that of an object that cannot be decoded.
const RECOVERY_DELAY: Duration = Duration::from_secs(1);

/// Reports the errors of one watch and their end.
#[derive(Debug)]
pub struct WatchReporter {
    resource: &'static str,
    name: Option<String>,
    errors: WatchErrorCounter,
    clock: Clock,
    failure: watch::Sender<Option<WatchFailure>>,
    verified_at: watch::Sender<Instant>,
}

impl WatchReporter {
    /// A reporter for the watch of `resource`, the plural name in the API such as `nodes`; it counts in `errors`.
    #[must_use]
    pub fn new(resource: &'static str, errors: WatchErrorCounter, clock: Clock) -> Self {
        Self {
            resource,
            name: None,
            errors,
            clock,
            failure: watch::Sender::new(None),
            verified_at: watch::Sender::new(Instant::now()),
        }
    }

    /// The same for the watch of the one object `name`, which logs then include.
    #[must_use]
    pub fn for_object(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    /// The current failure; `None` while the watch works.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<WatchFailure>> {
        self.failure.subscribe()
    }

    /// When the API server confirmed last that the consumer's state is current; at first, when the reporter was made. A watch
    /// without changes is confirmed at the start of each of its periods.
    #[must_use]
    pub fn verified_at(&self) -> watch::Receiver<Instant> {
        self.verified_at.subscribe()
    }

    fn verified(&self) {
        self.verified_at.send_replace(Instant::now());
    }

    fn failed(&self, error: &watcher::Error) -> WatchErrorReason {
        let reason = WatchErrorReason::from(error);
        self.errors.increment(reason);
        let is_known = |failure: &WatchFailure| failure.reason == reason;
        if reason == WatchErrorReason::Expired || self.failure.borrow().as_ref().is_some_and(is_known) {
            return reason;
        }
        let error = headgate_telemetry::error_chain(error);
        tracing::warn!(
            resource = self.resource,
            name = self.name,
            reason = reason.as_str(),
            error,
            "watch failed, the last known state stays in use"
        );
        let since = self.clock.now().wall;
        self.failure.send_replace(Some(WatchFailure { reason, error, since }));
        reason
    }

    fn succeeded(&self) {
        if self.failure.send_if_modified(|failure| failure.take().is_some()) {
            tracing::info!(resource = self.resource, name = self.name, "watch recovered");
        }
    }
}

/// The stream of a watch: an event, or the reason of an error that is reported already and can be ignored.
pub type WatchStream<T> = BoxStream<'static, Result<T, WatchErrorReason>>;

/// Lists and watches the objects that `config` selects. `api` makes the API from the client of this stream.
#[must_use]
pub fn watch_events<K>(
    client: &Client,
    api: impl FnOnce(Client) -> Api<K>,
    config: watcher::Config,
    reporter: WatchReporter,
) -> WatchStream<Event<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let is_of_one = |fields: &String| fields.starts_with("metadata.name=");
    let verification = if config.field_selector.as_ref().is_some_and(is_of_one) {
        Verification::List
    } else {
        Verification::Version
    };
    let (client, observed) = observe(client, verification);
    let events = watcher::watcher(api(client), config);
    let meaning = |event: &Event<K>| match event {
        // It is sent before the request for the list.
        Event::Init => Meaning::Nothing,
        Event::InitApply(_) => Meaning::Response,
        Event::InitDone | Event::Apply(_) | Event::Delete(_) => Meaning::Verification,
    };
    supervise(events, meaning, observed, reporter)
}

/// Watches the one object `name`; `None` means that it does not exist.
#[must_use]
pub fn watch_object<K>(
    client: &Client,
    api: impl FnOnce(Client) -> Api<K>,
    name: &str,
    reporter: WatchReporter,
) -> WatchStream<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (client, observed) = observe(client, Verification::List);
    let states = watcher::watch_object(api(client), name);
    supervise(states, |_| Meaning::Verification, observed, reporter.for_object(name))
}

/// The number of successful responses so far.
#[derive(Clone, Copy, Debug, Default)]
struct Responses {
    lists: u64,
    watches: u64,
}

/// What is known of the requests of a stream.
struct Observed {
    responses: watch::Receiver<Responses>,
    resumption: Resumption,
}

/// A client of the same API server that verifies watches before they resume, and what is known of its requests.
fn observe(client: &Client, verification: Verification) -> (Client, Observed) {
    let (sender, responses) = watch::channel(Responses::default());
    let resumption = Resumption::new(verification);
    let verifier = resumption.clone();
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, sender, verifier) = (inner.clone(), sender.clone(), verifier.clone());
        let is_watch = is_watch(&request);
        async move {
            let uri = request.uri().clone();
            if let Some(expired) = verifier.verify(&inner, &uri).await? {
                return Ok(expired);
            }
            let response = inner.send(request).await?;
            if response.status().is_success() {
                verifier.succeeded(is_watch);
                sender.send_modify(|responses| {
                    responses.lists += u64::from(!is_watch);
                    responses.watches += u64::from(is_watch);
                });
            }
            Ok::<_, kube::Error>(response)
        }
    });
    (Client::new(service, namespace), Observed { responses, resumption })
}

/// What an item of a stream shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Nothing,
    /// The API server has answered; the backoff starts again then.
    Response,
    /// It has answered, and the consumer's state is current.
    Verification,
}

/// What a stream needs from one item to the next.
struct Supervised<T> {
    events: BoxStream<'static, watcher::Result<T>>,
    meaning: fn(&T) -> Meaning,
    observed: Observed,
    /// Whether the list before a watch resumes is not complete yet.
    is_listing_again: bool,
    /// Whether a watch was accepted and no error has followed.
    is_watch_accepted: bool,
    /// The number of accepted watches so far.
    watches: u64,
    reporter: WatchReporter,
    backoff: WatchBackoff,
    delay: Option<Duration>,
    /// When the failure is over, unless an error follows the last response before.
    recovers_at: Option<Instant>,
}

impl<T> Supervised<T> {
    async fn next(&mut self) -> Option<Result<T, WatchErrorReason>> {
        if let Some(delay) = self.delay.take() {
            sleep(delay).await;
        }
        loop {
            tokio::select! {
                // Responses first: an error after a response must not be over by that response.
                biased;
                Ok(()) = self.observed.responses.changed() => {
                    let watches = self.observed.responses.borrow_and_update().watches;
                    self.is_watch_accepted |= watches > self.watches;
                    self.watches = watches;
                    self.recovers_at = Some(Instant::now() + RECOVERY_DELAY);
                }
                event = self.events.next() => return match event? {
                    Ok(event) => {
                        let meaning = (self.meaning)(&event);
                        if meaning != Meaning::Nothing {
                            self.recovered();
                            // Otherwise lists that succeed would make a watch that is refused again and again start more often.
                            if !self.is_listing_again {
                                self.backoff.reset();
                            }
                        }
                        if meaning == Meaning::Verification {
                            self.is_listing_again = false;
                            self.reporter.verified();
                        }
                        Some(Ok(event))
                    }
                    Err(_) if self.observed.resumption.take_listing_again() => {
                        self.is_listing_again = true;
                        continue;
                    }
                    Err(error) => {
                        self.recovers_at = None;
                        self.is_watch_accepted = false;
                        let reason = self.reporter.failed(&error);
                        self.observed.resumption.failed(reason);
                        self.delay = Some(self.backoff.after(reason));
                        Some(Err(reason))
                    }
                },
                () = sleep_until(self.recovers_at.unwrap_or_else(Instant::now)), if self.recovers_at.is_some() => {
                    self.recovered();
                    if self.is_watch_accepted {
                        self.reporter.verified();
                    }
                }
            }
        }
    }

    fn recovered(&mut self) {
        self.recovers_at = None;
        self.reporter.succeeded();
    }
}

fn supervise<T: Send + 'static>(
    events: impl Stream<Item = watcher::Result<T>> + Send + 'static,
    meaning: fn(&T) -> Meaning,
    observed: Observed,
    reporter: WatchReporter,
) -> WatchStream<T> {
    let supervised = Supervised {
        events: events.boxed(),
        meaning,
        observed,
        is_listing_again: false,
        is_watch_accepted: false,
        watches: 0,
        reporter,
        backoff: WatchBackoff::default(),
        delay: None,
        recovers_at: None,
    };
    let next = |mut supervised: Supervised<T>| async move { Some((supervised.next().await?, supervised)) };
    stream::unfold(supervised, next).boxed()
}

#[cfg(test)]
mod tests;
