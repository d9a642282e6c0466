//! The loop of the NodeMaintenance controller: caches in, a plan, actions out, again after each change.
//!
//! Level-triggered: a turn starts from the present state of all caches, so an event that was missed or a write that failed
//! leaves nothing to repair. Nothing is planned before the pods of all nodes under maintenance are listed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use headgate_core::clock::Moment;
use headgate_core::node::Node;
use headgate_core::publish_if_changed;
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::{NodeField, Objects};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::blackholes::measure;
use super::caches::{CONFIRMATION_INTERVAL, Caches};
use super::executor::{EVACUATION, Executed, Executor, FIRST_RETRY, write_key};
use super::metrics::GaugeValues;
use super::node_edits::{RefusedNode, refused_nodes};
use super::probe_markers::ProbeMarkers;
use super::writer::Writer;
use super::{LoadBalancerSource, MaintenanceContext};
use crate::api::{NodeMaintenance, Stage};
use crate::blackhole::BlackholeMeter;
use crate::machine::DeletedMachine;
use crate::plan::action::Action;
use crate::plan::concurrency;
use crate::plan::conditions::{BLOCKED, is_true, own_conditions};
use crate::plan::phase::Phase;
use crate::plan::plan;
use crate::snapshot::Snapshot;

/// Between two turns, so that changes in quick succession share one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// After turns with a failed write. The first is doubled up to this one.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// A turn without any change, in case a clock was set.
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// The NodeMaintenance controller.
pub(super) struct MaintenanceController {
    caches: Caches,
    context: MaintenanceContext,
    probe_markers: ProbeMarkers,
    executor: Executor,
    refused_nodes: watch::Receiver<BTreeMap<String, RefusedNode>>,
    blackholes: BlackholeMeter,
    /// Whether the maintenances were not confirmed for long.
    is_stale: bool,
}

/// What a turn came to.
struct Turned {
    /// When time alone changes the plan.
    wake_at: Option<Timestamp>,
    /// When what is known of load balancers expires.
    expires_at: Option<Instant>,
    executed: Executed,
}

impl MaintenanceController {
    pub(super) fn new(caches: Caches, writer: Writer, context: MaintenanceContext) -> Self {
        let (refused_nodes, refused_nodes_reader) = watch::channel(BTreeMap::new());
        Self {
            refused_nodes: refused_nodes_reader,
            executor: Executor {
                caches: caches.clone(),
                writer,
                isolations: context.node_intents.field(NodeField::Maintenance),
                conditions: context.node_intents.field(NodeField::MaintenanceConditions),
                upgrade_statuses: context.node_intents.field(NodeField::UpgradeStatus),
                reverted: Arc::default(),
                written_at: HashMap::new(),
                started_at: context.clock.now().wall,
                evacuated: BTreeSet::new(),
                refused: BTreeMap::new(),
                refused_nodes,
            },
            caches,
            context,
            probe_markers: ProbeMarkers::default(),
            blackholes: BlackholeMeter::default(),
            is_stale: false,
        }
    }

