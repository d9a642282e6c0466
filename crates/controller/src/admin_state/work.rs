//! The work of a term: connects to ARM, loads the ledger, follows the Nodes, and runs the controller.
//!
//! Invariants: no task outlives the term. Nothing is planned before every Node has been listed and the ledger has been read in
//! this term.
//!
//! This is the place that decides that the work of a term has failed, so that another instance may try: each condition is a
//! variant of [`WorkError`], and its limit is one of the constants below.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure::LoadBalancerId;
use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_core::node::TrafficByNode;
use headgate_kubernetes::leader::{ArmLock, CandidatePlacement, LockMetrics, Term};
use headgate_kubernetes::{EventKind, EventSink, NodeField, NodeIntents, NodeStore, ServiceStore, node_reference};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::JoinMap;

use super::cluster_target::{ClusterConnection, ClusterTarget, TargetSource};
use super::controller::{Controller, WorkProgress};
use super::guard::GuardSettings;
use super::hold_intents::{publish_holds, report_refusal};
use super::holds::DesiredHolds;
use super::ledger::{LedgerError, LedgerStore};
use super::local_pools::{self, LocalPoolsContext};
use super::marker::{Markers, publish_markers};
use super::metrics::{GaugeValues, Metrics};
use super::nodes::{TargetStatesConfig, publish_target_states};
use super::plan::Policy;
use super::recorded::read_recorded;
use super::settings::AdminStateMode;
use super::target_states::{TargetState, TargetStates};
use super::transitions::NodeEvent;
use super::view::WorkView;
use crate::local_pools::{LocalPoolsMode, Metrics as LocalPoolsMetrics};
use crate::other_nodes::OtherNodes;
use crate::pool::{InterfaceCache, ListRequest, Listing, RecordedPools, list_on_request, look_up_interfaces};
use crate::preempt_events::PreemptEvents;
use crate::service_index::ServiceIndex;

/// For a connection to ARM. After this, another instance may have a better configuration.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_secs(5);
const MAX_LEDGER_LOADS: u32 = 3;
const LEDGER_LOAD_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// For the first complete list of all Nodes.
const NODE_LIST_TIMEOUT: Duration = Duration::from_mins(2);

/// While the ledger has entries: how long a `ConfigMap` that was deleted or rolled back stays unnoticed.
const LEDGER_VERIFY_INTERVAL: Duration = Duration::from_secs(15);
/// Until the ledger is written again after a failed write.
const LEDGER_WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// At the end of a term, for the release of the shared Lease. A Lease that is not released passes to the next
/// leader, which uses the same name.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(900);
/// For the list of Nodes with signals, if work cannot start.
const REPORT_LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// For the same without the ledger, at the end of the term.
const SHORT_LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// About a ledger that an operator has to mend.
const LEDGER_REJECTED: EventKind = EventKind::warning("LedgerInvalid", "ReadLedger");

/// What the work of a term needs besides the cluster target.
#[derive(Clone)]
pub struct WorkContext {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// All Nodes, read by [`read_node`](crate::pool::read_node) with the signals for admin states.
    pub nodes: NodeStore,
    /// All Services of type `LoadBalancer`.
    pub services: ServiceStore,
    /// Whether admin states are written, and what happens to a foreign `Down`.
    pub policy: Policy,
    /// How many entries of each pool stay in service, and who records holds on Nodes.
    pub guard: GuardSettings,
    /// For how long lists of load balancers may fail before the leader looks for a successor.
    pub list_failure_timeout: Duration,
    /// For how long admin states follow Nodes that the API server does not confirm.
    pub stale_nodes_timeout: Duration,
    /// The Node that this process runs on.
    pub node_name: String,
    /// Records events on Nodes.
    pub events: EventSink,
    /// The metrics of admin states.
    pub metrics: Metrics,
    /// Whether and how pools of Local Services are updated.
    pub local_pools_mode: LocalPoolsMode,
    /// The metrics of these updates.
    pub local_pools_metrics: LocalPoolsMetrics,
    /// The metrics of the shared Lease.
    pub lock_metrics: LockMetrics,
    /// Wall and monotonic time.
    pub clock: Clock,
    /// Turns eviction notices in Node events into taints; `None` where it is off.
    pub preempt_events: Option<PreemptEvents>,
    /// Whether this process may write the Node condition that says when a node has left its load balancers; `None` where it is off.
    pub marker: Option<OtherNodes>,
    /// Where is published what Nodes should be; the writer of the term's Nodes runs beside this work.
    pub node_intents: NodeIntents,
    /// Gets what the last reads prove about each Node with a signal; `None` where nothing waits for it.
    pub traffic: Option<watch::Sender<Arc<TrafficByNode>>>,
}

