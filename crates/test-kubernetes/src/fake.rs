//! The Kubernetes API in process, in tokio's (possibly paused) time: Nodes, Leases, `ConfigMaps`, Secrets and events of
//! `events.k8s.io`, over one map and one `resourceVersion`, with watches and with what can go wrong on the way.
//!
//! It holds what headgate relies on and no more: no admission, no field management, no selector but by name, and no
//! defaults. What it does not know fails the test that asks for it. `cases` holds it to the real kube-apiserver.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::Method;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

mod kinds;
mod line;
mod rules;
mod store;
mod watching;

use kinds::At;
pub use line::{Fault, Line, Which};
use store::Store;

/// A request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When.
    pub at: Instant,
    /// Its method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// Whether it asks for a watch.
    pub watch: bool,
}

/// The API server. Clones are the same one.
#[derive(Clone)]
pub struct FakeApi(Arc<Parts>);

struct Parts {
    store: Mutex<Store>,
    asked: Mutex<Vec<Asked>>,
    /// Told of each change, and of restarts.
    changes: watch::Sender<()>,
    /// How often it was restarted, and when it is there again.
    restarts: Mutex<(u64, Instant)>,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self(Arc::new(Parts {
            store: Mutex::default(),
            asked: Mutex::default(),
            changes: watch::Sender::new(()),
            restarts: Mutex::new((0, Instant::now())),
        }))
    }
}

impl FakeApi {
    /// A caller's client, and what befalls its requests.
    #[must_use]
    pub fn client(&self) -> (Client, Line) {
        let line = Line::default();
        let (fake, way) = (self.clone(), line.clone());
        let service = tower::service_fn(move |request| fake.clone().carry(request, way.clone()));
        (Client::new(service, "default"), line)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap()
    }

    /// The requests that took effect, or were refused, in their order.
    #[must_use]
    pub fn requests(&self) -> Vec<Asked> {
        self.0.asked.lock().unwrap().clone()
    }

    /// An object as it is.
    #[must_use]
    pub fn peek<K>(&self, namespace: &str, name: &str) -> Option<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let object = self.store().get(&at::<K>(namespace, name))?.clone();
        Some(serde_json::from_value(object).unwrap())
    }

    /// Changes an object behind everybody's back, whatever rules there are.
    pub fn change<K>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value))
    where
        K: Resource<DynamicType = ()>,
    {
        let at = at::<K>(namespace, name);
        let mut store = self.store();
        let mut object = store.get(&at).unwrap_or_else(|| panic!("no {at:?}")).clone();
        change(&mut object);
        store.keep(&at, object);
        drop(store);
        self.0.changes.send_replace(());
    }

    /// Notes something on an object, as people do with kubectl; nothing where there is none.
    pub fn annotate<K>(&self, namespace: &str, name: &str, annotation: &str, value: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        if self.store().get(&at::<K>(namespace, name)).is_some() {
            self.change::<K>(namespace, name, |object| {
                let annotations = &mut object["metadata"]["annotations"];
                annotations[annotation] = json!(value);
            });
        }
    }

    /// Deletes an object, finalizers or not; nothing where there is none.
    pub fn delete<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.store().remove(&at::<K>(namespace, name));
        self.0.changes.send_replace(());
    }

    /// As if something else had been written.
    pub fn skip_versions(&self, versions: u64) {
        self.store().skip(versions);
    }

    /// Forgets what happened up to now: a watch from an older version is too old (410).
    pub fn compact(&self) {
        self.store().compact();
    }

    /// It goes away, with all watches, and is there again after this time, not knowing what happened before.
    pub fn restart(&self, away: Duration) {
        {
            let mut restarts = self.0.restarts.lock().unwrap();
            *restarts = (restarts.0 + 1, Instant::now() + away);
        }
        self.compact();
        self.0.changes.send_replace(());
    }

    /// How often it was restarted, and whether it is there.
    fn life(&self) -> (u64, bool) {
        let (restarts, back) = *self.0.restarts.lock().unwrap();
        (restarts, Instant::now() >= back)
    }
}

fn at<K: Resource<DynamicType = ()>>(namespace: &str, name: &str) -> At {
    At::new(&K::api_version(&()), &K::plural(&()), namespace, name)
}
