//! Strategies: how a load balancer learns that a node or Pod goes away, as plain data.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::endpoints::{Forwarding, TrafficPolicy};
use crate::scenario::{READINESS_PERIOD, Scenario, Signal};

/// A way to take nodes and Pods out of rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Nothing: TCP probes of the node port, which fail once the node is dead. Rolling updates run as before
    /// Kubernetes 1.26, without `ProxyTerminatingEndpoints`.
    None,
    /// AKS' default for `Cluster`: TCP probes of the node port, behind kube-proxy's own process.
    NodePort,
    /// kube-proxy's own health answers: `/healthz` for nodes, `healthCheckNodePort` for Pods.
    KubeProxy,
    /// At the signal the Node is labelled `node.kubernetes.io/exclude-from-external-load-balancers`, and
    /// cloud-controller-manager removes it from the pool; probes are those of `none`.
    ExcludeLabel,
    /// headgate's `/healthz` alone, which probes target.
    Healthz,
    /// headgate's admin states alone: its leader sets `adminState: Down`, and probes are those of `none`, which know nothing of it.
    AdminState,
    /// Both: probes of headgate's `/healthz`, and its leader sets `adminState: Down`.
    Headgate,
    /// As `headgate`, and Cluster Autoscaler's deletion waits until the last established connection through the node has ended.
    Connections,
    /// A controller of the cloud deregisters the node at an autoscaler's taint, as on AWS and GKE; probes are those of
    /// `none`.
    Deregistration,
    /// headgate's maintenance controllers: a `NodeMaintenance`, in spot one of their own, and no Pod is evicted before the load
    /// balancer is out.
    NodeMaintenance,
    /// `ProxyTerminatingEndpoints` and a preStop sleep; the Pod stays ready while it terminates.
    PreStopSleep,
    /// The same with `healthcheck/fail` in preStop, which is wrong behind kube-proxy.
    HealthcheckFail,
    /// The load balancer sends to Pod addresses and probes `/ready`; preStop fails it and sleeps.
    PodIp,
    /// Pods on the host's network behind kube-proxy, with a preStop sleep.
    HostNetwork,
    /// Pods on the host's network that the load balancer sends to directly, without kube-proxy; preStop fails `/ready`
    /// and sleeps.
    HostPort,
}

/// Where the load balancer sends flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The Service's node port.
    NodePort,
    /// The load balancer sends to the addresses of Pods.
    Pod,
    /// The Pods' port on the nodes' addresses.
    HostPort,
}

/// What the load balancer probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// A TCP handshake with the node port, cloud-provider-azure's default for `Cluster`.
    NodePort,
    /// The path `/healthz` of kube-proxy.
    KubeProxy,
    /// The `healthCheckNodePort` of the Service.
    HealthCheckNodePort,
    /// The path `/healthz` of headgate.
    Headgate,
    /// headgate's answer for the Service alone, `/healthz/services/NAMESPACE/NAME`.
    HeadgateService,
    /// `/ready` of the Pods.
    PodReady,
}

/// How a Pod ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodShutdown {
    /// The preStop hook's sleep.
    pub pre_stop: Duration,
    /// How long the process goes on serving after SIGTERM.
    pub process: Duration,
    /// `terminationGracePeriodSeconds`, which bounds both together.
    pub grace: Duration,
    /// Whether preStop fails the Pod's own health check.
    pub fails_health_check: bool,
}

impl PodShutdown {
    /// How long it serves from its deletion timestamp on.
    pub fn serving(&self) -> Duration {
        (self.pre_stop + self.process).min(self.grace)
    }
}

/// What of headgate runs in a drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadgatePart {
    /// Nothing.
    Nothing,
    /// Agents that know no cloud: `/healthz` alone.
    Health,
    /// Agents, one of which leads and sets admin states.
    AdminState,
    /// Agents as for `Health`, and the controllers beside the nodes, which lead, set admin states and mark Nodes that are out.
    Controllers,
    /// The same, and the controllers do maintenances.
    MaintenanceControllers,
}

impl HeadgatePart {
    /// Whether an agent runs on each node.
    pub(crate) const fn runs_agents(self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

/// What lets a controller of the cloud remove a node from its load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Nothing that happens in a run.
    Never,
    /// An autoscaler's taint, and a deletion, as on AWS and GKE.
    AutoscalerSignal,
    /// The label that its Node gets at its first signal, whatever that is.
    Label,
}

impl Removal {
    /// Whether it follows a signal.
    pub const fn follows(self, signal: Signal) -> bool {
        match self {
            Self::Never => false,
            Self::AutoscalerSignal => signal.is_seen_by_cloud_controllers(),
            Self::Label => signal.is_drain_signal(),
        }
    }
}

/// What takes a node out of rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Its admin state, before any of its probes failed.
    AdminState,
    /// Its health answer, by the probes that asked for it.
    HealthAnswer,
}

