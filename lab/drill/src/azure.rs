//! The load balancer in the ARM emulator: its seed, and the admin states that ARM shows.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use headgate_http::client::PlainClient;
use headgate_sandbox::nodes::{RESOURCE_GROUP, SUBSCRIPTION, machine_id, node_name};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::control_plane::Observed;
use crate::network::addresses::{self, HEADGATE_HEALTH_PORT, NODE_PORT};
use crate::result::Event;
use crate::rotation::AdminState;
use crate::strategy::ProbeTarget;

/// Between two requests for the emulator's state. It bounds the error of the times that a drill shows.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Timeout of one of them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// More than the state of one load balancer takes.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// The load balancer, named as cloud-provider-azure names it.
const LOAD_BALANCER: &str = "kubernetes";

/// What the entries of the pool are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PoolMembers {
    /// Addresses.
    #[default]
    Ip,
    /// IP configurations of the machines' network interfaces.
    Nic,
}

/// `azure.json` for agents that use the ARM endpoint at this address.
pub fn azure_json(arm: SocketAddr) -> String {
    let config = json!({
        "resourceManagerEndpoint": format!("http://{arm}"),
        "tenantId": "drill",
        "subscriptionId": SUBSCRIPTION,
        "resourceGroup": RESOURCE_GROUP,
        "aadClientId": "headgate",
        "aadClientSecret": "drill",
        "loadBalancerName": LOAD_BALANCER,
    });
    format!("{config:#}\n")
}

/// What the emulator starts with: one load balancer with one pool of the nodes, and the probe of its rule.
pub fn seed(nodes: usize, probe: ProbeTarget, members: PoolMembers) -> Value {
    let probe = match probe {
        ProbeTarget::NodePort => {
            json!({"protocol": "Tcp", "port": NODE_PORT, "intervalInSeconds": 5, "numberOfProbes": 1,
            "probeThreshold": 2})
        }
        _ => {
            json!({"protocol": "Http", "port": HEADGATE_HEALTH_PORT, "requestPath": "/healthz", "intervalInSeconds": 5,
            "numberOfProbes": 1, "probeThreshold": 2})
        }
    };
    let network = network_id("virtualNetworks", "drill");
    let load_balancer = network_id("loadBalancers", LOAD_BALANCER);
    let public_address = network_id("publicIPAddresses", LOAD_BALANCER);
    let part = |kind: &str, name: &str| json!({"id": format!("{load_balancer}/{kind}/{name}")});
    let entry = |node: usize| json!({"name": name(node), "properties": {"ipAddress": addresses::node(node)}});
    let pool = match members {
        PoolMembers::Ip => json!({"virtualNetwork": {"id": network},
            "loadBalancerBackendAddresses": (0..nodes).map(entry).collect::<Vec<_>>()}),
        // The members are those of the interfaces.
        PoolMembers::Nic => json!({}),
    };
    let mut resources = vec![
        json!({"id": network, "location": "eastus", "properties": {"addressSpace": {"addressPrefixes": ["198.18.0.0/15"]},
            "subnets": [{"name": "nodes", "properties": {"addressPrefixes": ["198.18.1.0/24"]}}]}}),
        json!({"id": public_address, "location": "eastus", "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}}),
        json!({"id": load_balancer, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
            "frontendIPConfigurations": [{"name": "service", "properties": {"publicIPAddress": {"id": public_address}}}],
            "backendAddressPools": [{"name": LOAD_BALANCER, "properties": pool}],
            "loadBalancingRules": [{"name": "service-TCP-80", "properties": {
                "frontendIPConfiguration": part("frontendIPConfigurations", "service"),
                "backendAddressPool": part("backendAddressPools", LOAD_BALANCER), "probe": part("probes", "probe"),
                "protocol": "Tcp", "frontendPort": addresses::FRONTEND_PORT, "backendPort": NODE_PORT}}],
            "probes": [{"name": "probe", "properties": probe}]}}),
    ];
    if members == PoolMembers::Nic {
        resources.extend((0..nodes).map(interface));
    }
    json!({"resources": resources})
}

/// The id of a resource of the network.
fn network_id(kind: &str, name: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.Network/{kind}/{name}")
}

/// The id of the pool.
pub(crate) fn pool_id() -> String {
    format!(
        "{}/backendAddressPools/{LOAD_BALANCER}",
        network_id("loadBalancers", LOAD_BALANCER)
    )
}

/// The network interface of a node's machine, which is in the pool.
pub(crate) fn interface(node: usize) -> Value {
    let subnet = format!("{}/subnets/nodes", network_id("virtualNetworks", "drill"));
    json!({"id": interface_id(node), "location": "eastus", "properties": {
        "virtualMachine": {"id": machine_id(&name(node))},
        "ipConfigurations": [{"name": "ipconfig1", "properties": {"primary": true, "subnet": {"id": subnet},
            "privateIPAddress": addresses::node(node), "loadBalancerBackendAddressPools": [{"id": pool_id()}]}}]}})
}

/// The id of that interface.
pub(crate) fn interface_id(node: usize) -> String {
    network_id("networkInterfaces", &format!("{}-nic", name(node)))
}

/// Whether an entry of the pool is that of a node.
fn is_entry_of(entry: &Value, node: usize) -> bool {
    let configuration = entry["properties"]["networkInterfaceIPConfiguration"]["id"].as_str();
    match configuration {
        Some(id) => id
            .to_lowercase()
            .starts_with(&format!("{}/", interface_id(node)).to_lowercase()),
        None => entry["name"] == name(node),
    }
}

/// The name of the Node with this index, and of its pool entry.
pub fn name(node: usize) -> String {
    node_name(u8::try_from(node + 1).unwrap_or(u8::MAX))
}

/// The pool as ARM shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// Whether its last operation has succeeded.
    pub is_succeeded: bool,
    /// The admin state of each node.
    pub admin_states: Vec<AdminState>,
}

