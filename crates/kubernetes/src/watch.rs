//! Lists and watches that continue after errors, with backoff, logs without repetition, and a metric.
//!
//! Invariant: a stream of this module never ends. An error is counted each time; it is logged, and shown as the current
//! [`WatchFailure`], when it is the first one or of another kind than the one before. It is over with a complete list, a change, or a
//! watch that is accepted and has no error within 1 s, even if nothing has changed in the meantime: kube has no event for that, so each
//! stream has a client of its own that observes the responses. The same verifies that the consumer's state is current. A page of a list
//! shows neither, because the next one may fail again and again. A watch that ends within 1 s without an event shows neither, and the next
//! one gets a backoff.
//!
//! `list_pages` bounds the bytes of a page, and the silence of a list: kube bounds that of a watch only, and TCP does not detect a peer whose
//! proxy still acknowledges.
//!
//! Before a watch resumes, `resume` verifies that the API server's `resourceVersion` has not gone backwards. The list of a stream of one object is
//! the beginning of its watch: `streaming_list`.
//!
//! An object that cannot be decoded is skipped and never makes others unreadable: `undecodable_objects`.
//!
//! What an event means, and which state stays in use while the watch fails, is the consumer's decision.

mod backoff;
mod error;
mod list_pages;
mod reporter;
mod resume;
mod streaming_list;
mod undecodable_objects;

use std::fmt::Debug;
use std::future::ready;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper::Request;
use kube::client::Body;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::decoded::Decoded;

use backoff::{ShortWatches, WatchBackoff};
pub use error::{WatchErrorCounter, WatchErrorReason, WatchFailure};
use list_pages::{PageLimit, received};
pub use reporter::WatchReporter;
use resume::{Resumption, Verification, is_watch};
use streaming_list::StreamingList;
pub use undecodable_objects::{UndecodableObjects, register_undecodable_objects};

/// How long an accepted watch must stay without an error before it ends a failure. Some errors follow each
/// response, such as that of an answer that is no JSON.
const RECOVERY_DELAY: Duration = Duration::from_secs(1);

/// The stream of a watch: an event, or the reason of an error that is reported already and can be ignored.
pub type WatchStream<T> = BoxStream<'static, Result<T, WatchErrorReason>>;

/// Lists and watches the objects that `config` selects. `api` makes the API from the client of this stream.
pub fn watch_events<K>(
    client: &Client,
    api: impl FnOnce(Client) -> Api<Decoded<K>>,
    config: watcher::Config,
    reporter: WatchReporter,
) -> WatchStream<Event<K>>
where
    K: Resource<DynamicType: Default> + Clone + Default + DeserializeOwned + Debug + Send + 'static,
{
    let is_of_one = |fields: &String| fields.starts_with("metadata.name=");
    let list = config.field_selector.as_ref().is_some_and(is_of_one);
    let list = list.then(|| StreamingList::new(config.timeout));
    let (client, observed) = observe(client, list);
    let events = watcher::watcher(api(client), config);
    let verifies = |event: &Event<Decoded<K>>| !matches!(event, Event::Init | Event::InitApply(_));
    let mut skipping = reporter.skipping(K::kind(&K::DynamicType::default()).into_owned());
    let events = supervise(events, verifies, observed, reporter);
    let decoded = events.filter_map(move |event| {
        ready(match event {
            Ok(event) => skipping.pass(event).map(Ok),
            Err(reason) => Some(Err(reason)),
        })
    });
    decoded.boxed()
}

/// Watches the one object `name`; `None` means that it does not exist. What cannot be decoded is the consumer's decision.
pub(crate) fn watch_object<K>(
    client: &Client,
    api: impl FnOnce(Client) -> Api<Decoded<K>>,
    name: &str,
    reporter: WatchReporter,
) -> WatchStream<Option<Decoded<K>>>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (client, observed) = observe(client, Some(StreamingList::new(None)));
    let states = watcher::watch_object(api(client), name);
    supervise(states, |_| true, observed, reporter.for_object(name))
}

/// The number of successful responses so far.
#[derive(Clone, Copy, Debug, Default)]
struct Responses {
    lists: u64,
    watches: u64,
    /// Watches that were accepted and too short.
    short_watches: u64,
}

/// What is known of the requests of a stream.
struct Observed {
    responses: watch::Receiver<Responses>,
    resumption: Resumption,
    short_watches: ShortWatches,
}

