//! Removes what headgate wrote on Nodes, after headgate itself was deleted.
//!
//! Invariants: nothing is changed while a leader is alive or a maintenance is not over: the annotations are the controllers' record of how a
//! Node was before. Nothing of other writers is changed. A Node that a maintenance made unschedulable stays so: someone may be working on it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, stream};
use headgate_agent::spot::NoticeRecord;
use headgate_core::clock::Clock;
use headgate_core::node::{
    CONNECTIONS_CONDITION, CORDON_ANNOTATION, DELETION_DELAY_ANNOTATION, HOLD_ANNOTATION, MARKER_CONDITION,
    SPOT_NOTICE_ANNOTATION,
};
use headgate_kubernetes::leader::LeaderStatus;
use headgate_kubernetes::{Decoded, Edited, NodeField, NodeIntent, NodeWriteMetrics, NodeWriter, Shown};
use headgate_maintenance::controller::remove_traces;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use prometheus_client::registry::Registry;
use tokio::time::sleep;

use super::maintenances::unfinished_maintenances;
use crate::status::read_leader;

/// Nodes in one page of a list: each has 20 KiB and more.
const PAGE_SIZE: u32 = 100;
const MAX_CONCURRENT_WRITES: usize = 8;
/// A leader renews its Lease more often.
const RENEWAL_TIME: Duration = Duration::from_secs(15);

/// What became of all Nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// Nodes of which something was removed.
    pub(crate) nodes: usize,
    /// Those of these that a maintenance had made unschedulable.
    pub(crate) unschedulable: Vec<String>,
    /// Nodes that were not written, and why.
    pub(crate) failed: Vec<String>,
}

/// Why headgate may still need what is on the Nodes; `None` if it does not.
async fn in_use(client: &Client) -> Option<String> {
    let unknown = |error| Some(format!("the leader is unknown: {error}"));
    let first = match read_leader(client).await {
        Ok(leader) => leader,
        Err(error) => return unknown(error),
    };
    if let Some(LeaderStatus {
        holder: Some(holder),
        alive,
        renewed,
        ..
    }) = first
    {
        let is_renewed = alive || {
            // This machine's clock may be ahead of the leader's.
            sleep(RENEWAL_TIME).await;
            match read_leader(client).await {
                Ok(second) => second.is_some_and(|second| second.renewed != renewed),
                Err(error) => return unknown(error),
            }
        };
        if is_renewed {
            return Some(format!("{holder} leads"));
        }
    }
    unfinished_maintenances(client).await
}

