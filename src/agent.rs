//! The composition root of the agent: which tasks run, what they share, in what order they stop.
//!
//! The health listener runs on a thread and runtime of its own, so that nothing else can delay an
//! answer; everything else shares the caller's runtime. Every task is owned here and none may end of
//! itself: one that does, or panics, ends the process, and the supervisor starts another. Stopping
//! begins with the health port, whose connections are handed on, and ends with the watch, so that the
//! answers are right to the last.

mod addresses;
mod azure_access;
mod channels;
mod health_thread;
mod operations;
mod probe_socket;
mod role;
mod scheduled_events;
mod services;
mod status;
mod supervise;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::config::Settings;
use crate::health;
use crate::node::api_server::ApiServer;
use crate::node::{self, Memory, Report};
use crate::server::{self, BindState, Binder, Limits, ServeError};
use crate::telemetry::{self, NodeEvent, NodeEvents};

use channels::{Channels, Metrics};
use health_thread::{HealthThread, Heartbeat};
use operations::Operations;
use supervise::Tasks;

pub use addresses::Addresses;
pub use azure_access::{AzureAccess, ConnectError, Connected, check_azure};
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
    health: HealthThread,
    tasks: Tasks,
    bound: [watch::Receiver<BindState>; 2],
    stopping: watch::Sender<bool>,
    health_bound: watch::Sender<BindState>,
    close_operations: watch::Sender<bool>,
    settings: Settings,
    events: NodeEvents,
    reports: watch::Receiver<Report>,
}

