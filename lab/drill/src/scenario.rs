//! Scenarios as timelines: what happens to which node when, as plain data.
//!
//! Times are those measured of cluster-autoscaler 1.36 and Karpenter 1.14 (time 0 is the first signal on the Node), the
//! notice that Azure gives of evictions, and kubelet's order when a Pod ends. Times are of the scenario; the drill's
//! speed shortens them.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

pub use self::signal::Signal;
use crate::drill::Options;
use crate::endpoints::TrafficPolicy;
use crate::strategy::Plan;

mod signal;

/// How nodes go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// An autoscaler removes an empty node, through which connections to the Pods of others pass; also called empty-node.
    #[value(alias = "empty-node")]
    ScaleDown,
    /// A node is taken out for maintenance: signal, drain time, eviction of its Pod, power off.
    Maintenance,
    /// As `maintenance`, for a Service with `externalTrafficPolicy: Local`, and without Azure.
    Local,
    /// Azure evicts a spot machine after its notice; in `node-maintenance` it hosts a Pod.
    Spot,
    /// A `DaemonSet` is updated with `maxUnavailable: 1, maxSurge: 0`.
    RollingUpdate,
    /// As `scale-down`, and meanwhile the API server is away and all agents restart.
    ApiOutage,
    /// An autoscaler removes half of the nodes at once.
    Mass,
}

/// The autoscaler that removes nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Autoscaler {
    /// Its delay is `--node-delete-delay-after-taint`.
    #[default]
    ClusterAutoscaler,
    /// Its delay is that of a Pod which holds the node.
    Karpenter,
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The Node gets a signal.
    Signal(Signal),
    /// Nothing goes on before headgate's controllers have evicted the node's Pod; later steps move by that time.
    AwaitEviction,
    /// Nothing goes on while an annotation of the Node delays its deletion by cluster-autoscaler, at most for its
    /// `--node-deletion-delay-timeout`; later steps move by that time.
    AwaitDeletionDelay,
    /// The Pod gets a deletion timestamp: its endpoint is terminating.
    TerminatePod,
    /// The Pod fails its own health check (`/healthcheck/fail`), while it goes on serving.
    FailHealthCheck,
    /// kubelet has noticed: the endpoint no longer serves.
    FailReadiness,
    /// The Pod's process ends and its connections with it.
    EndPod,
    /// A new Pod's process is ready.
    StartPod,
    /// The machine drops all packets.
    PowerOff,
    /// The API server stops.
    StopApiServer,
    /// The API server starts again.
    StartApiServer,
    /// headgate's agent, or kube-proxy, restarts.
    RestartAgent,
}

impl Action {
    /// Whether it says that a node or Pod goes away.
    pub const fn announces(self) -> bool {
        match self {
            Self::Signal(signal) => signal.is_drain_signal(),
            action => matches!(action, Self::TerminatePod),
        }
    }

    /// Whether it waits for headgate, for as long as that needs: after the soft taint for the agent's annotation.
    pub(crate) const fn is_wait(self) -> bool {
        matches!(
            self,
            Self::AwaitEviction | Self::AwaitDeletionDelay | Self::Signal(Signal::AutoscalerCandidate)
        )
    }
}

/// An action, when, and on which node; for the API server the node is meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Since the first client connection.
    pub at: Duration,
    /// The index of the node, from 0.
    pub node: usize,
    /// The action on the node.
    pub action: Action,
}

/// All steps of one run, in order, and when it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The steps, sorted by time.
    pub steps: Vec<Step>,
    /// The time from the start at which clients stop.
    pub end: Duration,
}

impl Timeline {
    /// Moves what comes after a step, which took longer; but no end of a machine that Azure has announced.
    pub(crate) fn postpone(&mut self, step: usize, by: Duration) {
        let announced = Action::Signal(Signal::SpotNotice);
        let is_announced = self.steps.iter().any(|step| step.action == announced);
        let later = self.steps.iter_mut().skip(step + 1);
        for moved in later.filter(|later| !(is_announced && later.action == Action::PowerOff)) {
            moved.at += by;
        }
        self.sort_after(step);
        self.end += by;
    }