/// Why the work of a term failed. The term ends then, and this instance abstains for a while.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// No connection to ARM within [`CONNECT_TIMEOUT`].
    #[error("no connection to ARM: {0}")]
    NotConnected(String),
    /// The ledger could not be read in [`MAX_LEDGER_LOADS`] attempts.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The Nodes were not listed within [`NODE_LIST_TIMEOUT`].
    #[error("the Nodes were not listed within {} s; the log says why", NODE_LIST_TIMEOUT.as_secs())]
    Nodes,
    /// A task ended that should run for the whole term.
    #[error("the task {task} ended: {reason}")]
    Task {
        /// The name of the task, as in the log.
        task: String,
        /// A panic, or that the task returned.
        reason: String,
    },
}

/// The tasks of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TaskName {
    Nodes,
    Ledger,
    Listing,
    Holds,
    Recorded,
    Interfaces,
    LocalServices,
    LocalPools,
    PreemptEvents,
    Marker,
    PoolWriter(LoadBalancerId),
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes => f.write_str("nodes"),
            Self::Ledger => f.write_str("ledger"),
            Self::Listing => f.write_str("load-balancers"),
            Self::Holds => f.write_str("holds"),
            Self::Recorded => f.write_str("recorded-load-balancers"),
            Self::Interfaces => f.write_str("network-interfaces"),
            Self::LocalServices => f.write_str("local-services"),
            Self::LocalPools => f.write_str("local-pools"),
            Self::PreemptEvents => f.write_str("preempt-events"),
            Self::Marker => f.write_str("marker"),
            Self::PoolWriter(id) => write!(f, "load-balancer {}", id.name()),
        }
    }
}

/// The running tasks; dropping this aborts them.
pub(super) type Tasks = JoinMap<TaskName, ()>;

/// Waits for a task that ends although it was not aborted.
pub(super) async fn task_failure(tasks: &mut Tasks) -> WorkError {
    loop {
        let (task, reason) = match tasks.join_next().await {
            Some((task, Ok(()))) => (task, "it returned".to_owned()),
            Some((_, Err(error))) if error.is_cancelled() => continue,
            Some((task, Err(error))) => (task, error.to_string()),
            None => std::future::pending().await,
        };
        return WorkError::Task {
            task: task.to_string(),
            reason,
        };
    }
}

/// Takes back what the work of a term has published, also where it panics or is aborted.
struct TakeBack<'a>(&'a Term, &'a WorkContext);

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        let Self(term, context) = self;
        term.report_nodes(None);
        term.report_inability(None);
        forget_traffic(context);
        context.metrics.set_gauges(GaugeValues::default());
        context.local_pools_metrics.clear_queue();
    }
}

/// Does the work of a term, until the term ends or is handed over.
///
/// # Errors
/// If the work failed on this instance; another one may succeed.
pub async fn run(term: Term, source: &impl TargetSource, context: WorkContext) -> Result<(), WorkError> {
    let _at_end = TakeBack(&term, &context);
    tokio::select! {
        biased;
        () = term.ended() => Ok(()),
        outcome = Box::pin(work(&term, source, &context)) => outcome,
    }
}

/// Works under one lock, and releases the shared Lease at the end.
async fn work(term: &Term, source: &impl TargetSource, context: &WorkContext) -> Result<(), WorkError> {
    // What this term recorded outlives a change of the configuration, even if the `ConfigMap` is lost at the same time. So does its hold of
    // the shared Lease: a write that such a change ends may still arrive.
    let mut ledger = None;
    let (lock, follow_lock) = ArmLock::new(
        context.client.clone(),
        context.clock.clone(),
        context.lock_metrics.clone(),
    );
    let mut follow_lock = std::pin::pin!(follow_lock.fuse());
    let outcome = tokio::select! {
        outcome = work_with_each(term, source, context, &lock, &mut ledger) => outcome,
        () = &mut follow_lock => Ok(()),
    };
    // Releases the shared Lease, and writes a ledger that was lost since it was last verified: the next leader knows only what is in it.
    drop(lock);
    let verify = async {
        match ledger {
            Some(ledger) => ledger.verify().await,
            None => Ok(()),
        }
    };
    let _ = timeout(SHUTDOWN_TIMEOUT, futures::future::join(follow_lock, verify)).await;
    outcome
}

