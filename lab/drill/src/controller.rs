//! The load balancer's control: it probes backends, takes admin states from the control plane, and keeps the rotation.
//!
//! It runs in the load balancer's namespace. Decisions are those of [`probe`](crate::probe) and
//! [`rotation`](crate::rotation); established flows are conntrack's.

use std::net::SocketAddrV4;
use std::time::Duration;

use headgate_budget::probe::ProbeSettings;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use crate::draining::{DrainRules, Drains, FlowEnd};
use crate::http::Probe;
use crate::network::{ruleset, tool, tool::ToolError};
use crate::probe::{ProbeResult, ProbeStatus, ProbeTracker};
use crate::rotation::{AdminState, Backend, NoHealthyBackends, Propagation, rotation};

/// Between two requests that look for the first failing health answer; no part of the load balancer.
const WATCH_INTERVAL: Duration = Duration::from_millis(10);
/// How long such a request may take.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// A load balancer; all times are real.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// Where it sends flows, what it probes, and the first probe of each of its probers, for each backend.
    pub backends: Vec<(SocketAddrV4, Probe, Vec<Instant>)>,
    /// Probes of rules of other Services. They change no backend; headgate's agents count them.
    pub other_probes: Vec<Probe>,
    /// The interval, timeout and thresholds of the probes.
    pub probe: ProbeSettings,
    /// What it does without eligible backends.
    pub no_healthy: NoHealthyBackends,
    /// From an admin state shown by the control plane until it takes effect.
    pub propagation: Duration,
    /// When established flows of backends that go away end.
    pub drain_rules: DrainRules,
    /// For the hash of flows, and the phases of other probes.
    pub seed: u64,
}

/// What happened to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its health endpoint first failed; seen only of backends that are watched.
    HealthFailed,
    /// The first of its probes after a success that failed.
    ProbeFailed,
    /// Its probes have marked it.
    Probed(ProbeStatus),
    /// It gets new flows from now on, or no more.
    InRotation(bool),
}

/// A change of the backend with an index, and when.
pub type Changed = (Instant, usize, Change);

/// What the controller needs from others and gives to them.
#[derive(Debug)]
pub struct Channels {
    /// What the control plane shows for each backend.
    pub admin_states: watch::Receiver<Vec<AdminState>>,
    /// Backends whose first failing health answer is of interest.
    pub watched: mpsc::Receiver<usize>,
    /// Backends that a controller of the provider takes out.
    pub deregistered: mpsc::Receiver<usize>,
    /// Receives every change of a backend's status.
    pub changes: mpsc::UnboundedSender<Changed>,
    /// Receives the indexes of the backends in rotation.
    pub rotation: watch::Sender<Vec<usize>>,
}

/// Works until the receiver of the rotation is gone.
///
/// # Errors
/// The rules of the data plane cannot be changed.
pub async fn run(settings: ControllerSettings, mut channels: Channels) -> Result<(), ToolError> {
    let mut random = fastrand::Rng::with_seed(settings.seed);
    let hash_seed = random.u32(..);
    let (send_results, mut results) = mpsc::channel(64);
    let mut tasks = JoinSet::new();
    for (index, (_, probe, first)) in settings.backends.iter().enumerate() {
        for (prober, first) in first.iter().enumerate() {
            let id = (index, prober);
            let results = send_results.clone();
            tasks.spawn(probe_forever(id, probe.clone(), *first, settings.probe, results));
        }
    }
    let (send_ignored, mut ignored) = mpsc::channel(64);
    for (index, probe) in settings.other_probes.iter().enumerate() {
        let first = Instant::now() + settings.probe.interval.mul_f64(random.f64());
        let results = send_ignored.clone();
        tasks.spawn(probe_forever((index, 0), probe.clone(), first, settings.probe, results));
    }
    let start = Instant::now();
    let count = settings.backends.len();
    let mut state = State {
        hash_seed,
        probes: settings
            .backends
            .iter()
            .map(|(_, _, first)| Probes::new(first.len()))
            .collect(),
        propagation: Propagation::new(settings.propagation, count),
        drains: Drains::new(settings.drain_rules, count),
        ended: None,
        rotation: Vec::new(),
        settings,
    };
    loop {
        let next = [state.propagation.next(), state.drains.next(start.elapsed())];
        let due = next.into_iter().flatten().min().map(|at| start + at);
        tokio::select! {
            () = channels.rotation.closed() => return Ok(()),
            Some(((index, prober), result)) = results.recv() => {
                for change in state.probes[index].observe(prober, result, &state.settings.probe) {
                    if let Change::Probed(status) = change {
                        state.drains.probed(index, status, start.elapsed());
                    }
                    // The receiver may be gone already.
                    let _ = channels.changes.send((Instant::now(), index, change));
                }
            }
            Some(_) = ignored.recv() => {}
            Ok(()) = channels.admin_states.changed() => {
                let states = channels.admin_states.borrow_and_update().clone();
                state.propagation.observe(&states, start.elapsed());
            }
            Some(index) = channels.watched.recv() => {
                if let Some((_, probe, _)) = state.settings.backends.get(index) {
                    tasks.spawn(watch_health(index, probe.clone(), channels.changes.clone()));
                }
            }
            Some(index) = channels.deregistered.recv() => state.drains.deregister(index, start.elapsed()),
            () = sleep_until(due.unwrap_or(start)), if due.is_some() => {}
            Some(_) = tasks.join_next() => {}
        }
        state.apply(start.elapsed(), &channels).await?;
    }
}