    /// Runs until a cache ends.
    pub(super) async fn run(mut self) {
        let mut retry = FIRST_RETRY;
        loop {
            let now = self.context.clock.now();
            let turned = self.turn(now).await;
            let longest = if turned.is_some() {
                RESYNC_INTERVAL
            } else {
                CONFIRMATION_INTERVAL
            };
            let mut wake_at = Instant::now() + longest;
            if let Some(Turned {
                wake_at: due,
                expires_at,
                executed,
            }) = turned
            {
                for at in [expires_at, executed.next_write_at].into_iter().flatten() {
                    wake_at = wake_at.min(at);
                }
                if let Some(due) = due {
                    let wait = Duration::try_from(due.duration_since(now.wall)).unwrap_or_default();
                    wake_at = wake_at.min(now.mono + wait);
                }
                if executed.failures > 0 {
                    wake_at = wake_at.min(Instant::now() + retry);
                    retry = (retry * 2).min(LONGEST_RETRY);
                } else {
                    retry = FIRST_RETRY;
                }
            }
            sleep(MIN_INTERVAL).await;
            let caches = &mut self.caches;
            let reads = match &mut self.context.load_balancers {
                LoadBalancerSource::Reads(reads) => Some(reads),
                // Conditions of Nodes change with the cache of Nodes.
                LoadBalancerSource::Probes => None,
            };
            // A cache whose watch has ended stays as it is until all tasks are started again.
            tokio::select! {
                Ok(()) = caches.maintenances.changed() => {}
                Ok(()) = caches.undecodable_maintenances.changed() => {}
                Ok(()) = caches.nodes.changed() => {}
                Ok(()) = caches.evacuations.changed() => {}
                Ok(()) = caches.budgets.changed() => {}
                Ok(()) = caches.pods.changed() => {}
                Ok(()) = changed(caches.machines.as_mut()) => {}
                Ok(()) = changed(reads) => {}
                Ok(()) = self.refused_nodes.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// Plans once and carries the plan out; `None` while a cache is not complete, or not confirmed any more.
    async fn turn(&mut self, now: Moment) -> Option<Turned> {
        let is_stale = !self.caches.are_maintenances_confirmed();
        if is_stale != std::mem::replace(&mut self.is_stale, is_stale) && is_stale {
            tracing::warn!("NodeMaintenances were not read for 5 minutes; nothing is done about them until they are");
        }
        if is_stale {
            // What the last turn published may not be written any more either.
            self.executor.publish_nodes(&Snapshot::default(), &[]);
            return None;
        }
        let (snapshot, expires_at) = self.snapshot(now)?;
        let now = now.wall;
        let plan = plan(&snapshot, now);
        measure(&mut self.blackholes, &snapshot, &self.executor, now);
        self.context.metrics.set_gauges(&gauges(&snapshot.maintenances));
        let is_cordoned = |node: &str| {
            let mut nodes = snapshot.nodes.iter();
            nodes.any(|facts| facts.name == node && facts.was_unschedulable.is_some())
        };
        let reverted = &self.executor.reverted;
        reverted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(is_cordoned);
        let exists = |uid: &String| {
            let mut maintenances = snapshot.maintenances.iter();
            maintenances.any(|one| one.metadata.uid.as_ref() == Some(uid))
        };
        let listed: BTreeSet<_> = listed_nodes(&snapshot.maintenances).collect();
        let evacuated = &mut self.executor.evacuated;
        evacuated.retain(|(maintenance, node)| listed.contains(&(maintenance.as_str(), node.as_str())));
        self.executor.written_at.retain(|maintenance, _| exists(maintenance));
        let planned: BTreeSet<_> = plan.actions.iter().map(write_key).collect();
        self.executor.refused.retain(|key, _| planned.contains(key));
        let planned: BTreeSet<_> = plan.actions.iter().filter_map(Action::changed_node).collect();
        self.executor.refused_nodes.send_if_modified(|refused| {
            let count = refused.len();
            refused.retain(|node, _| planned.contains(node.as_str()));
            refused.len() < count
        });
        self.executor.publish_nodes(&snapshot, &plan.actions);
        let executed = if plan.actions.is_empty() {
            Executed::default()
        } else {
            self.executor.execute(&snapshot, plan.actions, now).await
        };
        Some(Turned {
            wake_at: plan.wake_at,
            expires_at,
            executed,
        })
    }

    /// All that a plan depends on, and when it expires; `None` while a cache is not complete.
    fn snapshot(&mut self, now: Moment) -> Option<(Snapshot, Option<Instant>)> {
        let maintenances = all(&mut self.caches.maintenances)?;
        let undecodable_maintenances = {
            let undecodable = self.caches.undecodable_maintenances.borrow_and_update();
            let named = undecodable
                .iter()
                .filter_map(|(name, object)| Some((object.metadata.uid.clone()?, name.clone())));
            let is_known = |uid: &String| {
                maintenances
                    .iter()
                    .any(|known| known.metadata.uid.as_ref() == Some(uid))
            };
            named.filter(|(uid, _)| !is_known(uid)).collect()
        };
        let evacuations = all(&mut self.caches.evacuations)?;
        let budgets = all(&mut self.caches.budgets)?;
        // Where Cluster API is not installed, they are never listed.
        let machines: Option<Vec<DeletedMachine>> = match &mut self.caches.machines {
            Some(machines) => all(machines),
            None => Some(Vec::new()),
        };
        let is_idle = maintenances.is_empty();
        let nodes: Vec<Arc<Node>> = {
            let nodes = self.caches.nodes.borrow_and_update();
            let nodes = nodes.as_ref()?.values();
            // Without a maintenance only what an earlier one left matters, and what needs one.
            let is_planned = |node: &&Arc<Node>| {
                !is_idle
                    || has_traces(node)
                    || self
                        .context
                        .automatic
                        .causes_of(node, machines.as_deref().unwrap_or_default())
                        .next()
                        .is_some()
            };
            nodes.filter(is_planned).cloned().collect()
        };
        let maintained = maintained_nodes(&maintenances, &nodes, self.context.max_concurrent_nodes);
        publish_if_changed(&self.caches.maintained_nodes, maintained.clone());
        let pods = {
            let pods = self.caches.pods.borrow_and_update();
            if !pods.has_all(&maintained) {
                return None;
            }
            let all = maintained.iter().flat_map(|node| pods.of_node(node));
            all.cloned().collect()
        };
        let (load_balancers, expires_at) = match &mut self.context.load_balancers {
            LoadBalancerSource::Reads(reads) => ((**reads.borrow_and_update()).clone(), None),
            LoadBalancerSource::Probes => {
                let cached = self.caches.nodes.borrow();
                let maintained = maintained
                    .iter()
                    .filter_map(|node| Some((node.as_str(), cached.as_ref()?.get(node)?)));
                let markers = maintained.map(|(node, cached)| (node, cached.marker.as_ref()));
                self.probe_markers.observe(markers, now)
            }
        };
        let refused = self.executor.refused.iter();
        let refused = refused.filter(|((what, _), _)| *what == EVACUATION);
        let snapshot = Snapshot {
            maintenances,
            undecodable_maintenances,
            nodes,
            pods,
            evacuations,
            refused_evacuations: refused.map(|((_, pod), (_, why))| (pod.clone(), why.clone())).collect(),
            refused_nodes: refused_nodes(&self.refused_nodes.borrow_and_update()),
            budgets,
            load_balancers,
            machines,
            automatic: self.context.automatic.clone(),
            pauses_upgrades: self.context.pauses_upgrades,
            max_concurrent_nodes: self.context.max_concurrent_nodes,
        };
        Some((snapshot, expires_at))
    }
}

/// The objects of a cache; `None` until they are listed.
fn all<V: Clone>(cache: &mut watch::Receiver<Objects<V>>) -> Option<Vec<V>> {
    let objects = cache.borrow_and_update();
    Some(objects.as_ref()?.values().cloned().collect())
}

/// Waits for a change of what may not be watched.
async fn changed<T>(watched: Option<&mut watch::Receiver<T>>) -> Result<(), watch::error::RecvError> {
    match watched {
        Some(watched) => watched.changed().await,
        None => std::future::pending().await,
    }
}

/// Whether a maintenance left something on a Node.
fn has_traces(node: &Node) -> bool {
    node.was_unschedulable.is_some()
        || node.is_kept_from_scale_down
        || node.is_upgrade_paused
        || node.maintenance_taint.is_some()
        || own_conditions(node).next().is_some()
}

/// The nodes in the status of each maintenance, by UID and name.
fn listed_nodes(maintenances: &[NodeMaintenance]) -> impl Iterator<Item = (&str, &str)> {
    maintenances.iter().flat_map(|object| {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let nodes = object.status.iter().flat_map(|status| &status.node_statuses);
        nodes.map(move |node| (uid, node.node_ref.name.as_str()))
    })
}

/// The nodes whose pods a plan depends on.
fn maintained_nodes(
    objects: &[NodeMaintenance],
    nodes: &[Arc<Node>],
    max_concurrent_nodes: Option<IntOrPercent>,
) -> BTreeSet<String> {
    let mut maintained = BTreeSet::new();
    for maintenance in concurrency::maintenances(objects, nodes, max_concurrent_nodes) {
        match maintenance.phase {
            Phase::DryRun | Phase::Starting | Phase::Cordon | Phase::Drain => maintained.extend(maintenance.nodes),
            Phase::Idle | Phase::Complete => {}
        }
    }
    maintained
}

fn gauges(maintenances: &[NodeMaintenance]) -> GaugeValues {
    let mut values = GaugeValues::default();
    // A node of several maintenances counts once, as the one that knows most of it does: one that only cordons names no blockers.
    let mut nodes: BTreeMap<&str, [i32; 3]> = BTreeMap::new();
    for object in maintenances {
        let stage = match object.spec.stage {
            Stage::Idle => 0,
            Stage::Cordon => 1,
            Stage::Drain => 2,
            Stage::Complete => 3,
        };
        values.maintenances[stage] += 1;
        let Some(status) = object.status.as_ref().filter(|_| !object.spec.dry_run) else {
            continue;
        };
        values.blocked += i64::from(is_true(&status.conditions, BLOCKED));
        for node in &status.node_statuses {
            let counts = [node.pods_pending_evacuation, node.pods_evacuating, node.blockers_total];
            let known = nodes.entry(&node.node_ref.name).or_default();
            *known = std::array::from_fn(|index| known[index].max(counts[index]));
        }
    }
    for counts in nodes.values() {
        let [pending, evacuating, blockers] = counts.map(i64::from);
        values.pods_pending += pending;
        values.pods_evacuating += evacuating;
        values.blockers += blockers;
    }
    values
}
