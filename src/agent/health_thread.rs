//! The thread that answers `/healthz` and `/livez`. It has its own runtime with the health listener, with the
//! Services' node ports if these are opened, and with nothing else.
//!
//! The port opens at once if there is a remembered state; otherwise after the first sync with the API server, or
//! after 5 s as eligible. If the thread also answers about Services, it waits within the same 5 s until they are
//! listed, so that a roll of headgate fails no Service. No failure elsewhere closes the port.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use futures::future::OptionFuture;
use headgate_agent::health::services::ServiceTable;
use headgate_core::node::{NodeReport, Source};
use headgate_http::server::{self, Binder, Limits, Metrics};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::AgentError;
use super::service_health::HealthThreadExtras;

/// Time to wait for the first sync before the port opens as eligible (docs/dev/decisions.md 3).
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A health thread without a heartbeat for this time is stuck.
pub(super) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);

/// The time of the health thread's last heartbeat, for the process's own `/livez`.
#[derive(Debug)]
pub(super) struct Heartbeat {
    origin: Instant,
    last_millis: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            last_millis: AtomicU64::new(0),
        })
    }

    fn beat(&self) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Time since the last heartbeat.
    pub(super) fn age(&self) -> Duration {
        self.origin
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}

/// What the health thread serves.
pub(super) struct HealthServer {
    pub(super) binder: Binder,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) extras: HealthThreadExtras,
    pub(super) metrics: Metrics,
    pub(super) reports: watch::Receiver<NodeReport>,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// The running thread. It stops when this is dropped.
pub(super) struct HealthThread {
    thread: Option<thread::JoinHandle<()>>,
    outcome: oneshot::Receiver<Result<(), AgentError>>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl HealthThread {
    /// Starts the thread with its own runtime.
    pub(super) fn start(server: HealthServer) -> Result<Self, AgentError> {
        let failed = |error: std::io::Error| AgentError::HealthThread(error.to_string());
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (done, outcome) = oneshot::channel();
        let stop = CancellationToken::new();
        let stop_server = stop.clone();
        let thread = thread::Builder::new()
            .name("health".to_owned())
            .spawn(move || {
                let result = runtime.block_on(server.run(stop_server));
                // Without a receiver the outcome is of no interest any more.
                let _ = done.send(result);
            })
            .map_err(failed)?;
        Ok(Self {
            thread: Some(thread),
            outcome,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        })
    }

    /// Waits for the thread to end.
    pub(super) async fn ended(&mut self) -> Result<(), AgentError> {
        match (&mut self.outcome).await {
            Ok(outcome) => outcome,
            Err(_) => Err(AgentError::HealthThread("it panicked".to_owned())),
        }
    }

    /// Hands the port over, closes it, and joins the thread.
    pub(super) async fn stop(&mut self) -> Result<(), AgentError> {
        self.stop.cancel();
        let outcome = self.ended().await;
        if let Some(thread) = self.thread.take() {
            // The outcome was sent, so the thread is about to return.
            let _ = thread.join();
        }
        outcome
    }
}

impl HealthServer {
    async fn run(self, stop: CancellationToken) -> Result<(), AgentError> {
        let Self {
            binder,
            router,
            limits,
            extras,
            metrics,
            reports,
            heartbeat,
        } = self;
        let node_ports = extras.node_ports.map(|serve| serve(stop.clone()));
        let (router, tables) = match extras.routes {
            Some(extra) => (router.merge(extra.router), Some(extra.tables)),
            None => (router, None),
        };
        let synced = wait_for_sync(reports, tables);
        let all = async {
            let node_ports = async { Ok(OptionFuture::from(node_ports).await.transpose().map(drop)?) };
            tokio::try_join!(serve(binder, router, limits, metrics, synced, stop), node_ports).map(drop)
        };
        tokio::select! {
            served = all => served,
            () = beat(&heartbeat) => Ok(()),
        }
    }
}

async fn beat(heartbeat: &Heartbeat) {
    let mut beats = interval(HEARTBEAT_INTERVAL);
    loop {
        beats.tick().await;
        heartbeat.beat();
    }
}

/// Waits, with a limit, until the inputs of the answers are known.
async fn wait_for_sync(
    mut reports: watch::Receiver<NodeReport>,
    tables: Option<watch::Receiver<Option<Arc<ServiceTable>>>>,
) {
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let is_known = |report: &NodeReport| report.is_synced() || report.source == Source::Remembered;
    if timeout_at(deadline.into(), reports.wait_for(is_known)).await.is_err() {
        tracing::warn!("state of the Node unknown and no remembered state found, it counts as eligible");
    }
    if let Some(mut tables) = tables
        && timeout_at(deadline.into(), tables.wait_for(Option::is_some))
            .await
            .is_err()
    {
        tracing::warn!("Services and EndpointSlices not listed in time; requests about them get 503");
    }
}

async fn serve(
    binder: Binder,
    router: Router,
    limits: Limits,
    metrics: Metrics,
    synced: impl Future<Output = ()>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let open = async {
        synced.await;
        let name = binder.name;
        binder
            .bind(&metrics)
            .await
            .map_err(|source| AgentError::Bind { listener: name, source })
    };
    let listener = tokio::select! {
        listener = open => listener?,
        () = stop.cancelled() => return Ok(()),
    };
    server::serve("healthz", listener, router, limits, &metrics, stop).await?;
    Ok(())
}
