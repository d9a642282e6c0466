//! Drain signals: what means that a node is about to go away. This file is the place to add one.
//!
//! - A taint: add its key to [`DEFAULT_SIGNAL_TAINTS`] and its meaning to [`Signal::explanation`]. Operators can list
//!   other keys in the setting `signals`.
//! - Another fact of the Node object: add it to [`Facts`], read it in `slim_node.rs`, add a variant to [`Signal`],
//!   and detect it in [`detect_signals`].
//! - A fact from elsewhere, such as the cloud's metadata service: add a variant to [`Signal`], and publish it in the
//!   `notices` of `headgate_health::VerdictInputs`.
//!
//! The compiler then requires a name and an explanation for the variant; a variant other than a taint also belongs in
//! `Signal::BUILT_IN`. Everything here is pure. Taints count by key
//! (upstream: `NodeEligible` in kube-proxy; docs/decisions.md 1). Cordon, `NotReady` and
//! `DeletionCandidateOfClusterAutoscaler` are no signals, because operators cordon whole clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The key of the taint that headgate sets when Azure announces the eviction of the VM.
pub const DRAINING_TAINT: &str = "cloudprovider.azure.microsoft.com/draining";

const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
const KARPENTER_TAINT: &str = "karpenter.sh/disrupted";
const MAINTENANCE_TAINT: &str = "headgate.dev/maintenance";

/// The taint keys that are signals unless the settings list others (docs/decisions.md 1).
pub const DEFAULT_SIGNAL_TAINTS: [&str; 6] = [
    AUTOSCALER_TAINT,
    OUT_OF_SERVICE_TAINT,
    SHUTDOWN_TAINT,
    DRAINING_TAINT,
    KARPENTER_TAINT,
    MAINTENANCE_TAINT,
];

/// What a Node object contains that signals are detected in, and what identifies the machine. The remembered state
/// contains these fields under these names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The Node's UID. A Node that was created again under the same name is another node.
    pub uid: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Whether kubelet reports that the node shuts down.
    pub shutting_down: bool,
    /// The keys of the Node's taints, in their order.
    pub taints: Vec<String>,
    /// `spec.providerID`, the cloud's name for the machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// `status.nodeInfo.bootID`; it changes with each boot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// The annotations under `headgate.dev/`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// One reason not to send new connections to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// The Node object is being deleted.
    Deletion,
    /// kubelet reports the node's graceful shutdown.
    Shutdown,
    /// The Node has a taint with this key.
    Taint(String),
    /// Azure announces the eviction of this spot VM in Scheduled Events.
    Preempt,
    /// This process stops and drains its node for `shutdownDelay`.
    Stopping,
}

/// What a signal means to an operator, in whole sentences or clauses of English.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalExplanation {
    /// One sentence about the cause of the signal.
    pub meaning: String,
    /// Completes "Ends with …".
    pub ends_with: String,
}

impl Signal {
    /// The signals that are not taints; their names are not taint keys.
    const BUILT_IN: [Self; 4] = [Self::Deletion, Self::Shutdown, Self::Preempt, Self::Stopping];

    /// The name in health answers, metrics, `/statusz` and the remembered state.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Deletion => "deletionTimestamp",
            Self::Shutdown => "nodeShutdown",
            Self::Taint(key) => key,
            Self::Preempt => "azurePreempt",
            Self::Stopping => "headgateStopping",
        }
    }

    /// Whether the signal is in the Node object, where everybody who reads the Node finds it; otherwise only the
    /// agent has it.
    #[must_use]
    pub fn is_in_node_object(&self) -> bool {
        match self {
            Self::Deletion | Self::Shutdown | Self::Taint(_) => true,
            Self::Preempt | Self::Stopping => false,
        }
    }

    /// Whether the leader may keep a node with this signal in service for a while if too few others are left. The node
    /// still works; a signal that says otherwise, or that its end is certain, is not revocable.
    #[must_use]
    pub fn is_revocable(&self) -> bool {
        match self {
            Self::Taint(key) => ![OUT_OF_SERVICE_TAINT, SHUTDOWN_TAINT].contains(&key.as_str()),
            Self::Deletion | Self::Shutdown | Self::Preempt | Self::Stopping => false,
        }
    }

    /// What the signal means on the node `node_name`, and what ends it.
    #[must_use]
    pub fn explanation(&self, node_name: &str) -> SignalExplanation {
        let untaint = || {
            let key = self.name();
            // Operators copy the command. An agent may send any text for a key.
            if is_label_key(key) {
                format!("the removal of the taint: kubectl taint node {node_name} {key}-")
            } else {
                "the removal of the taint".to_owned()
            }
        };
        let (meaning, ends_with) = match self {
            Self::Deletion => (
                "The Node object is being deleted.",
                "nothing; a Node that is being deleted stays so until it is gone".to_owned(),
            ),
            Self::Shutdown => (
                "kubelet reports that the node is shutting down.",
                "kubelet reporting Ready again after the restart".to_owned(),
            ),
            Self::Preempt => (
                "Azure has announced the eviction of this spot VM.",
                "the end of the notice in Scheduled Events".to_owned(),
            ),
            Self::Stopping => (
                "headgate is stopping and drains the node for its shutdownDelay.",
                "the start of the next headgate on this node".to_owned(),
            ),
            Self::Taint(key) => match key.as_str() {
                AUTOSCALER_TAINT => (
                    "Cluster Autoscaler is about to delete the VM.",
                    format!(
                        "{}; Cluster Autoscaler removes it itself when a scale-down fails",
                        untaint()
                    ),
                ),
                OUT_OF_SERVICE_TAINT => (
                    "An operator or a controller has marked the node as out of service.",
                    untaint(),
                ),
                SHUTDOWN_TAINT => (
                    "The cloud provider reports that the VM is shut down.",
                    "the VM running again; cloud-controller-manager then removes the taint".to_owned(),
                ),
                DRAINING_TAINT => ("The node is being drained because its VM is going away.", untaint()),
                KARPENTER_TAINT => ("Karpenter is about to replace or remove the node.", untaint()),
                MAINTENANCE_TAINT => ("The node is in maintenance.", untaint()),
                _ => ("This taint is listed in signals.health.", untaint()),
            },
        };
        SignalExplanation {
            meaning: meaning.to_owned(),
            ends_with,
        }
    }
}

