//! The release binary's `headgate azure-emulator` with the load balancers of one benchmark.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use headgate::sandbox::process::{self, Process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::documents::{NAMED, RESOURCE_GROUP, SUBSCRIPTION, Shape, load_balancers_path};
use crate::program::{BINARY, bound};

/// Time for the end.
const STOPPING: Duration = Duration::from_secs(10);

/// A running emulator, whose operations end at once and which throttles nobody.
pub(crate) struct Azure {
    pub(crate) shape: Shape,
    pub(crate) arm: SocketAddr,
    control: SocketAddr,
    token: String,
    process: Process,
    directory: TempDir,
}

/// What somebody asked of ARM.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: usize,
    pub(crate) puts: usize,
    /// Bodies of requests.
    pub(crate) sent: u64,
    /// Bodies of answers.
    pub(crate) received: u64,
}

impl Azure {
    pub(crate) async fn start(shape: Shape) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("headgate-bench-").tempdir()?;
        let seed = directory.path().join("seed.json");
        fs::write(&seed, shape.seed().to_string())?;
        let addresses = directory.path().join("addresses.json");
        let mut command = process::command(BINARY, directory.path());
        command.args(["azure-emulator", "--operation-delay", "0s", "--seed"]);
        command.arg(&seed).arg("--addresses-file").arg(&addresses);
        let mut process = Process::start("the emulator", command, &directory.path().join("emulator.log"))?;
        let bound = tokio::select! {
            bound = bound(&addresses) => bound?,
            ended = process.ended() => return Err(ended.into()),
        };
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            bound[name].as_str().unwrap_or_default().parse().context("an address")
        };
        let mut azure = Self {
            shape,
            arm: address("arm")?,
            control: address("control")?,
            token: String::new(),
            process,
            directory,
        };
        azure
            .control(
                "PUT",
                "settings",
                &json!({"throttle": {"enabled": false}, "operationDelay": "0s"}),
            )
            .await?;
        let token = azure.control("GET", "token", &Value::Null).await?;
        token["token"].as_str().context("a token")?.clone_into(&mut azure.token);
        Ok(azure)
    }

    pub(crate) async fn stop(self) {
        self.process.stop(STOPPING).await;
    }

    /// Asks the control API.
    pub(crate) async fn control(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut client = Client::connect(self.control, "").await?;
        let answer = client
            .ask(method, &format!("/emulator/v1/{path}"), body.as_bytes())
            .await?;
        Ok(serde_json::from_slice(answer.body).unwrap_or_default())
    }

    /// Each request to ARM is answered so much later.
    pub(crate) async fn answer_later(&self, by: Duration) -> anyhow::Result<()> {
        let stall = format!("{}ms", by.as_millis());
        self.control("POST", "faults", &json!({"action": {"stall": stall}}))
            .await?;
        Ok(())
    }

    /// A load balancer as ARM shows it.
    pub(crate) async fn load_balancer(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let mut client = Client::connect(self.arm, &self.token).await?;
        let path = format!("{}{name}?api-version=2025-05-01", load_balancers_path());
        Ok(client.ask("GET", &path, b"").await?.body.to_vec())
    }

    /// Where the journal ends.
    pub(crate) async fn now(&self) -> anyhow::Result<u64> {
        let mut after = 0;
        while let Some((next, _)) = self.page(after).await? {
            after = next;
        }
        Ok(after)
    }

    /// What was asked of load balancers since then.
    pub(crate) async fn since(&self, mut after: u64) -> anyhow::Result<Traffic> {
        let mut traffic = Traffic::default();
        while let Some((next, entries)) = self.page(after).await? {
            for entry in entries.iter().filter(|entry| entry["kind"] == "request") {
                traffic.requests += 1;
                traffic.puts += usize::from(entry["method"] == "PUT");
                traffic.sent += bytes(&entry["body"]);
                traffic.received += bytes(&entry["answer"]);
            }
            after = next;
        }
        Ok(traffic)
    }

    /// Further entries of the journal, if there are any.
    async fn page(&self, after: u64) -> anyhow::Result<Option<(u64, Vec<Value>)>> {
        let mut page = self
            .control("GET", &format!("journal?limit=1000&after={after}"), &Value::Null)
            .await?;
        let Value::Array(entries) = page["entries"].take() else {
            anyhow::bail!("a journal without entries");
        };
        let next = page["next"].as_u64().context("the journal's next")?;
        Ok((!entries.is_empty()).then_some((next, entries)))
    }

    /// Writes an `azure.json` for a leader.
    pub(crate) fn config_file(&self) -> anyhow::Result<PathBuf> {
        let file = self.directory.path().join("azure.json");
        let text = json!({
            "resourceManagerEndpoint": format!("http://{}", self.arm), "tenantId": "bench", "aadClientId": "headgate",
            "aadClientSecret": "bench", "subscriptionId": SUBSCRIPTION, "resourceGroup": RESOURCE_GROUP,
            "loadBalancerName": NAMED,
        });
        fs::write(&file, text.to_string())?;
        Ok(file)
    }

    /// Its Nodes in all its pools.
    pub(crate) fn entries(&self) -> usize {
        self.shape.all_pools() * self.shape.nodes
    }
}

/// The length of a body in the journal, which shows large ones by their length.
fn bytes(body: &Value) -> u64 {
    match body {
        Value::Null => 0,
        body => body["bytes"].as_u64().unwrap_or_else(|| body.to_string().len() as u64),
    }
}
