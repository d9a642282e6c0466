//! The watch of EndpointSlices, which feeds the updater and the index of serving Nodes; the Services of the term feed them too.
//!
//! Invariants: an event costs no more than its object's size and waits for no request; while a watch fails, the last known
//! state stays, and `Freshness` says whether it may still be acted on; an object is forgotten when a complete list does not have it.
//! Failures are retried, counted and logged by `headgate-kubernetes`.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use headgate_core::service::{EndpointSliceObject, NamespacedName, Service};
use headgate_kubernetes::{Store, WatchReporter, watch_events};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::local_pools::Updater;
use crate::service_index::ServiceIndex;

/// Objects in one page of a list; bounds the memory for objects that are not converted yet.
const PAGE_SIZE: u32 = 500;
/// The period of a watch; the API server confirms a watch without changes once in each, as that of the Nodes.
const WATCH_PERIOD_SECONDS: u32 = 50;
/// For the first lists, before their absence is reported.
const FIRST_LIST_TIME: Duration = Duration::from_secs(15);
/// Between two publications of the index: each may lead to plans.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// While a watch is stale.
const STALE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The updater, shared by the watches, the ticks and the writers. It is locked for pure computations only.
#[derive(Clone, Debug)]
pub struct SharedUpdater(Arc<Mutex<Updater>>);

impl SharedUpdater {
    /// Shares an updater between the watches.
    pub fn new(updater: Updater) -> Self {
        Self(Arc::new(Mutex::new(updater)))
    }

    /// Locks the updater. After a panic elsewhere it goes on with the state that was left: each tick computes from it anew.
    pub fn lock(&self) -> MutexGuard<'_, Updater> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the API server still confirms what the updater knows of Services and EndpointSlices.
#[derive(Clone, Debug)]
pub(crate) struct Freshness {
    services: watch::Receiver<Instant>,
    endpoint_slices: watch::Receiver<Instant>,
    timeout: Duration,
}

impl Freshness {
    /// `timeout` is how long a confirmation counts.
    pub(crate) fn new(services: &Store<Arc<Service>>, endpoint_slices: &WatchReporter, timeout: Duration) -> Self {
        Self {
            services: services.verified_at.clone(),
            endpoint_slices: endpoint_slices.verified_at(),
            timeout,
        }
    }

    /// From when on one of them is stale, unless it is confirmed before.
    fn stale_at(&self) -> Instant {
        let (services, slices) = (*self.services.borrow(), *self.endpoint_slices.borrow());
        services.min(slices) + self.timeout
    }

    /// The plural name of the resource that was not confirmed for too long, if there is one.
    pub(crate) fn stale_resource(&self, now: Instant) -> Option<&'static str> {
        let watches = [("services", &self.services), ("endpointslices", &self.endpoint_slices)];
        let is_stale = |verified_at: &watch::Receiver<Instant>| *verified_at.borrow() + self.timeout <= now;
        watches
            .into_iter()
            .find_map(|(name, verified_at)| is_stale(verified_at).then_some(name))
    }
}

/// What the watches feed.
#[derive(Debug)]
pub(crate) struct ServiceFeed {
    /// The updater of Local Services' pools, where there is one.
    pub(crate) updater: Option<SharedUpdater>,
    /// Which Nodes serve the rules of Local Services. It is changed in place unless a receiver holds it, so receivers hold it briefly.
    pub(crate) index: watch::Sender<Arc<ServiceIndex>>,
}

