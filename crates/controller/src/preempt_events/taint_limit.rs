//! How many Nodes get the draining taint by events in a minute. Pure.
//!
//! Anyone who may write events in the namespace `default` can announce the eviction of any Node, and the taint is terminal: the guard
//! holds no such Node back. The limit leaves people the time to notice that all Nodes are announced.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

/// Taints in [`WINDOW`].
const MAX_TAINTS: usize = 5;
const WINDOW: Duration = Duration::from_mins(1);
/// The labels of Nodes on spot VMs: AKS' and Karpenter's.
const SPOT_LABELS: [(&str, &str); 2] = [
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
];

/// Whether a Node says that its VM is a spot VM. Azure announces the eviction of no other one.
pub(super) fn is_spot(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let has = |(key, value): (&str, &str)| labels.and_then(|labels| labels.get(key)).is_some_and(|it| it == value);
    SPOT_LABELS.into_iter().any(has)
}

/// The last taints: when, and of which Node.
#[derive(Debug, Default)]
pub(super) struct TaintLimit {
    taken: VecDeque<(Instant, String)>,
}

impl TaintLimit {
    /// Takes a place for the taint of `node`, or returns when there is one. A failed write keeps its place, and the next attempt for the
    /// Node has the same one.
    pub(super) fn take(&mut self, node: &str, now: Instant) -> Result<(), Instant> {
        while self.taken.front().is_some_and(|(taken, _)| now >= *taken + WINDOW) {
            self.taken.pop_front();
        }
        if self.taken.iter().any(|(_, holder)| holder == node) {
            return Ok(());
        }
        match self.taken.front() {
            Some((oldest, _)) if self.taken.len() >= MAX_TAINTS => Err(*oldest + WINDOW),
            _ => {
                self.taken.push_back((now, node.to_owned()));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_on_spot_vms_say_so() {
        let node = |labels: serde_json::Value| {
            serde_json::from_value::<Node>(json!({"metadata": {"name": "n", "labels": labels}})).unwrap()
        };
        assert!(is_spot(&node(json!({"kubernetes.azure.com/scalesetpriority": "spot"}))));
        assert!(is_spot(&node(json!({"a": "b", "karpenter.sh/capacity-type": "spot"}))));
        assert!(!is_spot(&node(json!({"karpenter.sh/capacity-type": "on-demand"}))));
        assert!(!is_spot(&node(json!(null))));
    }

    #[test]
    fn five_taints_in_any_minute() {
        let begin = Instant::now();
        let second = |number: u64| begin + Duration::from_secs(number);
        let mut limit = TaintLimit::default();
        for number in 0..5 {
            assert_eq!(limit.take(&number.to_string(), second(10 * number)), Ok(()));
        }
        assert_eq!(limit.take("a", second(41)), Err(second(60)));
        assert_eq!(limit.take("a", second(59)), Err(second(60)));
        // The second attempt for a Node takes no second place, and prolongs none.
        assert_eq!(limit.take("0", second(59)), Ok(()));
        assert_eq!(limit.take("a", second(60)), Ok(()));
        assert_eq!(limit.take("0", second(61)), Err(second(70)));
        assert_eq!(limit.take("0", second(1000)), Ok(()));
    }
}
