//! Agents: `headgate agent` as a child process for one Node.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::files::{WriteError, removed, unwritable};
use super::process::{Process, ProcessError, command_in, last_log_lines};

/// How long a process may take to bind its addresses. An agent needs a moment, or 5 s while the API does not answer.
const BIND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two reads of the addresses file.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An agent, or another process with an addresses file, cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The process cannot be started, or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The agent's directory or settings file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The addresses file cannot be parsed.
    #[error("cannot parse {}, the addresses file of {name}: {source}", path.display())]
    Addresses {
        /// The name of the process in messages.
        name: String,
        /// The path of the addresses file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The process has not bound its addresses in time.
    #[error("{name} has not bound its addresses after {} s; its last log lines:\n{tail}", BIND_TIMEOUT.as_secs())]
    Unbound {
        /// The name of the process in messages.
        name: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The path of the headgate program.
    pub program: PathBuf,
    /// The name of the agent's Node.
    pub node: String,
    /// The kubeconfig by which it reaches the API.
    pub kubeconfig: PathBuf,
    /// Its directory, for remembered state, settings and addresses. It is created if it is missing, and kept
    /// afterwards.
    pub directory: PathBuf,
    /// The file to which its output is appended.
    pub log: PathBuf,
    /// The text of its settings file.
    pub settings: String,
    /// Address of `/healthz`; port 0 takes a free one.
    pub healthz: SocketAddr,
    /// Flags in addition to those of the other fields.
    pub arguments: Vec<String>,
    /// Variables of its environment in addition to those of this process.
    pub environment: Vec<(String, String)>,
}

/// The addresses that an agent is bound to.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Addresses {
    /// The health port: `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// The operations port: metrics and the process's own probes.
    pub metrics: SocketAddr,
}

/// A running agent. Dropping it kills the process.
#[derive(Debug)]
pub struct Agent {
    /// The child process; dropping it kills it.
    pub process: Process,
    /// The addresses that it is bound to.
    pub addresses: Addresses,
}

/// The addresses file of a controller, which has no health port.
#[derive(Deserialize)]
struct ControllerAddresses {
    metrics: SocketAddr,
}

/// A running controller, `headgate agent --role=controller`. Dropping it kills the process.
#[derive(Debug)]
pub struct Controller {
    /// The child process; dropping it kills it.
    pub process: Process,
    /// The address of its operations port.
    pub metrics: SocketAddr,
}

impl AgentConfig {
    /// Starts the agent with its operations port on 127.0.0.1, and waits until it has bound its addresses.
    ///
    /// # Errors
    /// The agent cannot be run, ends, or does not bind its addresses within half a minute.
    pub async fn start(&self) -> Result<Agent, AgentError> {
        let name = format!("the agent of {}", self.node);
        let (process, addresses) = self.launch(name, &[]).await?;
        Ok(Agent { process, addresses })
    }

    /// Starts a controller instead, which leads and does not answer for its node.
    ///
    /// # Errors
    /// The controller cannot be run, ends, or does not bind its address within half a minute.
    pub async fn start_controller(&self) -> Result<Controller, AgentError> {
        let name = format!("the controller on {}", self.node);
        let (process, ControllerAddresses { metrics }) = self.launch(name, &["--role=controller"]).await?;
        Ok(Controller { process, metrics })
    }

    async fn launch<A: DeserializeOwned>(&self, name: String, role: &[&str]) -> Result<(Process, A), AgentError> {
        fs::create_dir_all(&self.directory).map_err(unwritable(&self.directory))?;
        let settings = self.directory.join("settings.yaml");
        fs::write(&settings, &self.settings).map_err(unwritable(&settings))?;
        let addresses = self.directory.join("addresses.json");
        removed(fs::remove_file(&addresses)).map_err(unwritable(&addresses))?;

        let mut command = command_in(&self.program, &self.directory);
        command
            .args(["agent", "--node-name", &self.node])
            .args(role)
            .args(["--healthz-bind-address", &self.healthz.to_string()])
            .args(["--metrics-bind-address", "127.0.0.1:0"])
            .args(&self.arguments)
            .envs(self.environment.iter().cloned());
        for (flag, path) in [
            ("--kubeconfig", &self.kubeconfig),
            ("--state-dir", &self.directory),
            ("--config", &settings),
            ("--addresses-file", &addresses),
        ] {
            command.arg(flag).arg(path);
        }
        let mut process = Process::start(&name, command, &self.log)?;
        let addresses = bound_addresses(&mut process, &addresses).await?;
        Ok((process, addresses))
    }
}

/// Waits until a process has written its addresses file, and parses it.
pub(super) async fn bound_addresses<A: DeserializeOwned>(process: &mut Process, file: &Path) -> Result<A, AgentError> {
    let (name, log) = (process.name().to_owned(), process.log().to_owned());
    let written = async {
        loop {
            match fs::read(file) {
                Ok(text) => return text,
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    };
    let text = tokio::select! {
        text = timeout(BIND_TIMEOUT, written) => text,
        end = process.wait_for_exit() => return Err(end.into()),
    };
    let Ok(text) = text else {
        let tail = last_log_lines(&log);
        return Err(AgentError::Unbound { name, tail });
    };
    let path = file.to_owned();
    serde_json::from_slice(&text).map_err(|source| AgentError::Addresses { name, path, source })
}
