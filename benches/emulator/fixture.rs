//! The fixture: the emulator, and the documents of the requests.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::azure_emulator::client::{Client, OperationOutcome};
use crate::azure_emulator::{EmulatorProcess, node_address, node_name};
use crate::measuring::cores::{Cores, Split};
use crate::measuring::memory::Memory;

/// Time from the acceptance of a write to the end of its operation: short, so that most writes are not superseded.
const OPERATION_DELAY: Duration = Duration::from_millis(10);

const GROUP: &str = "/subscriptions/bench/resourceGroups/bench";
const VERSION: &str = "api-version=2025-05-01";

/// A running emulator and its directory.
pub(crate) struct Fixture {
    pub(crate) id: u32,
    emulator: EmulatorProcess,
    cores: Cores,
    _directory: TempDir,
}

impl Fixture {
    /// Starts an emulator with an empty resource group.
    pub(crate) async fn start(cores: &Cores) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let emulator = EmulatorProcess::start(directory.path(), OPERATION_DELAY, None).await?;
        let fixture = Self {
            id: emulator.id,
            emulator,
            cores: cores.clone(),
            _directory: directory,
        };
        let group = json!({"location": "eastus"}).to_string();
        let mut client = fixture.client().await?;
        client
            .send("PUT", &format!("{GROUP}?{VERSION}"), group.as_bytes())
            .await?;
        Ok(fixture)
    }

    pub(crate) async fn stop(self) {
        self.emulator.stop().await;
    }

    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        self.emulator.client().await
    }

    /// Creates load balancers with one pool of this many addresses each.
    pub(crate) async fn create(&self, name: &str, count: usize, addresses: usize) -> anyhow::Result<()> {
        let mut client = self.client().await?;
        for number in 0..count {
            let document = load_balancer(addresses).to_string();
            let path = load_balancer_path(&format!("{name}-{number}"));
            let written = client.send("PUT", &path, document.as_bytes()).await?;
            let operation = written.operation.context("an operation")?;
            let outcome = client.wait_for_operation(&operation).await?;
            ensure!(outcome == OperationOutcome::Succeeded, "a load balancer was superseded");
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.id)
    }

    /// Pins the emulator to one core and the clients to the other, if there are two.
    pub(crate) fn split(&self) -> anyhow::Result<Option<Split>> {
        let split = || self.cores.split(&[self.id]);
        self.cores.enough().then(split).transpose()
    }
}

/// The path of a load balancer, with the API version.
pub(crate) fn load_balancer_path(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}?{VERSION}")
}

/// The path of its pool, with the API version.
pub(crate) fn pool_path(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/loadBalancers/{name}/backendAddressPools/nodes?{VERSION}")
}

/// A pool of nodes as a cloud-controller-manager writes it; a different node is Down in each turn.
pub(crate) fn pool(addresses: usize, turn: usize) -> Value {
    let address = |number: usize| {
        let state = if number == turn % addresses { "Down" } else { "None" };
        json!({"name": node_name(number), "properties": {
            "ipAddress": node_address(number), "adminState": state}})
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
