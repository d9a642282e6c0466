//! The sandbox's Azure: the ARM emulator as a child process, with load balancers for the nodes.
//!
//! The load balancer `kubernetes` has a pool of the nodes' addresses for each IP family, as cloud-provider-azure makes
//! them, and an empty one for the Local Service (`local_service`). In `kubernetes-nic` the members are the network interfaces
//! of the nodes' virtual machines. `azure.json` names both as the cluster's, and the first as one of several Standard load
//! balancers, so that the leader updates pools of Local Services.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use headgate_http::client::PlainClient;
use hyper::Uri;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agents::{AgentError, bound_addresses};
use super::files::unwritable;
use super::local_service;
use super::nodes::{RESOURCE_GROUP, RegisteredNode, SUBSCRIPTION, machine_id};
use super::process::{Process, command_in};

/// The load balancer of addresses, which has the cluster's name.
pub(super) const LOAD_BALANCER: &str = "kubernetes";
/// The load balancer of network interfaces.
const NIC_LOAD_BALANCER: &str = "kubernetes-nic";
/// The port in the probes' documents. In the sandbox every agent has a different one.
const HEALTH_PORT: u16 = 10_456;

/// The addresses of the emulator, and its subscription; a section of `sandbox.json`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Addresses {
    #[serde(flatten)]
    pub(super) bound: BoundAddresses,
    /// The certificate of the authority that clients of `armTls` must trust.
    ca_file: PathBuf,
    subscription: &'static str,
    resource_group: &'static str,
}

/// The emulator's addresses file.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BoundAddresses {
    pub(super) arm: SocketAddr,
    pub(super) arm_tls: SocketAddr,
    pub(super) control: SocketAddr,
}

/// A running emulator.
pub(super) struct Azure {
    pub(super) addresses: Addresses,
    /// An `azure.json` for the user's commands.
    pub(super) config_file: PathBuf,
}

/// The text of an `azure.json` for this emulator. The client id can be any: the emulator accepts every application.
pub(super) fn azure_json(arm: SocketAddr, user_agent: Option<&str>) -> String {
    let mut config = json!({
        "resourceManagerEndpoint": format!("http://{arm}"),
        "tenantId": "sandbox",
        "subscriptionId": SUBSCRIPTION,
        "resourceGroup": RESOURCE_GROUP,
        "aadClientId": "headgate",
        "aadClientSecret": "sandbox",
        "loadBalancerName": NIC_LOAD_BALANCER,
        // Several load balancers go with pools of addresses only; headgate itself reads what each pool has.
        "loadBalancerBackendPoolConfigurationType": "nodeIP",
        "multipleStandardLoadBalancerConfigurations": [{"name": LOAD_BALANCER, "primaryVMSet": "nodes"}],
        "loadBalancerBackendPoolUpdateIntervalInSeconds": local_service::INTERVAL_SECONDS,
    });
    if let Some(user_agent) = user_agent {
        config["userAgent"] = user_agent.into();
    }
    format!("{config:#}\n")
}

impl Azure {
    /// Starts the emulator in a directory, with load balancers for these nodes.
    pub(super) async fn start(
        program: &Path,
        directory: &Path,
        log: &Path,
        nodes: &[RegisteredNode],
    ) -> Result<(Process, Self), AgentError> {
        fs::create_dir_all(directory).map_err(unwritable(directory))?;
        let [seed_file, ca_file, addresses] =
            ["seed.json", "ca.crt", "addresses.json"].map(|name| directory.join(name));
        fs::write(&seed_file, seed(nodes).to_string()).map_err(unwritable(&seed_file))?;
        let mut command = command_in(program, directory);
        command.arg("azure-emulator");
        for flag in ["--listen", "--tls-listen", "--control-listen"] {
            command.args([flag, "127.0.0.1:0"]);
        }
        for (flag, file) in [
            ("--seed", &seed_file),
            ("--tls-ca-file", &ca_file),
            ("--addresses-file", &addresses),
        ] {
            command.arg(flag).arg(file);
        }
        let mut process = Process::start("the Azure emulator", command, log)?;
        let bound: BoundAddresses = bound_addresses(&mut process, &addresses).await?;
        let file = directory.join("azure.json");
        fs::write(&file, azure_json(bound.arm, None)).map_err(unwritable(&file))?;
        let azure = Self {
            addresses: Addresses {
                bound,
                ca_file,
                subscription: SUBSCRIPTION,
                resource_group: RESOURCE_GROUP,
            },
            config_file: file,
        };
        Ok((process, azure))
    }
}

/// Reads from the emulator's control API; `None` without an answer.
pub(super) async fn read_control(client: &PlainClient, control: SocketAddr, path: &str) -> Option<Value> {
    let uri: Uri = format!("http://{control}/emulator/v1/{path}").parse().ok()?;
    let (_, body) = client.get(uri, &[]).await.ok()?;
    serde_json::from_slice(&body).ok()
}

