//! The blackhole budget: what probes, drain time and delete delay mean for connections, by arithmetic.
//!
//! The blackhole seconds are the worst case of the post "Layer-4 Load Balancer & Zero-downtime Autoscaling and Upgrade": it
//! counts the drain time as lost, and every failed probe against the threshold. New connections are in fact lost only until
//! the probes notice, which Azure documents for the first answer other than 200; that is
//! [`Budget::expected_loss_seconds_per_pod`].

use std::time::Duration;

use serde::Serialize;

use crate::probe::ProbeSettings;

pub mod pods;
pub mod probe;
pub mod probes;
pub mod rollout;
pub mod service;

/// What is known of a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The load balancer's probes.
    pub probe: ProbeSettings,
    /// How long established connections are let finish.
    pub drain: Duration,
    /// Pods behind the load balancer that a rolling update replaces, one after another.
    pub pods: u32,
    /// Nodes that share new connections.
    pub nodes: u32,
    /// From the autoscaler's taint to the deletion of an empty node.
    pub delete_delay: Duration,
    /// How long a terminating Pod goes on to serve: its preStop hook, then its own shutdown.
    pub serving: Duration,
    /// From the end of a Pod until its replacement on the same node is ready.
    pub restart: Duration,
}

/// The shortest, mean and longest time until probes mark a backend down, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Detection {
    /// A probe comes at once.
    pub min: f64,
    /// The mean over all phases of the probe's timer, in seconds.
    pub mean: f64,
    /// A probe has just succeeded.
    pub max: f64,
}

/// The results of the arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// Seconds from the first answer other than 200 until the probes take the backend out.
    pub detection_seconds: Detection,
    /// The longest time until they do for a backend that does not answer at all.
    pub silent_detection_seconds: f64,
    /// The post's worst case: as many probe intervals as the threshold, and the drain time.
    pub blackhole_seconds_per_pod: f64,
    /// The same for all Pods.
    pub blackhole_seconds_total: f64,
    /// The share of new connections that one node has.
    pub error_share: f64,
    /// Whether the delete delay covers the longest detection and the drain time.
    pub delete_delay_met: bool,
    /// The shortest delete delay that does.
    pub delete_delay_needed_seconds: f64,
    /// Mean time in which new connections to a replaced Pod's node are lost.
    pub expected_loss_seconds_per_pod: f64,
    /// The preStop sleep that loses neither new connections nor, within the drain time, established ones.
    pub pre_stop_needed_seconds: f64,
    /// `terminationGracePeriodSeconds` that leaves time for it.
    pub grace_period_needed_seconds: f64,
    /// What to do, in words.
    pub advice: Vec<String>,
}

/// What the post adds to the preStop sleep for the grace period.
const GRACE_MARGIN: Duration = Duration::from_secs(5);

/// The inputs cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Nothing shares the connections.
    #[error("there are no nodes; give at least one")]
    NoNodes,
    /// Probes that never notice.
    #[error("the probe interval and threshold must be greater than zero")]
    NoProbe,
}

/// Computes the budget.
///
/// # Errors
/// There are no nodes, or no probes.
pub fn budget(inputs: &Inputs) -> Result<Budget, BudgetError> {
    let advice = node_advice(inputs)
        .into_iter()
        .chain(pod_advice(inputs))
        .chain(drain_advice(inputs));
    budget_with(inputs, advice.collect())
}

/// The same with other advice.
fn budget_with(inputs: &Inputs, advice: Vec<String>) -> Result<Budget, BudgetError> {
    if inputs.nodes == 0 {
        return Err(BudgetError::NoNodes);
    }
    let probe = &inputs.probe;
    if probe.longest_detection().is_zero() || probe.unhealthy_threshold == 0 {
        return Err(BudgetError::NoProbe);
    }
    let needed = probe.longest_detection() + inputs.drain;
    let per_pod = (probe.longest_detection_by_threshold() + inputs.drain).as_secs_f64();
    let delete_delay_met = inputs.delete_delay >= needed;
    let expected = expected_loss(probe, inputs.serving, inputs.restart);
    Ok(Budget {
        detection_seconds: Detection {
            min: probe.shortest_detection().as_secs_f64(),
            mean: probe.mean_detection().as_secs_f64(),
            max: probe.longest_detection().as_secs_f64(),
        },
        silent_detection_seconds: (probe.longest_detection_by_threshold() + probe.timeout).as_secs_f64(),
        blackhole_seconds_per_pod: per_pod,
        blackhole_seconds_total: per_pod * f64::from(inputs.pods),
        error_share: 1.0 / f64::from(inputs.nodes),
        delete_delay_met,
        delete_delay_needed_seconds: needed.as_secs_f64(),
        expected_loss_seconds_per_pod: expected,
        pre_stop_needed_seconds: needed.as_secs_f64(),
        grace_period_needed_seconds: (needed + GRACE_MARGIN).as_secs_f64(),
        advice,
    })
}

