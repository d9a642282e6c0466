//! Everything the sandbox runs, in one owner: the control plane or a given cluster, the Azure emulator and
//! the agents.
//!
//! Ended politely by [`World::end`]; dropped, everything is killed.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, select_all, try_join_all};
use headgate_kubernetes::api_server;
use kube::Client;
use tokio::time::timeout;

use super::agents::{Agent, AgentError, Launch};
use super::assets::Assets;
use super::azure::{self, Azure};
use super::certificates::{private_directory, random_word};
use super::control_plane::{ControlPlane, ControlPlaneError};
use super::directory::{Directory, NodeAddresses};
use super::process::ProcessError;
use super::progress::Progress;
use super::{Options, SandboxError, calls, nodes};

/// How long the cluster may take to make or remove all Nodes.
const REGISTERING: Duration = Duration::from_secs(30);
/// How long an agent is given to end after SIGTERM.
const STOPPING: Duration = Duration::from_secs(5);
/// Where agents serve `/healthz`.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Agents get no kube-proxy: there is none here.
const SETTINGS: &str = "# Written by headgate sandbox.\nproxy: {healthzUrl: off}\n";

/// What runs.
#[derive(Debug, Default)]
pub(super) struct World {
    agents: Vec<(String, Agent)>,
    azure: Option<Azure>,
    client: Option<DebugClient>,
    /// A given cluster, with the name of this sandbox, once Nodes may have been made in it.
    guest: Option<Guest>,
    control_plane: Option<ControlPlane>,
    assets: Option<Assets>,
    kubeconfig: PathBuf,
}

#[derive(Debug)]
struct Guest {
    client: DebugClient,
    server: String,
    sandbox: String,
}

/// kube's client has no Debug.
#[derive(Clone)]
struct DebugClient(Client);

impl std::fmt::Debug for DebugClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl World {
    /// Starts everything, agents from `program`; what has been started stays owned here even where a later step fails.
    pub(super) async fn begin(
        &mut self,
        program: &Path,
        options: &Options,
        directory: &Directory,
        progress: &Progress,
    ) -> Result<(), SandboxError> {
        let sandbox = random_word().map_err(ControlPlaneError::from)?;
        let config = match &options.kubeconfig {
            None => self.own_cluster(options, directory, progress).await?,
            Some(kubeconfig) => {
                self.kubeconfig = std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.clone());
                // For kubectl only, so no matter if there are none.
                self.assets = Assets::find(None).ok();
                api_server::load_config(Some(&self.kubeconfig)).await?
            }
        };
        let server = config.cluster_url.to_string();
        let client = api_server::build_client(&config)?;
        self.client = Some(DebugClient(client.clone()));
        if options.kubeconfig.is_some() {
            progress.say(format_args!("using the cluster at {server}"));
            self.guest = Some(Guest {
                client: DebugClient(client.clone()),
                server: server.clone(),
                sandbox: sandbox.clone(),
            });
        }

        let registering = nodes::register(&client, options.nodes, &sandbox);
        let (nodes, made) = in_time(&server, "making Nodes", registering).await??;
        let before = nodes.len() - made;
        progress.say(match before {
            0 => format!("registered {made} Nodes"),
            before => format!("registered {made} Nodes; {before} were there before"),
        });

        private_directory(&directory.logs()).map_err(|source| ControlPlaneError::Write {
            path: directory.logs(),
            source,
        })?;
        progress.say("starting the Azure emulator");
        let log = directory.logs().join("azure-emulator.log");
        let azure = Azure::start(program, &directory.azure(), &log, &nodes).await?;
        let arm = azure.addresses.bound.arm;
        self.azure = Some(azure);

