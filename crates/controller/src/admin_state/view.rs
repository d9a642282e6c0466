//! What the leader has read and decided last, for `/statusz`.
//!
//! A view has receivers of what the tasks of the work publish, so that nothing is copied, and nothing is kept, unless someone asks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use headgate_azure::{ArmClient, LoadBalancerId};
use headgate_core::clock::Moment;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::last_reads::PlannedLoadBalancer;
use super::ledger::{Ledger, LedgerStore};
use super::list_outage::ListState;
use super::plan::Policy;
use super::target_states::TargetStates;
use crate::local_pools::SharedUpdater;
use crate::pool::{InterfaceCache, Listing, LoadBalancerView};
use crate::service_index::ServiceIndex;

/// The events that are kept.
const MAX_EVENTS: usize = 100;

/// An event that the leader has recorded on a Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEvent {
    /// When it was recorded.
    pub at: Timestamp,
    /// The name of the Node.
    pub node: String,
    /// Its reason.
    pub reason: String,
    /// Its note.
    pub note: String,
    /// Whether it is a warning.
    #[serde(rename = "warning")]
    pub is_warning: bool,
}

/// The last events of this process, the newest first. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedEvents(Arc<Mutex<VecDeque<RecordedEvent>>>);

impl RecordedEvents {
    pub(super) fn push(&self, event: RecordedEvent) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.truncate(MAX_EVENTS - 1);
        events.push_front(event);
    }

    fn all(&self) -> Vec<RecordedEvent> {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().cloned().collect()
    }
}

/// When each load balancer was read last, and what it was then.
type Reads = BTreeMap<LoadBalancerId, (Instant, Arc<LoadBalancerView>)>;

/// What the newest plans were made from: reads of single load balancers are newer than the last list.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed(Arc<Mutex<Reads>>);

impl Observed {
    fn set(&self, found: Reads) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// The listing with what was read after it.
    fn over(&self, listing: &Arc<Listing>) -> Arc<Listing> {
        let observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |(id, (read_at, view)): &(&LoadBalancerId, &(Instant, Arc<LoadBalancerView>))| {
            let listed = listing.load_balancers.get(*id);
            listed.is_some_and(|listed| !Arc::ptr_eq(listed, view))
                && listing.requested_at.is_some_and(|listed_at| *read_at > listed_at)
        };
        let newer: Vec<_> = observed.iter().filter(is_newer).collect();
        if newer.is_empty() {
            return Arc::clone(listing);
        }
        let mut listing = Listing::clone(listing);
        for (id, (_, view)) in newer {
            listing.load_balancers.insert(id.clone(), Arc::clone(view));
        }
        Arc::new(listing)
    }
}

/// Where the work of a term publishes its state. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkViews {
    view: watch::Sender<Option<WorkView>>,
    pub(super) observed: Observed,
    pub(super) events: RecordedEvents,
}

impl WorkViews {
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<WorkView>> {
        self.view.subscribe()
    }

    /// Adopts what the load balancers showed last.
    pub(super) fn observe(&self, load_balancers: &[PlannedLoadBalancer]) {
        let found = load_balancers.iter().filter_map(|one| {
            let read = (one.status.observed_at?, Arc::clone(one.status.view.as_ref()?));
            Some((one.id.clone(), read))
        });
        self.observed.set(found.collect());
    }

    /// Publishes the view of the present work, until the result is dropped.
    pub(super) fn publish(&self, view: WorkView) -> PublishedView<'_> {
        self.view.send_replace(Some(view));
        PublishedView(self)
    }
}

/// A view that is published. What it refers to must not outlive the term.
pub(super) struct PublishedView<'a>(&'a WorkViews);

impl Drop for PublishedView<'_> {
    fn drop(&mut self) {
        self.0.view.send_replace(None);
        self.0.observed.set(BTreeMap::new());
    }
}

/// The state of the work of a term.
#[derive(Clone, Debug)]
pub struct WorkView {
    pub(super) targets: watch::Receiver<Option<Arc<TargetStates>>>,
    /// Which Nodes serve the rules of Local Services.
    pub(super) services: watch::Receiver<Arc<ServiceIndex>>,
    pub(super) ledger: LedgerStore,
    pub(super) listings: watch::Receiver<Arc<Listing>>,
    /// The load balancers that the ledger names and no list shows.
    pub(super) recorded: watch::Receiver<Arc<Listing>>,
    /// The machines of network interfaces.
    pub(super) interfaces: watch::Receiver<Arc<InterfaceCache>>,
    pub(super) observed: Observed,
    pub(super) updater: Option<SharedUpdater>,
    /// The policy of the settings, `off` if `azure.json` says so.
    pub(super) policy: Policy,
    pub(super) arm: ArmClient,
    /// The subscription of the load balancers, whose throttling the next leader learns about.
    pub(super) subscription: String,
    pub(super) events: RecordedEvents,
}

/// The state of the work of a term at one moment.
#[derive(Clone, Debug)]
pub struct WorkSnapshot {
    /// The Nodes and their signals.
    pub targets: Arc<TargetStates>,
    /// Which Nodes serve the rules of Local Services.
    pub services: Arc<ServiceIndex>,
    /// Which `Down` is headgate's.
    pub ledger: Arc<Ledger>,
    /// The cluster's load balancers, as they were listed or read last.
    pub listing: Arc<Listing>,
    /// Other load balancers that the ledger names.
    pub recorded: Arc<Listing>,
    /// The machines of network interfaces.
    pub interfaces: Arc<InterfaceCache>,
    /// The updater of Local Services' pools, if it is active.
    pub updater: Option<SharedUpdater>,
    /// What the leader writes.
    pub policy: Policy,
    /// When the last list that succeeded was sent.
    pub listed_at: Option<Timestamp>,
    /// Until when ARM accepts no reads.
    pub reads_throttled_until: Option<Timestamp>,
    /// Until when ARM accepts no writes.
    pub writes_throttled_until: Option<Timestamp>,
    /// The last events, the newest first.
    pub events: Vec<RecordedEvent>,
}

impl WorkView {
    /// The present state; `None` before the Nodes are listed.
    #[must_use]
    pub fn take(&self, now: Moment) -> Option<WorkSnapshot> {
        let targets = self.targets.borrow().clone()?;
        let listing = self.observed.over(&self.listings.borrow());
        let lists = ListState::new(&listing, true, std::time::Duration::ZERO, now);
        let throttled = self.arm.throttled_until(&self.subscription);
        let wall_time = |until: Option<Instant>| {
            until
                .filter(|until| *until > now.mono)
                .map(|at| now.whole_second_at(at))
        };
        Some(WorkSnapshot {
            targets,
            services: Arc::clone(&self.services.borrow()),
            ledger: self.ledger.ledger(),
            listed_at: lists.last_success,
            listing,
            recorded: self.observed.over(&self.recorded.borrow()),
            interfaces: Arc::clone(&self.interfaces.borrow()),
            updater: self.updater.clone(),
            policy: self.policy,
            reads_throttled_until: wall_time(throttled.reads),
            writes_throttled_until: wall_time(throttled.writes),
            events: self.events.all(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_events_are_kept() {
        let events = RecordedEvents::default();
        for number in 0..=MAX_EVENTS {
            events.push(RecordedEvent {
                at: Timestamp::UNIX_EPOCH,
                node: number.to_string(),
                reason: "Reason".to_owned(),
                note: String::new(),
                is_warning: false,
            });
        }
        let all = events.all();
        assert_eq!(
            (all.len(), &*all[0].node, &*all[MAX_EVENTS - 1].node),
            (MAX_EVENTS, "100", "1")
        );
    }
}