/// The mean time for which new connections to one node are lost when its Pod is replaced: they are served for `serving`
/// after the health check fails, a new Pod is ready `restart` after that, and the load balancer stops sending at a time
/// that is uniform between the shortest and the longest detection. In seconds.
pub fn expected_loss(probe: &ProbeSettings, serving: Duration, restart: Duration) -> f64 {
    let [shortest, longest] = [probe.shortest_detection(), probe.longest_detection()].map(|time| time.as_secs_f64());
    let serving = serving.as_secs_f64();
    let ready = serving + restart.as_secs_f64();
    let loss_at = |detected: f64| (detected.min(ready) - serving).max(0.0);
    if longest <= shortest {
        return loss_at(longest);
    }
    // The integral of `loss_at` over the uniform density; it is linear between these points.
    let corners = [
        shortest,
        serving.clamp(shortest, longest),
        ready.clamp(shortest, longest),
        longest,
    ];
    let area: f64 = corners
        .windows(2)
        .map(|pair| f64::midpoint(loss_at(pair[0]), loss_at(pair[1])) * (pair[1] - pair[0]))
        .sum();
    area / (longest - shortest)
}

/// What to change so that a node is out of rotation before it is deleted.
fn node_advice(inputs: &Inputs) -> Vec<String> {
    let detection = inputs.probe.longest_detection();
    let needed = detection + inputs.drain;
    let mut advice = Vec::new();
    if inputs.delete_delay < detection {
        advice.push(format!(
            "The node may be deleted {} s before the load balancer stops sending to it. Set cluster-autoscaler's \
             --node-delete-delay-after-taint to at least {}s: {} s until probes notice, {} s to drain.",
            detection.saturating_sub(inputs.delete_delay).as_secs_f64(),
            needed.as_secs_f64().ceil(),
            detection.as_secs_f64(),
            inputs.drain.as_secs_f64(),
        ));
    } else if inputs.delete_delay < needed {
        advice.push(format!(
            "New connections leave the node in time, but established ones get {} s of the {} s to drain. Set \
             --node-delete-delay-after-taint to at least {}s.",
            inputs.delete_delay.saturating_sub(detection).as_secs_f64(),
            inputs.drain.as_secs_f64(),
            needed.as_secs_f64().ceil(),
        ));
    }
    if inputs.nodes == 1 {
        advice.push("With one node there is nowhere else to send connections: add a node.".to_owned());
    }
    advice
}

/// What to change so that new connections to a replaced Pod are not lost.
fn pod_advice(inputs: &Inputs) -> Option<String> {
    let detection = inputs.probe.longest_detection();
    let needed = detection + inputs.drain;
    (inputs.serving < detection).then(|| {
        format!(
            "A terminating Pod stops serving up to {} s before the load balancer notices. Let preStop sleep at least {}s \
             for new connections, {}s to let established ones drain, and set terminationGracePeriodSeconds to {}.",
            detection.saturating_sub(inputs.serving).as_secs_f64(),
            detection.as_secs_f64().ceil(),
            needed.as_secs_f64().ceil(),
            (needed + GRACE_MARGIN).as_secs_f64().ceil(),
        )
    })
}

