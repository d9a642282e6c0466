//! A checkpoint: every pool entry of a Node with a signal is `Down`, no other one is, and the ledger has nothing old.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use headgate_controller::admin_state::Ledger;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::SHAPE;
use crate::azure::Azure;
use crate::signals::Signals;

/// For all entries to reach their states: a write that ARM ignores is repeated after up to 5 min.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(6);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the ledger keeps an entry after its `Down` was given back, and time to notice that.
const LEDGER_TAIL: Duration = Duration::from_mins(7);

/// What one checkpoint showed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checkpoint {
    pub(crate) seconds: u64,
    pub(crate) signalled: usize,
    /// How long the entries took to reach their states; `None` if they did not in time.
    pub(crate) settled_millis: Option<u64>,
    /// Entries in a wrong state at the end.
    pub(crate) wrong: Vec<String>,
    pub(crate) ledger_entries: usize,
    /// The most that the signals so far explain.
    pub(crate) ledger_limit: usize,
}

impl Checkpoint {
    pub(crate) fn is_good(&self) -> bool {
        self.settled_millis.is_some() && self.ledger_entries <= self.ledger_limit
    }
}

/// Waits until every entry is in the state that the signals require.
pub(crate) async fn take(
    begun: Instant,
    client: &Client,
    azure: &Azure,
    signals: &Signals,
) -> anyhow::Result<Checkpoint> {
    let started = Instant::now();
    let signalled = signals.signalled();
    let (settled, wrong) = loop {
        let wrong = wrong_entries(azure, &signalled).await?;
        if wrong.is_empty() {
            break (Some(started.elapsed()), wrong);
        }
        if started.elapsed() >= SETTLE_TIMEOUT {
            break (None, wrong);
        }
        sleep(POLL_INTERVAL).await;
    };
    Ok(Checkpoint {
        seconds: begun.elapsed().as_secs(),
        signalled: signalled.len(),
        settled_millis: settled.map(|settled| u64::try_from(settled.as_millis()).unwrap_or(u64::MAX)),
        wrong: wrong.into_iter().take(20).collect(),
        ledger_entries: ledger_entries(client).await?,
        ledger_limit: signals.signalled_within(LEDGER_TAIL) * SHAPE.all_pools(),
    })
}

/// The entries whose state is not that of their Node's signal.
async fn wrong_entries(azure: &Azure, signalled: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for name in SHAPE.names() {
        let document: Value = serde_json::from_slice(&azure.load_balancer(name).await?)?;
        let pools = document
            .pointer("/properties/backendAddressPools")
            .and_then(Value::as_array);
        for pool in pools.context("a load balancer without pools")? {
            let addresses = pool
                .pointer("/properties/loadBalancerBackendAddresses")
                .and_then(Value::as_array);
            for address in addresses.into_iter().flatten() {
                let node = address["name"].as_str().unwrap_or_default();
                let is_down = address["properties"]["adminState"] == "Down";
                if is_down != signalled.contains(node) {
                    wrong.push(format!("{name}/{}/{node}", pool["name"].as_str().unwrap_or_default()));
                }
            }
        }
    }
    Ok(wrong)
}

/// The number of entries in the ledger.
pub(crate) async fn ledger_entries(client: &Client) -> anyhow::Result<usize> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
    let object = api
        .get_opt("headgate-admin-state")
        .await
        .context("reading the ledger")?;
    let text = object.and_then(|object| object.data?.remove("ledger.json"));
    let ledger: Ledger = text.map_or_else(|| Ok(Ledger::default()), |text| serde_json::from_str(&text))?;
    Ok(ledger.entries().count())
}
