//! A real control plane on loopback: etcd and kube-apiserver and, on request, kube-controller-manager, kube-scheduler,
//! kwok and kube-proxy (`optional.rs`), each as a child process.
//!
//! etcd listens only on a Unix socket, so other users of the machine cannot reach it. kube-apiserver serves TLS on a
//! port that is reserved while the [`ControlPlane`] lives (`ports.rs`): it can stop and start again at the same
//! address, and in between connections are refused. Nothing needs a network other than loopback.
//!
//! All files are in one directory: `kubeconfig`, `logs/` and `control-plane/` (keys, etcd's data). The caller removes
//! it. The thread that starts a control plane must live as long as the control plane (see [`process`](super::process)).

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, select_all};
use headgate_kubernetes::{api_server, api_server::ConnectError};
use nix::sys::signal::Signal;

use self::ports::ReservedPort;
use super::assets::{Assets, AssetsError};
use super::certificates::{Certificates, CertificatesError};
use super::files::{WriteError, create_private_directory, removed, unwritable, write_private_file};
use super::process::{Process, ProcessError, command_in};

mod arguments;
mod optional;
mod ports;
mod readiness;

/// The range of Service addresses.
pub(super) const SERVICE_CIDR: &str = "10.0.0.0/16";
/// The first Service address, which the Service `default/kubernetes` has.
pub(super) const FIRST_SERVICE_IP: &str = "10.0.0.1";