/// Works with one cluster target after the other.
async fn work_with_each(
    term: &Term,
    source: &impl TargetSource,
    context: &WorkContext,
    lock: &ArmLock,
    ledger: &mut Option<LedgerStore>,
) -> Result<(), WorkError> {
    loop {
        let connected = tokio::select! {
            connected = connect(source) => connected,
            () = term.handover_requested() => return Ok(()),
        };
        let ClusterConnection { target, config_changed } = match connected {
            Ok(connection) => connection,
            Err(error) => {
                report_not_started(term, context, &error.to_string()).await;
                return Err(error);
            }
        };
        tracing::info!(arm = ?target.arm, mode = context.policy.mode.as_str(), "connected to Azure");
        forget_traffic(context);
        tokio::select! {
            outcome = Box::pin(work_with(term, target, context, lock.clone(), ledger)) => return outcome,
            () = config_changed => tracing::info!("Azure configuration changed; work of the term started again"),
        }
    }
}

/// What was read with another configuration, or in another term, says nothing.
fn forget_traffic(context: &WorkContext) {
    if let Some(traffic) = &context.traffic {
        traffic.send_replace(Arc::default());
    }
}

async fn connect(source: &impl TargetSource) -> Result<ClusterConnection, WorkError> {
    let mut last_error = String::new();
    let attempts = async {
        loop {
            match source.connect().await {
                Ok(connection) => return connection,
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        tracing::info!(error, retry_in = ?CONNECT_RETRY_INTERVAL, "connection to Azure not made");
                    }
                    last_error = error;
                }
            }
            sleep(CONNECT_RETRY_INTERVAL).await;
        }
    };
    let connected = timeout(CONNECT_TIMEOUT, attempts).await;
    connected.map_err(|_| WorkError::NotConnected(last_error))
}

async fn load_ledger(term: &Term, client: &Client) -> Result<LedgerStore, LedgerError> {
    let mut loads = 0;
    loop {
        loads += 1;
        match LedgerStore::load(client.clone(), term.clone()).await {
            Err(error) if loads < MAX_LEDGER_LOADS => {
                tracing::info!(%error, retry_in = ?LEDGER_LOAD_RETRY_INTERVAL, "ledger not read");
                sleep(LEDGER_LOAD_RETRY_INTERVAL).await;
            }
            loaded => return loaded,
        }
    }
}

/// Starts the task that publishes holds, or reports that this process may not.
fn spawn_hold_intents(
    tasks: &mut Tasks,
    context: &WorkContext,
    holds: &watch::Sender<Option<Arc<DesiredHolds>>>,
    targets: &watch::Receiver<Option<Arc<TargetStates>>>,
) {
    if context.guard.may_write_holds {
        let intents = context.node_intents.field(NodeField::Hold);
        tasks.spawn(
            TaskName::Holds,
            publish_holds(intents, holds.subscribe(), targets.clone()),
        );
    } else {
        let other_nodes = OtherNodes::new(context.events.clone(), CandidatePlacement::EveryNode);
        tasks.spawn(TaskName::Holds, report_refusal(other_nodes, holds.subscribe()));
    }
}

/// The policy of the settings, `off` if `azure.json` says so.
fn effective_policy(policy: Policy, target: &ClusterTarget) -> Policy {
    let is_off = !target.is_admin_state_enabled;
    Policy {
        mode: if is_off { AdminStateMode::Disabled } else { policy.mode },
        ..policy
    }
}

/// Has the client obey the waits that ARM asked the leader for before, and names its requests in the metrics.
fn prepare_arm(mut target: ClusterTarget, term: &Term) -> ClusterTarget {
    target
        .arm
        .obey_throttle(target.scope.group.subscription(), term.throttle());
    target.arm = target
        .arm
        .with_request_labels("loadbalancer_adminstate", "admin_state_controller");
    target
}

