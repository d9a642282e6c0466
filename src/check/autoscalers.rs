//! Cluster Autoscaler and Karpenter: whether they leave a node the time that load balancers need. Pure.
//!
//! Only programs that run in the cluster show their flags; AKS' managed ones do not. The times are those that docs/guides/autoscalers.md measured.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::node::DELETION_DELAY_ANNOTATION;
use headgate_core::settings::{format_duration, parse_duration};
use headgate_core::telemetry::first_names;

use super::finding::Finding;
use super::workloads::{ContainerSpec, Workload};
use super::{Found, World};

/// How long a load balancer takes at most to notice a 503, by the scheme of `providerID`: on AWS with the annotations of
/// docs/install-other-clouds.md, else by default.
const PROBE_TIMES: [(&str, Duration); 2] = [("aws", Duration::from_secs(20)), ("gce", Duration::from_secs(24))];
/// The same on Azure, and where the provider is another one: with probes every 5 s, of which the first 503 counts.
const PROBE_TIME: Duration = Duration::from_secs(5);
/// The time for open connections, which docs/guides/autoscalers.md takes.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// The default of `--node-delete-delay-after-taint`.
const DEFAULT_DELETE_DELAY: Duration = Duration::from_secs(5);
/// The default of `--node-deletion-delay-timeout`.
const DEFAULT_DELAY_TIMEOUT: Duration = Duration::from_mins(2);
const MAX_FLAG: Duration = Duration::from_hours(24 * 365);
/// The label of Karpenter's Nodes.
const KARPENTER_LABEL: &str = "karpenter.sh/nodepool";
/// The first version of Karpenter that waits some seconds before it terminates an empty node.
const KARPENTER_WITH_PAUSE: (u32, u32) = (1, 10);

pub(super) fn check(world: &World) -> Found {
    let Ok(workloads) = &world.workloads else {
        return Ok(Vec::new());
    };
    let mut findings = Vec::new();
    for workload in workloads.iter().filter(|workload| workload.runs("cluster-autoscaler")) {
        let found = workload
            .containers
            .iter()
            .flat_map(|container| cluster_autoscaler(container, world));
        findings.extend(found.map(|finding| finding.about(workload.object())));
    }
    findings.extend(karpenter(world, workloads));
    Finding::or_ok(
        findings,
        "the autoscalers that run in the cluster leave load balancers their time",
    )
}

/// How long the load balancers take at most to notice a 503, by the first Node that names its provider.
fn probe_time(world: &World) -> Duration {
    let mut nodes = world.nodes.iter().flatten();
    let scheme = nodes.find_map(|node| Some(node.spec.provider_id.split_once("://")?.0));
    let known = PROBE_TIMES.into_iter().find(|(name, _)| Some(*name) == scheme);
    known.map_or(PROBE_TIME, |(_, time)| time)
}

fn cluster_autoscaler(container: &ContainerSpec, world: &World) -> Vec<Finding> {
    let duration = |flag: &str, default: Duration| {
        let value = container.flag(flag);
        value
            .and_then(|text| parse_duration(text, Duration::ZERO, MAX_FLAG).ok())
            .unwrap_or(default)
    };
    let mut findings = Vec::new();
    let Some(hold) = world.settings.deletion_delay() else {
        let delay = duration("node-delete-delay-after-taint", DEFAULT_DELETE_DELAY);
        let probe_time = probe_time(world);
        let needed = probe_time + DRAIN_TIME;
        if delay < needed {
            let what = format!(
                "it deletes a node {} after its taint, not {} or more: the load balancer takes up to {} to notice a 503, and open connections \
                 need time after it, taken as {}",
                format_duration(delay),
                format_duration(needed),
                format_duration(probe_time),
                format_duration(DRAIN_TIME)
            );
            let do_ = match world.settings.cluster_autoscaler_delay {
                Some(_) => {
                    "delayTermination.clusterAutoscaler has no effect, as the signal cluster-autoscaler does not count, or on Azure \
                     adminState.mode is not Enforce; set --node-delete-delay-after-taint to the time of a probe and that of the longest drain"
                }
                None => {
                    "set delayTermination.clusterAutoscaler, or --node-delete-delay-after-taint to the time of a probe and that of the \
                     longest drain"
                }
            };
            findings.push(Finding::warning(what, do_));
        }
        return findings;
    };
    if container.flag("max-bulk-soft-taint-count") == Some("0") {
        findings.push(Finding::failure(
            "it sets no soft taints (--max-bulk-soft-taint-count=0), so delayTermination.clusterAutoscaler has no effect",
            "remove the flag, or set --node-delete-delay-after-taint instead",
        ));
    }
    let timeout = duration("node-deletion-delay-timeout", DEFAULT_DELAY_TIMEOUT);
    if timeout < hold {
        let what = format!(
            "it ends every delay after {} (--node-deletion-delay-timeout), before delayTermination.clusterAutoscaler of {}",
            format_duration(timeout),
            format_duration(hold)
        );
        findings.push(Finding::warning(
            what,
            "raise the flag, or lower delayTermination.clusterAutoscaler",
        ));
    }
    findings
}