fn seed(nodes: &[RegisteredNode]) -> Value {
    let network = |kind: &str, name: &str| {
        format!(
            "/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}/providers/Microsoft.Network/{kind}/{name}"
        )
    };
    let vnet = network("virtualNetworks", "sandbox");
    let pool = |name: &str, v6: bool| {
        let of_family = |node: &RegisteredNode| node.addresses.iter().copied().find(|address| address.is_ipv6() == v6);
        let addresses = nodes
            .iter()
            .filter_map(|node| Some(by_address(&node.name, of_family(node)?)));
        json!({"name": name, "properties": {
            "virtualNetwork": {"id": vnet}, "loadBalancerBackendAddresses": addresses.collect::<Vec<_>>()}})
    };
    let load_balancer = |name: &str, pools: &[(&str, bool, Value)]| {
        let id = network("loadBalancers", name);
        let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
        let frontend = |(pool, ..): &(&str, bool, Value)| json!({"name": pool, "properties": {"publicIPAddress": {"id": network("publicIPAddresses", &format!("{name}-{pool}"))}}});
        let rule = |(pool, ..): &(&str, bool, Value)| {
            json!({"name": format!("{pool}-TCP-80"), "properties": {
                "frontendIPConfiguration": inside("frontendIPConfigurations", pool),
                "backendAddressPool": inside("backendAddressPools", pool), "probe": inside("probes", "healthz"),
                "protocol": "Tcp", "frontendPort": 80, "backendPort": 80}})
        };
        json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
            "frontendIPConfigurations": pools.iter().map(frontend).collect::<Vec<_>>(),
            "backendAddressPools": pools.iter().map(|(.., pool)| pool.clone()).collect::<Vec<_>>(),
            "loadBalancingRules": pools.iter().map(rule).collect::<Vec<_>>(),
            "probes": [{"name": "healthz", "properties": {"protocol": "Http", "port": HEALTH_PORT, "requestPath": "/healthz",
                "intervalInSeconds": 5, "numberOfProbes": 1, "probeThreshold": 2}}]}})
    };
    let local = json!({"name": local_service::POOL, "properties": {
        "virtualNetwork": {"id": vnet}, "loadBalancerBackendAddresses": []}});
    let by_ip = [
        ("kubernetes", false, pool("kubernetes", false)),
        ("kubernetes-IPv6", true, pool("kubernetes-IPv6", true)),
        (local_service::POOL, false, local),
    ];
    let by_nic = [("kubernetes", false, json!({"name": "kubernetes"}))];
    let public = |name: &str, pools: &[(&str, bool, Value)]| {
        let address = |(pool, v6, _): &(&str, bool, Value)| {
            json!({"id": network("publicIPAddresses", &format!("{name}-{pool}")), "location": "eastus", "sku": {"name": "Standard"},
                "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": if *v6 { "IPv6" } else { "IPv4" }}})
        };
        pools.iter().map(address).collect::<Vec<_>>()
    };
    let mut resources = vec![
        json!({"id": vnet, "location": "eastus", "properties": {"addressSpace": {"addressPrefixes": ["127.0.0.0/8", "fd00::/8"]},
            "subnets": [{"name": "nodes", "properties": {"addressPrefixes": ["127.0.0.0/24", "fd00:5eed::/64"]}}]}}),
        load_balancer(LOAD_BALANCER, &by_ip),
        load_balancer(NIC_LOAD_BALANCER, &by_nic),
    ];
    resources.extend(public(LOAD_BALANCER, &by_ip));
    resources.extend(public(NIC_LOAD_BALANCER, &by_nic));
    for node in nodes {
        let interface = network("networkInterfaces", &format!("{}-nic", node.name));
        let pool = format!(
            "{}/backendAddressPools/kubernetes",
            network("loadBalancers", NIC_LOAD_BALANCER)
        );
        resources.push(
            json!({"id": machine_id(&node.name), "location": "eastus", "properties": {
            "networkProfile": {"networkInterfaces": [{"id": interface, "properties": {"primary": true}}]}}}),
        );
        resources.push(json!({"id": interface, "location": "eastus", "properties": {
            "virtualMachine": {"id": machine_id(&node.name)},
            "ipConfigurations": [{"name": "ipconfig1", "properties": {"primary": true, "subnet": {"id": format!("{vnet}/subnets/nodes")},
                "privateIPAddress": node.addresses.first(), "loadBalancerBackendAddressPools": [{"id": pool}]}}]}}));
    }
    json!({"resources": resources})
}

fn by_address(name: &str, address: IpAddr) -> Value {
    json!({"name": name, "properties": {"ipAddress": address}})
}

#[cfg(test)]
mod tests {
    use headgate_azure_emulator::{Emulator, Settings};
    use headgate_core::clock::Clock;

    use super::*;
    use crate::{pools::Pool, pools::pools_in_state};

    #[test]
    fn the_seed_is_valid_and_has_every_node_in_every_pool() {
        let node = |number: u8| RegisteredNode {
            name: format!("node-{number}"),
            addresses: vec![
                IpAddr::from([127, 0, 0, number]),
                IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)]),
            ],
        };
        let only_v4 = RegisteredNode {
            name: "old".to_owned(),
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
        };
        let seed = serde_json::from_value(seed(&[node(1), node(2), only_v4])).unwrap();
        let emulator = Emulator::new(Settings::default(), seed, Clock::System, 1).unwrap();
        let state = emulator.send_control("GET", "state", &Value::Null).unwrap();
        let pools: Vec<Pool> = pools_in_state(&state);
        let shown: Vec<_> = pools
            .iter()
            .map(|pool| (pool.load_balancer.as_str(), pool.name.as_str(), pool.addresses))
            .collect();
        assert_eq!(
            shown,
            [
                ("kubernetes", "kubernetes", 3),
                ("kubernetes", "kubernetes-IPv6", 2),
                ("kubernetes", "default-web", 0),
                ("kubernetes-nic", "kubernetes", 3)
            ]
        );
    }
}
