//! `headgate-lab drill`: flags to the options of a drill, its results to a table or JSON.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use headgate::cli::{EXIT_INTERRUPTED, Failure, build_runtime, duration_up_to, print, print_json};
use headgate_azure_emulator::Settings;
use headgate_budget::probe::{ProbeRule, ProbeSettings, Provider};
use headgate_drill::azure::PoolMembers;
use headgate_drill::draining::{DrainRules, Ending, FlowEnd};
use headgate_drill::drill::{KubeProxyPart, NegativeControl, Options};
use headgate_drill::lifetimes;
use headgate_drill::machine::{DeletedMachines, PowerOff};
use headgate_drill::network::namespace::acquire_privileges;
use headgate_drill::operation::OperationTime;
use headgate_drill::progress::{ProgressDisplay, UPDATE_INTERVAL};
use headgate_drill::report::saved::from_results;
use headgate_drill::report::{assumptions, name, rolls, table, warning};
use headgate_drill::requirement::Requirement;
use headgate_drill::result::rows;
use headgate_drill::rotation::NoHealthyBackends;
use headgate_drill::scenario::{Autoscaler, Scenario};
use headgate_drill::speed::Speed;
use headgate_drill::strategy::{PodTimes, Strategy};
use headgate_sandbox::Interrupts;
use serde_json::Value;

use super::drill_report::Outputs;
use super::headgate_program::HeadgateArguments;

/// No scenario needs a longer time.
const MAX_TIME: Duration = Duration::from_hours(1);

