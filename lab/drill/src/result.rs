//! Results: from what clients saw in one run to its JSON object.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::scenario::Scenario;
use crate::series::{Second, per_second};
use crate::strategy::Strategy;

/// One new connection. All times of a run are those of its scenario, since its first connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attempt {
    /// When it was begun.
    pub at: Duration,
    /// Whether an answer came in time.
    pub succeeded: bool,
}

/// One long-lived connection that was established.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connection {
    /// The index of the node that the load balancer chose for it.
    pub through: usize,
    /// When it was begun.
    pub opened: Duration,
    /// When its client ended it, or noticed its loss.
    pub ended: Duration,
    /// When the first request without an answer was sent; none if the client ended the connection.
    pub lost: Option<Duration>,
}

/// What a timeline shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// The Node or Pod got its first signal.
    Signal,
    /// The probed health endpoint first answered something else than 200.
    #[serde(rename = "healthz503")]
    Healthz503,
    /// ARM accepted a PUT that sets the admin state.
    PutAccepted,
    /// ARM showed the admin state `Down`, its operation succeeded.
    DownShown,
    /// The first of the load balancer's probes after a success that failed.
    ProbeFailed,
    /// Enough probes in a row failed, so the backend is down.
    ProbeDown,
    /// The load balancer sends no new flows any more.
    OutOfRotation,
    /// The Pod of a node that had its signal before is told to end.
    PodTerminating,
    /// The Pod's process has ended.
    PodEnded,
    /// The next Pod's process is ready.
    PodReady,
    /// The machine was switched off: it drops all packets within milliseconds.
    NodeGone,
}

/// An event of one node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineEvent<E = Event> {
    /// Seconds of the scenario since the first connection.
    pub t: f64,
    /// The event on the node.
    pub event: E,
    /// The index of the node, from 0.
    pub node: usize,
}

/// The result of one run. Results of any version have plain names in place of scenario, strategy and events
/// ([`SavedRun`](crate::report::saved::SavedRun)).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunResult<C = Scenario, T = Strategy, E = Event> {
    /// The scenario of the run.
    pub scenario: C,
    /// What was done about it.
    pub strategy: T,
    /// What the run's random numbers come from.
    pub seed: u64,
    /// Scenario seconds for each real second.
    pub speed: f64,
    /// The number of new connections that clients began.
    pub attempted: usize,
    /// Those without an answer in time.
    pub failed: usize,
    /// The share of new connections that failed, from 0 to 1.
    #[serde(skip_deserializing)]
    pub failed_share: f64,
    /// The number of long-lived connections that clients established.
    pub established: usize,
    /// Those that the client did not end itself.
    pub established_lost: usize,
    /// Those of them lost before the first machine was switched off, or in a run in which none was. Of later ones
    /// the machine is not known.
    pub established_lost_before_node_gone: usize,
    /// The number of long-lived connections that were open through a node at its first signal, summed over the nodes that were
    /// switched off; older versions did not count them.
    pub established_at_signal: Option<usize>,
    /// Seconds for which the new connections of one node were lost, summed over nodes: the failed share, times the
    /// length of the run, times the nodes.
    pub blackhole_seconds: f64,
    /// The longest real time by which a new connection or a step of the scenario was begun too late, because this machine
    /// was busy. Times the speed above [`LAG_LIMIT`], the run shows this machine more than its strategy.
    pub longest_lag_seconds: f64,
    /// What happened when, in order.
    pub timeline: Vec<TimelineEvent<E>>,
    /// New connections in each second of the scenario in which there were some, in order.
    #[serde(default)]
    pub per_second: Vec<Second>,
    /// When long-lived connections were lost, in seconds of the scenario, in order.
    #[serde(default)]
    pub established_lost_at: Vec<f64>,
    /// What the figures depend on; none where the caller did not state it.
    pub conditions: Option<Conditions>,
    /// For plots; not in the JSON object.
    #[serde(skip)]
    pub attempts: Vec<Attempt>,
}

/// The parameters that identify a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunIdentity {
    /// How the nodes go away.
    pub scenario: Scenario,
    /// What is done about it.
    pub strategy: Strategy,
    /// Where random numbers come from.
    pub seed: u64,
    /// Scenario seconds for each real second.
    pub speed: f64,
    /// The number of nodes.
    pub nodes: usize,
    /// See [`RunResult::longest_lag_seconds`].
    pub longest_lag: Duration,
}

/// A run whose clients or steps lagged longer is not trusted, in time of the scenario.
pub const LAG_LIMIT: Duration = Duration::from_millis(300);

/// Whether a lag in real seconds is above [`LAG_LIMIT`] at this speed.
pub(crate) fn is_too_late(lag_seconds: f64, speed: f64) -> bool {
    lag_seconds * speed > LAG_LIMIT.as_secs_f64() + 1e-9
}

/// A request is sent and a machine dies at nearly the same time: within this, the machine was first.
const DEATH_TOLERANCE: Duration = Duration::from_millis(50);

