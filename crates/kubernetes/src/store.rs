//! All objects of a kind, as one watch shows them, for all who read them.
//!
//! Invariants: a store is `None` until its first list is complete. A complete list removes what it does not have. While the watch fails,
//! the last known objects stay, and [`Store::verified_at`] says since when the API server has not confirmed them. A value is replaced, and
//! receivers are notified, only where it differs from the one before, so a heartbeat of a Node wakes nobody.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use headgate_core::node::Node;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::watch::{UndecodableObjects, WatchReporter, WatchStream, watch_events};

/// Objects in one answer to a list; bounds the memory for objects that are not converted yet.
const PAGE_SIZE: u32 = 500;
/// The period of the watch. Its start confirms the objects although nothing changes.
const WATCH_PERIOD_SECONDS: u32 = 50;

/// The objects of a kind by name, or by `namespace/name`; `None` until they are listed.
pub type Objects<V> = Option<BTreeMap<String, V>>;

/// A store of what is read of each object. Clones share it.
#[derive(Clone, Debug)]
pub struct Store<V> {
    /// The objects. Receivers borrow them only briefly: meanwhile the watch waits.
    pub objects: watch::Receiver<Objects<V>>,
    /// When the API server confirmed them last; at first, when the watch was started.
    pub verified_at: watch::Receiver<Instant>,
    /// Those that exist, cannot be decoded, and are not in the store.
    pub undecodable: watch::Receiver<UndecodableObjects>,
}

/// All Nodes.
pub type NodeStore = Store<Arc<Node>>;

impl<V: PartialEq> Store<V> {
    /// A store of what `read` keeps of each object, or of each that the field selector has, and its watch, which never ends by itself.
    pub fn new<K, F>(
        client: &Client,
        fields: Option<&str>,
        reporter: WatchReporter,
        read: F,
    ) -> (Self, impl Future<Output = ()> + use<K, V, F>)
    where
        F: Fn(K) -> Option<V>,
        K: Resource<DynamicType: Default> + Clone + Default + DeserializeOwned + Debug + Send + 'static,
    {
        let objects = watch::Sender::new(None);
        let store = Self {
            objects: objects.subscribe(),
            verified_at: reporter.verified_at(),
            undecodable: reporter.undecodable(),
        };
        let config = watcher::Config {
            field_selector: fields.map(str::to_owned),
            ..watcher::Config::default()
        };
        let config = config.page_size(PAGE_SIZE).timeout(WATCH_PERIOD_SECONDS);
        let stream = watch_events(client, Api::all, config, reporter);
        (store, reflect(stream, objects, read))
    }
}

/// The key of an object in a store.
fn key(object: &impl Resource) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

async fn reflect<K, V>(
    mut stream: WatchStream<Event<K>>,
    store: watch::Sender<Objects<V>>,
    read: impl Fn(K) -> Option<V>,
) where
    K: Resource,
    V: PartialEq,
{
    // Of the list that is in progress, and the objects until the first one is complete.
    let (mut listed, mut incomplete) = (HashSet::new(), BTreeMap::new());
    while let Some(event) = stream.next().await {
        // The reporter has logged and counted an error.
        let Ok(event) = event else { continue };
        store.send_if_modified(|complete| {
            let objects = complete.as_mut().unwrap_or(&mut incomplete);
            let is_changed = match event {
                Event::Init => {
                    listed.clear();
                    false
                }
                Event::InitApply(object) => {
                    let key = key(&object);
                    listed.insert(key.clone());
                    set(objects, key, read(object))
                }
                Event::Apply(object) => set(objects, key(&object), read(object)),
                Event::Delete(object) => objects.remove(&key(&object)).is_some(),
                Event::InitDone => {
                    let (before, listed) = (objects.len(), std::mem::take(&mut listed));
                    objects.retain(|key, _| listed.contains(key));
                    let has_removed = objects.len() != before;
                    let is_first = complete.is_none();
                    complete.get_or_insert_with(|| std::mem::take(&mut incomplete));
                    is_first || has_removed
                }
            };
            is_changed && complete.is_some()
        });
    }
}

/// The objects of a kind for the one task that reads their watch. A complete list replaces them; until then, the last known ones stay.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectStore<K, V> {
    /// What is kept of each object.
    pub objects: BTreeMap<K, V>,
    /// The same of a list that is not complete yet.
    pub listed: BTreeMap<K, V>,
    /// Whether a list has been complete.
    pub is_synced: bool,
}

impl<K, V> Default for ObjectStore<K, V> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listed: BTreeMap::new(),
            is_synced: false,
        }
    }
}

impl<K: Ord, V: PartialEq> ObjectStore<K, V> {
    /// Applies one event; returns whether the objects changed. `reduce` returns an object's key, if it has one, and
    /// what to keep of it.
    pub fn apply<T>(&mut self, event: Event<T>, reduce: impl Fn(T) -> Option<(K, Option<V>)>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(object) => {
                if let Some((key, value)) = reduce(object) {
                    set(&mut self.listed, key, value);
                }
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let is_changed = !self.is_synced || self.objects != listed;
                (self.objects, self.is_synced) = (listed, true);
                is_changed
            }
            Event::Apply(object) => reduce(object).is_some_and(|(key, value)| set(&mut self.objects, key, value)),
            Event::Delete(object) => reduce(object).is_some_and(|(key, _)| self.objects.remove(&key).is_some()),
        }
    }
}

/// Sets or removes one value; returns whether it differs from the one before.
fn set<K: Ord, V: PartialEq>(objects: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
    match value {
        Some(value) if objects.get(&key) == Some(&value) => false,
        Some(value) => {
            objects.insert(key, value);
            true
        }
        None => objects.remove(&key).is_some(),
    }
}
