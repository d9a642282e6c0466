//! A real control plane on loopback: etcd and kube-apiserver, and on request kube-controller-manager,
//! kube-scheduler and kube-proxy, each an owned process.
//!
//! etcd listens on a Unix socket only, so nobody else on the machine reaches it. kube-apiserver serves
//! TLS on a port that is reserved for it as long as the [`ControlPlane`] lives (`ports.rs`): it can be
//! stopped and started again at the same address, and meanwhile connections are refused. Nothing needs
//! more network than the loopback interface.
//!
//! Everything lies in one directory: `kubeconfig`, `logs/` and `control-plane/` (keys, etcd's data).
//! Removing it afterwards is left to its owner. The thread that starts a control plane must live as
//! long as the control plane shall (see [`process`](super::process)).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, select_all};
use headgate_kubernetes::{api_server, api_server::ConnectError};

use self::ports::Reserved;
use super::assets::{Assets, AssetsError};
use super::certificates::{Certificates, CertificatesError, private_directory, write_private};
use super::process::{Process, ProcessError, command};

mod arguments;
mod kubeconfig;
mod ports;
mod ready;

/// Addresses of Services.
pub(super) const SERVICE_CIDR: &str = "10.0.0.0/16";
/// The first of them: the Service `default/kubernetes`.
pub(super) const FIRST_SERVICE_IP: &str = "10.0.0.1";

/// How long kube-apiserver is given to end after SIGTERM. It needs one to two seconds.
const STOPPING: Duration = Duration::from_secs(5);
/// How long kube-apiserver is waited for; it is ready in 2 to 3 s on two cores.
const STARTING: Duration = Duration::from_mins(1);

