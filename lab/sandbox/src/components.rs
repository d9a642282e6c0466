//! All components of a sandbox with one owner: the control plane or the given cluster, the Azure emulator and the
//! agents and, beside workloads, controllers.
//!
//! [`Components::stop`] stops them in order. Dropping the value kills them.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{join_all, select_all, try_join_all};
use headgate_kubernetes::api_server;
use kube::Client;
use tokio::time::timeout;

use super::agents::{Agent, AgentConfig, AgentError, Controller};
use super::assets::Assets;
use super::azure::{self, Azure};
use super::certificates::{create_private_directory, random_hex};
use super::control_plane::{ControlPlane, ControlPlaneError};
use super::directory::{Directory, NodeAddresses};
use super::display::Progress;
use super::nodes::RegisteredNode;
use super::pods::{self, Component};
use super::process::ProcessError;
use super::{Options, SandboxError, arm_callers, local_service, nodes, workloads};

/// Time for the cluster to create or delete all Nodes.
const NODES_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between SIGTERM and SIGKILL of an agent.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The address of the agents' `/healthz`: a free port.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The agents' settings. There is no kube-proxy.
const SETTINGS: &str = "# Written by headgate-lab sandbox.\napiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nkubeProxyHealthzUrl: Disabled\n";

/// The components that are running.
#[derive(Debug, Default)]
pub(super) struct Components {
    agents: Vec<(String, Agent)>,
    controllers: Vec<Controller>,
    /// The manifests of maintenances, beside workloads.
    maintenances: Vec<PathBuf>,
    azure: Option<Azure>,
    client: Option<DebugClient>,
    /// The given cluster, once Nodes may have been created in it.
    given_cluster: Option<GivenCluster>,
    control_plane: Option<ControlPlane>,
    assets: Option<Assets>,
    kubeconfig: PathBuf,
}

#[derive(Debug)]
struct GivenCluster {
    client: DebugClient,
    server: String,
    sandbox: String,
}

/// A client with `Debug`, which kube's does not have.
#[derive(Clone)]
struct DebugClient(Client);

impl std::fmt::Debug for DebugClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Components {
    /// Starts all components. What has been started is owned here even if a later step fails.
    pub(super) async fn start(
        &mut self,
        options: &Options,
        directory: &Directory,
        progress: &Progress,
    ) -> Result<(), SandboxError> {
        if options.has_workloads && options.nodes < workloads::MIN_NODES {
            return Err(workloads::WorkloadsError::TooFewNodes(options.nodes).into());
        }
        let sandbox = random_hex().map_err(ControlPlaneError::from)?;
        let config = match &options.kubeconfig {
            None => self.own_cluster(options, directory, progress).await?,
            Some(kubeconfig) => {
                self.kubeconfig = std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.clone());
                // Only for kubectl, so they may be missing.
                self.assets = Assets::find(None).ok();
                api_server::load_config(Some(&self.kubeconfig)).await?
            }
        };
        let server = config.cluster_url.to_string();
        let client = api_server::build_client(&config, api_server::Program::Sandbox)?;
        self.client = Some(DebugClient(client.clone()));
        if options.kubeconfig.is_some() {
            progress.print(format_args!("using the cluster at {server}"));
            self.given_cluster = Some(GivenCluster {
                client: DebugClient(client.clone()),
                server: server.clone(),
                sandbox: sandbox.clone(),
            });
        }

        let registering = nodes::register(&client, options.nodes, &sandbox);
        let (nodes, created) = with_timeout(&server, "creating Nodes", registering).await??;
        let existing = nodes.len() - created;
        progress.print(match existing {
            0 => format!("registered {created} Nodes"),
            existing => format!("registered {created} Nodes; {existing} existed before"),
        });

        create_private_directory(&directory.logs()).map_err(|source| ControlPlaneError::Write {
            path: directory.logs(),
            source,
        })?;
        progress.print("starting the Azure emulator");
        let log = directory.logs().join("azure-emulator.log");
        let lab = std::env::current_exe().map_err(SandboxError::Program)?;
        let azure = Azure::start(&lab, &directory.azure(), &log, &nodes).await?;
        let arm = azure.addresses.bound.arm;
        self.azure = Some(azure);

