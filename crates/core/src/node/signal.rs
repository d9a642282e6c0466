//! Drain signals: what means that a node is about to go away. This file is the place to add one.
//!
//! - A taint: give it a name in `known_signals.rs`, and its meaning to [`Signal::explanation`]; one that counts by default also belongs in
//!   [`DEFAULT_SIGNAL_TAINTS`]. Operators can add other keys in the setting `signals.extra`.
//! - Another field of the Node: add it to `NodeObject` and [`Node`](super::Node), add a variant to [`Signal`], and a kind
//!   of matcher or a built-in signal to `matcher.rs`, which has its form in the settings and finds it. Health answers, the leader,
//!   `why`, `status`, metrics and the remembered state follow from these.
//! - A fact from elsewhere, such as the cloud's metadata service: add a variant to [`Signal`], and publish it in the
//!   `notices` of `headgate_agent::health::VerdictInputs`.
//!
//! The compiler then requires a name and an explanation for the variant; a variant other than a taint also belongs in
//! `Signal::BUILT_IN`. Everything here is pure. Taints count by key
//! (upstream: `NodeEligible` in kube-proxy; docs/dev/decisions.md 1). Cordon, `NotReady` and
//! `DeletionCandidateOfClusterAutoscaler` are no signals unless the settings list them, because operators cordon whole clusters.

use std::fmt;
use std::str::FromStr;

use super::known_signals::KnownSignal;
use super::names::{
    AUTOSCALER_TAINT, DRAINING_TAINT, KARPENTER_TAINT, MAINTENANCE_TAINT, MEDIK8S_TAINT, OUT_OF_SERVICE_TAINT,
    SHUTDOWN_TAINT,
};
use super::spot_notice::AzureNotice;

/// The taint keys that are signals unless the settings disable them (docs/dev/decisions.md 1).
pub const DEFAULT_SIGNAL_TAINTS: [&str; 6] = [
    AUTOSCALER_TAINT,
    OUT_OF_SERVICE_TAINT,
    SHUTDOWN_TAINT,
    DRAINING_TAINT,
    KARPENTER_TAINT,
    MAINTENANCE_TAINT,
];

/// The conditions of KEP-5683 that a matcher may choose, by type. Administrators and their controllers write the first two, kubelet the
/// last one.
const DRAIN_CONDITION: &str = "DrainInProgress";
const MAINTENANCE_CONDITION: &str = "MaintenanceInProgress";
const SHUTDOWN_CONDITION: &str = "GracefulNodeShutdownInProgress";