/// Computes a run's result.
pub fn summarize(
    run: &RunIdentity,
    attempts: Vec<Attempt>,
    connections: &[Connection],
    mut timeline: Vec<TimelineEvent>,
) -> RunResult {
    timeline.sort_by(|a, b| a.t.total_cmp(&b.t));
    let deaths: Vec<_> = timeline
        .iter()
        .filter(|event| event.event == Event::NodeGone)
        .map(|event| event.t)
        .collect();
    let first_death = deaths.iter().copied().reduce(f64::min);
    let tolerance = DEATH_TOLERANCE.as_secs_f64() * run.speed;
    let lost: Vec<_> = connections.iter().filter_map(|connection| connection.lost).collect();
    let before = |at: &&Duration| first_death.is_none_or(|death| at.as_secs_f64() + tolerance < death);
    let failed = attempts.iter().filter(|attempt| !attempt.succeeded).count();
    let failed_share = share(failed, attempts.len());
    let length = attempts.last().map_or(0.0, |attempt| attempt.at.as_secs_f64());
    let mut lost_at: Vec<_> = lost.iter().map(Duration::as_secs_f64).collect();
    lost_at.sort_by(f64::total_cmp);
    RunResult {
        scenario: run.scenario,
        strategy: run.strategy,
        seed: run.seed,
        speed: run.speed,
        attempted: attempts.len(),
        failed,
        failed_share,
        established: connections.len(),
        established_lost: lost.len(),
        established_lost_before_node_gone: lost.iter().filter(before).count(),
        established_at_signal: Some(open_at_signal(connections, &timeline)),
        blackhole_seconds: failed_share * length * float(run.nodes),
        longest_lag_seconds: run.longest_lag.as_secs_f64(),
        timeline,
        per_second: per_second(&attempts),
        established_lost_at: lost_at,
        conditions: None,
        attempts,
    }
}

/// How many connections were open through the nodes that were switched off, each at its node's first signal.
fn open_at_signal(connections: &[Connection], timeline: &[TimelineEvent]) -> usize {
    let of = |event: Event| timeline.iter().filter(move |found| found.event == event);
    let nodes = of(Event::NodeGone).map(|gone| gone.node);
    let signals = nodes.filter_map(|node| of(Event::Signal).find(|signal| signal.node == node));
    let open = |signal: &TimelineEvent| {
        let is_open = |connection: &&Connection| {
            let lifetime = connection.opened.as_secs_f64()..connection.ended.as_secs_f64();
            connection.through == signal.node && lifetime.contains(&signal.t)
        };
        connections.iter().filter(is_open).count()
    };
    signals.map(open).sum()
}

impl<C, T, E> RunResult<C, T, E> {
    /// What of it bounds a blackhole. Saved results have their length in whole seconds alone.
    pub(crate) fn exposure(&self) -> Exposure {
        let whole = self.per_second.last().map_or(0.0, |second| f64::from(second.t) + 1.0);
        let last = self.attempts.last();
        let nodes = self.conditions.as_ref().map_or(0, |conditions| conditions.nodes);
        Exposure {
            attempted: float(self.attempted),
            failed: float(self.failed),
            node_seconds: float(nodes) * last.map_or(whole, |attempt| attempt.at.as_secs_f64()),
        }
    }
}

impl RunResult {
    /// From a node's signal until its machine was switched off, of the slowest node, in seconds of the scenario; none if none was.
    pub(crate) fn node_gone_seconds(&self) -> Option<f64> {
        time_from_signal(&self.timeline, &Event::Signal, &Event::NodeGone)
    }
}

/// From a node's first signal until this event on it, in seconds of the scenario: of several nodes the longest time.
pub(crate) fn time_from_signal<E, N>(timeline: &[TimelineEvent<E>], signal: &N, event: &N) -> Option<f64>
where
    E: PartialEq<N>,
    N: ?Sized,
{
    let signals = timeline.iter().filter(|found| found.event == *signal);
    let times = signals.filter_map(|signal| {
        let mut later = timeline
            .iter()
            .filter(|found| found.node == signal.node && found.t >= signal.t);
        Some(later.find(|found| found.event == *event)?.t - signal.t)
    });
    times.reduce(f64::max)
}

/// What of a run bounds the blackhole that it may have had unseen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    /// New connections.
    pub(crate) attempted: f64,
    /// Those that failed.
    pub(crate) failed: f64,
    /// The length of the run times its nodes.
    pub(crate) node_seconds: f64,
}

/// -ln 0.05: with as many connections expected in a blackhole, none of them is seen in one case of 20.
const CONNECTIONS_AT_95_PERCENT: f64 = 2.995_732_273_553_991;

/// The longest mean blackhole of a run, in seconds summed over nodes, that leaves no failed connection in these runs with a
/// probability of at least 5 %; none if a connection failed or there was none.
pub(crate) fn blackhole_bound(runs: &[Exposure]) -> Option<f64> {
    let sum = |value: fn(&Exposure) -> f64| runs.iter().map(value).sum::<f64>();
    // New connections to one node in a second, summed over runs: a blackhole of d in each run meets d times as many.
    let to_a_node = sum(|run| {
        if run.node_seconds > 0.0 {
            run.attempted / run.node_seconds
        } else {
            0.0
        }
    });
    (sum(|run| run.failed) < 0.5 && to_a_node > 0.0).then(|| CONNECTIONS_AT_95_PERCENT / to_a_node)
}

/// Wilson's interval for a share at 95 %.
pub(crate) fn wilson(failed: f64, attempted: f64) -> (f64, f64) {
    const Z: f64 = 1.96;
    if attempted <= 0.0 {
        return (0.0, 1.0);
    }
    let (share, z2) = (failed / attempted, Z * Z / attempted);
    let centre = (share + z2 / 2.0) / (1.0 + z2);
    let half = Z * (share * (1.0 - share) / attempted + z2 / (4.0 * attempted)).sqrt() / (1.0 + z2);
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
pub(crate) const fn float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the values are exact")]
mod tests;
