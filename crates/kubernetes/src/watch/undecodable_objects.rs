//! The objects of a stream that cannot be decoded: they are skipped, named in a log and an event, and counted.
//!
//! Invariants: an object is skipped for as long as it cannot be decoded, and no other object with it. A consumer keeps the last
//! version that it got of an object that becomes undecodable, until a list is complete without it or the object is deleted. An object is
//! logged when it becomes undecodable or for another reason than before, at most `MAX_REPORTS` of a stream in a minute; the gauge
//! and the receiver have all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headgate_core::telemetry::MetricTable;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::decoded::{Decoded, Undecodable};
use crate::{EventKind, EventSink};

/// The reason of the event about such an object.
const REASON: &str = "ObjectUndecodable";
const ACTION: &str = "SkipObject";
/// Logs and events of a stream in each `REPORT_INTERVAL`: who can write such objects can write many.
const MAX_REPORTS: u32 = 10;
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// The objects of a stream that cannot be decoded, by [`Undecodable::name`].
pub type UndecodableObjects = BTreeMap<String, Undecodable>;

/// The streams of this process, each with its kind and what it skips. Several may skip the same object.
static STREAMS: Mutex<Vec<(String, watch::Receiver<UndecodableObjects>)>> = Mutex::new(Vec::new());

fn streams() -> MutexGuard<'static, Vec<(String, watch::Receiver<UndecodableObjects>)>> {
    // No section that holds the mutex can panic halfway.
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the gauge of undecodable objects, which shows the kinds that have some.
pub fn register_undecodable_objects<'a>(registry: impl Into<MetricTable<'a>>) {
    registry.into().at_scrape(|gauges| {
        let mut skipped = BTreeMap::<String, BTreeSet<String>>::new();
        for (kind, objects) in streams().iter().filter(|(_, objects)| !objects.borrow().is_empty()) {
            let names = skipped.entry(kind.clone()).or_default();
            names.extend(objects.borrow().keys().cloned());
        }
        gauges.by_label(
            "headgate_undecodable_objects",
            "Objects of the API server that this process watches, cannot decode, and skips, by kind",
            "kind",
            skipped.iter().map(|(kind, names)| (kind.as_str(), names.len() as u64)),
        )
    });
}

/// The undecodable objects of one stream.
pub(super) struct Skipping {
    resource: &'static str,
    kind: String,
    published: watch::Sender<UndecodableObjects>,
    events: Option<EventSink>,
    /// Those of the list that is in progress.
    listed: Option<UndecodableObjects>,
    reports: u32,
    reports_since: Instant,
}

impl Skipping {
    pub(super) fn new(
        resource: &'static str,
        kind: String,
        published: watch::Sender<UndecodableObjects>,
        events: Option<EventSink>,
    ) -> Self {
        let mut streams = streams();
        streams.retain(|(_, objects)| objects.has_changed().is_ok());
        streams.push((kind.clone(), published.subscribe()));
        Self {
            resource,
            kind,
            published,
            events,
            listed: None,
            reports: 0,
            reports_since: Instant::now(),
        }
    }

    /// The event as the consumer gets it; `None` if it is about an undecodable object. Of such an object, only the metadata of a deletion is known.
    pub(super) fn pass<K: Resource<DynamicType: Default> + Default>(
        &mut self,
        event: Event<Decoded<K>>,
    ) -> Option<Event<K>> {
        match event {
            Event::Init => {
                self.listed = Some(UndecodableObjects::new());
                Some(Event::Init)
            }
            Event::InitApply(Decoded::Object(object)) => Some(Event::InitApply(object)),
            Event::InitApply(Decoded::Undecodable(object)) => {
                self.report::<K>(&object);
                let listed = self.listed.get_or_insert_default();
                listed.insert(object.name(), *object);
                None
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                self.change(|objects| *objects = listed);
                Some(Event::InitDone)
            }
            Event::Apply(Decoded::Object(object)) => {
                self.forget(&object);
                Some(Event::Apply(object))
            }
            Event::Apply(Decoded::Undecodable(object)) => {
                self.report::<K>(&object);
                self.change(|objects| drop(objects.insert(object.name(), *object)));
                None
            }
            Event::Delete(Decoded::Object(object)) => {
                self.forget(&object);
                Some(Event::Delete(object))
            }
            Event::Delete(Decoded::Undecodable(undecodable)) => {
                let mut object = K::default();
                *object.meta_mut() = undecodable.metadata;
                self.forget(&object);
                Some(Event::Delete(object))
            }
        }
    }

    fn forget(&self, object: &impl Resource) {
        if !self.published.borrow().is_empty() {
            let metadata = object.meta().clone();
            let name = Undecodable {
                metadata,
                ..Undecodable::default()
            }
            .name();
            self.change(|objects| drop(objects.remove(&name)));
        }
    }

    fn change(&self, change: impl FnOnce(&mut UndecodableObjects)) {
        self.published.send_if_modified(|objects| {
            let was_empty = objects.is_empty();
            change(objects);
            !(was_empty && objects.is_empty())
        });
    }

    fn report<K: Resource<DynamicType: Default>>(&mut self, object: &Undecodable) {
        let name = object.name();
        if self
            .published
            .borrow()
            .get(&name)
            .is_some_and(|known| known.error == object.error)
        {
            return;
        }
        if self.reports_since.elapsed() >= REPORT_INTERVAL {
            (self.reports, self.reports_since) = (0, Instant::now());
        }
        self.reports += 1;
        if self.reports > MAX_REPORTS {
            return;
        }
        let Undecodable { metadata, error } = object;
        let (resource, version) = (self.resource, metadata.resource_version.as_deref());
        tracing::warn!(resource, name, version, error, "object not decoded; it is skipped");
        let Some(events) = &self.events else { return };
        let about = ObjectReference {
            api_version: Some(K::api_version(&K::DynamicType::default()).into_owned()),
            kind: Some(self.kind.clone()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        };
        let note = format!("headgate cannot read this object and acts as if it knew nothing of it: {error}");
        events.record(about, EventKind::warning(REASON, ACTION), note);
    }
}

impl Drop for Skipping {
    fn drop(&mut self) {
        self.change(UndecodableObjects::clear);
    }
}
