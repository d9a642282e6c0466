//! The composition root of the agent: which tasks run, what they share, and in what order they stop.
//!
//! The health listener has a thread and a runtime of its own, so that nothing else can delay an answer. Everything
//! else shares the caller's runtime. Every task is owned here, and none may end by itself: a task that does, or
//! panics, ends the process, and Kubernetes starts it again. The work of a leader's term is the exception; it ends
//! the term only. Stopping begins with the release of the leader's Lease, continues with the health port, whose
//! connections are handed over, and ends with the watch, so that the answers are right to the last.
//!
//! What runs depends on the [`Role`]: operations and the own-Node watch always, `health_tasks` if the process answers
//! for its node, `leader_election` if it may lead.

mod addresses;
mod azure_access;
mod channels;
mod cluster_page;
mod cluster_view;
mod health_tasks;
mod health_thread;
mod leader_election;
mod maintenance;
mod notifications;
mod operations;
mod policies;
mod probe_socket;
mod role;
mod scheduled_events;
mod service_health;
mod signal_events;
mod statusz;
mod statusz_page;
mod tasks;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use futures::FutureExt as _;
use headgate_agent::connections::{ConnectionsView, cut_note};
use headgate_agent::own_node::RememberedState;
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReader, NodeReport};
use headgate_http::server::{self, BindState, Binder, Limits, ServeError};
use headgate_kubernetes::{CONTROLLER, Canary, EventSink};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{MarkerWriter, Settings};

use addresses::Listeners;
use channels::{Channels, Metrics};
use cluster_view::{ClusterView, Latest, MAX_TEXTS};
use health_tasks::HealthTasks;
use health_thread::{HealthThread, Heartbeat};
use leader_election::{LeaderContext, LeaderElection};
use operations::Operations;
use policies::Policies;
use tasks::Tasks;

pub use addresses::BoundAddresses;
pub(crate) use azure_access::check_azure_settings;
pub use azure_access::{ArmConnectError, ArmConnection, AzureAccess};
pub(crate) use cluster_view::{ALL_NODES, PATH as CLUSTER_PATH};
pub(crate) use probe_socket::{PROBE_SOCKET_FILE, connect as connect_probe_socket};
pub use role::Role;

/// What an agent is started with.
pub struct AgentParts {
    /// The settings of the process.
    pub settings: Settings,
    /// Which part of the work the process does.
    pub role: Role,
    /// The name of the own Node.
    pub node_name: String,
    /// The name of the own pod; `None` outside of one.
    pub pod_name: Option<String>,
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// The clock of all tasks.
    pub clock: Clock,
    /// The file for the bound addresses; `None` for no file.
    pub addresses_file: Option<PathBuf>,
}

/// Why an agent ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A listener cannot be bound, and the settings make the first failure final.
    #[error("listener {listener}: {source}")]
    Bind {
        /// The listener's name in logs and metrics.
        listener: &'static str,
        /// The error of the system call, with the address.
        #[source]
        source: io::Error,
    },
    /// A listener failed while it was serving.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The addresses file cannot be written.
    #[error("the addresses file {path} cannot be written: {source}; name a file in an existing, writable directory")]
    AddressesFile {
        /// The path from `--addresses-file`.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The health thread could not be started, or panicked.
    #[error("the health thread failed: {0}")]
    HealthThread(String),
    /// A task ended by itself or panicked.
    #[error("task {task} ended: {why}")]
    Task {
        /// The task's name in logs.
        task: &'static str,
        /// The panic, or that the task returned.
        why: String,
    },
}

/// The tasks and listeners of a running agent.
pub struct RunningAgent {
    health: Option<HealthThread>,
    leader_election: Option<LeaderElection>,
    tasks: Tasks,
    listeners: Listeners,
    health_bound: watch::Sender<BindState>,
    stop_operations: CancellationToken,
    events: EventSink,
    reports: watch::Receiver<NodeReport>,
    connections: watch::Receiver<ConnectionsView>,
}

/// The metrics of an agent with `settings` at its start, as OpenMetrics text.
///
/// # Errors
/// When a collector fails to write.
pub fn metrics_at_start(settings: &Settings) -> Result<String, std::fmt::Error> {
    let clock = Clock::System;
    let channels = Channels::new(settings, None, &clock);
    let metrics = Metrics::register(settings, Role::All, &channels, &clock);
    headgate_core::telemetry::encode_metrics(&metrics.registry, headgate_core::telemetry::MetricsFormat::OpenMetrics)
}