async fn work_with(
    term: &Term,
    target: ClusterTarget,
    context: &WorkContext,
    lock: ArmLock,
    ledger: &mut Option<LedgerStore>,
) -> Result<(), WorkError> {
    term.report_nodes(None);
    term.report_inability(None);
    let target = prepare_arm(target, term);
    let mut tasks = Tasks::new();
    let mut targets = follow_nodes(&mut tasks, context, target.exclude_control_plane);
    let ledger = match ledger {
        Some(ledger) => ledger.clone(),
        None => match load_ledger(term, &context.client).await {
            Ok(loaded) => ledger.insert(loaded).clone(),
            Err(error) => {
                report_ledger_error(context, targets, &error).await;
                return Err(error.into());
            }
        },
    };
    tasks.spawn(TaskName::Ledger, write_ledger(ledger.clone()));
    let markers = watch::Sender::default();
    spawn_features(&mut tasks, context, &targets, &markers);
    tokio::select! {
        listed = targets.wait_for(Option::is_some) => drop(listed),
        error = task_failure(&mut tasks) => return Err(error),
        () = term.handover_requested() => return Ok(()),
        () = sleep(NODE_LIST_TIMEOUT) => return Err(WorkError::Nodes),
    }
    let policy = effective_policy(context.policy, &target);
    // To forget what is `Down`, an operator sets the mode `Disabled` and deletes the ledger.
    ledger.set_accepts_loss(policy.mode == AdminStateMode::Disabled);
    let list_requests = watch::Sender::new(ListRequest::default());
    let interfaces = watch::Sender::new(Arc::new(InterfaceCache::default()));
    let holds = watch::Sender::new(None);
    spawn_hold_intents(&mut tasks, context, &holds, &targets);
    let listings = watch::Sender::new(Arc::new(Listing::default()));
    let recorded = watch::Sender::new(Arc::new(Listing::default()));
    let local_pools = LocalPoolsContext {
        term,
        context,
        target: &target,
        policy,
        targets: targets.clone(),
        listings: listings.subscribe(),
        lock: lock.clone(),
    };
    // Held to the end: planners wait for it also where nothing publishes it.
    let index = watch::Sender::new(Arc::new(ServiceIndex::default()));
    let services = index.subscribe();
    let local_pools = local_pools::start(&mut tasks, local_pools, index.clone());
    let views = &context.metrics.views;
    let view = WorkView {
        targets,
        services,
        ledger: ledger.clone(),
        listings: listings.subscribe(),
        recorded: recorded.subscribe(),
        interfaces: interfaces.subscribe(),
        observed: views.observed.clone(),
        updater: local_pools.as_ref().map(|local_pools| local_pools.updater.clone()),
        policy,
        arm: target.arm.clone(),
        subscription: target.scope.group.subscription().to_owned(),
        events: views.events.clone(),
    };
    let mut controller = Controller {
        term,
        context,
        view: view.clone(),
        managed: target.scope.managed.clone(),
        lock,
        list_requests,
        holds,
        markers,
        started_at: context.clock.now().mono,
        local_pools,
        progress: WorkProgress::default(),
    };
    let _published = views.publish(view);
    let lists = [listings.subscribe(), recorded.subscribe()];
    tasks.spawn(
        TaskName::Interfaces,
        look_up_interfaces(term.number(), target.arm.clone(), lists, interfaces),
    );
    let requests = controller.list_requests.subscribe();
    spawn_listings(&mut tasks, term, target, ledger, requests, (listings, recorded));
    controller.run(&mut tasks).await
}

/// Starts the features that write other Nodes, as far as they are on.
fn spawn_features(
    tasks: &mut Tasks,
    context: &WorkContext,
    targets: &watch::Receiver<Option<Arc<TargetStates>>>,
    markers: &watch::Sender<Arc<Markers>>,
) {
    if let Some(feature) = context.preempt_events.clone() {
        let intents = context.node_intents.field(NodeField::DrainingTaint);
        tasks.spawn(TaskName::PreemptEvents, feature.run(intents, targets.clone()));
    }
    if let Some(other_nodes) = context.marker.clone() {
        let intents = context.node_intents.field(NodeField::Marker);
        tasks.spawn(
            TaskName::Marker,
            publish_markers(other_nodes, intents, markers.subscribe()),
        );
    }
}

