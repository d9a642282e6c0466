//! One Node, as every part of headgate reads it. Pure.
//!
//! Invariants: only what the present settings and the reader need is kept, and times that change with each heartbeat or renewal are not,
//! except for the own Node: such a change changes nothing. A Node that was created again under the same name is another Node, by its UID.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::hold::NodeHold;
use super::marker::MarkerFact;
use super::matcher::{SignalMatcher, SignalRules};
use super::names::{
    AUTOSCALER_TAINT, CANDIDATE_TAINT, CLUSTER_API_ANNOTATIONS, CONNECTIONS_CONDITION, CORDON_ANNOTATION, CORDON_TAINT,
    DELETION_DELAY_ANNOTATION, DRAINING_TAINT, EXCLUDE_LABEL, MAINTENANCE_CONDITIONS, MAINTENANCE_TAINT,
    MARKER_CONDITION, SCALE_DOWN_ANNOTATION, UPGRADE_PAUSED_ANNOTATION,
};
use super::object::{AddressObject, ConditionObject, NodeObject, Taint};
use super::signal::Signal;
use super::spot_notice::{AzureNotice, RecordedNotice};
use crate::lower_case;

/// [`EXCLUDE_LABEL`] as Karpenter sets it, on Nodes that it is deleting.
const EXCLUDED_BY_KARPENTER: &str = "node.kubernetes.io/exclude-from-external-load-balancers=karpenter";
/// cloud-provider-azure's label; excludes with the value `false`.
const MANAGED_LABEL: &str = "kubernetes.azure.com/managed";
/// cloud-provider-azure's label of a machine outside its resource group, which it adds to no pool of network interfaces.
const RESOURCE_GROUP_LABEL: &str = "kubernetes.azure.com/resource-group";
/// Exclude if the cloud's setting `excludeMasterFromStandardLB` is true.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];
/// The text in the Ready condition's message by which kubelet reports a graceful node shutdown (upstream:
/// `nodeshutdown` in kubelet).
const SHUTDOWN_MESSAGE: &str = "node is shutting down";
/// The prefix of the annotations that headgate writes.
const OWN_ANNOTATION_PREFIX: &str = "headgate.dev/";
/// Longer values of headgate's own annotations are ignored: headgate writes none. Those of others are cut to this, so that they do not
/// fill the remembered state; a matcher compares less.
pub(super) const MAX_ANNOTATION_BYTES: usize = 4096;
/// Messages are cut to this; a matcher compares less.
const MAX_MESSAGE_BYTES: usize = 512;
/// Of the message about connections, of all Nodes: the status of a maintenance has one for each of its nodes.
const MAX_CONNECTIONS_BYTES: usize = 256;
/// Longer values of Cluster Autoscaler's taint are cut. It writes ten digits.
const MAX_MARK_BYTES: usize = 32;

