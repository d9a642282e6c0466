//! Real agents: `headgate agent` as a child process for one Node.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::process::{Process, ProcessError, command_in, last_log_lines};

/// How long an agent may take to bind its addresses; it needs a moment, or 5 s while the API does not answer.
pub(super) const BINDING: Duration = Duration::from_secs(30);
/// From one look for the addresses file to the next.
const INTERVAL: Duration = Duration::from_millis(20);

/// An agent, or what is run like one, cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot be started, or has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its directory or settings file cannot be written.
    #[error("cannot write {}: {source}; check the directory's permissions and free space", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it wrote as its addresses cannot be read.
    #[error("cannot read {}, where {name} says its addresses: {source}", path.display())]
    Addresses {
        /// The agent.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// It has bound no addresses in time.
    #[error("{name} has not bound its addresses after {} s; its last log lines:\n{tail}", BINDING.as_secs())]
    Unbound {
        /// The agent.
        name: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// What to run.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The headgate program.
    pub program: PathBuf,
    /// The Node the agent speaks for.
    pub node: String,
    /// How it reaches the API.
    pub kubeconfig: PathBuf,
    /// Its own directory: remembered state, settings and addresses. Made if missing, kept afterwards.
    pub directory: PathBuf,
    /// Its output is appended here.
    pub log: PathBuf,
    /// Its settings file's text.
    pub settings: String,
    /// Where it serves `/healthz`; port 0 takes a free one.
    pub healthz: SocketAddr,
    /// Further flags.
    pub arguments: Vec<String>,
}

/// Where an agent answers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Addresses {
    /// `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// Metrics and the process's own probes.
    pub metrics: SocketAddr,
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub process: Process,
    /// Where it answers.
    pub addresses: Addresses,
}

impl AgentConfig {
    /// Starts the agent, its operations on a free port of 127.0.0.1, and waits until it has bound them.
    ///
    /// # Errors
    /// It cannot be run, ends, or does not bind its addresses within half a minute.
    pub async fn start(&self) -> Result<Agent, AgentError> {
        let unwritable = |path: &Path| {
            let path = path.to_owned();
            move |source| AgentError::Write { path, source }
        };
        fs::create_dir_all(&self.directory).map_err(unwritable(&self.directory))?;
        let settings = self.directory.join("settings.yaml");
        fs::write(&settings, &self.settings).map_err(unwritable(&settings))?;
        let addresses = self.directory.join("addresses.json");
        match fs::remove_file(&addresses) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unwritable(&addresses)(error)),
            _ => {}
        }

        let name = format!("the agent of {}", self.node);
        let mut command = command_in(&self.program, &self.directory);
        command
            .args(["agent", "--node-name", &self.node])
            .args(["--healthz-bind-address", &self.healthz.to_string()])
            .args(["--metrics-bind-address", "127.0.0.1:0"])
            .args([
                Path::new("--kubeconfig"),
                &self.kubeconfig,
                Path::new("--state-dir"),
                &self.directory,
            ])
            .args([
                Path::new("--config"),
                &settings,
                Path::new("--addresses-file"),
                &addresses,
            ])
            .args(&self.arguments);
        let mut process = Process::start(&name, command, &self.log)?;

        let bound = tokio::select! {
            bound = timeout(BINDING, bound(&name, &addresses)) => bound,
            end = process.wait_for_exit() => return Err(end.into()),
        };
        match bound {
            Ok(addresses) => Ok(Agent {
                process,
                addresses: addresses?,
            }),
            Err(_) => Err(AgentError::Unbound {
                name,
                tail: last_log_lines(&self.log),
            }),
        }
    }
}

/// What a process has written to its addresses file, once it has.
pub(super) async fn bound<A: DeserializeOwned>(name: &str, file: &Path) -> Result<A, AgentError> {
    loop {
        if let Ok(text) = fs::read(file) {
            return serde_json::from_slice(&text).map_err(|source| AgentError::Addresses {
                name: name.to_owned(),
                path: file.to_owned(),
                source,
            });
        }
        sleep(INTERVAL).await;
    }
}
