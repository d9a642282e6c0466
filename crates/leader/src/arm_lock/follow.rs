//! Carries out what the keeper decides: watches the Lease, asks and writes, and tells those at the door.
//!
//! Invariant: one request at a time, each bounded, none repeated here or below; only this task writes the Lease, so
//! that whoever gives up waiting cuts no write short.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use headgate_clock::Clock;
use headgate_kubernetes::{EXPIRED, pausing, watch_error_reason};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::super::LeaseName;
use super::door::Door;
use super::keeper::{Answer, Keeper, Request, Step};

/// Bound on one request.
const REQUEST: Duration = Duration::from_secs(3);
/// Once nobody can enter any more, what is held is given back within this time or left.
const LAST_RELEASE: Duration = Duration::from_secs(3);

pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) lease: LeaseName,
    pub(super) keeper: Keeper,
    pub(super) door: Arc<Door>,
    /// Tells those at the door that something is another; closed once none can come.
    pub(super) news: watch::Sender<()>,
    pub(super) clock: Clock,
}

/// Keeps the Lease until nobody can enter any more and nothing is held.
pub(super) async fn run(follower: Follower) {
    let Follower {
        client,
        lease,
        mut keeper,
        door,
        news,
        clock,
    } = follower;
    let leases = Api::<Lease>::namespaced(client, &lease.namespace);
    let mut sights = pausing(watch_object(leases.clone(), &lease.name), |_| true);
    let mut told = Told::default();
    let mut leave_by = None;
    loop {
        let gone = news.is_closed();
        if gone {
            let leave_by = *leave_by.get_or_insert_with(|| Instant::now() + LAST_RELEASE);
            if keeper.hold().is_none() || Instant::now() >= leave_by {
                return;
            }
        }
        let now = clock.now();
        let want = door.want(now.mono);
        match keeper.next(want, now) {
            Step::Ask(request) => {
                let answer = ask(&leases, &lease.name, &request).await;
                told.heard(&request, &answer);
                keeper.answered(&request, answer, clock.now());
            }
            Step::Wait(until) => {
                let until = until.into_iter().chain(leave_by).min();
                tokio::select! {
                    biased;
                    Some(sight) = sights.next() => match sight {
                        Ok(sight) => {
                            told.watched();
                            keeper.watched(sight, clock.now());
                        }
                        Err(error) => {
                            let reason = watch_error_reason(&error);
                            if reason != EXPIRED {
                                told.not_watched(reason, &error);
                            }
                            keeper.watch_failed(clock.now());
                        }
                    },
                    () = door.knocked() => {}
                    () = news.closed(), if !gone => {}
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
                }
            }
        }
        if door.publish(keeper.hold(), keeper.obstacle(clock.now()), keeper.others()) {
            tracing::warn!(lease = lease.name, "the ARM lock was taken away while it was held");
        }
        news.send_replace(());
    }
}

async fn ask(leases: &Api<Lease>, name: &str, request: &Request) -> Answer {
    let params = PostParams::default();
    let asked = async {
        match request {
            Request::Read => leases.get_opt(name).await,
            Request::Make(lease) => leases.create(&params, lease).await.map(Some),
            Request::Take(lease, _) | Request::Release(lease) => leases.replace(name, &params, lease).await.map(Some),
        }
    };
    match timeout(REQUEST, asked).await {
        Ok(Ok(lease)) => Answer::Lease(lease.map(Box::new)),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Answer::Conflict,
        Ok(Err(error)) => Answer::Failed(headgate_telemetry::chain(&error)),
        Err(_) => Answer::Failed("the API server did not answer in time".to_owned()),
    }
}

/// What was last told of requests and of the watch, so that nothing is told twice.
#[derive(Default)]
struct Told {
    failure: Option<String>,
    watch: Option<&'static str>,
}

impl Told {
    fn heard(&mut self, request: &Request, answer: &Answer) {
        match answer {
            Answer::Failed(error) => {
                let done = match request {
                    Request::Read => "read",
                    Request::Make(_) => "made",
                    Request::Take(..) => "taken",
                    Request::Release(_) => "given back",
                };
                if self.failure.as_ref() != Some(error) {
                    tracing::warn!(error, "the ARM lock's Lease could not be {done}; trying again");
                    self.failure = Some(error.clone());
                }
            }
            Answer::Lease(_) => self.failure = None,
            Answer::Conflict => {}
        }
    }

    fn watched(&mut self) {
        if self.watch.take().is_some() {
            tracing::info!("the ARM lock's Lease is watched again");
        }
    }

    fn not_watched(&mut self, reason: &'static str, error: &kube::runtime::watcher::Error) {
        if self.watch.replace(reason) != Some(reason) {
            let error = headgate_telemetry::chain(error);
            tracing::warn!(
                reason,
                error,
                "the ARM lock's Lease cannot be watched; it is looked at while somebody waits for it"
            );
        }
    }
}

/// Waits until `is_done` says so, asking after each piece of news; whether it was before `by`, and before the end of news.
pub(super) async fn until<T>(
    news: &mut watch::Receiver<()>,
    by: Instant,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<Option<T>, watch::error::RecvError> {
    let attempts = async {
        loop {
            news.borrow_and_update();
            if let Some(value) = attempt() {
                return Ok(value);
            }
            news.changed().await?;
        }
    };
    timeout_at(by, attempts).await.ok().transpose()
}
