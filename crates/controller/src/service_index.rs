//! Which Nodes have a serving endpoint of each Service with a `healthCheckNodePort`, found by that port, by its name, or by a rule's name.
//! Pure.
//!
//! An endpoint serves as it does for kube-proxy: while it is ready and has a port, so one that only terminates does not, and for rules of its
//! family only. No object is kept: of an EndpointSlice only the family, and the Nodes with a serving endpoint, whose names are in memory once,
//! for as long as a slice has them.
//!
//! Invariant: before both lists are complete, and while the API server does not confirm them, [`ServiceIndex::unknown`] says so.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::local_pools::base_name;
use headgate_core::service::{EndpointSliceObject, IpFamily, NamespacedName, Service};

/// The serving Nodes of all Services of type `LoadBalancer` with `externalTrafficPolicy: Local`.
#[derive(Clone, Debug, Default)]
pub struct ServiceIndex {
    services: HashMap<NamespacedName, KnownService>,
    ports: HashMap<u16, NamespacedName>,
    base_names: HashMap<String, NamespacedName>,
    service_of_slice: HashMap<NamespacedName, NamespacedName>,
    /// How many slices have each.
    node_names: HashMap<Arc<str>, usize>,
    listed: Listed,
    /// Whether the first lists take too long.
    is_overdue: bool,
    stale: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    services: bool,
    slices: bool,
}

/// A Service, or one of which only slices are known.
#[derive(Clone, Debug, Default)]
struct KnownService {
    is_load_balancer: bool,
    has_frontend: bool,
    /// 0 without one.
    health_check_port: u16,
    /// What its rules' names begin with; only with a `healthCheckNodePort`.
    base_name: Option<String>,
    /// By the name of the slice.
    slices: HashMap<Box<str>, ServingNodes>,
}

/// The Nodes with a serving endpoint in one slice, in the order of their names, and since when each is known to have one of the slice's family.
#[derive(Clone, Debug, Default)]
struct ServingNodes {
    family: Option<IpFamily>,
    nodes: Box<[(Arc<str>, Instant)]>,
}

impl ServingNodes {
    fn since(&self, node: &str, family: Option<IpFamily>) -> Option<Instant> {
        let found = self.nodes.binary_search_by(|(name, _)| (**name).cmp(node)).ok()?;
        let (_, since) = self.nodes.get(found)?;
        (self.family == family).then_some(*since)
    }
}

/// Why the serving Nodes are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The first lists are under way.
    Listing,
    /// They take too long: the API server refuses them, or does not answer.
    NotListed,
    /// The API server does not confirm this resource any more.
    Stale(&'static str),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listing | Self::NotListed => f.write_str("Services and EndpointSlices are not listed"),
            Self::Stale(resource) => write!(f, "the list of {resource} is stale"),
        }
    }
}

/// A Service with a `healthCheckNodePort`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalService<'a> {
    /// The Service.
    pub(crate) name: &'a NamespacedName,
    service: &'a KnownService,
}

impl LocalService<'_> {
    /// Since when the Node is known to have a serving endpoint of this family; `None` if it has none.
    pub(crate) fn serves_since(&self, node: &str, family: IpFamily) -> Option<Instant> {
        self.service.serves_since(node, Some(family))
    }

    /// The names of the Nodes with a serving endpoint of this family. One with endpoints in several slices occurs for each.
    pub(crate) fn nodes(&self, family: IpFamily) -> impl Iterator<Item = &str> {
        let slices = self
            .service
            .slices
            .values()
            .filter(move |slice| slice.family == Some(family));
        slices.flat_map(|slice| &slice.nodes).map(|(name, _)| &**name)
    }
}

impl ServiceIndex {
    /// Why nothing may be concluded from the index; `None` if it is complete and current.
    pub(crate) fn unknown(&self) -> Option<Unknown> {
        match self.listed {
            Listed {
                services: true,
                slices: true,
            } => self.stale.map(Unknown::Stale),
            _ if self.is_overdue => Some(Unknown::NotListed),
            _ => Some(Unknown::Listing),
        }
    }