/// Time between SIGTERM and SIGKILL. kube-apiserver needs one to two seconds to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a component to become ready. kube-apiserver needs 2 to 3 s on two cores.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// The control plane cannot be started, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The programs cannot be found.
    #[error(transparent)]
    Assets(#[from] AssetsError),
    /// Credentials cannot be made.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// A process cannot be run, or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file or directory cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// There is no free port.
    #[error("cannot get a free port on 127.0.0.1 for {component}: {source}")]
    Port {
        /// The component that needs the port.
        component: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A component is running but not ready in time.
    #[error("{component} is not ready after {} s (last answer: {answer}); its last log lines:\n{tail}", waited.as_secs())]
    NotReady {
        /// The name of the component.
        component: String,
        /// How long the caller waited.
        waited: Duration,
        /// The last answer to a readiness check.
        answer: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// A running control plane. Dropping it kills the processes.
#[derive(Debug)]
pub struct ControlPlane {
    directory: PathBuf,
    assets: Assets,
    certificates: Certificates,
    kubeconfig: PathBuf,
    client_config: kube::Config,
    port: ReservedPort,
    apiserver_arguments: Vec<String>,
    optional: Vec<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
}

/// A copy of etcd's data at one time.
#[derive(Debug)]
pub struct EtcdSnapshot(PathBuf);

/// The addresses of a kube-proxy.
#[derive(Clone, Copy, Debug)]
pub struct ProxyAddresses {
    /// The address of `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver in `directory` and waits until kube-apiserver is ready.
    ///
    /// # Errors
    /// A program is missing, cannot be run or ends, or kube-apiserver is not ready within a minute.
    pub async fn start(assets: Assets, directory: &Path) -> Result<Self, ControlPlaneError> {
        Self::start_with(assets, directory, Vec::new()).await
    }

    /// The same with further flags of kube-apiserver, which it also gets when it is started again.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub async fn start_with(
        assets: Assets,
        directory: &Path,
        apiserver_arguments: Vec<String>,
    ) -> Result<Self, ControlPlaneError> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        for directory in [&directory, &logs_directory(&directory), &data_directory(&directory)] {
            create_private_directory(directory).map_err(unwritable(directory))?;
        }
        let certificates = Certificates::generate(&data_directory(&directory).join("pki"))?;
        let port = ReservedPort::on_loopback().map_err(|source| ControlPlaneError::Port {
            component: "kube-apiserver",
            source,
        })?;
        let kubeconfig = directory.join("kubeconfig");
        let text = certificates.kubeconfig(&port.url());
        write_private_file(&kubeconfig, &text)?;
        let client_config = api_server::load_config(Some(&kubeconfig)).await?;

        let mut control_plane = Self {
            directory,
            assets,
            certificates,
            kubeconfig,
            client_config,
            port,
            apiserver_arguments,
            optional: Vec::new(),
            apiserver: None,
            etcd: None,
        };
        control_plane.start_apiserver().await?;
        Ok(control_plane)
    }

    /// The directory with all its files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of its components' logs.
    pub fn logs(&self) -> PathBuf {
        logs_directory(&self.directory)
    }

    /// The programs that it runs.
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// The path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kube-apiserver's URL, which does not change when kube-apiserver stops and starts.
    pub fn server(&self) -> String {
        self.port.url()
    }

    /// The administrator's client configuration. A client belongs to the runtime in which it is made.
    pub fn client_config(&self) -> kube::Config {
        self.client_config.clone()
    }

    /// Stops kube-apiserver; connections to its address are then refused. etcd keeps running, so no data is lost.
    pub async fn stop_apiserver(&mut self) {
        if let Some(apiserver) = self.apiserver.take() {
            apiserver.stop(STOP_TIMEOUT).await;
        }
    }

    /// Kills kube-apiserver, as the end of its machine does: it ends within milliseconds, and without a last answer.
    pub async fn kill_apiserver(&mut self) {
        if let Some(apiserver) = self.apiserver.take() {
            apiserver.kill().await;
        }
    }

    /// Sends kube-apiserver a signal, such as `SIGSTOP` to let it stand still.
    pub fn signal_apiserver(&self, signal: Signal) {
        if let Some(apiserver) = &self.apiserver {
            apiserver.signal(signal);
        }
    }

    /// Starts kube-apiserver at the same address as before, if it is not running, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be run, ends, or is not ready within a minute.
    pub async fn start_apiserver(&mut self) -> Result<(), ControlPlaneError> {
        if self.apiserver.is_some() {
            return Ok(());
        }
        let mut etcd = match self.etcd.take() {
            Some(etcd) => etcd,
            None => start(&self.assets, &self.directory, "etcd", arguments::etcd())?,
        };
        let mut arguments = arguments::apiserver(self.port.number(), &self.certificates);
        arguments.extend(self.apiserver_arguments.iter().cloned());
        let mut apiserver = start(&self.assets, &self.directory, "kube-apiserver", arguments)?;
        let client = api_server::build_client(&self.client_config, api_server::Program::Sandbox)?;
        tokio::select! {
            ready = readiness::wait_for_apiserver(&client, START_TIMEOUT, apiserver.log().to_owned()) => ready?,
            end = apiserver.wait_for_exit() => return Err(end.into()),
            end = etcd.wait_for_exit() => return Err(end.into()),
        }
        self.apiserver = Some(apiserver);
        self.etcd = Some(etcd);
        Ok(())
    }

    /// Stops kube-apiserver and etcd, copies etcd's data, and starts both again.
    ///
    /// # Errors
    /// The data cannot be copied, or a process cannot be started again.
    pub async fn snapshot_etcd(&mut self) -> Result<EtcdSnapshot, ControlPlaneError> {
        self.stop_etcd().await;
        let snapshot = data_directory(&self.directory).join("etcd-snapshot");
        replace_directory(&self.etcd_data(), &snapshot)?;
        self.start_apiserver().await?;
        Ok(EtcdSnapshot(snapshot))
    }

    /// Stops kube-apiserver and etcd, replaces etcd's data, and starts both again.
    ///
    /// # Errors
    /// The data cannot be copied, or a process cannot be started again.
    pub async fn restore_etcd(&mut self, snapshot: &EtcdSnapshot) -> Result<(), ControlPlaneError> {
        self.stop_etcd().await;
        replace_directory(&snapshot.0, &self.etcd_data())?;
        self.start_apiserver().await
    }

    async fn stop_etcd(&mut self) {
        self.stop_apiserver().await;
        if let Some(etcd) = self.etcd.take() {
            etcd.stop(STOP_TIMEOUT).await;
        }
    }

    fn etcd_data(&self) -> PathBuf {
        data_directory(&self.directory).join("etcd")
    }

    /// Waits, without a timeout, until a process ends; returns which one and how.
    pub async fn wait_for_exit(&mut self) -> ProcessError {
        let processes = self
            .optional
            .iter_mut()
            .chain(&mut self.apiserver)
            .chain(&mut self.etcd);
        let ends: Vec<_> = processes.map(|process| process.wait_for_exit().boxed_local()).collect();
        if ends.is_empty() {
            // Nothing is left after a failed start.
            return std::future::pending().await;
        }
        select_all(ends).await.0
    }

    /// Kills all processes. They need no orderly end, since their data is not used again.
    pub async fn stop(self) {
        let Self {
            optional,
            apiserver,
            etcd,
            ..
        } = self;
        join_all(optional.into_iter().chain(apiserver).chain(etcd).map(Process::kill)).await;
    }
}

/// Replaces a directory by a copy of another one.
fn replace_directory(from: &Path, to: &Path) -> Result<(), WriteError> {
    let gone = removed(std::fs::remove_dir_all(to));
    gone.and_then(|()| copy_directory(from, to)).map_err(unwritable(to))
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

fn logs_directory(directory: &Path) -> PathBuf {
    directory.join("logs")
}

fn data_directory(directory: &Path) -> PathBuf {
    directory.join("control-plane")
}

fn start(
    assets: &Assets,
    directory: &Path,
    program: &str,
    arguments: Vec<String>,
) -> Result<Process, ControlPlaneError> {
    let mut command = command_in(assets.program(program)?, &data_directory(directory));
    command.args(arguments);
    remove_inherited_settings(&mut command);
    Ok(Process::start(
        program,
        command,
        &logs_directory(directory).join(format!("{program}.log")),
    )?)
}

/// Removes variables that would configure the components: etcd reads every flag from a variable as well, and the
/// caller's proxy and kubeconfig are for other servers.
fn remove_inherited_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_uppercase();
        if text.starts_with("ETCD_") || text.ends_with("_PROXY") || text == "KUBECONFIG" {
            command.env_remove(name);
        }
    }
}
