//! What the watches show, as maps that the loops borrow.
//!
//! Each is a [`Store`], whose invariants hold. The Nodes and the Services are those of the term, which its other work reads too.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::node::Node;
use headgate_core::service::Service;
use headgate_kubernetes::{Objects, Store, UndecodableObjects, WatchReporter};
use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::JoinMap;

use super::MaintenanceContext;
use super::pods::{PodCache, watch_pods};
use crate::api::{Evacuation, NodeMaintenance};
use crate::automatic::Cause;
use crate::machine::DeletedMachine;
use crate::snapshot::BudgetFacts;

/// How long a confirmation by the API server counts, as that of Nodes.
const STALE_TIMEOUT: Duration = Duration::from_mins(5);
/// Between two looks at whether there is one again.
pub(super) const CONFIRMATION_INTERVAL: Duration = Duration::from_secs(10);

/// The caches of all kinds, and which nodes' pods are watched.
#[derive(Clone)]
pub(super) struct Caches {
    pub(super) maintenances: watch::Receiver<Objects<NodeMaintenance>>,
    pub(super) undecodable_maintenances: watch::Receiver<UndecodableObjects>,
    pub(super) nodes: watch::Receiver<Objects<Arc<Node>>>,
    pub(super) evacuations: watch::Receiver<Objects<Evacuation>>,
    /// When the API server confirmed the maintenances last, and the Evacuations.
    confirmed: [watch::Receiver<Instant>; 2],
    /// The Machines that are being deleted, where they are a cause of maintenances.
    pub(super) machines: Option<watch::Receiver<Objects<DeletedMachine>>>,
    pub(super) budgets: watch::Receiver<Objects<BudgetFacts>>,
    /// The Services of type LoadBalancer.
    pub(super) services: watch::Receiver<Objects<Arc<Service>>>,
    pub(super) pods: watch::Receiver<PodCache>,
    /// The nodes whose pods the maintenance controller needs.
    pub(super) maintained_nodes: watch::Sender<BTreeSet<String>>,
    /// The nodes of pods that Evacuations are about and that are on no maintained node.
    pub(super) located_nodes: watch::Sender<BTreeSet<String>>,
}

impl Caches {
    /// Starts all watches but those of the term, which others read too.
    pub(super) fn start(tasks: &mut JoinMap<&'static str, ()>, context: &MaintenanceContext) -> Self {
        let maintenances = watch_all(tasks, "nodemaintenances", context, Some);
        let pods = watch::Sender::new(PodCache::default());
        let (maintained_nodes, located_nodes) = (watch::Sender::default(), watch::Sender::default());
        let machines = context.automatic.causes.contains_key(&Cause::Machine);
        let machines = machines.then(|| watch_all(tasks, "machines", context, DeletedMachine::read).objects);
        let evacuations = watch_all(tasks, "evacuations", context, Some);
        let caches = Self {
            machines,
            confirmed: [maintenances.verified_at, evacuations.verified_at],
            maintenances: maintenances.objects,
            undecodable_maintenances: maintenances.undecodable,
            nodes: context.nodes.objects.clone(),
            evacuations: evacuations.objects,
            budgets: watch_all(tasks, "poddisruptionbudgets", context, |budget| {
                BudgetFacts::read(&budget)
            })
            .objects,
            services: context.services.read().objects,
            pods: pods.subscribe(),
            maintained_nodes: maintained_nodes.clone(),
            located_nodes: located_nodes.clone(),
        };
        let wanted = (maintained_nodes.subscribe(), located_nodes.subscribe());
        tasks.spawn("pods", watch_pods(context.clone(), wanted, pods));
        caches
    }

    /// Whether the maintenances are still those that the API server has. Somebody may have ended one since, and no pod may leave for it.
    pub(super) fn are_maintenances_confirmed(&self) -> bool {
        self.confirmed[0].borrow().elapsed() < STALE_TIMEOUT
    }

    /// The same of Evacuations as well.
    pub(super) fn are_confirmed(&self) -> bool {
        self.are_maintenances_confirmed() && self.confirmed[1].borrow().elapsed() < STALE_TIMEOUT
    }
}

/// Starts the watch of all objects of a kind.
fn watch_all<K, V>(
    tasks: &mut JoinMap<&'static str, ()>,
    resource: &'static str,
    context: &MaintenanceContext,
    read: fn(K) -> Option<V>,
) -> Store<V>
where
    K: Resource<DynamicType: Default> + Clone + Default + DeserializeOwned + Debug + Send + 'static,
    V: PartialEq + Send + Sync + 'static,
{
    let reporter = WatchReporter::new(resource, context.metrics.watch_errors(), context.clock.clone());
    let reporter = reporter.with_events(Some(context.events.clone()));
    let (store, watch) = Store::new(&context.client, None, reporter, read);
    tasks.spawn(resource, watch);
    store
}