        if self.given_cluster.is_none() {
            let creating = local_service::create(&client);
            with_timeout(&server, "creating a Local Service", creating).await??;
        }
        if options.has_workloads {
            self.start_workloads(options, directory, progress, arm, &nodes).await?;
        }
        if !options.has_agents {
            return Ok(());
        }
        progress.print(format_args!("starting {} agents", nodes.len()));
        let with_pods = self.given_cluster.is_none().then(|| nodes.clone());
        let configs: Vec<AgentConfig> = nodes
            .into_iter()
            .map(|node| {
                let node_directory = directory.node(&node.name);
                // In a given cluster they could become leader instead of agents whose Azure is real; beside workloads the
                // controllers lead.
                let is_candidate = self.given_cluster.is_none() && !options.has_workloads;
                let mut arguments = Vec::new();
                if is_candidate {
                    arguments.push(write_azure_json(&node_directory, arm, &node.name)?);
                }
                if options.has_workloads {
                    arguments.push("--role=agent".to_owned());
                }
                Ok(AgentConfig {
                    program: options.program.clone(),
                    kubeconfig: self.kubeconfig.clone(),
                    directory: node_directory,
                    log: directory.logs().join(format!("agent-{}.log", node.name)),
                    settings: SETTINGS.to_owned(),
                    healthz: ANY_PORT,
                    arguments,
                    environment: Vec::new(),
                    node: node.name,
                })
            })
            .collect::<Result<_, AgentError>>()?;
        let agents = try_join_all(configs.iter().map(AgentConfig::start)).await?;
        self.agents = configs.into_iter().map(|config| config.node).zip(agents).collect();
        let creating = with_pods
            .iter()
            .flatten()
            .map(|node| pods::create(&client, Component::Agent, node));
        with_timeout(&server, "creating Pods", try_join_all(creating)).await??;
        Ok(())
    }

    /// Starts what runs pods, the workloads, and the controllers, which are on the first and the last node.
    async fn start_workloads(
        &mut self,
        options: &Options,
        directory: &Directory,
        progress: &Progress,
        arm: SocketAddr,
        nodes: &[RegisteredNode],
    ) -> Result<(), SandboxError> {
        // Both exist: workloads are not for a given cluster.
        let (Some(control_plane), Some(client)) = (self.control_plane.as_mut(), self.client.as_ref()) else {
            return Ok(());
        };
        let client = client.0.clone();
        progress.print("starting kube-controller-manager, kube-scheduler and kwok, with workloads");
        control_plane.start_controller_manager(&[])?;
        control_plane.start_scheduler()?;
        control_plane.start_kwok(workloads::KWOK_LABEL)?;
        let creating = async {
            workloads::create_definitions(&client).await?;
            workloads::create(&client, nodes.len()).await
        };
        tokio::select! {
            created = creating => created?,
            end = control_plane.wait_for_exit() => return Err(end.into()),
        }
        self.maintenances = workloads::write_manifests(&directory.maintenances(), nodes)?;

        progress.print("starting 2 controllers");
        for (number, node) in nodes.first().into_iter().chain(nodes.last()).enumerate() {
            let name = format!("controller-{}", number + 1);
            let own = directory.controller(&name);
            let azure = write_azure_json(&own, arm, &name)?;
            let config = AgentConfig {
                program: options.program.clone(),
                kubeconfig: self.kubeconfig.clone(),
                directory: own,
                log: directory.logs().join(format!("{name}.log")),
                settings: format!("{SETTINGS}{}", workloads::CONTROLLER_SETTINGS),
                healthz: ANY_PORT,
                arguments: vec![azure],
                environment: Vec::new(),
                node: node.name.clone(),
            };
            self.controllers.push(config.start_controller().await?);
            pods::create(&client, Component::Controller, node).await?;
        }
        Ok(())
    }

    async fn own_cluster(
        &mut self,
        options: &Options,
        directory: &Directory,
        progress: &Progress,
    ) -> Result<kube::Config, SandboxError> {
        let assets = Assets::find(options.assets.as_deref()).map_err(ControlPlaneError::from)?;
        progress.print(format_args!(
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

    /// The nodes, and the addresses of their agents.
    pub(super) fn nodes(&self) -> Vec<NodeAddresses> {
        let node = |(name, agent): &(String, Agent)| NodeAddresses {
            name: name.clone(),
            addresses: agent.addresses,
        };
        self.agents.iter().map(node).collect()
    }

    /// The manifests of maintenances to create, beside workloads.
    pub(super) fn maintenances(&self) -> &[PathBuf] {
        &self.maintenances
    }

    /// The emulator's addresses, once it is running.
    pub(super) fn emulator(&self) -> Option<&azure::Addresses> {
        self.azure.as_ref().map(|azure| &azure.addresses)
    }

    /// The `azure.json` for the user's commands, once the emulator is running.
    pub(super) fn azure_json(&self) -> Option<&Path> {
        self.azure.as_ref().map(|azure| azure.config_file.as_path())
    }

    /// A client of the cluster, once there is one.
    pub(super) fn client(&self) -> Option<Client> {
        self.client.as_ref().map(|client| client.0.clone())
    }

    /// The kubeconfig of the cluster.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The control plane's programs, if there are any.
    pub(super) fn assets(&self) -> Option<&Assets> {
        self.assets.as_ref()
    }

    /// Waits until one of the processes ends.
    pub(super) async fn wait_for_exit(&mut self) -> ProcessError {
        let agents = self
            .agents
            .iter_mut()
            .map(|(_, agent)| agent.process.wait_for_exit().boxed_local());
        let control_plane = self
            .control_plane
            .iter_mut()
            .map(|plane| plane.wait_for_exit().boxed_local());
        let azure = self
            .azure
            .iter_mut()
            .map(|azure| azure.process.wait_for_exit().boxed_local());
        let controllers = self
            .controllers
            .iter_mut()
            .map(|controller| controller.process.wait_for_exit().boxed_local());
        select_all(agents.chain(controllers).chain(control_plane).chain(azure))
            .await
            .0
    }

    /// Stops all components, each with a timeout, and deletes the Nodes created in a given cluster.
    pub(super) async fn stop(&mut self) -> Result<(), SandboxError> {
        let agents = std::mem::take(&mut self.agents);
        let controllers = std::mem::take(&mut self.controllers);
        let azure = self.azure.take().map(|azure| azure.process);
        let processes = agents.into_iter().map(|(_, agent)| agent.process).chain(azure);
        let processes = processes.chain(controllers.into_iter().map(|controller| controller.process));
        join_all(processes.map(|process| process.stop(STOP_TIMEOUT))).await;
        if let Some(control_plane) = self.control_plane.take() {
            control_plane.stop().await;
        }
        if let Some(cluster) = &self.given_cluster {
            let removing = nodes::delete(&cluster.client.0, &cluster.sandbox);
            with_timeout(&cluster.server, "deleting Nodes", removing).await??;
            self.given_cluster = None;
        }
        Ok(())
    }

    /// The Nodes that remain in a given cluster if the sandbox is killed now, as the end of a sentence.
    pub(super) fn leftover_nodes(&self) -> String {
        self.given_cluster.as_ref().map_or_else(String::new, |cluster| {
            format!(
                "; its Nodes may still exist; delete them with: kubectl delete nodes -l {}={}",
                nodes::SANDBOX_LABEL,
                cluster.sandbox
            )
        })
    }
}

/// Writes the `azure.json` of a node's agent, with the node in its user agent. The argument that names it makes the agent a candidate for
/// leader.
fn write_azure_json(directory: &Path, arm: SocketAddr, node: &str) -> Result<String, AgentError> {
    let file = directory.join("azure.json");
    let text = azure::azure_json(arm, Some(&arm_callers::user_agent(node)));
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&file, text));
    match written {
        Ok(()) => Ok(format!("--azure-config-file={}", file.display())),
        Err(source) => Err(AgentError::Write { path: file, source }),
    }
}

async fn with_timeout<T>(server: &str, action: &'static str, work: impl Future<Output = T>) -> Result<T, SandboxError> {
    timeout(NODES_TIMEOUT, work)
        .await
        .map_err(|_| SandboxError::ClusterTimeout {
            server: server.to_owned(),
            action,
            timeout: NODES_TIMEOUT,
        })
}