/// A strategy in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The backends to which the load balancer sends.
    pub target: Target,
    /// The port and path that is probed.
    pub probe: ProbeTarget,
    /// The rules by which kube-proxy forwards connections.
    pub forwarding: Forwarding,
    /// The steps of a Pod's termination.
    pub shutdown: PodShutdown,
    /// Whether kube-proxy may be its own process. Its model alone can do what Kubernetes did before 1.26.
    pub kube_proxy_may_be_real: bool,
    /// What of headgate runs.
    pub headgate: HeadgatePart,
    /// What lets a controller of the cloud remove a node.
    pub removal: Removal,
    /// Whether agents delay Cluster Autoscaler's deletion while connections pass through the node.
    pub holds_deletion: bool,
}

impl Plan {
    /// Whether headgate's controllers evict the Pod of the node that goes away.
    pub(crate) fn evicts_pod(&self) -> bool {
        self.headgate == HeadgatePart::MaintenanceControllers
    }

    /// For how long a Pod in a rolling update gets new connections after its deletion.
    pub(crate) fn serves_new(&self) -> Duration {
        let serving = self.shutdown.serving();
        if self.target != Target::NodePort {
            serving
        } else if !self.forwarding.uses_terminating {
            Duration::ZERO
        } else if self.shutdown.fails_health_check {
            serving.min(READINESS_PERIOD)
        } else {
            serving
        }
    }
}

/// Times of Pods that a user can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTimes {
    /// The preStop sleep of strategies that have one.
    pub pre_stop: Duration,
    /// How long a process serves after SIGTERM in a rolling update.
    pub process: Duration,
    /// The longest that an established connection lives; evicted Pods wait for it.
    pub connection_lifetime: Duration,
}

/// The grace period beyond what a Pod needs, as the post has it.
const GRACE_MARGIN: Duration = Duration::from_secs(5);

impl Strategy {
    /// Whether it does anything in this scenario: the post's options are about Pods, headgate and clouds about nodes.
    pub fn applies_to(self, scenario: Scenario) -> bool {
        match self {
            Self::None | Self::KubeProxy => true,
            Self::NodePort => scenario.policy() == TrafficPolicy::Cluster,
            Self::ExcludeLabel => matches!(scenario, Scenario::ScaleDown | Scenario::Maintenance),
            Self::Healthz => scenario != Scenario::RollingUpdate,
            Self::AdminState | Self::Headgate => !matches!(scenario, Scenario::RollingUpdate | Scenario::Local),
            Self::Deregistration => matches!(scenario, Scenario::ScaleDown | Scenario::Mass),
            Self::Connections => scenario == Scenario::ScaleDown,
            Self::NodeMaintenance => matches!(scenario, Scenario::Maintenance | Scenario::Local | Scenario::Spot),
            _ => scenario == Scenario::RollingUpdate,
        }
    }

    /// Whether it promises that established connections outlive their node's removal, too.
    pub(crate) const fn waits_for_connections(self) -> bool {
        matches!(self, Self::Connections)
    }

    /// The only thing that takes a node out before it is gone, where the strategy is about one.
    pub(crate) const fn mechanism(self) -> Option<Mechanism> {
        match self {
            Self::AdminState => Some(Mechanism::AdminState),
            Self::Healthz => Some(Mechanism::HealthAnswer),
            _ => None,
        }
    }

