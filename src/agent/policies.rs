//! What writes waits until the admission policies that bound its rights are proved to be in force.
//!
//! One task of the process asks, again after a pause while they are missing or the API server does not answer; it records the event
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
const MAX_PAUSE: Duration = Duration::from_mins(1);

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

/// Returns once all of them are in force.
async fn prove(client: &Client, canaries: &[Canary], events: &EventSink, reports: &watch::Receiver<NodeReport>) {
    let builder = ExponentialBuilder::default().with_factor(2.0).without_max_times();
    let mut pauses = builder
        .with_min_delay(MIN_PAUSE)
        .with_max_delay(MAX_PAUSE)
        .with_jitter()
        .build();
    let (mut missing_since, mut is_recorded) = (None, false);
    let mut logged = String::new();
    loop {
        let retry_in = pauses.next().unwrap_or(MAX_PAUSE);
        match timeout(ATTEMPT_TIMEOUT, missing_policies(client, canaries)).await {
            Ok(Ok(missing)) if missing.is_empty() => return,
            Ok(Ok(missing)) => {
                let missing = missing.join(", ");
                if logged != missing {
                    tracing::warn!(
                        policies = missing,
                        "admission policies missing; no Node is written and this process does not lead"
                    );
                    logged.clone_from(&missing);
                }
                let since = *missing_since.get_or_insert_with(Instant::now);
                if !is_recorded && since.elapsed() >= EVENT_AFTER {
                    is_recorded = true;
                    events.record(own_node(events, reports), POLICY_MISSING, missing_note(&missing));
                }
            }
            Ok(Err(error)) => tracing::info!(%error, ?retry_in, "admission policies not proved"),
            Err(_) => tracing::info!(
                ?retry_in,
                "admission policies not proved: the api server does not answer"
            ),
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
