//! Writes: they take effect when they are accepted, start an operation, and end when it is due.

use std::time::Duration;

use headgate_core::clock::Moment;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Store, StoreEvent};
use crate::etag::Etag;
use crate::faults::action::{Effect, OperationEnd};
use crate::id::{ResourceId, same_name};
use crate::journal::EtagChange;
use crate::load_balancer::{self, POOLS};
use crate::nic_members::is_interface;
use crate::operations::{self, Operation, PlannedEnd, Removal, Revert, Status};
use crate::pool;
use crate::resource::{self, Object, ProvisioningState, Resource};

/// When a write is accepted, and how its operation runs.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) now: Moment,
    pub(crate) delay: Duration,
    /// How far reads lag this write.
    pub(crate) read_lag: Duration,
    /// How the operation ends and whether the write stays, where a fault says so.
    pub(crate) operation_end: Option<(OperationEnd, Effect)>,
}

impl WriteOptions {
    /// What the end of the operation reverts. The document may be large, so it is copied only where it is needed.
    fn revert(&self, before: Option<&Resource>, about: &ResourceId) -> Revert {
        let name = || about.name().to_owned();
        match &self.operation_end {
            Some((_, Effect::Lost)) => Revert::To(before.map(|resource| resource.document.clone())),
            Some((_, Effect::Emptied)) => Revert::Empty(name()),
            Some((_, Effect::LostWhenSuperseded)) => {
                let mut document = before.map(|resource| resource.document.clone()).unwrap_or_default();
                let members = pool::members_mut(&mut document, about.name()).map(Value::take);
                Revert::WhenSuperseded(name(), members.unwrap_or_else(|| Value::Array(Vec::new())))
            }
            _ => Revert::No,
        }
    }
}

/// A write that is about to be accepted.
struct WriteStart<'a> {
    /// The id in the request: the resource or a child of it.
    about: &'a ResourceId,
    revert: Revert,
    removal: Option<Removal>,
    /// The location of a new resource.
    location: Option<String>,
    /// Whether the write changes nothing.
    is_noop: bool,
}

/// An accepted write, and its operation.
#[derive(Debug)]
pub(crate) struct AcceptedWrite {
    pub(crate) created: bool,
    pub(crate) operation: Uuid,
}

impl Store {
    /// Writes a resource whose document is normalized, and starts the operation.
    pub(crate) fn write(
        &mut self,
        id: &ResourceId,
        mut document: Object,
        about: &ResourceId,
        options: &WriteOptions,
    ) -> AcceptedWrite {
        let key = id.key();
        let existing = self.resources.get(&key);
        let created = existing.is_none();
        let same =
            |resource: &Resource| resource.state == ProvisioningState::Succeeded && resource.document == document;
        let is_noop = options.operation_end.is_none() && existing.is_some_and(same);
        let revert = options.revert(existing, about);
        let older = existing.and_then(|resource| self.operations.in_progress(resource.operation?));
        if let Some(Revert::WhenSuperseded(name, before)) = older.map(|older| &older.planned_end.revert)
            && !same_name(name, about.name())
            && let Some(members) = pool::members_mut(&mut document, name)
        {
            members.clone_from(before);
        }
        let spelled = existing.map_or_else(|| id.clone(), |resource| resource.id.clone());
        let start = WriteStart {
            about,
            revert,
            removal: None,
            location: resource::location_of(&document),
            is_noop,
        };
        let operation = self.start_operation(&spelled, start, options);
        if is_noop {
            // Recorded: the write has succeeded when it is answered. Guess: the etag stays.
            return AcceptedWrite { created, operation };
        }
        self.keep_version(&key, options.now.mono, options.read_lag);
        let etag = self.next_etag(&key, None);
        let resource = Resource {
            id: spelled,
            document,
            etag,
            state: ProvisioningState::Updating,
            operation: Some(operation),
        };
        self.put(key, resource);
        AcceptedWrite { created, operation }
    }

