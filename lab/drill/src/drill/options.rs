//! What a drill is asked for, and what of it is out of range.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use headgate_azure_emulator::Settings;
use headgate_budget::probe::ProbeSettings;
use serde_json::Value;

use super::DrillError;
use crate::azure::PoolMembers;
use crate::draining::DrainRules;
use crate::machine::{DeletedMachines, PowerOff};
use crate::network::addresses::{CLIENTS, MAX_NODES};
use crate::operation::OperationTime;
use crate::rotation::NoHealthyBackends;
use crate::scenario::{Autoscaler, Scenario};
use crate::speed::Speed;
use crate::strategy::{PodTimes, Strategy};

/// What kube-proxy is in a drill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KubeProxyPart {
    /// Its own process, in the strategies that are about it.
    #[default]
    Real,
    /// A model of it, which needs no control plane.
    Model,
}

/// What of headgate is broken in a drill, which shows that a requirement of the drill can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NegativeControl {
    /// `--role=agent` on all nodes.
    LeaderOff,
    /// `adminState.mode: Observe`: the leader writes nothing.
    Observe,
    /// ARM answers every PUT with 403.
    ArmRefuses,
}

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
    /// Whether their lifetimes are drawn from the table of [`Lifetimes::Mix`](crate::lifetimes::Lifetimes::Mix).
    pub has_mixed_lifetimes: bool,
    /// What kube-proxy is.
    pub kube_proxy: KubeProxyPart,
    /// See [`Parameters::autoscaler`].
    pub autoscaler: Autoscaler,
    /// See [`Parameters::delete_delay`].
    pub delete_delay: Duration,
    /// How long Cluster Autoscaler waits for annotations that delay a deletion, `--node-deletion-delay-timeout`.
    pub deletion_delay_timeout: Duration,
    /// See [`Parameters::notice`].
    pub notice: Duration,
    /// See [`Parameters::restart`].
    pub restart: Duration,
    /// The durations of a Pod's termination and replacement.
    pub pods: PodTimes,
    /// The load balancer's probes.
    pub probe: ProbeSettings,
    /// Independent probers of each node, from one to 16; the first one that notices takes it out.
    pub probers: usize,
    /// What is seen of a machine that is switched off.
    pub power_off: PowerOff,
    /// Whether a machine that is deleted leaves the load balancer's pool.
    pub deleted_machines: DeletedMachines,
    /// When established flows of nodes that go away end.
    pub drain_rules: DrainRules,
    /// What the load balancer does without eligible backends.
    pub no_healthy: NoHealthyBackends,
    /// From an admin state shown by ARM until it takes effect.
    pub propagation: Duration,
    /// How long an operation of ARM takes.
    pub operation: OperationTime,
    /// `Retry-After` of an operation in progress; at least a real second, unless it is zero.
    pub poll_retry_after: Duration,
    /// Further assumptions of the emulator about ARM; their times are real, and those of fields above count instead.
    pub azure: Settings,
    /// What the entries of the pool are.
    pub pool_members: PoolMembers,
    /// How long after each of its writes another program writes the pool again, holding the shared Lease; none if no other does.
    pub other_writer: Option<Duration>,
    /// Fault rules of the emulator.
    pub arm_faults: Vec<Value>,
    /// What of headgate's admin states is broken.
    pub negative_control: Option<NegativeControl>,
    /// The directory of the control plane's programs, for strategies with agents.
    pub assets: Option<PathBuf>,
    /// The headgate program, for its agents.
    pub program: PathBuf,
}

