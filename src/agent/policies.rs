//! What writes waits until the admission policies that bound its rights are proved to be in force.
//!
//! One task of the process asks, again after a pause while they are missing or an answer proves nothing; it records the event
//! `PolicyMissing` once. What they forbid and how that is proved is left to `headgate-kubernetes`.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use headgate_core::node::NodeReport;
use headgate_kubernetes::{Canary, EventKind, EventSink, missing_policies};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::own_node;
use super::tasks::Tasks;

/// For all canaries together.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// An installation creates the policies a moment after the pods, and the API server enforces them a moment later.
const EVENT_AFTER: Duration = Duration::from_secs(10);
const POLICY_MISSING: EventKind = EventKind::warning("PolicyMissing", "CheckPolicies");
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The jitter adds up to as much.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// While the API server is away: what starts meanwhile writes soon after it.
const OUTAGE_PAUSE: Duration = Duration::from_secs(5);

/// Whether the policies are proved to be in force.
#[derive(Clone)]
pub(super) struct Policies(watch::Receiver<bool>);

impl Policies {
    /// Starts the task that proves those of the canaries. Without canaries there is nothing to prove.
    pub(super) fn start(
        tasks: &mut Tasks,
        canaries: Vec<Canary>,
        client: Client,
        events: EventSink,
        reports: watch::Receiver<NodeReport>,
    ) -> Self {
        let (proved, receiver) = watch::channel(canaries.is_empty());
        tasks.spawn_endless("policies", async move {
            if !canaries.is_empty() {
                prove(&client, &canaries, &events, &reports).await;
                proved.send_replace(true);
            }
            proved.closed().await;
            // The end of the task would end the process.
            std::future::pending::<()>().await;
        });
        Self(receiver)
    }

    /// Returns once they are proved.
    pub(super) async fn proved(mut self) {
        if self.0.wait_for(|is_proved| *is_proved).await.is_err() {
            // The process stops.
            std::future::pending::<()>().await;
        }
    }

    /// The work, once they are proved.
    pub(super) async fn before(self, work: impl Future<Output = ()>) {
        self.proved().await;
        work.await;
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default().with_factor(2.0).without_max_times();
    builder
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_jitter()
        .build()
}

/// Returns once all of them are in force.
async fn prove(client: &Client, canaries: &[Canary], events: &EventSink, reports: &watch::Receiver<NodeReport>) {
    let (mut next_pauses, mut unproved_since, mut is_recorded) = (pauses(), None, false);
    let mut logged = String::new();
    loop {
        let note = match timeout(ATTEMPT_TIMEOUT, missing_policies(client, canaries)).await {
            Ok(Ok(missing)) if missing.is_empty() => return,
            Ok(Ok(missing)) => missing_note(&missing.join(", ")),
            Ok(Err(kube::Error::Api(status))) => unproved_note(&status.message),
            Ok(Err(error)) => {
                // The API server is away, which no event can say. An answer after that is the first again: it may not be ready yet.
                tracing::info!(%error, retry_in = ?OUTAGE_PAUSE, "admission policies not proved");
                (next_pauses, unproved_since) = (pauses(), None);
                sleep(OUTAGE_PAUSE).await;
                continue;
            }
            Err(_) => {
                next_pauses = pauses();
                unproved_note("the API server does not answer")
            }
        };
        let retry_in = next_pauses.next().unwrap_or(MAX_PAUSE);
        if logged != note {
            tracing::warn!(note, ?retry_in, "admission policies not proved");
            logged.clone_from(&note);
        }
        let since = *unproved_since.get_or_insert_with(Instant::now);
        if !is_recorded && since.elapsed() >= EVENT_AFTER {
            is_recorded = true;
            events.record(own_node(events, reports), POLICY_MISSING, note);
        }
        sleep(retry_in).await;
    }
}

fn missing_note(missing: &str) -> String {
    format!(
        "The ValidatingAdmissionPolicies {missing} are not in force for headgate's ServiceAccount: it writes no Node and does not lead \
         until they are. Apply the manifests again; they need Kubernetes 1.30."
    )
}

/// Of a dry run that somebody else's rule refuses, for instance.
fn unproved_note(error: &str) -> String {
    format!(
        "It is not proved that the ValidatingAdmissionPolicies of headgate are in force for its ServiceAccount: it writes no Node and does \
         not lead until they are. Their dry run got this answer: {error}"
    )
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use headgate_core::clock::Clock;
    use headgate_core::node::SignalRules;
    use hyper::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_proves_nothing_is_recorded_once() {
        let refuse = |_: Request<Body>| async {
            let message = "admission webhook \"other\" denied the request: no";
            let body = json!({"status": "Failure", "message": message, "reason": "", "code": 400}).to_string();
            let mut response = Response::new(Body::from(body.into_bytes()));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            Ok::<_, Infallible>(response)
        };
        let client = Client::new(service_fn(refuse), "default");
        let (events, _queue) = EventSink::new(client.clone(), "n".to_owned());
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&recorded);
        let events = events.observed_by(Arc::new(move |event| {
            notes
                .lock()
                .unwrap()
                .push(format!("{}: {}", event.kind.reason, event.note));
        }));
        let (_reports, reports) =
            watch::channel(NodeReport::initial(None, &SignalRules::default(), Clock::System.now()));
        let canaries = [Canary::Lease];
        let proof = timeout(Duration::from_mins(10), prove(&client, &canaries, &events, &reports)).await;
        assert!(proof.is_err(), "it is not proved");
        let recorded = recorded.lock().unwrap();
        assert_eq!(recorded.len(), 1, "{recorded:?}");
        assert!(
            recorded[0].starts_with("PolicyMissing: ") && recorded[0].contains("webhook \"other\""),
            "{recorded:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_proof_comes_soon_after_an_outage_of_any_length() {
        let back_at = Instant::now() + Duration::from_mins(30);
        let ready_at = back_at + Duration::from_secs(10);
        let answer = move |_: Request<Body>| async move {
            let now = Instant::now();
            if now < back_at {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
            }
            let (code, body) = if now < ready_at {
                let message = "selfsubjectreviews is forbidden: not yet ready to handle request";
                (
                    403,
                    json!({"status": "Failure", "message": message, "reason": "Forbidden", "code": 403}),
                )
            } else {
                // Of a user whom no policy bounds.
                (
                    201,
                    json!({"metadata": {}, "status": {"userInfo": {"username": "admin"}}}),
                )
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok(response)
        };
        let client = Client::new(service_fn(answer), "default");
        let (events, _queue) = EventSink::new(client.clone(), "n".to_owned());
        let (_reports, reports) =
            watch::channel(NodeReport::initial(None, &SignalRules::default(), Clock::System.now()));
        prove(&client, &[Canary::Lease], &events, &reports).await;
        assert!(
            ready_at.elapsed() <= Duration::from_secs(16),
            "{:?}",
            ready_at.elapsed()
        );
    }
}