/// Drill nodes going away: real connections through a load balancer on this machine, and which of them are lost
///
/// Builds clients, a layer-4 load balancer and nodes as network namespaces: the kernel's nftables spreads flows by a
/// hash and its conntrack keeps established ones. Clients open connections at a steady rate and hold long-lived ones
/// while nodes go away as in the scenario. Each strategy is another way for the load balancer to notice. Strategies
/// with headgate run real agents, kube-apiserver and the ARM emulator; those about kube-proxy run its own process. The
/// load balancer's probes, its use of admin states and kubelet are modelled: an HTTP probe of Azure takes a node out at the
/// first answer other than 200, as documented, and without answers after as many probes as its threshold.
///
/// Runs with the same seed are pairs: every strategy meets the same phases of probes, hash and client ports. From the signal to
/// the next probe of the node it takes a share of the interval that is uniform over the runs.
///
/// Needs root or user namespaces, and the programs ip and nft. Ctrl-C ends and removes everything. Nothing outside of
/// its own namespaces is changed.
///
/// Exit codes: 0 the results are shown; 1 the drill failed, or --expect-no-loss or --expect-gone-within was not met; 2 wrong
/// arguments; 130 interrupted.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// How the nodes go away
    #[arg(long, value_enum)]
    scenario: Scenario,

    /// What is done about it, separated by commas [default: all strategies that have a part in the scenario]
    #[arg(long, value_enum, value_delimiter = ',')]
    strategy: Vec<Strategy>,

    /// How many nodes, from 2 to 50
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    nodes: usize,

    /// New connections for each real second, from 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 100.0)]
    rate: f64,

    /// How many times faster the scenario runs, from 1 to 100; headgate and the kernel keep their own speed [default: 10; 1 in
    /// api-outage, whose restarts take their own time]
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    speed: Option<Speed>,

    /// What the first run's random numbers come from; each run has the next seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Runs of each strategy, from 1 to 90
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    runs: usize,

    /// Long-lived connections held at once, at most 1000
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    connections: usize,

    /// The longest that a long-lived connection lives before its client ends it, at most 1h; or mix, which draws lifetimes from
    /// a table, from 1s to 10m, some of them idle until their end
    #[arg(long, value_name = "DURATION|mix", default_value = "20s", value_parser = connection_lifetime)]
    connection_lifetime: ConnectionLifetime,

    /// Whose probes and thresholds the load balancer has
    #[arg(long, value_enum, default_value = "azure")]
    provider: Provider,

    /// Time between two probes of a node, at most 1h; with Azure also their timeout [default: the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    probe_interval: Option<Duration>,

    /// Failed probes in a row that take a node out, and with Azure successes that let it back [default: the provider's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    probe_threshold: Option<u32>,

    /// What an answer of HTTP other than 200, or a reset, counts for [default: the provider's, as documented]
    #[arg(long, value_enum)]
    probe_rule: Option<ProbeRule>,

    /// Independent probers of each node, from 1 to 16; the first one that notices takes it out. Azure documents no number
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    probers: usize,

    /// An admin state Down resets established connections, as the API reference of adminState says; the documentation of
    /// admin states says that they go on
    #[arg(long)]
    admin_down_resets: bool,

    /// What is seen of a machine that is switched off; Azure documents neither
    #[arg(long, value_enum, default_value = "silent")]
    power_off: PowerOff,

    /// Whether the platform takes a machine that is deleted out of the pool, by an operation that begins when it is switched off.
    /// Azure documents that members of a NIC pool are those of the interfaces, and not when that of a deleted machine goes
    #[arg(long, value_enum, default_value = "stay")]
    deleted_machines: DeletedMachines,

    /// What the entries of the pool are: IP addresses, or network interfaces, which is the default of cloud-provider-azure
    /// (loadBalancerBackendPoolConfigurationType nodeIPConfiguration)
    #[arg(long, value_enum, default_value = "ip")]
    pool_members: PoolMembers,

    /// Another program writes the pool as it read it, this long after its last write has ended, and holds the Lease that it shares
    /// with headgate meanwhile, at most 1h [default: none does]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    other_writer: Option<Duration>,

    /// Time from a node's deregistration until it gets no new flows, in the strategy deregistration, at most 1h [default:
    /// the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    deregistration_delay: Option<Duration>,

    /// What the load balancer does when all backends are down
    #[arg(long, value_enum, default_value = "all-probed-down")]
    no_healthy_backends: NoHealthyBackends,

    /// kube-proxy's own process in the strategies that are about it, or a model of it that needs no control plane
    #[arg(long, value_enum, default_value = "real")]
    kube_proxy: KubeProxyPart,

    /// Who removes nodes in scale-down, mass and api-outage
    #[arg(long, value_enum, default_value = "cluster-autoscaler")]
    autoscaler: Autoscaler,

    /// Time from the signal to the deletion of an empty node, or to the eviction of Pods in maintenance, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration_up_to(MAX_TIME))]
    delete_delay: Duration,

    /// Time for which Cluster Autoscaler waits for an annotation that delays a deletion, in the strategy connections, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = duration_up_to(MAX_TIME))]
    node_deletion_delay_timeout: Duration,

    /// Notice that a spot machine gets in spot, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration_up_to(MAX_TIME))]
    notice: Duration,

    /// Sleep of preStop hooks, in strategies that have one, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration_up_to(MAX_TIME))]
    pre_stop: Duration,

    /// Time for which a process serves after SIGTERM in rolling updates, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration_up_to(MAX_TIME))]
    shutdown: Duration,

    /// Time from the end of a Pod until its replacement is ready, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration_up_to(MAX_TIME))]
    restart: Duration,

    /// Time that an operation of ARM takes, at most 1h; Azure publishes none
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_up_to(MAX_TIME))]
    operation_delay: Duration,

    /// Time that it takes longer for each member of the pool, at most 1h
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_up_to(MAX_TIME))]
    operation_delay_per_member: Duration,

    /// Share by which it is shorter or longer in a run, drawn uniformly, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    operation_spread: f64,

    /// Retry-After of an operation in progress, at most 10m, rounded up to whole real seconds; that of Azure is not recorded
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration_up_to(Duration::from_mins(10)))]
    poll_retry_after: Duration,

    /// What else the emulator assumes about ARM, as its control API takes it, in real time:
    /// `{"readLag": "200ms", "adminStateNone": "shown", "deviations": ["ifMatchIgnored", "supersededChangesLost"]}`
    #[arg(long, value_name = "JSON", value_parser = azure_settings)]
    azure_settings: Option<Settings>,

    /// A fault rule of the emulator, in real time; several times for several:
    /// `{"match": {"method": "PUT"}, "times": 1, "action": {"answer": {"status": 429, "retryAfter": 10}}}`
    #[arg(long, value_name = "JSON", value_parser = json)]
    arm_fault: Vec<Value>,

    /// Break headgate's admin states in the strategies admin-state and headgate, to see that a requirement fails
    #[arg(long, value_enum, value_name = "WHAT")]
    negative_control: Option<NegativeControl>,

    /// Time from the end of that operation until the admin state takes effect, at most 1h; Azure publishes none
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_up_to(MAX_TIME))]
    propagation_delay: Duration,

    /// Strategies that must lose nothing, separated by commas: if one of their runs loses a new connection, or an established
    /// one before a node is gone (connections: any established one), the exit code is 1. In admin-state every node must be out by
    /// its admin state before one of its probes fails, in healthz by its health answer, and before it is gone
    #[arg(long, value_enum, value_delimiter = ',')]
    expect_no_loss: Vec<Strategy>,

    /// The longest time from a node's signal until its machine is switched off in the runs of these strategies; if one takes
    /// longer, the exit code is 1, at most 1h
    #[arg(long, value_name = "DURATION", requires = "expect_no_loss", value_parser = duration_up_to(MAX_TIME))]
    expect_gone_within: Option<Duration>,

    /// Directory with etcd and kube-apiserver [default: `$KUBEBUILDER_ASSETS`, otherwise where `make control-plane`
    /// puts them]
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,

    #[command(flatten)]
    headgate: HeadgateArguments,

    /// Output format: a table, or a JSON array with an object for each run
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,

    #[command(flatten)]
    files: Outputs,

    /// The commit that is measured, for the results to state
    #[arg(long, value_name = "COMMIT", env = "HEADGATE_COMMIT", hide_env_values = true)]
    commit: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionLifetime {
    AtMost(Duration),
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

/// Flags that cannot have an effect together.
#[derive(Debug, thiserror::Error)]
enum FlagError {
    #[error("--expect-no-loss names {0}, which does not run; name one of the strategies that run: {1}")]
    NotRun(String, String),
    #[error(
        "--deregistration-delay has no effect without the strategy deregistration, which needs --provider aws-cluster, aws-local or gcp"
    )]
    NoDeregistration,
}

