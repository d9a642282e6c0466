//! The watches of Services and EndpointSlices, which feed the updater.
//!
//! Invariants: an event costs no more than its object's size and waits for no request; while a watch fails, the last known
//! state stays, and `Freshness` says whether it may still be acted on; an object is forgotten when a complete list does not have it. Failures are retried, counted and logged by
//! `headgate-kubernetes`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use headgate_kubernetes::{LOAD_BALANCER_SERVICES, WatchReporter, watch_events, with_selection_fallback};
use headgate_local_pools::{NamespacedName, Updater};
use kube::api::ListParams;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use super::objects::{SlimEndpointSlice, SlimService, object_name};

/// Objects in one page of a list; bounds the memory for objects that are not converted yet.
const PAGE_SIZE: u32 = 500;
/// The period of a watch; the API server confirms a watch without changes once in each, as that of the Nodes.
const WATCH_PERIOD_SECONDS: u32 = 50;

/// The updater, shared by the watches, the ticks and the writers. It is locked for pure computations only.
#[derive(Clone, Debug)]
pub struct SharedUpdater(Arc<Mutex<Updater>>);

impl SharedUpdater {
    /// Shares an updater between the watches.
    #[must_use]
    pub fn new(updater: Updater) -> Self {
        Self(Arc::new(Mutex::new(updater)))
    }

    /// Locks the updater. After a panic elsewhere it goes on with the state that was left: each tick computes from it anew.
    pub fn lock(&self) -> MutexGuard<'_, Updater> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reporters of the two watches.
#[derive(Debug)]
pub struct WatchReporters {
    /// Reports errors of the watch of Services.
    pub services: WatchReporter,
    /// Reports errors of the watch of EndpointSlices.
    pub endpoint_slices: WatchReporter,
}

impl WatchReporters {
    /// When both watches were confirmed; `timeout` is how long a confirmation counts.
    #[must_use]
    pub fn freshness(&self, timeout: Duration) -> Freshness {
        Freshness {
            services: self.services.verified_at(),
            endpoint_slices: self.endpoint_slices.verified_at(),
            timeout,
        }
    }
}

/// Whether the API server still confirms what the updater knows of Services and EndpointSlices.
#[derive(Clone, Debug)]
pub struct Freshness {
    services: watch::Receiver<Instant>,
    endpoint_slices: watch::Receiver<Instant>,
    timeout: Duration,
}

impl Freshness {
    /// The plural name of the resource that was not confirmed for too long, if there is one.
    #[must_use]
    pub fn stale_resource(&self, now: Instant) -> Option<&'static str> {
        let watches = [("services", &self.services), ("endpointslices", &self.endpoint_slices)];
        let is_stale = |verified_at: &watch::Receiver<Instant>| *verified_at.borrow() + self.timeout <= now;
        watches
            .into_iter()
            .find_map(|(name, verified_at)| is_stale(verified_at).then_some(name))
    }
}

/// A client and the parameters for one list of Services of type `LoadBalancer`; where the API server cannot select them, the list has
/// all.
#[must_use]
pub fn load_balancer_services(client: &Client) -> (Client, ListParams) {
    let selected = ListParams::default().fields(LOAD_BALANCER_SERVICES);
    (with_selection_fallback(client), selected)
}

/// Feeds the updater until the task is aborted. The API server sends only Services of type `LoadBalancer`, where it can
/// select them; it cannot select EndpointSlices by their Service, so it sends all.
pub async fn watch_services(client: Client, updater: SharedUpdater, reporters: WatchReporters) {
    let config = || Config::default().page_size(PAGE_SIZE).timeout(WATCH_PERIOD_SECONDS);
    let load_balancers = config().fields(LOAD_BALANCER_SERVICES);
    let selecting = with_selection_fallback(&client);
    let mut services = watch_events(&selecting, Api::<SlimService>::all, load_balancers, reporters.services);
    let mut slices = watch_events(
        &client,
        Api::<SlimEndpointSlice>::all,
        config(),
        reporters.endpoint_slices,
    );
    let (mut listed_services, mut listed_slices) = (HashSet::new(), HashSet::new());
    loop {
        // The reporters have counted and logged the errors.
        tokio::select! {
            Some(event) = services.next() => if let Ok(event) = event {
                apply_service(&mut updater.lock(), &mut listed_services, event);
            },
            Some(event) = slices.next() => if let Ok(event) = event {
                apply_slice(&mut updater.lock(), &mut listed_slices, event);
            },
            else => return,
        }
    }
}

/// `listed` has the names of the list that is being received.
fn apply_service(updater: &mut Updater, listed: &mut HashSet<NamespacedName>, event: Event<SlimService>) {
    match event {
        Event::Init => listed.clear(),
        Event::InitDone => updater.retain_services(&std::mem::take(listed)),
        Event::Delete(object) => {
            if let Some(name) = object_name(&object.metadata) {
                updater.delete_service(&name);
            }
        }
        Event::InitApply(object) => {
            if let Some(service) = object.convert() {
                listed.insert(service.name.clone());
                updater.apply_service(service);
            }
        }
        Event::Apply(object) => {
            if let Some(service) = object.convert() {
                updater.apply_service(service);
            }
        }
    }
}

/// The same for an EndpointSlice.
fn apply_slice(updater: &mut Updater, listed: &mut HashSet<NamespacedName>, event: Event<SlimEndpointSlice>) {
    match event {
        Event::Init => listed.clear(),
        Event::InitDone => updater.retain_slices(&std::mem::take(listed)),
        Event::Delete(object) => {
            if let Some(name) = object_name(&object.metadata) {
                updater.delete_slice(&name);
            }
        }
        Event::InitApply(object) => {
            if let Some(slice) = object.convert() {
                listed.insert(slice.name.clone());
                updater.apply_slice(&slice);
            }
        }
        Event::Apply(object) => {
            if let Some(slice) = object.convert() {
                updater.apply_slice(&slice);
            }
        }
    }
}

#[cfg(test)]
mod tests;
