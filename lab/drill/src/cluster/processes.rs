//! What runs on the nodes of a drill: headgate's agents and kube-proxy, with their settings and tunnels.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headgate_sandbox::agents::AgentConfig;
use serde_json::{Value, json};

use super::{Cluster, ClusterError};
use crate::azure;
use crate::drill::NegativeControl;
use crate::endpoints::TrafficPolicy;
use crate::files::write;
use crate::machine::kube_proxy::KubeProxyConfig;
use crate::machine::{CounterConfig, NodeProcesses};
use crate::network::addresses::{HEADGATE_HEALTH_PORT, PROBE_SOURCE};
use crate::strategy::HeadgatePart;

impl Cluster {
    /// The processes of each node.
    pub fn processes(&self) -> Vec<NodeProcesses> {
        self.node_processes.clone()
    }

    pub(super) fn node_processes(&self, node: usize) -> Result<NodeProcesses, ClusterError> {
        Ok(NodeProcesses {
            tunnels: self.tunnels.clone(),
            kube_proxy: self.kube_proxy(node)?,
            agent: self
                .settings
                .headgate
                .runs_agents()
                .then(|| self.agent(node))
                .transpose()?,
            counter: self.settings.deletion_delay.map(|_| self.counter(node)),
        })
    }

    /// Whether agents answer the probes of the Local Service, and those say that a node has left its load balancer.
    pub(super) fn answers_for_service(&self) -> bool {
        self.settings.headgate == HeadgatePart::MaintenanceControllers && self.settings.policy == TrafficPolicy::Local
    }

    /// Has agents write the condition where their answers say when a node is out: after as many failed probes in a row as take it out.
    pub(super) fn set_condition(&self, settings: &mut Value) {
        if self.answers_for_service() {
            settings["outOfLoadBalancers"] = json!({"source": "FailedProbes", "failedProbes": 2});
        }
    }

    fn counter(&self, node: usize) -> CounterConfig {
        CounterConfig {
            program: self.settings.program.clone(),
            directory: self.agent_directory(node),
            log: self.logs.join(format!("counter-{}.log", azure::name(node))),
        }
    }

    fn agent_directory(&self, node: usize) -> PathBuf {
        self.directory.path().join("nodes").join(azure::name(node))
    }

    fn kube_proxy(&self, node: usize) -> Result<Option<KubeProxyConfig>, ClusterError> {
        let Some(kube_proxy) = &self.settings.kube_proxy else {
            return Ok(None);
        };
        let name = azure::name(node);
        Ok(Some(KubeProxyConfig {
            program: self.settings.assets.program("kube-proxy")?,
            kubeconfig: self.kubeconfig.clone(),
            directory: self.directory.path().join("kube-proxy").join(&name),
            log: self.logs.join(format!("kube-proxy-{name}.log")),
            min_sync_period: kube_proxy.min_sync_period,
            node: name,
        }))
    }

    fn agent(&self, node: usize) -> Result<AgentConfig, ClusterError> {
        let name = azure::name(node);
        let directory = self.agent_directory(node);
        let notices: &[&str] = if self.settings.polls_scheduled_events {
            &["ScheduledEvents"]
        } else {
            &[]
        };
        let mut settings = json!({"evictionNotices": notices});
        let mut arguments = Vec::new();
        if let (HeadgatePart::AdminState, Some(emulator)) = (self.settings.headgate, &self.emulator) {
            let file = directory.join("azure.json");
            write(&file, &azure::azure_json(emulator.arm))?;
            arguments.push(format!("--azure-config-file={}", file.display()));
        }
        if self.settings.negative_control == Some(NegativeControl::Observe) {
            settings["adminState"] = json!({"mode": "Observe"});
        }
        if self.answers_for_service() {
            settings["serviceHealthChecks"] = json!("Path");
        }
        self.set_condition(&mut settings);
        if let Some(delay) = self.settings.deletion_delay {
            // The drill connects to node ports before a run, as a TCP probe does.
            settings["connections"] = json!({"count": true, "excludedSources": [PROBE_SOURCE]});
            settings["outOfLoadBalancers"] = json!({"source": "AdminState"});
            settings["delayTermination"] = json!({"clusterAutoscaler": longest_delay(delay.timeout)});
        }
        if self.settings.deletion_delay.is_some() || self.settings.negative_control == Some(NegativeControl::LeaderOff)
        {
            arguments.push("--role=agent".to_owned());
        }
        Ok(AgentConfig {
            program: self.settings.program.clone(),
            kubeconfig: self.kubeconfig.clone(),
            log: self.logs.join(format!("agent-{name}.log")),
            settings: settings_file(settings),
            healthz: SocketAddr::from(([0, 0, 0, 0], HEADGATE_HEALTH_PORT)),
            arguments,
            environment: Vec::new(),
            directory,
            node: name,
        })
    }
}

/// `delayTermination.clusterAutoscaler` for an autoscaler that waits this long, within what the setting allows.
fn longest_delay(deletion_delay_timeout: Duration) -> String {
    let seconds = deletion_delay_timeout.as_secs().clamp(10, 600);
    format!("{seconds}s")
}

/// A settings file of headgate with these settings.
pub(super) fn settings_file(mut settings: Value) -> String {
    settings["apiVersion"] = json!("config.headgate.dev/v1alpha1");
    settings["kind"] = json!("HeadgateConfiguration");
    // JSON is valid YAML.
    format!("# Written by headgate-lab drill.\n{settings}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_within_what_the_setting_allows() {
        let longest = |seconds: u64| longest_delay(Duration::from_secs(seconds));
        assert_eq!([1, 10, 120, 6000].map(longest), ["10s", "10s", "120s", "600s"]);
    }

    #[test]
    fn settings_are_a_file_of_headgate() {
        let file = settings_file(json!({"evictionNotices": []}));
        let (comment, settings) = file.split_once('\n').unwrap();
        assert!(comment.starts_with("# "), "{file}");
        let settings: Value = serde_json::from_str(settings).unwrap();
        assert_eq!(
            settings,
            json!({"apiVersion": "config.headgate.dev/v1alpha1", "kind": "HeadgateConfiguration", "evictionNotices": []})
        );
    }
}