/// Of api-outage: API server, kube-proxy and agents restart at their own speed.
const OUTAGE_SPEED: f64 = 1.0;
const DEFAULT_SPEED: f64 = 10.0;

impl Arguments {
    /// The scenario's speed.
    fn speed(&self) -> io::Result<Speed> {
        let default = if self.scenario == Scenario::ApiOutage {
            OUTAGE_SPEED
        } else {
            DEFAULT_SPEED
        };
        self.speed
            .map_or_else(|| Speed::new(default).map_err(io::Error::other), Ok)
    }

    /// The provider's probes with the flags over them.
    fn probe(&self) -> ProbeSettings {
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

    fn drain_rules(&self) -> DrainRules {
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

    /// All strategies that have a part in the scenario. `node-port` is there in the place of `none`, with kube-proxy's process.
    fn all_strategies(&self, drain_rules: &DrainRules) -> Vec<Strategy> {
        let is_azure = self.provider == Provider::Azure;
        let has_part = |strategy: &Strategy| {
            let is_possible = match strategy {
                Strategy::None => !is_azure || !Strategy::NodePort.applies_to(self.scenario),
                Strategy::NodePort | Strategy::ExcludeLabel => is_azure,
                Strategy::Deregistration => drain_rules.deregistration.is_some(),
                Strategy::Connections => self.autoscaler == Autoscaler::ClusterAutoscaler,
                _ => true,
            };
            is_possible && strategy.applies_to(self.scenario)
        };
        Strategy::value_variants().iter().copied().filter(has_part).collect()
    }

    /// Checks before anything runs what would show at the end, or not at all.
    fn check(&self, options: &Options) -> Result<(), FlagError> {
        let names = |strategies: &[Strategy]| strategies.iter().map(name).collect::<Vec<_>>().join(", ");
        let not_run = self
            .expect_no_loss
            .iter()
            .find(|named| !options.strategies.contains(named));
        if let Some(named) = not_run {
            return Err(FlagError::NotRun(name(named), names(&options.strategies)));
        }
        if self.deregistration_delay.is_some() && !options.strategies.contains(&Strategy::Deregistration) {
            return Err(FlagError::NoDeregistration);
        }
        Ok(())
    }

    fn options(&self) -> io::Result<Options> {
        let drain_rules = self.drain_rules();
        let named = &self.strategy;
        let strategies = if named.is_empty() {
            self.all_strategies(&drain_rules)
        } else {
            // In their order, each once: two rounds of one strategy would have the same seeds.
            let is_first = |(at, strategy): &(usize, &Strategy)| !named[..*at].contains(strategy);
            named
                .iter()
                .enumerate()
                .filter(is_first)
                .map(|(_, strategy)| *strategy)
                .collect()
        };
        let (connection_lifetime, has_mixed_lifetimes) = match self.connection_lifetime {
            ConnectionLifetime::AtMost(longest) => (longest, false),
            ConnectionLifetime::Mix => (lifetimes::LONGEST, true),
        };
        Ok(Options {
            scenario: self.scenario,
            strategies,
            nodes: self.nodes,
            rate: self.rate,
            speed: self.speed()?,
            seed: self.seed,
            runs: self.runs,
            long_lived: self.connections,
            has_mixed_lifetimes,
            kube_proxy: self.kube_proxy,
            autoscaler: self.autoscaler,
            delete_delay: self.delete_delay,
            deletion_delay_timeout: self.node_deletion_delay_timeout,
            notice: self.notice,
            restart: self.restart,
            pods: PodTimes {
                pre_stop: self.pre_stop,
                process: self.shutdown,
                connection_lifetime,
            },
            probe: self.probe(),
            probers: self.probers,
            power_off: self.power_off,
            deleted_machines: self.deleted_machines,
            drain_rules,
            no_healthy: self.no_healthy_backends,
            propagation: self.propagation_delay,
            operation: OperationTime {
                base: self.operation_delay,
                per_member: self.operation_delay_per_member,
                spread: self.operation_spread,
            },
            poll_retry_after: self.poll_retry_after,
            azure: self.azure_settings.clone().unwrap_or_default(),
            pool_members: self.pool_members,
            other_writer: self.other_writer,
            arm_faults: self.arm_fault.clone(),
            negative_control: self.negative_control,
            assets: self.assets.clone(),
            program: self.headgate.program()?,
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = arguments.options().map_err(Failure::runtime)?;
    options.validate().map_err(Failure::settings)?;
    arguments.check(&options).map_err(Failure::settings)?;
    // Before the runtime: a process with several threads cannot enter a user namespace.
    acquire_privileges().map_err(Failure::runtime)?;
    // On this thread, because the control plane's processes end with the thread that starts them.
    let mut results = build_runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen().map_err(Failure::runtime)?;
        let display = RefCell::new(ProgressDisplay::new(options.length()));
        let show = |progress| display.borrow_mut().show(progress, Instant::now());
        let results = tokio::select! {
            results = headgate_drill::drill::run(&options, show) => results.map_err(Failure::runtime),
            () = interrupts.next() => Err(Failure {
                code: EXIT_INTERRUPTED,
                error: anyhow::anyhow!("interrupted; everything it started is gone"),
            }),
            () = update(&display) => Err(Failure::runtime(anyhow::anyhow!("the progress display ended"))),
        }?;
        if let Some(warning) = warning(&results) {
            display.borrow().print(&warning);
        }
        Ok::<_, Failure>(results)
    })?;
    let commit = arguments.commit.as_ref().filter(|commit| !commit.is_empty());
    for conditions in results.iter_mut().filter_map(|run| run.conditions.as_mut()) {
        conditions.commit = commit.cloned();
    }
    match arguments.output {
        Output::Json => print_json(&results)?,
        Output::Text => {
            let rolls = rolls(&options.rolls(&results));
            let text = format!("{}\n{rolls}{}", table(&rows(&results)), assumptions(&options));
            print(text.as_bytes())?;
        }
    }
    // After the output: where a file cannot be written, the results are not lost.
    if !arguments.files.are_none() {
        arguments
            .files
            .write(&from_results(&results).map_err(Failure::runtime)?)?;
    }
    let requirement = Requirement {
        without_loss: arguments.expect_no_loss.clone(),
        gone_within: arguments.expect_gone_within,
    };
    match requirement.violations(&results).as_slice() {
        [] => Ok(()),
        found => Err(Failure::runtime(anyhow::anyhow!(
            "not as expected:\n{}",
            found.join("\n")
        ))),
    }
}

/// Moves the progress bar on for ever.
async fn update(display: &RefCell<ProgressDisplay>) {
    loop {
        display.borrow().update(Instant::now());
        tokio::time::sleep(UPDATE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