/// A client of the same API server that verifies watches before they resume, and what is known of its requests. A stream of one object lists it.
fn observe(client: &Client, list: Option<StreamingList>) -> (Client, Observed) {
    let verification = if list.is_some() {
        Verification::List
    } else {
        Verification::Version
    };
    let (sender, responses) = watch::channel(Responses::default());
    let resumption = Resumption::new(verification);
    let verifier = resumption.clone();
    let short_watches = ShortWatches::default();
    let last_watch = short_watches.clone();
    let page_limit = PageLimit::default();
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (inner, sender, verifier) = (inner.clone(), sender.clone(), verifier.clone());
        let (last_watch, page_limit, list) = (last_watch.clone(), page_limit.clone(), list.clone());
        let is_watch = is_watch(&request);
        async move {
            if is_watch && let Some(delay) = last_watch.delay() {
                sender.send_modify(|responses| responses.short_watches += 1);
                sleep(delay).await;
            }
            let uri = request.uri().clone();
            if let Some(expired) = verifier.verify(&inner, &uri).await? {
                return Ok(expired.map(Body::boxed_unsync));
            }
            let changes = list.as_ref().filter(|_| is_watch);
            let response = if let Some(changes) = changes.and_then(StreamingList::take_changes) {
                changes
            } else {
                let response = if is_watch {
                    let response = inner.send(request).await?;
                    if response.status().is_success() {
                        response
                    } else {
                        received(response).await?
                    }
                } else {
                    let (head, _) = request.into_parts();
                    let streamed = match &list {
                        Some(list) => list.request(&inner, &head).await?,
                        None => None,
                    };
                    match streamed {
                        Some(response) => response,
                        None => page_limit.send(&inner, head).await?,
                    }
                };
                response.map(Body::boxed_unsync)
            };
            if response.status().is_success() {
                verifier.succeeded(is_watch);
                if is_watch {
                    last_watch.accepted();
                }
                sender.send_modify(|responses| {
                    responses.lists += u64::from(!is_watch);
                    responses.watches += u64::from(is_watch);
                });
            }
            Ok::<_, kube::Error>(response)
        }
    });
    let observed = Observed {
        responses,
        resumption,
        short_watches,
    };
    (Client::new(service, namespace), observed)
}

/// What a stream needs from one item to the next.
struct Supervised<T> {
    events: BoxStream<'static, watcher::Result<T>>,
    /// Whether the consumer's state is current with this item.
    verifies: fn(&T) -> bool,
    observed: Observed,
    /// Whether the list before a watch resumes is not complete yet.
    is_listing_again: bool,
    /// The responses so far.
    responses: Responses,
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
                    let before = std::mem::replace(&mut self.responses, *self.observed.responses.borrow_and_update());
                    if self.responses.short_watches > before.short_watches {
                        self.recovers_at = None;
                        continue;
                    }
                    if self.responses.watches > before.watches {
                        self.recovers_at = Some(Instant::now() + RECOVERY_DELAY);
                    }
                }
                event = self.events.next() => return match event? {
                    Ok(event) => {
                        if (self.verifies)(&event) {
                            self.recovered();
                            self.observed.short_watches.showed_something();
                            // Otherwise lists that succeed would make a watch that is refused again and again start more often.
                            if !self.is_listing_again {
                                self.backoff.reset();
                            }
                            self.is_listing_again = false;
                        }
                        Some(Ok(event))
                    }
                    Err(_) if self.observed.resumption.take_listing_again() => {
                        self.is_listing_again = true;
                        continue;
                    }
                    Err(error) => {
                        self.recovers_at = None;
                        self.observed.short_watches.showed_something();
                        let reason = self.reporter.failed(&error);
                        self.observed.resumption.failed(reason);
                        self.delay = Some(self.backoff.after(reason));
                        Some(Err(reason))
                    }
                },
                () = sleep_until(self.recovers_at.unwrap_or_else(Instant::now)), if self.recovers_at.is_some() => {
                    self.recovered();
                }
            }
        }
    }

    fn recovered(&mut self) {
        self.recovers_at = None;
        self.reporter.succeeded();
        self.reporter.verified();
    }
}

fn supervise<T: Send + 'static>(
    events: impl Stream<Item = watcher::Result<T>> + Send + 'static,
    verifies: fn(&T) -> bool,
    observed: Observed,
    reporter: WatchReporter,
) -> WatchStream<T> {
    let supervised = Supervised {
        events: events.boxed(),
        verifies,
        observed,
        is_listing_again: false,
        responses: Responses::default(),
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
