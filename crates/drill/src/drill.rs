//! A whole drill: one scenario with several strategies, each for several runs.
//!
//! Times of the scenario, its probes and the ARM emulator's operations are shortened here, once; everything below works
//! in real time.

use std::path::PathBuf;
use std::time::Duration;

use headgate_sandbox::assets::AssetsError;

use self::control::Control;
use crate::clients::ClientSettings;
use crate::cluster::ClusterError;
use crate::control_plane::Observed;
use crate::network::addresses::{CLIENTS, MAX_NODES};
use crate::probe::ProbeSettings;
use crate::result::{Attempt, Connection, RunIdentity, RunResult, TimelineEvent, summarize};
use crate::rotation::NoHealthyBackends;
use crate::scenario::{Autoscaler, Parameters, Scenario, Step, Timeline};
use crate::speed::Speed;
use crate::strategy::{Plan, PodTimes, Strategy};
use crate::world::{Recording, RunSettings, World, WorldError, WorldSettings};

mod control;

/// How long a client waits for an answer. A SYN is sent again after 1 s, so this is two attempts.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
/// At any speed a client waits this long, so that a busy machine is not taken for a loss. It is less than the second after
/// which Linux sends a SYN again: a shortened scenario has one attempt.
const CLIENT_TIMEOUT_MIN: Duration = Duration::from_millis(900);
/// Between two requests of a long-lived connection, and likewise at any speed at least.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
const REQUEST_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// The options of a drill.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the nodes go away.
    pub scenario: Scenario,
    /// What is done about it, one after another.
    pub strategies: Vec<Strategy>,
    /// How many nodes, from two to [`MAX_NODES`].
    pub nodes: usize,
    /// New connections for each real second.
    pub rate: f64,
    /// How much time is shortened.
    pub speed: Speed,
    /// The first run's seed; each run has the next one.
    pub seed: u64,
    /// Runs of each strategy, at most [`CLIENTS`].
    pub runs: usize,
    /// Long-lived connections held at once.
    pub long_lived: usize,
    /// See [`Parameters::autoscaler`].
    pub autoscaler: Autoscaler,
    /// See [`Parameters::delete_delay`].
    pub delete_delay: Duration,
    /// See [`Parameters::notice`].
    pub notice: Duration,
    /// See [`Parameters::restart`].
    pub restart: Duration,
    /// The durations of a Pod's termination and replacement.
    pub pods: PodTimes,
    /// The load balancer's probes.
    pub probe: ProbeSettings,
    /// What the load balancer does without eligible backends.
    pub no_healthy: NoHealthyBackends,
    /// From an admin state shown by ARM until it takes effect.
    pub propagation: Duration,
    /// How long an operation of ARM takes.
    pub operation_delay: Duration,
    /// The directory of the control plane's programs, for strategies with agents.
    pub assets: Option<PathBuf>,
    /// The headgate program, for its agents.
    pub program: PathBuf,
}

/// A drill cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// A number is out of its range.
    #[error("{what} is {value}; allowed: {allowed}")]
    Range {
        /// The name of the option.
        what: &'static str,
        /// The value that is out of range.
        value: f64,
        /// What it may be.
        allowed: String,
    },
    /// A strategy does nothing in the scenario.
    #[error("the strategy {strategy:?} has no part in the scenario {scenario:?}; it is about {about}")]
    NotApplicable {
        /// The strategy that has no part in the scenario.
        strategy: Strategy,
        /// The scenario of the drill.
        scenario: Scenario,
        /// What it is about instead.
        about: &'static str,
    },
    /// The control plane's programs are missing.
    #[error(transparent)]
    Assets(#[from] AssetsError),
    /// The control plane or an agent failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A run of the drill failed.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// What a drill is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A strategy's world is started.
    Starting(Strategy),
    /// The start of a run.
    Run {
        /// The strategy of the run.
        strategy: Strategy,
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        runs: usize,
    },
}

