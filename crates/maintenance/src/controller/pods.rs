//! The pods of nodes under maintenance: one watch for each node, so that the pods of all other nodes cost nothing.
//!
//! Invariant: the pods of a node are complete, or the node is missing. Each list is one answer: from its cache, the API server selects pods by
//! `spec.nodeName` with an index; for a page it reads those of all nodes from etcd before Kubernetes 1.33. 1.30 does that for each list.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::StreamExt as _;
use headgate_kubernetes::{ObjectStore, UndecodableObjects, WatchReporter, watch_events};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::task::JoinMap;

use super::MaintenanceContext;
use crate::snapshot::{PodFacts, PodObject};

/// The pods of the watched nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodCache {
    nodes: BTreeMap<String, NodePods>,
}

#[derive(Clone, Debug, PartialEq)]
struct NodePods {
    /// Which watch of the node writes here. One that was aborted may still run for a moment.
    watch: u64,
    /// By UID.
    store: ObjectStore<String, PodFacts>,
}

impl PodCache {
    /// Whether all pods of these nodes are known.
    pub(super) fn has_all<'a>(&self, nodes: impl IntoIterator<Item = &'a String>) -> bool {
        nodes
            .into_iter()
            .all(|node| self.nodes.get(node).is_some_and(|node| node.store.is_synced))
    }

    /// The pods of one node.
    pub(super) fn of_node(&self, node: &str) -> impl Iterator<Item = &PodFacts> {
        let pods = self.nodes.get(node).into_iter();
        pods.flat_map(|node| node.store.objects.values())
    }

    /// All pods by UID.
    pub(super) fn by_uid(&self) -> HashMap<&str, &PodFacts> {
        let pods = self.nodes.values().flat_map(|node| &node.store.objects);
        pods.map(|(uid, pod)| (uid.as_str(), pod)).collect()
    }

    /// Changes the pods of a node, if this watch is still its watch. Gives whether anything changed.
    fn change(
        &mut self,
        node: &str,
        watch: u64,
        change: impl FnOnce(&mut ObjectStore<String, PodFacts>) -> bool,
    ) -> bool {
        match self.nodes.get_mut(node) {
            Some(node) if node.watch == watch => change(&mut node.store),
            _ => false,
        }
    }
}

/// Keeps one watch for each wanted node. Ends when the loops that want nodes have ended.
pub(super) async fn watch_pods(
    context: MaintenanceContext,
    (mut maintained, mut located): (watch::Receiver<BTreeSet<String>>, watch::Receiver<BTreeSet<String>>),
    cache: watch::Sender<PodCache>,
) {
    let mut watches = JoinMap::<String, ()>::new();
    let mut number = 0;
    loop {
        let mut wanted = maintained.borrow_and_update().clone();
        wanted.extend(located.borrow_and_update().iter().cloned());
        let known: BTreeSet<_> = cache.borrow().nodes.keys().cloned().collect();
        for node in known.difference(&wanted) {
            watches.abort(node);
            cache.send_modify(|cache| drop(cache.nodes.remove(node)));
        }
        for node in wanted.difference(&known) {
            number += 1;
            let pods = NodePods {
                watch: number,
                store: ObjectStore::default(),
            };
            cache.send_modify(|cache| drop(cache.nodes.insert(node.clone(), pods)));
            watches.spawn(
                node.clone(),
                watch_node(context.clone(), node.clone(), number, cache.clone()),
            );
        }
        tokio::select! {
            changed = maintained.changed() => if changed.is_err() { return },
            changed = located.changed() => if changed.is_err() { return },
            // Only an aborted watch ends.
            Some((node, Err(error))) = watches.join_next(), if !watches.is_empty() => if !error.is_cancelled() {
                tracing::error!(node, %error, "watch of the pods of a node ended by a defect; it starts again");
                cache.send_modify(|cache| drop(cache.nodes.remove(&node)));
            },
        }
    }
}

/// The pods of a node that cannot be decoded. They are on the node all the same, and have to leave it.
fn undecodable_pods(objects: &UndecodableObjects, node: &str) -> BTreeMap<String, PodFacts> {
    let pods = objects
        .values()
        .map(|object| PodObject::on_node(object.metadata.clone(), node));
    pods.map(|pod| (pod.uid().unwrap_or_default(), PodFacts::from(pod)))
        .collect()
}

async fn watch_node(context: MaintenanceContext, node: String, number: u64, cache: watch::Sender<PodCache>) {
    let reporter = WatchReporter::new("pods", context.metrics.watch_errors(), context.clock.clone());
    let reporter = reporter.with_events(Some(context.events.clone()));
    let mut undecodable = reporter.undecodable();
    let config = watcher::Config {
        page_size: None,
        ..watcher::Config::default().fields(&format!("spec.nodeName={node}"))
    };
    let mut stream = watch_events::<PodObject>(&context.client, Api::all, config, reporter);
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            Ok(()) = undecodable.changed() => {
                let present = undecodable_pods(&undecodable.borrow_and_update(), &node);
                cache.send_if_modified(|cache| cache.change(&node, number, |store| {
                    let is_new = |(uid, _): &(String, _)| store.is_synced && !store.objects.contains_key(uid);
                    let added: Vec<_> = present.into_iter().filter(is_new).collect();
                    let is_changed = !added.is_empty();
                    store.objects.extend(added);
                    is_changed
                }));
                continue;
            }
        };
        let Some(event) = event else { return };
        // The reporter has logged and counted an error.
        let Ok(event) = event else { continue };
        cache.send_if_modified(|cache| {
            cache.change(&node, number, |store| {
                if matches!(event, Event::InitDone) {
                    let present = undecodable_pods(&undecodable.borrow_and_update(), &node);
                    store.listed.extend(present);
                }
                store.apply(event, |object: PodObject| {
                    Some((object.uid().unwrap_or_default(), Some(PodFacts::from(object))))
                })
            })
        });
    }
}