/// More probers of a node than any load balancer is known to have.
const MAX_PROBERS: usize = 16;

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
            ("the number of probers", self.probers as f64, 1.0, MAX_PROBERS as f64),
            ("the spread of operation times", self.operation.spread, 0.0, 1.0),
        ] {
            if !(min..=max).contains(&value) {
                let allowed = format!("{min} to {max}");
                return Err(DrillError::Range { what, value, allowed });
            }
        }
        if self.drain_rules.deregistration.is_none() && self.strategies.contains(&Strategy::Deregistration) {
            return Err(DrillError::NobodyDeregisters);
        }
        if self.autoscaler == Autoscaler::Karpenter && self.strategies.contains(&Strategy::Connections) {
            return Err(DrillError::NoDeletionDelay);
        }
        let is_about_admin_states = |strategy: &Strategy| matches!(strategy, Strategy::AdminState | Strategy::Headgate);
        if self.negative_control.is_some() && !self.strategies.iter().any(is_about_admin_states) {
            return Err(DrillError::NothingToBreak);
        }
        let misplaced = self
            .strategies
            .iter()
            .find(|strategy| !strategy.applies_to(self.scenario));
        misplaced.map_or(Ok(()), |strategy| {
            Err(DrillError::NotApplicable {
                strategy: *strategy,
                scenario: self.scenario,
                about: match strategy {
                    Strategy::Deregistration => "nodes that an autoscaler removes",
                    Strategy::Connections => "scale-down by Cluster Autoscaler",
                    Strategy::NodeMaintenance => "maintenance",
                    Strategy::ExcludeLabel => "scale-down and maintenance",
                    Strategy::NodePort => "Services with externalTrafficPolicy: Cluster",
                    Strategy::AdminState | Strategy::Headgate if self.scenario == Scenario::Local => "nodes with Azure",
                    _ if self.scenario == Scenario::RollingUpdate => "nodes",
                    _ => "rolling updates",
                },
            })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use headgate_budget::probe::Provider;

    use super::*;

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
            has_mixed_lifetimes: false,
            kube_proxy: KubeProxyPart::Real,
            autoscaler: Autoscaler::ClusterAutoscaler,
            delete_delay: Duration::from_secs(5),
            deletion_delay_timeout: Duration::from_mins(20),
            notice: Duration::from_secs(30),
            restart: Duration::from_secs(20),
            pods: PodTimes {
                pre_stop: Duration::from_secs(30),
                process: Duration::from_secs(5),
                connection_lifetime: Duration::from_secs(20),
            },
            probe: Provider::Azure.probe(),
            probers: 1,
            power_off: PowerOff::Silent,
            deleted_machines: DeletedMachines::Stay,
            drain_rules: DrainRules::of(Provider::Azure),
            no_healthy: NoHealthyBackends::AllProbedDown,
            propagation: Duration::ZERO,
            operation: OperationTime {
                base: Duration::from_millis(100),
                per_member: Duration::ZERO,
                spread: 0.0,
            },
            poll_retry_after: Duration::from_secs(1),
            azure: Settings::default(),
            pool_members: PoolMembers::Ip,
            other_writer: None,
            arm_faults: Vec::new(),
            negative_control: None,
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
            (
                Options {
                    probers: 0,
                    ..options()
                },
                "the number of probers is 0; allowed: 1 to 16",
            ),
            (
                Options {
                    negative_control: Some(NegativeControl::Observe),
                    ..options()
                },
                "--negative-control breaks admin states: it needs the strategy admin-state or headgate",
            ),
            (Options { rate: 0.0, ..options() }, "the rate is 0; allowed: 1 to 1000"),
            (
                Options {
                    strategies: vec![Strategy::PodIp],
                    ..options()
                },
                "the strategy PodIp has no part in the scenario ScaleDown; it is about rolling updates",
            ),
            (
                Options {
                    strategies: vec![Strategy::Connections],
                    autoscaler: Autoscaler::Karpenter,
                    ..options()
                },
                "the strategy connections has no part with --autoscaler karpenter, which waits for no annotation",
            ),
            (
                Options {
                    strategies: vec![Strategy::Deregistration],
                    ..options()
                },
                "the strategy deregistration has no part with this --provider: cloud-provider-azure deregisters no node at an \
                 autoscaler's taint; use --provider aws-cluster or gcp",
            ),
        ] {
            assert_eq!(wrong.validate().unwrap_err().to_string(), named);
        }
        let unharmed = Options {
            autoscaler: Autoscaler::Karpenter,
            negative_control: Some(NegativeControl::Observe),
            strategies: vec![Strategy::AdminState],
            ..options()
        };
        unharmed.validate().unwrap();
        let karpenter = Options {
            strategies: vec![Strategy::KubeProxy],
            negative_control: None,
            ..unharmed
        };
        karpenter.validate().unwrap();
    }

    #[test]
    fn what_a_strategy_is_about_is_said() {
        for (scenario, strategy, about) in [
            (
                Scenario::RollingUpdate,
                Strategy::Deregistration,
                "nodes that an autoscaler removes",
            ),
            (
                Scenario::Spot,
                Strategy::Connections,
                "scale-down by Cluster Autoscaler",
            ),
            (Scenario::ScaleDown, Strategy::NodeMaintenance, "maintenance"),
            (Scenario::Spot, Strategy::ExcludeLabel, "scale-down and maintenance"),
            (
                Scenario::Local,
                Strategy::NodePort,
                "Services with externalTrafficPolicy: Cluster",
            ),
            (Scenario::Local, Strategy::AdminState, "nodes with Azure"),
            (Scenario::RollingUpdate, Strategy::AdminState, "nodes"),
            (Scenario::RollingUpdate, Strategy::Healthz, "nodes"),
            (Scenario::Spot, Strategy::PodIp, "rolling updates"),
        ] {
            let options = Options {
                scenario,
                strategies: vec![strategy],
                drain_rules: DrainRules::of(Provider::Gcp),
                ..options()
            };
            match options.validate() {
                Err(DrillError::NotApplicable { about: said, .. }) => {
                    assert_eq!(said, about, "{scenario:?} {strategy:?}");
                }
                other => panic!("{scenario:?} {strategy:?}: {other:?}"),
            }
        }
    }
}
