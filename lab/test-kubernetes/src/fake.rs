//! A fake Kubernetes API in process, in tokio's (possibly paused) time: Nodes, pods with evictions and disruption budgets, Services,
//! `EndpointSlices`, Deployments, `ReplicaSets`, service accounts, Leases, `ConfigMaps`, Secrets, events of `events.k8s.io`, maintenances
//! and Evacuations, in one map with one `resourceVersion`, with watches and injected faults.
//!
//! Times are those of its clock. A pod that is evicted or deleted terminates for a second; where the Ready condition of its Node is `Unknown`
//! or the Node is missing, it stays until that is over.
//!
//! It has only the behaviour that headgate relies on: no admission, no field management, no defaults but the grace period of pods, no
//! `generation` of pods and of kinds without a status, no garbage collection of pods, and no selector
//! other than by name, for Services by `spec.type`, for pods by `spec.nodeName` and labels, and for events by their reporter. A request outside
//! of that panics. The integration tests in `fake_api` run the same cases against it and against the real kube-apiserver.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use headgate_core::clock::Clock;
use hyper::Method;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

mod client_faults;
mod requests;
mod resources;
mod store;
mod validation;
mod watch_stream;

pub use client_faults::{ClientFaults, Fault, RequestFilter};
use resources::ObjectKey;
use store::Store;

use crate::fault_points::{FaultPoints, ProcessPoints};

/// A request that arrived at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// Time of its arrival.
    pub at: Instant,
    /// The HTTP method, such as PUT.
    pub method: Method,
    /// The path without the query.
    pub path: String,
    /// The parameters of the query.
    pub query: BTreeMap<String, String>,
    /// Whether the request starts a watch.
    pub is_watch: bool,
    /// Whether the Node of the pod that it names was unschedulable when it arrived; `None` if it names no pod of a Node.
    pub is_node_cordoned: Option<bool>,
}

/// The state of all objects at one time.
pub struct Snapshot(Store);

/// The fake API server. Clones share the state.
#[derive(Clone)]
pub struct FakeApi(Arc<Shared>);

struct Shared {
    store: Mutex<Store>,
    recorded: Mutex<Vec<RecordedRequest>>,
    /// Marked as changed with each write and restart.
    changes: watch::Sender<()>,
    /// Number of restarts, and the time from which the server is available again.
    restarts: Mutex<(u64, Instant)>,
    /// What disturbs the clients that are made from now on.
    points: Mutex<Option<FaultPoints>>,
    /// The most objects in a page of a list.
    page_size: AtomicUsize,
    /// How long a pod takes to terminate, within its grace period.
    pod_termination: Mutex<Duration>,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self(Arc::new(Shared {
            store: Mutex::default(),
            recorded: Mutex::default(),
            changes: watch::Sender::new(()),
            restarts: Mutex::new((0, Instant::now())),
            points: Mutex::default(),
            page_size: usize::MAX.into(),
            pod_termination: Duration::from_secs(1).into(),
        }))
    }
}

impl FakeApi {
    /// A new client, and the handle on the faults of its requests.
    pub fn client(&self) -> (Client, ClientFaults) {
        let points = self.0.points.lock().unwrap().clone().map(ProcessPoints::new);
        let faults = ClientFaults::with_points(points);
        let (fake, shared) = (self.clone(), faults.clone());
        let service = tower::service_fn(move |request| fake.clone().serve(request, shared.clone()));
        (Client::new(service, "default"), faults)
    }

    /// The clock of all times that the server sets, from 2026-01-02T03:04:05Z on.
    pub fn clock(&self) -> Clock {
        self.store().clock.0.clone()
    }

    /// From now on pods take so long to terminate, instead of a second, unless their grace period is shorter.
    pub fn set_pod_termination(&self, time: Duration) {
        *self.0.pod_termination.lock().unwrap() = time;
    }

    /// Counts, and disturbs, the requests of each client that is made from now on, as those of a process of its own.
    pub fn inject(&self, points: &FaultPoints) {
        *self.0.points.lock().unwrap() = Some(points.clone());
    }

    /// From now on a page has no more than so many objects, even if a client asks for larger ones.
    pub fn limit_pages(&self, objects: usize) {
        self.0.page_size.store(objects, Ordering::Relaxed);
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap()
    }

    /// The requests that arrived, accepted or refused, in the order of their arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.0.recorded.lock().unwrap().clone()
    }

    /// The stored object, read without a request.
    pub fn peek<K>(&self, namespace: &str, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let object = self.store().get(&key::<K>(namespace, name))?.clone();
        Some(serde_json::from_value(object).unwrap())
    }

    /// Changes a stored object without a request and without validation.
    pub fn change<K>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value))
    where
        K: Resource<DynamicType = ()>,
    {
        let key = key::<K>(namespace, name);
        let mut store = self.store();
        let mut object = store.get(&key).unwrap_or_else(|| panic!("no {key:?}")).clone();
        change(&mut object);
        store.put(&key, object);
        drop(store);
        self.0.changes.send_replace(());
    }

    /// Sets an annotation, as `kubectl annotate` does; does nothing if the object is missing.
    pub fn annotate<K>(&self, namespace: &str, name: &str, annotation: &str, value: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        if self.store().get(&key::<K>(namespace, name)).is_some() {
            self.change::<K>(namespace, name, |object| {
                let annotations = &mut object["metadata"]["annotations"];
                annotations[annotation] = json!(value);
            });
        }
    }

    /// Removes an object regardless of its finalizers; does nothing if the object is missing.
    pub fn delete<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.store().remove(&key::<K>(namespace, name));
        self.0.changes.send_replace(());
    }

    /// Raises the `resourceVersion`, as writes of other objects do.
    pub fn skip_versions(&self, versions: u64) {
        self.store().skip(versions);
    }

    /// Compacts the history: a watch from an older version gets 410.
    pub fn compact(&self) {
        self.store().compact();
    }

    /// The state of all objects, as a snapshot of etcd has it.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.store().clone())
    }

    /// Restores a snapshot, with its `resourceVersion` and without history. Open watches get no event until the versions have
    /// caught up.
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut store = snapshot.0.clone();
        store.compact();
        *self.store() = store;
        self.0.changes.send_replace(());
    }

    /// Closes all watches, compacts the history and refuses connections for this time.
    pub fn restart(&self, away: Duration) {
        {
            let mut restarts = self.0.restarts.lock().unwrap();
            *restarts = (restarts.0 + 1, Instant::now() + away);
        }
        self.compact();
        self.0.changes.send_replace(());
    }

    /// The number of restarts, and whether the server accepts connections.
    fn availability(&self) -> (u64, bool) {
        let (restarts, back) = *self.0.restarts.lock().unwrap();
        (restarts, Instant::now() >= back)
    }
}

fn key<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(&K::api_version(&()), &K::plural(&()), namespace, name)
}
