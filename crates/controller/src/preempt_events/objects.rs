//! The fields of an event that are read. The other fields are never kept in memory.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize};

use super::REASON;
use super::latest::ObservedEvent;

/// Longer messages are cut; those of node-problem-detector are shorter.
const MAX_MESSAGE_BYTES: usize = 2048;

/// An event, reduced.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Event)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeEventObject {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    involved_object: InvolvedObject,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    /// Of the latest repetition.
    #[serde(default, deserialize_with = "representable")]
    last_timestamp: Option<Timestamp>,
    #[serde(default, deserialize_with = "representable")]
    event_time: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct InvolvedObject {
    #[serde(default)]
    kind: String,
    /// The UID is not read: older detectors write the name there, or nothing.
    #[serde(default)]
    name: String,
}

/// A time, or none if it is outside what `Timestamp` represents: one event must not make a list of events unreadable.
fn representable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

impl NodeEventObject {
    /// What the event says, if it is a `PreemptScheduled` about a Node.
    pub(super) fn observed(self) -> Option<ObservedEvent> {
        let is_relevant = self.reason == REASON && self.involved_object.kind == "Node";
        let created = self.metadata.creation_timestamp.map(|time| time.0);
        let last_seen = self.last_timestamp.or(self.event_time).or(created)?;
        let mut message = self.message;
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        is_relevant.then_some(ObservedEvent {
            node: self.involved_object.name,
            message,
            last_seen,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn time_that_no_timestamp_represents_is_left_out() {
        let event = |time: &str| {
            let object = json!({"metadata": {"name": "e", "creationTimestamp": "2026-01-02T03:04:05Z"}, "reason": REASON,
                "involvedObject": {"kind": "Node", "name": "n"}, "lastTimestamp": time});
            serde_json::from_value::<NodeEventObject>(object)
                .unwrap()
                .observed()
                .unwrap()
        };
        let created: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(event("9999-12-31T23:00:00Z").last_seen, created);
        let seen: Timestamp = "2026-01-02T03:05:00Z".parse().unwrap();
        assert_eq!(event("2026-01-02T03:05:00Z").last_seen, seen);
    }
}