        progress.say(format_args!("starting {} agents", nodes.len()));
        let launches: Vec<Launch> = nodes
            .into_iter()
            .map(|node| {
                let directory_of_node = directory.node(&node.name);
                // In a given cluster they could take the lead from agents whose Azure is real.
                let leads = self.guest.is_none();
                let file = leads
                    .then(|| leaders_file(&directory_of_node, arm, &node.name))
                    .transpose()?;
                Ok(Launch {
                    program: program.to_owned(),
                    kubeconfig: self.kubeconfig.clone(),
                    directory: directory_of_node,
                    log: directory.logs().join(format!("agent-{}.log", node.name)),
                    settings: settings(file.as_deref()),
                    healthz: ANY_PORT,
                    arguments: Vec::new(),
                    node: node.name,
                })
            })
            .collect::<Result<_, AgentError>>()?;
        let agents = try_join_all(launches.iter().map(Launch::start)).await?;
        self.agents = launches.into_iter().map(|launch| launch.node).zip(agents).collect();
        Ok(())
    }

    async fn own_cluster(
        &mut self,
        options: &Options,
        directory: &Directory,
        progress: &Progress,
    ) -> Result<kube::Config, SandboxError> {
        let assets = Assets::find(options.assets.as_deref()).map_err(ControlPlaneError::from)?;
        progress.say(format_args!(
            "starting etcd and kube-apiserver from {}",
            assets.directory().display()
        ));
        let control_plane = ControlPlane::start(assets.clone(), directory.path()).await?;
        let config = control_plane.client_config();
        control_plane.kubeconfig().clone_into(&mut self.kubeconfig);
        self.control_plane = Some(control_plane);
        self.assets = Some(assets);
        Ok(config)
    }

    /// The nodes and where their agents answer.
    pub(super) fn nodes(&self) -> Vec<NodeAddresses> {
        let node = |(name, agent): &(String, Agent)| NodeAddresses {
            name: name.clone(),
            addresses: agent.addresses,
        };
        self.agents.iter().map(node).collect()
    }

    /// Where the Azure emulator answers, once it does.
    pub(super) fn emulator(&self) -> Option<&azure::Addresses> {
        self.azure.as_ref().map(|azure| &azure.addresses)
    }

    /// `azure.json` for people's commands, once there is an emulator.
    pub(super) fn azure_json(&self) -> Option<&Path> {
        self.azure.as_ref().map(|azure| azure.config_file.as_path())
    }

    /// The cluster's API, once it is there.
    pub(super) fn client(&self) -> Option<Client> {
        self.client.as_ref().map(|client| client.0.clone())
    }

    /// The kubeconfig to use.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The control plane's programs, where there are any.
    pub(super) fn assets(&self) -> Option<&Assets> {
        self.assets.as_ref()
    }

    /// Waits until something ends that should be running.
    pub(super) async fn ended(&mut self) -> ProcessError {
        let agents = self
            .agents
            .iter_mut()
            .map(|(_, agent)| agent.process.ended().boxed_local());
        let control_plane = self.control_plane.iter_mut().map(|plane| plane.ended().boxed_local());
        let azure = self.azure.iter_mut().map(|azure| azure.process.ended().boxed_local());
        select_all(agents.chain(control_plane).chain(azure)).await.0
    }

    /// Stops everything, each part within a bound; removes the Nodes made in a given cluster.
    pub(super) async fn end(&mut self) -> Result<(), SandboxError> {
        let agents = std::mem::take(&mut self.agents);
        let azure = self.azure.take().map(|azure| azure.process);
        let processes = agents.into_iter().map(|(_, agent)| agent.process).chain(azure);
        join_all(processes.map(|process| process.stop(STOPPING))).await;
        if let Some(control_plane) = self.control_plane.take() {
            control_plane.stop().await;
        }
        if let Some(guest) = &self.guest {
            let removing = nodes::remove(&guest.client.0, &guest.sandbox);
            in_time(&guest.server, "removing Nodes", removing).await??;
            self.guest = None;
        }
        Ok(())
    }

    /// What a sandbox that is killed now leaves in a given cluster, as the end of a sentence.
    pub(super) fn left_behind(&self) -> String {
        self.guest.as_ref().map_or_else(String::new, |guest| {
            format!(
                "; its Nodes may be left: kubectl delete nodes -l {}={}",
                nodes::LABEL,
                guest.sandbox
            )
        })
    }
}

/// Writes `azure.json` for a node's agent, which says who it is by its user agent.
fn leaders_file(directory: &Path, arm: SocketAddr, node: &str) -> Result<PathBuf, AgentError> {
    let file = directory.join("azure.json");
    let text = azure::azure_json(arm, Some(&calls::user_agent(node)));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&file, text));
    match written {
        Ok(()) => Ok(file),
        Err(source) => Err(AgentError::Write { path: file, source }),
    }
}

/// An agent's settings; with `azure.json` it stands for election.
fn settings(azure_json: Option<&Path>) -> String {
    let azure = azure_json.map(|file| {
        // A JSON string is one of YAML's.
        format!(
            "azure: {{configFile: {}}}\n",
            serde_json::Value::from(file.to_string_lossy())
        )
    });
    format!("{SETTINGS}{}", azure.unwrap_or_default())
}

async fn in_time<T>(server: &str, doing: &'static str, work: impl Future<Output = T>) -> Result<T, SandboxError> {
    timeout(REGISTERING, work).await.map_err(|_| SandboxError::Silent {
        server: server.to_owned(),
        doing,
        bound: REGISTERING,
    })
}
