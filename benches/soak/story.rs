//! What happens meanwhile: the taint comes and goes, and so does the API server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::expected_answer::{ExpectedAnswer, LAG};
use crate::output::say;
use crate::probes::ProbeCounts;

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Seconds from one change of the taint to the next, over and over.
const TAINT_INTERVALS_SECONDS: [u64; 6] = [3, 4, 2, 6, 3, 5];
/// How often a change is tried: an API server that has just come back may refuse one.
const ATTEMPTS: u32 = 10;
/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(20);
/// The longest time from one outage to the next; a short soak has five.
const OUTAGES: Duration = Duration::from_mins(5);
/// How long an agent may take to find an API server that has come back: its pauses grow to half a minute, and as
/// much again by chance.
const FINDING: Duration = Duration::from_secs(75);
/// From one line for the person who watches to the next.
const TELLING: Duration = Duration::from_mins(1);

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// From the answer to a change of the taint to the first probe that shows it, where the API server was up.
    pub(crate) seen: Vec<Duration>,
    /// The same for the first change after the API server was back.
    pub(crate) seen_after_outage: Vec<Duration>,
    /// Changes that no probe showed in time.
    pub(crate) missed: u64,
}

struct Teller<'a> {
    nodes: Api<Node>,
    node: &'a str,
    expected_answer: &'a ExpectedAnswer,
    counts: &'a ProbeCounts,
    tainted: bool,
    story: Story,
}

/// Goes on for `length`; ends with the API server up.
pub(crate) async fn run(
    control_plane: &mut ControlPlane,
    client: Client,
    node: &str,
    length: Duration,
    expected_answer: &ExpectedAnswer,
    counts: &ProbeCounts,
) -> anyhow::Result<Story> {
    let begun = Instant::now();
    let period = OUTAGES.min(length / 5);
    let mut outage = begun + period;
    let mut line = begun + TELLING;
    let mut teller = Teller {
        nodes: Api::all(client),
        node,
        expected_answer,
        counts,
        tainted: false,
        story: Story::default(),
    };
    for pause in TAINT_INTERVALS_SECONDS.into_iter().cycle() {
        sleep(Duration::from_secs(pause)).await;
        if begun.elapsed() >= length {
            break;
        }
        if Instant::now() >= outage {
            control_plane.stop_apiserver().await;
            sleep(OUTAGE).await;
            control_plane.start_apiserver().await?;
            teller.change(true).await?;
            outage = Instant::now() + period;
        } else {
            teller.change(false).await?;
        }
        if Instant::now() >= line {
            line += TELLING;
            say(&teller.progress(begun.elapsed()));
        }
    }
    Ok(teller.story)
}

impl Teller<'_> {
    /// Adds the taint or takes it away, and waits until a probe shows it.
    async fn change(&mut self, after_outage: bool) -> anyhow::Result<()> {
        self.expected_answer.changing();
        self.tainted = !self.tainted;
        self.patch().await?;
        let code = if self.tainted { 503 } else { 200 };
        let patched = Instant::now();
        if !after_outage {
            // From here on every probe is held to it.
            self.expected_answer.settled(code);
        }
        let mut latest = self.counts.latest();
        let bound = if after_outage { FINDING } else { LAG };
        if timeout(bound, latest.wait_for(|latest| *latest == code)).await.is_err() {
            self.story.missed += 1;
        } else if after_outage {
            self.story.seen_after_outage.push(patched.elapsed());
        } else {
            self.story.seen.push(patched.elapsed());
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
                Err(error) if attempt == ATTEMPTS => return Err(error).context("changing the taint"),
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
            self.story.seen.len(),
            self.story.seen_after_outage.len()
        )
    }
}
