//! The thread that answers `/healthz` and `/livez`: its own runtime, one listener, and those of the
//! Services' own ports where they are opened; nothing else.
//!
//! When the port opens: at once where something is remembered; otherwise after the first sync with the
//! API server, or after 5 s as eligible. Where it also answers for Services it waits, within the same
//! 5 s, until these are known, so that a roll of headgate fails none. It is never closed by a failure
//! elsewhere.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use futures::future::OptionFuture;
use headgate_health::services::Table;
use headgate_http::server::{self, Binder, Limits, Metrics};
use headgate_node::{Report, Source};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, timeout_at};

use super::AgentError;
use super::services::Extra;

/// How long an unknown state is waited for before the port opens as eligible (DESIGN decision 3).
const SYNC_PATIENCE: Duration = Duration::from_secs(5);
/// Time between beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A health thread that has not moved for this long is stuck.
pub(super) const STUCK: Duration = Duration::from_secs(15);

/// A sign of life of the health thread, for the process's own `/livez`.
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

    /// Time since the last beat.
    pub(super) fn age(&self) -> Duration {
        self.origin
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}

/// The running thread.
pub(super) struct HealthThread {
    thread: Option<thread::JoinHandle<()>>,
    outcome: oneshot::Receiver<Result<(), AgentError>>,
    close: watch::Sender<bool>,
}

impl HealthThread {
    /// Starts the thread, which binds and serves `router` and what there is besides.
    pub(super) fn start(
        binder: Binder,
        router: Router,
        limits: Limits,
        extra: Extra,
        metrics: Metrics,
        reports: watch::Receiver<Report>,
        heartbeat: Arc<Heartbeat>,
    ) -> Result<Self, AgentError> {
        let failed = |error: std::io::Error| AgentError::HealthThread(error.to_string());
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (done, outcome) = oneshot::channel();
        let (close, closing) = watch::channel(false);
        let thread = thread::Builder::new()
            .name("health".to_owned())
            .spawn(move || {
                let served = runtime.block_on(async {
                    let beside = extra.ports.map(|ports| ports(closing.clone()));
                    let (router, tables) = match extra.path {
                        Some((more, tables)) => (router.merge(more), Some(tables)),
                        None => (router, None),
                    };
                    let known = known(reports, tables);
                    let all = async {
                        let beside = async { Ok(OptionFuture::from(beside).await.transpose().map(drop)?) };
                        tokio::try_join!(serve(binder, router, limits, metrics, known, closing), beside).map(drop)
                    };
                    tokio::select! {
                        served = all => served,
                        () = beat(&heartbeat) => Ok(()),
                    }
                });
                // A receiver that is gone has stopped caring.
                let _ = done.send(served);
            })
            .map_err(failed)?;
        Ok(Self {
            thread: Some(thread),
            outcome,
            close,
        })
    }

    /// Waits for the thread to end of itself.
    pub(super) async fn ended(&mut self) -> Result<(), AgentError> {
        match (&mut self.outcome).await {
            Ok(outcome) => outcome,
            Err(_) => Err(AgentError::HealthThread("it panicked".to_owned())),
        }
    }

    /// Hands the port on, closes it, and joins the thread.
    pub(super) async fn stop(&mut self) -> Result<(), AgentError> {
        self.close.send_replace(true);
        let outcome = self.ended().await;
        if let Some(thread) = self.thread.take() {
            // Its outcome is known; only its last instructions are left to run.
            let _ = thread.join();
        }
        outcome
    }
}

async fn beat(heartbeat: &Heartbeat) {
    let mut beats = interval(BEAT_INTERVAL);
    loop {
        beats.tick().await;
        heartbeat.beat();
    }
}

/// Waits, not for ever, for what the answers are made from.
async fn known(mut reports: watch::Receiver<Report>, tables: Option<watch::Receiver<Option<Arc<Table>>>>) {
    let deadline = Instant::now() + SYNC_PATIENCE;
    let known = |report: &Report| report.synced() || report.source == Source::Remembered;
    if timeout_at(deadline.into(), reports.wait_for(known)).await.is_err() {
        tracing::warn!("nothing is known of the Node yet and nothing is remembered: it counts as eligible");
    }
    if let Some(mut tables) = tables
        && timeout_at(deadline.into(), tables.wait_for(Option::is_some))
            .await
            .is_err()
    {
        tracing::warn!("Services and EndpointSlices were not listed yet: each Service is answered with 503");
    }
}

async fn serve(
    binder: Binder,
    router: Router,
    limits: Limits,
    metrics: Metrics,
    known: impl Future<Output = ()>,
    mut close: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let open = async {
        known.await;
        let name = binder.name;
        binder
            .bind(&metrics)
            .await
            .map_err(|source| AgentError::Bind { listener: name, source })
    };
    let listener = tokio::select! {
        listener = open => listener?,
        () = server::told(&mut close) => return Ok(()),
    };
    server::serve("healthz", listener, router, limits, &metrics, close).await?;
    Ok(())
}
