//! The release binary's `headgate azure-emulator` as a child process, for the benchmarks that include this file.

pub(crate) mod client;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::{process, process::Process};
use serde_json::{Value, json};

use crate::measuring::BINARY;
use crate::measuring::addresses::written;
use client::Client;

/// Time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running emulator. Dropping it kills the process.
pub(crate) struct EmulatorProcess {
    pub(crate) id: u32,
    pub(crate) arm: SocketAddr,
    control: SocketAddr,
    token: String,
    process: Process,
}

impl EmulatorProcess {
    /// Starts an emulator with these additional arguments, and disables its throttling.
    pub(crate) async fn start(
        directory: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<Self> {
        let addresses = directory.join("addresses.json");
        let mut command = process::command_in(BINARY, directory);
        command.arg("azure-emulator").args(arguments);
        command.arg("--addresses-file").arg(&addresses);
        let mut process = Process::start("the emulator", command, &directory.join("emulator.log"))?;
        let addresses = written(&addresses, &mut process).await?;
        let mut emulator = Self {
            id: process.id().context("the emulator's process")?,
            arm: addresses.of("arm")?,
            control: addresses.of("control")?,
            token: String::new(),
            process,
        };
        let unthrottled = json!({"throttle": {"enabled": false}});
        emulator.control("PUT", "settings", &unthrottled).await?;
        let token = emulator.control("GET", "token", &Value::Null).await?;
        token["token"]
            .as_str()
            .context("a token")?
            .clone_into(&mut emulator.token);
        Ok(emulator)
    }

    pub(crate) async fn stop(self) {
        self.process.stop(STOP_TIMEOUT).await;
    }

    /// Sends a request to the control API.
    pub(crate) async fn control(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut client = Client::connect(self.control, "").await?;
        let answer = client
            .send(method, &format!("/emulator/v1/{path}"), body.as_bytes())
            .await?;
        Ok(serde_json::from_slice(answer.body).unwrap_or_default())
    }

    /// A new connection to ARM.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(self.arm, &self.token).await
    }
}

/// A node's name in the style of AKS.
pub(crate) fn node_name(number: usize) -> String {
    format!("aks-nodes-31415926-vmss{number:06}")
}

/// A node's address in pools.
pub(crate) fn node_address(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255)
}
