//! Disturbances during a soak: changes of the taint, and outages of the API server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::expected_answer::{AGENT_LAG_TIMEOUT, ExpectedAnswer};
use crate::output::say;
use crate::probes::ProbeCounts;

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Seconds between two changes of the taint, repeated in a cycle.
const TAINT_INTERVALS_SECONDS: [u64; 6] = [3, 4, 2, 6, 3, 5];
/// Attempts for one change: an API server may refuse requests right after its start.
const PATCH_ATTEMPTS: u32 = 10;
/// Duration of an outage of the API server.
const OUTAGE_DURATION: Duration = Duration::from_secs(20);
/// Maximum interval between two outages; a short soak has five outages.
const OUTAGE_INTERVAL: Duration = Duration::from_mins(5);
/// Time within which an agent must reconnect after an outage: its backoff grows to half a minute, plus as
/// much jitter.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(75);
/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_mins(1);

/// The result of the disturbances.
#[derive(Debug, Default)]
pub(crate) struct ScenarioResult {
    /// Times from the confirmation of a change to the first probe that shows it, while the API server is up.
    pub(crate) seen: Vec<Duration>,
    /// The same for the first change after an outage.
    pub(crate) seen_after_outage: Vec<Duration>,
    /// The number of changes that no probe showed in time.
    pub(crate) missed: u64,
}

struct TaintScenario<'a> {
    nodes: Api<Node>,
    node: &'a str,
    expected_answer: &'a ExpectedAnswer,
    counts: &'a ProbeCounts,
    tainted: bool,
    result: ScenarioResult,
}

/// Runs for `length`; ends with the API server up.
pub(crate) async fn run(
    control_plane: &mut ControlPlane,
    client: Client,
    node: &str,
    length: Duration,
    expected_answer: &ExpectedAnswer,
    counts: &ProbeCounts,
) -> anyhow::Result<ScenarioResult> {
    let begun = Instant::now();
    let period = OUTAGE_INTERVAL.min(length / 5);
    let mut outage = begun + period;
    let mut line = begun + PROGRESS_INTERVAL;
    let mut scenario = TaintScenario {
        nodes: Api::all(client),
        node,
        expected_answer,
        counts,
        tainted: false,
        result: ScenarioResult::default(),
    };
    for pause in TAINT_INTERVALS_SECONDS.into_iter().cycle() {
        sleep(Duration::from_secs(pause)).await;
        if begun.elapsed() >= length {
            break;
        }
        if Instant::now() >= outage {
            control_plane.stop_apiserver().await;
            sleep(OUTAGE_DURATION).await;
            control_plane.start_apiserver().await?;
            scenario.change(true).await?;
            outage = Instant::now() + period;
        } else {
            scenario.change(false).await?;
        }
        if Instant::now() >= line {
            line += PROGRESS_INTERVAL;
            say(&scenario.progress(begun.elapsed()));
        }
    }
    Ok(scenario.result)
}

impl TaintScenario<'_> {
    /// Adds or removes the taint, and waits until a probe shows it.
    async fn change(&mut self, after_outage: bool) -> anyhow::Result<()> {
        self.expected_answer.changing();
        self.tainted = !self.tainted;
        self.patch().await?;
        let code = if self.tainted { 503 } else { 200 };
        let patched = Instant::now();
        if !after_outage {
            // From now on, every probe must have this answer.
            self.expected_answer.settled(code);
        }
        let mut latest = self.counts.latest();
        let bound = if after_outage {
            RECONNECT_TIMEOUT
        } else {
            AGENT_LAG_TIMEOUT
        };
        if timeout(bound, latest.wait_for(|latest| *latest == code)).await.is_err() {
            self.result.missed += 1;
        } else if after_outage {
            self.result.seen_after_outage.push(patched.elapsed());
        } else {
            self.result.seen.push(patched.elapsed());
        }
        self.expected_answer.settled(code);
        Ok(())
    }

    async fn patch(&self) -> anyhow::Result<()> {
        let taints = if self.tainted {
            json!([{"key": TAINT, "value": "1", "effect": "NoSchedule"}])
        } else {
            json!(null)
        };
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let mut attempt = 1;
        loop {
            match self.nodes.patch(self.node, &PatchParams::default(), &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if attempt == PATCH_ATTEMPTS => return Err(error).context("changing the taint"),
                Err(_) => attempt += 1,
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    fn progress(&self, elapsed: Duration) -> String {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} s: {} probes, {} failed, {} wrong; {} changes seen, {} outages",
            elapsed.as_secs(),
            count(&self.counts.good) + count(&self.counts.bad),
            count(&self.counts.failed),
            count(&self.counts.wrong),
            self.result.seen.len(),
            self.result.seen_after_outage.len()
        )
    }
}
