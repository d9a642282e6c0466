//! The composition root of the agent: which tasks run, what they share, in what order they stop.
//!
//! The health listener runs on a thread and runtime of its own, so that nothing else can delay an
//! answer; everything else shares the caller's runtime. Every task is owned here and none may end of
//! itself: one that does, or panics, ends the process, and the supervisor starts another; only the work of a
//! leader's term may, which ends the term. Stopping begins with the leader's Lease, which is given back, goes on with
//! the health port, whose connections are handed on, and ends with the watch, so that the answers are right to the last.
//!
//! What runs depends on the [`Role`]: operations and the own Node's watch in any case, `answering` where it answers for
//! its node, `leader_election` where it may lead.

mod addresses;
mod answering;
mod azure_access;
mod channels;
mod health_thread;
mod leader_election;
mod operations;
mod probe_socket;
mod role;
mod scheduled_events;
mod services;
mod status;
mod supervise;

use std::io;
use std::path::PathBuf;

use axum::Router;
use tokio::sync::watch;

use crate::config::Settings;

use addresses::Listeners;
use answering::Answering;
use channels::{Channels, Metrics};
use headgate_clock::Clock;
use headgate_http::server::{self, BindState, Binder, ServeError};
use headgate_kubernetes::NodeEventRecorder;
use headgate_kubernetes::api_server::ApiServer;
use headgate_node::{Memory, Report};
use health_thread::{HealthThread, Heartbeat};
use leader_election::LeaderElection;
use operations::Operations;
use supervise::Tasks;

pub use addresses::Addresses;
pub use azure_access::{ArmConnectError, ArmConnection, AzureAccess, check_azure_settings};
pub use leader_election::LeaderContext;
pub use probe_socket::{PROBE_SOCKET, connect as connect_probe_socket};
pub use role::Role;

/// What an agent is made of.
pub struct Parts {
    /// Its settings.
    pub settings: Settings,
    /// Which part of the work it does.
    pub role: Role,
    /// The Node it speaks for.
    pub node_name: String,
    /// How it reaches the API server.
    pub api_server: ApiServer,
    /// Its time.
    pub clock: Clock,
    /// Where the bound addresses are written.
    pub addresses_file: Option<PathBuf>,
}

/// Why an agent ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A listener cannot be bound and was not to be tried again.
    #[error("listener {listener}: {source}")]
    Bind {
        /// The listener.
        listener: &'static str,
        /// The system's reason, with the address.
        #[source]
        source: io::Error,
    },
    /// A listener failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The addresses file cannot be written.
    #[error(
        "the addresses file {path} cannot be written: {source}; name a file in a directory that is there and may be written to"
    )]
    AddressesFile {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The health thread cannot be started, or panicked.
    #[error("the health thread failed: {0}")]
    HealthThread(String),
    /// A task ended of itself or panicked.
    #[error("task {task} ended: {why}")]
    Task {
        /// The task.
        task: &'static str,
        /// How.
        why: String,
    },
}

/// A running agent.
pub struct Running {
    health: Option<HealthThread>,
    leader_election: Option<LeaderElection>,
    tasks: Tasks,
    listeners: Listeners,
    stopping: watch::Sender<bool>,
    health_bound: watch::Sender<BindState>,
    close_operations: watch::Sender<bool>,
    settings: Settings,
    events: NodeEventRecorder,
    reports: watch::Receiver<Report>,
}

/// The metrics of an agent with `settings` before anything has happened, as OpenMetrics text.
///
/// # Errors
/// When a collector fails to write.
pub fn metrics_at_start(settings: &Settings) -> Result<String, std::fmt::Error> {
    let clock = Clock::System;
    let channels = Channels::new(settings, None, &clock);
    let metrics = Metrics::register(settings, Role::All, &channels, &clock);
    headgate_telemetry::encode(&metrics.registry, headgate_telemetry::Format::OpenMetrics)
}

