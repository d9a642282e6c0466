//! Blackhole seconds: for how long load balancers may have sent connections for a Service to a node that could not serve it. Pure.
//!
//! A node under maintenance serves a Service of type LoadBalancer
//!
//! - with `externalTrafficPolicy: Local` while a pod of the Service is Ready on the node, also one that is terminating: kube-proxy sends to
//!   such a pod where there is no other; with `publishNotReadyAddresses` it sends to pods that are not Ready, too;
//! - with `externalTrafficPolicy: Cluster` while the node is Ready, because it forwards to pods of other nodes.
//!
//! Seconds count from when a Service that the node served is no longer served, until it is served again or the load balancers send no new
//! connections to the node. Each time a node leaves its load balancers, every Service that it served in the meantime gives one
//! result, which is 0 if no connection was at risk. A node that ends before gives what was counted by then.
//!
//! Invariant: what cannot be known is not counted. A Service that was not served before is none; reads that are missing change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::node::NodeTraffic;
use headgate_core::service::{NamespacedName, Service};
use headgate_core::telemetry::words;
use jiff::Timestamp;

use crate::snapshot::PodFacts;

words! {
    /// `spec.externalTrafficPolicy` of a Service.
    #[derive(PartialOrd, Ord)]
    pub enum TrafficPolicy {
        /// Only pods of the node get its connections.
        Local = "local",
        /// The node forwards to pods of every node.
        Cluster = "cluster",
    }
}

/// Whether the pod is one of the Service's, and Ready where that matters.
fn serves(pod: &PodFacts, service: &Service) -> bool {
    let is_selected = || {
        let mut labels = service.selector.iter();
        labels.all(|(key, value)| pod.labels.get(key) == Some(value))
    };
    let is_ready = pod.is_ready || service.publishes_not_ready;
    is_ready && !pod.is_finished && pod.namespace == service.name.namespace() && is_selected()
}

/// A node under maintenance.
#[derive(Clone, Debug)]
pub struct DrainedNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it is Ready.
    pub is_ready: bool,
    /// Its pods.
    pub pods: Vec<&'a PodFacts>,
    /// What is known of its load balancers.
    pub observation: &'a NodeTraffic,
    /// Whether the status says that it is out already, for a leader that continues.
    pub was_out: bool,
}

/// What one node lost for one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blackhole {
    /// The Service, as namespace/name.
    pub service: String,
    /// Its policy.
    pub policy: TrafficPolicy,
    /// How long connections were at risk.
    pub lasted: Duration,
}

/// The nodes that are measured.
#[derive(Clone, Debug, Default)]
pub struct BlackholeMeter {
    nodes: BTreeMap<String, NodeMeter>,
}

/// The Services, as the meter looks them up.
struct Services<'a> {
    /// Those with the policy `Local`, by namespace.
    local: BTreeMap<&'a str, Vec<&'a Service>>,
    cluster: Vec<&'a Service>,
}

impl<'a> Services<'a> {
    /// Only those with a selector: which pods serve the others is not known.
    fn new(all: impl IntoIterator<Item = &'a Service>) -> Self {
        let mut services = Self {
            local: BTreeMap::new(),
            cluster: Vec::new(),
        };
        for service in all.into_iter().filter(|service| !service.selector.is_empty()) {
            if service.is_local {
                services
                    .local
                    .entry(service.name.namespace())
                    .or_default()
                    .push(service);
            } else {
                services.cluster.push(service);
            }
        }
        services
    }

    /// The Services with the policy `Local` that a node serves.
    fn served_by(&self, node: &DrainedNode<'_>) -> BTreeSet<&'a NamespacedName> {
        let pods = node.pods.iter().filter(|_| node.is_ready);
        let pairs = pods.flat_map(|pod| {
            self.local
                .get(pod.namespace.as_str())
                .into_iter()
                .flatten()
                .map(move |one| (pod, one))
        });
        let served = pairs.filter(|(pod, service)| serves(pod, service));
        served.map(|(_, service)| &service.name).collect()
    }
}

#[derive(Clone, Debug)]
struct NodeMeter {
    is_in_service: bool,
    /// The Services with the policy `Local` that the node served.
    local: BTreeMap<NamespacedName, Loss>,
    /// All Services with the policy `Cluster`, once the node was Ready.
    cluster: Option<Loss>,
}

/// What a node lost for a Service.
#[derive(Clone, Debug, Default)]
struct Loss {
    /// Since when the node cannot serve it, while it is in service.
    since: Option<Timestamp>,
    lasted: Duration,
}

impl Loss {
    fn update(&mut self, is_served: bool, now: Timestamp) {
        if is_served {
            self.end(now);
        } else {
            self.since.get_or_insert(now);
        }
    }

