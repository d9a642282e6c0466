//! Plays kubelet for the pods of the delay of Karpenter: each runs the real `headgate hold`, gets SIGTERM when the pod is deleted, and the pod
//! is gone when the process has ended.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use headgate_sandbox::process::Process;
use headgate_test_kubernetes::scratch;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::cluster::Shared;
use super::timeline::Step;

/// Longer than the grace period of the pods.
const MAX_GRACE: Duration = Duration::from_secs(140);

/// Runs the pods until the task is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let pods = Api::<Pod>::namespaced(shared.client.clone(), "kube-system");
    let config = watcher::Config::default().labels("app.kubernetes.io/component=hold");
    let mut events = watcher::watcher(pods, config).boxed();
    let mut running: BTreeMap<String, watch::Sender<bool>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else {
            continue;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let Some(node) = node else { continue };
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let sender = running.entry(pod.name_any()).or_insert_with(|| {
            let (sender, deleted) = watch::channel(false);
            tasks.spawn(run_pod(Arc::clone(&shared), pod.name_any(), node, deleted));
            sender
        });
        sender.send_if_modified(|known| !std::mem::replace(known, is_deleted) && is_deleted);
    }
}

async fn run_pod(shared: Arc<Shared>, pod: String, node: String, mut deleted: watch::Receiver<bool>) {
    let directory = scratch("hold");
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .current_dir(&directory)
        .env_remove("KUBECONFIG")
        .env("NODE_NAME", &node);
    command.arg("hold").arg("--kubeconfig").arg(&shared.kubeconfig);
    let mut process = Process::start("headgate hold", command, &directory.join("log")).unwrap();
    if deleted.wait_for(|deleted| *deleted).await.is_err() {
        return;
    }
    shared.timelines.record(&node, Step::HoldStopping);
    process.signal(Signal::SIGTERM);
    let ended = process.wait(MAX_GRACE).await;
    assert!(ended.is_some(), "headgate hold on {node} goes on");
    let pods = Api::<Pod>::namespaced(shared.client.clone(), "kube-system");
    let now = DeleteParams::default().grace_period(0);
    // It is gone already where the Node is.
    drop(pods.delete(&pod, &now).await);
    shared.timelines.record(&node, Step::HoldGone);
}
