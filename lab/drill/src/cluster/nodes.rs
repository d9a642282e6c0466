//! The Nodes of a drill, and the signals that say that one goes away.

use headgate_sandbox::nodes::ready_node;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{Cluster, ClusterError, answered};
use crate::azure;
use crate::network::addresses;
use crate::scenario::Signal;

/// Keeps a Node that is deleted visible with its `deletionTimestamp`, as Karpenter's finalizer does.
const FINALIZER: &str = "headgate.dev/drill";

impl Cluster {
    /// Creates a Node unless it is there.
    pub(super) async fn create_node(&self, node: usize) -> Result<(), ClusterError> {
        let name = azure::name(node);
        let mut object = ready_node(&name, u8::try_from(node + 1).unwrap_or(u8::MAX), "drill");
        object.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        if let Some(status) = &mut object.status {
            status.addresses = Some(vec![NodeAddress {
                type_: "InternalIP".to_owned(),
                address: addresses::node(node).to_string(),
            }]);
        }
        let nodes = Api::<Node>::all(self.client.clone());
        let parameters = PostParams::default();
        let created = nodes.create(&parameters, &object);
        match answered(format!("create Node {name}"), created).await {
            Err(ClusterError::Api { source, .. }) if is_conflict(&source) => Ok(()),
            created => created.map(drop),
        }
    }

    async fn patch_node(&self, node: usize, patch: &serde_json::Value) -> Result<(), ClusterError> {
        let name = azure::name(node);
        let nodes = Api::<Node>::all(self.client.clone());
        let (parameters, merge) = (PatchParams::default(), Patch::Merge(patch));
        let patched = nodes.patch(&name, &parameters, &merge);
        answered(format!("patch Node {name}"), patched).await.map(drop)
    }

    async fn delete_node(&self, node: usize) -> Result<(), ClusterError> {
        let name = azure::name(node);
        let nodes = Api::<Node>::all(self.client.clone());
        let parameters = DeleteParams::default();
        let deleted = nodes.delete(&name, &parameters);
        answered(format!("delete Node {name}"), deleted).await.map(drop)
    }

    pub(super) async fn signal(&mut self, node: usize, signal: Signal) -> Result<(), ClusterError> {
        self.signals[node].push(signal);
        match signal {
            Signal::Deletion => self.delete_node(node).await,
            Signal::NodeMaintenance => self.begin_maintenance(node).await,
            Signal::SpotNotice => match &self.emulator {
                Some(emulator) => emulator.announce_eviction(node, self.settings.notice).await,
                // No agent runs that would read it.
                None => Ok(()),
            },
            Signal::AutoscalerTaint
            | Signal::AutoscalerCandidate
            | Signal::KarpenterTaint
            | Signal::MaintenanceTaint => {
                let taints = self.signals[node].iter().filter_map(|signal| signal.taint());
                let taints: Vec<_> = taints
                    .map(|(key, effect)| json!({"key": key, "effect": effect}))
                    .collect();
                self.patch_node(node, &json!({"spec": {"taints": taints}})).await?;
                if signal == Signal::AutoscalerCandidate {
                    self.wait_for_deletion_delay(node).await?;
                }
                Ok(())
            }
        }
    }

    /// Takes the signals of a node back. What the agent of a machine that is gone has written to its Node goes with the Node.
    pub(super) async fn withdraw_signals(&mut self, node: usize) -> Result<(), ClusterError> {
        let signals = std::mem::take(&mut self.signals[node]);
        if signals.is_empty() {
            return Ok(());
        }
        let was_evicted = signals.contains(&Signal::SpotNotice);
        if let (true, Some(emulator)) = (was_evicted, &self.emulator) {
            emulator.clear_evictions().await?;
        }
        let patch = json!({"metadata": {"finalizers": null}, "spec": {"taints": null}});
        self.patch_node(node, &patch).await?;
        if was_evicted || signals.contains(&Signal::AutoscalerCandidate) {
            self.delete_node(node).await?;
        }
        // A Node that was deleted is gone with its finalizer; another one takes its name.
        self.create_node(node).await
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}
