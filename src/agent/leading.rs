//! The candidate of this process, and what the work of a term is given.
//!
//! Only a process that may lead and knows where Azure is stands for election. Its work is handed in by the composition
//! root; a defect of it ends the term and never the process (DESIGN decision 8). When the process is to stop,
//! the Lease is given back first ([`LeaderElection::release_lease`]), while probes are answered as before.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_azure::BadId;
use headgate_clock::Clock;
use headgate_controller::admin_state::{self, Candidates, Policy, Reached};
use headgate_kubernetes::ClusterEventRecorder;
use headgate_leader::{Fleet, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term, TermFailure, Timing};
use headgate_node::Report;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::supervise::Tasks;
use super::{AzureAccess, ConnectError, Connected, Role};
use crate::config::Settings;

/// Handing over takes at most a request that is under way, the work's 3 s, and the write that gives the Lease back.
const HAND_OVER: Duration = Duration::from_secs(10);
/// For so long a term tries to come to ARM. Then another instance's turn is worth more: its file may be better.
const CONNECTING: Duration = Duration::from_secs(30);
/// Between attempts to come to ARM.
const AGAIN: Duration = Duration::from_secs(5);

/// What the work of each term is given.
#[derive(Clone)]
pub struct LeaderContext {
    /// A client of the API server that does not retry of itself.
    pub client: Client,
    /// The way to ARM, to be gone anew in each term.
    pub azure: AzureAccess,
    /// All settings.
    pub settings: Settings,
    /// Where the work says how many candidates there are; forgotten when it ends.
    pub fleet: watch::Sender<Option<Fleet>>,
    /// The Node that this process is on.
    pub node_name: String,
    /// Which part of the work this process does.
    pub role: Role,
    /// Its time.
    pub clock: Clock,
}

impl LeaderContext {
    /// For a process as this.
    pub(super) fn new(
        settings: &Settings,
        (client, node_name, role): (&Client, &str, Role),
        requests: headgate_azure::Metrics,
        clock: &Clock,
    ) -> Self {
        let azure = AzureAccess {
            settings: settings.azure.clone(),
            client: client.clone(),
            metrics: requests,
            clock: clock.clone(),
        };
        Self {
            client: client.clone(),
            azure,
            settings: settings.clone(),
            fleet: watch::Sender::new(None),
            node_name: node_name.to_owned(),
            role,
            clock: clock.clone(),
        }
    }

    /// An ARM that can be asked; tried for half a minute, and no longer than the term lasts.
    ///
    /// # Errors
    /// The last attempt's.
    pub async fn connected(&self, term: &Term) -> Result<Connected, ConnectError> {
        let mut last = ConnectError::TermEnded;
        let trying = async {
            loop {
                match self.azure.connect().await {
                    Ok(connected) => return connected,
                    Err(error) => {
                        if error.to_string() != last.to_string() {
                            tracing::warn!(%error, "ARM cannot be asked yet; trying again");
                        }
                        last = error;
                    }
                }
                sleep(AGAIN).await;
            }
        };
        let tried = tokio::select! {
            tried = timeout(CONNECTING, trying) => tried.ok(),
            () = term.handover_requested() => None,
        };
        tried.ok_or(last)
    }
}

/// The process's standing for election.
pub(super) struct LeaderElection {
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
}

impl LeaderElection {
    /// Stands for election, and has `work` done in each term.
    pub(super) fn start<W, F, E>(
        tasks: &mut Tasks,
        desk: LeaderContext,
        reports: watch::Receiver<Report>,
        metrics: Metrics,
        work: W,
    ) -> Self
    where
        W: Fn(Term, LeaderContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let (gone, stopped) = watch::channel(false);
        let elector = LeaderElector::new(headgate_leader::LeaderElectionConfig {
            client: desk.client.clone(),
            lease: LeaseName::default(),
            identity: headgate_leader::candidate_identity(&desk.node_name),
            timing: Timing::default(),
            reports,
            fleet: desk.fleet.subscribe(),
            clock: desk.clock.clone(),
        });
        let begin = move |term: Term| {
            let done = work(term.clone(), desk.clone());
            in_office(term, desk.clone(), metrics.clone(), done)
        };
        tasks.endless("leader", async move {
            headgate_leader::run(elector, stopping, begin).await;
            gone.send_replace(true);
            // It may be told to stop, but not end.
            std::future::pending::<()>().await;
        });
        Self { stop, stopped }
    }

