//! What Azure announces of a VM that is about to go, and the annotation in which the notice is recorded on its Node.
//! `headgate_agent::spot` writes it; the leader reads the kind and the time from it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::{DRAINING_TAINT, EVICTION_TAINT_VALUE, SPOT_NOTICE_ANNOTATION};
use super::object::Taint;
use crate::telemetry::words;

words! {
    /// A Scheduled Event of Azure that may be a signal, the gravest first.
    #[derive(Default, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum AzureNotice {
        /// The spot VM is evicted.
        #[default]
        Preempt = "Preempt",
        /// The scale set deletes the VM.
        Terminate = "Terminate",
        /// The VM moves to another machine and loses its temporary disk.
        Redeploy = "Redeploy",
        /// The VM restarts on the same machine.
        Reboot = "Reboot",
    }
}

impl AzureNotice {
    /// The value of the draining taint.
    pub fn taint_value(self) -> &'static str {
        match self {
            Self::Preempt => EVICTION_TAINT_VALUE,
            Self::Terminate => "terminate",
            Self::Redeploy => "redeploy",
            Self::Reboot => "reboot",
        }
    }

    /// Whether the VM does not come back.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Preempt | Self::Terminate)
    }

    /// Whether a value of the draining taint says that the VM does not come back.
    pub(super) fn is_final_taint(value: &str) -> bool {
        let mut finals = Self::ALL.into_iter().filter(|notice| notice.is_final());
        finals.any(|notice| notice.taint_value() == value)
    }
}

/// What the leader reads of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedNotice {
    /// What Azure announced.
    #[serde(default)]
    pub event_type: AzureNotice,
    /// When it happens at the earliest (Azure's `NotBefore`); `None` if the notice came without a time.
    #[serde(default)]
    pub not_before: Option<Timestamp>,
    /// Whether the draining taint was read with the value of this notice.
    #[serde(skip)]
    pub is_tainted: bool,
}

impl RecordedNotice {
    /// The notice that is recorded in a Node's annotations; `None` if there is none that is readable.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        serde_json::from_str(annotations.get(SPOT_NOTICE_ANNOTATION)?).ok()
    }

    /// The same notice beside these taints.
    #[must_use]
    pub(super) fn tainted_by(self, taints: &[Taint]) -> Self {
        let value = Some(self.event_type.taint_value());
        let is_of_notice = |taint: &Taint| taint.key == DRAINING_TAINT && taint.value.as_deref() == value;
        Self {
            is_tainted: taints.iter().any(is_of_notice),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_the_recorded_notice() {
        use AzureNotice::{Preempt, Reboot, Terminate};
        let at = "2026-04-11T22:26:58Z";
        let with_time = r#"{"eventId":"a","notBefore":"2026-04-11T22:26:58Z","bootId":"b"}"#;
        let terminate = r#"{"eventId":"a","eventType":"Terminate","notBefore":"2026-04-11T22:26:58Z"}"#;
        let notice = |event_type, at: Option<&str>| {
            let not_before = at.map(|at| at.parse().unwrap());
            Some(RecordedNotice {
                event_type,
                not_before,
                is_tainted: false,
            })
        };
        for (text, expected) in [
            (with_time, notice(Preempt, Some(at))),
            (r#"{"eventId":"a"}"#, notice(Preempt, None)),
            (terminate, notice(Terminate, Some(at))),
            (r#"{"eventId":"a","eventType":"Reboot"}"#, notice(Reboot, None)),
            (r#"{"eventId":"a","eventType":"Other"}"#, None),
            (r#"{"eventId":"a","notBefore":"soon"}"#, None),
            ("", None),
        ] {
            let annotations = [(SPOT_NOTICE_ANNOTATION.to_owned(), text.to_owned())].into();
            assert_eq!(RecordedNotice::from_annotations(&annotations), expected, "{text}");
        }
        assert_eq!(RecordedNotice::from_annotations(&BTreeMap::new()), None);
    }
}
