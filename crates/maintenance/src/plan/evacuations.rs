//! Which Evacuations exist: one for each targeted pod, and none of ours for any other (NM-12 to NM-14).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt as _;

use crate::api::names::{INSTIGATOR_FINALIZER, NODE_LABEL, PROGRESS_DEADLINE_SECONDS, is_protection_finalizer};
use crate::api::{CancellationPolicy, Evacuation, EvacuationSpec, PodReference};
use crate::evacuation::annotations::evacuators_of;
use crate::evacuation::is_about;
use crate::rollout;
use crate::snapshot::{BudgetFacts, PodFacts};

use super::action::{Action, EvacuationChange};

/// A pod name in an Evacuation's name is cut after so many characters.
const POD_NAME_PREFIX: usize = 150;
/// The longest value of a label.
const MAX_LABEL_VALUE: usize = 63;

/// The name of a pod's Evacuation. It ends like the name of an object has to, wherever that of the pod is cut.
pub(crate) fn evacuation_name(pod_uid: &str, pod_name: &str) -> String {
    let end = pod_name
        .char_indices()
        .nth(POD_NAME_PREFIX)
        .map_or(pod_name.len(), |(index, _)| index);
    format!("{pod_uid}-{}", pod_name[..end].trim_end_matches(['-', '.']))
}

/// Whether the NodeMaintenance controller wants the Evacuation.
pub fn is_ours(evacuation: &Evacuation) -> bool {
    let mut finalizers = evacuation.finalizers().iter();
    finalizers.any(|finalizer| finalizer == INSTIGATOR_FINALIZER)
}

