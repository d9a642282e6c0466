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
use headgate_core::node::NodeReport;
use headgate_http::server::{self, BindState, Binder, ServeError};
use headgate_kubernetes::{CONTROLLER, Canary, EventSink};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{MarkerWriter, Settings};

use addresses::Listeners;
use channels::{Channels, Metrics};
use cluster_view::ClusterView;
use health_tasks::{HealthPublishers, HealthTasks};
use health_thread::{HealthThread, Heartbeat};
use leader_election::{LeaderElection, WorkMetrics};
use operations::Operations;
use policies::Policies;
use tasks::Tasks;

pub use addresses::BoundAddresses;
pub(crate) use azure_access::check_azure_settings;
pub use azure_access::{ArmConnectError, ArmConnection, AzureAccess};
pub(crate) use cluster_view::{ALL_NODES, PATH as CLUSTER_PATH};
use leader_election::LeaderContext;
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
    let node_reporter = metrics.node.watch_reporter(&node_name, &clock);
    let service_reporters = metrics.services.watch_reporters(&clock);
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
    let notifier = notifications::start(&mut tasks, &settings, metrics.notifications.clone(), clock.clone());
    let heartbeat = answers_probes.then(Heartbeat::new);
    let operations = Operations {
        registry: Arc::new(metrics.registry),
        inputs: inputs.clone(),
        last_change: channels.last_change.subscribe(),
        watch_failure: node_reporter.failure(),
        listeners: listeners.clone(),
        heartbeat: heartbeat.clone(),
        tasks: tasks.started(),
        node_name: node_name.clone(),
        proxy_server: settings.kube_proxy.healthz_authority.clone(),
        services: channels
            .services
            .view(&service_reporters, inputs.clone())
            .filter(|_| answers_probes),
        scheduled_events: channels.azure.enabled_snapshots().filter(|_| answers_probes),
        connections: (channels.exchange.is_some() && answers_probes).then(|| channels.connections.subscribe()),
        role,
        is_candidate: is_candidate(role, &settings),
        leader: metrics.leader.clone(),
        local_pools: metrics.local_pools.queued_updates(),
        cluster: ClusterView {
            work: metrics.admin_state.work_view(),
            queue: metrics.local_pools.queued_updates(),
            leader: metrics.leader.clone(),
            settings: Arc::new(settings.clone()),
            client: client.clone(),
            node_name: node_name.clone(),
            clock: clock.clone(),
            last: Arc::default(),
        },
        started_at: clock.now().wall,
        clock: clock.clone(),
    };
    let router = operations::router(operations);
    let socket = settings.state_dir.join(PROBE_SOCKET_FILE);
    let binder = Binder {
        name: "metrics",
        address: settings.metrics_bind_address,
        hard_fail: settings.bind_address_hard_fail,
        state: channels.operations_bound.clone(),
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
    let canaries = canaries(role, &settings, &node_name);
    let policies = Policies::start(
        &mut tasks,
        canaries,
        client.clone(),
        events.clone(),
        inputs.node.clone(),
    );
    let leader_election = is_candidate(role, &settings).then(|| {
        let azure = AzureAccess {
            settings: settings.azure.clone(),
            client: client.clone(),
            metrics: metrics.azure,
            clock: clock.clone(),
            may_use_az: false,
        };
        let context = LeaderContext {
            client: client.clone(),
            azure,
            settings: settings.clone(),
            placement: role.candidate_placement(),
            node_name: node_name.clone(),
            events: leader_events.observed_by(notifications::observer(
                notifier.clone(),
                node_name.clone(),
                clock.clone(),
            )),
            clock: clock.clone(),
        };
        LeaderElection::start(
            &mut tasks,
            context,
            policies.clone(),
            inputs.node.clone(),
            metrics.leader,
            leader_election::work(WorkMetrics {
                admin_state: metrics.admin_state,
                local_pools: metrics.local_pools,
                lock: metrics.lock,
                preempt_events: metrics.preempt_events,
                node_writes: metrics.node_writes.clone(),
                maintenance: metrics.maintenance,
            }),
        )
    });
    let node_watch = headgate_agent::own_node::watch_own_node(
        client.clone(),
        node_name.clone(),
        settings.signals.health(),
        channels.reports,
        metrics.node,
        node_reporter,
        clock.clone(),
    );
    tasks.spawn_endless("node-watch", node_watch);
    if answers_probes {
        let (inputs, node) = (inputs.clone(), node_name.clone());
        let report = notifications::report_signals(inputs, signal_events, notifier, node, clock.clone());
        tasks.spawn_endless("signal-events", report);
    }
    let connections = channels.connections.subscribe();
    let health = match heartbeat {
        Some(heartbeat) => {
            let health_tasks = HealthTasks {
                settings: &settings,
                client: &client,
                node_name: &node_name,
                events: &events,
                policies,
                inputs: inputs.clone(),
                clock,
                heartbeat,
                listeners: metrics.listeners,
                health: metrics.health,
                services: metrics.services,
                service_reporters,
                spot: metrics.spot,
                connections: metrics.connections,
                deletion_delay: metrics.deletion_delay,
                node_writes: metrics.node_writes,
            };
            let publishers = HealthPublishers {
                services: channels.services,
                exchange: channels.exchange,
                connections: channels.connections,
                azure: channels.azure,
                proxy: channels.proxy,
                last_change: channels.last_change,
                bound: channels.health_bound.clone(),
            };
            Some(health_tasks.start(&mut tasks, publishers)?)
        }
        None => None,
    };
    Ok(RunningAgent {
        health,
        leader_election,
        tasks,
        listeners,
        health_bound: channels.health_bound,
        stop_operations,
        events,
        reports: inputs.node,
        connections,
    })
}

/// Whether the process stands for election. Without Azure only a controller does, for maintenances.
fn is_candidate(role: Role, settings: &Settings) -> bool {
    role.may_lead() && settings.azure.is_configured() || role == Role::Controller && settings.leads_maintenances_alone()
}

/// What proves the policies for the rights that this process uses.
fn canaries(role: Role, settings: &Settings, node_name: &str) -> Vec<Canary> {
    let writes_own_node = role.answers_probes()
        && (settings.azure.polls_scheduled_events()
            || settings.out_of_load_balancers.writer() != MarkerWriter::None
            || settings.cluster_autoscaler_delay.is_some());
    let leads = is_candidate(role, settings);
    let node = (writes_own_node || leads).then(|| Canary::Node(node_name.to_owned()));
    node.into_iter().chain(leads.then_some(Canary::Lease)).collect()
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
    let port = operations::serve_port(binder, router, metrics.clone(), stop.clone());
    tasks.spawn_stoppable("operations", port);
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
