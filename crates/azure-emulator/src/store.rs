//! The resources, and the writes under way on them.
//!
//! A write takes effect when it is accepted and gets the resource a new etag; another one comes when its
//! operation ends. There is one operation at a time for a top-level resource: a newer write supersedes
//! the older, whose operation ends Canceled. What of the older's document the newer did not replace
//! stays (a guess: nothing is recorded about it).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use headgate_clock::Moment;
use tokio::time::Instant;
use uuid::Uuid;

use super::etag::Etag;
use super::fault::{Effect, End};
use super::guids::Guids;
use super::id::ResourceId;
use super::journal::Change;
use super::load_balancer;
use super::members::{Members, is_interface};
use super::operations::{self, Accepted, Ending, Operation, Operations, Removal, Status, Undo};
use super::record::{self, Object, ProvisioningState, Record};

mod membership;
mod shown;

/// A resource group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) subscription: String,
    pub(super) name: String,
    pub(super) document: Object,
}

/// What the journal is to know.
#[derive(Debug)]
pub(super) enum Happened {
    /// The request itself changed an etag.
    Changed(Change),
    /// An operation ended.
    Ended {
        id: Uuid,
        name: String,
        resource: String,
        status: &'static str,
        superseded_by: Option<Uuid>,
        changes: Vec<Change>,
    },
}

/// How a write is to go.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) now: Moment,
    pub(super) delay: Duration,
    /// How its operation ends and what stays of the write, where that was asked for.
    pub(super) ends: Option<(End, Effect)>,
}

impl Terms {
    /// What a write of this record leaves to be undone. A document may be large: it is copied where it will be wanted.
    fn undo(&self, before: Option<&Record>) -> Undo {
        match &self.ends {
            Some((_, Effect::Lost)) => Undo::To(before.map(|record| record.document.clone())),
            _ => Undo::No,
        }
    }
}

/// A write that is about to start.
struct Start<'a> {
    verb: &'static str,
    /// What it is about: the resource or a child of it.
    about: &'a ResourceId,
    undo: Undo,
    removal: Option<Removal>,
    /// Where a new one will be.
    location: Option<String>,
    /// Whether there is nothing to do.
    done: bool,
}

/// An accepted write.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) created: bool,
    pub(super) operation: Uuid,
}

/// Everything there is.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) groups: BTreeMap<String, Group>,
    records: BTreeMap<String, Record>,
    members: Members,
    pub(super) operations: Operations,
    guids: Guids,
    changes: Vec<Change>,
    ended: Vec<Happened>,
}