    /// Starts the operation that deletes a resource or a child of it.
    pub(crate) fn delete(
        &mut self,
        id: &ResourceId,
        removal: Removal,
        about: &ResourceId,
        options: &WriteOptions,
    ) -> Option<Uuid> {
        let key = id.key();
        let resource = self.resources.get(&key)?;
        let (spelled, revert) = (resource.id.clone(), options.revert(Some(resource), about));
        // Guess: a resource that loses a child is Updating.
        let state = match removal {
            Removal::Itself => ProvisioningState::Deleting,
            Removal::Child(..) => ProvisioningState::Updating,
        };
        let start = WriteStart {
            about,
            revert,
            removal: Some(removal),
            location: None,
            is_noop: false,
        };
        let operation = self.start_operation(&spelled, start, options);
        self.keep_version(&key, options.now.mono, options.read_lag);
        let etag = self.next_etag(&key, None);
        if let Some(resource) = self.resources.get_mut(&key) {
            resource.etag = etag;
            resource.state = state;
            resource.operation = Some(operation);
        }
        Some(operation)
    }

    /// Replaces a document at once, without an operation.
    pub(crate) fn edit(&mut self, id: &ResourceId, document: Object) {
        let key = id.key();
        let etag = self.next_etag(&key, None);
        if let Some(mut resource) = self.resources.remove(&key) {
            resource.etag = etag;
            resource.document = document;
            self.put(key, resource);
        }
    }

    /// Removes all resources of a resource group.
    pub(crate) fn remove_group(&mut self, prefix: &str) {
        let all = self.below(prefix);
        let all: Vec<_> = all.map(|resource| (resource.id.key(), resource.operation)).collect();
        for (key, operation) in all {
            self.remove(&key);
            // The operation has nothing left to do; without this such operations would add up until they are due.
            if let Some(operation) = operation.and_then(|id| self.operations.in_progress(id)).cloned() {
                self.end(&operation);
            }
        }
    }

    /// Ends all operations that are due.
    pub(crate) fn end_due_operations(&mut self, now: Instant, read_lag: Duration) {
        while let Some((due, operation)) = self.operations.next_due(now) {
            self.keep_version(&operation.resource.key(), due, read_lag);
            self.end(&operation);
        }
    }

    /// Keeps the current version of a resource, which is about to be replaced, for reads that lag.
    fn keep_version(&mut self, key: &str, now: Instant, read_lag: Duration) {
        if let Some(replaced) = self.resources.get(key) {
            self.earlier.keep(replaced, now, read_lag);
        }
    }

    /// Starts the operation of a write, and supersedes the one in progress.
    fn start_operation(&mut self, id: &ResourceId, start: WriteStart<'_>, options: &WriteOptions) -> Uuid {
        let WriteStart {
            about,
            revert,
            removal,
            location,
            is_noop,
        } = start;
        let verb = if removal.is_some() { "Delete" } else { "Put" };
        let (operation, name) = (self.guids.next(), operations::operation_name(verb, about));
        let resource = self.resources.get(&id.key());
        let location = location.or_else(|| resource::location_of(&resource?.document));
        let older = resource
            .and_then(|resource| self.operations.in_progress(resource.operation?))
            .cloned();
        if let Some(older) = older {
            let status = Status::Canceled(older.superseded_by(&name, operation));
            self.add_end_event(&older, &status, Some(operation), Vec::new());
            self.operations.end(older.id, status);
        }
        let end = options
            .operation_end
            .clone()
            .map_or(OperationEnd::Succeeded, |(end, _)| end);
        let planned_end = PlannedEnd { end, revert };
        self.operations.add(Operation {
            id: operation,
            name,
            resource: id.clone(),
            status: if is_noop { Status::Succeeded } else { Status::InProgress },
            planned_end,
            removal,
            location: location.unwrap_or_else(|| "eastus".to_owned()),
            started: options.now.wall,
            due: options.now.mono + options.delay,
        });
        operation
    }

    fn end(&mut self, operation: &Operation) {
        // Changes before this index belong to the request.
        let first = self.changes.len();
        let status = self.apply_end(operation);
        let changes = self.changes.split_off(first);
        self.add_end_event(operation, &status, None, changes);
        self.operations.end(operation.id, status);
    }

