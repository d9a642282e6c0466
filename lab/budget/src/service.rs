//! The budget of one Service of a cluster, from plain data, and what to change about it in words.
//!
//! The formulas are those of [`budget`](super::budget). What differs between kinds of targets is who notices that a Pod
//! ends: the node's `healthCheckNodePort`, the Pod's own health check, or, with `externalTrafficPolicy: Cluster`, none of them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::pods::{PodFacts, PreStop};
use super::probes::FoundProbe;
use super::rollout::Rollout;
use super::{Budget, BudgetError, GRACE_MARGIN, Inputs, budget_with, drain_advice, node_advice, pod_advice};

/// Where a Service's load balancer sends connections, and what its probes see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// Node ports of all nodes; kube-proxy forwards to any node.
    Cluster,
    /// Node ports of nodes with a ready Pod (`externalTrafficPolicy: Local`); kube-proxy answers the probes.
    Local,
    /// The Pods' own addresses; their own health check answers the probes.
    PodAddresses,
}

/// What is known of a Service and its cluster.
#[derive(Clone, Debug)]
pub struct ServiceFacts {
    /// Namespace and name, joined by `/`.
    pub service: String,
    /// Where its connections go.
    pub target: Target,
    /// How its load balancer probes.
    pub probe: FoundProbe,
    /// Its Pods that are not ending.
    pub pods: Vec<PodFacts>,
    /// Nodes of the cluster that load balancers use.
    pub cluster_nodes: u32,
    /// How the Pods' controller replaces them.
    pub rollout: Option<Rollout>,
    /// How long established connections are let finish.
    pub drain: Duration,
    /// From the autoscaler's taint to the deletion of an empty node.
    pub delete_delay: Duration,
    /// Where that delay is from, in words.
    pub delete_delay_source: String,
    /// From the end of a Pod until its replacement is ready.
    pub restart: Duration,
    /// How long a terminating Pod goes on to serve, where the user states it.
    pub serving: Option<Duration>,
}

/// The budget of one Service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceBudget {
    /// Namespace and name, joined by `/`.
    pub service: String,
    /// Where its connections go.
    pub target: Target,
    /// Where the probe settings are from.
    pub probe_source: String,
    /// From one probe to the next.
    pub probe_interval_seconds: f64,
    /// Failures in a row that take a backend out.
    pub probe_threshold: u32,
    /// The Service's Pods.
    pub pods: u32,
    /// Nodes that share new connections.
    pub nodes: u32,
    /// From the autoscaler's taint to the deletion of an empty node.
    pub delete_delay_seconds: f64,
    /// Where that delay is from.
    pub delete_delay_source: String,
    /// How the Pods' controller replaces them; none if no known controller owns them.
    pub rollout: Option<Rollout>,
    /// The shortest time for which a terminating Pod of the Service is known to go on serving.
    pub serving_seconds: f64,
    /// The shortest `terminationGracePeriodSeconds` of the Pods; none without Pods.
    pub grace_period_seconds: Option<f64>,
    /// The arithmetic, with the advice.
    #[serde(flatten)]
    pub budget: Budget,
}

/// Computes the budget of a Service.
///
/// # Errors
/// Its probes never notice anything.
pub fn service_budget(facts: &ServiceFacts) -> Result<ServiceBudget, BudgetError> {
    let pods = u32::try_from(facts.pods.len()).unwrap_or(u32::MAX);
    let ready = facts.pods.iter().filter(|pod| pod.is_ready);
    let ready_nodes: BTreeSet<_> = ready.clone().filter_map(|pod| pod.node.as_deref()).collect();
    let nodes = match facts.target {
        Target::Cluster => facts.cluster_nodes,
        Target::Local => u32::try_from(ready_nodes.len()).unwrap_or(u32::MAX),
        // Each of these targets is a Pod.
        Target::PodAddresses => u32::try_from(ready.count()).unwrap_or(u32::MAX),
    };
    let known = facts.pods.iter().map(PodFacts::serving).min();
    let serving = facts.serving.or(known).unwrap_or_default();
    let inputs = Inputs {
        probe: facts.probe.settings,
        drain: facts.drain,
        pods,
        nodes: nodes.max(1),
        delete_delay: facts.delete_delay,
        serving: if facts.health_check_is_wrong() {
            Duration::ZERO
        } else {
            serving
        },
        restart: facts.restart,
    };
    let mut budget = budget_with(&inputs, advice(facts, &inputs, nodes))?;
    if facts.target == Target::Cluster {
        // kube-proxy on every node forwards to the Pods that are left.
        budget.expected_loss_seconds_per_pod = 0.0;
    }
    Ok(ServiceBudget {
        service: facts.service.clone(),
        target: facts.target,
        probe_source: facts.probe.source.clone(),
        probe_interval_seconds: facts.probe.settings.interval.as_secs_f64(),
        probe_threshold: facts.probe.settings.unhealthy_threshold,
        pods,
        nodes,
        delete_delay_seconds: facts.delete_delay.as_secs_f64(),
        delete_delay_source: facts.delete_delay_source.clone(),
        rollout: facts.rollout.clone(),
        serving_seconds: serving.as_secs_f64(),
        grace_period_seconds: facts.pods.iter().map(|pod| pod.grace.as_secs_f64()).reduce(f64::min),
        budget,
    })
}

