//! The Azure emulator of a drill: ARM for the leader, and the instance metadata service for the agents.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use headgate_azure_emulator::Options;
use hyper::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{ClusterError, ClusterSettings, POLL_INTERVAL, REQUEST_TIMEOUT, write};
use crate::{azure, http};

/// How long the emulator may take to bind its addresses.
const EMULATOR_TIMEOUT: Duration = Duration::from_secs(10);
/// How Azure writes times in Scheduled Events.
const TIME_FORMAT: &str = "%a, %d %b %Y %H:%M:%S GMT";

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct EmulatorAddresses {
    pub(super) arm: SocketAddr,
    pub(super) control: SocketAddr,
}

impl EmulatorAddresses {
    /// Announces the eviction of a node's machine to all machines, as Azure does.
    pub(super) async fn announce_eviction(&self, node: usize, notice: Duration) -> Result<(), ClusterError> {
        let start = Timestamp::now() + notice;
        let event = json!({"EventType": "Preempt", "Resources": [azure::name(node)],
            "NotBefore": start.strftime(TIME_FORMAT).to_string()});
        self.put_scheduled_events(json!([event])).await
    }

    /// Takes all announcements back.
    pub(super) async fn clear_evictions(&self) -> Result<(), ClusterError> {
        self.put_scheduled_events(json!([])).await
    }

    async fn put_scheduled_events(&self, events: Value) -> Result<(), ClusterError> {
        let body = json!({"Events": events});
        self.send("Scheduled Events", Method::PUT, "scheduled-events", &body)
            .await
    }

    /// Lets operations take this long, those that are in progress as before.
    pub(super) async fn set_operation_delay(&self, delay: Duration) -> Result<(), ClusterError> {
        let body = json!({"operationDelay": format!("{}us", delay.as_micros())});
        self.send("settings", Method::PUT, "settings", &body).await
    }

    /// Adds a fault rule.
    pub(super) async fn add_fault(&self, fault: &Value) -> Result<(), ClusterError> {
        self.send("faults", Method::POST, "faults", fault).await
    }

    async fn send(&self, what: &'static str, method: Method, path: &str, body: &Value) -> Result<(), ClusterError> {
        let failed = |answer: String| ClusterError::EmulatorRequest { what, answer };
        let path = format!("/emulator/v1/{path}");
        let sent = http::request(self.control, method, &path, body.to_string());
        match timeout(REQUEST_TIMEOUT, sent).await {
            Ok(Ok(status)) if status.is_success() => Ok(()),
            Ok(Ok(status)) => Err(failed(status.to_string())),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
        }
    }
}

/// Runs the emulator as a task of this process.
pub(super) async fn start(
    settings: &ClusterSettings,
    directory: &Path,
    tasks: &mut JoinSet<()>,
) -> Result<EmulatorAddresses, ClusterError> {
    let [seed, bound] = ["seed.json", "addresses.json"].map(|name| directory.join("azure").join(name));
    write(&seed, &azure::seed(settings.nodes, settings.probe).to_string())?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = Options {
        listen: any_port,
        tls_listen: None,
        tls_ca_file: None,
        control_listen: any_port,
        seed: Some(seed),
        addresses_file: Some(bound.clone()),
        settings: settings.azure.clone(),
    };
    let (send_failed, failed) = tokio::sync::oneshot::channel();
    tasks.spawn(async move {
        let ended = headgate_azure_emulator::run(options, std::future::pending()).await;
        // After the start the receiver is gone; agents then report what they cannot reach.
        let _ = send_failed.send(ended);
    });
    let addresses = async {
        loop {
            let text = std::fs::read(&bound).unwrap_or_default();
            if let Ok(addresses) = serde_json::from_slice(&text) {
                return addresses;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        addresses = timeout(EMULATOR_TIMEOUT, addresses) => addresses.map_err(|_| ClusterError::EmulatorTimeout(EMULATOR_TIMEOUT)),
        Ok(Err(error)) = failed => Err(ClusterError::Emulator(error)),
    }
}