/// The control plane cannot be started or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The programs are not there.
    #[error(transparent)]
    Assets(#[from] AssetsError),
    /// Keys or certificates cannot be made.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// A process cannot be run or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file or directory cannot be written.
    #[error("cannot write {}: {source}; check the directory's permissions and free space", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No free port.
    #[error("cannot get a free port on 127.0.0.1 for {component}: {source}")]
    Port {
        /// For which component.
        component: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kubeconfig just written is not accepted.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A component runs but does not get ready.
    #[error("{component} is not ready after {} s (last answer: {answer}); its last log lines:\n{tail}", waited.as_secs())]
    NotReady {
        /// Which.
        component: String,
        /// How long it was waited for.
        waited: Duration,
        /// What it last said.
        answer: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    directory: PathBuf,
    assets: Assets,
    certificates: Certificates,
    kubeconfig: PathBuf,
    client_config: kube::Config,
    port: Reserved,
    others: Vec<Process>,
    apiserver: Option<Process>,
    etcd: Process,
}

/// Where a kube-proxy answers.
#[derive(Clone, Copy, Debug)]
pub struct ProxyAddresses {
    /// `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// `/metrics`.
    pub metrics: SocketAddr,
}

impl ControlPlane {
    /// Starts etcd and kube-apiserver in `directory` and waits until kube-apiserver is ready.
    ///
    /// # Errors
    /// A program is missing, cannot be run or ends, or kube-apiserver is not ready within a minute.
    pub async fn start(assets: Assets, directory: &Path) -> Result<Self, ControlPlaneError> {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        for directory in [&directory, &logs(&directory), &inside(&directory)] {
            private_directory(directory).map_err(|source| ControlPlaneError::Write {
                path: directory.clone(),
                source,
            })?;
        }
        let certificates = Certificates::make(&inside(&directory).join("pki"))?;
        let port = Reserved::loopback().map_err(|source| ControlPlaneError::Port {
            component: "kube-apiserver",
            source,
        })?;
        let kubeconfig = directory.join("kubeconfig");
        let text = kubeconfig::text(&port.url(), &certificates);
        write_private(&kubeconfig, &text).map_err(|source| ControlPlaneError::Write {
            path: kubeconfig.clone(),
            source,
        })?;
        let client_config = api_server::load_config(Some(&kubeconfig)).await?;

        let etcd = start(&assets, &directory, "etcd", arguments::etcd())?;
        let mut control_plane = Self {
            directory,
            assets,
            certificates,
            kubeconfig,
            client_config,
            port,
            others: Vec::new(),
            apiserver: None,
            etcd,
        };
        control_plane.start_apiserver().await?;
        Ok(control_plane)
    }

    /// The directory everything is in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of the components' logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        logs(&self.directory)
    }

    /// The programs this runs.
    #[must_use]
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kube-apiserver's URL; it stays the same when kube-apiserver is stopped and started.
    #[must_use]
    pub fn server(&self) -> String {
        self.port.url()
    }

    /// The administrator's client configuration. A client belongs to the runtime it is made in.
    #[must_use]
    pub fn client_config(&self) -> kube::Config {
        self.client_config.clone()
    }

    /// Stops kube-apiserver; connections to its address are then refused. Nothing is lost: etcd goes on.
    pub async fn stop_apiserver(&mut self) {
        if let Some(apiserver) = self.apiserver.take() {
            apiserver.stop(STOPPING).await;
        }
    }

    /// Starts kube-apiserver, if it does not run, at the address it always has, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be run, ends, or is not ready within a minute.
    pub async fn start_apiserver(&mut self) -> Result<(), ControlPlaneError> {
        if self.apiserver.is_some() {
            return Ok(());
        }
        let arguments = arguments::apiserver(self.port.number(), &self.certificates);
        let mut apiserver = start(&self.assets, &self.directory, "kube-apiserver", arguments)?;
        let client = api_server::build_client(&self.client_config)?;
        tokio::select! {
            ready = ready::apiserver(&client, STARTING, apiserver.log().to_owned()) => ready?,
            end = apiserver.ended() => return Err(end.into()),
            end = self.etcd.ended() => return Err(end.into()),
        }
        self.apiserver = Some(apiserver);
        Ok(())
    }

    /// Starts kube-controller-manager with the administrator's rights. `arguments` come last and win, such
    /// as `--controllers=*,-node-lifecycle-controller` where Nodes have no kubelet that reports them alive.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start_controller_manager(&mut self, arguments: &[&str]) -> Result<(), ControlPlaneError> {
        let mut all = arguments::controller_manager(&self.kubeconfig, &self.certificates);
        all.extend(arguments.iter().map(ToString::to_string));
        self.start_other("kube-controller-manager", all)
    }

    /// Starts kube-scheduler with the administrator's rights.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start_scheduler(&mut self) -> Result<(), ControlPlaneError> {
        self.start_other("kube-scheduler", arguments::scheduler(&self.kubeconfig))
    }

    /// Starts kube-proxy for a Node and waits until its health server accepts connections.
    ///
    /// It writes iptables rules: call this only in a network namespace of one's own. The Node needs an
    /// `InternalIP`, or kube-proxy waits half a minute for one.
    ///
    /// # Errors
    /// It cannot be run, ends, or does not listen within a minute.
    pub async fn start_proxy(&mut self, node: &str) -> Result<ProxyAddresses, ControlPlaneError> {
        let free = || {
            let port = ports::free().map_err(|source| ControlPlaneError::Port {
                component: "kube-proxy",
                source,
            })?;
            Ok::<_, ControlPlaneError>(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        let addresses = ProxyAddresses {
            healthz: free()?,
            metrics: free()?,
        };
        let arguments = arguments::proxy(&self.kubeconfig, node, addresses);
        let mut proxy = start(&self.assets, &self.directory, "kube-proxy", arguments)?;
        tokio::select! {
            ready = ready::listening("kube-proxy", addresses.healthz, STARTING, proxy.log().to_owned()) => ready?,
            end = proxy.ended() => return Err(end.into()),
        }
        self.others.push(proxy);
        Ok(addresses)
    }

    /// Stops kube-controller-manager, kube-scheduler and kube-proxy, as far as they were started.
    pub async fn stop_others(&mut self) {
        for other in self.others.drain(..).rev() {
            other.stop(STOPPING).await;
        }
    }

    /// Waits, without a bound, until one of the processes ends that should be running; tells which and how.
    pub async fn ended(&mut self) -> ProcessError {
        let processes = self
            .others
            .iter_mut()
            .chain(&mut self.apiserver)
            .chain([&mut self.etcd]);
        select_all(processes.map(|process| process.ended().boxed_local()))
            .await
            .0
    }

    /// Ends everything at once. Nothing here is worth an orderly end: its data is thrown away.
    pub async fn stop(self) {
        let Self {
            others,
            apiserver,
            etcd,
            ..
        } = self;
        join_all(others.into_iter().chain(apiserver).chain([etcd]).map(Process::kill)).await;
    }

    fn start_other(&mut self, program: &str, arguments: Vec<String>) -> Result<(), ControlPlaneError> {
        self.others
            .push(start(&self.assets, &self.directory, program, arguments)?);
        Ok(())
    }
}

fn logs(directory: &Path) -> PathBuf {
    directory.join("logs")
}

fn inside(directory: &Path) -> PathBuf {
    directory.join("control-plane")
}

fn start(
    assets: &Assets,
    directory: &Path,
    program: &str,
    arguments: Vec<String>,
) -> Result<Process, ControlPlaneError> {
    let mut command = command(assets.program(program)?, &inside(directory));
    command.args(arguments);
    without_foreign_settings(&mut command);
    Ok(Process::start(
        program,
        command,
        &logs(directory).join(format!("{program}.log")),
    )?)
}

/// Takes away what the components would otherwise pick up from the caller's environment: etcd reads
/// every flag from a variable too, and a proxy or another cluster's kubeconfig is never meant here.
fn without_foreign_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_uppercase();
        if text.starts_with("ETCD_") || text.ends_with("_PROXY") || text == "KUBECONFIG" {
            command.env_remove(name);
        }
    }
}
