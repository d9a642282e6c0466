//! What a decision reads of ReplicaSets, Deployments, autoscalers and the pods that a rollout starts.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentSpec, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::names::ROLLOUT_ANNOTATION;
use crate::snapshot::{Owner, controlling_owner};

use super::record::Record;

/// Reasons of a waiting container that every start has.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Bytes of a text of others that a message quotes.
const MAX_QUOTE: usize = 300;

/// A ReplicaSet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReplicaSetFacts {
    /// The `metadata.name`.
    pub name: String,
    /// Its UID, which the owner references of its pods have.
    pub uid: String,
    /// What controls it.
    pub owner: Option<Owner>,
    /// For which maintenances its Deployment had been restarted when it was made.
    pub record: Record,
}

impl From<&ReplicaSet> for ReplicaSetFacts {
    fn from(object: &ReplicaSet) -> Self {
        let template = object.spec.as_ref().and_then(|spec| spec.template.as_ref());
        let metadata = template.and_then(|template| template.metadata.as_ref());
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            owner: controlling_owner(&object.metadata),
            record: Record::read(metadata.and_then(|metadata| metadata.annotations.as_ref())),
        }
    }
}

/// A Deployment.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object, and any two may be set"
)]
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeploymentFacts {
    /// The `metadata.name`.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that a restart must find.
    pub resource_version: Option<String>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
    /// Whether it has the annotation `headgate.dev/rollout: Allow`.
    pub is_allowed: bool,
    /// Whether its rollouts are paused.
    pub is_paused: bool,
    /// Whether a rollout starts a replacement before it ends a pod, or why not.
    pub can_surge: Result<(), String>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// Whether its controller has seen the spec.
    pub is_observed: bool,
    /// Replicas of all ReplicaSets.
    pub existing: i32,
    /// Replicas with the present template.
    pub updated: i32,
    /// Replicas that are available, of any template.
    pub available: i32,
    /// The message of a condition that says why the rollout does not succeed.
    pub failure: Option<String>,
    /// For which maintenances it was restarted.
    pub record: Record,
}

/// How far the rollout of a Deployment is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Rollout {
    /// Every replica has the present template and is available.
    Complete,
    /// It goes on, or its controller has not begun.
    InProgress,
    /// It goes on, and made no progress within its deadline. Why, in words.
    Failed(String),
}

impl DeploymentFacts {
    /// How far its rollout is, as `kubectl rollout status` counts. Replicas that a change of their number adds or removes count, too.
    pub fn rollout(&self) -> Rollout {
        let has_left = self.existing <= self.updated.min(self.replicas);
        let is_complete = has_left && self.updated >= self.replicas && self.available >= self.replicas;
        match &self.failure {
            _ if !self.is_observed => Rollout::InProgress,
            _ if is_complete => Rollout::Complete,
            Some(why) => Rollout::Failed(why.clone()),
            None => Rollout::InProgress,
        }
    }
}

impl From<&Deployment> for DeploymentFacts {
    fn from(object: &Deployment) -> Self {
        let metadata = &object.metadata;
        let (spec, status) = (object.spec.as_ref(), object.status.clone().unwrap_or_default());
        let annotations = metadata.annotations.as_ref();
        let allows = annotations.and_then(|annotations| annotations.get(ROLLOUT_ANNOTATION));
        let template = spec.and_then(|spec| spec.template.metadata.as_ref());
        let conditions = status.conditions.iter().flatten();
        let failures: Vec<_> = conditions.filter_map(failure).collect();
        let replicas = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone(),
            is_deleted: metadata.deletion_timestamp.is_some(),
            is_allowed: allows.is_some_and(|value| value == "Allow"),
            is_paused: spec.and_then(|spec| spec.paused).unwrap_or(false),
            can_surge: spec.map_or(Ok(()), |spec| can_surge(spec, replicas)),
            replicas,
            is_observed: status.observed_generation >= metadata.generation,
            existing: status.replicas.unwrap_or(0),
            updated: status.updated_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
            failure: (!failures.is_empty()).then(|| failures.join("; ")),
            record: Record::read(template.and_then(|template| template.annotations.as_ref())),
        }
    }
}

/// Why a rollout does not succeed, if a condition of the Deployment says so.
fn failure(condition: &DeploymentCondition) -> Option<String> {
    let is_failure = match condition.type_.as_str() {
        "Progressing" => condition.status == "False",
        "ReplicaFailure" => condition.status == "True",
        _ => false,
    };
    is_failure.then(|| {
        let reason = condition.reason.as_deref().unwrap_or(&condition.type_);
        match condition.message.as_deref() {
            Some(message) => format!("{reason}: {}", quoted(message)),
            None => reason.to_owned(),
        }
    })
}

