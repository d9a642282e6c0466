//! A restore of etcd on the real kube-apiserver: agents and the watch of all Nodes list again, although their versions are in the
//! future.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use headgate_core::clock::Clock;
use headgate_kubernetes::{WatchErrorCounter, WatchReporter, WatchStream, watch_events};
use headgate_test_kubernetes::{create_node, eventually, own_cluster, set_taints};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;

use crate::harness::AgentOptions;
use crate::harness::http::Response;

/// The longest backoff, with its jitter, after an outage on a busy machine.
const SOON: Duration = Duration::from_mins(2);
/// The writes between snapshot and restore.
const LOST_WRITES: u32 = 300;

async fn current_version(client: &Client) -> u64 {
    let nodes = Api::<Node>::all(client.clone());
    let list = nodes.list_metadata(&ListParams::default().limit(1)).await.unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

/// How many taints the only Node has, by the events of a watch.
fn follow(mut events: WatchStream<Event<Node>>) -> watch::Receiver<Option<usize>> {
    let (sender, taints) = watch::channel(None);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(node) | Event::InitApply(node)) = event {
                let count = node.spec.and_then(|spec| spec.taints).unwrap_or_default().len();
                sender.send_replace(Some(count));
            }
        }
    });
    taints
}

#[tokio::test]
async fn agents_and_the_watch_of_all_nodes_list_again_after_a_restore() {
    let (mut control_plane, client) = own_cluster().await;
    let node = create_node(&client, "restored").await;
    let snapshot = control_plane
        .snapshot_etcd()
        .await
        .unwrap_or_else(|error| panic!("{error}"));

    let agent = AgentOptions::new(&node, control_plane.kubeconfig()).start().await;
    let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
    let config = watcher::Config::default().timeout(50);
    let all_nodes = follow(watch_events(&client, Api::all, config, reporter));
    set_taints(
        &client,
        &node,
        json!([{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]),
    )
    .await;
    let answers = async |status: u16| {
        let is_expected = |answer: &Response| answer.status == status;
        agent
            .healthz_becomes(SOON, &format!("/healthz answers {status}"), is_expected)
            .await;
    };
    answers(503).await;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    for number in 0..LOST_WRITES {
        let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "written"}, "data": {"number": number.to_string()}});
        let params = PatchParams::apply("test").force();
        maps.patch("written", &params, &Patch::Apply(patch)).await.unwrap();
    }
    assert_eq!(*all_nodes.borrow(), Some(1));
    let before = current_version(&client).await;

    control_plane
        .restore_etcd(&snapshot)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let restored = Instant::now();
    let after = current_version(&client).await;
    assert!(after < before, "{after} and {before}");
    answers(200).await;
    let agent_took = restored.elapsed();
    eventually(SOON, "the Node without its taint", async || {
        let found = *all_nodes.borrow();
        (found == Some(0)).then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
    println!(
        "versions went back from {before} to {after}; after kube-apiserver was ready, the agent needed {agent_took:?}, the watch of \
         all Nodes {:?}",
        restored.elapsed()
    );
    // The watches that they have now report changes, as long as the versions are in the past of those before.
    set_taints(
        &client,
        &node,
        json!([{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]),
    )
    .await;
    answers(503).await;
    set_taints(&client, &node, json!([])).await;
    answers(200).await;
    assert!(current_version(&client).await < before);
    control_plane.stop().await;
}