impl PoolState {
    /// Reads it from what `GET /emulator/v1/state` gives; none without such a pool.
    pub(crate) fn from_state(state: &Value, nodes: usize) -> Option<Self> {
        let resources = state["resources"].as_array()?.iter();
        let mut pools =
            resources.filter_map(|resource| resource["properties"]["backendAddressPools"].as_array()?.first());
        let properties = &pools.next()?["properties"];
        let mut admin_states = vec![AdminState::None; nodes];
        for entry in properties["loadBalancerBackendAddresses"].as_array()? {
            let state = match entry["properties"]["adminState"].as_str() {
                Some("Down") => AdminState::Down,
                Some("Up") => AdminState::Up,
                _ => AdminState::None,
            };
            let node = (0..nodes).find(|node| is_entry_of(entry, *node));
            if let Some(shown) = node.and_then(|node| admin_states.get_mut(node)) {
                *shown = state;
            }
        }
        Some(Self {
            is_succeeded: properties["provisioningState"] == "Succeeded",
            admin_states,
        })
    }

    /// The nodes that are `Down` here and were not before.
    fn newly_down<'a>(&'a self, before: &'a [AdminState]) -> impl Iterator<Item = usize> + 'a {
        let is_new = |(node, state): &(usize, &AdminState)| {
            **state == AdminState::Down && before.get(*node) != Some(&AdminState::Down)
        };
        self.admin_states
            .iter()
            .enumerate()
            .filter(is_new)
            .map(|(node, _)| node)
    }
}

