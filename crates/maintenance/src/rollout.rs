//! The evacuator `headgate.dev/rollout`: a Deployment starts a replacement elsewhere before a pod leaves that a
//! PodDisruptionBudget protects because it needs all replicas (kubernetes#66811).
//!
//! [`decide`] is one pure function from what is known of the pod, its ReplicaSet and its Deployment to what is to be done.
//! Invariants: a rollout is restarted once at most for a Deployment and a maintenance, and never while another one or a change by a
//! HorizontalPodAutoscaler is in progress. The record of a restart is in the pod template that starts it ([`record`]), so that the
//! one is never without the other, whenever a leader ends. What the Evacuation then shows is [`progress`]'s to say.

pub mod facts;
pub mod progress;
pub mod record;

use std::collections::BTreeSet;

use headgate_core::telemetry::words;

use crate::api::Evacuator;
use crate::api::names::{ROLLOUT_ANNOTATION, ROLLOUT_EVACUATOR, ROLLOUT_PRIORITY};
use crate::snapshot::{BudgetFacts, PodFacts};

use facts::{AutoscalerFacts, DeploymentFacts, ReplicaSetFacts, Rollout};
use record::Record;

/// The schema of an Evacuation has no room for more evacuators.
const MAX_EVACUATORS: usize = 100;

/// What is to be done for a pod whose Evacuation names the evacuator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Restart the rollout of the Deployment, with this record in its pod template.
    Restart(Record),
    /// The pod leaves with a rollout, or may do so later: the Eviction API is not called.
    Wait(Explanation),
    /// The evacuator can do nothing for the pod, which is left to the Eviction API.
    NotOurs(Explanation),
}

impl Decision {
    fn wait(reason: RolloutReason, is_restarted: bool, message: impl Into<String>) -> Self {
        Self::Wait(Explanation {
            reason,
            message: message.into(),
            is_restarted,
        })
    }

    fn not_ours(reason: RolloutReason, is_restarted: bool, message: impl Into<String>) -> Self {
        Self::NotOurs(Explanation {
            reason,
            message: message.into(),
            is_restarted,
        })
    }
}

/// Why nothing is restarted now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    /// The reason, for machines.
    pub reason: RolloutReason,
    /// The reason in words, with what to do.
    pub message: String,
    /// Whether the rollout was restarted for a maintenance of the pod's node.
    pub is_restarted: bool,
}

words! {
    /// Why a rollout is not restarted, or what has become of it.
    pub enum RolloutReason {
        /// No budget keeps the pod, or it is not Ready: the Eviction API decides.
        NotProtected = "NotProtected",
        /// No Deployment owns the pod.
        NoDeployment = "NoDeployment",
        /// Neither the maintenance nor the Deployment allows it.
        NotAllowed = "NotAllowed",
        /// headgate lacks the right to read or restart Deployments.
        Forbidden = "Forbidden",
        /// The strategy of the Deployment ends pods before it starts others.
        CannotSurge = "CannotSurge",
        /// Not all replicas are on nodes under maintenance.
        ReplicasElsewhere = "ReplicasElsewhere",
        /// It was restarted for this maintenance, and a new pod has to leave again.
        AlreadyRestarted = "AlreadyRestarted",
        /// The Deployment is paused.
        Paused = "Paused",
        /// A HorizontalPodAutoscaler changes the number of replicas.
        Scaling = "Scaling",
        /// The successor could start on the node that the pod has to leave.
        NotCordoned = "NotCordoned",
        /// A rollout is in progress.
        InProgress = "InProgress",
        /// A rollout made no progress within the Deployment's deadline.
        ProgressDeadlineExceeded = "ProgressDeadlineExceeded",
        /// The successors are available, and the pod is about to end.
        Leaving = "Leaving",
    }
}

/// What is known of the node of a pod and of its maintenances.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeFacts {
    /// The UIDs of the maintenances that drain the node.
    pub drained_by: BTreeSet<String>,
    /// Whether one of them allows the restart of any Deployment.
    pub is_allowed: bool,
    /// Whether the node takes no new pods.
    pub is_cordoned: bool,
}

