//! `headgate-lab budget`: from flags, or from a live cluster, to the blackhole budget as text or JSON.

use std::time::Duration;

use clap::{Args, ValueEnum};
use headgate::cli::azure::AzureArguments;
use headgate::cli::cluster::ClusterArguments;
use headgate::cli::{Failure, build_runtime, duration_up_to, print, print_json, print_yaml};
use headgate_budget::probe::{ProbeRule, ProbeSettings, Provider};
use headgate_budget::service::{ServiceBudget, service_budget};
use headgate_budget::{Inputs, budget};

mod autoscaler;
mod cluster;
mod controllers;
mod text;

/// No cluster has longer times.
const MAX_TIME: Duration = Duration::from_hours(24);
/// cluster-autoscaler's default of `--node-delete-delay-after-taint`.
const DEFAULT_DELETE_DELAY: Duration = Duration::from_secs(5);
/// The number of Pods and nodes without flags: the post's.
const DEFAULT_COUNT: u32 = 6;

/// Compute how long connections are lost when nodes and Pods go away, and what to set to lose none
///
/// From flags, or with --from-cluster from the Services of a cluster, their Pods and their load balancers' probes. Nothing
/// is measured or changed. The blackhole seconds are the worst case of the post "Layer-4 Load Balancer & Zero-downtime
/// Autoscaling and Upgrade", which counts the drain time as lost, and every failed probe against the threshold. New
/// connections are lost only until the load balancer's probes notice: that is the expected loss. Azure documents that the
/// first answer other than 200 takes a node out, whatever the threshold.
///
/// With --from-cluster the output has an entry for each Service of type LoadBalancer. It reads Services, Pods, Nodes and
/// the controllers of Pods of all namespaces, and needs the right to list them. Probe settings come from the rules of the
/// load balancers where azure.json is given, otherwise from annotations, otherwise from the provider's defaults.
///
/// Exit codes: 0 the budget is shown, whatever it says; 1 the cluster or Azure cannot be read; 2 wrong arguments or settings.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Read a cluster: an entry for each Service of type LoadBalancer
    #[arg(long, conflicts_with_all = ["pods", "nodes"])]
    from_cluster: bool,

    /// Only this Service
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "from_cluster")]
    service: Option<String>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: AzureArguments,

    /// Whose probes the load balancer has, unless --probe-interval or --probe-threshold say otherwise [default: that of
    /// the cluster's Nodes, otherwise azure]
    #[arg(long, value_enum)]
    provider: Option<Provider>,

    /// Time between two probes, at most 24h [default: the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    probe_interval: Option<Duration>,

    /// Failures in a row after which a backend gets no new connections [default: the provider's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    probe_threshold: Option<u32>,

    /// What an answer other than 200 counts for [default: the provider's]
    #[arg(long, value_enum)]
    probe_rule: Option<ProbeRule>,

    /// Time that established connections are given to end, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration_up_to(MAX_TIME))]
    drain: Duration,

    /// Pods that a rolling update replaces one after another [default: 6]
    #[arg(long, value_name = "COUNT")]
    pods: Option<u32>,

    /// Nodes that share new connections [default: 6]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,

    /// The autoscaler's --node-delete-delay-after-taint, at most 24h [default: that of a cluster-autoscaler in the
    /// cluster, otherwise 5s]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    delete_delay: Option<Duration>,

    /// Time for which a terminating Pod goes on to serve, preStop hook included, at most 24h [default: the Pods' preStop
    /// sleep within their grace period, otherwise 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    serving: Option<Duration>,

    /// Time from the end of a Pod until its replacement is ready, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration_up_to(MAX_TIME))]
    restart: Duration,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