/// A Node. The remembered state contains it, without what only a fresh one says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is said by another field of the object"
)]
pub struct Node {
    /// The Node's name, `metadata.name`.
    pub name: String,
    /// The Node's UID, `metadata.uid`; a recreated Node has another.
    pub uid: String,
    /// The time of creation, `metadata.creationTimestamp`.
    #[serde(skip)]
    pub created: Timestamp,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// The labels that a matcher names, and those that say which load balancers have the Node; all where maintenances select Nodes by them.
    pub labels: BTreeMap<String, String>,
    /// The annotations that a matcher names; of the own Node also headgate's.
    pub annotations: BTreeMap<String, String>,
    /// In the order of the Node's spec. Values are those of the own Node only.
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned, if a matcher or a maintenance asks for it.
    pub unschedulable: bool,
    /// `spec.providerID` of the own Node.
    pub provider_id: String,
    /// The resource id of the virtual machine from `providerID`, in lower case; empty if there is none yet.
    pub machine: String,
    /// `status.nodeInfo.bootID` of the own Node; it changes with each boot.
    pub boot_id: String,
    /// The addresses of type `InternalIP`, of both families.
    pub addresses: Vec<IpAddr>,
    /// The addresses of other types, of the own Node.
    #[serde(skip)]
    pub other_addresses: Vec<IpAddr>,
    /// `spec.podCIDRs` of the own Node.
    #[serde(skip)]
    pub pod_cidrs: Vec<String>,
    /// The conditions that a matcher names, or that a maintenance sets, by type.
    pub conditions: BTreeMap<String, Condition>,
    /// Whether the condition `Ready` is `True`.
    #[serde(skip)]
    pub ready: bool,
    /// Since when it is not, by the clock of the condition's writer.
    #[serde(skip)]
    pub not_ready_since: Option<Timestamp>,
    /// Whether kubelet reports that the node shuts down.
    pub shutting_down: bool,
    /// The condition `headgate.dev/OutOfLoadBalancers`, if the Node has it.
    #[serde(skip)]
    pub marker: Option<MarkerFact>,
    /// The condition `headgate.dev/ConnectionsDrained`, if the Node has it and the reader needs it.
    #[serde(skip)]
    pub connections: Option<MarkerFact>,
    /// The hold that a leader has recorded on the Node.
    #[serde(skip)]
    pub hold: Option<NodeHold>,
    /// What Azure announced of the machine, as it is recorded on the Node.
    #[serde(skip)]
    pub notice: Option<RecordedNotice>,
    /// Whether the Node says that the machine is about to end, or does not work, whatever its condition `Ready`: it is being deleted,
    /// its VM is evicted or shut down, or it is out of service. Remembered itself: a condition that says so is kept only if a matcher
    /// names it.
    pub ends: bool,
    /// The label that excludes the Node from load balancers (cloud-provider-azure `shouldNodeExcludedFromLoadBalancer`), with its
    /// value if that is Karpenter's.
    #[serde(skip)]
    pub excluded: Option<&'static str>,
    /// The label of a control-plane node, which excludes it only by a setting of the cloud: [`Node::exclude_control_plane`].
    #[serde(skip)]
    pub control_plane: Option<&'static str>,
    /// Whether its labels say that no agent runs on it, because it is no Linux node, or a virtual one, as those of EKS Fargate are.
    #[serde(skip)]
    pub lacks_agent: bool,
    /// The value of the taint `headgate.dev/maintenance:NoSchedule`, if the Node has it.
    #[serde(skip)]
    pub maintenance_taint: Option<String>,
    /// `spec.unschedulable` before the first maintenance, from the Node's annotation.
    #[serde(skip)]
    pub was_unschedulable: Option<bool>,
    /// Whether a maintenance keeps autoscalers away from the node, from the Node's annotation.
    #[serde(skip)]
    pub is_kept_from_scale_down: bool,
    /// Whether headgate keeps the node out of upgrades of AKS, from the Node's annotation.
    #[serde(skip)]
    pub is_upgrade_paused: bool,
    /// The Machine of Cluster API that the Node belongs to, `NAMESPACE/NAME`, for maintenances.
    #[serde(skip)]
    pub cluster_api_machine: Option<String>,
    /// The signals of the reader's rules, each with how long it must last before it counts.
    #[serde(skip)]
    pub signals: BTreeMap<Signal, Duration>,
    /// The signals of the reader's other rules ([`NodeReader::health_rules`]). Those that must last before they count are among them from
    /// the start: agents count by their own clocks.
    #[serde(skip)]
    pub health_signals: BTreeSet<Signal>,
}

/// A condition of the Node, without its times: a heartbeat changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, one word.
    #[serde(default)]
    pub reason: String,
    /// The beginning of the message.
    #[serde(default)]
    pub message: String,
}

/// What is read of Node objects.
#[derive(Clone, Debug, Default)]
pub struct NodeReader {
    /// What is a signal.
    pub rules: SignalRules,
    /// What is a signal for the agents' health answers, for a reader of all Nodes; for an agent's own Node, what is one for admin states.
    pub health_rules: SignalRules,
    /// How much is kept.
    pub detail: NodeDetail,
}