/// Follows the emulator's pool: gives admin states once their operation has succeeded, and an event when a PUT is
/// accepted and when its result is shown. Runs until the receiver of the events is dropped.
pub async fn follow(
    control: SocketAddr,
    nodes: usize,
    admin_states: watch::Sender<Vec<AdminState>>,
    events: mpsc::UnboundedSender<Observed>,
) {
    let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
    let mut accepted = vec![AdminState::None; nodes];
    while !events.is_closed() {
        // A PUT that this request shows was accepted earlier; the time of the response would add its delay.
        let requested_at = Instant::now();
        // Without an answer, the last known state stays.
        if let Some(pool) = fetch(&client, control, nodes).await {
            let shown_at = Instant::now();
            let send = |node: usize, at: Instant, event: Event| {
                let _ = events.send(Observed { at, node, event });
            };
            pool.newly_down(&accepted)
                .for_each(|node| send(node, requested_at, Event::PutAccepted));
            accepted.clone_from(&pool.admin_states);
            if pool.is_succeeded && *admin_states.borrow() != pool.admin_states {
                pool.newly_down(&admin_states.borrow())
                    .for_each(|node| send(node, shown_at, Event::DownShown));
                admin_states.send_replace(pool.admin_states);
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn fetch(client: &PlainClient, control: SocketAddr, nodes: usize) -> Option<PoolState> {
    let uri = format!("http://{control}/emulator/v1/state").parse().ok()?;
    let (_, body) = client.get(uri, &[]).await.ok()?;
    PoolState::from_state(&serde_json::from_slice(&body).ok()?, nodes)
}

#[cfg(test)]
mod tests {
    use headgate_azure_emulator::{Emulator, Settings};
    use headgate_core::clock::Clock;

    use super::*;

    #[test]
    fn the_seed_is_one_of_the_emulator_and_shows_all_nodes() {
        for members in [PoolMembers::Ip, PoolMembers::Nic] {
            let seed = serde_json::from_value(seed(3, ProbeTarget::NodePort, members)).unwrap();
            let emulator = Emulator::new(Settings::default(), seed, Clock::System, 1).unwrap();
            let mut state = emulator.send_control("GET", "state", &Value::Null).unwrap();
            let pool = PoolState::from_state(&state, 3).unwrap();
            assert_eq!(pool.admin_states, [AdminState::None; 3]);
            assert!(pool.is_succeeded);
            if members == PoolMembers::Ip {
                assert_eq!(state.to_string().matches("198.18.1.1").count(), 3, "{state}");
            }
            let resources = state["resources"].as_array_mut().unwrap().iter_mut();
            let pools = resources.filter_map(|resource| resource.pointer_mut("/properties/backendAddressPools/0"));
            for pool in pools {
                let entries = pool["properties"]["loadBalancerBackendAddresses"]
                    .as_array_mut()
                    .unwrap();
                assert_eq!(entries.len(), 3, "{members:?}");
                entries[2]["properties"]["adminState"] = json!("Down");
            }
            let pool = PoolState::from_state(&state, 3).unwrap();
            assert_eq!(
                pool.admin_states,
                [AdminState::None, AdminState::None, AdminState::Down],
                "{members:?}"
            );
        }
    }

    #[test]
    fn agents_get_the_emulators_address_and_the_load_balancers_name() {
        let config: Value = serde_json::from_str(&azure_json(([127, 0, 0, 1], 8080).into())).unwrap();
        assert_eq!(config["resourceManagerEndpoint"], "http://127.0.0.1:8080");
        assert_eq!(config["loadBalancerName"], "kubernetes");
        assert_eq!((name(0), name(4)), ("node-1".to_owned(), "node-5".to_owned()));
    }

    #[test]
    fn the_seed_states_what_is_probed() {
        let probe = |target: ProbeTarget| {
            let seed = seed(2, target, PoolMembers::Ip);
            seed["resources"][2]["properties"]["probes"][0]["properties"]["protocol"].clone()
        };
        assert_eq!(
            (probe(ProbeTarget::NodePort), probe(ProbeTarget::Headgate)),
            (json!("Tcp"), json!("Http"))
        );
    }

    #[test]
    fn admin_states_belong_to_the_node_of_their_entry() {
        let entry = |name: &str, state: &str| json!({"name": name, "properties": {"adminState": state}});
        let state = |provisioning: &str| {
            json!({"resources": [{"properties": {}}, {"properties": {"backendAddressPools": [{"properties": {
                "provisioningState": provisioning,
                "loadBalancerBackendAddresses": [entry("node-3", "Down"), entry("node-1", "Up"), entry("other", "Down")]}}]}}]})
        };
        let pool = PoolState::from_state(&state("Updating"), 3).unwrap();
        assert_eq!(pool.admin_states, [AdminState::Up, AdminState::None, AdminState::Down]);
        assert!(!pool.is_succeeded);
        assert_eq!(pool.newly_down(&[AdminState::None; 3]).collect::<Vec<_>>(), [2]);
        assert_eq!(pool.newly_down(&pool.admin_states).count(), 0);
        assert!(PoolState::from_state(&json!({}), 3).is_none());
    }
}