impl Arguments {
    /// Probe settings with the flags over them.
    fn probe(&self, found: ProbeSettings) -> ProbeSettings {
        ProbeSettings {
            interval: self.probe_interval.unwrap_or(found.interval),
            unhealthy_threshold: self.probe_threshold.unwrap_or(found.unhealthy_threshold),
            rule: self.probe_rule.unwrap_or(found.rule),
            ..found
        }
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            probe: self.probe(self.provider.unwrap_or(Provider::Azure).probe()),
            drain: self.drain,
            pods: self.pods.unwrap_or(DEFAULT_COUNT),
            nodes: self.nodes.unwrap_or(DEFAULT_COUNT),
            delete_delay: self.delete_delay.unwrap_or(DEFAULT_DELETE_DELAY),
            serving: self.serving.unwrap_or_default(),
            restart: self.restart,
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.from_cluster {
        return run_from_cluster(arguments);
    }
    let given = arguments.cluster.given().into_iter().chain(arguments.azure.given());
    if let [flag, ..] = given.collect::<Vec<_>>().as_slice() {
        return Err(Failure::settings(anyhow::anyhow!(
            "{flag} has no effect without --from-cluster; give both, or neither"
        )));
    }
    let inputs = arguments.inputs();
    let computed = budget(&inputs).map_err(Failure::settings)?;
    match arguments.output {
        Output::Json => print_json(&computed),
        Output::Yaml => print_yaml(&computed),
        Output::Text => {
            let text = text::budget(&computed, inputs.pods, inputs.delete_delay.as_secs_f64());
            print(format!("{text}\n{}", text::POST).as_bytes())
        }
    }
}

fn run_from_cluster(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    let objects = build_runtime()?.block_on(async {
        let client = arguments.cluster.client().await?;
        let azure = if settings.azure.is_configured() {
            let what = "the load balancers cannot be read";
            Some(arguments.azure.require(&settings, &client, what).await?)
        } else {
            None
        };
        let read = Box::pin(cluster::read(&client, azure)).await;
        read.map_err(|reason| Failure::runtime(anyhow::anyhow!(reason)))
    })?;
    let overrides = cluster::Overrides {
        provider: arguments.provider,
        drain: arguments.drain,
        delete_delay: arguments.delete_delay,
        restart: arguments.restart,
        serving: arguments.serving,
    };
    let is_asked = |name: &str| arguments.service.as_deref().is_none_or(|asked| asked == name);
    let mut budgets: Vec<ServiceBudget> = Vec::new();
    for mut facts in objects.services(&overrides) {
        if !is_asked(&facts.service) {
            continue;
        }
        let settings = arguments.probe(facts.probe.settings);
        if settings != facts.probe.settings {
            facts.probe.settings = settings;
            "flags".clone_into(&mut facts.probe.source);
        }
        budgets.push(service_budget(&facts).map_err(Failure::settings)?);
    }
    if let (Some(name), []) = (&arguments.service, budgets.as_slice()) {
        return Err(Failure::settings(anyhow::anyhow!(
            "there is no Service {name:?} of type LoadBalancer; allowed: NAMESPACE/NAME of one"
        )));
    }
    match arguments.output {
        Output::Json => print_json(&budgets),
        Output::Yaml => print_yaml(&budgets),
        Output::Text if budgets.is_empty() => print(b"The cluster has no Service of type LoadBalancer.\n"),
        Output::Text => {
            let mut texts: Vec<_> = budgets.iter().map(text::service).collect();
            texts.push(text::POST.to_owned());
            // Names of rules and probes are Azure's.
            print(headgate_core::telemetry::escape_lines(&texts.join("\n\n")).as_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(flags: &str) -> Arguments {
        let flags = std::iter::once("budget").chain(flags.split_whitespace());
        Whole::try_parse_from(flags).unwrap().arguments
    }

    #[test]
    fn text_output_has_the_figures_of_the_blog_post() {
        let arguments =
            parse("--probe-interval 5s --probe-threshold 2 --drain 300s --pods 6 --nodes 6 --delete-delay 5s");
        let inputs = arguments.inputs();
        let text = text::budget(
            &budget(&inputs).unwrap(),
            inputs.pods,
            inputs.delete_delay.as_secs_f64(),
        );
        for expected in [
            "310 s for each Pod, 1860 s for all 6",
            "16.7 %",
            "after 0 to 5 s, 2.5 s on average, and a node without an answer after up to 15 s",
            "2.50 s",
            "does not cover detection and drain, 305 s",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        let inputs = parse("--probe-rule threshold").inputs();
        let text = text::budget(&budget(&inputs).unwrap(), inputs.pods, 5.0);
        for expected in ["5 to 10 s", "7.50 s", "detection and drain, 310 s"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn flags_override_the_providers_probes() {
        assert_eq!(parse("--provider gcp").inputs().probe, Provider::Gcp.probe());
        let probe = parse("--provider gcp --probe-threshold 5").inputs().probe;
        assert_eq!((probe.interval, probe.unhealthy_threshold), (Duration::from_secs(8), 5));
    }

    #[test]
    fn flags_about_a_cluster_are_rejected_without_one() {
        for flag in [
            "--context c",
            "--kubeconfig k",
            "--config c",
            "--azure-config-file /a",
            "--cluster-name n",
        ] {
            let failure = run(&parse(flag)).unwrap_err();
            let name = flag.split(' ').next().unwrap();
            assert_eq!(failure.code, 2, "{flag}");
            let expected = format!("{name} has no effect without --from-cluster; give both, or neither");
            assert_eq!(failure.error.to_string(), expected);
        }
    }
}