fn karpenter(world: &World, workloads: &[Workload]) -> Option<Finding> {
    let has_label = |labels: &Option<BTreeMap<String, String>>| {
        labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(KARPENTER_LABEL))
    };
    let nodes = world.nodes.as_deref().unwrap_or_default();
    let of_karpenter = nodes.iter().filter(|node| has_label(&node.metadata.labels)).count();
    let controller = workloads
        .iter()
        .find(|workload| workload.containers.iter().any(is_karpenter));
    let is_held = workloads.iter().any(|workload| workload.is_component("hold"));
    if is_held || (of_karpenter == 0 && controller.is_none()) {
        return None;
    }
    let version = controller.and_then(|workload| workload.containers.iter().find_map(karpenter_version));
    let pause = if version.is_some_and(|version| version < KARPENTER_WITH_PAUSE) {
        "at once, before 1.10"
    } else {
        "some 5 s after its first signal"
    };
    let what = format!(
        "Karpenter terminates an empty node {pause}: perhaps before the next probe of a load balancer, and before ARM has applied a write"
    );
    let do_ = "install the DaemonSet headgate-hold (headgate hold), for which Karpenter waits until the node has left its load balancers";
    let finding = Finding::warning(what, do_);
    Some(match controller {
        Some(workload) => finding.about(workload.object()),
        None => finding.about(format!("{of_karpenter} nodes with {KARPENTER_LABEL}")),
    })
}

fn is_karpenter(container: &ContainerSpec) -> bool {
    let name = container.image_name();
    let mut parts = name.rsplit('/');
    let (last, before) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    last == "karpenter" || before == "karpenter" && last == "controller"
}

/// Major and minor version of Karpenter's image.
fn karpenter_version(container: &ContainerSpec) -> Option<(u32, u32)> {
    let mut numbers = container.tag().trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    is_karpenter(container).then_some((major, minor))
}

/// Annotations of others with which Cluster Autoscaler waits.
pub(super) fn check_annotations(world: &World) -> Found {
    let Ok(nodes) = &world.nodes else {
        return Ok(Vec::new());
    };
    let prefix = DELETION_DELAY_ANNOTATION.trim_end_matches("headgate");
    let mut foreign: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for key in node
            .metadata
            .annotations
            .iter()
            .flat_map(|annotations| annotations.keys())
        {
            if key.starts_with(prefix) && key != DELETION_DELAY_ANNOTATION {
                foreign
                    .entry(key)
                    .or_default()
                    .push(node.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }
    let findings = foreign.into_iter().map(|(key, nodes)| {
        let what = format!("the annotation {key} delays Cluster Autoscaler on {}", first_names(&nodes, 3));
        let do_ = "make sure that its writer removes it: headgate does not, and Cluster Autoscaler then waits for its own timeout";
        Finding::warning(what, do_).about(format!("node/{}", nodes.first().copied().unwrap_or_default()))
    });
    Finding::or_ok(findings.collect(), "no annotation of others delays Cluster Autoscaler")
}
