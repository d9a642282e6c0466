//! What fields of Nodes should be, as features publish it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::telemetry::words;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::Instant;

words! {
    /// The fields of a Node that one feature writes; the label `field` of the metric.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum NodeField {
        /// The condition `headgate.dev/ConnectionsDrained`.
        Connections = "connections",
        /// The annotation by which Cluster Autoscaler waits before it deletes the node.
        DeletionDelay = "deletion_delay",
        /// The draining taint of an eviction, and the annotation that records the notice.
        DrainingTaint = "draining_taint",
        /// The annotation `headgate.dev/hold`.
        Hold = "hold",
        /// Cordon and taint of a maintenance, and the annotation that remembers the cordon before it.
        Maintenance = "maintenance",
        /// The conditions of a maintenance.
        MaintenanceConditions = "maintenance_conditions",
        /// The condition `headgate.dev/OutOfLoadBalancers`.
        Marker = "marker",
        /// The label that keeps a node out of upgrades of AKS, and the annotation that records it.
        UpgradeStatus = "upgrade_status",
    }
}

impl NodeField {
    /// What gives an agent the right to write the field, for its log.
    pub(super) fn grant(self) -> &'static str {
        match self {
            Self::DeletionDelay => "; delayTermination.clusterAutoscaler of the chart grants patch on nodes",
            Self::DrainingTaint => "; evictionNotices.enabled of the chart grants patch on nodes",
            Self::Connections => "; outOfLoadBalancers.enabled of the chart grants patch on nodes/status",
            Self::Hold | Self::Maintenance | Self::MaintenanceConditions | Self::Marker | Self::UpgradeStatus => "",
        }
    }
}

/// Whether the watch shows a value on its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It shows the value.
    Yes,
    /// It shows another one.
    No,
    /// What it shows does not tell.
    Unknown,
}

/// What a field of a Node should be.
#[derive(Clone)]
pub struct NodeIntent {
    /// The UID of the Node; `None` if only its name is known.
    pub uid: Option<String>,
    /// Names the value: another key is another value, which is written at once.
    pub key: String,
    /// Whether the watch shows the value.
    pub shown: Shown,
    /// How long after a write the value is written again although nothing has changed; `None` for never.
    pub renew_interval: Option<Duration>,
    /// Makes the value.
    pub edit: Arc<dyn NodeEdit>,
}

impl NodeIntent {
    /// Whether both leave the same on the same Node.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.uid, &self.key) == (&other.uid, &other.key)
    }
}

impl fmt::Debug for NodeIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut intent = f.debug_struct("NodeIntent");
        let intent = intent.field("uid", &self.uid).field("key", &self.key);
        intent.field("shown", &self.shown).finish_non_exhaustive()
    }
}

/// What an edit made of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// The Node has the value, from now on or before.
    Done,
    /// Nothing is to be written before this time.
    NotBefore(Instant),
    /// The value does not follow from the Node as it is now.
    Outdated,
}

/// Brings a field of a Node to its value.
pub trait NodeEdit: Send + Sync {
    /// Edits a Node that was just read: annotations, `spec.unschedulable`, taints and conditions.
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited;

    /// Called when the Node does not exist.
    fn missing(&self) {}

    /// Called when the API server answers the write with an error or not at all, as where an admission webhook refuses, fails or hangs.
    fn failed(&self, _why: &str) {}

    /// Called after the API server has accepted a change of the Node.
    fn written(&self, _before: &Node, _after: &Node) {}
}

impl<F: Fn(&mut Node, Timestamp) -> Edited + Send + Sync> NodeEdit for F {
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited {
        self(node, now)
    }
}

pub(super) type Intents = BTreeMap<NodeField, Arc<BTreeMap<String, NodeIntent>>>;

/// Where features publish what fields should be. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct NodeIntents(pub(super) watch::Sender<Intents>);

impl NodeIntents {
    /// The publisher of one field.
    pub fn field(&self, field: NodeField) -> FieldIntents {
        let intents = self.0.clone();
        FieldIntents { field, intents }
    }
}

/// Publishes what one field of each Node should be. When it is dropped, nothing more is written for it.
#[derive(Debug)]
pub struct FieldIntents {
    field: NodeField,
    intents: watch::Sender<Intents>,
}

impl FieldIntents {
    /// Replaces what the field should be, by the name of the Node. A Node that is missing is not written.
    pub fn publish(&self, nodes: BTreeMap<String, NodeIntent>) {
        self.intents.send_if_modified(|intents| {
            let is_empty = |known: &Arc<BTreeMap<_, _>>| known.is_empty();
            let is_changed = !nodes.is_empty() || !intents.get(&self.field).is_none_or(is_empty);
            intents.insert(self.field, Arc::new(nodes));
            is_changed
        });
    }
}

impl Drop for FieldIntents {
    fn drop(&mut self) {
        self.publish(BTreeMap::new());
    }
}
