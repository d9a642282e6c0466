//! Local Services of a benchmark: Services, their EndpointSlices, and load balancers in which each has a pool of its own.
//!
//! Services and slices carry a label, by which they are deleted again: the API server has health check ports for 2,768 of them.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_controller::local_pools::base_name;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::azure::Azure;
use crate::azure_emulator::{node_address, node_name};
use crate::documents::{Members, Shape, load_balancers_path};

/// Concurrent requests to the API server.
const AT_ONCE: usize = 16;
const LABEL: &str = "headgate-bench-local";
/// Of cloud-controller-manager's updater, in `azure.json`.
const INTERVAL_SECONDS: u64 = 2;

/// The size of the fixture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalShape {
    /// Each has one pool.
    pub(crate) services: usize,
    /// The Services are spread over them evenly.
    pub(crate) load_balancers: usize,
    /// Entries of each pool, and nodes with an endpoint of each Service.
    pub(crate) entries: usize,
    /// EndpointSlices of each Service.
    pub(crate) slices: usize,
    /// The nodes that have endpoints.
    pub(crate) nodes: usize,
    /// Nodes besides, which are in one pool of each load balancer that is no Local Service's.
    pub(crate) others: usize,
}

impl LocalShape {
    /// 10,000 slices of 2,000 Services.
    pub(crate) const MANY: Self = Self {
        services: 2000,
        load_balancers: 5,
        entries: 100,
        slices: 5,
        nodes: 200,
        others: 0,
    };

    /// An emulator with the load balancers. `uids` are those of the Services: rules are named for them.
    pub(crate) async fn start_azure(self, uids: &[String]) -> anyhow::Result<Azure> {
        let shape = Shape {
            members: Members::Addresses,
            load_balancers: self.load_balancers,
            pools: self.services / self.load_balancers,
            nodes: self.entries,
        };
        let other_entries = self.load_balancers * self.others;
        Azure::with_seed(shape, &self.seed(uids)?, other_entries, self.config()).await
    }

    /// All Nodes.
    pub(crate) fn all_nodes(self) -> usize {
        self.nodes + self.others
    }

    /// The keys of `azure.json` for several load balancers.
    fn config(self) -> Value {
        let names = (0..self.load_balancers)
            .map(|number| json!({"name": load_balancer_name(number), "primaryVMSet": format!("agents-{number}")}));
        json!({"loadBalancerBackendPoolConfigurationType": "nodeIP",
            "multipleStandardLoadBalancerConfigurations": names.collect::<Vec<_>>(),
            "loadBalancerBackendPoolUpdateIntervalInSeconds": INTERVAL_SECONDS})
    }

    /// The nodes with endpoints of a Service that has moved this often.
    pub(crate) fn nodes_of(self, service: usize, moves: usize) -> impl Iterator<Item = usize> {
        (0..self.entries).map(move |place| (service + moves + place) % self.nodes)
    }

    fn seed(self, uids: &[String]) -> anyhow::Result<Value> {
        let resources: anyhow::Result<Vec<_>> = (0..self.load_balancers)
            .map(|number| self.load_balancer(number, uids))
            .collect();
        Ok(json!({"resources": resources?}))
    }