/// What to change so that established connections to a replaced Pod have the whole drain time.
fn drain_advice(inputs: &Inputs) -> Option<String> {
    let detection = inputs.probe.longest_detection();
    let needed = detection + inputs.drain;
    (detection..needed).contains(&inputs.serving).then(|| {
        format!(
            "A terminating Pod serves until the load balancer notices, but established connections get {} s of the {} s to \
             drain. Let preStop sleep at least {}s, and set terminationGracePeriodSeconds to {}.",
            inputs.serving.saturating_sub(detection).as_secs_f64(),
            inputs.drain.as_secs_f64(),
            needed.as_secs_f64().ceil(),
            (needed + GRACE_MARGIN).as_secs_f64().ceil(),
        )
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the values are exact")]
mod tests {
    use super::*;
    use crate::probe::{ProbeRule, Provider};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The post's figures, with its rule: two failed probes take a node out, whatever the answer.
    fn blog() -> Inputs {
        Inputs {
            probe: ProbeSettings {
                rule: ProbeRule::Threshold,
                ..Provider::Azure.probe()
            },
            drain: seconds(300),
            pods: 6,
            nodes: 6,
            delete_delay: seconds(5),
            serving: Duration::ZERO,
            restart: seconds(20),
        }
    }

    #[test]
    fn figures_of_the_blog_post_are_reproduced() {
        let budget = budget(&blog()).unwrap();
        assert_eq!(budget.blackhole_seconds_per_pod, 310.0);
        assert_eq!(budget.blackhole_seconds_total, 1860.0);
        assert!((budget.error_share - 0.1667).abs() < 1e-4);
        assert!(!budget.delete_delay_met);
        assert_eq!(budget.expected_loss_seconds_per_pod, 7.5);
        assert_eq!(budget.grace_period_needed_seconds, 315.0);
        assert_eq!(budget.advice.len(), 2, "{:?}", budget.advice);
        assert!(budget.advice[0].contains("at least 310s"), "{:?}", budget.advice);
    }

    #[test]
    fn by_the_documented_rule_the_first_answer_other_than_200_counts() {
        let budget = budget(&Inputs {
            probe: Provider::Azure.probe(),
            ..blog()
        });
        let budget = budget.unwrap();
        let detection = &budget.detection_seconds;
        assert_eq!((detection.min, detection.mean, detection.max), (0.0, 2.5, 5.0));
        assert_eq!(
            budget.silent_detection_seconds, 15.0,
            "two timeouts, the first after up to an interval"
        );
        assert_eq!(budget.expected_loss_seconds_per_pod, 2.5);
        assert_eq!(budget.delete_delay_needed_seconds, 305.0);
        assert_eq!(budget.grace_period_needed_seconds, 310.0);
        assert_eq!(budget.blackhole_seconds_per_pod, 310.0, "as the post counts it");
        assert_eq!(budget.blackhole_seconds_total, 1860.0);
    }

    #[test]
    fn a_delay_that_covers_detection_and_drain_needs_no_advice() {
        let inputs = Inputs {
            drain: seconds(10),
            delete_delay: seconds(20),
            serving: seconds(20),
            ..blog()
        };
        let computed = budget(&inputs).unwrap();
        assert!(computed.delete_delay_met);
        assert!(computed.advice.is_empty(), "{:?}", computed.advice);
        let late = Inputs {
            delete_delay: seconds(19),
            ..inputs
        };
        let computed = budget(&late).unwrap();
        assert!(!computed.delete_delay_met);
        assert!(
            computed.advice[0].contains("get 9 s of the 10 s"),
            "{:?}",
            computed.advice
        );
    }

    #[test]
    fn a_delay_or_a_pod_that_lasts_exactly_until_probes_notice_loses_no_new_connection() {
        let inputs = Inputs {
            delete_delay: seconds(10),
            serving: seconds(10),
            ..blog()
        };
        let advice = budget(&inputs).unwrap().advice;
        assert_eq!(advice.len(), 2, "{advice:?}");
        for advice in advice {
            assert!(advice.contains("get 0 s of the 300 s"), "{advice}");
        }
    }

    #[test]
    fn a_pod_that_serves_until_probes_notice_may_still_cut_established_connections() {
        let inputs = Inputs {
            delete_delay: seconds(400),
            serving: seconds(25),
            ..blog()
        };
        let computed = budget(&inputs).unwrap();
        assert_eq!(computed.expected_loss_seconds_per_pod, 0.0);
        assert_eq!(computed.advice.len(), 1, "{:?}", computed.advice);
        assert!(
            computed.advice[0].contains("get 15 s of the 300 s"),
            "{:?}",
            computed.advice
        );
    }

    #[test]
    fn expected_loss_has_its_closed_forms() {
        let probe = |threshold: u32, interval: u64| ProbeSettings {
            interval: seconds(interval),
            unhealthy_threshold: threshold,
            ..blog().probe
        };
        // probe, seconds served while terminating, seconds until the next Pod is ready, loss
        for (probe, serving, restart, expected) in [
            (probe(1, 10), 0, 20, 5.0),
            (probe(2, 10), 0, 20, 15.0),
            (probe(2, 5), 0, 20, 7.5),
            (probe(2, 10), 5, 20, 10.0),
            (probe(2, 10), 15, 20, 1.25),
            (probe(2, 10), 20, 20, 0.0),
            (probe(3, 30), 30, 20, 20.0),
            (probe(3, 30), 300, 20, 0.0),
            // The new Pod is there before probes notice anything.
            (probe(3, 30), 0, 3, 3.0),
        ] {
            let loss = expected_loss(&probe, seconds(serving), seconds(restart));
            assert!((loss - expected).abs() < 1e-9, "{probe:?} {serving} {restart}: {loss}");
        }
    }

    #[test]
    fn inputs_that_mean_nothing_are_rejected() {
        assert_eq!(budget(&Inputs { nodes: 0, ..blog() }), Err(BudgetError::NoNodes));
        let mut inputs = blog();
        inputs.probe.interval = Duration::ZERO;
        assert_eq!(budget(&inputs), Err(BudgetError::NoProbe));
    }
}