/// What the budgets of a pod say about an eviction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protection {
    /// None is known to refuse it; the Eviction API may let a pod go that is not Ready.
    None,
    /// One allows no disruption now, and will when others are healthy. A budget with a number counts the successors that a rollout
    /// has started, so that it no longer needs all.
    NoRoom,
    /// One needs all pods that it is about.
    NeedsAll,
}

/// All that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The pod that has to leave.
    pub pod: &'a PodFacts,
    /// What its budgets say.
    pub protection: Protection,
    /// Its node.
    pub node: &'a NodeFacts,
    /// The ReplicaSet of its owner reference, or `None` if that is gone.
    pub replica_set: Option<&'a ReplicaSetFacts>,
    /// The Deployment of the ReplicaSet's owner reference, or `None` if that is gone.
    pub deployment: Option<&'a DeploymentFacts>,
    /// The autoscalers of the Deployment.
    pub autoscalers: &'a [AutoscalerFacts],
    /// How many pods of the ReplicaSet are on cordoned nodes that are drained, this one included.
    pub replicas_leaving: usize,
    /// Why a pod that the rollout started is not Ready, in words.
    pub successor_problem: Option<&'a str>,
    /// Whether the Evacuation says that the rollout was restarted for it.
    pub was_restarted: bool,
    /// The UIDs of all maintenances that exist; the records of others are dropped.
    pub maintenances: &'a BTreeSet<String>,
}

/// The evacuator for a pod that needs it, if the Evacuation has room for it beside so many others.
pub fn evacuator(pod: &PodFacts, budgets: &[BudgetFacts], others: usize) -> Option<Evacuator> {
    let needs_all = protecting(pod, budgets).is_some_and(|budget| budget.needs_all);
    let is_owned = pod.owner.as_ref().is_some_and(|owner| owner.is_apps("ReplicaSet"));
    (is_owned && others < MAX_EVACUATORS && needs_all).then(|| Evacuator {
        evacuator_class: ROLLOUT_EVACUATOR.to_owned(),
        priority: ROLLOUT_PRIORITY,
        role: None,
    })
}

/// What the budgets of a pod say.
pub fn protection<'a>(pod: &PodFacts, budgets: impl IntoIterator<Item = &'a BudgetFacts>) -> Protection {
    match protecting(pod, budgets) {
        Some(budget) if pod.is_ready && budget.needs_all => Protection::NeedsAll,
        Some(_) if pod.is_ready => Protection::NoRoom,
        _ => Protection::None,
    }
}

/// The one budget of the pod, if it allows no disruption. A pod that is not started yet has it, too: it may be Ready later.
fn protecting<'a>(pod: &PodFacts, budgets: impl IntoIterator<Item = &'a BudgetFacts>) -> Option<&'a BudgetFacts> {
    let mut about = budgets.into_iter().filter(|budget| budget.selects(pod));
    let only = about.next().filter(|_| about.next().is_none())?;
    (only.disruptions_allowed <= 0).then_some(only)
}

/// What is to be done for a pod now.
pub fn decide(situation: &Situation<'_>) -> Decision {
    let is_restarted = situation.was_restarted;
    let leaving = |kind, name: &str| {
        let message = format!("waits until Kubernetes removes the pod: its {kind} {name} is gone");
        Decision::wait(RolloutReason::Leaving, is_restarted, message)
    };
    let owner = situation.pod.owner.as_ref().filter(|owner| owner.is_apps("ReplicaSet"));
    let Some(owner) = owner else {
        return Decision::not_ours(RolloutReason::NoDeployment, is_restarted, advice(situation.pod));
    };
    let Some(replica_set) = situation.replica_set.filter(|one| one.uid == owner.uid) else {
        return leaving("ReplicaSet", &owner.name);
    };
    let Some(of) = replica_set.owner.as_ref().filter(|owner| owner.is_apps("Deployment")) else {
        let message = without_deployment(replica_set);
        return Decision::not_ours(RolloutReason::NoDeployment, is_restarted, message);
    };
    let deployment = situation.deployment.filter(|one| one.uid == of.uid && !one.is_deleted);
    let Some(deployment) = deployment else {
        return leaving("Deployment", &of.name);
    };
    let drained_by = &situation.node.drained_by;
    if situation.was_restarted || deployment.record.has_any(drained_by) {
        return after_restart(situation, replica_set, deployment);
    }
    before_restart(situation, deployment)
        .unwrap_or_else(|| Decision::Restart(deployment.record.with(drained_by, situation.maintenances)))
}