/// Whether a rollout starts a replacement before it ends a pod. Percentages are rounded as the Deployment controller does: maxSurge
/// up, maxUnavailable down, and 1 unavailable where both are 0.
fn can_surge(spec: &DeploymentSpec, replicas: i32) -> Result<(), String> {
    let strategy = spec.strategy.as_ref();
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    if let Some(other) = kind.filter(|kind| *kind != "RollingUpdate") {
        return Err(format!("its strategy is {other}"));
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    if share(surge, replicas, true) == 0 {
        return Err("its maxSurge is 0".to_owned());
    }
    match share(unavailable, replicas, false) {
        0 => Ok(()),
        most => Err(format!(
            "its maxUnavailable lets {most} of {replicas} replicas end before their successors are ready"
        )),
    }
}

/// A number or a percentage of the replicas; 25% where it is unset.
fn share(value: Option<&IntOrString>, replicas: i32, rounds_up: bool) -> i64 {
    let percent = match value {
        Some(IntOrString::Int(number)) => return i64::from(*number),
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        None => 25,
    };
    let hundredths = i64::from(replicas) * percent;
    if rounds_up {
        hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) > 0)
    } else {
        hundredths.div_euclid(100)
    }
}

/// A HorizontalPodAutoscaler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AutoscalerFacts {
    /// The `metadata.name`.
    pub name: String,
    /// Replicas that it observed last.
    pub current: i32,
    /// Replicas that it wants.
    pub desired: i32,
}

impl AutoscalerFacts {
    /// The facts of an autoscaler of this Deployment.
    pub fn of_deployment(object: &HorizontalPodAutoscaler, deployment: &str) -> Option<Self> {
        let target = &object.spec.as_ref()?.scale_target_ref;
        let is_it = target.kind == "Deployment" && target.name == deployment;
        let status = object.status.clone().unwrap_or_default();
        is_it.then(|| Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            current: status.current_replicas.unwrap_or(0),
            desired: status.desired_replicas,
        })
    }

    /// Whether it changes the replicas. One that is switched off, or has no metrics yet, desires none.
    pub(crate) fn is_scaling(&self) -> bool {
        self.desired > 0 && self.desired != self.current
    }
}