/// The Evacuation of a pod, as the controller creates it. It is owned by the pod, and has none of its labels: a tool that selects by these
/// would take it for one of its own objects.
pub fn evacuation_of(pod: &PodFacts) -> Evacuation {
    let spec = EvacuationSpec {
        pod_ref: PodReference {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        evacuators: Some(evacuators_of(pod)),
        progress_deadline_seconds: PROGRESS_DEADLINE_SECONDS,
    };
    Evacuation {
        metadata: ObjectMeta {
            name: Some(evacuation_name(&pod.uid, &pod.name)),
            namespace: Some(pod.namespace.clone()),
            labels: (pod.node.len() <= MAX_LABEL_VALUE)
                .then(|| BTreeMap::from([(NODE_LABEL.to_owned(), pod.node.clone())])),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                ..OwnerReference::default()
            }]),
            finalizers: Some(vec![INSTIGATOR_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// What a targeted pod needs where the gate of its node is open.
pub fn request(pod: &PodFacts, existing: Option<&Evacuation>, budgets: &[BudgetFacts]) -> Option<Action> {
    match existing {
        None => {
            let mut evacuation = evacuation_of(pod);
            let evacuators = evacuation.spec.evacuators.get_or_insert_default();
            evacuators.extend(rollout::evacuator(pod, budgets, evacuators.len()));
            Some(change(EvacuationChange::Create, evacuation))
        }
        // An object that is being deleted takes no finalizers. It is created again once it is gone.
        Some(existing) if is_ours(existing) || existing.metadata.deletion_timestamp.is_some() => None,
        Some(existing) => Some(change(EvacuationChange::AddInstigator, existing.clone())),
    }
}

fn change(change: EvacuationChange, evacuation: Evacuation) -> Action {
    Action::ChangeEvacuation {
        change,
        evacuation: Box::new(evacuation),
    }
}

/// Whether an Evacuation is being deleted and makes no pod leave any more: it waits for the finalizers of its instigators only.
pub(super) fn is_ending(evacuation: &Evacuation) -> bool {
    evacuation.metadata.deletion_timestamp.is_some() && !is_forbidden(evacuation)
}

fn is_forbidden(evacuation: &Evacuation) -> bool {
    let status = evacuation.status.as_ref();
    status.is_some_and(|status| status.evacuation_cancellation_policy == CancellationPolicy::Forbid)
}

/// The finalizers that others have to remove.
pub(super) fn foreign_finalizers(evacuation: &Evacuation) -> Vec<&str> {
    let finalizers = evacuation.finalizers().iter().map(String::as_str);
    finalizers
        .filter(|finalizer| *finalizer != INSTIGATOR_FINALIZER && !is_protection_finalizer(finalizer))
        .collect()
}

/// How an Evacuation of ours ends that is not wanted any more.
pub fn cancel(evacuation: &Evacuation) -> Action {
    let is_deleted = evacuation.metadata.deletion_timestamp.is_some();
    let is_kept = is_forbidden(evacuation) || !foreign_finalizers(evacuation).is_empty() || is_deleted;
    let how = if is_kept {
        EvacuationChange::RemoveInstigator
    } else {
        EvacuationChange::Delete
    };
    change(how, evacuation.clone())
}

/// The Evacuations by the UID of their pod, without those that are about no pod but say the UID of one.
pub(crate) fn by_pod<'a>(evacuations: &'a [Evacuation], pods: &[PodFacts]) -> BTreeMap<&'a str, &'a Evacuation> {
    let pods: BTreeMap<&str, &PodFacts> = pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let is_known = |one: &&Evacuation| {
        let pod = pods.get(one.spec.pod_ref.uid.as_str());
        pod.is_none_or(|pod| is_about(one, pod))
    };
    evacuations
        .iter()
        .filter(is_known)
        .map(|evacuation| (evacuation.spec.pod_ref.uid.as_str(), evacuation))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PodType;
    use crate::api::names::{CONTROLLER_PRIORITY, DAEMON_SET_EVACUATOR, EVACUATOR_ANNOTATION_PREFIXES};

    #[test]
    fn a_name_is_cut_to_a_valid_one() {
        let start = "p".repeat(149);
        for (pod, expected) in [
            ("web-0".to_owned(), "u-web-0".to_owned()),
            (format!("{start}qrs"), format!("u-{start}q")),
            (format!("{start}-rs"), format!("u-{start}")),
            (format!("{}.--0", "p".repeat(148)), format!("u-{}", "p".repeat(148))),
        ] {
            assert_eq!(evacuation_name("u", &pod), expected);
        }
    }

    #[test]
    fn a_pod_of_a_daemon_set_has_one_controller() {
        let own = EVACUATOR_ANNOTATION_PREFIXES[0];
        for (registered, expected) in [
            ([].as_slice(), [DAEMON_SET_EVACUATOR].as_slice()),
            (
                &[("first.example", "20000"), (DAEMON_SET_EVACUATOR, "5")],
                &["first.example", DAEMON_SET_EVACUATOR],
            ),
            (&[("app.example", "10000/controller")], &["app.example"]),
        ] {
            let registered = registered.iter();
            let pod = PodFacts {
                pod_type: PodType::DaemonSet,
                evacuators: registered
                    .map(|(class, value)| (format!("{own}{class}"), (*value).to_owned()))
                    .collect(),
                ..PodFacts::default()
            };
            let evacuators = evacuation_of(&pod).spec.evacuators.unwrap();
            let classes: Vec<_> = evacuators.iter().map(|one| one.evacuator_class.as_str()).collect();
            assert_eq!(classes, expected);
            assert_eq!(evacuators.last().unwrap().priority, CONTROLLER_PRIORITY);
        }
    }

    #[test]
    fn an_evacuation_is_its_pods_and_has_none_of_its_labels() {
        let pod = PodFacts {
            name: "web-0".to_owned(),
            uid: "u".to_owned(),
            node: "one".to_owned(),
            labels: BTreeMap::from([("app.kubernetes.io/instance".to_owned(), "shop".to_owned())]),
            ..PodFacts::default()
        };
        let metadata = evacuation_of(&pod).metadata;
        let labels = BTreeMap::from([(NODE_LABEL.to_owned(), "one".to_owned())]);
        assert_eq!(metadata.labels, Some(labels));
        let owners = metadata.owner_references.unwrap();
        assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Pod", "u"));
        assert_eq!((owners[0].controller, owners[0].block_owner_deletion), (None, None));
        let far = PodFacts {
            node: "n".repeat(64),
            ..PodFacts::default()
        };
        assert_eq!(evacuation_of(&far).metadata.labels, None);
    }
}
