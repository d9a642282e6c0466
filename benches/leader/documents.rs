//! Nodes and load balancers of a benchmark: every Node is in every pool.

use serde_json::{Value, json};

use crate::azure_emulator::{node_address, node_name};

pub(crate) const SUBSCRIPTION: &str = "be4c0000-0000-4000-8000-000000000001";
pub(crate) const RESOURCE_GROUP: &str = "bench";
/// The Node that leaders run on, which is in no pool: one that is tainted itself hands over.
pub(crate) const LEADERS_NODE: &str = "headgate-bench-leader";
/// A taint that is a signal.
pub(crate) const SIGNAL: &str = "node.kubernetes.io/out-of-service";
/// The label by which tenths of all Nodes are selected: `0` to `9`.
pub(crate) const TENTH_LABEL: &str = "headgate-bench/tenth";
/// Load balancers of the cluster, by its own name and by `azure.json`.
pub(crate) const CLUSTER: &str = "kubernetes";
pub(crate) const NAMED: &str = "extra";
const LOAD_BALANCERS: [&str; 4] = [CLUSTER, "kubernetes-internal", NAMED, "extra-internal"];

/// What the entries of pools name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// The addresses of the Nodes.
    Addresses,
    /// The network interfaces of a scale set's machines, the default of AKS.
    Interfaces,
}

/// The size of the fixture in Azure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What the entries name.
    pub(crate) members: Members,
    /// Load balancers, at most four.
    pub(crate) load_balancers: usize,
    /// Pools in each load balancer.
    pub(crate) pools: usize,
    /// Entries in each pool.
    pub(crate) nodes: usize,
}

impl Shape {
    /// Four load balancers of one pool with 5,000 nodes each.
    pub(crate) const LARGE: Self = Self {
        members: Members::Addresses,
        load_balancers: 4,
        pools: 1,
        nodes: 5000,
    };

    /// Pools in all load balancers.
    pub(crate) fn all_pools(self) -> usize {
        self.load_balancers * self.pools
    }

    /// The names of its load balancers.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        LOAD_BALANCERS.into_iter().take(self.load_balancers)
    }

    /// The emulator's seed.
    pub(crate) fn seed(self) -> Value {
        let resources: Vec<Value> = self.names().map(|name| self.load_balancer(name)).collect();
        json!({"resources": resources})
    }

    fn load_balancer(self, name: &str) -> Value {
        let numbers: Vec<usize> = (0..self.nodes).collect();
        self.members.load_balancer(name, self.pools, &numbers)
    }
}

impl Members {
    /// One pool entry. That of an interface has the length of Azure's.
    fn address(self, number: usize) -> Value {
        match self {
            Self::Addresses => json!({"name": node_name(number), "properties": {"ipAddress": node_address(number)}}),
            Self::Interfaces => {
                let interface = "networkInterfaces/aks-nodepool1-12345678-vmss/ipConfigurations/ipconfig1";
                json!({"name": format!("{number:08x}-0000-4000-8000-000000000000"), "properties": {
                    "networkInterfaceIPConfiguration": {"id": format!("{}/{interface}", machine(number))}}})
            }
        }
    }

    /// A load balancer whose pools all have these nodes, with one probed rule for each pool.
    pub(crate) fn load_balancer(self, name: &str, pools: usize, nodes: &[usize]) -> Value {
        let id = format!("{}{name}", load_balancers_path());
        let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
        let addresses: Vec<Value> = nodes.iter().map(|number| self.address(*number)).collect();
        let all = (0..pools).map(|number| {
            let mut pool =
                json!({"name": format!("pool-{number}"), "properties": {"loadBalancerBackendAddresses": addresses}});
            if self == Self::Addresses {
                let network = format!("{}/providers/Microsoft.Network/virtualNetworks/net", group());
                pool["properties"]["virtualNetwork"] = json!({"id": network});
            }
            pool
        });
        let rules = (0..pools).map(|number| {
            json!({"name": format!("rule-{number}"), "properties": {
                "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
                "backendAddressPool": inside("backendAddressPools", &format!("pool-{number}")),
                "probe": inside("probes", "probe"), "protocol": "Tcp", "frontendPort": 80 + number, "backendPort": 80 + number}})
        });
        json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
            "frontendIPConfigurations": [{"name": "front", "properties": {"privateIPAddress": "10.255.255.254"}}],
            "backendAddressPools": all.collect::<Vec<_>>(), "loadBalancingRules": rules.collect::<Vec<_>>(),
            "probes": [{"name": "probe", "properties": {
                "protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5}}]}})
    }
}

fn group() -> String {
    format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}")
}

/// The resource id of a Node's virtual machine.
fn machine(number: usize) -> String {
    format!(
        "{}/providers/Microsoft.Compute/virtualMachineScaleSets/nodes/virtualMachines/{number}",
        group()
    )
}

/// The path of the load balancers, to which a name is appended.
pub(crate) fn load_balancers_path() -> String {
    format!("{}/providers/Microsoft.Network/loadBalancers/", group())
}

/// The leaders' Node's object.
pub(crate) fn leaders_node() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": LEADERS_NODE}})
}

/// A Node object, of about the size of those that kubelet on AKS writes.
pub(crate) fn node(number: usize) -> Value {
    let name = node_name(number);
    let machine = format!("azure://{}", machine(number));
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "KubeletHasNoTrouble", "message": "kubelet has no trouble with this",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let images: Vec<Value> = (0..50)
        .map(|image| {
            json!({"names": [format!("mcr.microsoft.com/oss/kubernetes/component-{image}@sha256:{image:064x}"),
                format!("mcr.microsoft.com/oss/kubernetes/component-{image}:v1.34.{image}")], "sizeBytes": 60_000_000 + image})
        })
        .collect();
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64", "agentpool": "nodes", "kubernetes.azure.com/cluster": "MC_bench_bench_eastus",
            TENTH_LABEL: (number % 10).to_string(), "topology.kubernetes.io/region": "eastus", "topology.kubernetes.io/zone": "eastus-1",
            "node.kubernetes.io/instance-type": "Standard_D8s_v5"}},
        "spec": {"providerID": machine},
        "status": {
            "addresses": [{"type": "InternalIP", "address": node_address(number)}, {"type": "Hostname", "address": name}],
            "conditions": [condition("Ready", "True"), condition("MemoryPressure", "False"),
                condition("DiskPressure", "False"), condition("PIDPressure", "False")],
            "images": images}})
}