    /// Ends the Pod that terminates after a step with its grace period, as kubelet does.
    pub(crate) fn limit_grace_period(&mut self, step: usize, grace: Duration) {
        let is_told = |later: &&Step| later.action == Action::TerminatePod;
        let told = self.steps.iter().skip(step + 1).find(is_told).copied();
        let mut later = self.steps.iter_mut().skip(step + 1);
        if let (Some(told), Some(ended)) = (told, later.find(|later| later.action == Action::EndPod)) {
            ended.at = ended.at.min(told.at + grace);
        }
        self.sort_after(step);
    }

    fn sort_after(&mut self, step: usize) {
        let later = self.steps.get_mut(step + 1..).unwrap_or_default();
        later.sort_by_key(|step| step.at);
    }

    /// The first step that says that a node or Pod goes away; the first node at the start if there is none.
    pub(crate) fn first_signal(&self) -> Step {
        let start = Step {
            at: Duration::ZERO,
            node: 0,
            action: Action::TerminatePod,
        };
        self.steps
            .iter()
            .find(|step| step.action.announces())
            .copied()
            .unwrap_or(start)
    }
}

/// Before the first signal, so that a run shows the state before.
const LEAD_IN: Duration = Duration::from_secs(5);
/// After the last loss that can be expected.
const TAIL: Duration = Duration::from_secs(5);
/// cluster-autoscaler's own time beyond its delay, for an empty node: 7 to 15 ms measured.
const AUTOSCALER_OVERHEAD: Duration = Duration::from_millis(10);
/// Karpenter, consolidation of an empty node: from taint to `deletionTimestamp`, and to the terminate call.
const KARPENTER_DELETION: Duration = Duration::from_millis(89);
const KARPENTER_TERMINATE: Duration = Duration::from_millis(5145);
/// A machine in maintenance is switched off this long after its Pod has ended.
const POWER_OFF_AFTER_EVICTION: Duration = Duration::from_secs(1);
/// kubelet's probe period that a failing readiness is noticed after, as the post's Envoy has it.
pub(crate) const READINESS_PERIOD: Duration = Duration::from_secs(5);

impl Scenario {
    /// The steps of one run.
    pub fn timeline(self, options: &Options, plan: &Plan) -> Timeline {
        let mut steps = Steps {
            taken: Vec::new(),
            options,
            plan,
        };
        match self {
            Self::ScaleDown => steps.scale_down(LEAD_IN, 0),
            Self::Mass => (0..options.nodes / 2).for_each(|node| steps.scale_down(LEAD_IN, node)),
            Self::Maintenance | Self::Local => steps.maintenance(),
            Self::Spot => steps.spot(),
            Self::RollingUpdate => steps.rolling_update(),
            Self::ApiOutage => steps.api_outage(),
        }
        let mut steps = steps.taken;
        steps.sort_by_key(|step| step.at);
        let last = steps.last().map_or(LEAD_IN, |step| step.at);
        let probe = options.probe();
        let detection = probe.longest_detection_by_threshold() + probe.timeout;
        Timeline {
            steps,
            end: last + detection + TAIL,
        }
    }

    /// Whether the node that goes away hosts no Pod, as an autoscaler chooses it, unless headgate's controllers are to evict
    /// one. It still has its share of new connections, which its kube-proxy forwards to the others.
    pub(crate) const fn removes_empty_nodes(self) -> bool {
        matches!(self, Self::ScaleDown | Self::Mass | Self::Spot | Self::ApiOutage)
    }

    /// The `externalTrafficPolicy` of the Service.
    pub const fn policy(self) -> TrafficPolicy {
        match self {
            Self::RollingUpdate | Self::Local => TrafficPolicy::Local,
            _ => TrafficPolicy::Cluster,
        }
    }

