//! The ARM emulator as a child process, for the benchmarks that include this file: the benchmark's own program, started again.

pub(crate) mod client;

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use headgate_azure_emulator::{Options, Settings};
use headgate_sandbox::{process, process::Process};
use serde_json::{Value, json};

use client::Client;

use crate::measuring::addresses::written;
use crate::measuring::output::say;

/// Time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The argument that makes this program the emulator.
const ROLE: &str = "--emulate-azure";

/// Serves until the process is killed, if this process was started as the emulator; otherwise there is nothing to return.
pub(crate) fn serve() -> Option<ExitCode> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [role, addresses_file, seed] = arguments.as_slice() else {
        return None;
    };
    if role != ROLE {
        return None;
    }
    let served = run(addresses_file.into(), seed.into());
    Some(served.map_or_else(
        |error| {
            say(&format!("the emulator: {error:#}"));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

fn run(addresses_file: PathBuf, seed: PathBuf) -> anyhow::Result<()> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = Options {
        listen: any_port,
        tls_listen: None,
        tls_ca_file: None,
        control_listen: any_port,
        seed: Some(seed),
        addresses_file: Some(addresses_file),
        settings: Settings {
            operation_delay: Duration::ZERO,
            ..Settings::default()
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(headgate_azure_emulator::run(options, std::future::pending()))?)
}

/// A running emulator. Dropping it kills the process.
pub(crate) struct EmulatorProcess {
    pub(crate) arm: SocketAddr,
    control: SocketAddr,
    token: String,
    process: Process,
}

impl EmulatorProcess {
    /// Starts an emulator with this seed, whose operations end at once, and disables its throttling.
    pub(crate) async fn start(directory: &Path, seed: &Path) -> anyhow::Result<Self> {
        let addresses = directory.join("addresses.json");
        let mut command = process::command_in(env::current_exe()?, directory);
        command.arg(ROLE).arg(&addresses).arg(seed);
        let mut process = Process::start("the emulator", command, &directory.join("emulator.log"))?;
        let addresses = written(&addresses, &mut process).await?;
        let mut emulator = Self {
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
        let client = Client::new(self.control, "");
        let answer = client.send(method, &format!("/emulator/v1/{path}"), body).await?;
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// A client of ARM.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.arm, &self.token)
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
