//! The index: from the events of two watches to a table of Services with the number of their endpoints on this node.
//! Pure.
//!
//! Of Services, only those with service health are kept. Of EndpointSlices, the ready addresses on this node are kept
//! for every Service, because any Service can become one with service health. A new list replaces the old objects
//! when it is complete, never in part. There is no table before both kinds were listed once.

use headgate_core::service::{EndpointSliceObject, IpFamily, NamespacedName, ServiceObject};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headgate_kubernetes::ObjectStore;
use kube::runtime::watcher::Event;

use super::super::ip_family::PerFamily;
use super::kept_objects::{LocalService, LocalSlice};

/// A Service with service health, and its endpoints on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedService {
    /// What is known of the Service.
    pub service: Arc<LocalService>,
    /// The number of distinct ready addresses on this node, over all EndpointSlices.
    pub endpoints: PerFamily<u32>,
}

impl ServedService {
    /// A Service of IPv4 with so many endpoints here.
    #[cfg(test)]
    pub(crate) fn example(endpoints: u32) -> Self {
        let service = LocalService {
            uid: "u".into(),
            port: 30_000,
            families: PerFamily { v4: true, v6: false },
        };
        Self {
            service: Arc::new(service),
            endpoints: PerFamily { v4: endpoints, v6: 0 },
        }
    }

    /// The number of endpoints for a request whose IP family is not known: the larger one, since a dual-stack Pod has
    /// an address in each family.
    pub(crate) fn endpoints_of_any_family(&self) -> u32 {
        let count = |family| {
            let is_served = *self.service.families.get(family);
            if is_served { *self.endpoints.get(family) } else { 0 }
        };
        count(IpFamily::IPv4).max(count(IpFamily::IPv6))
    }
}

/// All Services with service health, by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceTable(BTreeMap<Arc<NamespacedName>, ServedService>);

impl ServiceTable {
    /// The Service with this key.
    pub fn get(&self, key: &NamespacedName) -> Option<&ServedService> {
        self.0.get(key)
    }

    /// The Services in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<NamespacedName>, &ServedService)> {
        self.0.iter()
    }

    /// The Services with endpoints on this node, in the same order.
    pub(crate) fn with_endpoints(&self) -> impl Iterator<Item = &Arc<NamespacedName>> {
        let here = self.0.iter().filter(|(_, served)| served.endpoints_of_any_family() > 0);
        here.map(|(service, _)| service)
    }
}

impl FromIterator<(NamespacedName, ServedService)> for ServiceTable {
    fn from_iter<I: IntoIterator<Item = (NamespacedName, ServedService)>>(services: I) -> Self {
        Self(
            services
                .into_iter()
                .map(|(key, served)| (Arc::new(key), served))
                .collect(),
        )
    }
}

/// The Services and EndpointSlices that are known.
#[derive(Debug)]
pub struct ServiceIndex {
    node_name: String,
    services: ObjectStore<Arc<NamespacedName>, Arc<LocalService>>,
    slices: ObjectStore<NamespacedName, LocalSlice>,
}

impl ServiceIndex {
    /// An empty index for endpoints on the node `node_name`.
    pub fn new(node_name: String) -> Self {
        Self {
            node_name,
            services: ObjectStore::default(),
            slices: ObjectStore::default(),
        }
    }

    /// Applies one event about Services; returns whether the index changed.
    pub fn apply_service(&mut self, event: Event<ServiceObject>) -> bool {
        let reduce = |service: ServiceObject| {
            let name = NamespacedName::of(&service.metadata)?;
            Some((Arc::new(name), LocalService::read(&service).map(Arc::new)))
        };
        self.services.apply(event, reduce)
    }

    /// Applies one event about EndpointSlices; returns whether the index changed.
    pub fn apply_slice(&mut self, event: Event<EndpointSliceObject>) -> bool {
        let node_name = &self.node_name;
        self.slices.apply(event, |slice: EndpointSliceObject| {
            Some((
                NamespacedName::of(&slice.metadata)?,
                LocalSlice::read(&slice, node_name),
            ))
        })
    }

