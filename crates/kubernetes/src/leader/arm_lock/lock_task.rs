//! The lock task: carries out what the state machine decides, watches the shared Lease, and publishes the hold.
//!
//! Invariant: one request at a time. Only this task writes the Lease, so a writer that stops waiting interrupts no request.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use headgate_core::clock::Clock;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::LeaseName;
use super::super::lease_client::LeaseClient;
use super::hold_state::HoldState;
use super::state_machine::{Request, Response, StateMachine, Step};
use crate::watch::watch_object;
use crate::{Decoded, WatchErrorCounter, WatchReporter};

/// Limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// When the lock is dropped, a hold is released within this time or left to expire.
const FINAL_RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct LockTask {
    pub(super) client: Client,
    pub(super) lease: LeaseName,
    pub(super) state_machine: StateMachine,
    pub(super) holds: Arc<HoldState>,
    /// Notifies the users of the lock of changes. It is closed when the lock and all guards are dropped.
    pub(super) changes: watch::Sender<()>,
    pub(super) watch_errors: WatchErrorCounter,
    pub(super) clock: Clock,
}

/// Runs until the lock and all guards are dropped and nothing is held, or a write was dropped: then the Lease is left to the next leader,
/// or to expire.
pub(super) async fn run(task: LockTask) {
    let LockTask {
        client,
        lease,
        mut state_machine,
        holds,
        changes,
        watch_errors,
        clock,
    } = task;
    let reporter = WatchReporter::new("leases", watch_errors, clock.clone());
    let namespaced = |client| Api::namespaced(client, &lease.namespace);
    let mut states = watch_object::<Lease>(&client, namespaced, &lease.name, reporter);
    let mut leases = LeaseClient::new(client, &lease);
    let mut release_by = None;
    loop {
        let is_dropped = changes.is_closed();
        let now = clock.now();
        let demand = holds.demand(now.mono);
        if is_dropped {
            let release_by = *release_by.get_or_insert_with(|| now.mono + FINAL_RELEASE_TIMEOUT);
            if state_machine.hold().is_none() || demand.keep_hold || now.mono >= release_by {
                return;
            }
        }
        match state_machine.next(demand, now) {
            Step::Send(request) => {
                let response = send(&mut leases, &request).await;
                state_machine.handle_response(&request, response, clock.now());
            }
            Step::Wait(until) => {
                let until = until.into_iter().chain(release_by).min();
                tokio::select! {
                    biased;
                    Some(state) = states.next() => match state {
                        Ok(lease) => match lease.map(Decoded::into_object).transpose() {
                            Ok(lease) => state_machine.handle_watch(lease, clock.now()),
                            Err(_) => state_machine.handle_watch_error(clock.now()),
                        },
                        Err(_) => state_machine.handle_watch_error(clock.now()),
                    },
                    () = holds.changed() => {}
                    () = changes.closed(), if !is_dropped => {}
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
                }
            }
        }
        let (hold, obstacle) = (state_machine.hold(), state_machine.obstacle(clock.now()));
        let is_confirmed = state_machine.is_confirmed();
        if holds.publish(hold, is_confirmed, obstacle, state_machine.other_holds()) {
            tracing::warn!(
                lease = lease.name,
                "shared Lease lost in a write: another process took it"
            );
        }
        changes.send_replace(());
    }
}

async fn send(leases: &mut LeaseClient, request: &Request) -> Response {
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    match request {
        Request::Read => leases.read(deadline).await,
        Request::Create(lease) | Request::Acquire(lease, _) | Request::Release(lease) => {
            leases.write(lease, deadline).await.map(Some)
        }
    }
}

/// Attempts something after each change until it succeeds; `None` if it has not by `deadline`.
///
/// # Errors
/// If the lock task has ended.
pub(super) async fn retry_on_change<T>(
    changes: &mut watch::Receiver<()>,
    deadline: Instant,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<Option<T>, watch::error::RecvError> {
    let attempts = async {
        loop {
            changes.borrow_and_update();
            if let Some(value) = attempt() {
                return Ok(value);
            }
            changes.changed().await?;
        }
    };
    timeout_at(deadline, attempts).await.ok().transpose()
}
