//! Which Evacuations exist: one for each targeted pod, and none of ours for any other (NM-12 to NM-14).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::names::{
    CONTROLLER_PRIORITY, CONTROLLER_ROLE, DAEMON_SET_EVACUATOR, INSTIGATOR_FINALIZER, PROGRESS_DEADLINE_SECONDS,
    PROTECTION_FINALIZER,
};
use crate::api::{CancellationPolicy, Evacuation, EvacuationSpec, Evacuator, PodReference, PodType};
use crate::evacuation::annotations::parse_evacuators;
use crate::rollout;
use crate::snapshot::{BudgetFacts, PodFacts};

use super::action::{Action, EvacuationKey};

/// A pod name in an Evacuation's name is cut after so many characters.
const POD_NAME_PREFIX: usize = 150;

/// The name of a pod's Evacuation.
#[must_use]
pub fn evacuation_name(pod_uid: &str, pod_name: &str) -> String {
    let end = pod_name
        .char_indices()
        .nth(POD_NAME_PREFIX)
        .map_or(pod_name.len(), |(index, _)| index);
    format!("{pod_uid}-{}", &pod_name[..end])
}

/// The key of an Evacuation.
#[must_use]
pub fn key(evacuation: &Evacuation) -> EvacuationKey {
    let metadata = &evacuation.metadata;
    EvacuationKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

/// Whether the NodeMaintenance controller wants the Evacuation.
#[must_use]
pub fn is_ours(evacuation: &Evacuation) -> bool {
    finalizers(evacuation).any(|finalizer| finalizer == INSTIGATOR_FINALIZER)
}

fn finalizers(evacuation: &Evacuation) -> impl Iterator<Item = &str> {
    evacuation.metadata.finalizers.iter().flatten().map(String::as_str)
}

/// The Evacuation of a pod, as the controller creates it. The pod's labels are the Evacuation's.
#[must_use]
pub fn evacuation_of(pod: &PodFacts) -> Evacuation {
    let mut evacuators = parse_evacuators(&pod.evacuators).evacuators;
    let has_controller = evacuators
        .iter()
        .any(|evacuator| evacuator.priority == CONTROLLER_PRIORITY);
    if pod.pod_type == PodType::DaemonSet && !has_controller {
        // The DaemonSet controller does not annotate its pods.
        evacuators.retain(|evacuator| evacuator.evacuator_class != DAEMON_SET_EVACUATOR);
        evacuators.push(Evacuator {
            evacuator_class: DAEMON_SET_EVACUATOR.to_owned(),
            priority: CONTROLLER_PRIORITY,
            role: Some(CONTROLLER_ROLE.to_owned()),
        });
    }
    let spec = EvacuationSpec {
        pod_ref: PodReference {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        evacuators: Some(evacuators),
        progress_deadline_seconds: PROGRESS_DEADLINE_SECONDS,
    };
    Evacuation {
        metadata: ObjectMeta {
            name: Some(evacuation_name(&pod.uid, &pod.name)),
            namespace: Some(pod.namespace.clone()),
            labels: (!pod.labels.is_empty()).then(|| pod.labels.clone()),
            finalizers: Some(vec![INSTIGATOR_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// What a targeted pod needs where the gate of its node is open.
#[must_use]
pub fn request(pod: &PodFacts, existing: Option<&Evacuation>, budgets: &[BudgetFacts]) -> Option<Action> {
    match existing {
        None => {
            let mut evacuation = evacuation_of(pod);
            let evacuators = evacuation.spec.evacuators.get_or_insert_default();
            evacuators.extend(rollout::evacuator(pod, budgets, evacuators.len()));
            Some(Action::CreateEvacuation {
                evacuation: Box::new(evacuation),
            })
        }
        // An object that is being deleted takes no finalizers. It is created again once it is gone.
        Some(existing) if is_ours(existing) || existing.metadata.deletion_timestamp.is_some() => None,
        Some(existing) => Some(Action::AddInstigator {
            evacuation: key(existing),
        }),
    }
}

/// How an Evacuation of ours ends that is not wanted any more.
#[must_use]
pub fn cancel(evacuation: &Evacuation) -> Action {
    let is_forbidden = evacuation
        .status
        .as_ref()
        .is_some_and(|status| status.evacuation_cancellation_policy == CancellationPolicy::Forbid);
    let has_foreign_finalizers =
        finalizers(evacuation).any(|finalizer| ![INSTIGATOR_FINALIZER, PROTECTION_FINALIZER].contains(&finalizer));
    let is_deleted = evacuation.metadata.deletion_timestamp.is_some();
    if is_forbidden || has_foreign_finalizers || is_deleted {
        Action::RemoveInstigator {
            evacuation: key(evacuation),
        }
    } else {
        Action::DeleteEvacuation {
            evacuation: key(evacuation),
        }
    }
}

/// The Evacuations by the UID of their pod.
#[must_use]
pub fn by_pod(evacuations: &[Evacuation]) -> BTreeMap<&str, &Evacuation> {
    evacuations
        .iter()
        .map(|evacuation| (evacuation.spec.pod_ref.uid.as_str(), evacuation))
        .collect()
}
