//! The common part of the benchmarks: a real control plane, its Nodes, and the shared Lease with another holder.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use headgate_core::clock::Clock;
use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::process;
use headgate_test_kubernetes::{CCM, OtherProcess, SHARED_LEASE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::azure_emulator::node_name;
use crate::documents::{SIGNAL, leaders_node, node};

/// Concurrent requests to the API server.
const AT_ONCE: usize = 16;
/// Time within which a leader must release the shared Lease.
const PATIENCE: Duration = Duration::from_mins(1);

/// The running world.
pub(crate) struct World {
    pub(crate) client: Client,
    control_plane: ControlPlane,
    nodes: usize,
    leaders: usize,
    directory: TempDir,
}

impl World {
    /// A control plane with the leaders' Node only.
    pub(crate) async fn start(assets: Assets) -> anyhow::Result<Self> {
        Self::start_with(assets, |_| Ok(Vec::new())).await
    }

    /// The same, with the flags of kube-apiserver that `flags` makes from the world's directory.
    pub(crate) async fn start_with(
        assets: Assets,
        flags: impl FnOnce(&Path) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let control_plane = ControlPlane::start_with(assets, directory.path(), flags(directory.path())?).await?;
        let client = Client::try_from(control_plane.client_config())?;
        let own: Node = serde_json::from_value(leaders_node())?;
        Api::all(client.clone()).create(&PostParams::default(), &own).await?;
        Ok(Self {
            client,
            control_plane,
            nodes: 0,
            leaders: 0,
            directory,
        })
    }

    pub(crate) async fn stop(self) {
        self.control_plane.stop().await;
    }

    /// The directory of all its files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts kwok in place of the kubelets of the Nodes that this selector chooses.
    pub(crate) fn start_kubelets(&mut self, selector: &str) -> anyhow::Result<()> {
        Ok(self.control_plane.start_kwok(selector)?)
    }

    /// A `kubectl` command as administrator.
    pub(crate) fn kubectl(&self) -> anyhow::Result<Command> {
        let program = self.control_plane.assets().program("kubectl")?;
        let mut command = process::command_in(program, self.directory());
        command.arg("--kubeconfig").arg(self.control_plane.kubeconfig());
        Ok(command)
    }

    /// Stops the API server for this time.
    pub(crate) async fn outage(&mut self, length: Duration) -> anyhow::Result<()> {
        self.control_plane.stop_apiserver().await;
        sleep(length).await;
        Ok(self.control_plane.start_apiserver().await?)
    }

    /// The client configuration of the API server.
    pub(crate) fn config(&self) -> kube::Config {
        self.control_plane.client_config()
    }

    /// The same, in a file.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.control_plane.kubeconfig().to_owned()
    }

    /// A directory for one more leader.
    pub(crate) fn leader_directory(&mut self) -> PathBuf {
        self.leaders += 1;
        self.directory.path().join(format!("leader-{}", self.leaders))
    }

    /// Creates Nodes up to this number. Surplus Nodes stay and are in no pool.
    pub(crate) async fn nodes(&mut self, count: usize) -> anyhow::Result<()> {
        let api = Api::<Node>::all(self.client.clone());
        stream::iter((self.nodes..count).map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, async |number| create_node(&api, number).await)
            .await
            .context("making Nodes")?;
        self.nodes = self.nodes.max(count);
        Ok(())
    }

    /// Adds the signal to these Nodes, or removes it.
    pub(crate) async fn taint(&self, nodes: Range<usize>, on: bool) -> anyhow::Result<()> {
        let api = Api::<Node>::all(self.client.clone());
        let taints = on.then(|| json!([{"key": SIGNAL, "effect": "NoExecute"}]));
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        stream::iter(nodes.map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, async |number| {
                api.patch(&node_name(number), &PatchParams::default(), &patch).await?;
                Ok(())
            })
            .await
            .context("tainting Nodes")
    }

    /// Deletes the ledger of earlier leaders, whose load balancers no longer exist.
    pub(crate) async fn forget_ledger(&self) -> anyhow::Result<()> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), "kube-system");
        match api.delete("headgate-admin-state", &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).context("deleting the ledger"),
        }
    }

    /// Acquires the ARM Lease for another writer once it is free, as cloud-controller-manager does around a reconcile.
    pub(crate) async fn take_lock(&self) -> anyhow::Result<()> {
        self.lock_free().await?;
        self.other_process().lock(CCM).await.map_err(anyhow::Error::msg)?;
        Ok(())
    }

    /// Releases the ARM Lease.
    pub(crate) async fn release_lock(&self) -> anyhow::Result<()> {
        Ok(self.other_process().unlock(CCM).await?)
    }

    /// Waits until the ARM Lease is free.
    pub(crate) async fn lock_free(&self) -> anyhow::Result<()> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-system");
        let looking = async {
            while let Some(lease) = leases.get_opt(SHARED_LEASE).await?
                && lease
                    .spec
                    .is_some_and(|spec| spec.holder_identity.is_some_and(|holder| !holder.is_empty()))
            {
                sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, looking)
            .await
            .context("the ARM Lease is not given back")?
    }

    fn other_process(&self) -> OtherProcess {
        OtherProcess::new(self.client.clone(), SHARED_LEASE, Clock::System)
    }
}

/// Creates a Node with its status: of a new Node, unlike of most objects, the API server stores it.
pub(crate) async fn create_node(api: &Api<Node>, number: usize) -> anyhow::Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(node(number))?)
        .await?;
    Ok(())
}
