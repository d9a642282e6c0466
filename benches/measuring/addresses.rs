//! The addresses file of a process that chose its own ports.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::process::Process;
use serde_json::Value;
use tokio::time::{sleep, timeout};

/// Time within which the file must appear.
const STARTING: Duration = Duration::from_mins(1);
/// Interval between two reads.
const LOOK: Duration = Duration::from_millis(5);

/// The addresses by their listeners' names.
pub(crate) struct Addresses(Value);

impl Addresses {
    pub(crate) fn of(&self, listener: &str) -> anyhow::Result<SocketAddr> {
        let address = self.0[listener].as_str().unwrap_or_default();
        address.parse().with_context(|| format!("the address of {listener}"))
    }
}

/// Waits for the addresses file of the process.
pub(crate) async fn written(file: &Path, process: &mut Process) -> anyhow::Result<Addresses> {
    let looking = async {
        loop {
            // The file may be incomplete at first.
            let text = fs::read(file).unwrap_or_default();
            if let Ok(addresses) = serde_json::from_slice(&text) {
                return Addresses(addresses);
            }
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        written = timeout(STARTING, looking) => written.context("it does not say where it listens"),
        ended = process.wait_for_exit() => Err(ended.into()),
    }
}
