//! The ARM emulator with the load balancers of one benchmark.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::azure_emulator::EmulatorProcess;
use crate::documents::{NAMED, RESOURCE_GROUP, SUBSCRIPTION, Shape, load_balancers_path};

/// A running emulator, whose operations end at once unless a row says otherwise.
pub(crate) struct Azure {
    pub(crate) shape: Shape,
    /// Entries of pools besides those of the shape.
    other_entries: usize,
    /// Further keys of `azure.json`.
    config: Value,
    emulator: EmulatorProcess,
    directory: TempDir,
}

/// A request that ARM received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: usize,
    pub(crate) puts: usize,
    /// Bodies of requests.
    pub(crate) sent: u64,
    /// Bodies of answers.
    pub(crate) received: u64,
}

/// Entries of the journal.
struct Page {
    /// The number of the last one.
    next: u64,
    /// Entries between the one asked for and these that the journal no longer has.
    dropped: u64,
    entries: Vec<Value>,
}

impl Azure {
    pub(crate) async fn start(shape: Shape) -> anyhow::Result<Self> {
        Self::with_seed(shape, &shape.seed(), 0, json!({})).await
    }

    /// An emulator with this seed: the entries of the shape and this many others, and further keys of `azure.json`.
    pub(crate) async fn with_seed(
        shape: Shape,
        content: &Value,
        other_entries: usize,
        config: Value,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let seed = directory.path().join("seed.json");
        fs::write(&seed, content.to_string())?;
        Ok(Self {
            shape,
            other_entries,
            config,
            emulator: EmulatorProcess::start(directory.path(), &seed).await?,
            directory,
        })
    }

    pub(crate) async fn stop(self) {
        self.emulator.stop().await;
    }

    /// The address of ARM.
    pub(crate) fn arm(&self) -> SocketAddr {
        self.emulator.arm
    }

    /// Changes settings of the emulator.
    pub(crate) async fn set(&self, settings: &Value) -> anyhow::Result<()> {
        self.emulator.control("PUT", "settings", settings).await.map(drop)
    }

    /// Removes all fault rules.
    pub(crate) async fn clear_faults(&self) -> anyhow::Result<()> {
        self.emulator.control("DELETE", "faults", &Value::Null).await.map(drop)
    }

    /// Delays each answer of ARM by this time.
    pub(crate) async fn answer_later(&self, by: Duration) -> anyhow::Result<()> {
        let stall = format!("{}ms", by.as_millis());
        self.emulator
            .control("POST", "faults", &json!({"action": {"stall": stall}}))
            .await?;
        Ok(())
    }

    /// Lets operations that begin from now on take this long.
    pub(crate) async fn operations_take(&self, time: Duration) -> anyhow::Result<()> {
        let settings = json!({"operationDelay": format!("{}ms", time.as_millis())});
        self.emulator.control("PUT", "settings", &settings).await.map(drop)
    }

    /// Reads a load balancer from ARM.
    pub(crate) async fn load_balancer(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = format!("{}{name}?api-version=2025-05-01", load_balancers_path());
        Ok(self.emulator.client().send("GET", &path, String::new()).await?.into())
    }

    /// The number of the journal's last entry.
    pub(crate) async fn now(&self) -> anyhow::Result<u64> {
        let mut after = 0;
        while let Some(page) = self.page(after).await? {
            after = page.next;
        }
        Ok(after)
    }

    /// The requests about load balancers since this entry.
    pub(crate) async fn since(&self, mut after: u64) -> anyhow::Result<Traffic> {
        let mut traffic = Traffic::default();
        self.add_since(&mut after, &mut traffic).await?;
        Ok(traffic)
    }

    /// Adds the requests since `after`, which becomes the number of the last entry.
    ///
    /// # Errors
    /// The journal has dropped some of them.
    pub(crate) async fn add_since(&self, after: &mut u64, traffic: &mut Traffic) -> anyhow::Result<()> {
        while let Some(Page { next, dropped, entries }) = self.page(*after).await? {
            ensure!(
                dropped == 0,
                "the emulator's journal has dropped {dropped} entries that are not counted"
            );
            for entry in entries.iter().filter(|entry| entry["kind"] == "request") {
                traffic.requests += 1;
                traffic.puts += usize::from(entry["method"] == "PUT");
                traffic.sent += bytes(&entry["body"]);
                traffic.received += bytes(&entry["answer"]);
            }
            *after = next;
        }
        Ok(())
    }

    /// Further entries of the journal, if there are any.
    async fn page(&self, after: u64) -> anyhow::Result<Option<Page>> {
        let mut page = self
            .emulator
            .control("GET", &format!("journal?limit=1000&after={after}"), &Value::Null)
            .await?;
        let Value::Array(entries) = page["entries"].take() else {
            anyhow::bail!("a journal without entries");
        };
        let number = |name: &str| page[name].as_u64().with_context(|| format!("the journal's {name}"));
        let (next, dropped) = (number("next")?, number("dropped")?);
        Ok((!entries.is_empty()).then_some(Page { next, dropped, entries }))
    }

    /// Writes an `azure.json` for a leader.
    pub(crate) fn config_file(&self) -> anyhow::Result<PathBuf> {
        let file = self.directory.path().join("azure.json");
        let mut keys = json!({
            "resourceManagerEndpoint": format!("http://{}", self.arm()), "tenantId": "bench", "aadClientId": "headgate",
            "aadClientSecret": "bench", "subscriptionId": SUBSCRIPTION, "resourceGroup": RESOURCE_GROUP,
            "loadBalancerName": NAMED,
        });
        if let (Some(keys), Some(further)) = (keys.as_object_mut(), self.config.as_object()) {
            keys.extend(further.clone());
        }
        fs::write(&file, keys.to_string())?;
        Ok(file)
    }

    /// The number of pool entries: the Nodes of all pools.
    pub(crate) fn entries(&self) -> usize {
        self.shape.all_pools() * self.shape.nodes + self.other_entries
    }
}

/// The length of a body in the journal, which shows large ones by their length.
fn bytes(body: &Value) -> u64 {
    match body {
        Value::Null => 0,
        body => body["bytes"].as_u64().unwrap_or_else(|| body.to_string().len() as u64),
    }
}
