//! The watch of all Nodes; publishes the target states that follow from them.
//!
//! Invariants: nothing is published before every Node has been listed once. While the watch fails, the last known state stays
//! in use; from `stale_timeout` after the API server last confirmed it, it is marked as stale.
//! Events that are ready together are
//! published together, and changes in quick succession at a bounded rate (`publish_limit`), so
//! that a thousand new taints lead to few plans.
//!
//! The published value is changed in place unless a receiver holds it. Receivers hold it only briefly: otherwise each change
//! of a Node copies all of them. What a Node's signals mean is left to `target_states`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeObject, NodeReader};
use headgate_kubernetes::{EventSink, WatchErrorCounter, WatchReporter, watch_events};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::publish_limit::PublishLimit;
use super::target_states::TargetStates;
use crate::pool::read_node;

/// Nodes in one answer to a list; bounds the memory for objects that are not converted yet.
const PAGE_SIZE: u32 = 500;
/// The period of the watch. Its start confirms the state although nothing changes.
const WATCH_PERIOD_SECONDS: u32 = 50;
/// Events that are published together, so that a flood of events does not delay the plan.
const MAX_EVENTS_PER_CHANGE: usize = 10_000;

/// What the watch reads from Nodes, and where it counts its errors.
#[derive(Clone, Debug)]
pub(super) struct NodeWatchConfig {
    pub(super) reader: NodeReader,
    /// Counts the errors of the watch.
    pub(super) watch_errors: WatchErrorCounter,
    /// For how long the state is in use without a confirmation.
    pub(super) stale_timeout: Duration,
    pub(super) clock: Clock,
    /// Records events on Nodes that cannot be decoded.
    pub(super) events: Option<EventSink>,
}

/// Watches all Nodes and publishes their target states; `None` until all are listed. Never ends by itself.
pub(super) async fn watch_target_states(
    client: Client,
    config: NodeWatchConfig,
    published: watch::Sender<Option<Arc<TargetStates>>>,
) {
    let reporter = WatchReporter::new("nodes", config.watch_errors.clone(), config.clock.clone());
    let reporter = reporter.with_events(config.events.clone());
    let mut verified_at = reporter.verified_at();
    let watcher_config = watcher::Config::default()
        .page_size(PAGE_SIZE)
        .timeout(WATCH_PERIOD_SECONDS);
    let mut events = watch_events::<NodeObject>(&client, Api::all, watcher_config, reporter);
    let stale_timeout = config.stale_timeout;
    let mut is_stale = false;
    let mut handler = EventHandler {
        state: State {
            published,
            incomplete: TargetStates::default(),
        },
        listed: None,
        config,
    };
    // Deadlines up to here are applied.
    let mut applied_until = Instant::now();
    let mut limit = PublishLimit::new(applied_until);
    // Whether a change is not published yet.
    let mut is_changed = false;
    loop {
        let now = Instant::now();
        if is_changed && limit.try_publish(now) {
            handler.state.publish();
            is_changed = false;
        }
        let deadline = handler.state.next_deadline(applied_until);
        let publish_at = is_changed.then(|| limit.next_publish());
        let wake_at = [deadline, publish_at].into_iter().flatten().min();
        let stale_at = *verified_at.borrow() + stale_timeout;
        let mut event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(stale_at), if !is_stale => {
                // The state may have been confirmed since.
                let verified_at = *verified_at.borrow_and_update();
                is_stale = verified_at + stale_timeout <= Instant::now();
                if is_stale {
                    handler.mark_stale(verified_at);
                }
                continue;
            }
            Ok(()) = verified_at.changed(), if is_stale => {
                is_stale = false;
                handler.mark_current();
                continue;
            }
            () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    applied_until = now;
                    is_changed = true;
                    let at = handler.config.clock.now();
                    handler.state.modify(|targets| {
                        targets.advance_generation(at);
                        targets.drop_ended_periods(applied_until);
                    });
                }
                continue;
            }
        };
        for _ in 0..MAX_EVENTS_PER_CHANGE {
            match event {
                None => return,
                Some(Ok(event)) => is_changed |= handler.handle(event),
                // The reporter has logged and counted it.
                Some(Err(_)) => {}
            }
            match events.next().now_or_never() {
                Some(ready) => event = ready,
                None => break,
            }
        }
    }
}

/// The target states of all Nodes.
struct State {
    /// `None` until the first list is complete.
    published: watch::Sender<Option<Arc<TargetStates>>>,
    /// The target states until then.
    incomplete: TargetStates,
}

impl State {
    /// Modifies the target states without notifying receivers.
    fn modify<T: Default>(&mut self, modify: impl FnOnce(&mut TargetStates) -> T) -> T {
        let (incomplete, mut result) = (&mut self.incomplete, T::default());
        self.published.send_if_modified(|published| {
            result = modify(published.as_mut().map_or(incomplete, Arc::make_mut));
            false
        });
        result
    }

    /// Records that a list is complete. Returns whether it is the first one.
    fn complete_list(&mut self) -> bool {
        let (incomplete, mut is_first) = (&mut self.incomplete, false);
        self.published.send_if_modified(|published| {
            is_first = published.is_none();
            published.get_or_insert_with(|| Arc::new(std::mem::take(incomplete)));
            false
        });
        is_first
    }

    /// Notifies receivers, once the first list is complete.
    fn publish(&self) {
        self.published.send_if_modified(|published| published.is_some());
    }

    /// The first deadline after `after` that changes a target state without an event.
    fn next_deadline(&self, after: Instant) -> Option<Instant> {
        self.published.borrow().as_ref()?.next_deadline(after)
    }
}

struct EventHandler {
    state: State,
    /// The names in the list that is in progress.
    listed: Option<BTreeSet<String>>,
    config: NodeWatchConfig,
}

impl EventHandler {
    /// Marks the state as stale; the API server confirmed it last at `verified_at`.
    fn mark_stale(&mut self, verified_at: Instant) {
        let since = self.config.clock.now().wall_at(verified_at);
        self.state.modify(|targets| targets.set_stale_since(Some(since)));
        self.state.publish();
    }

    fn mark_current(&mut self) {
        self.state.modify(|targets| targets.set_stale_since(None));
        self.state.publish();
    }

    /// Applies an event. Returns whether it changed anything.
    fn handle(&mut self, event: Event<NodeObject>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                false
            }
            Event::InitApply(object) => {
                if let (Some(listed), Some(name)) = (&mut self.listed, &object.metadata.name) {
                    listed.insert(name.clone());
                }
                self.apply(object)
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let has_removed = self.state.modify(|targets| {
                    let names = targets.nodes.iter().map(|node| node.name.clone());
                    let deleted: Vec<_> = names.filter(|name| !listed.contains(name)).collect();
                    for name in &deleted {
                        targets.remove(name);
                    }
                    !deleted.is_empty()
                });
                self.state.complete_list() || has_removed
            }
            Event::Apply(object) => self.apply(object),
            Event::Delete(object) => object
                .metadata
                .name
                .is_some_and(|name| self.state.modify(|targets| targets.remove(&name))),
        }
    }

    fn apply(&mut self, object: NodeObject) -> bool {
        let node = read_node(object, &self.config.reader);
        let now = self.config.clock.now();
        self.state.modify(|targets| targets.apply(node, now))
    }
}