    fn load_balancer(self, number: usize, uids: &[String]) -> anyhow::Result<Value> {
        let id = format!("{}{}", load_balancers_path(), load_balancer_name(number));
        let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
        let entry = |number| json!({"name": node_name(number), "properties": {"ipAddress": node_address(number)}});
        let pool = |name: String, entries: Vec<Value>| {
            let (resource, _) = id.split_once("/loadBalancers/").unwrap_or_default();
            json!({"name": name, "properties": {"loadBalancerBackendAddresses": entries,
                "virtualNetwork": {"id": format!("{resource}/virtualNetworks/net")}}})
        };
        let rule = |name: String, pool: &str, port: usize| {
            json!({"name": name, "properties": {
                "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
                "backendAddressPool": inside("backendAddressPools", pool), "probe": inside("probes", "probe"),
                "protocol": "Tcp", "frontendPort": port, "backendPort": port}})
        };
        let own = (0..self.services).filter(|service| service % self.load_balancers == number);
        let (mut pools, mut rules) = (Vec::new(), Vec::new());
        for service in own {
            let name = format!("default-{}", service_name(service));
            let base = uids.get(service).and_then(|uid| base_name(uid));
            let base = base.context("the UID of a Service")?;
            rules.push(rule(format!("{base}-TCP-80"), &name, 1000 + service));
            pools.push(pool(name, self.nodes_of(service, 0).map(entry).collect()));
        }
        if self.others > 0 {
            rules.push(rule("other".to_owned(), "kubernetes", 80));
            pools.push(pool(
                "kubernetes".to_owned(),
                (self.nodes..self.all_nodes()).map(entry).collect(),
            ));
        }
        Ok(
            json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
            "frontendIPConfigurations": [{"name": "front", "properties": {"privateIPAddress": "10.255.255.254"}}],
            "backendAddressPools": pools, "loadBalancingRules": rules,
            "probes": [{"name": "probe", "properties": {
                "protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5}}]}}),
        )
    }

    /// An EndpointSlice of a Service that has moved this often.
    pub(crate) fn slice(self, service: usize, slice: usize, moves: usize) -> Value {
        let endpoints = self.endpoints(service, slice, moves);
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": slice_name(service, slice),
                "labels": {LABEL: "true", "kubernetes.io/service-name": service_name(service)}},
            "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]})
    }

    fn endpoints(self, service: usize, slice: usize, moves: usize) -> Vec<Value> {
        let nodes = self.nodes_of(service, moves).enumerate();
        let own = nodes.filter(|(place, _)| place % self.slices == slice);
        let endpoint = |(place, node): (usize, usize)| {
            json!({"addresses": [format!("10.{}.{}.{}", 64 + service / 250, service % 250, place + 1)],
                "nodeName": node_name(node), "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "default",
                    "name": format!("{}-5f6d8b7c9-{place}", service_name(service)),
                    "uid": "0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b"}})
        };
        own.map(endpoint).collect()
    }

    /// Creates all Services and slices; returns the UIDs of the Services.
    pub(crate) async fn create(self, client: &Client) -> anyhow::Result<Vec<String>> {
        // A row that could not be measured has left its own.
        delete(client).await?;
        let services = Api::<Service>::default_namespaced(client.clone());
        let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
        let create = async |number: usize| {
            for slice in 0..self.slices {
                let slice = serde_json::from_value(self.slice(number, slice, 0))?;
                slices.create(&PostParams::default(), &slice).await?;
            }
            let service = json!({"metadata": {"name": service_name(number), "labels": {LABEL: "true"}},
                "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                    "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}});
            let service = serde_json::from_value(service)?;
            let made = services.create(&PostParams::default(), &service).await?;
            made.metadata.uid.context("the UID of a Service")
        };
        let all = stream::iter(0..self.services).map(create).buffered(AT_ONCE);
        all.try_collect().await.context("creating Local Services")
    }

    /// Moves the endpoints of these Services: they have left their first nodes this often.
    pub(crate) async fn move_endpoints(
        self,
        client: &Client,
        services: std::ops::Range<usize>,
        moves: usize,
    ) -> anyhow::Result<()> {
        let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
        let all = services.flat_map(|service| (0..self.slices).map(move |slice| (service, slice)));
        stream::iter(all.map(anyhow::Ok))
            .try_for_each_concurrent(AT_ONCE, async |(service, slice)| {
                let patch = Patch::Merge(json!({"endpoints": self.endpoints(service, slice, moves)}));
                let name = slice_name(service, slice);
                slices.patch(&name, &PatchParams::default(), &patch).await?;
                Ok(())
            })
            .await
            .context("moving endpoints")
    }
}

/// Deletes all Local Services and slices.
pub(crate) async fn delete(client: &Client) -> anyhow::Result<()> {
    let (params, labelled) = (DeleteParams::default(), ListParams::default().labels(LABEL));
    let services = Api::<Service>::default_namespaced(client.clone());
    services.delete_collection(&params, &labelled).await?;
    let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
    slices.delete_collection(&params, &labelled).await?;
    Ok(())
}

pub(crate) fn load_balancer_name(number: usize) -> String {
    format!("local-{number}")
}

pub(crate) fn service_name(number: usize) -> String {
    format!("local-{number}")
}

fn slice_name(service: usize, slice: usize) -> String {
    format!("{}-{slice}", service_name(service))
}