/// Why a pod that is not of the ReplicaSet with this UID is not Ready, in words, if the pod says so.
pub fn successor_problem(pod: &Pod, replica_set: &str) -> Option<String> {
    let owner = controlling_owner(&pod.metadata)?;
    if owner.uid == replica_set || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    let waiting = containers.flatten().find_map(waiting);
    let unscheduled = || {
        let mut conditions = status.conditions.iter().flatten();
        let condition = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
        let message = condition.message.as_deref().unwrap_or_default();
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        Some(format!("{reason}: {}", quoted(message)))
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Some(format!("pod {name}: {}", waiting.or_else(unscheduled)?))
}

fn waiting(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
    let message = waiting.message.as_deref().map(quoted);
    let message = message.map_or_else(String::new, |message| format!(": {message}"));
    Some(format!("container {}: {reason}{message}", container.name))
}

fn quoted(text: &str) -> String {
    text.chars().take(MAX_QUOTE).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(changes: &Value) -> DeploymentFacts {
        let mut object = json!({"metadata": {"name": "web", "uid": "d", "resourceVersion": "7", "generation": 2},
            "spec": {"replicas": 1, "selector": {}, "template": {"metadata": {}}},
            "status": {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}});
        json_patch::merge(&mut object, changes);
        DeploymentFacts::from(&serde_json::from_value::<Deployment>(object).unwrap())
    }

    #[test]
    fn a_rollout_is_complete_as_kubectl_counts() {
        let timed_out = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
            "message": "ReplicaSet \"web-2\" has timed out progressing."}]);
        let refused = |status: &str| {
            json!([{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "message": "progressing"},
                {"type": "ReplicaFailure", "status": status, "reason": "FailedCreate", "message": "exceeded quota"}])
        };
        let [refused_now, refused_before] = ["True", "False"].map(refused);
        let failed = |why: &str| Rollout::Failed(why.to_owned());
        let timeout = failed("ProgressDeadlineExceeded: ReplicaSet \"web-2\" has timed out progressing.");
        let quota = failed("FailedCreate: exceeded quota");
        // The condition is about the rollout before.
        let earlier = json!({"observedGeneration": 1, "replicas": 2, "conditions": timed_out});
        for (status, expected) in [
            (json!({}), Rollout::Complete),
            (json!({"observedGeneration": 1}), Rollout::InProgress),
            (json!({"observedGeneration": null}), Rollout::InProgress),
            (json!({"updatedReplicas": null}), Rollout::InProgress),
            (json!({"replicas": 2}), Rollout::InProgress),
            (json!({"availableReplicas": null}), Rollout::InProgress),
            (json!({"replicas": 2, "conditions": timed_out}), timeout),
            (json!({"replicas": 2, "conditions": refused_now}), quota),
            (
                json!({"replicas": 2, "conditions": refused_before}),
                Rollout::InProgress,
            ),
            (earlier, Rollout::InProgress),
        ] {
            let facts = deployment(&json!({"status": status}));
            assert_eq!(facts.rollout(), expected, "{status}");
        }
        for replicas in [0, 2] {
            let scaled = deployment(&json!({"spec": {"replicas": replicas}}));
            assert_eq!(scaled.rollout(), Rollout::InProgress, "{replicas}");
        }
    }

    #[test]
    fn a_rollout_surges_as_its_strategy_says() {
        let rolling = |surge: Value, unavailable: Value| json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        let of_4 = "its maxUnavailable lets 1 of 4 replicas end before their successors are ready";
        let of_1 = "its maxUnavailable lets 1 of 1 replicas end before their successors are ready";
        for (replicas, strategy, expected) in [
            (1, json!(null), None),
            (1, json!({"type": "RollingUpdate"}), None),
            (1, json!({"type": "Recreate"}), Some("its strategy is Recreate")),
            (1, rolling(json!(1), json!(0)), None),
            (1, rolling(json!(0), json!(1)), Some("its maxSurge is 0")),
            (1, rolling(json!("0%"), json!("25%")), Some("its maxSurge is 0")),
            (1, rolling(json!("25%"), json!("99%")), None),
            (1, rolling(json!("150%"), json!(0)), None),
            (3, rolling(json!("25%"), json!("25%")), None),
            (4, json!(null), Some(of_4)),
            (1, rolling(json!(1), json!(1)), Some(of_1)),
        ] {
            let facts = deployment(&json!({"spec": {"replicas": replicas, "strategy": strategy}}));
            assert_eq!(facts.can_surge.err().as_deref(), expected, "{replicas} {strategy}");
        }
    }

    #[test]
    fn a_deployment_allows_it_by_its_annotation_alone() {
        for (annotations, expected) in [
            (json!(null), false),
            (json!({"headgate.dev/rollout": "Allow"}), true),
            (json!({"headgate.dev/rollout": "allow"}), false),
        ] {
            let facts = deployment(&json!({"metadata": {"annotations": annotations}}));
            assert_eq!(facts.is_allowed, expected, "{annotations}");
        }
    }

    #[test]
    fn an_autoscaler_scales_while_it_wants_another_number() {
        let autoscaler = |kind: &str, name: &str, status: Value| {
            let object = json!({"metadata": {"name": "h"}, "status": status,
                "spec": {"maxReplicas": 9, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name}}});
            let object = serde_json::from_value::<HorizontalPodAutoscaler>(object).unwrap();
            AutoscalerFacts::of_deployment(&object, "web").map(|facts| facts.is_scaling())
        };
        let status = |current: i32, desired: i32| json!({"currentReplicas": current, "desiredReplicas": desired});
        assert_eq!(autoscaler("StatefulSet", "web", status(1, 2)), None);
        assert_eq!(autoscaler("Deployment", "db", status(1, 2)), None);
        assert_eq!(autoscaler("Deployment", "web", status(1, 2)), Some(true));
        assert_eq!(autoscaler("Deployment", "web", status(2, 2)), Some(false));
        assert_eq!(autoscaler("Deployment", "web", status(1, 0)), Some(false));
    }

    #[test]
    fn a_successor_says_why_it_is_not_ready() {
        let pod = |owner: &str, status: Value| -> Pod {
            let owner =
                json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": owner, "controller": true}]);
            serde_json::from_value(json!({"metadata": {"name": "web-2", "ownerReferences": owner}, "status": status}))
                .unwrap()
        };
        let container = |reason: &str, message: Value| {
            json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": message}}})
        };
        let pulls = container("ImagePullBackOff", json!("Back-off pulling image \"none\""));
        let crashes = container("CrashLoopBackOff", json!(null));
        let unscheduled = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available"}]);
        let creating = container("ContainerCreating", json!(null));
        let scheduled = json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
            {"type": "PodScheduled", "status": "True"}]);
        let cannot_pull = "pod web-2: container c: ImagePullBackOff: Back-off pulling image \"none\"";
        let cannot_start = "pod web-2: container c: CrashLoopBackOff";
        let cannot_place = "pod web-2: Unschedulable: 0/3 nodes are available";
        for (status, expected) in [
            (json!({"phase": "Running"}), None),
            (json!({"containerStatuses": [creating]}), None),
            (json!({"containerStatuses": [pulls]}), Some(cannot_pull)),
            (json!({"initContainerStatuses": [crashes]}), Some(cannot_start)),
            (json!({"conditions": scheduled}), None),
            (json!({"conditions": unscheduled}), Some(cannot_place)),
        ] {
            let problem = successor_problem(&pod("new", status.clone()), "old");
            assert_eq!(problem.as_deref(), expected, "{status}");
            assert_eq!(successor_problem(&pod("old", status), "old"), None);
        }
    }
}
