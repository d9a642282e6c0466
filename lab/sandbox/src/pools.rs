//! The backend pools in the emulator, and since when each one is unchanged.

use std::net::SocketAddr;
use std::time::Duration;

use headgate_http::client::PlainClient;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::azure::read_control;

/// Time between two reads of the emulator's state.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of one read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of the emulator's state.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A pool, as an output line shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pool {
    pub(super) load_balancer: String,
    #[serde(rename = "pool")]
    pub(super) name: String,
    /// `Succeeded`, `Updating` or another state of ARM.
    pub(super) provisioning_state: String,
    /// The number of addresses.
    pub(super) addresses: usize,
    /// The names of the addresses with the admin states Down and Up.
    pub(super) down: Vec<String>,
    pub(super) up: Vec<String>,
    /// The nodes of the addresses that are Down. Addresses of interfaces have names of their own.
    #[serde(skip)]
    pub(super) nodes_down: Vec<String>,
}

/// A pool, and since when it is unchanged.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PoolRow {
    #[serde(rename = "time")]
    pub(super) since: Timestamp,
    #[serde(flatten)]
    pub(super) pool: Pool,
}

/// The pools of the last read.
#[derive(Debug, Default)]
pub(super) struct PoolRows(Vec<PoolRow>);

impl PoolRows {
    /// Takes the pools of a read; returns the rows that have changed.
    pub(super) fn update(&mut self, pools: Vec<Pool>, now: Timestamp) -> Vec<PoolRow> {
        let mut changed = Vec::new();
        let rows = pools.into_iter().map(|pool| {
            if let Some(row) = self.0.iter().find(|row| row.pool == pool) {
                return row.clone();
            }
            let row = PoolRow { since: now, pool };
            changed.push(row.clone());
            row
        });
        self.0 = rows.collect();
        changed
    }

    pub(super) fn rows(&self) -> &[PoolRow] {
        &self.0
    }
}

/// The pools in the answer to `GET /emulator/v1/state`.
pub(super) fn pools_in_state(state: &Value) -> Vec<Pool> {
    let list = |value: &Value, field: &str| value["properties"][field].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut pools = Vec::new();
    for resource in state["resources"].as_array().into_iter().flatten() {
        if resource["type"] != "Microsoft.Network/loadBalancers" {
            continue;
        }
        for pool in list(resource, "backendAddressPools") {
            let addresses = list(&pool, "loadBalancerBackendAddresses");
            let found = |state: &'static str| {
                let is_in = move |address: &&Value| address["properties"]["adminState"] == state;
                addresses.iter().filter(is_in)
            };
            let in_state = |state| found(state).map(|address| text(&address["name"])).collect();
            pools.push(Pool {
                load_balancer: text(&resource["name"]),
                name: text(&pool["name"]),
                provisioning_state: text(&pool["properties"]["provisioningState"]),
                addresses: addresses.len(),
                down: in_state("Down"),
                up: in_state("Up"),
                nodes_down: found("Down").map(node).collect(),
            });
        }
    }
    pools
}

/// The node of an address: its own name, or that of the interface `NODE-nic`.
fn node(address: &Value) -> String {
    let configuration = address["properties"]["networkInterfaceIPConfiguration"]["id"].as_str();
    let interface = configuration.and_then(|id| {
        let mut parts = id
            .split('/')
            .skip_while(|part| !part.eq_ignore_ascii_case("networkInterfaces"));
        parts.nth(1)
    });
    let node = interface.and_then(|interface| interface.strip_suffix("-nic"));
    node.or(address["name"].as_str()).unwrap_or_default().to_owned()
}

/// Polls the emulator until the receiver is dropped.
pub(super) async fn follow(control: SocketAddr, rows: mpsc::Sender<Vec<Pool>>) {
    let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
    loop {
        // Without an answer, the last known pools stay.
        if let Some(state) = read_control(&client, control, "state").await
            && rows.send(pools_in_state(&state)).await.is_err()
        {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_changed_pools_return_a_row() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let state = |down: &str| {
            json!({"resources": [{"type": "other"}, {"name": "lb", "type": "Microsoft.Network/loadBalancers", "properties": {
                "backendAddressPools": [
                    {"name": "a", "properties": {"provisioningState": "Succeeded", "loadBalancerBackendAddresses": [
                        {"name": "n1", "properties": {"adminState": down, "networkInterfaceIPConfiguration": {"id": "/a/networkInterfaces/m1-nic/ipConfigurations/c"}}},
                        {"name": "n2", "properties": {}}]}},
                    {"name": "b", "properties": {"provisioningState": "Succeeded"}}]}}]})
        };
        let mut pools = PoolRows::default();
        assert_eq!(pools.update(pools_in_state(&state("None")), at(1)).len(), 2);
        assert_eq!(pools.update(pools_in_state(&state("None")), at(2)).len(), 0);
        let changed = pools.update(pools_in_state(&state("Down")), at(3));
        let line = serde_json::to_string(&changed).unwrap();
        assert_eq!(
            line,
            r#"[{"time":"1970-01-01T00:00:03Z","loadBalancer":"lb","pool":"a","provisioningState":"Succeeded","addresses":2,"down":["n1"],"up":[]}]"#
        );
        assert_eq!(changed[0].pool.nodes_down, ["m1"]);
        let since: Vec<_> = pools.rows().iter().map(|row| row.since).collect();
        assert_eq!(since, [at(3), at(1)]);
    }
}
