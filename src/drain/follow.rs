//! Follows a `NodeMaintenance`: a watch in, lines of text out.
//!
//! Invariant: it writes nothing to the cluster. A watch that fails is started again; the drain goes on meanwhile, and afterwards.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use headgate_core::telemetry::error_chain;
use headgate_kubernetes::Decoded;
use headgate_maintenance::api::NodeMaintenance;
use jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::Error::InitialListFailed;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, sleep_until};

use super::progress::{Outcome, Progress};

/// How often time alone may give a line.
const TICK: Duration = Duration::from_secs(5);
/// A timeout that no drain reaches.
const FOREVER: Duration = Duration::from_hours(24 * 365);

/// What is followed.
pub(crate) struct FollowRequest<'a> {
    /// A client of the API server.
    pub(crate) client: &'a Client,
    /// The maintenance as it was created or found.
    pub(crate) object: &'a NodeMaintenance,
    /// How long it is followed; `None` until its end.
    pub(crate) timeout: Option<Duration>,
}

/// How following ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Followed {
    /// How the drain ended.
    pub(crate) outcome: Outcome,
    /// The last state.
    pub(crate) last: Box<NodeMaintenance>,
}

/// Why following ended before the drain.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowError {
    /// The user ended it.
    #[error("interrupted. {}", goes_on(.0))]
    Interrupted(String),
    /// The time is over.
    #[error("not drained within {timeout:?}. {}", goes_on(.name))]
    Timeout {
        /// The name of the maintenance.
        name: String,
        /// The given time.
        timeout: Duration,
    },
    /// The API server never lets it be followed.
    #[error("NodeMaintenance {name} cannot be followed: {error}. {}", goes_on(.name))]
    Refused {
        /// The name of the maintenance.
        name: String,
        /// The answer.
        error: String,
    },
}

fn goes_on(name: &str) -> String {
    format!(
        "The drain goes on: the same command again follows it, `headgate undrain` with the same nodes or `kubectl delete hgnm {name}` cancels it"
    )
}

/// Follows a maintenance to its end. `line` gets each line; `interrupted` ends following, and not the drain.
///
/// # Errors
/// When the time is over, the user interrupts, or may not watch the maintenance.
pub(crate) async fn follow(
    request: FollowRequest<'_>,
    interrupted: impl Future<Output = ()>,
    mut line: impl FnMut(&str),
) -> Result<Followed, FollowError> {
    let FollowRequest {
        client,
        object,
        timeout,
    } = request;
    let name = object.name_any();
    let mut progress = Progress::new(object, Timestamp::now());
    let mut last = Box::new(object.clone());
    let api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    let mut states = pin!(watch_object(api, &name).default_backoff());
    let mut interrupted = pin!(interrupted);
    let deadline = Instant::now() + timeout.unwrap_or(FOREVER);
    let mut tick = Instant::now() + TICK;
    let mut reported_error = String::new();
    let mut was_read = false;
    loop {
        tokio::select! {
            biased;
            () = &mut interrupted => return Err(FollowError::Interrupted(name)),
            () = sleep_until(deadline) => {
                for text in progress.unfinished() {
                    line(&text);
                }
                return Err(FollowError::Timeout { name, timeout: timeout.unwrap_or(FOREVER) });
            }
            () = sleep_until(tick) => {
                tick = Instant::now() + TICK;
                for text in progress.remind(Timestamp::now()) {
                    line(&text);
                }
            }
            state = states.next() => match state {
                Some(Ok(Some(Decoded::Undecodable(undecodable)))) => {
                    let error = undecodable.to_string();
                    if error != reported_error {
                        line(&format!("nodemaintenance/{error}"));
                    }
                    reported_error = error;
                }
                Some(Ok(state)) => {
                    was_read = true;
                    let state = state.and_then(|state| state.into_object().ok());
                    reported_error.clear();
                    let (lines, outcome) = progress.update(state.as_ref(), Timestamp::now());
                    for text in &lines {
                        line(text);
                    }
                    last = state.map_or(last, Box::new);
                    if let Some(outcome) = outcome {
                        return Ok(Followed { outcome, last });
                    }
                }
                // Later it may pass: a kube-apiserver that starts does not know every role at once.
                Some(Err(InitialListFailed(kube::Error::Api(refusal)))) if !was_read && matches!(refusal.code, 401 | 403) => {
                    let error = refusal.message.clone();
                    return Err(FollowError::Refused { name, error });
                }
                Some(Err(error)) => {
                    let error = error_chain(&error);
                    if error != reported_error {
                        line(&format!("nodemaintenance/{name}: not watched, trying again: {error}"));
                    }
                    reported_error = error;
                }
                // The stream of a watch does not end.
                None => std::future::pending().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_maintenance::api::NodeMaintenanceSpec;
    use headgate_test_kubernetes::{FakeApi, Fault};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_who_may_never_follow_is_told_so_at_once() {
        let object = NodeMaintenance::new("m", NodeMaintenanceSpec::default());
        for (fault, expected) in [
            (Fault::Status(401), "NodeMaintenance m cannot be followed: "),
            (Fault::Status(403), "NodeMaintenance m cannot be followed: "),
            (Fault::Status(503), "not drained within 60s. "),
        ] {
            let (client, faults) = FakeApi::default().client();
            faults.set(fault);
            let request = FollowRequest {
                client: &client,
                object: &object,
                timeout: Some(Duration::from_mins(1)),
            };
            let error = follow(request, std::future::pending(), |_| {}).await.unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(error.contains("The drain goes on: "), "{error}");
        }
    }
}