/// How much is kept of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeDetail {
    /// Signals, and what identifies the Node in load balancers.
    #[default]
    Signals,
    /// The same, and what the maintenance controllers read.
    Maintenance,
    /// The same, and the times of the marker.
    MaintenanceByProbes,
    /// What an agent needs of its own Node.
    Own,
}

impl NodeReader {
    /// The reader of an agent's own Node.
    pub fn own(rules: SignalRules) -> Self {
        Self {
            rules,
            detail: NodeDetail::Own,
            ..Self::default()
        }
    }

    /// Reads a Node.
    pub fn read(&self, object: NodeObject) -> Node {
        let NodeObject {
            metadata,
            mut spec,
            status,
        } = object;
        for taint in &mut spec.taints {
            let is_kept = self.detail == NodeDetail::Own && taint.key == CORDON_TAINT;
            taint.time_added = taint.time_added.take().filter(|_| is_kept);
        }
        let uid = metadata.uid.unwrap_or_default();
        let labels = metadata.labels.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        let cluster_api_machine = cluster_api_machine(&annotations).filter(|_| self.maintains());
        // Whatever their length: they have what other annotations were before.
        let [is_kept_from_scale_down, is_upgrade_paused] =
            [SCALE_DOWN_ANNOTATION, UPGRADE_PAUSED_ANNOTATION].map(|key| annotations.contains_key(key));
        let annotations = self.annotations(annotations);
        let conditions = &status.conditions;
        let is_deleting = metadata.deletion_timestamp.is_some();
        let is_internal = |entry: &&AddressObject| entry.type_ == "InternalIP";
        let is_ready = |condition: &ConditionObject| condition.status == "True";
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let (internal, others) = status.addresses.iter().partition::<Vec<_>, _>(is_internal);
        let mut node = Node {
            name: metadata.name.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0).unwrap_or_default(),
            is_deleting,
            ends: is_deleting || spec.taints.iter().any(is_terminal),
            control_plane: control_plane_label(&labels),
            lacks_agent: lacks_agent(&labels),
            labels: self.labels(labels),
            uid,
            notice: RecordedNotice::from_annotations(&annotations).map(|notice| notice.tainted_by(&spec.taints)),
            was_unschedulable: annotations.get(CORDON_ANNOTATION).map(|value| value == "true"),
            is_kept_from_scale_down,
            is_upgrade_paused,
            cluster_api_machine,
            annotations,
            unschedulable: spec.unschedulable
                && (self.maintains() || self.reads(|matcher| matches!(matcher, SignalMatcher::Unschedulable(_)))),
            machine: machine_id(&spec.provider_id),
            provider_id: spec.provider_id,
            boot_id: status.node_info.boot_id,
            addresses: ip_addresses(&internal),
            other_addresses: ip_addresses(&others),
            pod_cidrs: spec.pod_cidrs,
            conditions: self.conditions(conditions),
            ready: ready.is_some_and(is_ready),
            not_ready_since: ready
                .filter(|condition| !is_ready(condition))
                .and_then(|condition| condition.last_transition_time.as_deref()?.parse().ok()),
            shutting_down: conditions.iter().any(is_shutdown),
            marker: MarkerFact::find(conditions, MARKER_CONDITION),
            connections: MarkerFact::find(conditions, CONNECTIONS_CONDITION),
            maintenance_taint: spec
                .taints
                .iter()
                .find(|taint| is_of_maintenance(taint))
                .map(|taint| taint.value.clone().unwrap_or_default()),
            taints: spec.taints,
            ..Node::default()
        };
        node = node.with_derived_facts().with_signals(&self.rules);
        node.health_signals = self.health_rules.detect(&node).into_keys().collect();
        if self.detail != NodeDetail::Own {
            self.reduce(&mut node);
        }
        node
    }

    fn maintains(&self) -> bool {
        matches!(self.detail, NodeDetail::Maintenance | NodeDetail::MaintenanceByProbes)
    }

    /// Drops what only an agent needs of its own Node.
    fn reduce(&self, node: &mut Node) {
        if self.maintains() {
            node.conditions
                .retain(|kind, _| MAINTENANCE_CONDITIONS.contains(&&**kind));
        } else {
            node.labels.clear();
            node.conditions.clear();
            node.unschedulable = false;
        }
        node.annotations.clear();
        node.provider_id = String::new();
        node.boot_id = String::new();
        node.other_addresses = Vec::new();
        node.pod_cidrs = Vec::new();
        node.connections = node.connections.take().filter(|_| self.maintains());
        if let Some(connections) = &mut node.connections {
            (connections.since, connections.confirmed_at) = (None, None);
            let end = connections.message.floor_char_boundary(MAX_CONNECTIONS_BYTES);
            connections.message.truncate(end);
        }
        for taint in &mut node.taints {
            taint.value = None;
        }
        if self.detail != NodeDetail::MaintenanceByProbes
            && let Some(marker) = &mut node.marker
        {
            (marker.since, marker.confirmed_at) = (None, None);
        }
        if let Some(hold) = &mut node.hold {
            hold.renewed_at = Timestamp::default();
        }
    }

    fn reads(&self, is_read: impl Fn(&SignalMatcher) -> bool) -> bool {
        let mut matchers = self.rules.matchers.iter().chain(&self.health_rules.matchers);
        matchers.any(is_read)
    }

    fn labels(&self, mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let excludes = |key: &str| [EXCLUDE_LABEL, MANAGED_LABEL, RESOURCE_GROUP_LABEL].contains(&key);
        let reads =
            |key: &str| self.reads(|matcher| matches!(matcher, SignalMatcher::Label(label) if label.key == key));
        labels.retain(|key, _| self.maintains() || excludes(key) || reads(key));
        labels
    }

    fn annotations(&self, mut annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
        annotations.retain(|key, value| {
            if key.starts_with(OWN_ANNOTATION_PREFIX) {
                return value.len() <= MAX_ANNOTATION_BYTES;
            }
            value.truncate(value.floor_char_boundary(MAX_ANNOTATION_BYTES));
            let is_read = |matcher: &_| matches!(matcher, SignalMatcher::Annotation(read) if read.key == *key);
            key == DELETION_DELAY_ANNOTATION || self.reads(is_read)
        });
        annotations
    }

    fn conditions(&self, conditions: &[ConditionObject]) -> BTreeMap<String, Condition> {
        let mut read = BTreeMap::new();
        for condition in conditions {
            let is_of_maintenance = self.maintains() && MAINTENANCE_CONDITIONS.contains(&&*condition.type_);
            let is_read =
                |matcher: &_| matches!(matcher, SignalMatcher::Condition(read) if read.kind == condition.type_);
            if is_of_maintenance || self.reads(is_read) {
                let message = condition.message.as_deref().unwrap_or_default();
                // A maintenance compares its own message as a whole.
                let end = if is_of_maintenance {
                    message.len()
                } else {
                    message.floor_char_boundary(MAX_MESSAGE_BYTES)
                };
                let kept = Condition {
                    status: condition.status.clone(),
                    reason: condition.reason.clone().unwrap_or_default(),
                    message: message[..end].to_owned(),
                };
                read.insert(condition.type_.clone(), kept);
            }
        }
        read
    }
}