impl Options {
    /// Checks what types do not.
    ///
    /// # Errors
    /// A number is out of its range, or a strategy has no part in the scenario.
    pub fn validate(&self) -> Result<(), DrillError> {
        #[expect(clippy::cast_precision_loss, reason = "for a message about small numbers")]
        for (what, value, min, max) in [
            ("the number of nodes", self.nodes as f64, 2.0, MAX_NODES as f64),
            ("the number of runs", self.runs as f64, 1.0, f64::from(CLIENTS)),
            ("the rate", self.rate, 1.0, 1000.0),
            (
                "the number of long-lived connections",
                self.long_lived as f64,
                0.0,
                1000.0,
            ),
        ] {
            if !(min..=max).contains(&value) {
                let allowed = format!("{min} to {max}");
                return Err(DrillError::Range { what, value, allowed });
            }
        }
        let misplaced = self
            .strategies
            .iter()
            .find(|strategy| !strategy.applies_to(self.scenario));
        misplaced.map_or(Ok(()), |strategy| {
            Err(DrillError::NotApplicable {
                strategy: *strategy,
                scenario: self.scenario,
                about: if self.scenario == Scenario::RollingUpdate {
                    "nodes"
                } else {
                    "rolling updates"
                },
            })
        })
    }
}

/// Carries it out. The calling thread must live as long as the drill: control plane processes end with it. Dropping the
/// future ends and removes everything.
///
/// # Errors
/// The options are wrong, or something cannot be started or fails.
pub async fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Vec<RunResult>, DrillError> {
    options.validate()?;
    let mut results = Vec::new();
    for strategy in options.strategies.iter().copied() {
        progress(Progress::Starting(strategy));
        let plan = strategy.plan(options.scenario, &options.pods);
        let mut control_plane = Control::start(options, &plan).await?;
        let mut world = World::start(options.world(plan, &control_plane)).await?;
        for index in 0..options.runs {
            if index > 0 {
                control_plane.restore().await?;
                world.restore().await?;
            }
            control_plane.wait_for_leader().await?;
            progress(Progress::Run {
                strategy,
                number: index + 1,
                runs: options.runs,
            });
            let seed = options.seed.wrapping_add(index as u64);
            let timeline = options.timeline(&plan);
            let run = RunSettings {
                clients: options.clients(seed),
                index,
                seed,
            };
            let recording = world.run(&timeline, &run, &mut control_plane).await?;
            results.push(options.result(strategy, seed, &recording));
        }
        world.stop().await?;
    }
    Ok(results)
}

impl Options {
    fn real_probe(&self) -> ProbeSettings {
        ProbeSettings {
            interval: self.speed.real(self.probe.interval),
            timeout: self.speed.real(self.probe.timeout),
            ..self.probe
        }
    }

    fn world(&self, plan: Plan, control_plane: &Control) -> WorldSettings {
        WorldSettings {
            nodes: self.nodes,
            empty_nodes: self.scenario.empty_nodes(self.nodes),
            plan,
            probe: self.real_probe(),
            no_healthy: self.no_healthy,
            propagation: self.speed.real(self.propagation),
            agents: match control_plane {
                Control::None(_) => Vec::new(),
                Control::Cluster(cluster) => cluster.agents(),
            },
        }
    }

    /// The scenario's timeline in real time.
    fn timeline(&self, plan: &Plan) -> Timeline {
        let timeline = self.scenario.timeline(&Parameters {
            nodes: self.nodes,
            autoscaler: self.autoscaler,
            delete_delay: self.delete_delay,
            notice: self.notice,
            restart: self.restart,
            shutdown: plan.shutdown,
            probe: self.probe,
        });
        let real = |step: &Step| Step {
            at: self.speed.real(step.at),
            ..*step
        };
        Timeline {
            steps: timeline.steps.iter().map(real).collect(),
            end: self.speed.real(timeline.end),
        }
    }

