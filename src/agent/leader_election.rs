//! The candidate of this process, and the work of its terms.
//!
//! A process is a candidate if its role may lead and the settings name `azure.json`, or if it is a controller that leads for maintenances
//! alone. A defect in the work of a term ends the term
//! and never the process (docs/dev/decisions.md 8). When the process stops, it first releases the Lease
//! ([`LeaderElection::release_lease`]) and answers probes as before meanwhile. What the work does is left to `admin_state`.

use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::{self, WorkError};
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::read_node;
use headgate_controller::preempt_events::PreemptEvents;
use headgate_core::node::{Node, NodeDetail, NodeObject, NodeReader, NodeReport, TrafficByNode};
use headgate_kubernetes::leader::{
    CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaseName, Term, candidate_identity,
};
use headgate_kubernetes::{EventSink, TermAccess, TermStores, WatchReporter};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::channels::Metrics;
use super::maintenance;
use super::policies::Policies;
use super::tasks::Tasks;
use super::{AzureAccess, Process};
use crate::config::MarkerWriter;

#[cfg(panic = "abort")]
compile_error!("a defect in the work of a term must not end the process: build headgate with panic = \"unwind\"");

/// How long a release of the Lease may take: a request in progress, 3 s for the work, and the write that releases it.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the work of each term receives.
#[derive(Clone)]
pub(super) struct LeaderContext {
    pub(super) process: Process,
    pub(super) metrics: Metrics,
    /// Records events; the observer of the leader's gets them as well.
    pub(super) events: EventSink,
}

/// The candidate of this process.
pub(super) struct LeaderElection {
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl LeaderElection {
    /// Starts the candidate, which does the work of each term.
    pub(super) fn start(
        tasks: &mut Tasks,
        context: LeaderContext,
        policies: Policies,
        reports: watch::Receiver<NodeReport>,
    ) -> Self {
        let process = &context.process;
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let elector = LeaderElector::new(LeaderElectionConfig {
            client: process.client.clone(),
            lease: LeaseName::default(),
            identity: candidate_identity(&process.node_name),
            placement: process.role.candidate_placement(),
            reports,
            metrics: context.metrics.leader.clone(),
            clock: process.clock.clone(),
        });
        let run_term = move |term: Term| run_term(term, context.clone());
        let (stop_elector, has_stopped) = (stop.clone(), stopped.clone().drop_guard());
        tasks.spawn_endless("leader", async move {
            tokio::select! {
                () = policies.proved() => elector.run(stop_elector, run_term).await,
                () = stop_elector.clone().cancelled_owned() => {}
            }
            drop(has_stopped);
            // The end of the task would end the process.
            std::future::pending::<()>().await;
        });
        Self { stop, stopped }
    }

    /// Stops the candidate, and waits until it has released the Lease if it holds it.
    pub(super) async fn release_lease(&self) {
        self.stop.cancel();
        if timeout(LEASE_RELEASE_TIMEOUT, self.stopped.cancelled()).await.is_err() {
            tracing::info!("Lease not released in time; it expires");
        }
    }
}

/// Runs the work of one term: the admin-state controller, with the updater of Local Services' pools and the maintenance controllers
/// beside it, and the writer of Nodes.
async fn run_term(term: Term, context: LeaderContext) -> Result<(), WorkError> {
    #[cfg(debug_assertions)]
    panic_drill().await;
    let (stores, run_stores) = term.stores(access(&context));
    tokio::select! {
        outcome = controllers(term, &context, stores) => outcome,
        () = run_stores => Ok(()),
    }
}

/// Panics after a second if the variable is set: for a test, and so not in released programs.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "the test needs a defect")]
async fn panic_drill() {
    let variable = "HEADGATE_PANIC_DRILL";
    if std::env::var_os(variable).is_some() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::panic::panic_any(format!("{variable} is set"));
    }
}