/// Whether `key` has only characters that the API server accepts in the key of a taint.
fn is_label_key(key: &str) -> bool {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    key.starts_with(|first: char| first.is_ascii_alphanumeric()) && key.chars().all(is_allowed)
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// From a name. A name that is not a built-in signal's is a taint key.
impl FromStr for Signal {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let built_in = Self::BUILT_IN.into_iter().find(|signal| signal.name() == name);
        Ok(built_in.unwrap_or_else(|| Self::Taint(name.to_owned())))
    }
}

/// The signals in a Node's facts; `taint_keys` are the keys that count.
#[must_use]
pub fn detect_signals(facts: &Facts, taint_keys: &[String]) -> BTreeSet<Signal> {
    let taints = facts
        .taints
        .iter()
        .filter(|key| taint_keys.contains(key))
        .cloned()
        .map(Signal::Taint);
    let deletion = facts.deleting.then_some(Signal::Deletion);
    let shutdown = facts.shutting_down.then_some(Signal::Shutdown);
    taints.chain(deletion).chain(shutdown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(taints: &[&str], keys: &[&str]) -> Vec<String> {
        let facts = Facts {
            taints: taints.iter().map(ToString::to_string).collect(),
            ..Facts::default()
        };
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        detect_signals(&facts, &keys).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_default_key_is_a_signal_and_no_other_is() {
        for key in DEFAULT_SIGNAL_TAINTS {
            assert_eq!(detect(&[key], &DEFAULT_SIGNAL_TAINTS), [key]);
        }
        for other in [
            "DeletionCandidateOfClusterAutoscaler",
            "node.kubernetes.io/unschedulable",
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node-role.kubernetes.io/control-plane",
            "ToBeDeletedByClusterAutoscale",
            "tobedeletedbyclusterautoscaler",
            "karpenter.sh/disruption",
            "",
        ] {
            assert!(detect(&[other], &DEFAULT_SIGNAL_TAINTS).is_empty(), "{other}");
        }
    }

    #[test]
    fn list_replaces_the_default() {
        assert_eq!(detect(&["a.io/b", DEFAULT_SIGNAL_TAINTS[0]], &["a.io/b"]), ["a.io/b"]);
        assert!(detect(&[DEFAULT_SIGNAL_TAINTS[0]], &[]).is_empty());
    }

    #[test]
    fn one_key_with_several_effects_is_one_signal() {
        let key = DEFAULT_SIGNAL_TAINTS[0];
        assert_eq!(detect(&[key, "other", key], &DEFAULT_SIGNAL_TAINTS), [key]);
    }

    #[test]
    fn deletion_and_shutdown_count_with_any_list() {
        let facts = Facts {
            deleting: true,
            shutting_down: true,
            ..Facts::default()
        };
        assert_eq!(detect_signals(&facts, &[]), [Signal::Deletion, Signal::Shutdown].into());
    }

    #[test]
    fn a_command_is_shown_for_a_key_that_a_taint_may_have_only() {
        for (key, is_shown) in [
            ("example.com/maintenance_1", true),
            ("a; reboot", false),
            ("$(reboot)", false),
            ("-l", false),
            ("a\nb", false),
            ("", false),
        ] {
            let ends_with = Signal::Taint(key.to_owned()).explanation("n").ends_with;
            assert_eq!(ends_with.contains("kubectl"), is_shown, "{key:?}: {ends_with}");
        }
    }

    #[test]
    fn names_parse_to_their_signals() {
        for signal in [
            Signal::Deletion,
            Signal::Shutdown,
            Signal::Preempt,
            Signal::Stopping,
            Signal::Taint("a.io/b".into()),
        ] {
            assert_eq!(signal.to_string().parse(), Ok(signal));
        }
    }
}