    fn clients(&self, seed: u64) -> ClientSettings {
        ClientSettings {
            source: std::net::Ipv4Addr::UNSPECIFIED,
            rate: self.rate,
            timeout: self.speed.real(CLIENT_TIMEOUT).max(CLIENT_TIMEOUT_MIN),
            long_lived: self.long_lived,
            lifetime: self.speed.real(self.pods.connection_lifetime),
            request_interval: self.speed.real(REQUEST_INTERVAL).max(REQUEST_INTERVAL_MIN),
            seed,
        }
    }

    /// What a recording says in the scenario's time.
    fn result(&self, strategy: Strategy, seed: u64, recording: &Recording) -> RunResult {
        let since = |at: tokio::time::Instant| self.speed.scenario(at.saturating_duration_since(recording.start));
        let observations = &recording.observations;
        let attempts = observations.attempts.iter().map(|attempt| Attempt {
            at: since(attempt.at),
            succeeded: attempt.answered_by.is_some(),
        });
        let connections: Vec<_> = observations
            .held
            .iter()
            .map(|held| Connection {
                lost: held.lost.map(since),
            })
            .collect();
        let event = |observed: &Observed| TimelineEvent {
            t: since(observed.at).as_secs_f64(),
            event: observed.event,
            node: observed.node,
        };
        let run = RunIdentity {
            scenario: self.scenario,
            strategy,
            seed,
            speed: self.speed.factor(),
            nodes: self.nodes,
            longest_lag: observations.longest_lag,
        };
        let timeline = recording.events.iter().map(event).collect();
        RunResult {
            conditions: Some(self.into()),
            ..summarize(&run, attempts.collect(), &connections, timeline)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Provider;

    pub(crate) fn options() -> Options {
        Options {
            scenario: Scenario::ScaleDown,
            strategies: vec![Strategy::None, Strategy::KubeProxy],
            nodes: 3,
            rate: 100.0,
            speed: Speed::new(10.0).unwrap(),
            seed: 1,
            runs: 2,
            long_lived: 10,
            autoscaler: Autoscaler::ClusterAutoscaler,
            delete_delay: Duration::from_secs(5),
            notice: Duration::from_secs(30),
            restart: Duration::from_secs(20),
            pods: PodTimes {
                pre_stop: Duration::from_secs(30),
                process: Duration::from_secs(5),
                connection_lifetime: Duration::from_secs(20),
            },
            probe: Provider::Azure.probe(),
            no_healthy: NoHealthyBackends::AllProbedDown,
            propagation: Duration::ZERO,
            operation_delay: Duration::from_millis(100),
            assets: None,
            program: PathBuf::from("headgate"),
        }
    }

    #[test]
    fn options_out_of_range_are_named() {
        options().validate().unwrap();
        for (wrong, named) in [
            (
                Options { nodes: 1, ..options() },
                "the number of nodes is 1; allowed: 2 to 50",
            ),
            (
                Options { runs: 91, ..options() },
                "the number of runs is 91; allowed: 1 to 90",
            ),
            (Options { rate: 0.0, ..options() }, "the rate is 0; allowed: 1 to 1000"),
            (
                Options {
                    strategies: vec![Strategy::PodIp],
                    ..options()
                },
                "the strategy PodIp has no part in the scenario ScaleDown; it is about rolling updates",
            ),
        ] {
            assert_eq!(wrong.validate().unwrap_err().to_string(), named);
        }
    }

    #[test]
    fn everything_of_the_scenario_is_shortened() {
        let options = options();
        let plan = Strategy::KubeProxy.plan(options.scenario, &options.pods);
        let timeline = options.timeline(&plan);
        assert_eq!(timeline.steps[0].at, Duration::from_millis(500));
        assert_eq!(timeline.steps[1].at, Duration::from_millis(1001));
        assert_eq!(options.real_probe().interval, Duration::from_millis(500));
        let clients = options.clients(1);
        assert_eq!(clients.timeout, Duration::from_millis(900));
        assert_eq!(clients.lifetime, Duration::from_secs(2));
    }
}