impl Store {
    pub(super) fn new(guids: Guids) -> Self {
        Self {
            groups: BTreeMap::new(),
            records: BTreeMap::new(),
            members: Members::default(),
            operations: Operations::default(),
            guids,
            changes: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// What happened since this was last asked: first what ended, then what the request changed.
    pub(super) fn happened(&mut self) -> Vec<Happened> {
        let mut happened = std::mem::take(&mut self.ended);
        happened.extend(std::mem::take(&mut self.changes).into_iter().map(Happened::Changed));
        happened
    }

    fn note_end(&mut self, operation: &Operation, status: &Status, superseded_by: Option<Uuid>, changes: Vec<Change>) {
        self.ended.push(Happened::Ended {
            id: operation.id,
            name: operation.name.clone(),
            resource: operation.resource.to_string(),
            status: status.word(),
            superseded_by,
            changes,
        });
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// The record of a top-level resource.
    pub(super) fn find(&self, id: &ResourceId) -> Option<&Record> {
        self.records.get(&id.key())
    }

    /// The records whose keys begin with this text, after that key.
    pub(super) fn below<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> impl Iterator<Item = &'a Record> {
        let start = after.map_or(Bound::Included(prefix), Bound::Excluded);
        let range = self.records.range::<str, _>((start, Bound::Unbounded));
        let inside = range.take_while(move |(key, _)| key.starts_with(prefix));
        inside.map(|(_, record)| record)
    }

    /// Puts a resource there as a seed file says.
    pub(super) fn seed(&mut self, id: ResourceId, document: Object) {
        let etag = Etag(self.guids.next());
        let key = id.key();
        let state = ProvisioningState::Succeeded;
        let record = Record {
            id,
            document,
            etag,
            state,
            operation: None,
        };
        if is_interface(&record.id) {
            self.members.apply(&record);
        }
        self.records.insert(key, record);
    }

    /// Writes a resource. The document has been checked.
    pub(super) fn write(
        &mut self,
        id: &ResourceId,
        document: Object,
        verb: &'static str,
        about: &ResourceId,
        terms: &Terms,
    ) -> Written {
        let key = id.key();
        let existing = self.records.get(&key);
        let created = existing.is_none();
        let same = |record: &Record| record.state == ProvisioningState::Succeeded && record.document == document;
        let nothing = terms.ends.is_none() && existing.is_some_and(same);
        let undo = terms.undo(existing);
        let spelled = existing.map_or_else(|| id.clone(), |record| record.id.clone());
        let start = Start {
            verb,
            about,
            undo,
            removal: None,
            location: record::located(&document),
            done: nothing,
        };
        let operation = self.accept(&spelled, start, terms);
        if nothing {
            // Recorded: such a write has succeeded when it is answered. A guess: the etag stays.
            return Written { created, operation };
        }
        let etag = self.changed(&key, None);
        let record = Record {
            id: spelled,
            document,
            etag,
            state: ProvisioningState::Updating,
            operation: Some(operation),
        };
        self.put(key, record);
        Written { created, operation }
    }

    /// Begins to remove a resource or a child of it.
    pub(super) fn delete(
        &mut self,
        id: &ResourceId,
        removal: Removal,
        about: &ResourceId,
        terms: &Terms,
    ) -> Option<Uuid> {
        let key = id.key();
        let record = self.records.get(&key)?;
        let (spelled, undo) = (record.id.clone(), terms.undo(Some(record)));
        // A guess: who loses a child is being updated.
        let state = match removal {
            Removal::Itself => ProvisioningState::Deleting,
            Removal::Child(..) => ProvisioningState::Updating,
        };
        let start = Start {
            verb: "Delete",
            about,
            undo,
            removal: Some(removal),
            location: None,
            done: false,
        };
        let operation = self.accept(&spelled, start, terms);
        let etag = self.changed(&key, None);
        if let Some(record) = self.records.get_mut(&key) {
            record.etag = etag;
            record.state = state;
            record.operation = Some(operation);
        }
        Some(operation)
    }

    /// Changes a document at once, without an operation.
    pub(super) fn edit(&mut self, id: &ResourceId, document: Object) {
        let key = id.key();
        let etag = self.changed(&key, None);
        if let Some(mut record) = self.records.remove(&key) {
            record.etag = etag;
            record.document = document;
            self.put(key, record);
        }
    }

    /// Removes everything in a resource group.
    pub(super) fn remove_group(&mut self, prefix: &str) {
        let all = self.below(prefix, None);
        let all: Vec<_> = all.map(|record| (record.id.key(), record.operation)).collect();
        for (key, operation) in all {
            self.remove(&key);
            // Nothing is left for it to do, and such operations would add up until they are due.
            if let Some(operation) = operation.and_then(|id| self.operations.in_progress(id)).cloned() {
                self.end(&operation);
            }
        }
    }

    /// Ends every operation that is due.
    pub(super) fn settle(&mut self, now: Instant) {
        while let Some(operation) = self.operations.next_due(now) {
            self.end(&operation);
        }
    }

    /// Starts the operation of a write; an older one that is under way is superseded.
    fn accept(&mut self, id: &ResourceId, start: Start<'_>, terms: &Terms) -> Uuid {
        let Start {
            verb,
            about,
            undo,
            removal,
            location,
            done,
        } = start;
        let (operation, name) = (self.guids.next(), operations::name(verb, about));
        let record = self.records.get(&id.key());
        let location = location.or_else(|| record::located(&record?.document));
        let older = record
            .and_then(|record| self.operations.in_progress(record.operation?))
            .cloned();
        if let Some(older) = older {
            let status = Status::Canceled(older.superseded_by(&name, operation));
            self.note_end(&older, &status, Some(operation), Vec::new());
            self.operations.end(older.id, status);
        }
        let end = terms.ends.clone().map_or(End::Succeeded, |(end, _)| end);
        let ending = Ending { end, undo };
        let accepted = Accepted {
            id: operation,
            name,
            resource: id.clone(),
            location: location.unwrap_or_else(|| "eastus".to_owned()),
            ending,
            removal,
            done,
        };
        self.operations
            .accept(accepted, terms.now.wall, terms.now.mono, terms.delay);
        operation
    }

    fn end(&mut self, operation: &Operation) {
        // What the request before this changed has been taken.
        let before = self.changes.len();
        let status = self.carry_out(operation);
        let changes = self.changes.split_off(before);
        self.note_end(operation, &status, None, changes);
        self.operations.end(operation.id, status);
    }

    /// Does what is left to do at the end of an operation; how it ended.
    fn carry_out(&mut self, operation: &Operation) -> Status {
        let key = operation.resource.key();
        let current = self
            .records
            .get(&key)
            .is_some_and(|record| record.operation == Some(operation.id));
        let (status, state) = match operation.ending.end.clone() {
            End::Succeeded => (Status::Succeeded, ProvisioningState::Succeeded),
            End::Failed(error) => (Status::Failed(error), ProvisioningState::Failed),
            End::Canceled(error) => (Status::Canceled(error), ProvisioningState::Canceled),
        };
        let removal = operation
            .removal
            .as_ref()
            .filter(|_| status == Status::Succeeded && operation.ending.undo == Undo::No);
        if !current {
            return status;
        }
        if removal == Some(&Removal::Itself) || operation.ending.undo == Undo::To(None) {
            self.remove(&key);
            return status;
        }
        let etag = self.changed(&key, None);
        let Some(mut record) = self.records.remove(&key) else {
            return status;
        };
        record.etag = etag;
        record.state = state;
        record.operation = None;
        if let Undo::To(Some(before)) = &operation.ending.undo {
            record.document.clone_from(before);
        }
        if let Some(Removal::Child(kind, name)) = removal {
            load_balancer::remove(&mut record.document, kind, name);
        }
        self.put(key, record);
        status
    }

    /// A new etag for a record that is about to change, noted for the journal.
    fn changed(&mut self, key: &str, why: Option<String>) -> Etag {
        let after = Etag(self.guids.next());
        let before = self.records.get(key);
        self.changes.push(Change {
            resource: before.map_or_else(|| key.to_owned(), |record| record.id.to_string()),
            before: before.map(|record| record.etag.to_string()),
            after: Some(after.to_string()),
            why,
        });
        after
    }

    fn put(&mut self, key: String, record: Record) {
        if is_interface(&record.id) {
            let pools = self.members.apply(&record);
            self.members_changed(&record.id, pools);
        }
        self.records.insert(key, record);
    }

    fn remove(&mut self, key: &str) {
        let Some(record) = self.records.remove(key) else { return };
        self.changes.push(Change {
            resource: record.id.to_string(),
            before: Some(record.etag.to_string()),
            after: None,
            why: None,
        });
        if is_interface(&record.id) {
            let pools = self.members.remove(&record.id);
            self.members_changed(&record.id, pools);
        }
    }
}