impl ServiceFacts {
    /// Whether a Pod's preStop does the opposite of what its kind of target needs.
    fn health_check_is_wrong(&self) -> bool {
        match self.target {
            Target::Cluster => false,
            Target::Local => self.pods.iter().any(|pod| pod.fails_health_check),
            Target::PodAddresses => self
                .pods
                .iter()
                .any(|pod| !pod.fails_health_check && pod.pre_stop != PreStop::None),
        }
    }
}

fn advice(facts: &ServiceFacts, inputs: &Inputs, nodes: u32) -> Vec<String> {
    let mut advice = Vec::new();
    if !facts.probe.unprobed_rules.is_empty() {
        advice.push(format!(
            "The rules {} have no probe: the load balancer sends to a node that is gone until it is removed. Give them a probe.",
            facts.probe.unprobed_rules.join(", ")
        ));
    }
    if nodes == 0 {
        advice.push("No Pod of the Service is ready; the figures are those for one node.".to_owned());
    }
    advice.extend(node_advice(inputs));
    match facts.target {
        Target::Cluster => advice.push(
            "With externalTrafficPolicy: Cluster, probes notice nodes and not Pods: kube-proxy forwards to the Pods that \
             are left as soon as one terminates. The blackhole seconds are those of nodes that go away."
                .to_owned(),
        ),
        Target::Local | Target::PodAddresses if !facts.pods.is_empty() => {
            advice.extend(readiness_advice(facts));
            advice.extend(pod_advice(inputs));
            advice.extend(drain_advice(inputs));
            let uses_host_network = facts.pods.iter().any(|pod| pod.uses_host_network);
            let rollout = facts.rollout.iter();
            advice.extend(rollout.flat_map(|rollout| rollout.advice(nodes, uses_host_network)));
        }
        Target::Local | Target::PodAddresses => {}
    }
    advice.extend(grace_advice(facts));
    advice
}

/// The opposite rules: behind kube-proxy a terminating Pod stays ready, behind its own address it fails its health check.
fn readiness_advice(facts: &ServiceFacts) -> Option<String> {
    if !facts.health_check_is_wrong() {
        return None;
    }
    Some(match facts.target {
        Target::Cluster => return None,
        Target::Local => "preStop calls healthcheck/fail, so that kube-proxy drops new connections before the load \
                          balancer notices. Remove the call: behind kube-proxy a terminating Pod must stay ready."
            .to_owned(),
        Target::PodAddresses => {
            "preStop does not call healthcheck/fail, so that the load balancer goes on sending to a \
                                 terminating Pod. Let preStop fail the health check that is probed, and then sleep."
                .to_owned()
        }
    })
}

