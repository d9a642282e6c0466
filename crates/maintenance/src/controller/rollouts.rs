//! The loop of the evacuator `headgate.dev/rollout`. What it does for one Evacuation is [`decide`]'s to say.
//!
//! Nothing of Deployments is watched. A Deployment is read when a pod that a budget protects has to leave, for all pods of its ReplicaSet
//! together, one ReplicaSet after the other with a pause in between. The restart is one patch that fails if the Deployment has changed
//! since it was read; its record is in the same patch, so the leader that follows knows of it.

mod workload;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use headgate_core::clock::whole_seconds;
use kube::ResourceExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::caches::{CONFIRMATION_INTERVAL, Caches};
use super::evacuation_span::evacuation_span;
use super::writer::{WriteError, Writer};
use crate::api::{Evacuation, NodeMaintenance, RolloutPolicy};
use crate::evacuation::is_about;
use crate::rollout::facts::AutoscalerFacts;
use crate::rollout::progress::{is_active, status_after, was_restarted};
use crate::rollout::record::Record;
use crate::rollout::{
    Decision, NodeFacts, Protection, RolloutReason, Situation, decide, forbidden, protection, refused, restarted,
    unprotected,
};
use crate::snapshot::PodFacts;

use workload::Workload;

/// Between two turns, so that changes in quick succession share one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Between the reads of two workloads: at most 2 workloads, with 3 requests each, in a second.
const READ_PAUSE: Duration = Duration::from_millis(500);
/// Until a Deployment that was just restarted, or has changed since it was read, is read again.
const SHORT_INTERVAL: Duration = Duration::from_secs(2);
/// Between reads while a rollout is waited for, and after a read that failed.
const WAIT_INTERVAL: Duration = Duration::from_secs(10);
/// Between reads where something else is in the way of the restart, which a person has to change.
const IDLE_INTERVAL: Duration = Duration::from_mins(1);
/// Between reads where the right to read is missing, and between looks where only a change of a cache matters.
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// The evacuator.
pub(super) struct RolloutEvacuator {
    caches: Caches,
    writer: Writer,
    /// By the UID of the Evacuation.
    memories: HashMap<String, Memory>,
}

/// What is remembered of an Evacuation: when to look again where what the caches show is the same.
struct Memory {
    shown: Shown,
    look_at: Instant,
}

/// What the caches show of a pod.
#[derive(Clone, PartialEq)]
struct Shown {
    protection: Protection,
    node: NodeFacts,
    replicas_leaving: usize,
}

/// A pod to look at.
struct Look {
    evacuation: Evacuation,
    pod: PodFacts,
    shown: Shown,
}

/// What there is to look at: the pods of each ReplicaSet, and the UIDs of all maintenances.
#[derive(Default)]
struct Due {
    groups: BTreeMap<String, Vec<Look>>,
    maintenances: BTreeSet<String>,
    wake_at: Option<Instant>,
}