/// Starts an agent on the present runtime. Its ports may be bound later: see [`RunningAgent::bound`].
///
/// # Errors
/// When the addresses file cannot be written or the health thread cannot be started.
#[expect(
    clippy::too_many_lines,
    reason = "the list of what runs is easiest to read in one piece"
)]
pub fn start(parts: AgentParts) -> Result<RunningAgent, AgentError> {
    let AgentParts {
        settings,
        role,
        node_name,
        pod_name,
        client,
        clock,
        addresses_file,
    } = parts;
    if let Err(error) = std::fs::create_dir_all(&settings.state_dir) {
        tracing::error!(%error, directory = %settings.state_dir.display(), "state directory not created");
    }
    let answers_probes = role.answers_probes();
    let remembered = answers_probes
        .then(|| load_remembered_state(&settings, &node_name))
        .flatten();
    let channels = Channels::new(&settings, remembered, &clock);
    let metrics = Metrics::register(&settings, role, &channels, &clock);
    let process = Process {
        settings: Arc::new(settings),
        role,
        client,
        node_name,
        clock,
    };
    let Process {
        settings,
        client,
        node_name,
        clock,
        ..
    } = &process;
    let node_reporter = metrics.node.watch_reporter(node_name, clock);
    let service_reporters = metrics.services.watch_reporters(clock);
    let (inputs, listeners) = (channels.inputs(), channels.listeners(role));
    let (events, queue) = EventSink::new(client.clone(), node_name.clone());
    let events = events.in_pod(pod_name);
    let leader_events = events.clone().reported_by(CONTROLLER);
    let signal_events = events.clone();
    let events = events.merged();
    let mut tasks = Tasks::new(clock.clone());
    let stop_operations = CancellationToken::new();
    let write_events = queue.write_until(stop_operations.clone().cancelled_owned());
    tasks.spawn_stoppable("events", write_events.map(Ok));
    if let Some(path) = addresses_file {
        addresses::start_addresses_file(&mut tasks, path, listeners.clone(), stop_operations.clone())?;
    }
    let notifier = notifications::start(&mut tasks, settings, metrics.notifications.clone(), clock.clone());
    let heartbeat = answers_probes.then(Heartbeat::new);
    let polls_scheduled_events = settings.azure.polls_scheduled_events() && answers_probes;
    let operations = Operations {
        process: process.clone(),
        registry: Arc::clone(&metrics.registry),
        inputs: inputs.clone(),
        last_change: channels.last_change.subscribe(),
        watch_failure: node_reporter.failure(),
        listeners: listeners.clone(),
        heartbeat: heartbeat.clone(),
        tasks: tasks.started(),
        services: channels
            .services
            .view(&service_reporters, inputs.clone())
            .filter(|_| answers_probes),
        scheduled_events: polls_scheduled_events.then(|| channels.azure.snapshots.subscribe()),
        connections: (channels.exchange.is_some() && answers_probes).then(|| channels.connections.subscribe()),
        cluster: ClusterView {
            process: process.clone(),
            work: metrics.admin_state.work_view(),
            queue: metrics.local_pools.queued_updates(),
            leader: metrics.leader.clone(),
            last: Latest::default(),
            room: Arc::new(Semaphore::new(MAX_TEXTS)),
        },
        started_at: clock.now().wall,
    };
    let router = operations::router(operations);
    let socket = settings.state_dir.join(PROBE_SOCKET_FILE);
    let binder = Binder {
        name: "metrics",
        address: settings.metrics_bind_address,
        hard_fail: settings.bind_address_hard_fail,
        state: channels.operations_bound.clone(),
        log_runtime: None,
    };
    let for_counter = channels.exchange.clone().filter(|_| answers_probes);
    let for_counter = for_counter.map(|exchange| exchange.router(stop_operations.clone()));
    let routers = (router, for_counter.unwrap_or_default());
    serve_operations(
        &mut tasks,
        routers,
        socket,
        binder,
        &metrics.listeners,
        &stop_operations,
    );
    let policies = Policies::start(
        &mut tasks,
        process.canaries(),
        client.clone(),
        events.clone(),
        inputs.node.clone(),
    );
    let leader_election = process.is_candidate().then(|| {
        let observer = notifications::observer(notifier.clone(), node_name.clone(), clock.clone());
        let context = LeaderContext {
            process: process.clone(),
            metrics: metrics.clone(),
            events: leader_events.observed_by(observer),
        };
        LeaderElection::start(&mut tasks, context, policies.clone(), inputs.node.clone())
    });
    let reader = NodeReader {
        health_rules: settings.signals.admin_state(),
        ..NodeReader::own(settings.signals.health())
    };
    let node_watch = headgate_agent::own_node::watch_own_node(
        client.clone(),
        node_name.clone(),
        reader,
        channels.reports.clone(),
        metrics.node.clone(),
        node_reporter,
        clock.clone(),
    );
    tasks.spawn_endless("node-watch", node_watch);
    if answers_probes {
        let (inputs, node) = (inputs.clone(), node_name.clone());
        let report = notifications::report_signals(inputs, signal_events, notifier, node, clock.clone());
        tasks.spawn_endless("signal-events", report);
    }
    let (connections, health_bound) = (channels.connections.subscribe(), channels.health_bound.clone());
    let health = match heartbeat {
        Some(heartbeat) => {
            let health_tasks = HealthTasks {
                process,
                events: events.clone(),
                policies,
                inputs: inputs.clone(),
                heartbeat,
                metrics,
                service_reporters,
            };
            Some(health_tasks.start(&mut tasks, channels)?)
        }
        None => None,
    };
    Ok(RunningAgent {
        health,
        leader_election,
        tasks,
        listeners,
        health_bound,
        stop_operations,
        events,
        reports: inputs.node,
        connections,
    })
}