/// Whether the agents' `DaemonSet` selects no Node with these labels, as the chart has it by default.
fn lacks_agent(labels: &BTreeMap<String, String>) -> bool {
    let value = |key| labels.get(key).map(String::as_str);
    value("kubernetes.io/os").is_some_and(|system| system != "linux")
        || value("type") == Some("virtual-kubelet")
        || value("eks.amazonaws.com/compute-type") == Some("fargate")
}

impl Node {
    /// The same Node with what follows from its stored fields, and is not stored itself.
    #[must_use]
    pub(super) fn with_derived_facts(mut self) -> Self {
        self.hold = NodeHold::from_annotations(&self.annotations, &self.uid);
        self.excluded = excluding_label(&self.labels);
        self
    }

    /// The same Node with the signals of these rules.
    #[must_use]
    pub fn with_signals(mut self, rules: &SignalRules) -> Self {
        self.signals = rules.detect(&self);
        self
    }

    /// Whether the Node has a taint with this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.key == key)
    }

    /// Since when the own Node is cordoned at the latest; `None` if Kubernetes has not tainted it.
    pub(super) fn cordoned_since(&self) -> Option<Timestamp> {
        let taint = self.taints.iter().find(|taint| taint.key == CORDON_TAINT)?;
        taint.time_added.as_deref()?.parse().ok()
    }

    /// The same Node, excluded if it is a control-plane node: for a cloud whose setting `excludeMasterFromStandardLB` is true.
    pub fn exclude_control_plane(self: Arc<Self>) -> Arc<Self> {
        if self.excluded.is_some() || self.control_plane.is_none() {
            return self;
        }
        let mut node = Arc::unwrap_or_clone(self);
        node.excluded = node.control_plane;
        Arc::new(node)
    }

    /// The same Node, excluded if it is in another resource group than `own` by their labels, which both readers must have kept: load balancers
    /// of network interfaces that have `own` do not have it.
    pub fn exclude_other_resource_group(self: Arc<Self>, own: Option<&Self>) -> Arc<Self> {
        let group = |node: &Self| {
            let group = node.labels.get(RESOURCE_GROUP_LABEL).filter(|group| !group.is_empty());
            group.map(|group| group.to_ascii_lowercase())
        };
        let own_group = own.and_then(group);
        if self.excluded.is_some() || group(&self).is_none_or(|group| Some(group) == own_group) {
            return self;
        }
        let mut node = Arc::unwrap_or_clone(self);
        node.excluded = Some(RESOURCE_GROUP_LABEL);
        Arc::new(node)
    }

    /// The notice that is recorded, if it counts: while its taint is there. Without the notice's value the taint is somebody else's, and
    /// says nothing of a notice that may long have ended.
    pub fn present_notice(&self) -> Option<RecordedNotice> {
        self.notice
            .filter(|notice| notice.is_tainted && self.has_taint(DRAINING_TAINT))
    }

    /// When the node is expected to be gone, or to restart, for one with a notice that counts.
    pub fn eviction_deadline(&self) -> Option<Timestamp> {
        self.present_notice()?.not_before
    }

    /// Whether the machine is about to end, or may be: what a condition of the settings announces is not known.
    pub fn is_terminal(&self) -> bool {
        self.ends || self.signals.keys().any(|signal| !signal.is_revocable())
    }

    /// The label that keeps the Node's entries from being set `Down`: the one that excludes it, unless the Node is about to be
    /// removed. cloud-controller-manager removes an excluded Node from the pools only at its next sync, and Karpenter terminates
    /// the machine before that.
    pub fn exempting_label(&self) -> Option<&'static str> {
        self.excluded.filter(|label| match *label {
            EXCLUDED_BY_KARPENTER => false,
            EXCLUDE_LABEL => !self.is_deleting,
            _ => true,
        })
    }

    /// Whether the marker says that the node has left its load balancers.
    pub fn is_marked_out(&self) -> bool {
        self.marker.as_ref().is_some_and(MarkerFact::is_out)
    }

    /// What the node's agent says of connections that still pass through the node; `None` if it counts none, or cannot count: then
    /// nothing waits for it.
    pub fn open_connections(&self) -> Option<&str> {
        let pending = self.connections.as_ref().filter(|connections| connections.is_pending());
        pending.map(|connections| &*connections.message)
    }

    /// Whether the Node says that the machine may go: it has left its load balancers, and no connection is known to pass through it.
    pub fn may_go(&self) -> bool {
        self.is_marked_out() && self.open_connections().is_none()
    }

    /// What is still to come before the machine may go, as the Node says it.
    pub fn waits_for(&self) -> &str {
        match (&self.marker, &self.connections) {
            (None, _) => "the condition headgate.dev/OutOfLoadBalancers is missing",
            (Some(marker), Some(connections)) if marker.is_out() => &connections.message,
            (Some(marker), _) => &marker.message,
        }
    }

    /// Whether Cluster Autoscaler may delete the node soon: the soft taint.
    pub fn is_deletion_candidate(&self) -> bool {
        self.has_taint(CANDIDATE_TAINT)
    }

    /// The value of Cluster Autoscaler's hard taint, Unix seconds of its start; `None` without that taint.
    pub fn deletion_mark(&self) -> Option<&str> {
        let hard = self.taints.iter().find(|taint| taint.key == AUTOSCALER_TAINT)?;
        let value = hard.value.as_deref().unwrap_or_default();
        Some(&value[..value.floor_char_boundary(MAX_MARK_BYTES)])
    }

    /// Whether the own Node has the annotation by which Cluster Autoscaler waits.
    pub fn is_deletion_delayed(&self) -> bool {
        self.annotations.contains_key(DELETION_DELAY_ANNOTATION)
    }
}

