//! The Services, EndpointSlices and Nodes of the cluster, as far as they decide about pools of Local Services.
//!
//! Invariants: applying an event costs no more than the object's own size, so that events are accepted at any rate; what
//! follows from them is computed once for each tick, from the state then; every event of a slice marks its Service as changed, even
//! where the members stay the same, because a changed Service is looked at again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use headgate_core::service::{EndpointSliceObject, IpFamily, NamespacedName, Service};

use crate::local_pools::nodes::{Node, NodeIndex};
use crate::local_pools::selection::{MemberSelection, SliceNodes, select_members};

/// What changed since it was last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The Services that changed themselves, or whose slices did.
    pub(crate) services: BTreeSet<NamespacedName>,
    /// Whether a Node changed: then every Service is looked at.
    pub(crate) are_nodes_changed: bool,
}

/// What is known of the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalServiceIndex {
    /// Also those without pools of their own: rules are named for them.
    services: BTreeMap<NamespacedName, Arc<Service>>,
    /// By Service and name. Slices of other Services are kept too, because a Service may become `Local`.
    slices: HashMap<NamespacedName, BTreeMap<NamespacedName, SliceNodes>>,
    /// The Service of each slice.
    owners: HashMap<NamespacedName, NamespacedName>,
    nodes: Arc<NodeIndex>,
    changed: Changed,
    are_services_changed: bool,
}

impl LocalServiceIndex {
    /// Adds or replaces a Service. Returns whether it has pools of its own.
    pub(crate) fn apply_service(&mut self, service: &Arc<Service>) -> bool {
        if self.services.get(&service.name) != Some(service) {
            self.are_services_changed = true;
            self.services.insert(service.name.clone(), Arc::clone(service));
            self.mark(service.name.clone());
        }
        service.has_local_pools()
    }

    /// Removes a Service.
    pub(crate) fn delete_service(&mut self, name: &NamespacedName) {
        self.are_services_changed |= self.services.remove(name).is_some();
    }

    /// Adds or replaces an EndpointSlice. One that has changed its Service, or lost it, changes both.
    pub(crate) fn apply_slice(&mut self, slice: &EndpointSliceObject) {
        let Some(name) = NamespacedName::of(&slice.metadata) else {
            return;
        };
        let service = slice.service();
        if self.owners.get(&name) != service.as_ref() {
            self.delete_slice(&name);
        }
        let Some(service) = service else {
            return;
        };
        let nodes = SliceNodes::new(slice, &self.nodes);
        self.owners.insert(name.clone(), service.clone());
        self.slices.entry(service.clone()).or_default().insert(name, nodes);
        self.mark(service);
    }

    /// Removes the EndpointSlice with this name.
    pub(crate) fn delete_slice(&mut self, name: &NamespacedName) {
        let Some(service) = self.owners.remove(name) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.mark(service);
    }

    /// Adds or replaces a Node.
    pub(crate) fn apply_node(&mut self, node: Node) {
        if Arc::make_mut(&mut self.nodes).apply(node) {
            self.changed.are_nodes_changed = true;
        }
    }

    /// Removes the Node with this name.
    pub(crate) fn delete_node(&mut self, name: &str) {
        if Arc::make_mut(&mut self.nodes).remove(name) {
            self.changed.are_nodes_changed = true;
        }
    }

    /// Sets the time; see [`NodeIndex::advance`].
    pub(crate) fn advance(&mut self, now: Instant) {
        if self.nodes.has_leaving() && Arc::make_mut(&mut self.nodes).advance(now) {
            self.changed.are_nodes_changed = true;
        }
    }

    /// Removes the Services that a new list does not have. Returns them.
    pub(crate) fn retain_services(&mut self, listed: &HashSet<NamespacedName>) -> Vec<NamespacedName> {
        let gone = self.services.keys().filter(|name| !listed.contains(*name));
        let gone: Vec<_> = gone.cloned().collect();
        for name in &gone {
            self.delete_service(name);
        }
        gone
    }

    /// Removes the EndpointSlices that a new list does not have.
    pub(crate) fn retain_slices(&mut self, listed: &HashSet<NamespacedName>) {
        let gone = self.owners.keys().filter(|name| !listed.contains(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.delete_slice(&name);
        }
    }

    /// Removes the Nodes that a new list does not have. The names are in lower case.
    pub(crate) fn retain_nodes(&mut self, listed: &HashSet<String>) {
        let gone = self.nodes.names().filter(|name| !listed.contains(*name));
        for name in gone.map(str::to_owned).collect::<Vec<_>>() {
            self.delete_node(&name);
        }
    }

    fn mark(&mut self, service: NamespacedName) {
        if self.service(&service).is_some() {
            self.changed.services.insert(service);
        }
    }

    /// What changed since this was last called.
    pub(crate) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    /// Whether a Service came, went or changed itself since this was last called: then pools are found anew.
    pub(crate) fn take_are_services_changed(&mut self) -> bool {
        std::mem::take(&mut self.are_services_changed)
    }

    /// All Services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|service| &**service)
    }

    /// The names of the Services with pools of their own.
    pub(crate) fn names(&self) -> impl Iterator<Item = &NamespacedName> {
        let local = self.services().filter(|service| service.has_local_pools());
        local.map(|service| &service.name)
    }

    /// The Service of this name, if it has pools of its own.
    pub(crate) fn service(&self, name: &NamespacedName) -> Option<&Service> {
        let service = self.services.get(name)?;
        service.has_local_pools().then_some(&**service)
    }

    /// The observed Nodes by name.
    pub(crate) fn nodes(&self) -> &Arc<NodeIndex> {
        &self.nodes
    }

    /// The members that a Service's pool of this family is to have. `None` where the Service has no slices.
    pub(crate) fn select(
        &self,
        service: &NamespacedName,
        family: IpFamily,
        is_ready_required: bool,
    ) -> Option<MemberSelection> {
        let slices = self.slices.get(service)?;
        select_members(slices.values(), is_ready_required, family, &self.nodes)
    }
}