    /// Gives the Lease back, if it is ours, and stands no more.
    pub(super) async fn release_lease(&mut self) {
        self.stop.send_replace(true);
        if timeout(HAND_OVER, self.stopped.wait_for(|stopped| *stopped))
            .await
            .is_err()
        {
            tracing::warn!("the Lease was not given back in time: it expires");
        }
    }
}

/// Forgets how many candidates there are, however the work ends.
struct Forgets(watch::Sender<Option<Fleet>>);

impl Drop for Forgets {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// The work of one term, counted.
async fn in_office<E: Display>(
    term: Term,
    desk: LeaderContext,
    metrics: Metrics,
    work: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    let _forgets = Forgets(desk.fleet.clone());
    let working = metrics.begins(&term, desk.clock.now().wall);
    #[cfg(feature = "panic-drill")]
    drill().await;
    let outcome = work.await;
    let told = term.handover_requested().now_or_never().is_some() || term.permit().is_err();
    working.ended(match &outcome {
        Err(_) => Some(Failure::Error),
        Ok(()) if !told => Some(Failure::Returned),
        Ok(()) => None,
    });
    outcome
}

/// A defect on purpose, in programs that are built to be tested with one.
#[cfg(feature = "panic-drill")]
#[expect(clippy::panic, reason = "that is what it is for")]
async fn drill() {
    let variable = "HEADGATE_PANIC_DRILL";
    if std::env::var_os(variable).is_some() {
        sleep(Duration::from_secs(1)).await;
        std::panic::panic_any(format!("{variable} is set"));
    }
}

/// Why the work of a term failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TermError {
    /// ARM cannot be come to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What is said about Azure names nothing.
    #[error(transparent)]
    Group(#[from] BadId),
    /// Admin states cannot be kept.
    #[error(transparent)]
    AdminStates(#[from] admin_state::WorkError),
}

/// What is done in each term: admin states are kept.
pub(super) fn work(
    metrics: admin_state::Metrics,
    lock_metrics: LockMetrics,
) -> impl Fn(Term, LeaderContext) -> BoxFuture<'static, Result<(), TermError>> + Send + Sync {
    move |term, desk| {
        let parts = parts(&desk, metrics.clone(), lock_metrics.clone());
        lead(term, desk, parts).boxed()
    }
}

/// Keeps admin states for a term; begins anew where what is said about Azure has changed.
async fn lead(term: Term, desk: LeaderContext, parts: admin_state::Parts) -> Result<(), TermError> {
    loop {
        let connected = desk.connected(&term).await;
        if term.handover_requested().now_or_never().is_some() {
            return Ok(());
        }
        let Connected { arm, config } = match connected {
            Ok(connected) => connected,
            Err(error) => {
                admin_state::not_begun(&term, &parts, &format!("ARM cannot be asked: {error}")).await;
                return Err(error.into());
            }
        };
        let mode = parts.policy.mode.as_str();
        tracing::info!(?arm, mode, "ARM can be asked");
        let reached = Reached::of(arm, &config, &desk.settings.azure.cluster_name)?;
        tokio::select! {
            outcome = admin_state::run(term.clone(), reached, parts.clone()) => return Ok(outcome?),
            () = desk.azure.changed(&config) => {
                tracing::info!("what is said about Azure has changed: the work begins anew with it");
            }
        }
    }
}

/// What the work is made of.
fn parts(desk: &LeaderContext, metrics: admin_state::Metrics, lock_metrics: LockMetrics) -> admin_state::Parts {
    let settings = &desk.settings;
    admin_state::Parts {
        client: desk.client.clone(),
        taint_keys: settings.signals.admin_state.clone(),
        policy: Policy {
            mode: settings.admin_state.mode,
            foreign_down: settings.admin_state.foreign_down,
        },
        candidates: if desk.role.answers_probes() {
            Candidates::Nodes
        } else {
            Candidates::Replicas
        },
        fleet: desk.fleet.clone(),
        node_name: desk.node_name.clone(),
        events: ClusterEventRecorder::new(desk.client.clone(), desk.node_name.clone()),
        metrics,
        lock_metrics,
        clock: desk.clock.clone(),
    }
}