    /// The Service with this `healthCheckNodePort`.
    pub(crate) fn service_with_port(&self, port: u16) -> Option<LocalService<'_>> {
        let (name, service) = self.services.get_key_value(self.ports.get(&port)?)?;
        Some(LocalService { name, service })
    }

    /// The Service that cloud-controller-manager made a rule of this name for, if the Service has a `healthCheckNodePort`. A base name
    /// has no dash.
    pub(crate) fn service_of_rule(&self, rule: &str) -> Option<LocalService<'_>> {
        let base_name = rule.split('-').next()?.to_ascii_lowercase();
        let (name, service) = self.services.get_key_value(self.base_names.get(&base_name)?)?;
        Some(LocalService { name, service })
    }

    /// The Service of this name, if it has a `healthCheckNodePort`.
    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<LocalService<'_>> {
        let (name, service) = self.services.get_key_value(&NamespacedName::new(namespace, name))?;
        (service.is_load_balancer && service.health_check_port != 0).then_some(LocalService { name, service })
    }

    /// Whether it is known that cloud-controller-manager has made a load balancer for no Service; `None` while the first lists are under way. One
    /// without a frontend in its status may wait for ever, and whoever may create Services would keep every node from being out.
    pub(crate) fn has_no_load_balancer_service(&self) -> Option<bool> {
        let has_load_balancer = |service: &KnownService| service.is_load_balancer && service.has_frontend;
        match self.unknown() {
            Some(Unknown::Listing) => None,
            unknown => Some(unknown.is_none() && !self.services.values().any(has_load_balancer)),
        }
    }

    /// Adds or replaces a Service. Returns whether anything changed that a plan depends on.
    pub fn apply_service(&mut self, service: &Service) -> bool {
        let is_changed = self.set_service(
            &service.name,
            !service.has_class,
            service.health_check_port,
            &service.uid,
        );
        if let Some(known) = self.services.get_mut(&service.name) {
            known.has_frontend = service.frontends > 0;
        }
        is_changed
    }

    /// Removes a Service. Its slices stay until they are removed, too.
    pub(crate) fn delete_service(&mut self, name: &NamespacedName) -> bool {
        self.set_service(name, false, 0, "")
    }

    fn set_service(&mut self, name: &NamespacedName, is_load_balancer: bool, port: u16, uid: &str) -> bool {
        let port = if is_load_balancer { port } else { 0 };
        let base_name = base_name(uid).filter(|_| port != 0);
        if !is_load_balancer && !self.services.contains_key(name) {
            return false;
        }
        let service = self.services.entry(name.clone()).or_default();
        let before = (service.is_load_balancer, service.health_check_port);
        if before == (is_load_balancer, port) && service.base_name == base_name {
            return false;
        }
        (service.is_load_balancer, service.health_check_port) = (is_load_balancer, port);
        let base_name_before = std::mem::replace(&mut service.base_name, base_name.clone());
        if self.ports.get(&before.1) == Some(name) {
            self.ports.remove(&before.1);
        }
        if port != 0 {
            self.ports.insert(port, name.clone());
        }
        if let Some(before) = base_name_before
            && self.base_names.get(&before) == Some(name)
        {
            self.base_names.remove(&before);
        }
        if let Some(base_name) = base_name {
            self.base_names.insert(base_name, name.clone());
        }
        self.forget_if_empty(name);
        true
    }

    /// After a complete list of Services: removes those that it does not have.
    /// Returns whether there was one.
    pub fn retain_services(&mut self, listed: &HashSet<NamespacedName>) -> bool {
        self.listed.services = true;
        let known = self.services.iter().filter(|(_, service)| service.is_load_balancer);
        let gone: Vec<_> = known
            .map(|(name, _)| name)
            .filter(|name| !listed.contains(name))
            .cloned()
            .collect();
        for name in &gone {
            self.delete_service(name);
        }
        !gone.is_empty()
    }

    /// Whether a complete list of Services was seen.
    pub(crate) fn are_services_listed(&self) -> bool {
        self.listed.services
    }

    /// Adds or replaces a slice. Returns whether the serving Nodes of a Service changed whose rules probe for them.
    pub fn apply_slice(&mut self, slice: &EndpointSliceObject, now: Instant) -> bool {
        let Some(name) = NamespacedName::of(&slice.metadata) else {
            return false;
        };
        let service = slice.service();
        let mut is_changed = false;
        if self.service_of_slice.get(&name) != service.as_ref() {
            is_changed = self.delete_slice(&name);
        }
        let Some(service) = service else {
            return is_changed;
        };
        let names: BTreeSet<&str> = slice.ready_endpoints().map(|(node, _)| node).collect();
        let names: Vec<Arc<str>> = names.into_iter().map(|name| self.intern(name)).collect();
        self.service_of_slice.insert(name.clone(), service.clone());
        let known = self.services.entry(service).or_default();
        let family = slice.family();
        let since = |name: Arc<str>| {
            let since = known.serves_since(&name, family).unwrap_or(now);
            (name, since)
        };
        let nodes = names.into_iter().map(since).collect();
        let (before, is_replaced) = known.replace(name.name(), Some(ServingNodes { family, nodes }));
        self.release(&before);
        is_replaced || is_changed
    }

    /// Removes a slice.
    pub(crate) fn delete_slice(&mut self, slice: &NamespacedName) -> bool {
        let Some(service) = self.service_of_slice.remove(slice) else {
            return false;
        };
        let known = self.services.get_mut(&service);
        let (before, is_changed) = known.map(|known| known.replace(slice.name(), None)).unwrap_or_default();
        self.release(&before);
        self.forget_if_empty(&service);
        is_changed
    }

    /// After a complete list of EndpointSlices: removes those that it does not have.
    pub fn retain_slices(&mut self, listed: &HashSet<NamespacedName>) {
        self.listed.slices = true;
        let known = self.service_of_slice.keys();
        let gone: Vec<_> = known.filter(|slice| !listed.contains(slice)).cloned().collect();
        for slice in &gone {
            self.delete_slice(slice);
        }
    }

    /// Records which resource the API server does not confirm any more.
    pub(crate) fn set_stale(&mut self, stale: Option<&'static str>) {
        self.stale = stale;
    }

    /// Records that the first lists take too long.
    pub(crate) fn set_overdue(&mut self) {
        self.is_overdue = true;
    }

    /// The names of all slices.
    #[cfg(test)]
    pub(crate) fn slice_names(&self) -> HashSet<NamespacedName> {
        self.service_of_slice.keys().cloned().collect()
    }

    /// The name for one more slice.
    fn intern(&mut self, name: &str) -> Arc<str> {
        let known = self.node_names.get_key_value(name).map(|(known, _)| Arc::clone(known));
        let name = known.unwrap_or_else(|| name.into());
        *self.node_names.entry(Arc::clone(&name)).or_default() += 1;
        name
    }

    /// Forgets the names that no slice has after this one. Whoever writes slices chooses them, and a watch may go on without a list.
    fn release(&mut self, slice: &ServingNodes) {
        for (name, _) in &slice.nodes {
            if let Some(slices) = self.node_names.get_mut(name) {
                *slices -= 1;
                if *slices == 0 {
                    self.node_names.remove(name);
                }
            }
        }
    }

    fn forget_if_empty(&mut self, name: &NamespacedName) {
        let is_empty = |service: &KnownService| !service.is_load_balancer && service.slices.is_empty();
        if self.services.get(name).is_some_and(is_empty) {
            self.services.remove(name);
        }
    }
}

impl KnownService {
    fn serves_since(&self, node: &str, family: Option<IpFamily>) -> Option<Instant> {
        self.slices.values().filter_map(|slice| slice.since(node, family)).min()
    }

    /// Replaces or removes a slice. Returns what it was, and whether other Nodes serve than before, where rules may probe for them.
    fn replace(&mut self, slice: &str, nodes: Option<ServingNodes>) -> (ServingNodes, bool) {
        let before = self.slices.remove(slice).unwrap_or_default();
        let is_present = nodes.is_some();
        let after = nodes.unwrap_or_default();
        let differs = |one: &ServingNodes, other: &ServingNodes| {
            let family = one.family;
            let mut only = one.nodes.iter().filter(|(node, _)| other.since(node, family).is_none());
            only.any(|(node, _)| self.serves_since(node, family).is_none())
        };
        let is_changed = differs(&before, &after) || differs(&after, &before);
        if is_present {
            self.slices.insert(slice.into(), after);
        }
        (before, is_changed && self.health_check_port != 0)
    }
}

#[cfg(test)]
mod tests;
