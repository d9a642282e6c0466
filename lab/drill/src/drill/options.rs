//! What a drill is asked for, and what of it is out of range.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use headgate_azure_emulator::Settings;
use headgate_budget::probe::{ProbeRule, ProbeSettings, Provider};
use headgate_core::settings::duration_up_to;
use serde_json::Value;

use super::DrillError;
use crate::azure::PoolMembers;
use crate::draining::{DrainRules, Ending, FlowEnd};
use crate::lifetimes;
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

/// No scenario needs a longer time.
const MAX_TIME: Duration = Duration::from_hours(1);

/// The options of a drill, as flags.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How the nodes go away
    #[arg(long, value_enum)]
    pub scenario: Scenario,

    /// What is done about it, separated by commas [default: all strategies that have a part in the scenario]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub strategy: Vec<Strategy>,

    /// How many nodes, from 2 to 50
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pub nodes: usize,

    /// New connections for each real second, from 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100.0)]
    pub rate: f64,

    /// How many times faster the scenario runs, from 1 to 100; headgate and the kernel keep their own speed [default: 10; 1 in
    /// api-outage, whose restarts take their own time]
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    pub speed: Option<Speed>,

    /// What the first run's random numbers come from; each run has the next seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,

    /// Runs of each strategy, from 1 to 90
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub runs: usize,

    /// Long-lived connections held at once, at most 1000
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    pub connections: usize,

    /// The longest that a long-lived connection lives before its client ends it, at most 1h; or mix, which draws lifetimes from
    /// a table, from 1s to 10m, some of them idle until their end
    #[arg(long, value_name = "DURATION|mix", default_value = "20s", value_parser = connection_lifetime)]
    pub connection_lifetime: ConnectionLifetime,

    /// Whose probes and thresholds the load balancer has
    #[arg(long, value_enum, default_value = "azure")]
    pub provider: Provider,

    /// Time between two probes of a node, at most 1h; with Azure also their timeout [default: the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    pub probe_interval: Option<Duration>,

    /// Failed probes in a row that take a node out, and with Azure successes that let it back [default: the provider's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub probe_threshold: Option<u32>,

    /// What an answer of HTTP other than 200, or a reset, counts for [default: the provider's, as documented]
    #[arg(long, value_enum)]
    pub probe_rule: Option<ProbeRule>,

    /// Independent probers of each node, from 1 to 16; the first one that notices takes it out. Azure documents no number
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub probers: usize,

    /// An admin state Down resets established connections, as the API reference of adminState says; the documentation of
    /// admin states says that they go on
    #[arg(long)]
    pub admin_down_resets: bool,

    /// What is seen of a machine that is switched off; Azure documents neither
    #[arg(long, value_enum, default_value = "silent")]
    pub power_off: PowerOff,

    /// Whether the platform takes a machine that is deleted out of the pool, by an operation that begins when it is switched off.
    /// Azure documents that members of a NIC pool are those of the interfaces, and not when that of a deleted machine goes
    #[arg(long, value_enum, default_value = "stay")]
    pub deleted_machines: DeletedMachines,

    /// What the entries of the pool are: IP addresses, or network interfaces, which is the default of cloud-provider-azure
    /// (loadBalancerBackendPoolConfigurationType nodeIPConfiguration)
    #[arg(long, value_enum, default_value = "ip")]
    pub pool_members: PoolMembers,

    /// Another program writes the pool as it read it, this long after its last write has ended, and holds the Lease that it shares
    /// with headgate meanwhile, at most 1h [default: none does]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    pub other_writer: Option<Duration>,

    /// Time from a node's deregistration until it gets no new flows, in the strategy deregistration, at most 1h [default:
    /// the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    pub deregistration_delay: Option<Duration>,

    /// What the load balancer does when all backends are down
    #[arg(long, value_enum, default_value = "all-probed-down")]
    pub no_healthy_backends: NoHealthyBackends,

    /// kube-proxy's own process in the strategies that are about it, or a model of it that needs no control plane
    #[arg(long, value_enum, default_value = "real")]
    pub kube_proxy: KubeProxyPart,

    /// Who removes nodes in scale-down, mass and api-outage
    #[arg(long, value_enum, default_value = "cluster-autoscaler")]
    pub autoscaler: Autoscaler,

    /// Time from the signal to the deletion of an empty node, or to the eviction of Pods in maintenance, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration_up_to(MAX_TIME))]
    pub delete_delay: Duration,

    /// Time for which Cluster Autoscaler waits for an annotation that delays a deletion, in the strategy connections, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = duration_up_to(MAX_TIME))]
    pub node_deletion_delay_timeout: Duration,

    /// Notice that a spot machine gets in spot, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration_up_to(MAX_TIME))]
    pub notice: Duration,

    /// Sleep of preStop hooks, in strategies that have one, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration_up_to(MAX_TIME))]
    pub pre_stop: Duration,

    /// Time for which a process serves after SIGTERM in rolling updates, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration_up_to(MAX_TIME))]
    pub shutdown: Duration,

    /// Time from the end of a Pod until its replacement is ready, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration_up_to(MAX_TIME))]
    pub restart: Duration,

    /// Time that an operation of ARM takes, at most 1h; Azure publishes none
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_up_to(MAX_TIME))]
    pub operation_delay: Duration,

    /// Time that it takes longer for each member of the pool, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_up_to(MAX_TIME))]
    pub operation_delay_per_member: Duration,

    /// Share by which it is shorter or longer in a run, drawn uniformly, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub operation_spread: f64,

    /// Retry-After of an operation in progress, at most 10m, rounded up to whole real seconds; that of Azure is not recorded
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_up_to(Duration::from_mins(10)))]
    pub poll_retry_after: Duration,

    /// What else the emulator assumes about ARM, as its control API takes it, in real time:
    /// `{"readLag": "200ms", "adminStateNone": "shown", "deviations": ["ifMatchIgnored", "supersededChangesLost"]}`
    #[arg(long, value_name = "JSON", value_parser = azure_settings)]
    pub azure_settings: Option<Settings>,

    /// A fault rule of the emulator, in real time, from the first signal of each run; several times for several:
    /// `{"match": {"method": "PUT"}, "times": 1, "action": {"answer": {"status": 429, "retryAfter": 10}}}`
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub arm_fault: Vec<Value>,

    /// Break headgate's admin states in the strategies admin-state and headgate, to see that a requirement fails
    #[arg(long, value_enum, value_name = "WHAT")]
    pub negative_control: Option<NegativeControl>,

    /// Time from the end of that operation until the admin state takes effect, at most 1h; Azure publishes none
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_up_to(MAX_TIME))]
    pub propagation_delay: Duration,

    /// The directory of the control plane's programs, for strategies with agents.
    #[arg(skip)]
    pub assets: Option<PathBuf>,

    /// The headgate program, for its agents.
    #[arg(skip)]
    pub program: PathBuf,
}