/// What every part of the process knows.
#[derive(Clone)]
struct Process {
    settings: Arc<Settings>,
    role: Role,
    /// A client of the API server that does not retry by itself.
    client: Client,
    /// The name of the own Node.
    node_name: String,
    clock: Clock,
}

impl Process {
    /// Whether the process stands for election. Without Azure only a controller does, for maintenances.
    fn is_candidate(&self) -> bool {
        let Self { settings, role, .. } = self;
        role.may_lead() && settings.azure.is_configured()
            || *role == Role::Controller && settings.leads_maintenances_alone()
    }

    /// What proves the policies for the rights that this process uses.
    fn canaries(&self) -> Vec<Canary> {
        let settings = &self.settings;
        let writes_own_node = self.role.answers_probes()
            && (settings.azure.polls_scheduled_events()
                || settings.out_of_load_balancers.writer() != MarkerWriter::None
                || settings.cluster_autoscaler_delay.is_some());
        let leads = self.is_candidate();
        let node = (writes_own_node || leads).then(|| Canary::Node(self.node_name.clone()));
        node.into_iter().chain(leads.then_some(Canary::Lease)).collect()
    }
}

fn load_remembered_state(settings: &Settings, node_name: &str) -> Option<RememberedState> {
    RememberedState::load(&settings.state_dir, node_name).unwrap_or_else(|error| {
        tracing::warn!(%error, "remembered state ignored");
        None
    })
}

/// Starts the tasks that serve operations on their port and on the probe socket, which has the second routes, too.
fn serve_operations(
    tasks: &mut Tasks,
    (router, of_the_socket): (Router, Router),
    socket: PathBuf,
    binder: Binder,
    metrics: &server::Metrics,
    stop: &CancellationToken,
) {
    let probe_socket = probe_socket::serve(
        socket,
        router.clone().merge(of_the_socket),
        metrics.clone(),
        stop.clone(),
    );
    tasks.spawn_stoppable("probe-socket", probe_socket);
    let (metrics, stop) = (metrics.clone(), stop.clone());
    let port = async move { serve_port(binder, router, Limits::OPERATIONS, &metrics, stop).await };
    tasks.spawn_stoppable("operations", port);
}

/// Binds and serves a port until `stop` is cancelled.
async fn serve_port(
    binder: Binder,
    router: Router,
    limits: Limits,
    metrics: &server::Metrics,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let listener = binder.name;
    let bound = tokio::select! {
        bound = binder.bind(metrics) => bound.map_err(|source| AgentError::Bind { listener, source })?,
        () = stop.cancelled() => return Ok(()),
    };
    Ok(server::serve(listener, bound, router, limits, metrics, stop).await?)
}

impl RunningAgent {
    /// Waits until the ports are bound; `None` if the agent stops before.
    pub async fn bound(&self) -> Option<BoundAddresses> {
        addresses::wait_until_bound(self.listeners.clone()).await
    }

    /// Waits until the agent fails.
    pub async fn failed(&mut self) -> AgentError {
        let health = async {
            match &mut self.health {
                Some(health) => health.ended().await,
                None => std::future::pending().await,
            }
        };
        let error = tokio::select! {
            ended = health => ended.err().unwrap_or_else(|| AgentError::HealthThread("it ended".to_owned())),
            error = self.tasks.failed() => error,
        };
        if let AgentError::Bind { listener, source } = &error {
            // Binding is not retried, so this is the last event about it.
            let note = format!("headgate's listener {listener} cannot be bound: {source}; the process exits");
            let about = own_node(&self.events, &self.reports);
            self.events.write(about, health_tasks::BIND_FAILED, note).await;
        }
        error
    }

    /// Stops the agent: releases the Lease, hands over the health port, and stops the other tasks.
    ///
    /// # Errors
    /// When a listener panicked while it closed.
    pub async fn stop(mut self) -> Result<(), AgentError> {
        let note = cut_note(
            &self.connections.borrow(),
            &self.reports.borrow(),
            "headgate was stopped",
        );
        if let Some(note) = note {
            tracing::warn!("{note}");
        }
        if let Some(leader_election) = &self.leader_election {
            leader_election.release_lease().await;
        }
        let health = match &mut self.health {
            Some(health) => {
                tracing::info!("stopping: handing over the health port");
                self.health_bound.send_replace(BindState::Closing);
                health.stop().await
            }
            None => Ok(()),
        };
        self.stop_operations.cancel();
        let others = self.tasks.stop().await;
        tracing::info!("stopped");
        health.and(others)
    }
}

/// The own Node, for events.
fn own_node(events: &EventSink, reports: &watch::Receiver<NodeReport>) -> ObjectReference {
    let report = reports.borrow();
    events.own_node(report.node.as_ref().map(|node| &*node.uid))
}
