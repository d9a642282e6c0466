//! Which changes of a status are written at once. Counters and messages change with each pod, and each write sends the whole object.

use crate::api::NodeMaintenanceStatus;

/// Whether anything but counters and messages has changed.
pub fn is_urgent(before: Option<&NodeMaintenanceStatus>, after: &NodeMaintenanceStatus) -> bool {
    before.is_none_or(|before| without_counters(before) != without_counters(after))
}

fn without_counters(status: &NodeMaintenanceStatus) -> NodeMaintenanceStatus {
    let mut status = status.clone();
    (status.pods_left, status.drained_nodes) = (0, 0);
    for node in &mut status.node_statuses {
        node.drain_message.clear();
        (node.pods_pending_evacuation, node.pods_evacuating) = (0, 0);
        (node.pods_exempt, node.pods_unsupported) = (0, 0);
        node.blockers.clear();
        node.blockers_total = 0;
    }
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_and_messages_wait_and_nothing_else() {
        let status = |value| -> NodeMaintenanceStatus { serde_json::from_value(value).unwrap() };
        let node = |field: &str, value| {
            let mut node =
                json!({"nodeRef": {"name": "n"}, "podsEvacuating": 2, "loadBalancer": {"state": "Draining"}});
            node[field] = value;
            let condition = json!({"type": "Drained", "status": "False", "reason": "PodsLeft", "message": "2 pods",
                "lastTransitionTime": "2026-11-25T10:00:00Z"});
            json!({"podsLeft": 2, "drainPlanIndex": 1, "nodeStatuses": [node], "conditions": [condition]})
        };
        let before = node("blockersTotal", json!(0));
        let mut fewer = before.clone();
        fewer["podsLeft"] = json!(1);
        fewer["conditions"][0]["message"] = json!("1 pod");
        let mut drained = before.clone();
        drained["conditions"][0]["status"] = json!("True");
        let mut next = before.clone();
        next["drainPlanIndex"] = json!(2);
        for (after, expected) in [
            (before.clone(), false),
            (fewer, false),
            (node("drainMessage", json!("Evacuating")), false),
            (node("podsEvacuating", json!(1)), false),
            (node("blockersTotal", json!(3)), false),
            (node("loadBalancer", json!({"state": "Out"})), true),
            (node("drainTargets", json!([{"podPriority": 1}])), true),
            (drained, true),
            (next, true),
        ] {
            let after = status(after);
            assert_eq!(is_urgent(Some(&status(before.clone())), &after), expected, "{after:?}");
        }
        assert!(is_urgent(None, &status(before)));
    }
}
