//! The maintenance controllers of the elected leader: watches in, guarded writes out.
//!
//! Decisions are made by pure functions: [`plan`](crate::plan::plan) for maintenances, `evacuation::state`,
//! `evacuation::daemon_set` and [`rollout`](crate::rollout) for Evacuations. Here are the caches that they read (`caches`, `pods`), the
//! loops that call them (`maintenances`, `evacuations`, `rollouts`) and the writes (`executor`, `writer`, and of Nodes
//! `cordon_edit` and `node_edits`).
//!
//! Invariants: nothing is written without a permit of the term. Each write fails if its object has changed since it was read,
//! and may be repeated. A failure here ends no other work of the term: the tasks are started again after a pause. That this
//! process may write other Nodes is the caller's to check.

mod blackholes;
mod budgets;
mod caches;
mod cordon_edit;
mod daemon_sets;
mod evacuation_span;
mod evacuations;
mod events;
mod executor;
mod grace_periods;
mod maintenances;
mod metrics;
mod node_edits;
mod pods;
mod probe_markers;
mod rollouts;
mod writer;

pub use node_edits::remove_traces;

use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::TrafficByNode;
use headgate_core::settings::IntOrPercent;
use headgate_kubernetes::leader::Term;
use headgate_kubernetes::{EventSink, NodeIntents, NodeStore, ServiceStore};
use kube::Client;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::JoinMap;

use crate::automatic::AutomaticMaintenances;

use caches::Caches;
use evacuations::EvacuationController;
use events::MaintenanceEvents;
use maintenances::MaintenanceController;
pub use metrics::Metrics;
use rollouts::RolloutEvacuator;
use writer::Writer;

/// After a task has ended by a defect.
const RESTART_PAUSE: Duration = Duration::from_secs(30);

/// Where the controllers learn whether a node is out of its load balancers.
#[derive(Clone, Debug)]
pub enum LoadBalancerSource {
    /// What the leader reads of the load balancers.
    Reads(watch::Receiver<Arc<TrafficByNode>>),
    /// The condition `headgate.dev/OutOfLoadBalancers` of each Node, which its agent writes after so many failed probes. For clusters whose
    /// load balancers no leader reads.
    Probes,
}

/// What the controllers need.
#[derive(Clone)]
pub struct MaintenanceContext {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// Records events on maintenances and Nodes.
    pub events: EventSink,
    /// Where is published what Nodes should be; the writer of the term's Nodes runs beside these controllers.
    pub node_intents: NodeIntents,
    /// The metrics of these controllers.
    pub metrics: Metrics,
    /// Wall and monotonic time.
    pub clock: Clock,
    /// All Nodes, with what these controllers read (`NodeDetail::Maintenance`).
    pub nodes: NodeStore,
    /// All Services of type `LoadBalancer`.
    pub services: ServiceStore,
    /// Whether nodes are out of their load balancers.
    pub load_balancers: LoadBalancerSource,
    /// Whether nodes under maintenance are kept out of upgrades of AKS.
    pub pauses_upgrades: bool,
    /// Which nodes get a maintenance by themselves.
    pub automatic: AutomaticMaintenances,
    /// How many nodes may be under maintenance at once; `None` holds nothing back.
    pub max_concurrent_nodes: Option<IntOrPercent>,
}

/// Clears the gauges when the term ends.
struct ClearGauges(Metrics);

impl Drop for ClearGauges {
    fn drop(&mut self) {
        self.0.clear_gauges();
    }
}

/// Runs the controllers in a term, until the caller drops it.
pub async fn run(term: Term, context: MaintenanceContext) {
    let _at_end = ClearGauges(context.metrics.clone());
    loop {
        let mut tasks = start(&term, &context);
        let ended = tasks.join_next().await;
        drop(tasks);
        let (task, reason) = match ended {
            Some((task, Ok(()))) => (task, "it returned".to_owned()),
            Some((task, Err(error))) => (task, error.to_string()),
            None => ("none", "there was no task".to_owned()),
        };
        context.metrics.count_restart();
        tracing::error!(task, reason, restart_in = ?RESTART_PAUSE, "maintenance task ended by a defect; all of them start again");
        sleep(RESTART_PAUSE).await;
    }
}

/// Starts all tasks; dropping them aborts them.
fn start(term: &Term, context: &MaintenanceContext) -> JoinMap<&'static str, ()> {
    let mut tasks = JoinMap::new();
    let caches = Caches::start(&mut tasks, context);
    let writer = Writer {
        client: context.client.clone(),
        term: term.clone(),
        metrics: context.metrics.clone(),
        events: MaintenanceEvents::new(context.events.clone()),
        clock: context.clock.clone(),
    };
    let maintenances = MaintenanceController::new(caches.clone(), writer.clone(), context.clone());
    tasks.spawn("maintenance-controller", maintenances.run());
    let evacuations = EvacuationController::new(caches.clone(), writer.clone());
    tasks.spawn("evacuation-controller", evacuations.run());
    tasks.spawn("rollout-evacuator", RolloutEvacuator::new(caches, writer).run());
    tasks
}