/// Starts an agent on the present runtime. Ports may open later: see [`Running::bound`].
///
/// # Errors
/// When the addresses file cannot be written or the health thread cannot be started.
#[expect(
    clippy::too_many_lines,
    reason = "the list of what runs, which reads best in one piece"
)]
pub fn start(parts: Parts) -> Result<Running, AgentError> {
    let Parts {
        settings,
        role,
        node_name,
        api_server,
        clock,
        addresses_file,
    } = parts;
    if let Err(error) = std::fs::create_dir_all(&settings.state_dir) {
        tracing::error!(%error, directory = %settings.state_dir.display(), "the state directory cannot be made");
    }
    let memory = role.answers_probes().then(|| memory(&settings, &node_name)).flatten();
    let channels = Channels::new(&settings, memory, &clock);
    let metrics = Metrics::register(&settings, role, &channels, &clock);
    let (inputs, listeners) = (channels.inputs(), channels.listeners(role));
    let client = api_server.client.clone();
    let events = NodeEventRecorder::new(client.clone(), node_name.clone());
    let mut tasks = Tasks::new(clock.clone());
    if let Some(path) = addresses_file {
        addresses::keep(&mut tasks, path, listeners.clone(), &channels.close_operations)?;
    }
    let heartbeat = role.answers_probes().then(Heartbeat::new);
    let operations = Operations::new(
        (metrics.registry, metrics.leader.clone()),
        &channels,
        heartbeat.clone(),
        tasks.listed(),
        (node_name.clone(), role),
        &settings,
        clock.clone(),
    );
    let router = operations::router(operations);
    let socket = settings.state_dir.join(PROBE_SOCKET);
    let binder = Binder {
        name: "metrics",
        address: settings.metrics_bind_address,
        hard_fail: settings.bind_address_hard_fail,
        state: channels.operations_bound.clone(),
    };
    let close = channels.close_operations.subscribe();
    listen_for_operations(&mut tasks, router, socket, binder, metrics.listeners.clone(), close);
    let leader_election = (role.may_lead() && settings.azure.is_said()).then(|| {
        let azure = AzureAccess {
            settings: settings.azure.clone(),
            client: client.clone(),
            metrics: metrics.azure,
            clock: clock.clone(),
        };
        let context = LeaderContext {
            client: client.clone(),
            azure,
            settings: settings.clone(),
            placement: role.candidate_placement(),
            node_name: node_name.clone(),
            clock: clock.clone(),
        };
        LeaderElection::start(
            &mut tasks,
            context,
            inputs.node.clone(),
            metrics.leader,
            leader_election::work(metrics.admin_state, metrics.lock),
        )
    });
    let node_watch = headgate_node::watch(
        api_server,
        node_name.clone(),
        settings.signals.health.clone(),
        headgate_node::Outlet {
            reports: channels.reports,
            trouble: channels.trouble,
        },
        metrics.node,
        clock.clone(),
    );
    tasks.endless("node-watch", node_watch);
    let health = match heartbeat {
        Some(heartbeat) => {
            let answering = Answering {
                settings: &settings,
                client: &client,
                node_name: &node_name,
                events: &events,
                inputs: inputs.clone(),
                clock,
                heartbeat,
                listeners: metrics.listeners,
                health: metrics.health,
                services: metrics.services,
                spot: metrics.spot,
            };
            let outlets = answering::Outlets {
                services: channels.services,
                azure: channels.azure,
                proxy: channels.proxy,
                last_change: channels.last_change,
                bound: channels.health_bound.clone(),
            };
            Some(answering.start(&mut tasks, outlets)?)
        }
        None => None,
    };
    Ok(Running {
        health,
        leader_election,
        tasks,
        listeners,
        stopping: channels.stopping,
        health_bound: channels.health_bound,
        close_operations: channels.close_operations,
        settings,
        events,
        reports: inputs.node,
    })
}

/// What an earlier process remembered of the Node, if that can be used.
fn memory(settings: &Settings, node_name: &str) -> Option<Memory> {
    Memory::load(&settings.state_dir, node_name).unwrap_or_else(|error| {
        tracing::warn!(%error, "starting without memory");
        None
    })
}

/// Serves operations on their port and on the probe socket.
fn listen_for_operations(
    tasks: &mut Tasks,
    router: Router,
    socket: PathBuf,
    binder: Binder,
    metrics: server::Metrics,
    close: watch::Receiver<bool>,
) {
    let probes = probe_socket::serve(socket, router.clone(), metrics.clone(), close.clone());
    tasks.listener("probe-socket", probes);
    tasks.listener("operations", operations::serve_port(binder, router, metrics, close));
}

impl Running {
    /// Waits until its ports are bound.
    pub async fn bound(&self) -> Option<Addresses> {
        addresses::bound(self.listeners.clone()).await
    }

    /// Waits for the agent to fail, which it never should.
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
            // Nobody will try again, so this is the last word about it.
            let note = format!("headgate's listener {listener} cannot be bound: {source}; the process exits");
            self.events
                .record_warning(answering::bind_event(note), uid(&self.reports))
                .await;
        }
        error
    }

    /// Stops the agent: gives the Lease back, answering 503 for `shutdownDelay` meanwhile, hands the health port on,
    /// stops the rest.
    ///
    /// # Errors
    /// When a listener panicked on the way.
    pub async fn stop(mut self) -> Result<(), AgentError> {
        let answer_first = async {
            if !self.settings.shutdown_delay.is_zero() && self.health.is_some() {
                tracing::info!(delay = ?self.settings.shutdown_delay, "stopping: /healthz answers 503 first");
                self.stopping.send_replace(true);
                tokio::time::sleep(self.settings.shutdown_delay).await;
            }
        };
        let release_lease = async {
            if let Some(leader_election) = &self.leader_election {
                leader_election.release_lease().await;
            }
        };
        tokio::join!(answer_first, release_lease);
        let health = match &mut self.health {
            Some(health) => {
                tracing::info!("stopping: handing the health port on");
                self.health_bound.send_replace(BindState::Closing);
                health.stop().await
            }
            None => Ok(()),
        };
        self.close_operations.send_replace(true);
        let rest = self.tasks.stop().await;
        tracing::info!("stopped");
        health.and(rest)
    }
}

fn uid(reports: &watch::Receiver<Report>) -> Option<String> {
    reports.borrow().facts.as_ref().map(|facts| facts.uid.clone())
}
