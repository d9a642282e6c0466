//! The candidate of this process, and the work of its terms.
//!
//! A process is a candidate if its role may lead and the settings name `azure.json`, or if it is a controller that leads for maintenances
//! alone. A defect in the work of a term ends the term
//! and never the process (docs/dev/decisions.md 8). When the process stops, it first releases the Lease
//! ([`LeaderElection::release_lease`]) and answers probes as before meanwhile. What the work does is left to `admin_state`.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_controller::admin_state::{self, WorkError};
use headgate_controller::local_service;
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::read_node;
use headgate_controller::preempt_events::{self, PreemptEvents};
use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeDetail, NodeObject, NodeReader, NodeReport, TrafficByNode};
use headgate_kubernetes::leader::{
    CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term,
    candidate_identity,
};
use headgate_kubernetes::{EventSink, NodeWriteMetrics, TermAccess, TermStores, WatchReporter};
use kube::Client;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::AzureAccess;
use super::maintenance;
use super::policies::Policies;
use super::tasks::Tasks;
use crate::config::{MarkerWriter, Settings};

#[cfg(panic = "abort")]
compile_error!("a defect in the work of a term must not end the process: build headgate with panic = \"unwind\"");

/// How long a release of the Lease may take: a request in progress, 3 s for the work, and the write that releases it.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the work of each term receives.
#[derive(Clone)]
pub(super) struct LeaderContext {
    /// A client of the API server that does not retry by itself.
    pub(super) client: Client,
    /// Connects to ARM; each term connects anew.
    pub(super) azure: AzureAccess,
    /// The settings of the process.
    pub(super) settings: Settings,
    /// Where the candidates run.
    pub(super) placement: CandidatePlacement,
    /// The Node that this process runs on.
    pub(super) node_name: String,
    /// Records events; the observer of the leader's gets them as well.
    pub(super) events: EventSink,
    /// The clock of the process.
    pub(super) clock: Clock,
}

/// The candidate of this process.
pub(super) struct LeaderElection {
    stop: CancellationToken,
    stopped: CancellationToken,
}

impl LeaderElection {
    /// Starts the candidate, which runs `work` in each term.
    pub(super) fn start<W, F, E>(
        tasks: &mut Tasks,
        context: LeaderContext,
        policies: Policies,
        reports: watch::Receiver<NodeReport>,
        metrics: LeaderMetrics,
        work: W,
    ) -> Self
    where
        W: Fn(Term, LeaderContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let elector = LeaderElector::new(LeaderElectionConfig {
            client: context.client.clone(),
            lease: LeaseName::default(),
            identity: candidate_identity(&context.node_name),
            placement: context.placement,
            reports,
            metrics,
            clock: context.clock.clone(),
        });
        let run_term = move |term: Term| run_term(work(term, context.clone()));
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

/// Runs the work of one term.
async fn run_term<E>(work: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    #[cfg(debug_assertions)]
    panic_drill().await;
    work.await
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

/// The metrics of the work of each term.
#[derive(Clone)]
pub(super) struct WorkMetrics {
    pub(super) admin_state: admin_state::Metrics,
    pub(super) local_pools: local_service::Metrics,
    pub(super) lock: LockMetrics,
    pub(super) preempt_events: preempt_events::Metrics,
    pub(super) node_writes: NodeWriteMetrics,
    pub(super) maintenance: headgate_maintenance::controller::Metrics,
}

/// The work of each term: the admin-state controller, with the updater of Local Services' pools and the maintenance controllers
/// beside it, and the writer of Nodes.
pub(super) fn work(
    metrics: WorkMetrics,
) -> impl Fn(Term, LeaderContext) -> BoxFuture<'static, Result<(), WorkError>> + Send + Sync {
    move |term, context| {
        let metrics = metrics.clone();
        let (stores, run_stores) = term.stores(access(&context, &metrics));
        async move {
            tokio::select! {
                outcome = controllers(term, &context, metrics, stores) => outcome,
                () = run_stores => Ok(()),
            }
        }
        .boxed()
    }
}

/// What a term reads and writes the cluster with.
fn access(context: &LeaderContext, metrics: &WorkMetrics) -> TermAccess<impl Fn(NodeObject) -> Node + Send + use<>> {
    let settings = &context.settings;
    let has_azure = settings.azure.is_configured();
    let (node_errors, service_errors) = if has_azure {
        (metrics.admin_state.watch_errors(), metrics.local_pools.watch_errors())
    } else {
        (metrics.maintenance.watch_errors(), metrics.maintenance.watch_errors())
    };
    let reporter = |resource, errors| {
        let reporter = WatchReporter::new(resource, errors, context.clock.clone());
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
        client: context.client.clone(),
        clock: context.clock.clone(),
        read_node: move |node| read_node(node, &reader),
        node_reporter: reporter("nodes", node_errors),
        service_reporter: reporter("services", service_errors),
        node_writes: metrics.node_writes.clone(),
    }
}

/// Runs the controllers of a term.
async fn controllers(
    term: Term,
    context: &LeaderContext,
    metrics: WorkMetrics,
    stores: TermStores,
) -> Result<(), WorkError> {
    if !context.settings.azure.is_configured() {
        maintenance::run_by_probes(term, context, metrics.maintenance, stores).await;
        return Ok(());
    }
    let traffic = watch::Sender::new(Arc::default());
    let waits_for_reads = context.settings.maintenance.enabled;
    let maintenance = async {
        if waits_for_reads {
            let metrics = metrics.maintenance.clone();
            maintenance::run(term.clone(), context, metrics, stores.clone(), traffic.subscribe()).await;
        }
        std::future::pending::<()>().await;
    };
    let published = waits_for_reads.then(|| traffic.clone());
    let work_context = work_context(context, metrics.clone(), stores.clone(), published);
    tokio::select! {
        outcome = admin_state::run(term.clone(), &context.azure, work_context) => outcome,
        () = maintenance => Ok(()),
    }
}

/// What the work needs of this process.
fn work_context(
    context: &LeaderContext,
    metrics: WorkMetrics,
    stores: TermStores,
    traffic: Option<watch::Sender<Arc<TrafficByNode>>>,
) -> admin_state::WorkContext {
    let settings = &context.settings;
    let events = context.events.clone();
    let other_nodes = OtherNodes::new(events.clone(), context.placement);
    let marker = (settings.out_of_load_balancers.writer() == MarkerWriter::Leader).then(|| other_nodes.clone());
    let preempt_events = settings
        .azure
        .reads_node_events()
        .then(|| admin_state::PreemptEventsFeature {
            task: PreemptEvents {
                client: context.client.clone(),
                events: events.clone(),
                metrics: metrics.preempt_events,
                clock: context.clock.clone(),
            },
            other_nodes,
        });
    admin_state::WorkContext {
        client: context.client.clone(),
        nodes: stores.nodes,
        services: stores.services,
        policy: settings.admin_state,
        // The policy admits only the ServiceAccount of the controllers.
        guard: settings.guard_settings(context.placement == CandidatePlacement::Replicas),
        list_failure_timeout: admin_state::LIST_FAILURE_TIMEOUT,
        stale_nodes_timeout: admin_state::STALE_NODES_TIMEOUT,
        node_name: context.node_name.clone(),
        events,
        metrics: metrics.admin_state,
        local_pools: settings.local_service_pools,
        local_pools_metrics: metrics.local_pools,
        lock_metrics: metrics.lock,
        clock: context.clock.clone(),
        preempt_events,
        marker,
        node_intents: stores.intents,
        traffic,
    }
}