fn ip_addresses(entries: &[&AddressObject]) -> Vec<IpAddr> {
    entries.iter().filter_map(|entry| entry.address.parse().ok()).collect()
}

fn is_shutdown(condition: &ConditionObject) -> bool {
    condition.type_ == "Ready"
        && condition.status == "False"
        && condition.reason.as_deref() == Some("KubeletNotReady")
        && condition
            .message
            .as_deref()
            .is_some_and(|message| message.contains(SHUTDOWN_MESSAGE))
}

/// Whether the machine of a Node with this taint is about to end, or does not work.
fn is_terminal(taint: &Taint) -> bool {
    // A draining taint with another value was set for another reason, and may be removed again.
    !Signal::Taint(taint.key.clone()).is_revocable()
        || (taint.key == DRAINING_TAINT && taint.value.as_deref().is_some_and(AzureNotice::is_final_taint))
}

fn is_of_maintenance(taint: &Taint) -> bool {
    taint.key == MAINTENANCE_TAINT && taint.effect == "NoSchedule"
}

/// The resource id in a `providerID`, in lower case; empty for another cloud's.
fn machine_id(provider_id: &str) -> String {
    let scheme = "azure://";
    let id = provider_id.get(scheme.len()..);
    let is_azure = provider_id
        .get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    lower_case(id.filter(|_| is_azure).unwrap_or_default())
}