impl RolloutEvacuator {
    pub(super) fn new(caches: Caches, writer: Writer) -> Self {
        Self {
            caches,
            writer,
            memories: HashMap::new(),
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        loop {
            let (mut due, mut due_at) = (self.due(), Instant::now());
            let is_idle = due.groups.is_empty();
            let owners: Vec<_> = due.groups.keys().cloned().collect();
            for owner in owners {
                // The looks before may have taken long: a drain that has ended since restarts nothing.
                if due_at.elapsed() >= MIN_INTERVAL {
                    (due, due_at) = (self.due(), Instant::now());
                }
                let looks = due.groups.remove(&owner).unwrap_or_default();
                if self.look(looks, &due.maintenances).await {
                    sleep(READ_PAUSE).await;
                }
            }
            sleep(MIN_INTERVAL).await;
            if !is_idle {
                // Something may have changed meanwhile, and the next time to look is known then.
                continue;
            }
            let wake_at = due.wake_at.unwrap_or_else(|| Instant::now() + RESYNC_INTERVAL);
            let caches = &mut self.caches;
            tokio::select! {
                Ok(()) = caches.evacuations.changed() => {}
                Ok(()) = caches.maintenances.changed() => {}
                Ok(()) = caches.nodes.changed() => {}
                Ok(()) = caches.pods.changed() => {}
                Ok(()) = caches.budgets.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn due(&mut self) -> Due {
        let now = Instant::now();
        if !self.caches.are_confirmed() {
            return Due {
                wake_at: Some(now + CONFIRMATION_INTERVAL),
                ..Due::default()
            };
        }
        let maintenances = self.caches.maintenances.borrow_and_update();
        let nodes = self.caches.nodes.borrow_and_update();
        let evacuations = self.caches.evacuations.borrow_and_update();
        let pods = self.caches.pods.borrow_and_update();
        let budgets = self.caches.budgets.borrow_and_update();
        let (Some(maintenances), Some(nodes), Some(evacuations), Some(budgets)) = (
            maintenances.as_ref(),
            nodes.as_ref(),
            evacuations.as_ref(),
            budgets.as_ref(),
        ) else {
            return Due::default();
        };
        let mut drained = drained_nodes(maintenances.values());
        for (name, node) in &mut drained {
            node.is_cordoned = nodes.get(*name).is_some_and(|node| node.unschedulable);
        }
        let active: Vec<_> = evacuations.values().filter(|one| is_active(one)).collect();
        let uids: BTreeSet<_> = active.iter().filter_map(|one| one.uid()).collect();
        self.memories.retain(|uid, _| uids.contains(uid));
        let undecodable = self.caches.undecodable_maintenances.borrow();
        let mut due = Due {
            maintenances: maintenances.values().filter_map(ResourceExt::uid).collect(),
            ..Due::default()
        };
        due.maintenances
            .extend(undecodable.values().filter_map(|one| one.metadata.uid.clone()));
        if active.is_empty() {
            return due;
        }
        let pods = pods.by_uid();
        let leaving = leaving(pods.values().copied(), &drained);
        for evacuation in active {
            let pod = pods.get(evacuation.spec.pod_ref.uid.as_str()).copied();
            let Some(pod) =
                pod.filter(|pod| is_about(evacuation, pod) && !pod.is_finished && pod.terminating_until.is_none())
            else {
                continue;
            };
            let (Some(node), Some(owner)) = (drained.get(pod.node.as_str()), &pod.owner) else {
                continue;
            };
            let shown = Shown {
                protection: protection(pod, budgets.values()),
                node: node.clone(),
                replicas_leaving: leaving.get(owner.uid.as_str()).copied().unwrap_or(0),
            };
            let memory = self.memories.get(&evacuation.uid().unwrap_or_default());
            if let Some(memory) = memory.filter(|memory| memory.shown == shown && memory.look_at > now) {
                due.wake_at = Some(due.wake_at.map_or(memory.look_at, |at| at.min(memory.look_at)));
                continue;
            }
            due.groups.entry(owner.uid.clone()).or_default().push(Look {
                evacuation: evacuation.clone(),
                pod: pod.clone(),
                shown,
            });
        }
        due
    }

    /// Looks at the pods of one ReplicaSet. Gives whether anything was read.
    async fn look(&mut self, looks: Vec<Look>, maintenances: &BTreeSet<String>) -> bool {
        let mut read = None;
        for look in looks {
            let is_restarted = was_restarted(&look.evacuation);
            let needs_reads = look.shown.protection != Protection::None || is_restarted;
            let span = evacuation_span(self.writer.term.number(), &look.evacuation, Some(&look.pod));
            let worked = span.run(async {
                if !needs_reads {
                    return self.record(&look, &unprotected(false)).await;
                }
                if read.is_none() {
                    read = Some(Workload::read(&self.writer, &look.pod).await);
                }
                match read.as_ref() {
                    Some(Ok(workload)) => self.work_on(&look, workload, maintenances).await,
                    Some(Err(WriteError::Refused(_))) => self.record(&look, &forbidden(is_restarted)).await,
                    Some(Err(error)) => Err(error.clone()),
                    None => Ok(WAIT_INTERVAL),
                }
            });
            let interval = match worked.await {
                Ok(interval) => interval,
                // Another writer was first, of the Evacuation or the Deployment. What follows is of a new read.
                Err(WriteError::Conflict | WriteError::Gone) => SHORT_INTERVAL,
                Err(error) => {
                    span.fail(error.outcome().as_str(), &error);
                    let (namespace, pod) = (&look.pod.namespace, &look.pod.name);
                    tracing::info!(namespace, pod, %error, retry_in = ?WAIT_INTERVAL, "rollout not evaluated");
                    WAIT_INTERVAL
                }
            };
            let memory = Memory {
                shown: look.shown,
                look_at: Instant::now() + interval,
            };
            self.memories.insert(look.evacuation.uid().unwrap_or_default(), memory);
        }
        read.is_some()
    }

    /// Decides for one pod, and does that. Gives the time until the next look.
    async fn work_on(
        &self,
        look: &Look,
        workload: &Workload,
        maintenances: &BTreeSet<String>,
    ) -> Result<Duration, WriteError> {
        let situation = Situation {
            pod: &look.pod,
            protection: look.shown.protection,
            node: &look.shown.node,
            replica_set: workload.replica_set.as_ref(),
            deployment: workload.deployment.as_ref(),
            autoscalers: &[],
            replicas_leaving: look.shown.replicas_leaving,
            successor_problem: None,
            was_restarted: was_restarted(&look.evacuation),
            maintenances,
        };
        // What few decisions depend on is read for these alone.
        let decision = match decide(&situation) {
            Decision::Restart(_) => {
                let autoscalers: Vec<AutoscalerFacts> = match workload.autoscalers(&self.writer).await {
                    Err(WriteError::Refused(_)) => return self.record(look, &forbidden(false)).await,
                    answer => answer?,
                };
                decide(&Situation {
                    autoscalers: &autoscalers,
                    ..situation
                })
            }
            Decision::Wait(why)
                if [RolloutReason::InProgress, RolloutReason::ProgressDeadlineExceeded].contains(&why.reason) =>
            {
                let problem = workload.successor_problem(&self.writer).await?;
                decide(&Situation {
                    successor_problem: problem.as_deref(),
                    ..situation
                })
            }
            other => other,
        };
        match &decision {
            Decision::Restart(record) => self.restart(look, workload, record).await,
            _ => self.record(look, &decision).await,
        }
    }

    async fn restart(&self, look: &Look, workload: &Workload, record: &Record) -> Result<Duration, WriteError> {
        let now = whole_seconds(self.writer.clock.now().wall);
        match workload.restart(&self.writer, record, now).await {
            Ok(()) => {}
            Err(WriteError::Refused(why)) => return self.record(look, &refused(&why)).await,
            Err(error) => return Err(error),
        }
        let Some(deployment) = &workload.deployment else {
            return Ok(SHORT_INTERVAL);
        };
        let (namespace, pod, on) = (&look.pod.namespace, &look.pod.name, &look.pod.node);
        tracing::info!(
            namespace,
            deployment = deployment.name,
            pod,
            node = on,
            "rollout restarted"
        );
        let note =
            format!("Restarted the rollout, so that a replacement of pod {pod} starts before it leaves node {on}");
        self.writer
            .events
            .rollout_restarted(namespace, &deployment.name, &deployment.uid, &note);
        self.record(look, &restarted(deployment)).await?;
        Ok(SHORT_INTERVAL)
    }

    /// Writes a decision that restarts nothing to the Evacuation, if it is new there.
    async fn record(&self, look: &Look, decision: &Decision) -> Result<Duration, WriteError> {
        let now = whole_seconds(self.writer.clock.now().wall);
        if let Some(status) = status_after(&look.evacuation, decision, now) {
            self.writer.write_evacuation_status(&look.evacuation, status).await?;
        }
        Ok(match decision {
            Decision::Restart(_) => SHORT_INTERVAL,
            Decision::Wait(_) => WAIT_INTERVAL,
            Decision::NotOurs(why) if why.reason == RolloutReason::Forbidden => RESYNC_INTERVAL,
            Decision::NotOurs(_) => IDLE_INTERVAL,
        })
    }
}

/// The nodes that are drained, by which maintenances.
fn drained_nodes<'a>(maintenances: impl Iterator<Item = &'a NodeMaintenance>) -> BTreeMap<&'a str, NodeFacts> {
    let mut nodes: BTreeMap<&str, NodeFacts> = BTreeMap::new();
    for maintenance in maintenances.filter(|one| one.is_draining()) {
        for status in maintenance.status.iter().flat_map(|status| &status.node_statuses) {
            let node = nodes.entry(status.node_ref.name.as_str()).or_default();
            node.drained_by.extend(maintenance.uid());
            node.is_allowed |= maintenance.spec.evacuation.rollout == RolloutPolicy::Allow;
        }
    }
    nodes
}

/// How many pods of each owner, by its UID, are on cordoned nodes that are drained.
fn leaving<'a>(
    pods: impl Iterator<Item = &'a PodFacts>,
    drained: &BTreeMap<&str, NodeFacts>,
) -> HashMap<&'a str, usize> {
    let mut leaving = HashMap::new();
    for pod in pods.filter(|pod| !pod.is_finished && pod.terminating_until.is_none()) {
        let node = drained.get(pod.node.as_str());
        if let (true, Some(owner)) = (node.is_some_and(|node| node.is_cordoned), &pod.owner) {
            *leaving.entry(owner.uid.as_str()).or_default() += 1;
        }
    }
    leaving
}
