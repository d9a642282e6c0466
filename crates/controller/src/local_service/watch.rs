//! The watches of Services and EndpointSlices, which feed the updater.
//!
//! Invariants: an event costs no more than its object's size and waits for no request; while a watch fails, the last known
//! state stays in use; an object is forgotten when a complete list does not have it. Failures are retried, counted and logged by
//! `headgate-kubernetes`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use headgate_kubernetes::{WatchReporter, watch_events};
use headgate_local_pools::{NamespacedName, Updater};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};

use super::objects::{SlimEndpointSlice, SlimService, object_name};

/// Objects in one page of a list; bounds the memory for objects that are not converted yet.
const PAGE_SIZE: u32 = 500;

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

/// Feeds the updater until the task is aborted. The API server sends only Services of type `LoadBalancer`; it cannot select
/// EndpointSlices by their Service, so it sends all.
pub async fn watch_services(client: Client, updater: SharedUpdater, reporters: WatchReporters) {
    let config = || Config::default().page_size(PAGE_SIZE);
    let load_balancers = config().fields("spec.type=LoadBalancer");
    let mut services = watch_events(&client, Api::<SlimService>::all, load_balancers, reporters.services);
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