    /// What the strategy means in this scenario.
    pub fn plan(self, scenario: Scenario, times: &PodTimes) -> Plan {
        let is_about_pods = scenario == Scenario::RollingUpdate;
        let has_pre_stop = matches!(
            self,
            Self::PreStopSleep | Self::HealthcheckFail | Self::PodIp | Self::HostNetwork | Self::HostPort
        );
        let pre_stop = if has_pre_stop { times.pre_stop } else { Duration::ZERO };
        let process = if is_about_pods {
            times.process
        } else {
            times.connection_lifetime
        };
        let policy = scenario.policy();
        let is_local = policy == TrafficPolicy::Local;
        let (target, probe) = match self {
            Self::None | Self::KubeProxy if is_local => (Target::NodePort, ProbeTarget::HealthCheckNodePort),
            Self::NodeMaintenance if is_local => (Target::NodePort, ProbeTarget::HeadgateService),
            Self::None | Self::NodePort | Self::ExcludeLabel | Self::AdminState | Self::Deregistration => {
                (Target::NodePort, ProbeTarget::NodePort)
            }
            Self::KubeProxy => (Target::NodePort, ProbeTarget::KubeProxy),
            Self::Healthz | Self::Headgate | Self::Connections | Self::NodeMaintenance => {
                (Target::NodePort, ProbeTarget::Headgate)
            }
            Self::PreStopSleep | Self::HealthcheckFail | Self::HostNetwork => {
                (Target::NodePort, ProbeTarget::HealthCheckNodePort)
            }
            Self::PodIp => (Target::Pod, ProbeTarget::PodReady),
            Self::HostPort => (Target::HostPort, ProbeTarget::PodReady),
        };
        Plan {
            target,
            probe,
            forwarding: Forwarding {
                policy,
                uses_terminating: !(is_local && self == Self::None),
            },
            shutdown: PodShutdown {
                pre_stop,
                process,
                grace: pre_stop + process + GRACE_MARGIN,
                fails_health_check: matches!(self, Self::HealthcheckFail | Self::PodIp | Self::HostPort),
            },
            // An outage of the API server concerns kube-proxy in every strategy.
            kube_proxy_may_be_real: scenario == Scenario::ApiOutage
                || matches!(
                    self,
                    Self::NodePort | Self::KubeProxy | Self::PreStopSleep | Self::HealthcheckFail | Self::HostNetwork
                ),
            headgate: match self {
                Self::Healthz => HeadgatePart::Health,
                Self::AdminState | Self::Headgate => HeadgatePart::AdminState,
                Self::Connections => HeadgatePart::Controllers,
                Self::NodeMaintenance => HeadgatePart::MaintenanceControllers,
                _ => HeadgatePart::Nothing,
            },
            removal: match self {
                Self::Deregistration => Removal::AutoscalerSignal,
                Self::ExcludeLabel => Removal::Label,
                _ => Removal::Never,
            },
            holds_deletion: self.waits_for_connections(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use expect_test::expect_file;

    use super::*;
    use crate::report::name;

    const TIMES: PodTimes = PodTimes {
        pre_stop: Duration::from_secs(30),
        process: Duration::from_secs(5),
        connection_lifetime: Duration::from_secs(20),
    };

    #[test]
    fn a_label_follows_drain_signals_and_a_cloud_those_of_autoscalers() {
        let [label, cloud] = [Removal::Label, Removal::AutoscalerSignal];
        assert!(label.follows(Signal::MaintenanceTaint) && !label.follows(Signal::AutoscalerCandidate));
        assert!(cloud.follows(Signal::AutoscalerTaint) && !cloud.follows(Signal::MaintenanceTaint));
    }

    /// Every strategy with a part in a scenario: where to and by which policy, what is probed, what of headgate runs, whether
    /// kube-proxy is its own process, how a Pod ends, who removes a node.
    #[test]
    fn each_scenario_has_its_strategies() {
        let mut text = String::new();
        for scenario in Scenario::value_variants().iter().copied() {
            let _ = writeln!(text, "{}", name(&scenario));
            let strategies = Strategy::value_variants().iter().copied();
            for strategy in strategies.filter(|strategy| strategy.applies_to(scenario)) {
                let plan = strategy.plan(scenario, &TIMES);
                let facts = [
                    (plan.kube_proxy_may_be_real, ", real kube-proxy"),
                    (!plan.forwarding.uses_terminating, ", before 1.26"),
                    (plan.shutdown.fails_health_check, ", fails its health check"),
                    (plan.evicts_pod(), ", evicts the Pod"),
                    (plan.holds_deletion, ", holds the deletion"),
                ];
                let facts: String = facts
                    .iter()
                    .filter(|(is_so, _)| *is_so)
                    .map(|(_, text)| *text)
                    .collect();
                let _ = writeln!(
                    text,
                    "  {}: {:?} {:?} {:?} {:?}{facts}, serves {} s of {} s, mechanism {:?}, removal {:?}",
                    name(&strategy),
                    plan.forwarding.policy,
                    plan.target,
                    plan.probe,
                    plan.headgate,
                    plan.shutdown.serving().as_secs(),
                    plan.shutdown.grace.as_secs(),
                    strategy.mechanism(),
                    plan.removal,
                );
            }
        }
        expect_file!["strategy/plans.txt"].assert_eq(&text);
    }

    #[test]
    fn each_scenario_compares_at_least_three_strategies_with_none() {
        for scenario in Scenario::value_variants().iter().copied() {
            let count = Strategy::value_variants()
                .iter()
                .filter(|strategy| strategy.applies_to(scenario))
                .count();
            assert!(count >= 4, "{scenario:?}");
            assert!(Strategy::None.applies_to(scenario), "{scenario:?}");
        }
    }
}
