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
use headgate_controller::admin_state::{self, GuardSettings, WorkError};
use headgate_controller::local_service;
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::node_store;
use headgate_controller::preempt_events::{self, PreemptEvents};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeDetail, NodeReader, NodeReport, TrafficByNode};
use headgate_kubernetes::leader::{
    CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term,
    candidate_identity,
};
use headgate_kubernetes::{
    EventSink, NodeIntents, NodeStore, NodeWriteMetrics, NodeWriter, ServiceStore, WatchReporter, service_store,
};
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
pub struct LeaderContext {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// Connects to ARM; each term connects anew.
    pub azure: AzureAccess,
    /// The settings of the process.
    pub settings: Settings,
    /// Where the candidates run.
    pub placement: CandidatePlacement,
    /// The Node that this process runs on.
    pub node_name: String,
    /// Records events; the observer of the leader's gets them as well.
    pub events: EventSink,
    /// The clock of the process.
    pub clock: Clock,
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
        let (metrics, intents) = (metrics.clone(), NodeIntents::default());
        let writer = NodeWriter::new(
            context.client.clone(),
            metrics.node_writes.clone(),
            context.clock.clone(),
        )
        .in_term(&term);
        let run_writer = writer.run(intents.clone());
        let (nodes, watch_nodes) = nodes(&context, &metrics);
        let (services, watch_services) = services(&context, &metrics);
        let stores = Stores {
            nodes,
            services,
            intents,
        };
        async move {
            tokio::select! {
                outcome = controllers(term, &context, metrics, stores) => outcome,
                () = run_writer => Ok(()),
                () = watch_nodes => Ok(()),
                () = watch_services => Ok(()),
            }
        }
        .boxed()
    }
}

/// All Nodes, as the controllers of a term read them, and their watch.
fn nodes(context: &LeaderContext, metrics: &WorkMetrics) -> (NodeStore, impl Future<Output = ()> + use<>) {
    let settings = &context.settings;
    let (detail, errors) = match (settings.azure.is_configured(), settings.maintenance.enabled) {
        (false, _) => (NodeDetail::MaintenanceByProbes, metrics.maintenance.watch_errors()),
        (true, true) => (NodeDetail::Maintenance, metrics.admin_state.watch_errors()),
        (true, false) => (NodeDetail::Signals, metrics.admin_state.watch_errors()),
    };
    let reporter = WatchReporter::new("nodes", errors, context.clock.clone());
    let reporter = reporter.with_events(Some(context.events.clone()));
    let reader = NodeReader {
        rules: settings.signals.admin_state(),
        health_rules: settings.signals.health(),
        detail,
    };
    node_store(&context.client, reporter, reader)
}

/// All Services of type `LoadBalancer`, as the controllers of a term read them, and their watch.
fn services(context: &LeaderContext, metrics: &WorkMetrics) -> (ServiceStore, impl Future<Output = ()> + use<>) {
    let settings = &context.settings;
    let errors = if settings.azure.is_configured() {
        metrics.local_pools.watch_errors()
    } else {
        metrics.maintenance.watch_errors()
    };
    let reporter = WatchReporter::new("services", errors, context.clock.clone());
    let reporter = reporter.with_events(Some(context.events.clone()));
    service_store(&context.client, reporter)
}

/// What is known of the cluster, and where the controllers of a term publish what its Nodes should be.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) nodes: NodeStore,
    pub(super) services: ServiceStore,
    pub(super) intents: NodeIntents,
}

/// Runs the controllers of a term.
async fn controllers(
    term: Term,
    context: &LeaderContext,
    metrics: WorkMetrics,
    stores: Stores,
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
    stores: Stores,
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
        guard: GuardSettings {
            minimum_in_service: settings.guard.minimum_in_service,
            max_new_down: settings.guard.max_new_down,
            health_port: settings.healthz_bind_address.port(),
            health_rules: settings.signals.health(),
            // The policy admits only the ServiceAccount of the controllers.
            may_write_holds: context.placement == CandidatePlacement::Replicas,
        },
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
