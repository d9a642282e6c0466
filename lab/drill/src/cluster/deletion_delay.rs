//! Cluster Autoscaler's wait before it deletes a node's machine: while the Node has an annotation with its prefix.
//!
//! As in Cluster Autoscaler, an annotation has an effect only if it was there before the decision, so the drill goes on after
//! the soft taint only once it is there. The first look comes an interval after the drain, and the wait ends with its bound.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Cluster, ClusterError, POLL_INTERVAL, answered};
use crate::azure;

/// What the names of annotations that delay a deletion begin with.
const ANNOTATION_PREFIX: &str = "delay-deletion.cluster-autoscaler.kubernetes.io/";
/// How long an agent may take to set its annotation.
const ANNOTATION_TIMEOUT: Duration = Duration::from_secs(30);

/// How Cluster Autoscaler waits for annotations; both times are real.
#[derive(Clone, Copy, Debug)]
pub struct DeletionDelaySettings {
    /// Between two looks at the Node.
    pub interval: Duration,
    /// Its `--node-deletion-delay-timeout`.
    pub timeout: Duration,
}

impl Cluster {
    /// Returns once an annotation delays the deletion of a node, if any is to.
    pub(super) async fn wait_for_deletion_delay(&self, node: usize) -> Result<(), ClusterError> {
        if self.settings.deletion_delay.is_none() {
            return Ok(());
        }
        let delayed = async {
            while !self.is_deletion_delayed(node).await.unwrap_or(false) {
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(ANNOTATION_TIMEOUT, delayed)
            .await
            .map_err(|_| ClusterError::NotYet {
                what: "headgate's agent delays the deletion of its Node",
                waited: ANNOTATION_TIMEOUT,
                logs: self.logs.clone(),
            })
    }

    /// Returns when Cluster Autoscaler deletes the node's machine.
    pub(super) async fn wait_for_deletion(&self, node: usize) -> Result<(), ClusterError> {
        let Some(settings) = self.settings.deletion_delay else {
            return Ok(());
        };
        wait_while(settings, async || self.is_deletion_delayed(node).await).await
    }

    async fn is_deletion_delayed(&self, node: usize) -> Result<bool, ClusterError> {
        let name = azure::name(node);
        let nodes = Api::<Node>::all(self.client.clone());
        let node = answered(format!("read Node {name}"), nodes.get(&name)).await?;
        Ok(has_annotation(&node))
    }
}

fn has_annotation(node: &Node) -> bool {
    let annotations = node.metadata.annotations.iter().flatten();
    annotations
        .into_iter()
        .any(|(name, _)| name.starts_with(ANNOTATION_PREFIX))
}

/// Looks at every interval until nothing delays the deletion, at most until the timeout.
async fn wait_while<E>(
    settings: DeletionDelaySettings,
    is_delayed: impl AsyncFn() -> Result<bool, E>,
) -> Result<(), E> {
    let start = Instant::now();
    let mut next = start + settings.interval;
    while next <= start + settings.timeout {
        sleep_until(next).await;
        if !is_delayed().await? {
            return Ok(());
        }
        next += settings.interval;
    }
    sleep_until(start + settings.timeout).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::*;

    #[test]
    fn any_annotation_with_the_prefix_delays() {
        let node = |name: &str| -> Node {
            serde_json::from_value(json!({"metadata": {"annotations": {name: "true"}}})).unwrap()
        };
        assert!(has_annotation(&node(
            "delay-deletion.cluster-autoscaler.kubernetes.io/headgate"
        )));
        assert!(has_annotation(&node(
            "delay-deletion.cluster-autoscaler.kubernetes.io/other"
        )));
        assert!(!has_annotation(&node("headgate.dev/hold")));
        assert!(!has_annotation(&Node::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn looks_come_at_intervals_and_end_with_the_timeout() {
        let settings = DeletionDelaySettings {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(22),
        };
        let start = Instant::now();
        for (delayed_for, expected) in [(0, 5), (4, 5), (6, 10), (19, 20), (1000, 22)] {
            let began = Instant::now();
            let is_delayed = async || Ok::<_, Infallible>(began.elapsed() < Duration::from_secs(delayed_for));
            wait_while(settings, is_delayed).await.unwrap();
            assert_eq!(began.elapsed().as_secs(), expected, "delayed for {delayed_for} s");
        }
        assert_eq!(start.elapsed().as_secs(), 5 + 5 + 10 + 20 + 22);
    }
}
