//! From the events of two watches to a table of Services with their endpoints on this node. Pure.
//!
//! Of Services only those are kept that need it; of EndpointSlices only the addresses that are ready on
//! this node, whoever's they are, since a Service may come to need it later. What is listed anew replaces
//! the old when it is complete, never in part; there is no table before both were listed once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use kube::runtime::watcher::Event;

use super::super::proxy::Family;
use super::object::{LocalService, LocalSlice, ObjectKey, SlimService, SlimSlice};
use super::per_family::PerFamily;

/// A Service and how many of its endpoints are ready on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The Service.
    pub service: Arc<LocalService>,
    /// Distinct addresses over all its EndpointSlices.
    pub endpoints: PerFamily<u32>,
}

impl Served {
    /// The count for one whose connection tells no family: that of the family with more, since a
    /// dual-stack pod has an address in each.
    #[must_use]
    pub fn endpoints_of_any_family(&self) -> u32 {
        let count = |family| {
            let has = *self.service.families.get(family);
            if has { *self.endpoints.get(family) } else { 0 }
        };
        count(Family::IPv4).max(count(Family::IPv6))
    }
}

/// Every Service whose health is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(BTreeMap<Arc<ObjectKey>, Served>);

impl Table {
    /// The Service with this key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&Served> {
        self.0.get(key)
    }

    /// All, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ObjectKey>, &Served)> {
        self.0.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(ObjectKey, Served)> for Table {
    fn from_iter<I: IntoIterator<Item = (ObjectKey, Served)>>(services: I) -> Self {
        Self(
            services
                .into_iter()
                .map(|(key, served)| (Arc::new(key), served))
                .collect(),
        )
    }
}

/// What is known of one kind of object.
#[derive(Debug)]
struct Listing<K, V> {
    known: HashMap<K, V>,
    /// What is being listed anew.
    listed: HashMap<K, V>,
    complete: bool,
}

impl<K: Eq + Hash, V: PartialEq> Listing<K, V> {
    fn new() -> Self {
        Self {
            known: HashMap::new(),
            listed: HashMap::new(),
            complete: false,
        }
    }

    /// Takes in one event; objects are reduced to their key and what is kept, if anything. Whether
    /// something changed.
    fn take<T>(&mut self, event: Event<T>, reduce: impl Fn(T) -> (K, Option<V>)) -> bool {
        match event {
            Event::Init => {
                self.listed = HashMap::new();
                false
            }
            Event::InitApply(object) => {
                if let (key, Some(value)) = reduce(object) {
                    self.listed.insert(key, value);
                }
                false
            }
            Event::InitDone => {
                let mut listed = std::mem::take(&mut self.listed);
                listed.shrink_to_fit();
                let changed = !self.complete || self.known != listed;
                (self.known, self.complete) = (listed, true);
                changed
            }
            Event::Apply(object) => match reduce(object) {
                (key, Some(value)) if self.known.get(&key) == Some(&value) => false,
                (key, Some(value)) => {
                    self.known.insert(key, value);
                    true
                }
                (key, None) => self.known.remove(&key).is_some(),
            },
            Event::Delete(object) => self.known.remove(&reduce(object).0).is_some(),
        }
    }
}

/// What is known of Services and EndpointSlices.
#[derive(Debug)]
pub struct Index {
    node: String,
    services: Listing<Arc<ObjectKey>, Arc<LocalService>>,
    slices: Listing<ObjectKey, LocalSlice>,
}

