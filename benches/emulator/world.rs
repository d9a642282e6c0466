//! What is measured: the release binary's `headgate azure-emulator`, and the documents it is given.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use headgate::sandbox::process::{self, Process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::client::{Client, Ending};
use crate::cpu::{Cores, Split};
use crate::memory::Memory;

/// The release binary, built with the same profile as this one.
const BINARY: &str = env!("CARGO_BIN_EXE_headgate");
/// Time for the first sign of life.
const STARTING: Duration = Duration::from_secs(30);
/// Time for the end.
const STOPPING: Duration = Duration::from_secs(10);
/// From an accepted write to the end of its operation: short, so that most writes end by themselves.
const OPERATION_DELAY: &str = "10ms";

const GROUP: &str = "/subscriptions/bench/resourceGroups/bench";
const VERSION: &str = "api-version=2025-05-01";

/// A running emulator.
pub(crate) struct World {
    pub(crate) arm: SocketAddr,
    pub(crate) token: String,
    /// Its process.
    pub(crate) id: u32,
    cores: Cores,
    process: Process,
    _directory: TempDir,
}

impl World {
    /// Starts an emulator with an empty resource group, which throttles nobody.
    pub(crate) async fn start(cores: &Cores) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let addresses = directory.path().join("addresses.json");
        let mut command = process::command(BINARY, directory.path());
        command.args([
            "azure-emulator",
            "--operation-delay",
            OPERATION_DELAY,
            "--addresses-file",
        ]);
        command.arg(&addresses);
        let mut process = Process::start("the emulator", command, &directory.path().join("emulator.log"))?;
        let written = async {
            loop {
                if let Ok(text) = fs::read(&addresses) {
                    return serde_json::from_slice::<Value>(&text);
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let bound = tokio::select! {
            bound = timeout(STARTING, written) => bound.context("the emulator does not start")??,
            ended = process.ended() => return Err(ended.into()),
        };
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            bound[name].as_str().unwrap_or_default().parse().context("an address")
        };
        let mut control = Client::connect(address("control")?, "").await?;
        let settings = json!({"throttle": {"enabled": false}}).to_string();
        control.ask("PUT", "/emulator/v1/settings", settings.as_bytes()).await?;
        let token = control.get("/emulator/v1/token").await?;
        let world = Self {
            arm: address("arm")?,
            token: token["token"].as_str().context("a token")?.to_owned(),
            id: process.id().context("the emulator's process")?,
            cores: cores.clone(),
            process,
            _directory: directory,
        };
        let group = json!({"location": "eastus"}).to_string();
        let mut client = world.client().await?;
        client
            .ask("PUT", &format!("{GROUP}?{VERSION}"), group.as_bytes())
            .await?;
        Ok(world)
    }

    pub(crate) async fn stop(self) {
        self.process.stop(STOPPING).await;
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(self.arm, &self.token).await
    }

    /// Creates load balancers with one pool of this many addresses each.
    pub(crate) async fn create(&self, name: &str, count: usize, addresses: usize) -> anyhow::Result<()> {
        let mut client = self.client().await?;
        for number in 0..count {
            let document = load_balancer(addresses).to_string();
            let path = load_balancer_path(&format!("{name}-{number}"));
            let written = client.ask("PUT", &path, document.as_bytes()).await?;
            let operation = written.operation.context("an operation")?;
            let ending = client.end(&operation).await?;
            ensure!(ending == Ending::Succeeded, "a load balancer was superseded");
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.id)
    }

    /// Gives it one core and the load the other, where there are two.
    pub(crate) fn split(&self) -> anyhow::Result<Option<Split>> {
        let split = || self.cores.split(&[self.id]);
        self.cores.enough().then(split).transpose()
    }
}

/// Where a load balancer is.
pub(crate) fn load_balancer_path(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}?{VERSION}")
}

/// Where its pool is.
pub(crate) fn pool_path(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}/backendAddressPools/nodes?{VERSION}")
}

/// A pool of nodes as a cloud-controller-manager writes it, one of them with another admin state each time.
pub(crate) fn pool(addresses: usize, turn: usize) -> Value {
    let address = |number: usize| {
        let state = if number == turn % addresses { "Down" } else { "None" };
        json!({"name": format!("aks-nodes-31415926-vmss{number:06}"), "properties": {
            "ipAddress": format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255), "adminState": state}})
    };
    let list: Vec<Value> = (0..addresses).map(address).collect();
    json!({"name": "nodes", "properties": {
        "virtualNetwork": {"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/net")},
        "loadBalancerBackendAddresses": list}})
}

fn load_balancer(addresses: usize) -> Value {
    json!({
        "location": "eastus", "sku": {"name": "Standard"},
        "properties": {
            "backendAddressPools": [pool(addresses, 0)],
            "probes": [{"name": "healthz", "properties": {
                "protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5}}],
        },
    })
}
