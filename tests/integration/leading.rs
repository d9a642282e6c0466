//! Leader election with real processes on a real API server: what each role does, what a defect in the leader task
//! does, and how the leader connects to ARM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use headgate_sandbox::{process::Process, process::last_log_lines};
use headgate_test_kubernetes::{control_plane, create_node, eventually, met, scratch};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::harness::{http, settings_file};

mod access;
mod defect;
mod notifications;
mod proxies;
mod roles;

/// Timeout of every wait, long enough for a busy machine.
const SOON: Duration = Duration::from_mins(1);

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
        let lease = serde_json::from_value(json!({"metadata": {"name": "headgate-leader"}, "spec": spec})).unwrap();
        leases.create(&PostParams::default(), &lease).await.unwrap();
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

/// A child process and its directory.
struct Instance {
    process: Process,
    directory: PathBuf,
    node: String,
}

impl Instance {
    /// Starts a program for a Node of its own, with an `azure.json`.
    async fn start(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_in(scratch("leading"), program, arguments, environment).await
    }

    /// Starts a program in a directory, which may have its `azure.json` and its `settings.yaml`.
    async fn start_in(directory: PathBuf, program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let client: Client = control_plane().client();
        let node = create_node(&client, "leading").await;
        let file = |name: &str, default: &str| {
            let path = directory.join(name);
            if !path.exists() {
                std::fs::write(&path, default).unwrap();
            }
            path
        };
        let text = r#"{"subscriptionId": "s", "resourceGroup": "g", "useManagedIdentityExtension": true}"#;
        let azure = file("azure.json", text);
        let settings = file("settings.yaml", &settings_file("kubeProxyHealthzUrl: Disabled\n"));
        let mut command = Command::new(program);
        command
            .current_dir(&directory)
            .env_remove("KUBECONFIG")
            .env_remove("NODE_NAME");
        command.envs(environment.iter().copied());
        command.args(["agent", "--node-name", &node, "--metrics-bind-address", "127.0.0.1:0"]);
        for (flag, file) in [
            ("--kubeconfig", control_plane().kubeconfig.as_path()),
            ("--config", settings.as_path()),
            ("--azure-config-file", azure.as_path()),
            ("--state-dir", directory.as_path()),
            ("--addresses-file", directory.join("addresses.json").as_path()),
        ] {
            command.arg(flag).arg(file);
        }
        if !arguments.contains(&"--healthz-bind-address") {
            command.args(["--healthz-bind-address", "127.0.0.1:0"]);
        }
        command.args(arguments);
        let process = Process::start("headgate", command, &directory.join("log")).unwrap();
        Self {
            process,
            directory,
            node,
        }
    }

    fn log(&self) -> String {
        last_log_lines(self.process.log())
    }

    /// The contents of its addresses file, once that exists.
    async fn addresses(&mut self) -> Value {
        let file = self.directory.join("addresses.json");
        eventually(SOON, "its addresses", async || {
            if let Some(end) = self.process.try_wait() {
                panic!("{end}");
            }
            let text = std::fs::read(&file).map_err(|error| error.to_string())?;
            Ok(serde_json::from_slice(&text).unwrap())
        })
        .await
    }

    async fn address(&mut self, name: &str) -> SocketAddr {
        self.addresses().await[name].as_str().unwrap().parse().unwrap()
    }

    async fn metrics(&mut self) -> String {
        let address = self.address("metrics").await;
        http::get(address, "/metrics").await.unwrap().text()
    }

    async fn statusz(&mut self) -> Value {
        http::statusz(self.address("metrics").await).await
    }

    /// Waits until its metrics contain a line.
    async fn shows(&mut self, line: &str) {
        let address = self.address("metrics").await;
        eventually(SOON, line, async || {
            let text = http::get(address, "/metrics").await.unwrap().text();
            let found: Vec<_> = text
                .lines()
                .filter(|line| line.starts_with("headgate_leader"))
                .collect();
            met(found.contains(&line), found.join("\n"))
        })
        .await;
    }

    /// Sends SIGTERM; returns the exit status.
    async fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        let status = self.process.wait(SOON).await;
        status.unwrap_or_else(|| panic!("still there {SOON:?} after SIGTERM; its log:\n{}", self.log()))
    }
}

/// The program.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_headgate"))
}
