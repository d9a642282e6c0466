//! Leader election with real processes on a real API server: what each role does, what a defect in the leader task
//! does, and how the leader connects to ARM.

use std::net::SocketAddr;

use headgate_test_kubernetes::{control_plane, create_node, eventually, met};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use crate::harness::{AgentOptions, SOON, http, objects};

mod access;
mod defect;
mod notifications;
mod proxies;
mod roles;

/// The one Lease of the shared API server. No other test has a candidate there.
struct ExclusiveLease {
    leases: Api<Lease>,
    _mine: MutexGuard<'static, ()>,
}

impl ExclusiveLease {
    /// Locks the Lease for one test and releases it, so that the first read can acquire it.
    async fn free() -> Self {
        static LEASE: Mutex<()> = Mutex::const_new(());
        let mine = LEASE.lock().await;
        let leases = Api::<Lease>::namespaced(control_plane().client(), "kube-system");
        // It may not exist.
        let _ = leases.delete("headgate-leader", &DeleteParams::default()).await;
        let spec = json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z",
        });
        objects::create(&leases, json!({"metadata": {"name": "headgate-leader"}, "spec": spec})).await;
        Self { leases, _mine: mine }
    }

    async fn read(&self) -> Lease {
        self.leases.get("headgate-leader").await.unwrap()
    }

    /// Its holder; empty if it was released.
    async fn holder(&self) -> String {
        self.read().await.spec.unwrap().holder_identity.unwrap_or_default()
    }

    /// Waits until a process on this node holds it.
    async fn held_by(&self, node: &str) -> String {
        eventually(SOON, "the Lease is taken", async || {
            let holder = self.holder().await;
            if holder.starts_with(&format!("{node}_")) {
                Ok(holder)
            } else {
                Err(format!("held by {holder:?}"))
            }
        })
        .await
    }

    async fn version(&self) -> String {
        self.read().await.metadata.resource_version.unwrap()
    }
}

/// An agent of a Node of its own with an `azure.json`, and the name of the Node.
async fn candidate() -> (AgentOptions, String) {
    let node = create_node(&control_plane().client(), "leading").await;
    let options = AgentOptions::new(&node, &control_plane().kubeconfig);
    let azure = options.directory().join("azure.json");
    let text = r#"{"subscriptionId": "s", "resourceGroup": "g", "useManagedIdentityExtension": true}"#;
    std::fs::write(&azure, text).unwrap();
    let flag = format!("--azure-config-file={}", azure.display());
    (options.argument(&flag), node)
}

/// Waits until the metrics at this address contain a line.
async fn shows(metrics: SocketAddr, line: &str) {
    eventually(SOON, line, async || {
        let text = http::get(metrics, "/metrics").await.unwrap().text();
        let lines = text.lines().filter(|line| line.starts_with("headgate_leader"));
        let found: Vec<_> = lines.collect();
        met(found.contains(&line), found.join("\n"))
    })
    .await;
}
