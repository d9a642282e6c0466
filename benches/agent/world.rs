//! The agent and its peers, on one Node of one real control plane.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::ControlPlane;
use headgate_sandbox::nodes;
use headgate_sandbox::process::Process;
use headgate_sandbox::{agents::Agent, agents::AgentConfig};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;
use tempfile::TempDir;

use crate::bare;
use crate::http::Prober;
use crate::measuring::BINARY;
use crate::measuring::cores::{Cores, Split};

/// Time within which a server must answer as expected after a change.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which Go must adapt to the number of cores. It checks about once a second.
const GO_CORES_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which the agent must stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A process that answers `/healthz`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// The name in the report.
    pub(crate) name: &'static str,
    /// The process id.
    pub(crate) process: u32,
    /// The address of `/healthz`.
    pub(crate) healthz: SocketAddr,
}

/// The running world.
pub(crate) struct World {
    /// The agent that is measured.
    pub(crate) agent: Server,
    /// The real kube-proxy.
    pub(crate) kube_proxy: Server,
    /// A hyper server without further code.
    pub(crate) bare: Server,
    nodes: Api<Node>,
    config: AgentConfig,
    /// The cores that load and servers share.
    pub(crate) cores: Cores,
    kube_proxy_metrics: SocketAddr,
    agent_process: Process,
    _bare_process: Process,
    control_plane: ControlPlane,
    _directory: TempDir,
}

impl World {
    /// Starts everything and waits until all answer 200.
    pub(crate) async fn start(assets: Assets, cores: Cores) -> anyhow::Result<Self> {
        assets.program("kube-proxy")?;
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let mut control_plane = ControlPlane::start(assets, directory.path()).await?;
        let client = Client::try_from(control_plane.client_config())?;
        let (nodes, _) = nodes::register(&client, 1, "bench").await?;
        let node = nodes.into_iter().next().context("the Node")?.name;

        let proxy = control_plane.start_kube_proxy(&node).await?;
        let process = child("kube-proxy")?;
        let kube_proxy = Server {
            name: "kube-proxy",
            process,
            healthz: proxy.healthz,
        };
        let config = AgentConfig {
            program: BINARY.into(),
            node,
            kubeconfig: control_plane.kubeconfig().to_owned(),
            directory: directory.path().join("agent"),
            log: directory.path().join("headgate.log"),
            settings: format!(
                "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nkubeProxyHealthzUrl: 'http://{}'\n",
                proxy.healthz
            ),
            healthz: (Ipv4Addr::LOCALHOST, 0).into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        let (agent_process, agent) = start_agent(&config).await?;
        settled(kube_proxy, 200).await?;
        settled(agent, 200).await?;

        let answer = String::from_utf8(Prober::connect(agent.healthz, true)?.ask()?.2.to_vec())?;
        let (bare_process, healthz) = bare::start(&answer, directory.path()).await?;
        let process = bare_process.id().context("the bare responder's process")?;
        let bare = Server {
            name: "bare hyper",
            process,
            healthz,
        };
        Ok(Self {
            agent,
            kube_proxy,
            bare,
            nodes: Api::all(client),
            config,
            cores,
            kube_proxy_metrics: proxy.metrics,
            agent_process,
            _bare_process: bare_process,
            control_plane,
            _directory: directory,
        })
    }

    /// Changes the Node; returns as soon as the API server has answered.
    pub(crate) async fn patch_node(&self, patch: &Value) -> anyhow::Result<()> {
        self.nodes
            .patch(&self.config.node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .context("a change of the Node")?;
        Ok(())
    }

    /// Starts the image's binary as one more agent of the same Node; none where it was not built. It lives
    /// as long as its process is held.
    pub(crate) async fn start_image(&self) -> anyhow::Result<Option<(Process, Server)>> {
        let program = image_binary();
        if !program.is_file() {
            return Ok(None);
        }
        let mut config = self.config.clone();
        config.program = program;
        config.directory.set_extension("image");
        config.log.set_extension("image.log");
        let started = start_agent(&config).await?;
        settled(started.1, 200).await?;
        Ok(Some(started))
    }

    /// Gives the servers one core and the load another, until the guard is dropped.
    pub(crate) async fn split_cores(&self) -> anyhow::Result<Split> {
        let split = self
            .cores
            .split(&[self.agent.process, self.kube_proxy.process, self.bare.process])?;
        // Go runs one thread for each core that it sees, and checks the number from time to time.
        let noticed = async {
            while self.kube_proxy_cores().await != Some(1) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        // If it does not check, it is measured with more threads than cores.
        let _ = tokio::time::timeout(GO_CORES_TIMEOUT, noticed).await;
        Ok(split)
    }

    /// On how many cores kube-proxy runs Go code at once.
    pub(crate) async fn kube_proxy_cores(&self) -> Option<u64> {
        let metrics = get(self.kube_proxy_metrics, "/metrics").await.ok()?;
        metrics
            .lines()
            .find_map(|line| line.strip_prefix("go_sched_gomaxprocs_threads ")?.parse().ok())
    }

    /// Stops everything in order.
    pub(crate) async fn stop(self) {
        self.agent_process.stop(STOP_TIMEOUT).await;
        self.control_plane.stop().await;
    }
}

/// Where `make static-binary` leaves the container image's binary.
pub(crate) fn image_binary() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("static")
        .join("headgate")
}

async fn start_agent(config: &AgentConfig) -> anyhow::Result<(Process, Server)> {
    let Agent { process, addresses } = config.start().await?;
    let server = Server {
        name: "headgate",
        process: process.id().context("the agent's process")?,
        healthz: addresses.healthz,
    };
    Ok((process, server))
}

/// Waits until `server` answers with `status`.
pub(crate) async fn settled(server: Server, status: u16) -> anyhow::Result<()> {
    let mut last = String::from("nothing");
    let asked = async {
        loop {
            last = match Prober::connect(server.healthz, true).and_then(|mut prober| Ok(prober.ask()?.0)) {
                Ok(answer) if answer == status => return,
                Ok(answer) => answer.to_string(),
                Err(error) => error.to_string(),
            };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let settled = tokio::time::timeout(SETTLE_TIMEOUT, asked).await;
    settled.with_context(|| format!("{} answers {last}, not {status}", server.name))
}

/// The child process with this name.
fn child(name: &str) -> anyhow::Result<u32> {
    let (ours, name) = (std::process::id().to_string(), format!("({name})"));
    for entry in fs::read_dir("/proc")?.flatten() {
        // "123 (kube-proxy) S 45 …": the process, its name, its state, its parent.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let fields: Vec<&str> = stat.split(' ').take(4).collect();
        if let [process, called, _, parent] = fields[..]
            && called == name
            && parent == ours
        {
            return Ok(process.parse()?);
        }
    }
    anyhow::bail!("no child process {name}")
}

/// A whole response in plain text, with its headers.
async fn get(server: SocketAddr, path: &str) -> anyhow::Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: {server}\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}
