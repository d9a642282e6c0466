//! Reads a Node object as `headgate_core::node` does, and with what a condition announces about the machine.

use headgate_core::node::{Node, NodeObject, NodeReader};

use super::node_event::announces_preempt;

/// Reads a Node.
pub fn read_node(object: NodeObject, reader: &NodeReader) -> Node {
    let is_preempted = object.status.conditions.iter().any(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        announces_preempt(&condition.type_, &condition.status, message)
    });
    let mut node = reader.read(object);
    node.ends |= is_preempted;
    node
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{DRAINING_TAINT, SignalSettings};
    use serde_json::{Value, json};

    use super::*;

    fn read(object: &Value) -> Node {
        let reader = NodeReader {
            rules: SignalSettings::default().admin_state(),
            health_rules: SignalSettings::default().health(),
            ..NodeReader::default()
        };
        read_node(serde_json::from_value(object.clone()).unwrap(), &reader)
    }

    const NOTICE: &str = "Wed, 26 Feb 2025 10:13:13 GMT. DurationInSeconds: -1.";

    #[test]
    fn machine_that_is_about_to_end_is_terminal() {
        let is_terminal = |part: &Value| {
            let mut object = json!({"metadata": {"name": "n", "uid": "u"}});
            json_merge(&mut object, part);
            read(&object).is_terminal()
        };
        let taint = |key: &str, value: &str| json!({"spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}});
        let condition = |kind: &str, status: &str, message: &str| json!({"status": {"conditions": [{"type": kind, "status": status, "message": message}]}});
        for (part, expected) in [
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
            (taint("node.kubernetes.io/out-of-service", ""), true),
            (taint("node.cloudprovider.kubernetes.io/shutdown", ""), true),
            (taint(DRAINING_TAINT, "spot-eviction"), true),
            (taint(DRAINING_TAINT, "planned"), false),
            (taint("headgate.dev/maintenance", ""), false),
            (taint("ToBeDeletedByClusterAutoscaler", "1"), false),
            (
                condition("VMEventScheduled", "True", &format!("Preempt Scheduled: {NOTICE}")),
                true,
            ),
            (
                condition(
                    "PreemptionScheduled",
                    "True",
                    &format!("Preempt Scheduled: {NOTICE} EventId: A-1"),
                ),
                true,
            ),
            (condition("PreemptionScheduled", "True", "Preempt Started"), true),
            (
                condition("VMEventScheduled", "True", &format!("Freeze Scheduled: {NOTICE}")),
                false,
            ),
            (
                condition("VMEventScheduled", "False", &format!("Preempt Scheduled: {NOTICE}")),
                false,
            ),
            (
                condition("VMEventScheduled", "Unknown", "IMDS query failed, exit code: 28"),
                false,
            ),
            (
                condition(
                    "PreemptionScheduled",
                    "True",
                    &format!("SpotRebalanceRecommendation Advisory. Preempt Scheduled: {NOTICE}"),
                ),
                false,
            ),
            // The reason of an event; no detector sets a condition of this type.
            (
                condition("PreemptScheduled", "True", &format!("Preempt Scheduled: {NOTICE}")),
                false,
            ),
        ] {
            assert_eq!(is_terminal(&part), expected, "{part}");
        }
    }

    /// Adds the fields of `part` to the sections of `object`.
    fn json_merge(object: &mut Value, part: &Value) {
        for (section, fields) in part.as_object().unwrap() {
            for (name, value) in fields.as_object().unwrap() {
                object[section][name] = value.clone();
            }
        }
    }
}