/// The Machine that these annotations name.
fn cluster_api_machine(annotations: &BTreeMap<String, String>) -> Option<String> {
    let [namespace, name] = CLUSTER_API_ANNOTATIONS.map(|key| annotations.get(key));
    let machine = format!("{}/{}", namespace?, name?);
    (machine.len() <= MAX_ANNOTATION_BYTES).then_some(machine)
}

/// The label by which cloud-provider-azure excludes a Node from load balancers.
fn excluding_label(labels: &BTreeMap<String, String>) -> Option<&'static str> {
    if let Some(value) = labels.get(EXCLUDE_LABEL) {
        let is_karpenter = value == "karpenter";
        return Some(if is_karpenter {
            EXCLUDED_BY_KARPENTER
        } else {
            EXCLUDE_LABEL
        });
    }
    if labels
        .get(MANAGED_LABEL)
        .is_some_and(|value| value.eq_ignore_ascii_case("false"))
    {
        return Some(MANAGED_LABEL);
    }
    None
}

fn control_plane_label(labels: &BTreeMap<String, String>) -> Option<&'static str> {
    let by_role = labels.get("kubernetes.io/role").is_some_and(|role| role == "master");
    let control_plane = CONTROL_PLANE_LABELS
        .into_iter()
        .find(|label| labels.contains_key(*label));
    control_plane.or(by_role.then_some("kubernetes.io/role"))
}

#[cfg(test)]
mod tests;