    /// The table, once both kinds were listed.
    pub fn table(&self) -> Option<ServiceTable> {
        if !(self.services.is_synced && self.slices.is_synced) {
            return None;
        }
        let mut ready: HashMap<&NamespacedName, PerFamily<BTreeSet<_>>> = HashMap::new();
        for slice in self.slices.objects.values() {
            if self.services.objects.contains_key(&slice.service) {
                let of_service = ready.entry(&slice.service).or_default();
                for address in &slice.ready {
                    of_service.get_mut_by_address(*address).insert(*address);
                }
            }
        }
        let count = |addresses: &BTreeSet<_>| u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let served = self.services.objects.iter().map(|(key, service)| {
            let endpoints = ready.get(&**key).map(|ready| PerFamily {
                v4: count(&ready.v4),
                v6: count(&ready.v6),
            });
            let served = ServedService {
                service: Arc::clone(service),
                endpoints: endpoints.unwrap_or_default(),
            };
            (Arc::clone(key), served)
        });
        Some(ServiceTable(served.collect()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, policy: &str, port: u16) -> ServiceObject {
        let service = json!({"metadata": {"namespace": "a", "name": name, "uid": name}, "spec": {"type": "LoadBalancer",
            "externalTrafficPolicy": policy, "healthCheckNodePort": port, "clusterIPs": ["10.0.0.1", "fd00::1"]}});
        serde_json::from_value(service).unwrap()
    }

    /// An EndpointSlice of `service` with these ready addresses on this node.
    fn slice(service: &str, number: u8, ready: &[&str]) -> EndpointSliceObject {
        let is_v6 = ready.iter().any(|address| address.contains(':'));
        let kind = if is_v6 { "IPv6" } else { "IPv4" };
        let endpoint = |address| json!({"addresses": [address], "nodeName": "here"});
        let endpoints: Vec<_> = ready.iter().map(endpoint).collect();
        let slice = json!({"metadata": {"namespace": "a", "name": format!("{service}-{number}"),
            "labels": {"kubernetes.io/service-name": service}}, "addressType": kind, "endpoints": endpoints,
            "ports": [{"name": "", "port": 80}]});
        serde_json::from_value(slice).unwrap()
    }

    fn synced() -> ServiceIndex {
        let mut index = ServiceIndex::new("here".to_owned());
        index.apply_service(Event::InitDone);
        index.apply_slice(Event::InitDone);
        index
    }

    fn counts(index: &ServiceIndex, name: &str) -> Option<(u32, u32)> {
        let table = index.table()?;
        let served = table.get(&NamespacedName::new("a", name))?;
        Some((served.endpoints.v4, served.endpoints.v6))
    }

    #[test]
    fn there_is_no_table_before_both_kinds_were_listed() {
        let mut index = ServiceIndex::new("here".to_owned());
        assert!(!index.apply_service(Event::Init));
        assert!(!index.apply_service(Event::InitApply(service("b", "Local", 1))));
        assert!(index.apply_service(Event::InitDone));
        assert_eq!(index.table(), None);
        assert!(index.apply_slice(Event::InitDone));
        assert_eq!(counts(&index, "b"), Some((0, 0)));
    }

    #[test]
    fn endpoints_are_distinct_addresses_over_all_slices() {
        let mut index = synced();
        assert!(index.apply_service(Event::Apply(service("b", "Local", 1))));
        let (first, second) = (["10.1.0.1", "10.1.0.2"], ["10.1.0.2", "10.1.0.3"]);
        for (number, ready) in [(0, &first[..]), (1, &second), (2, &["fd01::1"])] {
            assert!(index.apply_slice(Event::Apply(slice("b", number, ready))));
        }
        assert!(index.apply_slice(Event::Apply(slice("other", 0, &["10.1.0.9"]))));
        assert_eq!(counts(&index, "b"), Some((3, 1)));
        assert!(
            !index.apply_slice(Event::Apply(slice("b", 0, &first))),
            "nothing changed"
        );
        assert!(index.apply_slice(Event::Delete(slice("b", 0, &[]))));
        assert_eq!(counts(&index, "b"), Some((2, 1)));
        // Its last local endpoint is gone.
        assert!(index.apply_slice(Event::Apply(slice("b", 1, &[]))));
        assert!(!index.apply_slice(Event::Delete(slice("b", 1, &[]))));
        assert_eq!(counts(&index, "b"), Some((0, 1)));
    }

    #[test]
    fn service_that_becomes_local_has_its_count_at_once() {
        let mut index = synced();
        index.apply_slice(Event::Apply(slice("b", 0, &["10.1.0.1"])));
        assert!(!index.apply_service(Event::Apply(service("b", "Cluster", 0))));
        assert_eq!(counts(&index, "b"), None);
        assert!(index.apply_service(Event::Apply(service("b", "Local", 7))));
        assert_eq!(counts(&index, "b"), Some((1, 0)));
        assert!(index.apply_service(Event::Apply(service("b", "Cluster", 0))));
        assert_eq!(counts(&index, "b"), None);
        assert!(!index.apply_service(Event::Delete(service("b", "Cluster", 0))));
    }

    #[test]
    fn complete_list_replaces_the_objects() {
        let mut index = synced();
        index.apply_service(Event::Apply(service("b", "Local", 1)));
        index.apply_service(Event::Apply(service("gone", "Local", 2)));
        assert!(!index.apply_service(Event::Init));
        assert!(!index.apply_service(Event::InitApply(service("b", "Local", 1))));
        assert!(counts(&index, "gone").is_some(), "the last state stays");
        // The list fails before its end and starts again.
        assert!(!index.apply_service(Event::Init));
        assert!(!index.apply_service(Event::InitApply(service("b", "Local", 1))));
        assert!(index.apply_service(Event::InitDone));
        assert_eq!((counts(&index, "b"), counts(&index, "gone")), (Some((0, 0)), None));
        assert!(!index.apply_service(Event::Init));
        assert!(!index.apply_service(Event::InitApply(service("b", "Local", 1))));
        assert!(!index.apply_service(Event::InitDone), "the same again");
    }
}