    /// Applies the end of an operation to its resource, and returns the final status.
    fn apply_end(&mut self, operation: &Operation) -> Status {
        let key = operation.resource.key();
        let is_current = self
            .resources
            .get(&key)
            .is_some_and(|resource| resource.operation == Some(operation.id));
        let (status, state) = match operation.planned_end.end.clone() {
            OperationEnd::Succeeded => (Status::Succeeded, ProvisioningState::Succeeded),
            OperationEnd::Failed(error) => (Status::Failed(error), ProvisioningState::Failed),
            OperationEnd::Canceled(error) => (Status::Canceled(error), ProvisioningState::Canceled),
        };
        let removal = operation
            .removal
            .as_ref()
            .filter(|_| status == Status::Succeeded && !matches!(operation.planned_end.revert, Revert::To(_)));
        if !is_current {
            return status;
        }
        if removal == Some(&Removal::Itself) || operation.planned_end.revert == Revert::To(None) {
            self.remove(&key);
            return status;
        }
        let etag = self.next_etag(&key, None);
        let Some(mut resource) = self.resources.remove(&key) else {
            return status;
        };
        resource.etag = etag;
        resource.state = state;
        resource.operation = None;
        match &operation.planned_end.revert {
            Revert::To(Some(before)) => resource.document.clone_from(before),
            Revert::Empty(name) => {
                if let Some(members) = pool::members_mut(&mut resource.document, name) {
                    *members = Value::Array(Vec::new());
                }
            }
            Revert::No | Revert::To(None) | Revert::WhenSuperseded(..) => {}
        }
        if let Some(Removal::Child(kind, name)) = removal {
            load_balancer::remove(&mut resource.document, kind, name);
        }
        self.put(key, resource);
        status
    }

    /// A new etag for a resource that is about to change, recorded for the journal.
    fn next_etag(&mut self, key: &str, why: Option<String>) -> Etag {
        let after = Etag(self.guids.next());
        let before = self.resources.get(key);
        self.changes.push(EtagChange {
            resource: before.map_or_else(|| key.to_owned(), |resource| resource.id.to_string()),
            before: before.map(|resource| resource.etag.to_string()),
            after: Some(after.to_string()),
            why,
        });
        after
    }

    fn put(&mut self, key: String, resource: Resource) {
        if is_interface(&resource.id) {
            let pools = self.members.update(&resource);
            self.update_member_pools(&resource.id, pools);
        }
        self.resources.insert(key, resource);
    }

    fn remove(&mut self, key: &str) {
        let Some(resource) = self.resources.remove(key) else {
            return;
        };
        self.changes.push(EtagChange {
            resource: resource.id.to_string(),
            before: Some(resource.etag.to_string()),
            after: None,
            why: None,
        });
        if is_interface(&resource.id) {
            let pools = self.members.remove(&resource.id);
            self.update_member_pools(&resource.id, pools);
        }
    }

    fn add_end_event(
        &mut self,
        operation: &Operation,
        status: &Status,
        superseded_by: Option<Uuid>,
        changes: Vec<EtagChange>,
    ) {
        self.ended.push(StoreEvent::OperationEnded {
            id: operation.id,
            name: operation.name.clone(),
            resource: operation.resource.to_string(),
            status: status.as_str(),
            superseded_by,
            changes,
        });
    }

    /// Guess: when the members of a pool change at their interfaces, its load balancer gets a new etag.
    fn update_member_pools(&mut self, interface: &ResourceId, pools: Vec<String>) {
        let mut load_balancers: Vec<String> = Vec::new();
        for pool in pools {
            let Some(id) = ResourceId::parse(&pool) else { continue };
            let load_balancer = id.ancestor(1).key();
            let Some(resource) = self.resources.get_mut(&load_balancer) else {
                continue;
            };
            let members = self.members.get(&pool);
            for kept in resource::children_mut(&mut resource.document, POOLS)
                .into_iter()
                .flatten()
            {
                if resource::name_of(kept).is_some_and(|name| same_name(name, id.name()))
                    && let Some(kept) = kept.as_object_mut()
                {
                    pool::remove_departed(kept, &interface.to_string(), members);
                }
            }
            if !load_balancers.contains(&load_balancer) {
                load_balancers.push(load_balancer);
            }
        }
        for load_balancer in load_balancers {
            let etag = self.next_etag(&load_balancer, Some(format!("the members that {interface} states")));
            if let Some(resource) = self.resources.get_mut(&load_balancer) {
                resource.etag = etag;
            }
        }
    }
}