/// Pods whose grace period is shorter than their preStop hook, or whose hook's duration is not known.
fn grace_advice(facts: &ServiceFacts) -> Vec<String> {
    let mut advice = BTreeSet::new();
    for pod in &facts.pods {
        match pod.pre_stop {
            PreStop::Sleep(sleep) if sleep > pod.grace => {
                advice.insert(format!(
                    "kubelet kills a Pod after {} s although preStop sleeps {} s. Set terminationGracePeriodSeconds to at \
                     least {}.",
                    pod.grace.as_secs_f64(),
                    sleep.as_secs_f64(),
                    (sleep + GRACE_MARGIN).as_secs_f64().ceil(),
                ));
            }
            PreStop::Unknown if facts.serving.is_none() => {
                advice.insert(
                    "The duration of a preStop hook is not known, because it is no sleep; it counts as 0 s. State it with \
                     --serving."
                        .to_owned(),
                );
            }
            PreStop::None | PreStop::Unknown | PreStop::Sleep(_) => {}
        }
    }
    advice.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Provider;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pod(node: u32, pre_stop: PreStop, fails_health_check: bool) -> PodFacts {
        PodFacts {
            name: format!("web-{node}"),
            node: Some(format!("node-{node}")),
            is_ready: true,
            pre_stop,
            fails_health_check,
            grace: seconds(30),
            uses_host_network: false,
        }
    }

    fn facts(target: Target, pods: Vec<PodFacts>) -> ServiceFacts {
        ServiceFacts {
            service: "default/web".to_owned(),
            target,
            probe: FoundProbe {
                settings: Provider::Azure.probe(),
                source: "test".to_owned(),
                unprobed_rules: Vec::new(),
            },
            pods,
            cluster_nodes: 5,
            rollout: None,
            drain: seconds(10),
            delete_delay: seconds(20),
            delete_delay_source: "test".to_owned(),
            restart: seconds(20),
            serving: None,
        }
    }

    /// The words that the advice of a Service contains, each in one piece of it.
    fn assert_advice(facts: &ServiceFacts, expected: &[&str]) {
        let advice = service_budget(facts).unwrap().budget.advice;
        assert_eq!(advice.len(), expected.len(), "{advice:#?}");
        for (advice, expected) in advice.iter().zip(expected) {
            assert!(advice.contains(expected), "{expected} in {advice}");
        }
    }

    #[test]
    fn a_local_service_shares_connections_among_nodes_with_ready_pods() {
        let mut pods: Vec<_> = (1..=3)
            .map(|node| pod(node, PreStop::Sleep(seconds(20)), false))
            .collect();
        pods.push(pod(3, PreStop::Sleep(seconds(25)), false));
        pods.push(PodFacts {
            is_ready: false,
            ..pod(4, PreStop::Sleep(seconds(25)), false)
        });
        let found = service_budget(&facts(Target::Local, pods.clone())).unwrap();
        assert_eq!((found.pods, found.nodes), (5, 3));
        assert!((found.budget.error_share - 1.0 / 3.0).abs() < 1e-9);
        assert!((found.serving_seconds - 20.0).abs() < 1e-9, "the shortest");
        assert!((found.budget.blackhole_seconds_total - 100.0).abs() < 1e-9);
        assert!(found.budget.expected_loss_seconds_per_pod.abs() < 1e-9);
        assert_advice(&facts(Target::Local, pods.clone()), &[]);
        let targets = service_budget(&facts(Target::PodAddresses, pods)).unwrap();
        assert_eq!(targets.nodes, 4, "ready Pods");
    }

    #[test]
    fn readiness_rules_of_kube_proxy_and_of_pod_addresses_are_opposite() {
        let with = |target: Target, fails: bool| {
            let pods = vec![
                pod(1, PreStop::Sleep(seconds(20)), fails),
                pod(2, PreStop::Sleep(seconds(20)), fails),
            ];
            facts(target, pods)
        };
        assert_advice(&with(Target::Local, false), &[]);
        assert_advice(&with(Target::PodAddresses, true), &[]);
        assert_advice(
            &with(Target::Local, true),
            &["Remove the call", "stops serving up to 5 s"],
        );
        assert_advice(
            &with(Target::PodAddresses, false),
            &["Let preStop fail", "stops serving up to 5 s"],
        );
        let loss = |facts: &ServiceFacts| service_budget(facts).unwrap().budget.expected_loss_seconds_per_pod;
        assert!((loss(&with(Target::Local, true)) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn a_cluster_service_loses_with_nodes_and_not_with_pods() {
        let mut facts = facts(Target::Cluster, vec![pod(1, PreStop::None, false)]);
        let found = service_budget(&facts).unwrap();
        assert_eq!(found.nodes, 5);
        assert!(found.budget.expected_loss_seconds_per_pod.abs() < 1e-9);
        assert_advice(&facts, &["probes notice nodes and not Pods"]);
        facts.delete_delay = seconds(3);
        assert_advice(&facts, &["deleted 2 s before", "probes notice nodes and not Pods"]);
    }

    #[test]
    fn grace_periods_rollouts_and_missing_probes_are_named() {
        let mut host = pod(1, PreStop::Sleep(seconds(300)), false);
        host.uses_host_network = true;
        let mut facts = facts(Target::Local, vec![host, pod(2, PreStop::Unknown, false)]);
        facts.rollout = Some(Rollout {
            controller: "DaemonSet envoy".to_owned(),
            max_unavailable: 2,
            max_surge: 1,
        });
        facts.probe.unprobed_rules = vec!["bare".to_owned()];
        assert_advice(
            &facts,
            &[
                "The rules bare have no probe",
                "stops serving up to 5 s",
                "up to 2 Pods at once: the share of lost connections is up to 100.0 %",
                "Set maxUnavailable: 1 and maxSurge: 0",
                "it counts as 0 s",
                "kills a Pod after 30 s although preStop sleeps 300 s",
            ],
        );
    }

    #[test]
    fn a_sleep_as_long_as_the_grace_period_and_a_hook_whose_duration_is_stated_need_no_advice() {
        let mut facts = facts(
            Target::Local,
            vec![
                pod(1, PreStop::Sleep(seconds(30)), false),
                pod(2, PreStop::Unknown, false),
            ],
        );
        facts.serving = Some(seconds(30));
        assert_advice(&facts, &[]);
    }

    #[test]
    fn a_service_without_pods_has_the_figures_of_one_node() {
        let facts = facts(Target::Local, Vec::new());
        let found = service_budget(&facts).unwrap();
        assert_eq!((found.pods, found.nodes, found.grace_period_seconds), (0, 0, None));
        assert_advice(&facts, &["No Pod of the Service is ready", "With one node"]);
        let json = serde_json::to_value(&found).unwrap();
        for field in [
            "service",
            "target",
            "detectionSeconds",
            "blackholeSecondsPerPod",
            "blackholeSecondsTotal",
            "errorShare",
            "deleteDelayMet",
            "advice",
        ] {
            assert!(json.get(field).is_some(), "{field} in {json}");
        }
    }
}