/// What becomes of a pod whose Deployment was restarted for its maintenance.
fn after_restart(situation: &Situation<'_>, replica_set: &ReplicaSetFacts, deployment: &DeploymentFacts) -> Decision {
    let name = &deployment.name;
    match deployment.rollout() {
        Rollout::InProgress => {
            let message = rolling(deployment, situation.successor_problem);
            Decision::wait(RolloutReason::InProgress, true, message)
        }
        // A budget that has room again lets the pod go all the same.
        Rollout::Failed(_) if situation.protection == Protection::None => unprotected(true),
        Rollout::Failed(why) => {
            let message = failed(deployment, &why, situation.successor_problem);
            Decision::wait(RolloutReason::ProgressDeadlineExceeded, true, message)
        }
        Rollout::Complete => {
            let drained_by = &situation.node.drained_by;
            let is_older = deployment.record.has_any(drained_by) && !replica_set.record.has_any(drained_by);
            if is_older {
                let message = format!("waits until Deployment {name} ends the pod: its successors are available");
                Decision::wait(RolloutReason::Leaving, true, message)
            } else if situation.protection == Protection::None {
                unprotected(true)
            } else {
                let message = format!(
                    "Deployment {name} was already restarted for this maintenance, and has a replica on this node again: \
                     run kubectl rollout restart deployment/{name}"
                );
                Decision::not_ours(RolloutReason::AlreadyRestarted, true, message)
            }
        }
    }
}

/// What keeps a rollout from being restarted, if anything does.
fn before_restart(situation: &Situation<'_>, deployment: &DeploymentFacts) -> Option<Decision> {
    let wait = |reason, message| Some(Decision::wait(reason, false, message));
    let not_ours = |reason, message| Some(Decision::not_ours(reason, false, message));
    let name = &deployment.name;
    if situation.protection != Protection::NeedsAll {
        return Some(unprotected(false));
    }
    if !situation.node.is_allowed && !deployment.is_allowed {
        let message = format!(
            "to have Deployment {name} start a replacement first, annotate it with {ROLLOUT_ANNOTATION}: Allow, or set \
             spec.evacuation.rollout of the maintenance to Allow"
        );
        return not_ours(RolloutReason::NotAllowed, message);
    }
    if let Err(why) = &deployment.can_surge {
        let message = format!("Deployment {name} cannot start a replacement first: {why}");
        return not_ours(RolloutReason::CannotSurge, message);
    }
    let (leaving, replicas) = (situation.replicas_leaving, deployment.replicas);
    if replicas > 1 && i64::try_from(leaving).unwrap_or(i64::MAX) < i64::from(replicas) {
        let message = format!(
            "{leaving} of {replicas} replicas of Deployment {name} are on nodes under maintenance, and its rollout would replace \
             all of them: add a replica, or let the budget allow a disruption"
        );
        return not_ours(RolloutReason::ReplicasElsewhere, message);
    }
    if deployment.is_paused {
        let message = format!("Deployment {name} is paused: run kubectl rollout resume deployment/{name}");
        return wait(RolloutReason::Paused, message);
    }
    match deployment.rollout() {
        Rollout::Complete => {}
        Rollout::InProgress => {
            let message = rolling(deployment, situation.successor_problem);
            return wait(RolloutReason::InProgress, message);
        }
        Rollout::Failed(why) => {
            let message = failed(deployment, &why, situation.successor_problem);
            return wait(RolloutReason::ProgressDeadlineExceeded, message);
        }
    }
    if let Some(scaling) = situation.autoscalers.iter().find(|one| one.is_scaling()) {
        let message = format!(
            "waits for HorizontalPodAutoscaler {}, which changes the replicas from {} to {}",
            scaling.name, scaling.current, scaling.desired
        );
        return wait(RolloutReason::Scaling, message);
    }
    if !situation.node.is_cordoned {
        let message = format!("waits for the cordon of node {}", situation.pod.node);
        return wait(RolloutReason::NotCordoned, message);
    }
    None
}