/// What probes say of one backend.
struct Probes {
    trackers: Vec<ProbeTracker>,
    is_failing: bool,
}

impl Probes {
    fn new(probers: usize) -> Self {
        Self {
            trackers: vec![ProbeTracker::new(ProbeStatus::Down); probers],
            is_failing: true,
        }
    }

    /// Up while all probers have marked it so: the first one that notices takes it out.
    fn status(&self) -> ProbeStatus {
        let is_up = self.trackers.iter().all(|tracker| tracker.status() == ProbeStatus::Up);
        if is_up { ProbeStatus::Up } else { ProbeStatus::Down }
    }

    fn observe(&mut self, prober: usize, result: ProbeResult, settings: &ProbeSettings) -> Vec<Change> {
        let (before, was_failing) = (self.status(), self.is_failing);
        if let Some(tracker) = self.trackers.get_mut(prober) {
            tracker.observe(result, settings);
        }
        self.is_failing = result != ProbeResult::Success;
        let first_failure = (self.is_failing && !was_failing).then_some(Change::ProbeFailed);
        let status = self.status();
        let changed = (status != before).then_some(Change::Probed(status));
        first_failure.into_iter().chain(changed).collect()
    }
}

struct State {
    settings: ControllerSettings,
    hash_seed: u32,
    probes: Vec<Probes>,
    propagation: Propagation,
    drains: Drains,
    /// Backends whose established flows have ended; not known before the first change, because rules of an earlier run may be left.
    ended: Option<Vec<(usize, FlowEnd)>>,
    rotation: Vec<usize>,
}

impl State {
    /// Brings the data plane to the present decision.
    async fn apply(&mut self, now: Duration, channels: &Channels) -> Result<(), ToolError> {
        let admin_states = self.propagation.effective(now);
        for (index, state) in admin_states.iter().enumerate() {
            self.drains.set_admin_down(index, *state == AdminState::Down, now);
        }
        let backends: Vec<_> = self
            .probes
            .iter()
            .enumerate()
            .map(|(index, probes)| Backend {
                admin_state: admin_states.get(index).copied().unwrap_or_default(),
                probe: probes.status(),
                is_registered: self.drains.is_registered(index, now),
            })
            .collect();
        let decided = rotation(&backends, self.settings.no_healthy);
        let Some(rules) = self.changed_rules(&decided, now) else {
            return Ok(());
        };
        tool::nft(&rules).await?;
        let now = Instant::now();
        for index in 0..backends.len() {
            let is_in = decided.contains(&index);
            if is_in != self.rotation.contains(&index) {
                let _ = channels.changes.send((now, index, Change::InRotation(is_in)));
            }
        }
        if decided != self.rotation {
            self.rotation.clone_from(&decided);
            channels.rotation.send_replace(decided);
        }
        Ok(())
    }

    /// The rules that a decision changes, in one transaction: a client whose connection is reset does not get back by
    /// connecting again.
    fn changed_rules(&mut self, decided: &[usize], now: Duration) -> Option<String> {
        let backend = |index: &usize| self.settings.backends[*index].0;
        let mut rules = String::new();
        if decided != self.rotation {
            let addresses: Vec<_> = decided.iter().map(backend).collect();
            rules.push_str(&ruleset::rotation(&addresses, self.hash_seed));
        }
        let ended = self.drains.ended(now);
        if self.ended.as_ref() != Some(&ended) {
            let addresses: Vec<_> = ended.iter().map(|(index, how)| (*backend(index).ip(), *how)).collect();
            rules.push_str(&ruleset::ended_flows(&addresses));
            self.ended = Some(ended);
        }
        (!rules.is_empty()).then_some(rules)
    }
}

/// The indexes of a backend and of one of its probers.
type Prober = (usize, usize);

async fn probe_forever(
    prober: Prober,
    probe: Probe,
    first: Instant,
    settings: ProbeSettings,
    results: mpsc::Sender<(Prober, ProbeResult)>,
) {
    let mut due = interval_at(first, settings.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let bound = settings.timeout.min(settings.interval);
    loop {
        due.tick().await;
        let result = probe.ask(bound).await;
        if results.send((prober, result)).await.is_err() {
            return;
        }
    }
}

/// Looks for the first failing answer, far more often than probes do.
async fn watch_health(index: usize, probe: Probe, changes: mpsc::UnboundedSender<Changed>) {
    while !changes.is_closed() {
        let asked = Instant::now();
        if !probe.succeeds(WATCH_TIMEOUT).await {
            let _ = changes.send((asked, index, Change::HealthFailed));
            return;
        }
        sleep(WATCH_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use headgate_budget::probe::Provider;

    use super::*;

    #[test]
    fn the_first_of_several_probers_that_notices_takes_a_backend_out() {
        use ProbeResult::{Failure, Success};
        let settings = Provider::Azure.probe();
        let mut probes = Probes::new(2);
        let mut changes = |prober: usize, result: ProbeResult| probes.observe(prober, result, &settings);
        for prober in [0, 1, 0] {
            assert!(
                changes(prober, Success).is_empty(),
                "not all probers have had two successes"
            );
        }
        assert_eq!(changes(1, Success), [Change::Probed(ProbeStatus::Up)]);
        assert_eq!(changes(0, Failure), [Change::ProbeFailed]);
        assert!(changes(1, Success).is_empty());
        assert_eq!(
            changes(0, Failure),
            [Change::ProbeFailed, Change::Probed(ProbeStatus::Down)]
        );
        assert!(changes(1, Failure).is_empty(), "it is down, and failing, already");
    }
}
