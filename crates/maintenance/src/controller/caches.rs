//! What the watches show, as maps that the loops borrow.
//!
//! Invariants: a cache is `None` until its first list is complete, and is replaced as a whole by a later one. While a watch
//! fails, the last known state stays. Receivers are notified only where a value differs from the one before, so a heartbeat of
//! a Node wakes no loop.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use headgate_core::node::NodeObject;
use headgate_kubernetes::{UndecodableObjects, WatchReporter, WatchStream, watch_events};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Resource, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::task::JoinMap;

use super::objects::CachedNode;
use super::pods::{PodCache, watch_pods};
use super::{MaintenanceContext, TaskName};
use crate::api::{Evacuation, NodeMaintenance};
use crate::blackhole::ServiceFacts;
use crate::snapshot::BudgetFacts;

/// Objects in one answer to a list.
const PAGE_SIZE: u32 = 500;

/// The objects of a kind by name, or by `namespace/name`; `None` until they are listed.
pub(super) type Cache<V> = Option<BTreeMap<String, V>>;

/// The caches of all kinds, and which nodes' pods are watched.
#[derive(Clone)]
pub(super) struct Caches {
    pub(super) maintenances: watch::Receiver<Cache<NodeMaintenance>>,
    pub(super) undecodable_maintenances: watch::Receiver<UndecodableObjects>,
    pub(super) nodes: watch::Receiver<Cache<CachedNode>>,
    pub(super) evacuations: watch::Receiver<Cache<Evacuation>>,
    pub(super) budgets: watch::Receiver<Cache<BudgetFacts>>,
    /// The Services of type LoadBalancer.
    pub(super) services: watch::Receiver<Cache<ServiceFacts>>,
    pub(super) pods: watch::Receiver<PodCache>,
    /// The nodes whose pods the maintenance controller needs.
    pub(super) maintained_nodes: watch::Sender<BTreeSet<String>>,
    /// The nodes of pods that Evacuations are about and that are on no maintained node.
    pub(super) located_nodes: watch::Sender<BTreeSet<String>>,
}

impl Caches {
    /// Starts all watches.
    pub(super) fn start(tasks: &mut JoinMap<TaskName, ()>, context: &MaintenanceContext) -> Self {
        let (maintenances, nodes) = (watch::Sender::new(None), watch::Sender::new(None));
        let (evacuations, budgets) = (watch::Sender::new(None), watch::Sender::new(None));
        let services = watch::Sender::new(None);
        let pods = watch::Sender::new(PodCache::default());
        let (maintained_nodes, located_nodes) = (watch::Sender::default(), watch::Sender::default());
        let reporter = |resource| {
            let reporter = WatchReporter::new(resource, context.metrics.watch_errors(), context.clock.clone());
            reporter.with_events(Some(context.events.clone()))
        };
        let maintenance_reporter = reporter("nodemaintenances");
        let caches = Self {
            maintenances: maintenances.subscribe(),
            undecodable_maintenances: maintenance_reporter.undecodable(),
            nodes: nodes.subscribe(),
            evacuations: evacuations.subscribe(),
            budgets: budgets.subscribe(),
            services: services.subscribe(),
            pods: pods.subscribe(),
            maintained_nodes: maintained_nodes.clone(),
            located_nodes: located_nodes.clone(),
        };
        let (client, config) = (&context.client, watcher::Config::default().page_size(PAGE_SIZE));
        let stream = watch_events::<NodeMaintenance>(client, Api::all, config.clone(), maintenance_reporter);
        tasks.spawn(TaskName::Maintenances, reflect(stream, maintenances, Some));
        let stream = watch_events::<NodeObject>(client, Api::all, config.clone(), reporter("nodes"));
        tasks.spawn(
            TaskName::Nodes,
            reflect(stream, nodes, |node| Some(CachedNode::from(node))),
        );
        let stream = watch_events::<Evacuation>(client, Api::all, config.clone(), reporter("evacuations"));
        tasks.spawn(TaskName::Evacuations, reflect(stream, evacuations, Some));
        let stream =
            watch_events::<PodDisruptionBudget>(client, Api::all, config.clone(), reporter("poddisruptionbudgets"));
        tasks.spawn(
            TaskName::Budgets,
            reflect(stream, budgets, |budget| BudgetFacts::read(&budget)),
        );
        let stream = watch_events::<Service>(client, Api::all, config, reporter("services"));
        tasks.spawn(
            TaskName::Services,
            reflect(stream, services, |service| ServiceFacts::read(&service)),
        );
        let wanted = (maintained_nodes.subscribe(), located_nodes.subscribe());
        tasks.spawn(TaskName::Pods, watch_pods(context.clone(), wanted, pods));
        caches
    }
}

/// The key of an object in a cache.
fn key(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// Follows a watch; ends with it.
async fn reflect<K, V>(mut stream: WatchStream<Event<K>>, cache: watch::Sender<Cache<V>>, convert: fn(K) -> Option<V>)
where
    K: Resource,
    V: PartialEq,
{
    let mut listed = BTreeMap::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                let key = key(object.namespace().as_deref(), &object.name_any());
                listed.extend(convert(object).map(|value| (key, value)));
            }
            Ok(Event::InitDone) => {
                let listed = Some(std::mem::take(&mut listed));
                cache.send_if_modified(|cache| {
                    let is_changed = *cache != listed;
                    *cache = listed;
                    is_changed
                });
            }
            Ok(Event::Apply(object)) => {
                let key = key(object.namespace().as_deref(), &object.name_any());
                set(&cache, key, convert(object));
            }
            Ok(Event::Delete(object)) => set(&cache, key(object.namespace().as_deref(), &object.name_any()), None),
            // The reporter has logged and counted it.
            Err(_) => {}
        }
    }
}

/// Sets or removes one value.
fn set<V: PartialEq>(cache: &watch::Sender<Cache<V>>, key: String, value: Option<V>) {
    cache.send_if_modified(|cache| {
        let objects = cache.get_or_insert_default();
        match value {
            Some(value) if objects.get(&key) == Some(&value) => false,
            Some(value) => {
                objects.insert(key, value);
                true
            }
            None => objects.remove(&key).is_some(),
        }
    });
}