/// What a term reads and writes the cluster with.
fn access(context: &LeaderContext) -> TermAccess<impl Fn(NodeObject) -> Node + Send + use<>> {
    let LeaderContext { process, metrics, .. } = context;
    let settings = &process.settings;
    let has_azure = settings.azure.is_configured();
    let (node_errors, service_errors) = if has_azure {
        (metrics.admin_state.watch_errors(), metrics.local_pools.watch_errors())
    } else {
        (metrics.maintenance.watch_errors(), metrics.maintenance.watch_errors())
    };
    let reporter = |resource, errors| {
        let reporter = WatchReporter::new(resource, errors, process.clock.clone());
        reporter.with_events(Some(context.events.clone()))
    };
    let reader = NodeReader {
        rules: settings.signals.admin_state(),
        health_rules: settings.signals.health(),
        detail: match (has_azure, settings.maintenance.enabled) {
            (false, _) => NodeDetail::MaintenanceByProbes,
            (true, true) => NodeDetail::Maintenance,
            (true, false) => NodeDetail::Signals,
        },
    };
    TermAccess {
        client: process.client.clone(),
        clock: process.clock.clone(),
        read_node: move |node| read_node(node, &reader),
        node_reporter: reporter("nodes", node_errors),
        service_reporter: reporter("services", service_errors),
        node_writes: metrics.node_writes.clone(),
    }
}

/// Runs the controllers of a term.
async fn controllers(term: Term, context: &LeaderContext, stores: TermStores) -> Result<(), WorkError> {
    let LeaderContext { process, metrics, .. } = context;
    let settings = &process.settings;
    if !settings.azure.is_configured() {
        maintenance::run_by_probes(term, context, stores).await;
        return Ok(());
    }
    let traffic = watch::Sender::new(Arc::default());
    let waits_for_reads = settings.maintenance.enabled;
    let maintenance = async {
        if waits_for_reads {
            maintenance::run(term.clone(), context, stores.clone(), traffic.subscribe()).await;
        }
        std::future::pending::<()>().await;
    };
    let published = waits_for_reads.then(|| traffic.clone());
    let work_context = work_context(context, stores.clone(), published);
    // Each term connects anew.
    let azure = AzureAccess {
        settings: settings.azure.clone(),
        client: process.client.clone(),
        metrics: metrics.azure.clone(),
        clock: process.clock.clone(),
        may_use_az: false,
    };
    tokio::select! {
        outcome = admin_state::run(term.clone(), &azure, work_context) => outcome,
        () = maintenance => Ok(()),
    }
}

/// What the work needs of this process.
fn work_context(
    context: &LeaderContext,
    stores: TermStores,
    traffic: Option<watch::Sender<Arc<TrafficByNode>>>,
) -> admin_state::WorkContext {
    let LeaderContext {
        process,
        metrics,
        events,
    } = context;
    let (settings, placement) = (&process.settings, process.role.candidate_placement());
    let other_nodes = OtherNodes::new(events.clone(), placement);
    let marker = (settings.out_of_load_balancers.writer() == MarkerWriter::Leader).then(|| other_nodes.clone());
    let preempt_events = settings.azure.reads_node_events().then(|| PreemptEvents {
        client: process.client.clone(),
        events: events.clone(),
        metrics: metrics.preempt_events.clone(),
        clock: process.clock.clone(),
        other_nodes,
    });
    admin_state::WorkContext {
        client: process.client.clone(),
        nodes: stores.nodes,
        services: stores.services,
        policy: settings.admin_state,
        // The policy admits only the ServiceAccount of the controllers.
        guard: settings.guard_settings(placement == CandidatePlacement::Replicas),
        list_failure_timeout: admin_state::LIST_FAILURE_TIMEOUT,
        stale_nodes_timeout: admin_state::STALE_NODES_TIMEOUT,
        node_name: process.node_name.clone(),
        events: events.clone(),
        metrics: metrics.admin_state.clone(),
        local_pools_mode: settings.local_pools,
        local_pools_metrics: metrics.local_pools.clone(),
        lock_metrics: metrics.lock.clone(),
        clock: process.clock.clone(),
        preempt_events,
        marker,
        node_intents: stores.intents,
        traffic,
    }
}
