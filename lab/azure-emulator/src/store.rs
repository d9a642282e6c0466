//! The resources, the resource groups, and the operations on them. `store/mutations.rs` has the writes, `store/view.rs`
//! what a GET shows.
//!
//! A write takes effect when it is accepted, and gives the resource a new etag; it gets another one when the operation
//! ends. A top-level resource has one operation at a time: a newer write supersedes the older one, whose operation ends
//! Canceled. Guess: parts of the older document that the newer write did not replace stay.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use self::earlier::EarlierVersions;
use super::etag::Etag;
use super::guids::GuidGenerator;
use super::id::ResourceId;
use super::journal::EtagChange;
use super::nic_members::{NicMembers, is_interface};
use super::operations::Operations;
use super::resource::{Object, ProvisioningState, Resource};

mod earlier;
mod mutations;
mod view;

pub(super) use self::mutations::{AcceptedWrite, WriteOptions};

/// A resource group; `document` has what clients wrote.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) subscription: String,
    pub(super) name: String,
    pub(super) document: Object,
}

/// Something for the journal.
#[derive(Debug)]
pub(super) enum StoreEvent {
    /// The request that is being handled changed an etag.
    EtagChanged(EtagChange),
    /// An operation has ended.
    OperationEnded {
        id: Uuid,
        name: String,
        resource: String,
        status: &'static str,
        superseded_by: Option<Uuid>,
        changes: Vec<EtagChange>,
    },
}

/// Resources and resource groups by their keys, NIC members, operations, and the events that are not yet in the
/// journal.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) groups: BTreeMap<String, Group>,
    resources: BTreeMap<String, Resource>,
    earlier: EarlierVersions,
    members: NicMembers,
    pub(super) operations: Operations,
    guids: GuidGenerator,
    changes: Vec<EtagChange>,
    ended: Vec<StoreEvent>,
}

impl Store {
    pub(super) fn new(guids: GuidGenerator) -> Self {
        Self {
            groups: BTreeMap::new(),
            resources: BTreeMap::new(),
            earlier: EarlierVersions::default(),
            members: NicMembers::default(),
            operations: Operations::default(),
            guids,
            changes: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Takes the events since the last call: first the ends of operations, then the etags that the request changed.
    pub(super) fn take_events(&mut self) -> Vec<StoreEvent> {
        let mut events = std::mem::take(&mut self.ended);
        events.extend(
            std::mem::take(&mut self.changes)
                .into_iter()
                .map(StoreEvent::EtagChanged),
        );
        events
    }

    pub(super) fn members(&self) -> &NicMembers {
        &self.members
    }

    /// The top-level resource with this id.
    pub(super) fn find(&self, id: &ResourceId) -> Option<&Resource> {
        self.resources.get(&id.key())
    }

    /// The resource as a read shows it that lags writes by this time.
    pub(super) fn seen<'a>(&'a self, resource: &'a Resource, now: Instant, lag: Duration) -> &'a Resource {
        self.earlier.at(&resource.id.key(), now, lag).unwrap_or(resource)
    }

    /// The resources whose keys begin with this text, in the order of their keys.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Resource> {
        let range = self
            .resources
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let inside = range.take_while(move |(key, _)| key.starts_with(prefix));
        inside.map(|(_, resource)| resource)
    }

    /// All resources, in the order of their keys.
    pub(super) fn all(&self) -> impl Iterator<Item = &Resource> {
        self.resources.values()
    }

    /// Adds a resource of the seed.
    pub(super) fn seed(&mut self, id: ResourceId, document: Object) {
        let etag = Etag(self.guids.next());
        let key = id.key();
        let state = ProvisioningState::Succeeded;
        let resource = Resource {
            id,
            document,
            etag,
            state,
            operation: None,
        };
        if is_interface(&resource.id) {
            self.members.update(&resource);
        }
        self.resources.insert(key, resource);
    }
}