/// One reason not to send new connections to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// The Node object is being deleted.
    Deletion,
    /// kubelet reports the node's graceful shutdown.
    Shutdown,
    /// The Node has a taint with this key.
    Taint(String),
    /// A condition that a matcher of the settings names; the matcher's name.
    Condition(String),
    /// A label that a matcher of the settings names; the matcher's name.
    Label(String),
    /// An annotation that a matcher of the settings names; the matcher's name.
    Annotation(String),
    /// The node is cordoned, and a matcher of the settings asks for it.
    Unschedulable,
    /// Azure announces in Scheduled Events what happens to this VM.
    Azure(AzureNotice),
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
    const BUILT_IN: [Self; 7] = [
        Self::Deletion,
        Self::Shutdown,
        Self::Azure(AzureNotice::Preempt),
        Self::Azure(AzureNotice::Terminate),
        Self::Azure(AzureNotice::Redeploy),
        Self::Azure(AzureNotice::Reboot),
        Self::Unschedulable,
    ];

    /// The name in health answers, metrics, `/statusz` and the remembered state: what the Node has, or else the name in the settings.
    pub fn name(&self) -> &str {
        match self {
            Self::Deletion => "deletionTimestamp",
            Self::Shutdown => KnownSignal::KubeletShutdown.as_str(),
            Self::Taint(name) | Self::Condition(name) | Self::Label(name) | Self::Annotation(name) => name,
            Self::Unschedulable => "unschedulable",
            Self::Azure(AzureNotice::Preempt) => KnownSignal::Preempt.as_str(),
            Self::Azure(AzureNotice::Terminate) => KnownSignal::Terminate.as_str(),
            Self::Azure(AzureNotice::Redeploy) => KnownSignal::Redeploy.as_str(),
            Self::Azure(AzureNotice::Reboot) => KnownSignal::Reboot.as_str(),
        }
    }

    /// Whether the leader may keep a node with this signal in service for a while if too few others are left. The node
    /// still works; a signal that says otherwise, or that its end is certain, is not revocable.
    pub fn is_revocable(&self) -> bool {
        match self {
            Self::Taint(key) => ![OUT_OF_SERVICE_TAINT, SHUTDOWN_TAINT].contains(&key.as_str()),
            Self::Label(_) | Self::Annotation(_) | Self::Unschedulable => true,
            Self::Azure(notice) => !notice.is_final(),
            // What reports another condition is not known; it may announce the end of the machine.
            Self::Condition(name) => [DRAIN_CONDITION, MAINTENANCE_CONDITION].contains(&condition_type(name)),
            Self::Deletion | Self::Shutdown => false,
        }
    }

    /// Whether the signal says by itself that the machine is about to end. A cordon, a maintenance, or what only the settings list may be
    /// a mistake that meets every node at once.
    pub fn announces_end(&self) -> bool {
        match self {
            Self::Taint(key) => DEFAULT_SIGNAL_TAINTS.contains(&key.as_str()) && key != MAINTENANCE_TAINT,
            Self::Deletion | Self::Shutdown | Self::Azure(_) => true,
            Self::Condition(name) => condition_type(name) == SHUTDOWN_CONDITION,
            Self::Label(_) | Self::Annotation(_) | Self::Unschedulable => false,
        }
    }

    /// What the signal means on the node `node_name`, and what ends it.
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
            Self::Azure(notice) => (
                match notice {
                    AzureNotice::Preempt => "Azure has announced the eviction of this spot VM.",
                    AzureNotice::Terminate => "Azure has announced that the scale set deletes this VM.",
                    AzureNotice::Redeploy => "Azure has announced that this VM moves to another machine.",
                    AzureNotice::Reboot => "Azure has announced a restart of this VM.",
                },
                "the end of the notice in Scheduled Events".to_owned(),
            ),
            Self::Condition(name) => (
                match condition_type(name) {
                    DRAIN_CONDITION => "Somebody drains the node, says the condition of KEP-5683.",
                    MAINTENANCE_CONDITION => "The node is in maintenance, says the condition of KEP-5683.",
                    SHUTDOWN_CONDITION => "kubelet shuts the node down, says the condition of KEP-5683.",
                    _ => "The Node has this condition, which is listed in the settings under signals.extra.",
                },
                "a change of the condition by the component that reports it".to_owned(),
            ),
            Self::Label(name) => (
                "The Node has this label, which is listed in the settings under signals.extra.",
                removal(node_name, "label", name),
            ),
            Self::Annotation(name) => (
                "The Node has this annotation, which is listed in the settings under signals.extra.",
                removal(node_name, "annotation", name),
            ),
            Self::Unschedulable => (
                "The node is cordoned, which is listed in the settings under signals.extra.",
                format!("the end of the cordon: kubectl uncordon {node_name}"),
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
                MEDIK8S_TAINT => (
                    "medik8s' Node Maintenance Operator drains the node.",
                    "the end of its NodeMaintenance of the group nodemaintenance.medik8s.io".to_owned(),
                ),
                _ => ("This taint is listed in the settings under signals.extra.", untaint()),
            },
        };
        SignalExplanation {
            meaning: meaning.to_owned(),
            ends_with,
        }
    }
}

/// The type in the name of a condition's signal, which is the matcher's: `condition:TYPE=STATUS`.
fn condition_type(name: &str) -> &str {
    let rest = name.strip_prefix("condition:").unwrap_or(name);
    rest.split_once('=').map_or(rest, |(kind, _)| kind)
}