impl Index {
    /// An index for endpoints on `node`, which knows nothing yet.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self {
            node,
            services: Listing::new(),
            slices: Listing::new(),
        }
    }

    /// Takes in one event about Services; whether something changed.
    pub fn service(&mut self, event: Event<SlimService>) -> bool {
        let reduce = |service: SlimService| (Arc::new(service.key()), service.local().map(Arc::new));
        self.services.take(event, reduce)
    }

    /// Takes in one event about EndpointSlices; whether something changed.
    pub fn slice(&mut self, event: Event<SlimSlice>) -> bool {
        let node = &self.node;
        self.slices
            .take(event, |slice: SlimSlice| (slice.key(), slice.local(node)))
    }

    /// The Services and their counts, once both kinds were listed.
    #[must_use]
    pub fn table(&self) -> Option<Table> {
        if !(self.services.complete && self.slices.complete) {
            return None;
        }
        let mut ready: HashMap<&ObjectKey, PerFamily<BTreeSet<_>>> = HashMap::new();
        for slice in self.slices.known.values() {
            if self.services.known.contains_key(&slice.service) {
                let of_service = ready.entry(&slice.service).or_default();
                for address in &slice.ready {
                    of_service.of_mut(*address).insert(*address);
                }
            }
        }
        let count = |addresses: &BTreeSet<_>| u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let served = self.services.known.iter().map(|(key, service)| {
            let endpoints = ready.get(&**key).map(|ready| PerFamily {
                v4: count(&ready.v4),
                v6: count(&ready.v6),
            });
            let served = Served {
                service: Arc::clone(service),
                endpoints: endpoints.unwrap_or_default(),
            };
            (Arc::clone(key), served)
        });
        Some(Table(served.collect()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, policy: &str, port: u16) -> SlimService {
        let service = json!({"metadata": {"namespace": "a", "name": name, "uid": name}, "spec": {"type": "LoadBalancer",
            "externalTrafficPolicy": policy, "healthCheckNodePort": port, "clusterIPs": ["10.0.0.1", "fd00::1"]}});
        serde_json::from_value(service).unwrap()
    }

    /// A slice of `service` whose endpoints on this node are `ready`.
    fn slice(service: &str, number: u8, ready: &[&str]) -> SlimSlice {
        let kind = if ready.iter().any(|address| address.contains(':')) {
            "IPv6"
        } else {
            "IPv4"
        };
        let endpoints: Vec<_> = ready
            .iter()
            .map(|address| json!({"addresses": [address], "nodeName": "here"}))
            .collect();
        let slice = json!({"metadata": {"namespace": "a", "name": format!("{service}-{number}"),
            "labels": {"kubernetes.io/service-name": service}}, "addressType": kind, "endpoints": endpoints,
            "ports": [{"name": "", "port": 80}]});
        serde_json::from_value(slice).unwrap()
    }

    fn synced() -> Index {
        let mut index = Index::new("here".to_owned());
        index.service(Event::InitDone);
        index.slice(Event::InitDone);
        index
    }

    fn counts(index: &Index, name: &str) -> Option<(u32, u32)> {
        index
            .table()?
            .get(&ObjectKey::new("a", name))
            .map(|served| (served.endpoints.v4, served.endpoints.v6))
    }

    #[test]
    fn there_is_no_table_before_both_were_listed() {
        let mut index = Index::new("here".to_owned());
        assert!(!index.service(Event::Init));
        assert!(!index.service(Event::InitApply(service("b", "Local", 1))));
        assert!(index.service(Event::InitDone));
        assert_eq!(index.table(), None);
        assert!(index.slice(Event::InitDone));
        assert_eq!(counts(&index, "b"), Some((0, 0)));
    }

    #[test]
    fn distinct_addresses_over_all_slices_by_family() {
        let mut index = synced();
        assert!(index.service(Event::Apply(service("b", "Local", 1))));
        for (number, ready) in [&["10.1.0.1", "10.1.0.2"][..], &["10.1.0.2", "10.1.0.3"], &["fd01::1"]]
            .into_iter()
            .enumerate()
        {
            assert!(index.slice(Event::Apply(slice("b", u8::try_from(number).unwrap(), ready))));
        }
        assert!(index.slice(Event::Apply(slice("other", 0, &["10.1.0.9"]))));
        assert_eq!(counts(&index, "b"), Some((3, 1)));
        assert!(
            !index.slice(Event::Apply(slice("b", 0, &["10.1.0.1", "10.1.0.2"]))),
            "nothing new"
        );
        assert!(index.slice(Event::Delete(slice("b", 0, &[]))));
        assert_eq!(counts(&index, "b"), Some((2, 1)));
        assert!(
            index.slice(Event::Apply(slice("b", 1, &[]))),
            "its last local endpoint is gone"
        );
        assert!(!index.slice(Event::Delete(slice("b", 1, &[]))));
        assert_eq!(counts(&index, "b"), Some((0, 1)));
    }

    #[test]
    fn a_service_that_comes_to_need_it_has_its_count_at_once() {
        let mut index = synced();
        index.slice(Event::Apply(slice("b", 0, &["10.1.0.1"])));
        assert!(!index.service(Event::Apply(service("b", "Cluster", 0))));
        assert_eq!(counts(&index, "b"), None);
        assert!(index.service(Event::Apply(service("b", "Local", 7))));
        assert_eq!(counts(&index, "b"), Some((1, 0)));
        assert!(index.service(Event::Apply(service("b", "Cluster", 0))));
        assert_eq!(counts(&index, "b"), None);
        assert!(!index.service(Event::Delete(service("b", "Cluster", 0))));
    }

    #[test]
    fn what_is_listed_anew_replaces_the_old_when_it_is_complete() {
        let mut index = synced();
        index.service(Event::Apply(service("b", "Local", 1)));
        index.service(Event::Apply(service("gone", "Local", 2)));
        assert!(!index.service(Event::Init));
        assert!(!index.service(Event::InitApply(service("b", "Local", 1))));
        assert!(counts(&index, "gone").is_some(), "the last state goes on");
        // The list failed half-way and is begun again.
        assert!(!index.service(Event::Init));
        assert!(!index.service(Event::InitApply(service("b", "Local", 1))));
        assert!(index.service(Event::InitDone));
        assert_eq!((counts(&index, "b"), counts(&index, "gone")), (Some((0, 0)), None));
        assert!(!index.service(Event::Init));
        assert!(!index.service(Event::InitApply(service("b", "Local", 1))));
        assert!(!index.service(Event::InitDone), "the same again");
    }
}