/// The metrics of an agent with `settings` before anything has happened, as OpenMetrics text.
///
/// # Errors
/// When a collector fails to write.
pub fn metrics_at_start(settings: &Settings) -> Result<String, std::fmt::Error> {
    let clock = Clock::System;
    let channels = Channels::new(settings, None, &clock);
    let metrics = Metrics::register(settings, &channels, &clock);
    telemetry::encode(&metrics.registry, telemetry::Format::OpenMetrics)
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
        role: _,
        node_name,
        api_server,
        clock,
        addresses_file,
    } = parts;
    let channels = Channels::new(&settings, memory(&settings, &node_name), &clock);
    let metrics = Metrics::register(&settings, &channels, &clock);
    // For the leader.
    let _requests = metrics.azure;
    let (inputs, bound) = (channels.inputs(), channels.bound());
    let client = api_server.client.clone();
    let events = NodeEvents::new(client.clone(), node_name.clone());
    let (heartbeat, mut tasks) = (Heartbeat::new(), Tasks::new(clock.clone()));
    if let Some(path) = addresses_file {
        addresses::keep(&mut tasks, path, bound.clone(), &channels.close_operations)?;
    }
    let operations = Operations::new(
        metrics.registry,
        &channels,
        Arc::clone(&heartbeat),
        tasks.listed(),
        node_name.clone(),
        settings.proxy.healthz_authority.clone(),
        clock.clone(),
    );

    let binder = |name, address, state| Binder {
        name,
        address,
        hard_fail: settings.bind_address_hard_fail,
        state,
    };
    tasks.list("health-thread");
    let shared = (client.clone(), node_name.clone(), events.clone());
    let extra = (channels.services).start(&mut tasks, &settings, shared, inputs.clone(), metrics.services);
    let health = HealthThread::start(
        binder("healthz", settings.healthz_bind_address, channels.health_bound.clone()),
        health::router(inputs.clone(), metrics.health, clock.clone()),
        limits(&settings),
        extra,
        metrics.listeners.clone(),
        inputs.node.clone(),
        heartbeat,
    )?;
    let outlet = node::Outlet {
        reports: channels.reports,
        trouble: channels.trouble,
    };
    (channels.azure).start(&mut tasks, (&client, &node_name), &inputs.node, metrics.spot);
    let taint_keys = settings.signals.health.clone();
    tasks.endless(
        "node-watch",
        node::watch(
            api_server,
            node_name.clone(),
            taint_keys,
            outlet,
            metrics.node,
            clock.clone(),
        ),
    );
    tasks.endless(
        "remembered-state",
        node::remember(
            inputs.node.clone(),
            settings.state_dir.clone(),
            node_name,
            clock.clone(),
        ),
    );
    tasks.endless(
        "kube-proxy-poll",
        health::follow_kube_proxy(settings.proxy.clone(), channels.proxy, clock.clone()),
    );
    tasks.endless(
        "verdict-changes",
        health::follow(inputs.clone(), channels.last_change, clock),
    );
    tasks.endless(
        "bind-events",
        bind_events(
            bound[0].clone(),
            events.clone(),
            inputs.node.clone(),
            settings.healthz_bind_address,
        ),
    );
    let router = operations::router(operations);
    let close = channels.close_operations.subscribe();
    let socket = settings.state_dir.join(PROBE_SOCKET);
    let binder = binder("metrics", settings.metrics_bind_address, channels.operations_bound);
    listen_for_operations(&mut tasks, router, socket, binder, metrics.listeners, close);
    Ok(Running {
        health,
        tasks,
        bound,
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
    if let Err(error) = std::fs::create_dir_all(&settings.state_dir) {
        tracing::error!(%error, directory = %settings.state_dir.display(), "the state directory cannot be made");
    }
    Memory::load(&settings.state_dir, node_name).unwrap_or_else(|error| {
        tracing::warn!(%error, "starting without memory");
        None
    })
}

/// What peers of the health port are allowed.
fn limits(settings: &Settings) -> Limits {
    Limits {
        proxy_protocol: settings.proxy_protocol,
        ..Limits::HEALTH
    }
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
    /// Waits until both ports are bound.
    pub async fn bound(&self) -> Option<Addresses> {
        addresses::bound(self.bound.clone()).await
    }

    /// Waits for the agent to fail, which it never should.
    pub async fn failed(&mut self) -> AgentError {
        let error = tokio::select! {
            ended = self.health.ended() => ended.err().unwrap_or_else(|| AgentError::HealthThread("it ended".to_owned())),
            error = self.tasks.failed() => error,
        };
        if let AgentError::Bind { listener, source } = &error {
            // Nobody will try again, so this is the last word about it.
            let note = format!("headgate's listener {listener} cannot be bound: {source}; the process exits");
            self.events.warn(bind_event(note), uid(&self.reports)).await;
        }
        error
    }

    /// Stops the agent: answers 503 for `shutdownDelay`, hands the health port on, stops the rest.
    ///
    /// # Errors
    /// When a listener panicked on the way.
    pub async fn stop(mut self) -> Result<(), AgentError> {
        if !self.settings.shutdown_delay.is_zero() {
            tracing::info!(delay = ?self.settings.shutdown_delay, "stopping: /healthz answers 503 first");
            self.stopping.send_replace(true);
            tokio::time::sleep(self.settings.shutdown_delay).await;
        }
        tracing::info!("stopping: handing the health port on");
        self.health_bound.send_replace(BindState::Closing);
        let health = self.health.stop().await;
        self.close_operations.send_replace(true);
        let rest = self.tasks.stop().await;
        tracing::info!("stopped");
        health.and(rest)
    }
}

fn uid(reports: &watch::Receiver<Report>) -> Option<String> {
    reports.borrow().facts.as_ref().map(|facts| facts.uid.clone())
}

fn bind_event(note: String) -> NodeEvent {
    NodeEvent {
        reason: "FailedToStartHealthServer",
        action: "Listen",
        note,
    }
}

/// Tells people with `kubectl` that the health port is not bound, once for each reason.
async fn bind_events(
    mut states: watch::Receiver<BindState>,
    events: NodeEvents,
    reports: watch::Receiver<Report>,
    address: SocketAddr,
) {
    loop {
        let state = states.borrow_and_update().clone();
        if let BindState::Failed(why) = state {
            let note = format!("headgate cannot serve /healthz on {address}: {why}; it tries again every 5 s");
            events.warn(bind_event(note), uid(&reports)).await;
        }
        if states.changed().await.is_err() {
            // The listener is gone: the agent is stopping, and this task with it.
            return std::future::pending().await;
        }
    }
}