    /// The nodes without a Pod at the start.
    pub fn empty_nodes(self, nodes: usize) -> usize {
        match self {
            Self::Mass => nodes / 2,
            _ if self.removes_empty_nodes() => 1,
            _ => 0,
        }
    }
}

struct Steps<'a> {
    taken: Vec<Step>,
    options: &'a Options,
    plan: &'a Plan,
}

impl Steps<'_> {
    fn add(&mut self, at: Duration, node: usize, action: Action) {
        self.taken.push(Step { at, node, action });
    }

    fn scale_down(&mut self, at: Duration, node: usize) {
        let gone = match self.options.autoscaler {
            Autoscaler::ClusterAutoscaler => {
                if self.plan.holds_deletion {
                    // 10 min before the other taint in a real cluster: time enough to write the annotation.
                    self.add(
                        at.saturating_sub(LEAD_IN),
                        node,
                        Action::Signal(Signal::AutoscalerCandidate),
                    );
                    let drained = at + self.options.delete_delay + AUTOSCALER_OVERHEAD;
                    self.add(drained, node, Action::AwaitDeletionDelay);
                }
                self.add(at, node, Action::Signal(Signal::AutoscalerTaint));
                self.options.delete_delay + AUTOSCALER_OVERHEAD
            }
            Autoscaler::Karpenter => {
                self.add(at, node, Action::Signal(Signal::KarpenterTaint));
                self.add(at + KARPENTER_DELETION, node, Action::Signal(Signal::Deletion));
                self.options.delete_delay.max(KARPENTER_TERMINATE)
            }
        };
        self.add(at + gone, node, Action::PowerOff);
    }

    fn maintenance(&mut self) {
        let evicted = if self.plan.evicts_pod() {
            self.add(LEAD_IN, 0, Action::Signal(Signal::NodeMaintenance));
            self.add(LEAD_IN, 0, Action::AwaitEviction);
            LEAD_IN
        } else {
            self.add(LEAD_IN, 0, Action::Signal(Signal::MaintenanceTaint));
            LEAD_IN + self.options.delete_delay
        };
        let ended = self.end_pod(evicted, 0);
        self.add(ended + POWER_OFF_AFTER_EVICTION, 0, Action::PowerOff);
    }

    fn spot(&mut self) {
        self.add(LEAD_IN, 0, Action::Signal(Signal::SpotNotice));
        if self.plan.evicts_pod() {
            self.add(LEAD_IN, 0, Action::AwaitEviction);
            self.end_pod(LEAD_IN, 0);
        }
        self.add(LEAD_IN + self.options.notice, 0, Action::PowerOff);
    }

    fn rolling_update(&mut self) {
        let mut at = LEAD_IN;
        for node in 0..self.options.nodes {
            at = self.end_pod(at, node) + self.options.restart;
            self.add(at, node, Action::StartPod);
        }
    }

    fn api_outage(&mut self) {
        let second = Duration::from_secs(1);
        self.scale_down(LEAD_IN, 0);
        let stopped = LEAD_IN + self.options.delete_delay.mul_f64(0.2);
        self.add(stopped, 0, Action::StopApiServer);
        for node in 0..self.options.nodes {
            self.add(stopped + second, node, Action::RestartAgent);
        }
        self.add(
            LEAD_IN + self.options.delete_delay + second * 2,
            0,
            Action::StartApiServer,
        );
    }

    /// A Pod terminates; gives when its process ends.
    fn end_pod(&mut self, at: Duration, node: usize) -> Duration {
        let shutdown = self.plan.shutdown;
        self.add(at, node, Action::TerminatePod);
        let ends = at + shutdown.serving();
        if shutdown.fails_health_check {
            self.add(at, node, Action::FailHealthCheck);
            if at + READINESS_PERIOD < ends {
                self.add(at + READINESS_PERIOD, node, Action::FailReadiness);
            }
        }
        self.add(ends, node, Action::EndPod);
        ends
    }
}

#[cfg(test)]
mod tests;
