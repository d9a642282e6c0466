//! Agents under test: the real program as a child process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use headgate_sandbox::agents::{self, AgentConfig, Controller};
use headgate_test_kubernetes::{eventually, met, scratch};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::http::{self, Response};

/// The configuration of an agent. An agent that is started again finds the state of the one before.
#[derive(Clone, Debug)]
pub(crate) struct AgentOptions(AgentConfig);

impl AgentOptions {
    /// An agent without kube-proxy, with its own state directory.
    pub(crate) fn new(node: &str, kubeconfig: &Path) -> Self {
        let directory = scratch(&format!("agent-{node}"));
        Self(AgentConfig {
            program: PathBuf::from(env!("CARGO_BIN_EXE_headgate")),
            node: node.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            log: directory.join("agent.log"),
            directory,
            settings: super::settings_file("kubeProxyHealthzUrl: Disabled\n"),
            healthz: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            arguments: Vec::new(),
            environment: Vec::new(),
        })
    }

    /// Replaces the settings, which must then set `kubeProxyHealthzUrl` themselves.
    pub(crate) fn settings(self, yaml: &str) -> Self {
        self.settings_file(super::settings_file(yaml))
    }

    /// Replaces the settings file as a whole.
    pub(crate) fn settings_file(mut self, file: String) -> Self {
        self.0.settings = file;
        self
    }

    /// Sets the address of `/healthz`.
    pub(crate) fn healthz(mut self, address: SocketAddr) -> Self {
        self.0.healthz = address;
        self
    }

    /// Adds a flag. The agent refuses a repeated flag.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.0.arguments.push(argument.to_owned());
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.0.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Moves the state directory into a new subdirectory.
    pub(crate) fn in_subdirectory(mut self, name: &str) -> Self {
        self.0.directory.push(name);
        std::fs::create_dir(&self.0.directory).unwrap();
        self
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Starts the agent and waits until it has bound its addresses.
    pub(crate) async fn start(&self) -> Agent {
        let agent = self.0.start().await.unwrap_or_else(|error| panic!("{error}"));
        Agent {
            agent,
            directory: self.0.directory.clone(),
        }
    }

    /// Starts a controller instead, and waits until it has bound its address. Dropping it kills the process.
    pub(crate) async fn start_controller(&self) -> Controller {
        let controller = self.0.start_controller().await;
        controller.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A running agent. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Agent {
    agent: agents::Agent,
    directory: PathBuf,
}

impl Agent {
    /// The address of `/healthz` and `/livez`.
    pub(crate) fn healthz_address(&self) -> SocketAddr {
        self.agent.addresses.healthz
    }

    /// The address of `/metrics` and the process's own probes.
    pub(crate) fn metrics_address(&self) -> SocketAddr {
        self.agent.addresses.metrics
    }

    /// Sends a GET to `/healthz`.
    pub(crate) async fn healthz(&self) -> Response {
        http::get(self.healthz_address(), "/healthz").await.unwrap()
    }

    /// Waits until the answer of `/healthz` is as expected.
    pub(crate) async fn healthz_becomes(&self, within: Duration, what: &str, is_expected: impl Fn(&Response) -> bool) {
        eventually(within, what, async || {
            let answer = self.healthz().await;
            let found = format!("{} {}; its log:\n{}", answer.status, answer.text(), self.log());
            met(is_expected(&answer), found)
        })
        .await;
    }

    /// Waits until `/healthz` answers with this status.
    pub(crate) async fn answers(&self, status: u16) {
        let what = format!("/healthz answers {status}");
        self.healthz_becomes(super::SOON, &what, |answer| answer.status == status)
            .await;
    }

    /// The text of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        http::get(self.metrics_address(), "/metrics").await.unwrap().text()
    }

    /// `/statusz` as JSON.
    pub(crate) async fn statusz(&self) -> Value {
        http::statusz(self.metrics_address()).await
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its whole log, including that of earlier starts.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.agent.process.log()).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.agent.process.id().unwrap()
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        self.agent.process.signal(signal);
    }

    /// Waits until it ends by itself; `None` if it is still running after `bound`.
    pub(crate) async fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        self.agent.process.wait(bound).await
    }

    /// Stops it with SIGTERM; panics if it is still running after `bound`.
    pub(crate) async fn stop(mut self, bound: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let status = self.wait(bound).await;
        status.unwrap_or_else(|| panic!("still running {bound:?} after SIGTERM; its log:\n{}", self.log()))
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(self) {
        self.agent.process.kill().await;
    }
}
