//! The control plane that the tests of a binary share, and separate ones.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::scratch;

/// Timeout of the build of the control plane, on a machine without it.
const BUILD_TIMEOUT: Duration = Duration::from_mins(45);

/// Files and addresses of the shared control plane.
#[derive(Debug)]
pub struct Cluster {
    /// Path of a kubeconfig with the rights of cluster-admin.
    pub kubeconfig: PathBuf,
    /// The URL at which kube-apiserver listens.
    pub server: String,
    /// The directory of the control plane, with `logs/`.
    pub directory: PathBuf,
    config: kube::Config,
}

impl Cluster {
    /// A client of the administrator. It belongs to the runtime of the calling test.
    pub fn client(&self) -> Client {
        Client::try_from(self.config.clone()).unwrap()
    }

    /// A `kubectl` command with the administrator's kubeconfig.
    pub fn kubectl(&self) -> Command {
        kubectl(&self.kubeconfig)
    }
}

/// A `kubectl` command with this kubeconfig.
pub fn kubectl(kubeconfig: &Path) -> Command {
    let mut command = Command::new(assets().program("kubectl").unwrap());
    command.arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
    command
}

/// The control plane that all tests of this binary share; the first call starts it.
///
/// Tests must not stop or reconfigure it. It ends with this process.
pub fn control_plane() -> &'static Cluster {
    static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        assets();
        // A separate thread that lives as long as this process: children end with the thread that starts them.
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("control-plane".to_owned())
            .spawn(move || run_shared(&sender))
            .unwrap();
        receiver
            .recv()
            .unwrap_or_else(|_| Err("its thread panicked".to_owned()))
    });
    shared
        .as_ref()
        .unwrap_or_else(|error| panic!("the shared control plane: {error}"))
}

#[tokio::main(flavor = "current_thread")]
async fn run_shared(started: &mpsc::Sender<Result<Cluster, String>>) {
    match ControlPlane::start(assets().clone(), &scratch("shared")).await {
        Ok(mut control_plane) => {
            let cluster = Cluster {
                kubeconfig: control_plane.kubeconfig().to_owned(),
                server: control_plane.server(),
                directory: control_plane.directory().to_owned(),
                config: control_plane.client_config(),
            };
            started.send(Ok(cluster)).unwrap();
            let end = control_plane.wait_for_exit().await;
            // Not eprintln!, which goes nowhere outside a test's own thread when output is captured.
            let _ = writeln!(
                std::io::stderr(),
                "the shared control plane ended, so the tests fail: {end}"
            );
        }
        Err(error) => started.send(Err(error.to_string())).unwrap(),
    }
}

/// Creates a Node for one test, ready and without taints, and returns its name, which starts with `prefix`.
pub async fn create_node(client: &Client, prefix: &str) -> String {
    static CREATED: AtomicU16 = AtomicU16::new(1);
    let number = CREATED.fetch_add(1, Ordering::Relaxed).try_into().unwrap();
    let name = format!("{prefix}-{number}");
    let node = headgate_sandbox::nodes::ready_node(&name, number, "integration");
    Api::<Node>::all(client.clone())
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    name
}

/// Merges a patch into a Node.
pub async fn patch_node(client: &Client, node: &str, patch: Value) {
    let nodes = Api::<Node>::all(client.clone());
    let patch = Patch::Merge(patch);
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Replaces the taints of a Node.
pub async fn set_taints(client: &Client, node: &str, taints: Value) {
    patch_node(client, node, json!({"spec": {"taints": taints}})).await;
}

/// Whether the API server is that of Kubernetes 1.30, the oldest that headgate supports. docs/concepts/limits.md lists how it differs.
pub async fn is_kubernetes_1_30(client: &Client) -> bool {
    let request = hyper::Request::get("/version").body(Vec::new()).unwrap();
    let version: Value = client.request(request).await.unwrap();
    (version["major"].as_str(), version["minor"].as_str()) == (Some("1"), Some("30"))
}

/// A control plane for one test, on the thread of the test. Stop it at the end of the test.
pub async fn own_control_plane() -> ControlPlane {
    own_control_plane_with(Vec::new()).await
}

/// The same with further flags of kube-apiserver.
pub async fn own_control_plane_with(apiserver_arguments: Vec<String>) -> ControlPlane {
    ControlPlane::start_with(assets().clone(), &scratch("own"), apiserver_arguments)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The same, and a client of its administrator.
pub async fn own_cluster() -> (ControlPlane, Client) {
    let control_plane = own_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
    (control_plane, client)
}

/// The programs of the control plane. Builds them if they are missing, with the output of the build on stderr.
pub fn assets() -> &'static Assets {
    static ASSETS: OnceLock<Assets> = OnceLock::new();
    ASSETS.get_or_init(|| {
        let given = std::env::var_os("KUBEBUILDER_ASSETS").is_some_and(|directory| !directory.is_empty());
        let built = if given {
            None
        } else {
            Some(std::thread::spawn(build).join().unwrap())
        };
        Assets::find(built.as_deref()).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// Runs build.sh. Call it on a separate thread: the caller's thread may have a runtime already.
#[tokio::main(flavor = "current_thread")]
async fn build() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/control-plane/build.sh");
    let mut command = tokio::process::Command::new(&script);
    command.stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = timeout(BUILD_TIMEOUT, command.output())
        .await
        .expect("build.sh ends in time")
        .unwrap();
    assert!(output.status.success(), "{}: {}", script.display(), output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}