/// How the signal of a label or an annotation ends. `name` is the matcher's, `label:KEY=VALUE`.
fn removal(node_name: &str, kind: &str, name: &str) -> String {
    let pair = name
        .strip_prefix(kind)
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or_default();
    let key = pair.split_once('=').map_or(pair, |(key, _)| key);
    let verb = if kind == "label" { "label" } else { "annotate" };
    if is_label_key(key) {
        format!("the removal of the {kind}, or another value: kubectl {verb} node {node_name} {key}-")
    } else {
        format!("the removal of the {kind}, or another value")
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

/// From a name. A name that is neither a built-in signal's nor a matcher's is a taint key, which has no colon.
impl FromStr for Signal {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let built_in = Self::BUILT_IN.into_iter().find(|signal| signal.name() == name);
        let kind = name.split_once(':').map(|(kind, _)| kind);
        let owned = || name.to_owned();
        Ok(built_in.unwrap_or_else(|| match kind {
            Some("condition") => Self::Condition(owned()),
            Some("label") => Self::Label(owned()),
            Some("annotation") => Self::Annotation(owned()),
            _ => Self::Taint(owned()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::node::known_signals::SignalSettings;
    use crate::node::matcher::{SignalMatcher, SignalRules};
    use crate::node::object::Taint;
    use crate::node::{Condition, Node};

    fn detect(taints: &[&str], keys: &[&str]) -> Vec<String> {
        let node = Node {
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            ..Node::default()
        };
        let keys = keys.iter().copied();
        let found = SignalRules::new(keys, &SignalMatcher::BUILT_IN).detect(&node);
        found.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn each_default_key_is_a_signal_and_no_other_is() {
        for key in DEFAULT_SIGNAL_TAINTS {
            // Several effects of one key are one signal.
            assert_eq!(detect(&[key, "other", key], &DEFAULT_SIGNAL_TAINTS), [key]);
            assert_eq!(detect(&["a.io/b", key], &["a.io/b"]), ["a.io/b"]);
            assert!(detect(&[key], &[]).is_empty());
            let announces_end = Signal::Taint(key.to_owned()).announces_end();
            assert_eq!(announces_end, key != MAINTENANCE_TAINT, "{key}");
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
    fn deletion_and_shutdown_count_with_any_list_unless_switched_off() {
        let node = Node {
            is_deleting: true,
            shutting_down: true,
            ..Node::default()
        };
        let detect = |built_in: &[SignalMatcher]| {
            let found = SignalRules::new::<String>([], built_in).detect(&node);
            found.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(detect(&SignalMatcher::BUILT_IN), [Signal::Deletion, Signal::Shutdown]);
        assert_eq!(detect(&[SignalMatcher::Deletion]), [Signal::Deletion]);
        assert_eq!(detect(&[SignalMatcher::Shutdown]), [Signal::Shutdown]);
        assert_eq!(detect(&[SignalMatcher::Azure(AzureNotice::Preempt)]), []);
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
            for (signal, command) in [
                (Signal::Taint(key.to_owned()), "kubectl taint"),
                (Signal::Label(format!("label:{key}=v")), "kubectl label"),
                (Signal::Annotation(format!("annotation:{key}")), "kubectl annotate"),
            ] {
                let ends_with = signal.explanation("n").ends_with;
                assert_eq!(ends_with.contains(command), is_shown, "{key:?}: {ends_with}");
                assert_eq!(ends_with.contains("kubectl"), is_shown, "{key:?}: {ends_with}");
            }
        }
    }

    #[test]
    fn what_other_tools_say_of_a_node_counts_where_it_is_chosen() {
        let of = |kind: &str| {
            let condition = json!({"condition": {"type": kind, "status": "True"}});
            let matcher = SignalMatcher::parse(&condition).unwrap();
            let status = Condition {
                status: "True".to_owned(),
                ..Condition::default()
            };
            let node = Node {
                conditions: BTreeMap::from([(kind.to_owned(), status)]),
                ..Node::default()
            };
            (node, matcher)
        };
        let tainted = |key: &str| {
            let node = Node {
                taints: vec![Taint::new(key, "NoSchedule")],
                ..Node::default()
            };
            (node, SignalMatcher::Taint(key.to_owned()))
        };
        let medik8s = "medik8s' Node Maintenance Operator drains";
        // The node with what chooses it, whether it is revocable and announces the end, and what `why` says.
        for ((node, matcher), traits, meaning) in [
            (tainted(MEDIK8S_TAINT), (true, false), medik8s),
            (tainted("example.com/leaving"), (true, false), "listed in the settings"),
            (of(DRAIN_CONDITION), (true, false), "Somebody drains"),
            (of(MAINTENANCE_CONDITION), (true, false), "in maintenance"),
            (of(SHUTDOWN_CONDITION), (false, true), "kubelet shuts the node down"),
            (of("Other"), (false, false), "listed in the settings"),
        ] {
            let by_default = SignalSettings::default();
            assert!(by_default.health().detect(&node).is_empty(), "{matcher}");
            assert!(by_default.admin_state().detect(&node).is_empty(), "{matcher}");
            let matchers = vec![matcher.clone()];
            let found: Vec<_> = SignalRules { matchers }.detect(&node).into_keys().collect();
            let [signal] = &found[..] else { panic!("{matcher}") };
            assert_eq!((signal.is_revocable(), signal.announces_end()), traits, "{matcher}");
            let explanation = signal.explanation("n").meaning;
            assert!(explanation.contains(meaning), "{explanation}");
        }
    }

    #[test]
    fn names_parse_to_their_signals() {
        for signal in [
            Signal::Deletion,
            Signal::Shutdown,
            Signal::Azure(AzureNotice::Preempt),
            Signal::Azure(AzureNotice::Terminate),
            Signal::Azure(AzureNotice::Redeploy),
            Signal::Azure(AzureNotice::Reboot),
            Signal::Unschedulable,
            Signal::Taint("a.io/b".into()),
            Signal::Condition("condition:A=True".into()),
            Signal::Label("label:a.io/b=c".into()),
            Signal::Annotation("annotation:a.io/b".into()),
        ] {
            assert_eq!(signal.to_string().parse(), Ok(signal));
        }
    }
}