/// What is to be shown for a pod after the restart for it.
pub fn restarted(deployment: &DeploymentFacts) -> Decision {
    let name = &deployment.name;
    let message = format!("waits for the rollout of Deployment {name}, which was restarted");
    Decision::wait(RolloutReason::InProgress, true, message)
}

/// The decision for a pod that no budget protects, which needs no reads.
pub(crate) fn unprotected(is_restarted: bool) -> Decision {
    let message = "no PodDisruptionBudget needs all replicas now, so the Eviction API decides";
    Decision::not_ours(RolloutReason::NotProtected, is_restarted, message)
}

/// The decision where headgate may not read Deployments.
pub fn forbidden(is_restarted: bool) -> Decision {
    let message = "to have its Deployment start a replacement first, headgate needs the rights that the chart value maintenance.rollout gives it";
    Decision::not_ours(RolloutReason::Forbidden, is_restarted, message)
}

/// The decision where the API server, or its admission, refused the restart.
pub fn refused(why: &str) -> Decision {
    let message = format!("the API server refused to restart the rollout: {why}");
    Decision::not_ours(RolloutReason::Forbidden, false, message)
}

fn rolling(deployment: &DeploymentFacts, problem: Option<&str>) -> String {
    let DeploymentFacts {
        name,
        replicas,
        updated,
        available,
        ..
    } = deployment;
    let problem = problem.map_or_else(String::new, |problem| format!("; {problem}"));
    let paused = if deployment.is_paused {
        format!("; it is paused: run kubectl rollout resume deployment/{name}")
    } else {
        String::new()
    };
    format!(
        "waits for the rollout of Deployment {name}: {updated} of {replicas} replicas updated, {available} available{paused}{problem}"
    )
}

/// The pod's problem comes first: it is the cause, and a blocker's message is cut at its end.
fn failed(deployment: &DeploymentFacts, why: &str, problem: Option<&str>) -> String {
    let problem = problem.map_or_else(String::new, |problem| format!("{problem}; "));
    format!(
        "the rollout of Deployment {} does not succeed: {problem}{why}",
        deployment.name
    )
}

/// What to do about a ReplicaSet without a Deployment.
fn without_deployment(replica_set: &ReplicaSetFacts) -> String {
    match &replica_set.owner {
        Some(owner) => cannot_replace(&owner.kind, &owner.name),
        None => cannot_replace("ReplicaSet", &replica_set.name),
    }
}

fn cannot_replace(kind: &str, name: &str) -> String {
    format!(
        "headgate cannot have {kind} {name} start a replacement first: add a replica, or let the budget allow a disruption"
    )
}

/// What to do about a pod that a budget needs and that no Deployment replaces.
pub fn advice(pod: &PodFacts) -> String {
    match &pod.owner {
        Some(owner) if owner.is_apps("StatefulSet") => format!(
            "StatefulSet {} ends a pod before it starts the next one: add a replica, or let the budget allow a disruption",
            owner.name
        ),
        Some(owner) => cannot_replace(&owner.kind, &owner.name),
        None => "nothing replaces the pod: let the budget allow a disruption, or delete the pod".to_owned(),
    }
}

#[cfg(test)]
mod tests;
