//! What a plan makes of the cordon of a Node, and of its taint and annotations, which come and go with it. Pure but for the reports of what
//! was written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use headgate_core::clock::Clock;
use headgate_core::node::{
    AUTOSCALER_ANNOTATIONS, CORDON_ANNOTATION, MAINTENANCE_TAINT, Node as PlannedNode, SCALE_DOWN_ANNOTATION,
};
use headgate_kubernetes::{Edited, EventKind, NodeEdit};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::json;

use super::events::{MAINTAIN_NODE, MaintenanceEvents};
use crate::plan::action::{Change, NodeChange};
use crate::reverted_cordons::RevertedCordons;

/// Another actor keeps reverting a cordon.
const CORDON_REVERTED: EventKind = EventKind::warning("CordonReverted", MAINTAIN_NODE);
/// A taint is of a maintenance that no longer exists.
const TAINT_ORPHANED: EventKind = EventKind::warning("MaintenanceTaintOrphaned", MAINTAIN_NODE);

/// A change of cordon, taint and annotations, which a plan made from the Node as it was then.
pub(super) struct IsolationEdit {
    pub(super) planned: Arc<PlannedNode>,
    pub(super) change: NodeChange,
    /// The UID in a taint that the change removes or replaces, of a maintenance that no longer exists.
    pub(super) orphan: Option<String>,
    pub(super) reverted: Arc<Mutex<RevertedCordons>>,
    pub(super) events: MaintenanceEvents,
    pub(super) clock: Clock,
}

impl NodeEdit for IsolationEdit {
    fn edit(&self, node: &mut Node, _: Timestamp) -> Edited {
        if present(node) != planned(&self.planned) {
            return Edited::Outdated;
        }
        change_node(node, &self.change);
        Edited::Done
    }

    fn written(&self, _: &Node, after: &Node) {
        let (name, uid) = (&self.planned.name, after.metadata.uid.as_deref().unwrap_or_default());
        let warn = |kind, note: String| self.events.about_node(name, uid, kind, &note);
        tracing::info!(node = name, change = ?self.change, "Node changed for a maintenance");
        if let Some(orphan) = &self.orphan {
            let note = format!(
                "The taint of the NodeMaintenance with the UID {orphan}, which no longer exists, was removed or replaced"
            );
            warn(TAINT_ORPHANED, note);
        }
        // The Node had the annotation already: another actor reverted the cordon.
        let is_revert = self.change.unschedulable == Some(true) && self.planned.was_unschedulable.is_some();
        let mut reverted = self.reverted.lock().unwrap_or_else(PoisonError::into_inner);
        let reverts = is_revert
            .then(|| reverted.record(name, self.clock.now().wall))
            .flatten();
        if let Some(reverts) = reverts {
            let note = format!(
                "Another actor made the node schedulable {reverts} times within ten minutes; a NodeMaintenance keeps it unschedulable."
            );
            warn(CORDON_REVERTED, note);
        }
    }
}

/// What a change follows from: the cordon, the cordon before the first maintenance, the value of the taint, and whether autoscalers are
/// kept away.
type Isolation<'a> = (bool, Option<bool>, Option<&'a str>, bool);

fn planned(node: &PlannedNode) -> Isolation<'_> {
    (
        node.unschedulable,
        node.was_unschedulable,
        node.maintenance_taint.as_deref(),
        node.is_kept_from_scale_down,
    )
}

fn present(node: &Node) -> Isolation<'_> {
    let spec = node.spec.as_ref();
    let annotation = |key| node.metadata.annotations.as_ref()?.get(key);
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    (
        spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
        annotation(CORDON_ANNOTATION).map(|value| value == "true"),
        taints
            .find(|taint| is_own(taint))
            .map(|taint| taint.value.as_deref().unwrap_or_default()),
        annotation(SCALE_DOWN_ANNOTATION).is_some(),
    )
}

pub(super) fn is_own(taint: &Taint) -> bool {
    taint.key == MAINTENANCE_TAINT && taint.effect == "NoSchedule"
}

fn change_node(node: &mut Node, change: &NodeChange) {
    if let Some(remembered) = &change.remembered {
        let annotations = node.metadata.annotations.get_or_insert_default();
        match remembered {
            Change::Set(before) => drop(annotations.insert(CORDON_ANNOTATION.to_owned(), before.to_string())),
            Change::Remove => drop(annotations.remove(CORDON_ANNOTATION)),
        }
    }
    match change.keep_from_scale_down {
        Some(true) => keep_from_scale_down(node.metadata.annotations.get_or_insert_default()),
        Some(false) => give_back_to_autoscalers(node.metadata.annotations.get_or_insert_default()),
        None => {}
    }
    let spec = node.spec.get_or_insert_default();
    spec.unschedulable = change.unschedulable.or(spec.unschedulable);
    let taints = spec.taints.get_or_insert_default();
    match &change.taint {
        Some(Change::Set(value)) => match taints.iter_mut().find(|taint| is_own(taint)) {
            Some(own) => own.value = Some(value.clone()),
            None => taints.push(Taint {
                key: MAINTENANCE_TAINT.to_owned(),
                value: Some(value.clone()),
                effect: "NoSchedule".to_owned(),
                time_added: None,
            }),
        },
        Some(Change::Remove) => taints.retain(|taint| !is_own(taint)),
        None => {}
    }
}