/// Starts the lists of load balancers, and the reads of those that only the ledger names.
fn spawn_listings(
    tasks: &mut Tasks,
    term: &Term,
    target: ClusterTarget,
    ledger: LedgerStore,
    requests: watch::Receiver<ListRequest>,
    (listings, recorded): (watch::Sender<Arc<Listing>>, watch::Sender<Arc<Listing>>),
) {
    let (arm, scope) = (target.arm.clone(), target.scope.clone());
    let recorded_ledger = ledger.clone();
    let recorded_pools: RecordedPools = Arc::new(move || recorded_ledger.ledger().pool_ids());
    tasks.spawn(
        TaskName::Recorded,
        read_recorded(term.number(), arm, scope, ledger, listings.subscribe(), recorded),
    );
    tasks.spawn(
        TaskName::Listing,
        list_on_request(
            Some(term.number()),
            target.arm,
            target.scope,
            recorded_pools,
            requests,
            listings,
        ),
    );
}

/// Starts to follow the Nodes.
fn follow_nodes(
    tasks: &mut Tasks,
    context: &WorkContext,
    exclude_control_plane: bool,
) -> watch::Receiver<Option<Arc<TargetStates>>> {
    let sender = watch::Sender::new(None);
    let targets = sender.subscribe();
    let config = TargetStatesConfig {
        nodes: context.nodes.clone(),
        exclude_control_plane,
        writes_condition: context.marker.is_some(),
        stale_timeout: context.stale_nodes_timeout,
        clock: context.clock.clone(),
    };
    tasks.spawn(TaskName::Nodes, publish_target_states(config, sender));
    targets
}

/// Writes the ledger whenever it has changed, and verifies it at intervals; never ends by itself.
async fn write_ledger(ledger: LedgerStore) {
    let mut changes = ledger.subscribe();
    let mut is_verification_due = false;
    loop {
        changes.borrow_and_update();
        let written = if is_verification_due {
            ledger.verify().await
        } else {
            ledger.flush().await
        };
        match written {
            Ok(()) => is_verification_due = timeout(LEDGER_VERIFY_INTERVAL, changed(&mut changes)).await.is_err(),
            Err(error) => {
                tracing::info!(%error, retry_in = ?LEDGER_WRITE_RETRY_INTERVAL, "ledger not written; retrying");
                sleep(LEDGER_WRITE_RETRY_INTERVAL).await;
            }
        }
    }
}

/// Records why the ledger cannot be used: on the own Node what an operator has to mend, and on each Node with a signal that
/// nothing is set `Down`.
async fn report_ledger_error(
    context: &WorkContext,
    targets: watch::Receiver<Option<Arc<TargetStates>>>,
    error: &LedgerError,
) {
    if matches!(error, LedgerError::Malformed(_) | LedgerError::UnknownVersion(_)) {
        let name = &context.node_name;
        let nodes = targets.borrow().clone().unwrap_or_default();
        let own = nodes.nodes.iter().find(|node| node.name == *name);
        let about = context.events.own_node(own.map(|node| &*node.uid));
        let note = format!("Admin states are not written: {error}.");
        context.events.record(about, LEDGER_REJECTED, note);
    }
    report_signalled_nodes(context, targets, &error.to_string(), SHORT_LIST_TIMEOUT).await;
}

/// Records on the signalled Nodes that the work cannot start without ARM.
async fn report_not_started(term: &Term, context: &WorkContext, reason: &str) {
    let mut tasks = Tasks::new();
    // Whether control-plane nodes are in load balancers is not known without a target.
    let targets = follow_nodes(&mut tasks, context, true);
    tokio::select! {
        () = report_signalled_nodes(context, targets, reason, REPORT_LIST_TIMEOUT) => {}
        () = term.handover_requested() => {}
    }
}

/// Records an event on each Node with a signal, once the Nodes are listed.
async fn report_signalled_nodes(
    context: &WorkContext,
    mut targets: watch::Receiver<Option<Arc<TargetStates>>>,
    reason: &str,
    list_timeout: Duration,
) {
    if context.policy.mode != AdminStateMode::Enforce {
        return;
    }
    let targets = match timeout(list_timeout, targets.wait_for(Option::is_some)).await {
        Ok(Ok(targets)) => targets.clone().unwrap_or_default(),
        _ => return,
    };
    let now = context.clock.now().mono;
    let signalled = targets
        .nodes
        .iter()
        .filter(|node| targets.target_state(node, now) == TargetState::Down && node.exempting_label().is_none());
    for node in signalled {
        let event = NodeEvent::work_not_started(node, reason);
        let about = node_reference(&node.name, &node.uid);
        context.events.record(about, event.kind, event.note);
    }
}