/// Removes what headgate wrote from all Nodes. May be repeated.
///
/// # Errors
/// If a leader is alive, a maintenance is not over, or the Nodes cannot be listed.
pub(crate) async fn clean_nodes(client: &Client) -> anyhow::Result<Cleaned> {
    if let Some(reason) = in_use(client).await {
        bail!(
            "{reason}. Nothing was changed: what headgate wrote on Nodes is its record of them. Repeat this once maintenances are over and headgate \
             is deleted; where it is deleted already, take the finalizers of headgate.dev off what is left first"
        );
    }
    let metrics = NodeWriteMetrics::register(&mut Registry::default());
    let writer = NodeWriter::new(client.clone(), metrics, Clock::System);
    let api = Api::<Decoded<Node>>::all(client.clone());
    let (mut cleaned, mut page) = (Cleaned::default(), ListParams::default().limit(PAGE_SIZE));
    loop {
        let list = api.list(&page).await.context("listing the Nodes")?;
        let nodes = list.items.into_iter().filter_map(|node| match node {
            Decoded::Object(node) => has_traces(&node).then_some(Ok(node)),
            Decoded::Undecodable(undecodable) => Some(Err(undecodable.to_string())),
        });
        let writer = &writer;
        let clean_one = |node: Result<Node, String>| async move {
            let node = node?;
            let name = node.name_any();
            let written = writer.write_now(&name, NodeField::Maintenance, removal(&node)).await;
            written.map(|()| node).map_err(|error| format!("{name}: {error}"))
        };
        let mut all = stream::iter(nodes.map(clean_one)).buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some(written) = all.next().await {
            match written {
                Ok(node) => {
                    cleaned.nodes += 1;
                    cleaned
                        .unschedulable
                        .extend(is_made_unschedulable(&node).then(|| node.name_any()));
                }
                Err(error) => cleaned.failed.push(error),
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(cleaned),
        }
    }
}

fn removal(node: &Node) -> NodeIntent {
    NodeIntent {
        uid: node.metadata.uid.clone(),
        key: String::new(),
        shown: Shown::No,
        renew_interval: None,
        edit: Arc::new(|node: &mut Node, _| {
            clean(node);
            Edited::Done
        }),
    }
}

fn has_traces(node: &Node) -> bool {
    let mut cleaned = node.clone();
    clean(&mut cleaned);
    cleaned != *node
}

/// Whether the Node is unschedulable by a maintenance, and was not before.
fn is_made_unschedulable(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    let before = annotations.and_then(|annotations| annotations.get(CORDON_ANNOTATION));
    let is_unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    is_unschedulable == Some(true) && before.is_some_and(|before| before == "false")
}

fn clean(node: &mut Node) {
    remove_traces(node);
    let annotations = node.metadata.annotations.as_mut();
    let recorded = annotations.and_then(|annotations| {
        let recorded = NoticeRecord::from_annotations(annotations);
        for ours in [HOLD_ANNOTATION, DELETION_DELAY_ANNOTATION, SPOT_NOTICE_ANNOTATION] {
            annotations.remove(ours);
        }
        recorded
    });
    let taints = node.spec.as_mut().and_then(|spec| spec.taints.as_mut());
    if let (Some(taints), Some(recorded)) = (taints, recorded) {
        taints.retain(|taint| !recorded.has_added(taint));
    }
    if let Some(conditions) = node.status.as_mut().and_then(|status| status.conditions.as_mut()) {
        conditions.retain(|condition| ![MARKER_CONDITION, CONNECTIONS_CONDITION].contains(&&*condition.type_));
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::DRAINING_TAINT;
    use headgate_maintenance::api::NodeMaintenance;
    use headgate_maintenance::api::names::COMPLETION_FINALIZER;
    use headgate_test_kubernetes::FakeApi;
    use jiff::SignedDuration;
    use k8s_openapi::api::coordination::v1::Lease;
    use kube::api::{Patch, PatchParams, PostParams};
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, annotations: &Value, taints: &Value, conditions: &Value, is_unschedulable: bool) -> Value {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations},
            "spec": {"unschedulable": is_unschedulable, "taints": taints}, "status": {"conditions": conditions}})
    }

    fn condition(kind: &str, message: &str) -> Value {
        json!({"type": kind, "status": "True", "reason": "R", "message": message})
    }

    #[tokio::test]
    async fn what_headgate_wrote_on_nodes_is_removed_and_nothing_else() {
        let others = json!({"a": "b"});
        let draining = json!({"key": DRAINING_TAINT, "value": "terminate", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"});
        let notice = r#"{"eventType":"Terminate","eventId":"a","taintedAt":"2026-01-02T03:04:05Z"}"#;
        let other_taint = json!({"key": "other", "effect": "NoSchedule"});
        let (ready, by_hand) = (condition("Ready", ""), condition("DrainInProgress", "by hand"));
        let mut all = node(
            "all",
            &json!({"a": "b", "headgate.dev/hold": "{}", "headgate.dev/spot-notice": notice,
                "delay-deletion.cluster-autoscaler.kubernetes.io/headgate": "true",
                "headgate.dev/unschedulable-before-maintenance": "false",
                "headgate.dev/upgrade-paused": "true",
                "headgate.dev/scale-down-before-maintenance": "{\"karpenter.sh/do-not-disrupt\":null}",
                "karpenter.sh/do-not-disrupt": "true"}),
            &json!([draining, other_taint, {"key": "headgate.dev/maintenance", "value": "uid", "effect": "NoSchedule"}]),
            &json!([
                ready,
                condition("headgate.dev/OutOfLoadBalancers", ""),
                condition("headgate.dev/ConnectionsDrained", ""),
                condition("Drained", "NodeMaintenance m"),
                by_hand
            ]),
            true,
        );
        let paused = json!({"kubernetes.azure.com/upgrade-status": "paused", "zone": "1"});
        all["metadata"]["labels"] = paused.clone();
        // Its taints are other writers': neither a notice nor a maintenance is recorded.
        let by_others = json!([draining, {"key": "headgate.dev/maintenance", "value": "mine", "effect": "NoSchedule"}]);
        let mut foreign = node("foreign", &others, &by_others, &json!([by_hand]), true);
        foreign["metadata"]["labels"] = paused;
        // Its taint was there before the notice, so it is another writer's.
        let recorded = json!({"a": "b", "headgate.dev/spot-notice": r#"{"eventType":"Terminate","eventId":"a"}"#});
        let second = node("second", &recorded, &json!([draining]), &json!([]), false);
        let fake = FakeApi::default();
        let client = fake.client().0;
        for node in [&all, &foreign, &second] {
            let node: Node = serde_json::from_value(node.clone()).unwrap();
            Api::all(client.clone())
                .create(&PostParams::default(), &node)
                .await
                .unwrap();
        }
        let cleaned = clean_nodes(&client).await.unwrap();
        let mut all = node("all", &others, &json!([other_taint]), &json!([ready, by_hand]), true);
        all["metadata"]["labels"] = json!({"zone": "1"});
        let expected = Cleaned {
            nodes: 2,
            unschedulable: vec!["all".to_owned()],
            failed: Vec::new(),
        };
        assert_eq!(cleaned, expected);
        let second = node("second", &others, &json!([draining]), &json!([]), false);
        for (name, expected) in [("all", all), ("foreign", foreign), ("second", second)] {
            let left: Node = fake.peek("", name).unwrap();
            let left = json!(left);
            for path in [
                "/metadata/annotations",
                "/metadata/labels",
                "/spec",
                "/status/conditions",
            ] {
                assert_eq!(left.pointer(path), expected.pointer(path), "{name} {path}");
            }
        }
        assert_eq!(clean_nodes(&client).await.unwrap(), Cleaned::default());
    }

    /// A Lease that was renewed so many seconds ago by this machine's clock.
    fn renewed_before(age: i64) -> Lease {
        let at = Clock::System.now().wall - SignedDuration::from_secs(age);
        let at = at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        serde_json::from_value(
            json!({"metadata": {"namespace": "kube-system", "name": "headgate-leader"},
            "spec": {"holderIdentity": "n1_0a", "leaseDurationSeconds": 15, "acquireTime": at, "renewTime": at}}),
        )
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_of_a_headgate_that_may_run_are_left_alone() {
        let maintenance: NodeMaintenance =
            serde_json::from_value(json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
            "metadata": {"name": "m", "finalizers": [COMPLETION_FINALIZER]},
            "spec": {"nodeSelector": {"nodeSelectorTerms": []}, "stage": "Drain"}}))
            .unwrap();
        let annotations = json!({"headgate.dev/hold": "{}", "headgate.dev/unschedulable-before-maintenance": "false"});
        let cordoned = node("one", &annotations, &json!([]), &json!([]), true);
        for (lease, maintenance, reason) in [
            (Some(renewed_before(0)), None, "n1_0a leads"),
            // By a clock that is behind this machine's.
            (Some(renewed_before(600)), None, "n1_0a leads"),
            (None, Some(maintenance), "1 NodeMaintenances are not over: m"),
        ] {
            let fake = FakeApi::default();
            let client = fake.client().0;
            let node: Node = serde_json::from_value(cordoned.clone()).unwrap();
            let params = PostParams::default();
            let nodes = Api::all(client.clone());
            nodes.create(&params, &node).await.unwrap();
            if let Some(lease) = lease {
                let leases = Api::namespaced(client.clone(), "kube-system");
                leases.create(&params, &lease).await.unwrap();
            }
            if let Some(maintenance) = maintenance {
                let maintenances = Api::all(client.clone());
                maintenances.create(&params, &maintenance).await.unwrap();
            }
            let renew = async {
                sleep(RENEWAL_TIME / 2).await;
                let leases = Api::<Lease>::namespaced(client.clone(), "kube-system");
                let renewed = json!({"spec": {"renewTime": renewed_before(590).spec.unwrap().renew_time}});
                let _ = leases
                    .patch("headgate-leader", &PatchParams::default(), &Patch::Merge(renewed))
                    .await;
            };
            let (refused, ()) = tokio::join!(clean_nodes(&client), renew);
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
            let left: Node = fake.peek("", "one").unwrap();
            assert_eq!(json!(left)["metadata"]["annotations"], annotations, "{reason}");
        }
    }
}
