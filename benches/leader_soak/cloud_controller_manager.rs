//! A stand-in for cloud-controller-manager: in each round it acquires the shared Lease, and removes a pool entry or adds it again
//! without its admin state, as the real one does when it reconciles a Service.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::SHAPE;
use crate::azure::Azure;
use crate::azure_emulator::client::Client;
use crate::azure_emulator::{node_address, node_name};
use crate::documents::load_balancers_path;
use crate::world::World;

/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(4);
/// From the Lease to its release.
const HOLD: Duration = Duration::from_millis(300);
/// For one round.
const ROUND_TIMEOUT: Duration = Duration::from_mins(2);
const API_VERSION: &str = "?api-version=2025-05-01";

/// What it did so far.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) done: u64,
    /// Rounds that failed, such as in an outage of the API server.
    pub(crate) failed: u64,
}

/// Works until `paused` is true, and from its end on.
pub(crate) struct StandIn {
    random: fastrand::Rng,
    pub(crate) rounds: Rounds,
}

impl StandIn {
    pub(crate) fn new() -> Self {
        Self {
            random: fastrand::Rng::with_seed(2),
            rounds: Rounds::default(),
        }
    }

    /// Makes rounds until `stopped` is true.
    pub(crate) async fn run(&mut self, world: &World, azure: &Azure, mut stopped: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                () = sleep(PAUSE) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
            }
            match timeout(ROUND_TIMEOUT, self.round(world, azure)).await {
                Ok(Ok(())) => self.rounds.done += 1,
                Ok(Err(_)) | Err(_) => self.rounds.failed += 1,
            }
        }
    }

    async fn round(&mut self, world: &World, azure: &Azure) -> anyhow::Result<()> {
        world.take_lock().await?;
        let written = self.write(azure).await;
        // The Lease is released even after a failed write, once the API server answers.
        while world.release_lock().await.is_err() {
            sleep(Duration::from_secs(1)).await;
        }
        written
    }

    async fn write(&mut self, azure: &Azure) -> anyhow::Result<()> {
        let client = azure.client();
        let index = self.random.usize(..SHAPE.load_balancers);
        let load_balancer = SHAPE.names().nth(index).context("a load balancer")?;
        let pool = self.random.usize(..SHAPE.pools);
        let path = format!(
            "{}{load_balancer}/backendAddressPools/pool-{pool}{API_VERSION}",
            load_balancers_path()
        );
        let mut document = client.get(&path).await?;
        sleep(HOLD).await;
        let node = self.random.usize(..SHAPE.nodes);
        let name = node_name(node);
        let addresses = document
            .pointer_mut("/properties/loadBalancerBackendAddresses")
            .and_then(Value::as_array_mut)
            .context("a pool's addresses")?;
        let before = addresses.len();
        addresses.retain(|address| address["name"] != name);
        if addresses.len() == before {
            addresses.push(json!({"name": name, "properties": {"ipAddress": node_address(node)}}));
        }
        put(&client, &path, &document).await
    }
}

/// Writes a document and waits for the end of the operation.
pub(crate) async fn put(client: &Client, path: &str, document: &Value) -> anyhow::Result<()> {
    if let Some(operation) = client.send("PUT", path, document.to_string()).await?.operation {
        client.wait_for_operation(&operation).await?;
    }
    Ok(())
}
