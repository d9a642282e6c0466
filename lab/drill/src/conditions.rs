//! The conditions of a run, kept with its result so that a report made later can state them.
//!
//! Fields are plain numbers and names: a report reads them from results of any version, and leaves out what is absent.

use headgate_azure_emulator::Settings;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::drill::{ConnectionLifetime, Options};
use crate::report::name;

/// What a run's figures depend on, besides its scenario, strategy, seed and speed. Times are those of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    /// The version of headgate.
    pub version: String,
    /// The commit of headgate, if the caller names it.
    pub commit: Option<String>,
    /// The number of nodes.
    pub nodes: usize,
    /// New connections for each real second.
    pub rate: f64,
    /// Long-lived connections held at once.
    pub long_lived: usize,
    /// The longest that one of them lives.
    pub connection_lifetime_seconds: f64,
    /// Whether lifetimes are drawn from the drill's table.
    pub has_mixed_lifetimes: bool,
    /// From one probe of the load balancer to the next.
    pub probe_interval_seconds: f64,
    /// How long a probe waits for its answer.
    pub probe_timeout_seconds: f64,
    /// Failed probes in a row that take a backend out.
    pub probe_failures: u32,
    /// What an answer other than 200 counts for; empty in results of versions that counted it as any failure.
    pub probe_rule: String,
    /// Independent probers of each node.
    pub probers: usize,
    /// What is seen of a machine that is switched off.
    pub power_off: String,
    /// What becomes of the pool's entry of a machine that is deleted; empty in results of versions in which it stayed.
    pub deleted_machines: String,
    /// What the entries of the pool are; empty in results of versions that had addresses alone.
    pub pool_members: String,
    /// How long after each of its writes another program writes the pool again; 0 if no other does.
    pub other_writer_seconds: f64,
    /// Whether an admin state `Down` resets established connections.
    pub admin_down_resets: bool,
    /// Successful probes in a row that let it back.
    pub probe_successes: u32,
    /// What the load balancer does while all backends are down.
    pub no_healthy_backends: String,
    /// From the end of an operation of ARM until its admin state takes effect.
    pub propagation_seconds: f64,
    /// How long an operation of ARM takes, the mean over the runs.
    pub operation_seconds: f64,
    /// The share by which a run's time may be shorter or longer than the mean.
    pub operation_spread: f64,
    /// `Retry-After` of an operation in progress.
    pub poll_retry_after_seconds: f64,
    /// What else the emulator was told to assume about ARM, as JSON; empty if nothing.
    pub azure_settings: String,
    /// Its fault rules, likewise.
    pub arm_faults: String,
    /// What of headgate's admin states is broken; empty if nothing is.
    pub negative_control: String,
    /// The autoscaler that removes nodes.
    pub autoscaler: String,
    /// From the signal to the deletion of an empty node, or to the eviction of Pods.
    pub delete_delay_seconds: f64,
    /// How long Cluster Autoscaler waits for annotations that delay a deletion.
    pub deletion_delay_timeout_seconds: f64,
    /// The notice that a spot machine gets.
    pub notice_seconds: f64,
    /// The preStop sleep of strategies that have one.
    pub pre_stop_seconds: f64,
    /// How long a process serves after SIGTERM in a rolling update.
    pub shutdown_seconds: f64,
    /// From the end of a Pod until its replacement is ready.
    pub restart_seconds: f64,
}

/// The settings that are not the default, as JSON; empty without any.
fn differences(settings: &Settings) -> String {
    let [given, default] =
        [settings, &Settings::default()].map(|settings| serde_json::to_value(settings).unwrap_or_default());
    let mut given = given.as_object().cloned().unwrap_or_default();
    given.retain(|name, value| default.get(name) != Some(value));
    if given.is_empty() {
        String::new()
    } else {
        Value::Object(given).to_string()
    }
}

impl From<&Options> for Conditions {
    fn from(options: &Options) -> Self {
        let probe = options.probe();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: None,
            nodes: options.nodes,
            rate: options.rate,
            long_lived: options.connections,
            connection_lifetime_seconds: options.pods().connection_lifetime.as_secs_f64(),
            has_mixed_lifetimes: options.connection_lifetime == ConnectionLifetime::Mix,
            probe_interval_seconds: probe.interval.as_secs_f64(),
            probe_timeout_seconds: probe.timeout.as_secs_f64(),
            probe_failures: probe.unhealthy_threshold,
            probe_rule: name(&probe.rule),
            probers: options.probers,
            power_off: name(&options.power_off),
            deleted_machines: name(&options.deleted_machines),
            pool_members: name(&options.pool_members),
            other_writer_seconds: options.other_writer.map_or(0.0, |interval| interval.as_secs_f64()),
            admin_down_resets: options.admin_down_resets,
            probe_successes: probe.healthy_threshold,
            no_healthy_backends: name(&options.no_healthy_backends),
            propagation_seconds: options.propagation_delay.as_secs_f64(),
            operation_seconds: options.operation().mean(options.nodes).as_secs_f64(),
            operation_spread: options.operation_spread,
            poll_retry_after_seconds: options.poll_retry_after.as_secs_f64(),
            azure_settings: options.azure_settings.as_ref().map(differences).unwrap_or_default(),
            arm_faults: options
                .arm_fault
                .iter()
                .map(Value::to_string)
                .collect::<Vec<_>>()
                .join(" "),
            negative_control: options.negative_control.as_ref().map(name).unwrap_or_default(),
            autoscaler: name(&options.autoscaler),
            delete_delay_seconds: options.delete_delay.as_secs_f64(),
            deletion_delay_timeout_seconds: options.node_deletion_delay_timeout.as_secs_f64(),
            notice_seconds: options.notice.as_secs_f64(),
            pre_stop_seconds: options.pre_stop.as_secs_f64(),
            shutdown_seconds: options.shutdown.as_secs_f64(),
            restart_seconds: options.restart.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure_emulator::AdminStateNone;

    use super::*;
    use crate::drill::options_of_a_test as options;

    #[test]
    fn only_what_the_emulator_assumes_otherwise_is_stated() {
        let usual = Conditions::from(&options());
        assert_eq!((usual.azure_settings.as_str(), usual.nodes, usual.rate), ("", 3, 100.0));
        let mut other = options();
        other.azure_settings = Some(Settings {
            admin_state_none: AdminStateNone::Shown,
            ..Settings::default()
        });
        assert_eq!(Conditions::from(&other).azure_settings, r#"{"adminStateNone":"shown"}"#);
    }
}
