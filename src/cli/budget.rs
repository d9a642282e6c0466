//! `headgate budget`: flags to the inputs of the blackhole budget, its results to text or JSON.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use headgate_drill::budget::{Budget, Inputs, budget};
use headgate_drill::probe::{ProbeSettings, Provider};

use super::{Failure, duration_up_to, print, print_json};

/// No cluster has longer times.
const MAX_TIME: Duration = Duration::from_hours(24);

/// Compute how long connections are lost when nodes and Pods go away, and what to set to lose none
///
/// Arithmetic only: nothing is asked or measured. The blackhole seconds are the worst case of the post "Layer-4 Load
/// Balancer & Zero-downtime Autoscaling and Upgrade", which counts the drain time as lost. New connections are lost
/// only until the load balancer's probes notice: that is the expected loss.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Whose probes the load balancer has, unless --probe-interval or --probe-threshold say otherwise
    #[arg(long, value_enum, default_value = "azure")]
    provider: Provider,

    /// Time between two probes, at most 24h [default: the provider's]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    probe_interval: Option<Duration>,

    /// Failures in a row after which a backend gets no new connections [default: the provider's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    probe_threshold: Option<u32>,

    /// Time that established connections are given to end, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration_up_to(MAX_TIME))]
    drain: Duration,

    /// Pods that a rolling update replaces one after another
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pods: u32,

    /// Nodes that share new connections
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// The autoscaler's --node-delete-delay-after-taint, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration_up_to(MAX_TIME))]
    delete_delay: Duration,

    /// Time for which a terminating Pod goes on to serve, preStop hook included, at most 24h
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_up_to(MAX_TIME))]
    serving: Duration,

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
}

impl Arguments {
    fn inputs(&self) -> Inputs {
        let preset = self.provider.probe();
        Inputs {
            probe: ProbeSettings {
                interval: self.probe_interval.unwrap_or(preset.interval),
                unhealthy_threshold: self.probe_threshold.unwrap_or(preset.unhealthy_threshold),
                ..preset
            },
            drain: self.drain,
            pods: self.pods,
            nodes: self.nodes,
            delete_delay: self.delete_delay,
            serving: self.serving,
            restart: self.restart,
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let computed = budget(&arguments.inputs()).map_err(Failure::settings)?;
    match arguments.output {
        Output::Json => print_json(&computed),
        Output::Text => print(text(&computed, arguments).as_bytes()),
    }
}

fn text(budget: &Budget, arguments: &Arguments) -> String {
    let detection = &budget.detection_seconds;
    let covers = if budget.delete_delay_met {
        "covers"
    } else {
        "does not cover"
    };
    let mut text = format!(
        "Probes notice after {} to {} s, {} s on average.\n\
         A node has {:.1} % of the new connections.\n\
         Worst case, as the post counts it: {} s for each Pod, {} s for all {}.\n\
         Expected loss of new connections to a replaced Pod's node: {:.2} s.\n\
         The delete delay of {} s {covers} detection and drain, {} s.\n\
         No loss needs a preStop sleep of {} s and a grace period of {} s.\n",
        detection.min,
        detection.max,
        detection.mean,
        budget.error_share * 100.0,
        budget.blackhole_seconds_per_pod,
        budget.blackhole_seconds_total,
        arguments.pods,
        budget.expected_loss_seconds_per_pod,
        arguments.delete_delay.as_secs_f64(),
        budget.delete_delay_needed_seconds,
        budget.pre_stop_needed_seconds,
        budget.grace_period_needed_seconds,
    );
    for advice in &budget.advice {
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{advice}");
    }
    text
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
        let text = text(&budget(&arguments.inputs()).unwrap(), &arguments);
        for expected in [
            "310 s for each Pod, 1860 s for all 6",
            "16.7 %",
            "7.50 s",
            "does not cover",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn flags_override_the_providers_probes() {
        assert_eq!(parse("--provider gcp").inputs().probe, Provider::Gcp.probe());
        let probe = parse("--provider gcp --probe-threshold 5").inputs().probe;
        assert_eq!((probe.interval, probe.unhealthy_threshold), (Duration::from_secs(8), 5));
    }
}
