//! A whole drill: one scenario with several strategies, each for several runs.
//!
//! Times of the scenario, its probes and the ARM emulator's operations are shortened here, once; everything below works
//! in real time.

use std::time::Duration;

use headgate_budget::probe::ProbeSettings;
use headgate_sandbox::assets::AssetsError;

#[cfg(test)]
pub(crate) use self::options::tests::options as options_of_a_test;
pub use self::options::{ConnectionLifetime, KubeProxyPart, NegativeControl, Options};
pub use self::roll::Roll;
use crate::clients::ClientSettings;
use crate::cluster::ClusterError;
use crate::control_plane::{ControlPlane, Observed};
use crate::lifetimes::Lifetimes;
use crate::machine::NodeProcesses;
use crate::progress::Progress;
use crate::result::{Attempt, Connection, RunIdentity, RunResult, TimelineEvent, summarize};
use crate::scenario::{Scenario, Step, Timeline};
use crate::strategy::{Plan, Strategy};
use crate::world::phase::stratified;
use crate::world::{Recording, RunSettings, World, WorldError, WorldSettings};

mod control;
mod options;
mod roll;

/// How long a client waits for an answer. A SYN is sent again after 1 s, so this is two attempts.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
/// At any speed a client waits this long, so that a busy machine is not taken for a loss. It is less than the second after
/// which Linux sends a SYN again: a shortened scenario has one attempt.
const CLIENT_TIMEOUT_MIN: Duration = Duration::from_millis(900);
/// Between two requests of a long-lived connection, and likewise at any speed at least.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
const REQUEST_INTERVAL_MIN: Duration = Duration::from_millis(50);

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
    /// The provider has no controller that deregisters nodes at a signal.
    #[error(
        "the strategy deregistration has no part with this --provider: cloud-provider-azure deregisters no node at an \
         autoscaler's taint; use --provider aws-cluster or gcp"
    )]
    NobodyDeregisters,
    /// The autoscaler has no annotation that delays a deletion.
    #[error("the strategy connections has no part with --autoscaler karpenter, which waits for no annotation")]
    NoDeletionDelay,
    /// No strategy has what is to be broken.
    #[error("--negative-control breaks admin states: it needs the strategy admin-state or headgate")]
    NothingToBreak,
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

/// Carries it out. The calling thread must live as long as the drill: control plane processes end with it. Dropping the
/// future ends and removes everything.
///
/// # Errors
/// The options are wrong, or something cannot be started or fails.
pub async fn run(options: &Options, mut progress: impl FnMut(Progress)) -> Result<Vec<RunResult>, DrillError> {
    options.validate()?;
    let mut results = Vec::new();
    // The same phases for all strategies: runs with the same seed are pairs.
    let phases = stratified(options.seed, options.runs);
    for strategy in options.strategies() {
        progress(Progress::Starting(strategy));
        let plan = strategy.plan(options.scenario, &options.pods());
        let mut control_plane = ControlPlane::start(options, &plan).await?;
        let cluster = control_plane.cluster();
        let processes = cluster.map(|cluster| cluster.processes()).unwrap_or_default();
        let mut world = World::start(options.world(plan, processes)).await?;
        for (index, phase) in phases.iter().copied().enumerate() {
            let seed = options.seed.wrapping_add(index as u64);
            let operation = options.speed().real(options.operation().draw(options.nodes, seed));
            if index > 0 {
                if let Some(cluster) = control_plane.cluster() {
                    cluster.restore().await?;
                }
                world.restore().await?;
            }
            if let Some(cluster) = control_plane.cluster() {
                cluster.set_operation_delay(operation).await?;
                cluster.wait_for_leader().await?;
            }
            let timeline = options.timeline(&plan);
            progress(Progress::Run {
                strategy,
                number: index + 1,
                runs: options.runs,
            });
            let run = RunSettings {
                clients: options.clients(seed),
                index,
                seed,
                phase,
                operation,
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
            interval: self.speed().real(self.probe().interval),
            timeout: self.speed().real(self.probe().timeout),
            ..self.probe()
        }
    }

    fn world(&self, plan: Plan, processes: Vec<NodeProcesses>) -> WorldSettings {
        WorldSettings {
            nodes: self.nodes,
            empty_nodes: if plan.evicts_pod() {
                0
            } else {
                self.scenario.empty_nodes(self.nodes)
            },
            plan,
            probe: self.real_probe(),
            no_healthy: self.no_healthy_backends,
            propagation: self.speed().real(self.propagation_delay),
            probers: self.probers,
            power_off: self.power_off,
            deleted_machines: self.deleted_machines,
            drain_rules: self.drain_rules().map(|time| self.speed().real(time)),
            processes,
        }
    }

    /// The scenario's timeline in real time.
    fn timeline(&self, plan: &Plan) -> Timeline {
        let timeline = self.scenario.timeline(self, plan);
        let real = |step: &Step| Step {
            at: self.speed().real(step.at),
            ..*step
        };
        Timeline {
            steps: timeline.steps.iter().map(real).collect(),
            end: self.speed().real(timeline.end),
        }
    }

    fn clients(&self, seed: u64) -> ClientSettings {
        ClientSettings {
            source: std::net::Ipv4Addr::UNSPECIFIED,
            rate: self.rate,
            timeout: self.speed().real(CLIENT_TIMEOUT).max(CLIENT_TIMEOUT_MIN),
            long_lived: self.connections,
            lifetimes: match self.connection_lifetime {
                ConnectionLifetime::Mix => Lifetimes::Mix(self.speed()),
                ConnectionLifetime::AtMost(longest) => Lifetimes::AtMost(self.speed().real(longest)),
            },
            request_interval: self.speed().real(REQUEST_INTERVAL).max(REQUEST_INTERVAL_MIN),
            seed,
        }
    }

    /// What a recording says in the scenario's time.
    fn result(&self, strategy: Strategy, seed: u64, recording: &Recording) -> RunResult {
        let since = |at: tokio::time::Instant| self.speed().scenario(at.saturating_duration_since(recording.start));
        let observations = &recording.observations;
        let attempts = observations.attempts.iter().map(|attempt| Attempt {
            at: since(attempt.at),
            succeeded: attempt.answered_by.is_some(),
        });
        let connections: Vec<_> = observations
            .held
            .iter()
            .map(|held| Connection {
                through: held.through.into(),
                opened: since(held.opened),
                ended: since(held.ended),
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
            speed: self.speed().factor(),
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
    use super::options::tests::options;
    use super::*;

    #[test]
    fn everything_of_the_scenario_is_shortened() {
        let options = options();
        let plan = Strategy::KubeProxy.plan(options.scenario, &options.pods());
        let timeline = options.timeline(&plan);
        assert_eq!(timeline.steps[0].at, Duration::from_millis(500));
        assert_eq!(timeline.steps[1].at, Duration::from_millis(1001));
        assert_eq!(options.real_probe().interval, Duration::from_millis(500));
        let clients = options.clients(1);
        assert_eq!(clients.timeout, Duration::from_millis(900));
        assert_eq!(clients.lifetimes, Lifetimes::AtMost(Duration::from_secs(2)));
    }
}