/// How long long-lived connections live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionLifetime {
    /// At most this long.
    AtMost(Duration),
    /// As the table of [`Lifetimes::Mix`](crate::lifetimes::Lifetimes::Mix) says.
    Mix,
}

fn connection_lifetime(text: &str) -> Result<ConnectionLifetime, String> {
    if text == "mix" {
        return Ok(ConnectionLifetime::Mix);
    }
    duration_up_to(MAX_TIME)(text).map(ConnectionLifetime::AtMost)
}

fn speed(text: &str) -> Result<Speed, String> {
    let factor = text.parse().map_err(|_| "give a number from 1 to 100".to_owned())?;
    Speed::new(factor).map_err(|error| error.to_string())
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Changes of the emulator's settings.
fn azure_settings(text: &str) -> Result<Settings, String> {
    Settings::default().changed(&json(text)?)
}

/// More probers of a node than any load balancer is known to have.
const MAX_PROBERS: usize = 16;

impl Options {
    /// How much time is shortened. API server, kube-proxy and agents restart at their own speed.
    pub fn speed(&self) -> Speed {
        self.speed.unwrap_or(match self.scenario {
            Scenario::ApiOutage => Speed::REAL_TIME,
            _ => Speed::DEFAULT,
        })
    }

    /// The provider's probes with the flags over them.
    pub fn probe(&self) -> ProbeSettings {
        let preset = self.provider.probe();
        let is_azure = self.provider == Provider::Azure;
        let interval = self.probe_interval.unwrap_or(preset.interval);
        let threshold = self.probe_threshold.unwrap_or(preset.unhealthy_threshold);
        ProbeSettings {
            interval,
            timeout: if is_azure { interval } else { preset.timeout },
            unhealthy_threshold: threshold,
            healthy_threshold: if is_azure { threshold } else { preset.healthy_threshold },
            rule: self.probe_rule.unwrap_or(preset.rule),
        }
    }

    /// When established flows of nodes that go away end.
    pub fn drain_rules(&self) -> DrainRules {
        let mut rules = DrainRules::of(self.provider);
        if let (Some(rule), Some(delay)) = (&mut rules.deregistration, self.deregistration_delay) {
            rule.new_flows_stop = delay;
        }
        rules.admin_down = self.admin_down_resets.then_some(Ending {
            after: Duration::ZERO,
            how: FlowEnd::Reset,
        });
        rules
    }

    /// The times of Pods.
    pub const fn pods(&self) -> PodTimes {
        PodTimes {
            pre_stop: self.pre_stop,
            process: self.shutdown,
            connection_lifetime: match self.connection_lifetime {
                ConnectionLifetime::AtMost(longest) => longest,
                ConnectionLifetime::Mix => lifetimes::LONGEST,
            },
        }
    }

    /// How long an operation of ARM takes.
    pub const fn operation(&self) -> OperationTime {
        OperationTime {
            base: self.operation_delay,
            per_member: self.operation_delay_per_member,
            spread: self.operation_spread,
        }
    }

    /// The strategies in their order, each once: two rounds of one would have the same seeds.
    pub fn strategies(&self) -> Vec<Strategy> {
        let named = &self.strategy;
        if named.is_empty() {
            return self.all_strategies();
        }
        let is_first = |(at, strategy): &(usize, &Strategy)| !named[..*at].contains(strategy);
        let first = named.iter().enumerate().filter(is_first);
        first.map(|(_, strategy)| *strategy).collect()
    }

    /// All strategies that have a part in the scenario. `node-port` is there in the place of `none`, with kube-proxy's process.
    fn all_strategies(&self) -> Vec<Strategy> {
        let is_azure = self.provider == Provider::Azure;
        let has_part = |strategy: &Strategy| {
            let is_possible = match strategy {
                Strategy::None => !is_azure || !Strategy::NodePort.applies_to(self.scenario),
                Strategy::NodePort | Strategy::ExcludeLabel => is_azure,
                Strategy::Deregistration => self.drain_rules().deregistration.is_some(),
                Strategy::Connections => self.autoscaler == Autoscaler::ClusterAutoscaler,
                _ => true,
            };
            is_possible && strategy.applies_to(self.scenario)
        };
        Strategy::value_variants().iter().copied().filter(has_part).collect()
    }

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
                self.connections as f64,
                0.0,
                1000.0,
            ),
            ("the number of probers", self.probers as f64, 1.0, MAX_PROBERS as f64),
            ("the spread of operation times", self.operation_spread, 0.0, 1.0),
        ] {
            if !(min..=max).contains(&value) {
                let allowed = format!("{min} to {max}");
                return Err(DrillError::Range { what, value, allowed });
            }
        }
        let strategies = self.strategies();
        if self.drain_rules().deregistration.is_none() && strategies.contains(&Strategy::Deregistration) {
            return Err(DrillError::NobodyDeregisters);
        }
        if self.autoscaler == Autoscaler::Karpenter && strategies.contains(&Strategy::Connections) {
            return Err(DrillError::NoDeletionDelay);
        }
        let is_about_admin_states = |strategy: &Strategy| matches!(strategy, Strategy::AdminState | Strategy::Headgate);
        if self.negative_control.is_some() && !strategies.iter().any(is_about_admin_states) {
            return Err(DrillError::NothingToBreak);
        }
        let misplaced = strategies
            .into_iter()
            .find(|strategy| !strategy.applies_to(self.scenario));
        misplaced.map_or(Ok(()), |strategy| {
            Err(DrillError::NotApplicable {
                strategy,
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        options: Options,
    }

    fn parse(flags: &str) -> Options {
        let flags = std::iter::once("drill").chain(flags.split_whitespace());
        Flags::try_parse_from(flags).unwrap().options
    }

    pub(crate) fn options() -> Options {
        parse(
            "--scenario scale-down --strategy none,kube-proxy --nodes 3 --runs 2 --connections 10 --operation-delay 100ms",
        )
    }

    #[test]
    fn options_out_of_range_are_named() {
        options().validate().unwrap();
        for (flags, named) in [
            ("--nodes 1", "the number of nodes is 1; allowed: 2 to 50"),
            ("--runs 91", "the number of runs is 91; allowed: 1 to 90"),
            ("--probers 0", "the number of probers is 0; allowed: 1 to 16"),
            (
                "--strategy none,kube-proxy --negative-control observe",
                "--negative-control breaks admin states: it needs the strategy admin-state or headgate",
            ),
            ("--rate 0", "the rate is 0; allowed: 1 to 1000"),
            (
                "--strategy pod-ip",
                "the strategy PodIp has no part in the scenario ScaleDown; it is about rolling updates",
            ),
            (
                "--strategy connections --autoscaler karpenter",
                "the strategy connections has no part with --autoscaler karpenter, which waits for no annotation",
            ),
            (
                "--strategy deregistration",
                "the strategy deregistration has no part with this --provider: cloud-provider-azure deregisters no node at an \
                 autoscaler's taint; use --provider aws-cluster or gcp",
            ),
        ] {
            let wrong = parse(&format!("--scenario scale-down {flags}"));
            assert_eq!(wrong.validate().unwrap_err().to_string(), named, "{flags}");
        }
        for flags in [
            "--autoscaler karpenter --strategy admin-state --negative-control observe",
            "--autoscaler karpenter --strategy kube-proxy",
        ] {
            parse(&format!("--scenario scale-down {flags}")).validate().unwrap();
        }
    }

    #[test]
    fn what_a_strategy_is_about_is_said() {
        for (scenario, strategy, about) in [
            ("rolling-update", "deregistration", "nodes that an autoscaler removes"),
            ("spot", "connections", "scale-down by Cluster Autoscaler"),
            ("scale-down", "node-maintenance", "maintenance"),
            ("spot", "exclude-label", "scale-down and maintenance"),
            ("local", "node-port", "Services with externalTrafficPolicy: Cluster"),
            ("local", "admin-state", "nodes with Azure"),
            ("rolling-update", "admin-state", "nodes"),
            ("rolling-update", "healthz", "nodes"),
            ("spot", "pod-ip", "rolling updates"),
        ] {
            let flags = format!("--scenario {scenario} --strategy {strategy} --provider gcp");
            match parse(&flags).validate() {
                Err(DrillError::NotApplicable { about: said, .. }) => assert_eq!(said, about, "{flags}"),
                other => panic!("{flags}: {other:?}"),
            }
        }
    }
}
