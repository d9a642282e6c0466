//! What a plan makes of a Node apart from its cordon (`cordon_edit`): its conditions, and the label that pauses upgrades of AKS. And what
//! is left of a maintenance when headgate is uninstalled. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::node::{CORDON_ANNOTATION, MAINTENANCE_CONDITIONS, UPGRADE_PAUSED_ANNOTATION, UPGRADE_STATUS_LABEL};
use headgate_kubernetes::{Edited, NodeEdit, NodeIntent, Shown};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;
use tokio::time::Instant;

use super::cordon_edit::{give_back_to_autoscalers, is_own};
use crate::plan::action::NodeConditionChange;
use crate::plan::conditions::is_own_condition;
use crate::plan::upgrade_status::PAUSED;

/// How long writes of a Node fail before a status says so: while a webhook restarts, nobody has to do anything.
const FAILING: Duration = Duration::from_secs(10);

/// Writes of a Node that fail one after another.
#[derive(Clone, Debug)]
pub(super) struct RefusedNode {
    since: Instant,
    /// Why the last one failed, once they have failed for [`FAILING`].
    why: Option<String>,
}

/// The Nodes whose writes fail, by name.
pub(super) type RefusedNodes = watch::Sender<BTreeMap<String, RefusedNode>>;

/// Why Nodes could not be written for some time, by name.
pub(super) fn refused_nodes(refused: &BTreeMap<String, RefusedNode>) -> BTreeMap<String, String> {
    let refused = refused.iter();
    refused
        .filter_map(|(node, refused)| Some((node.clone(), refused.why.clone()?)))
        .collect()
}

/// What is due until the cache shows it.
pub(super) fn intent(uid: &str, key: String, edit: impl NodeEdit + 'static) -> NodeIntent {
    NodeIntent {
        uid: Some(uid.to_owned()),
        key,
        shown: Shown::No,
        renew_interval: None,
        edit: Arc::new(edit),
    }
}

/// An edit of this Node whose failures are recorded.
pub(super) struct RecordedEdit<E> {
    pub(super) node: String,
    pub(super) refused: RefusedNodes,
    pub(super) edit: E,
}

impl<E: NodeEdit> NodeEdit for RecordedEdit<E> {
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited {
        self.edit.edit(node, now)
    }

    fn missing(&self) {
        self.edit.missing();
    }

    fn failed(&self, why: &str) {
        let now = Instant::now();
        self.refused.send_if_modified(|refused| {
            let first = RefusedNode { since: now, why: None };
            let known = refused.entry(self.node.clone()).or_insert(first);
            let why = (now >= known.since + FAILING).then(|| why.to_owned());
            let is_changed = known.why != why;
            known.why = why;
            is_changed
        });
    }

    fn written(&self, before: &Node, after: &Node) {
        self.edit.written(before, after);
    }
}

/// Sets or removes the label that keeps a node out of upgrades of AKS, and the annotation that records it.
pub(super) struct UpgradeStatusEdit {
    pub(super) is_paused: bool,
}

impl NodeEdit for UpgradeStatusEdit {
    fn edit(&self, node: &mut Node, _: Timestamp) -> Edited {
        let labels = node.metadata.labels.get_or_insert_default();
        let annotations = node.metadata.annotations.get_or_insert_default();
        let label = labels.get(UPGRADE_STATUS_LABEL).map(String::as_str);
        match (self.is_paused, label) {
            // Another writer was faster than the plan.
            (true, Some(_)) => return Edited::Outdated,
            (true, None) => {
                labels.insert(UPGRADE_STATUS_LABEL.to_owned(), PAUSED.to_owned());
                annotations.insert(UPGRADE_PAUSED_ANNOTATION.to_owned(), "true".to_owned());
            }
            (false, _) => resume_upgrades(node),
        }
        Edited::Done
    }
}

/// Removes the label and the annotation. A label that another writer has changed since stays.
fn resume_upgrades(node: &mut Node) {
    let labels = node.metadata.labels.get_or_insert_default();
    if labels.get(UPGRADE_STATUS_LABEL).is_some_and(|label| label == PAUSED) {
        labels.remove(UPGRADE_STATUS_LABEL);
    }
    node.metadata
        .annotations
        .get_or_insert_default()
        .remove(UPGRADE_PAUSED_ANNOTATION);
}

/// Removes what maintenances have written on a Node. Its cordon stays, and so does a taint that someone set without a maintenance.
pub fn remove_traces(node: &mut Node) {
    let was_maintained = node.metadata.annotations.as_mut().is_some_and(|annotations| {
        give_back_to_autoscalers(annotations);
        annotations.remove(CORDON_ANNOTATION).is_some()
    });
    let annotations = node.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(UPGRADE_PAUSED_ANNOTATION)) {
        resume_upgrades(node);
    }
    if let Some(taints) = node.spec.as_mut().and_then(|spec| spec.taints.as_mut()) {
        taints.retain(|taint| !is_own(taint) || !was_maintained);
    }
    if let Some(conditions) = node.status.as_mut().and_then(|status| status.conditions.as_mut()) {
        conditions.retain(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            !(MAINTENANCE_CONDITIONS.contains(&&*condition.type_) && is_own_condition(message))
        });
    }
}

