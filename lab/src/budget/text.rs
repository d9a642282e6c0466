//! Budgets as text for people.

use std::fmt::Write as _;

use headgate_budget::Budget;
use headgate_budget::service::{ServiceBudget, Target};

/// What the words of the figures refer to.
pub(super) const POST: &str = "\
The post is \"Layer-4 Load Balancer & Zero-downtime Autoscaling and Upgrade\". Its worst case counts the drain time as lost;\n\
new connections are lost only until probes notice. It also counts every failed probe of Azure against the threshold; Azure\n\
documents that the first answer other than 200 takes a node out (--probe-rule).\n";

/// The figures, then the advice.
pub(super) fn budget(budget: &Budget, pods: u32, delete_delay_seconds: f64) -> String {
    let detection = &budget.detection_seconds;
    let covers = if budget.delete_delay_met {
        "covers"
    } else {
        "does not cover"
    };
    let mut text = format!(
        "Probes notice an answer other than 200 after {} to {} s, {} s on average, and a node without an answer after up to {} s.\n\
         A node has {:.1} % of the new connections.\n\
         Worst case, as the post counts it: {} s for each Pod, {} s for all {pods}.\n\
         Expected loss of new connections to a replaced Pod's node: {:.2} s.\n\
         The delete delay of {} s {covers} detection and drain, {} s.\n\
         No loss needs a preStop sleep of {} s and a grace period of {} s.\n",
        detection.min,
        detection.max,
        detection.mean,
        budget.silent_detection_seconds,
        budget.error_share * 100.0,
        budget.blackhole_seconds_per_pod,
        budget.blackhole_seconds_total,
        budget.expected_loss_seconds_per_pod,
        delete_delay_seconds,
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

/// What was found of a Service, then its budget.
pub(super) fn service(found: &ServiceBudget) -> String {
    let target = match found.target {
        Target::Cluster => "all nodes (externalTrafficPolicy: Cluster)",
        Target::Local => "nodes with ready Pods (externalTrafficPolicy: Local)",
        Target::PodAddresses => "the Pods' addresses",
    };
    let mut text = format!(
        "Service {}: {} Pods, new connections go to {target}, {} of them.\n\
         Probes every {} s, {} failures: {}.\n\
         Delete delay {} s: {}.\n",
        found.service,
        found.pods,
        found.nodes,
        found.probe_interval_seconds,
        found.probe_threshold,
        found.probe_source,
        found.delete_delay_seconds,
        found.delete_delay_source,
    );
    if let Some(grace) = found.grace_period_seconds {
        let _ = writeln!(
            text,
            "A terminating Pod is known to serve for {} s; its grace period is {grace} s.",
            found.serving_seconds
        );
    }
    if let Some(rollout) = &found.rollout {
        let _ = writeln!(
            text,
            "{}: maxUnavailable {}, maxSurge {}.",
            rollout.controller, rollout.max_unavailable, rollout.max_surge
        );
    }
    text.push_str(&budget(&found.budget, found.pods, found.delete_delay_seconds));
    text
}
