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

use super::agents::{Agent, AgentConfig, AgentError};
use super::assets::Assets;
use super::azure::{self, Azure};
use super::certificates::random_hex;
use super::control_plane::{ControlPlane, ControlPlaneError};
use super::directory::{Directory, NodeAddresses};
use super::display::Progress;
use super::files::{create_private_directory, unwritable};
use super::nodes::RegisteredNode;
use super::pods::{self, Component};
use super::process::{Process, ProcessError};
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
#[derive(Default)]
pub(super) struct Components {
    /// The agents, the controllers and the emulator.
    processes: Vec<Process>,
    /// The nodes, and the addresses of their agents.
    pub(super) nodes: Vec<NodeAddresses>,
    /// The manifests of maintenances to create, beside workloads.
    pub(super) maintenances: Vec<PathBuf>,
    /// The emulator, once it is running.
    pub(super) azure: Option<Azure>,
    /// A client of the cluster, once there is one.
    pub(super) client: Option<Client>,
    /// The given cluster, once Nodes may have been created in it.
    given_cluster: Option<GivenCluster>,
    control_plane: Option<ControlPlane>,
    /// The control plane's programs, if there are any.
    pub(super) assets: Option<Assets>,
    /// The kubeconfig of the cluster.
    pub(super) kubeconfig: PathBuf,
}

struct GivenCluster {
    client: Client,
    server: String,
    sandbox: String,
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
        self.client = Some(client.clone());
        if options.kubeconfig.is_some() {
            progress.print(format_args!("using the cluster at {server}"));
            self.given_cluster = Some(GivenCluster {
                client: client.clone(),
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

        let logs = directory.logs();
        let made = create_private_directory(&logs).map_err(unwritable(&logs));
        made.map_err(ControlPlaneError::from)?;
        progress.print("starting the Azure emulator");
        let log = logs.join("azure-emulator.log");
        let lab = std::env::current_exe().map_err(SandboxError::Program)?;
        let (process, azure) = Azure::start(&lab, &directory.azure(), &log, &nodes).await?;
        let arm = azure.addresses.bound.arm;
        self.processes.push(process);
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
        // In a given cluster they could become leader instead of agents whose Azure is real; beside workloads the
        // controllers lead.
        let is_candidate = self.given_cluster.is_none() && !options.has_workloads;
        let config = |node: &RegisteredNode| {
            let log = logs.join(format!("agent-{}.log", node.name));
            let mut config = self.config(options, node, directory.node(&node.name), log);
            if is_candidate {
                let argument = write_azure_json(&config.directory, arm, &node.name)?;
                config.arguments.push(argument);
            }
            if options.has_workloads {
                config.arguments.push("--role=agent".to_owned());
            }
            Ok(config)
        };
        let configs: Vec<AgentConfig> = nodes.iter().map(config).collect::<Result<_, AgentError>>()?;
        let agents = try_join_all(configs.iter().map(AgentConfig::start)).await?;
        for (node, Agent { process, addresses }) in nodes.iter().zip(agents) {
            let name = node.name.clone();
            self.nodes.push(NodeAddresses { name, addresses });
            self.processes.push(process);
        }
        if self.given_cluster.is_none() {
            let creating = nodes.iter().map(|node| pods::create(&client, Component::Agent, node));
            with_timeout(&server, "creating Pods", try_join_all(creating)).await??;
        }
        Ok(())
    }

    /// An agent on this node that uses the cluster.
    fn config(&self, options: &Options, node: &RegisteredNode, directory: PathBuf, log: PathBuf) -> AgentConfig {
        AgentConfig {
            program: options.program.clone(),
            node: node.name.clone(),
            kubeconfig: self.kubeconfig.clone(),
            directory,
            log,
            settings: SETTINGS.to_owned(),
            healthz: ANY_PORT,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
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
        let (Some(control_plane), Some(client)) = (self.control_plane.as_mut(), self.client.clone()) else {
            return Ok(());
        };
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
            let log = directory.logs().join(format!("{name}.log"));
            let mut config = self.config(options, node, directory.controller(&name), log);
            config.settings.push_str(workloads::CONTROLLER_SETTINGS);
            config.arguments = vec![write_azure_json(&config.directory, arm, &name)?];
            self.processes.push(config.start_controller().await?.process);
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

    /// Waits until one of the processes ends.
    pub(super) async fn wait_for_exit(&mut self) -> ProcessError {
        let processes = self.processes.iter_mut();
        let processes = processes.map(|process| process.wait_for_exit().boxed_local());
        let control_plane = self.control_plane.iter_mut();
        let control_plane = control_plane.map(|plane| plane.wait_for_exit().boxed_local());
        select_all(processes.chain(control_plane)).await.0
    }

    /// Stops all components, each with a timeout, and deletes the Nodes created in a given cluster.
    pub(super) async fn stop(&mut self) -> Result<(), SandboxError> {
        let processes = self.processes.drain(..);
        join_all(processes.map(|process| process.stop(STOP_TIMEOUT))).await;
        if let Some(control_plane) = self.control_plane.take() {
            control_plane.stop().await;
        }
        if let Some(cluster) = &self.given_cluster {
            let removing = nodes::delete(&cluster.client, &cluster.sandbox);
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
    written.map_err(unwritable(&file))?;
    Ok(format!("--azure-config-file={}", file.display()))
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