/// Feeds the updater and the index until the task is aborted. The API server cannot select EndpointSlices by their Service, so it
/// sends all.
pub(crate) async fn watch_services(
    client: Client,
    feed: ServiceFeed,
    mut services: Store<Arc<Service>>,
    slices: WatchReporter,
    freshness: Freshness,
) {
    let config = Config::default().page_size(PAGE_SIZE).timeout(WATCH_PERIOD_SECONDS);
    let mut slices = watch_events::<EndpointSliceObject>(&client, Api::all, config, slices);
    let mut listed_slices = HashSet::new();
    // They may have been listed before this feed began.
    services.objects.mark_changed();
    let overdue_at = Instant::now() + FIRST_LIST_TIME;
    let mut is_overdue = false;
    let (mut is_changed, mut publish_at) = (false, Instant::now());
    let (mut stale, mut checked_at) = (None, Instant::now());
    loop {
        if is_changed && publish_at <= Instant::now() {
            feed.index.send_modify(|_| {});
            (is_changed, publish_at) = (false, Instant::now() + PUBLISH_INTERVAL);
        }
        let check_at = match stale {
            // Not from this turn on: changes may come more often.
            Some(_) => checked_at + STALE_CHECK_INTERVAL,
            None => freshness.stale_at(),
        };
        // The reporters have counted and logged the errors.
        is_changed |= tokio::select! {
            Ok(()) = services.objects.changed() => {
                let services = services.objects.borrow_and_update();
                services.as_ref().is_some_and(|services| feed.apply_services(services))
            }
            Some(event) = slices.next() => event.is_ok_and(|event| feed.apply_slice(&mut listed_slices, event)),
            () = sleep_until(publish_at), if is_changed => true,
            () = sleep_until(overdue_at), if !is_overdue => {
                is_overdue = true;
                feed.modify(|index| {
                    index.set_overdue();
                    index.unknown().is_some()
                })
            }
            () = sleep_until(check_at) => {
                checked_at = Instant::now();
                let before = std::mem::replace(&mut stale, freshness.stale_resource(checked_at));
                feed.modify(|index| index.set_stale(stale));
                before != stale
            }
        };
    }
}

impl ServiceFeed {
    /// Changes the index without notifying receivers.
    fn modify<T: Default>(&self, modify: impl FnOnce(&mut ServiceIndex) -> T) -> T {
        let mut result = T::default();
        self.index.send_if_modified(|index| {
            result = modify(Arc::make_mut(index));
            false
        });
        result
    }

    /// The updater, where there is one.
    fn updater(&self) -> Option<MutexGuard<'_, Updater>> {
        self.updater.as_ref().map(SharedUpdater::lock)
    }

    /// Adopts all Services that a complete list and the events since have. Returns whether the index changed.
    fn apply_services(&self, services: &BTreeMap<String, Arc<Service>>) -> bool {
        let listed = services.values().map(|service| service.name.clone()).collect();
        if let Some(mut updater) = self.updater() {
            for service in services.values() {
                updater.apply_service(service);
            }
            updater.retain_services(&listed);
        }
        self.modify(|index| {
            let mut is_changed = !index.are_services_listed();
            for service in services.values() {
                is_changed |= index.apply_service(service);
            }
            index.retain_services(&listed) || is_changed
        })
    }

    /// Returns whether the index changed. `listed` has the names of the list that is being received.
    fn apply_slice(&self, listed: &mut HashSet<NamespacedName>, event: Event<EndpointSliceObject>) -> bool {
        let is_listed = matches!(event, Event::InitApply(_));
        match event {
            Event::Init => {
                listed.clear();
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(listed);
                self.modify(|index| index.retain_slices(&listed));
                if let Some(mut updater) = self.updater() {
                    updater.retain_slices(&listed);
                }
                true
            }
            Event::Delete(object) => NamespacedName::of(&object.metadata).is_some_and(|name| {
                if let Some(mut updater) = self.updater() {
                    updater.delete_slice(&name);
                }
                self.modify(|index| index.delete_slice(&name))
            }),
            Event::InitApply(slice) | Event::Apply(slice) => {
                if is_listed {
                    listed.extend(NamespacedName::of(&slice.metadata));
                }
                if let Some(mut updater) = self.updater() {
                    updater.apply_slice(&slice);
                }
                self.modify(|index| index.apply_slice(&slice, Instant::now()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