/// Sets and removes conditions. One that another writer has made `True` stays: it may have done so since the plan was made.
pub(super) struct ConditionsEdit {
    pub(super) set: Vec<NodeConditionChange>,
    pub(super) remove: Vec<String>,
}

impl NodeEdit for ConditionsEdit {
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited {
        let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
        let is_own = |condition: &NodeCondition| is_own_condition(condition.message.as_deref().unwrap_or_default());
        conditions.retain(|condition| !self.remove.contains(&condition.type_) || !is_own(condition));
        for change in &self.set {
            let present = conditions.iter_mut().find(|condition| condition.type_ == change.kind);
            if present
                .as_ref()
                .is_some_and(|present| present.status == "True" && !is_own(present))
            {
                continue;
            }
            let since = present.as_ref().filter(|present| present.status == "True");
            let since = since.and_then(|present| present.last_transition_time.clone());
            let condition = NodeCondition {
                type_: change.kind.to_owned(),
                status: "True".to_owned(),
                reason: Some(change.reason.to_owned()),
                message: Some(change.message.clone()),
                last_heartbeat_time: Some(Time(now)),
                last_transition_time: Some(since.unwrap_or(Time(now))),
            };
            match present {
                Some(present) => *present = condition,
                None => conditions.push(condition),
            }
        }
        Edited::Done
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn typed(node: &Value) -> Node {
        serde_json::from_value(node.clone()).unwrap()
    }

    #[test]
    fn the_label_of_upgrades_is_set_and_given_back() {
        let node = |label: Option<&str>, annotated: bool| {
            let mut node = json!({"metadata": {"name": "one", "labels": {"a": "b"}, "annotations": {"c": "d"}}});
            if let Some(label) = label {
                node["metadata"]["labels"][UPGRADE_STATUS_LABEL] = json!(label);
            }
            if annotated {
                node["metadata"]["annotations"][UPGRADE_PAUSED_ANNOTATION] = json!("true");
            }
            typed(&node)
        };
        let quarantined = || node(Some("Quarantined"), false);
        for (is_paused, before, after, outcome) in [
            (true, node(None, false), node(Some(PAUSED), true), Edited::Done),
            (true, quarantined(), quarantined(), Edited::Outdated),
            (false, node(Some(PAUSED), true), node(None, false), Edited::Done),
            (false, node(Some("Quarantined"), true), quarantined(), Edited::Done),
            (false, node(None, true), node(None, false), Edited::Done),
        ] {
            let mut edited = before.clone();
            let edit = UpgradeStatusEdit { is_paused };
            assert_eq!(edit.edit(&mut edited, Timestamp::UNIX_EPOCH), outcome);
            assert_eq!(edited, after);
        }
    }

    #[test]
    fn conditions_are_replaced_appended_and_removed() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let condition = |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let ours = "NodeMaintenance a";
        let before = json!({"status": {"conditions": [
            condition("MaintenancePlanned", "True", ours), condition("Ready", "True", ""), condition("Drained", "False", ""),
            condition("MaintenanceInProgress", "True", ours)]}});
        let set = ["Drained", "MaintenanceInProgress", "DrainInProgress"].map(|kind| NodeConditionChange {
            kind,
            reason: "AdminRequested",
            message: "NodeMaintenance a".to_owned(),
        });
        let edit = ConditionsEdit {
            set: set.to_vec(),
            remove: vec!["MaintenancePlanned".to_owned()],
        };
        let mut node = typed(&before);
        edit.edit(&mut node, now);
        let conditions = node.status.unwrap().conditions.unwrap();
        let found: Vec<_> = conditions
            .iter()
            .map(|condition| {
                let since = condition.last_transition_time.as_ref().unwrap().0.to_string();
                (condition.type_.as_str(), condition.status.as_str(), since)
            })
            .collect();
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T03:04:05Z");
        let expected = [
            ("Ready", early),
            ("Drained", late),
            ("MaintenanceInProgress", early),
            ("DrainInProgress", late),
        ];
        assert_eq!(found, expected.map(|(kind, since)| (kind, "True", since.to_owned())));

        // Another writer was faster than the plan.
        let conditions = [
            condition("MaintenancePlanned", "True", "by hand"),
            condition("Drained", "True", "by hand"),
        ];
        let mut node = typed(&json!({"status": {"conditions": conditions}}));
        edit.edit(&mut node, now);
        let conditions = node.status.unwrap().conditions.unwrap();
        let stay = |kind: &str| {
            let mut found = conditions.iter().filter(|condition| condition.type_ == kind);
            found.all(|condition| condition.message.as_deref() == Some("by hand"))
        };
        assert!(
            conditions.len() == 4 && stay("MaintenancePlanned") && stay("Drained"),
            "{conditions:?}"
        );
    }
}
