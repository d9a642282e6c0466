//! Signals that come and go: which Nodes have one, and since when others have none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::azure_emulator::node_name;

/// Taints that are signals, the first of which Kubernetes removes from no Node here.
const SIGNALS: [&str; 3] = [
    "node.kubernetes.io/out-of-service",
    "cloudprovider.azure.microsoft.com/draining",
    "ToBeDeletedByClusterAutoscaler",
];
/// Nodes with a signal at a time.
const MAX_SIGNALLED: usize = 60;
/// For one change; after an outage the API server refuses requests for a moment.
const PATCH_TIMEOUT: Duration = Duration::from_mins(2);

/// The signals of all Nodes.
pub(crate) struct Signals {
    nodes: Api<Node>,
    count: usize,
    random: fastrand::Rng,
    signalled: BTreeSet<usize>,
    /// When each Node lost its last signal.
    ended: BTreeMap<usize, Instant>,
    pub(crate) changes: u64,
}

impl Signals {
    pub(crate) fn new(client: Client, count: usize) -> Self {
        Self {
            nodes: Api::all(client),
            count,
            random: fastrand::Rng::with_seed(1),
            signalled: BTreeSet::new(),
            ended: BTreeMap::new(),
            changes: 0,
        }
    }

    /// Gives one Node a signal or another one, or removes one.
    pub(crate) async fn change(&mut self) -> anyhow::Result<()> {
        let node = if self.signalled.len() >= MAX_SIGNALLED || !self.signalled.is_empty() && self.random.bool() {
            let index = self.random.usize(..self.signalled.len());
            self.signalled.iter().nth(index).copied().unwrap_or_default()
        } else {
            self.random.usize(..self.count)
        };
        let stays = self.signalled.contains(&node) && self.random.u8(..8) > 0;
        self.set(node, !stays).await
    }

    /// Removes all signals.
    pub(crate) async fn clear(&mut self) -> anyhow::Result<()> {
        for node in self.signalled.clone() {
            self.set(node, false).await?;
        }
        Ok(())
    }

    async fn set(&mut self, node: usize, has_signal: bool) -> anyhow::Result<()> {
        let key = self.random.choice(SIGNALS).unwrap_or_default();
        let taints = has_signal.then(|| json!([{"key": key, "effect": "NoExecute"}]));
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let patching = async {
            while let Err(error) = self
                .nodes
                .patch(&node_name(node), &PatchParams::default(), &patch)
                .await
            {
                if matches!(&error, kube::Error::Api(status) if status.code < 429) {
                    return Err(error);
                }
                sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        };
        timeout(PATCH_TIMEOUT, patching)
            .await
            .context("a signal was not changed in time")?
            .context("changing a signal")?;
        self.changes += 1;
        if has_signal {
            self.signalled.insert(node);
            self.ended.remove(&node);
        } else if self.signalled.remove(&node) {
            self.ended.insert(node, Instant::now());
        }
        Ok(())
    }

    /// The names of the Nodes with a signal.
    pub(crate) fn signalled(&self) -> BTreeSet<String> {
        self.signalled.iter().map(|node| node_name(*node)).collect()
    }

    /// The number of Nodes that have a signal, or had one in this time.
    pub(crate) fn signalled_within(&self, time: Duration) -> usize {
        let recent = self.ended.values().filter(|ended| ended.elapsed() <= time);
        self.signalled.len() + recent.count()
    }
}
