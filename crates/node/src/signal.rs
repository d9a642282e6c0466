//! Drain signals: which facts about a Node mean that it is about to go away.
//!
//! Pure. Taints count by key (upstream: kube-proxy's `NodeEligible`; DESIGN decision 1). Cordon,
//! NotReady and `DeletionCandidateOfClusterAutoscaler` are no signals: people cordon whole clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The taint of an eviction that was announced.
pub const DRAINING_TAINT: &str = "cloudprovider.azure.microsoft.com/draining";

/// Taint keys that mean a node is about to go away (DESIGN decision 1).
pub const DEFAULT_SIGNALS: [&str; 6] = [
    "ToBeDeletedByClusterAutoscaler",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    DRAINING_TAINT,
    "karpenter.sh/disrupted",
    "headgate.dev/maintenance",
];

/// What a Node object says, reduced to what signals are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The Node's UID: a Node re-created under its name is another node.
    pub uid: String,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// kubelet says that the node is shutting down.
    pub shutting_down: bool,
    /// Keys of its taints, in their order.
    pub taints: Vec<String>,
    /// The cloud's name for the machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// The machine's present boot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// headgate's own annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// One reason not to send new connections to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// The Node is being deleted.
    Deletion,
    /// kubelet announced the node's graceful shutdown.
    Shutdown,
    /// A taint with this key.
    Taint(String),
}

const DELETION: &str = "deletionTimestamp";
const SHUTDOWN: &str = "nodeShutdown";

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deletion => DELETION,
            Self::Shutdown => SHUTDOWN,
            Self::Taint(key) => key,
        })
    }
}

impl FromStr for Signal {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            DELETION => Self::Deletion,
            SHUTDOWN => Self::Shutdown,
            key => Self::Taint(key.to_owned()),
        })
    }
}

/// The signals in `facts`, given the taint keys that count.
#[must_use]
pub fn signals(facts: &Facts, taint_keys: &[String]) -> BTreeSet<Signal> {
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

    fn of(taints: &[&str], keys: &[&str]) -> Vec<String> {
        let facts = Facts {
            taints: taints.iter().map(ToString::to_string).collect(),
            ..Facts::default()
        };
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        signals(&facts, &keys).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_default_key_is_a_signal_and_nothing_else_is() {
        for key in DEFAULT_SIGNALS {
            assert_eq!(of(&[key], &DEFAULT_SIGNALS), [key]);
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
            assert!(of(&[other], &DEFAULT_SIGNALS).is_empty(), "{other}");
        }
    }

    #[test]
    fn the_list_replaces_the_default() {
        assert_eq!(of(&["a.io/b", DEFAULT_SIGNALS[0]], &["a.io/b"]), ["a.io/b"]);
        assert!(of(&[DEFAULT_SIGNALS[0]], &[]).is_empty());
    }

    #[test]
    fn one_key_with_several_effects_is_one_signal() {
        let key = DEFAULT_SIGNALS[0];
        assert_eq!(of(&[key, "other", key], &DEFAULT_SIGNALS), [key]);
    }

    #[test]
    fn deletion_and_shutdown_count_whatever_the_list() {
        let facts = Facts {
            deleting: true,
            shutting_down: true,
            ..Facts::default()
        };
        assert_eq!(signals(&facts, &[]), [Signal::Deletion, Signal::Shutdown].into());
    }

    #[test]
    fn names_survive_the_round_trip() {
        for signal in [Signal::Deletion, Signal::Shutdown, Signal::Taint("a.io/b".into())] {
            assert_eq!(signal.to_string().parse(), Ok(signal));
        }
    }
}