/// Keeps autoscalers away from a Node, and remembers what its annotations were.
fn keep_from_scale_down(annotations: &mut BTreeMap<String, String>) {
    let before: BTreeMap<_, Option<String>> = AUTOSCALER_ANNOTATIONS
        .into_iter()
        .map(|key| (key, annotations.insert(key.to_owned(), "true".to_owned())))
        .collect();
    annotations.insert(SCALE_DOWN_ANNOTATION.to_owned(), json!(before).to_string());
}

/// Makes the autoscalers' annotations what they were. One that another writer has changed since stays.
pub(super) fn give_back_to_autoscalers(annotations: &mut BTreeMap<String, String>) {
    let before = annotations.remove(SCALE_DOWN_ANNOTATION).unwrap_or_default();
    let before: BTreeMap<String, Option<String>> = serde_json::from_str(&before).unwrap_or_default();
    for key in AUTOSCALER_ANNOTATIONS {
        let is_ours = annotations.get(key).is_some_and(|value| value == "true");
        match before.get(key) {
            Some(Some(value)) if is_ours => drop(annotations.insert(key.to_owned(), value.clone())),
            Some(None) if is_ours => drop(annotations.remove(key)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{NodeDetail, NodeReader};
    use headgate_test_kubernetes::{FakeApi, event_sink};
    use serde_json::Value;

    use super::*;

    fn read(node: &Node) -> PlannedNode {
        let reader = NodeReader {
            detail: NodeDetail::Maintenance,
            ..NodeReader::default()
        };
        reader.read(serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap())
    }

    fn typed(node: &Value) -> Node {
        serde_json::from_value(node.clone()).unwrap()
    }

    fn changed(node: &Node, change: &NodeChange) -> Node {
        let mut node = node.clone();
        change_node(&mut node, change);
        node
    }

    fn change(unschedulable: bool, remembered: Change<bool>, taint: &Change<&str>) -> NodeChange {
        NodeChange {
            unschedulable: Some(unschedulable),
            keep_from_scale_down: Some(remembered != Change::Remove),
            remembered: Some(remembered),
            taint: Some(match taint {
                Change::Set(value) => Change::Set((*value).to_owned()),
                Change::Remove => Change::Remove,
            }),
        }
    }

    #[test]
    fn a_change_is_made_and_undone() {
        let other = json!({"key": "other", "effect": "NoExecute"});
        let by_hand = json!({"key": MAINTENANCE_TAINT, "effect": "NoExecute", "value": "by-hand"});
        for before in [
            json!({"metadata": {"name": "one"}, "spec": {}}),
            json!({"metadata": {"name": "one", "annotations": {"a": "b"}}, "spec": {"taints": [other, by_hand]}}),
            json!({"metadata": {"name": "one", "annotations": {"karpenter.sh/do-not-disrupt": "true",
                "cluster-autoscaler.kubernetes.io/scale-down-disabled": "false"}}, "spec": {}}),
            json!({"metadata": {"name": "one", "annotations": {"karpenter.sh/do-not-disrupt": "x".repeat(5000)}}, "spec": {}}),
        ] {
            let before = typed(&before);
            let during = changed(&before, &change(true, Change::Set(false), &Change::Set("uid")));
            let read_back = read(&during);
            assert!(read_back.unschedulable && read_back.was_unschedulable == Some(false));
            assert_eq!(planned(&read_back), present(&during), "it can be edited again");
            let annotations = |node: &Node| node.metadata.annotations.clone().unwrap_or_default();
            let kept_away = annotations(&during);
            assert!(AUTOSCALER_ANNOTATIONS.iter().all(|key| kept_away[*key] == "true"));
            assert_eq!(read_back.maintenance_taint.unwrap(), "uid");
            let moved = changed(&during, &change(true, Change::Set(false), &Change::Set("other-uid")));
            assert_eq!(read(&moved).maintenance_taint.unwrap(), "other-uid");
            let after = changed(&during, &change(false, Change::Remove, &Change::Remove));
            assert_eq!(present(&after), present(&before));
            let taints = |node: &Node| node.spec.clone().unwrap().taints.unwrap_or_default();
            assert_eq!(taints(&after), taints(&before));
            assert_eq!(annotations(&after), annotations(&before));
            let mut by_hand = during.clone();
            let changed_by_hand = by_hand.metadata.annotations.get_or_insert_default();
            changed_by_hand.insert(AUTOSCALER_ANNOTATIONS[0].to_owned(), "false".to_owned());
            let after = changed(&by_hand, &change(false, Change::Remove, &Change::Remove));
            assert_eq!(annotations(&after)[AUTOSCALER_ANNOTATIONS[0]], "false");
        }
    }

    #[tokio::test]
    async fn a_node_that_changed_since_the_plan_is_not_edited() {
        let before = typed(&json!({"metadata": {"name": "one"}, "spec": {}}));
        let sink = event_sink(FakeApi::default().client().0, "leader");
        let events = MaintenanceEvents::new(sink);
        let edit = IsolationEdit {
            planned: Arc::new(read(&before)),
            change: change(true, Change::Set(false), &Change::Remove),
            orphan: None,
            reverted: Arc::default(),
            events,
            clock: Clock::System,
        };
        let mut cordoned = typed(&json!({"metadata": {"name": "one"}, "spec": {"unschedulable": true}}));
        assert_eq!(edit.edit(&mut cordoned, Timestamp::UNIX_EPOCH), Edited::Outdated);
        // What does not matter for a maintenance may have changed.
        let mut labelled = typed(&json!({"metadata": {"name": "one", "labels": {"a": "b"}}, "spec": {}}));
        assert_eq!(edit.edit(&mut labelled, Timestamp::UNIX_EPOCH), Edited::Done);
        assert!(read(&labelled).unschedulable);
    }
}