    fn end(&mut self, at: Timestamp) {
        if let Some(since) = self.since.take() {
            self.lasted += Duration::try_from(at.duration_since(since)).unwrap_or_default();
        }
    }

    /// The seconds until `at`; the next ones count from 0.
    fn take(&mut self, at: Timestamp) -> Duration {
        self.end(at);
        std::mem::take(&mut self.lasted)
    }
}

impl BlackholeMeter {
    /// Adopts the present state of all nodes under maintenance; gives the results of those that have left their load balancers or
    /// ended, by node.
    pub fn update<'a>(
        &mut self,
        nodes: &[DrainedNode<'_>],
        services: impl IntoIterator<Item = &'a Service>,
        now: Timestamp,
    ) -> Vec<(String, Vec<Blackhole>)> {
        let services = Services::new(services);
        let present: BTreeSet<&str> = nodes.iter().map(|node| node.name).collect();
        let names = self.nodes.keys().filter(|name| !present.contains(name.as_str()));
        let ended: Vec<_> = names.cloned().collect();
        let mut results = Vec::new();
        for name in ended {
            if let Some(mut meter) = self.nodes.remove(&name).filter(|meter| meter.is_in_service) {
                results.push((name, meter.leave(&services, now)));
            }
        }
        for node in nodes {
            let meter = self.nodes.entry(node.name.to_owned()).or_insert_with(|| NodeMeter {
                is_in_service: !node.was_out,
                local: BTreeMap::new(),
                cluster: None,
            });
            let result = meter.update(node, &services, now);
            results.extend(result.map(|result| (node.name.to_owned(), result)));
        }
        results.retain(|(_, result)| !result.is_empty());
        results
    }
}

impl NodeMeter {
    fn update(&mut self, node: &DrainedNode<'_>, services: &Services<'_>, now: Timestamp) -> Option<Vec<Blackhole>> {
        match node.observation {
            NodeTraffic::Unknown(_) => {}
            NodeTraffic::InService { .. } | NodeTraffic::HeldBack { .. } => self.is_in_service = true,
            NodeTraffic::Out { since: None } => {
                *self = Self {
                    is_in_service: false,
                    local: BTreeMap::new(),
                    cluster: None,
                };
            }
            NodeTraffic::Out { since: Some(since) } => {
                if self.is_in_service {
                    self.count(node, services, now);
                    self.is_in_service = false;
                    return Some(self.leave(services, (*since).min(now)));
                }
            }
        }
        if self.is_in_service {
            self.count(node, services, now);
        }
        None
    }

    /// Counts what is served and what is lost now.
    fn count(&mut self, node: &DrainedNode<'_>, services: &Services<'_>, now: Timestamp) {
        let served = services.served_by(node);
        for name in &served {
            self.local.entry((*name).clone()).or_default();
        }
        for (name, loss) in &mut self.local {
            loss.update(served.contains(name), now);
        }
        match &mut self.cluster {
            Some(loss) => loss.update(node.is_ready, now),
            None if node.is_ready => self.cluster = Some(Loss::default()),
            None => {}
        }
    }

    /// The results of a node that leaves its load balancers. Services that do not exist any more give none.
    fn leave(&mut self, services: &Services<'_>, at: Timestamp) -> Vec<Blackhole> {
        let mut results = Vec::new();
        let exists = |name: &NamespacedName| {
            let mut all = services.local.get(name.namespace()).into_iter().flatten();
            all.any(|service| service.name == *name)
        };
        self.local.retain(|name, _| exists(name));
        for (name, loss) in &mut self.local {
            results.push(Blackhole {
                service: name.to_string(),
                policy: TrafficPolicy::Local,
                lasted: loss.take(at),
            });
        }
        if let Some(lasted) = self.cluster.as_mut().map(|loss| loss.take(at)) {
            results.extend(services.cluster.iter().map(|service| Blackhole {
                service: service.name.to_string(),
                policy: TrafficPolicy::Cluster,
                lasted,
            }));
        }
        results
    }
}

#[cfg(test)]
mod tests;
