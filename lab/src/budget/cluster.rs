//! Reads what the budget of a live cluster needs: Services, Pods, Nodes and controllers from the API server, rules and
//! probes from ARM. It only reads; `headgate_budget` computes.

use std::time::Duration;

use headgate::readable_objects::list_all;
use headgate_azure::LoadBalancerSummary;
use headgate_budget::pods::PodFacts;
use headgate_budget::probe::Provider;
use headgate_budget::probes::{FoundProbe, from_annotations, from_rules, slowness};
use headgate_budget::service::{ServiceFacts, Target};
use headgate_controller::admin_state::ClusterTarget;
use headgate_controller::local_pools::{base_name, is_rule_of};
use headgate_kubernetes::Decoded;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::autoscaler::{DeleteDelay, delete_delay};
use super::controllers::{Controllers, Owners};

/// Time for all requests to ARM together.
const ARM_TIMEOUT: Duration = Duration::from_mins(2);
/// The label of nodes that no load balancer uses.
const EXCLUDED_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// With the value `ip`, Amazon's load balancer sends to Pods.
const AWS_TARGET_TYPE: &str = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";

/// What the user states over what the cluster says.
pub(super) struct Overrides {
    pub(super) provider: Option<Provider>,
    pub(super) drain: Duration,
    pub(super) delete_delay: Option<Duration>,
    pub(super) restart: Duration,
    pub(super) serving: Option<Duration>,
}

/// All that is read of a cluster.
pub(super) struct ClusterObjects {
    services: Vec<ServicePods>,
    nodes: Vec<Node>,
    controllers: Controllers,
    load_balancers: Vec<LoadBalancerSummary<()>>,
}

/// A Service of type `LoadBalancer` with its Pods.
struct ServicePods {
    service: Service,
    pods: Vec<PodFacts>,
    /// What owns the Pods.
    owners: Owners,
}

/// Reads a cluster; of the Pods only those that one of the Services selects.
///
/// # Errors
/// A text that says what cannot be listed.
pub(super) async fn read(client: &Client, azure: Option<ClusterTarget>) -> Result<ClusterObjects, String> {
    let (services, nodes, controllers, load_balancers) = futures::try_join!(
        list::<Service>(Api::all(client.clone()), ""),
        list::<Node>(Api::all(client.clone()), ""),
        Controllers::read(client),
        load_balancers(azure),
    )?;
    let is_load_balancer = |service: &Service| {
        let spec = service.spec.as_ref();
        spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
    };
    let mut found = Vec::new();
    for service in services.into_iter().filter(is_load_balancer) {
        found.push(with_pods(client, service).await?);
    }
    Ok(ClusterObjects {
        services: found,
        nodes,
        controllers,
        load_balancers,
    })
}

async fn with_pods(client: &Client, service: Service) -> Result<ServicePods, String> {
    let spec = service.spec.clone().unwrap_or_default();
    let selector = spec.selector.unwrap_or_default();
    let pods = if selector.is_empty() {
        Vec::new()
    } else {
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let terms: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        list::<Pod>(Api::namespaced(client.clone(), namespace), &terms.join(",")).await?
    };
    let ports = spec.ports.unwrap_or_default();
    let target_port = ports.first().and_then(|port| port.target_port.as_ref());
    let known = pods
        .iter()
        .filter_map(|pod| Some((pod, PodFacts::new(pod, target_port)?)));
    let (pods, facts): (Vec<_>, Vec<_>) = known.unzip();
    Ok(ServicePods {
        service,
        owners: Owners::of(pods),
        pods: facts,
    })
}

/// Lists objects with these labels, page by page.
pub(super) async fn list<K>(api: Api<Decoded<K>>, labels: &str) -> Result<Vec<K>, String>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let listed = list_all(&api, ListParams::default().labels(labels)).await;
    listed.map_err(|error| format!("the {} of the cluster cannot be listed: {error}", K::plural(&())))
}

async fn load_balancers(azure: Option<ClusterTarget>) -> Result<Vec<LoadBalancerSummary<()>>, String> {
    let Some(ClusterTarget { arm, scope, .. }) = azure else {
        return Ok(Vec::new());
    };
    let managed = scope.managed.clone();
    let deadline = Instant::now() + ARM_TIMEOUT;
    let listed = arm.list_load_balancers(&scope.group, move |id| managed.contains(id), |_| (), deadline);
    let listed = listed.await.map_err(|error| {
        format!(
            "the load balancers cannot be read: {}",
            headgate_core::telemetry::error_chain(&error)
        )
    })?;
    Ok(listed.load_balancers)
}

impl ClusterObjects {
    /// The facts of every Service of type `LoadBalancer`, by namespace and name.
    pub(super) fn services(&self, overrides: &Overrides) -> Vec<ServiceFacts> {
        let found = self.services.iter().map(|service| self.facts(service, overrides));
        let mut found: Vec<_> = found.collect();
        found.sort_by(|one, other| one.service.cmp(&other.service));
        found
    }

    /// The delay that a flag states, that of an autoscaler in the cluster, or its default.
    fn delete_delay(&self, stated: Option<Duration>) -> DeleteDelay {
        let stated = stated.map(|delay| DeleteDelay {
            delay,
            source: "flag".to_owned(),
        });
        let found = || self.controllers.deployments.iter().find_map(delete_delay);
        stated.or_else(found).unwrap_or_else(DeleteDelay::unseen)
    }

    fn facts(&self, found: &ServicePods, overrides: &Overrides) -> ServiceFacts {
        let ServicePods { service, pods, owners } = found;
        let spec = service.spec.clone().unwrap_or_default();
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let name = service.metadata.name.clone().unwrap_or_default();
        let annotations = service.metadata.annotations.clone().unwrap_or_default();
        let target = if annotations.get(AWS_TARGET_TYPE).is_some_and(|kind| kind == "ip") {
            Target::PodAddresses
        } else if spec.external_traffic_policy.as_deref() == Some("Local") {
            Target::Local
        } else {
            Target::Cluster
        };
        let provider = overrides.provider.unwrap_or_else(|| self.provider(target));
        let DeleteDelay { delay, source } = self.delete_delay(overrides.delete_delay);
        ServiceFacts {
            service: format!("{namespace}/{name}"),
            target,
            probe: self
                .probe_of_rules(service)
                .unwrap_or_else(|| from_annotations(provider, &annotations, &spec)),
            rollout: self.controllers.rollout(owners),
            pods: pods.clone(),
            cluster_nodes: self.nodes_in_load_balancers(),
            drain: overrides.drain,
            delete_delay: delay,
            delete_delay_source: source,
            restart: overrides.restart,
            serving: overrides.serving,
        }
    }

    /// The probe that the Service's rules use; of several load balancers the one that notices last.
    fn probe_of_rules(&self, service: &Service) -> Option<FoundProbe> {
        let base = base_name(service.metadata.uid.as_deref()?)?;
        let found = self
            .load_balancers
            .iter()
            .filter_map(|read| from_rules(read.id.name(), &read.rules, |rule| is_rule_of(rule, &base)));
        found.max_by_key(|found| (slowness(&found.settings), found.unprobed_rules.len()))
    }

    /// The provider that the Nodes name; Azure where they name none.
    fn provider(&self, target: Target) -> Provider {
        let mut ids = self
            .nodes
            .iter()
            .filter_map(|node| node.spec.as_ref()?.provider_id.as_deref());
        match ids.next().and_then(|id| id.split_once("://")).map(|(name, _)| name) {
            Some("aws") if target == Target::Cluster => Provider::AwsCluster,
            Some("aws") => Provider::AwsLocal,
            Some("gce") => Provider::Gcp,
            _ => Provider::Azure,
        }
    }

    fn nodes_in_load_balancers(&self) -> u32 {
        let is_used = |node: &&Node| {
            !node
                .metadata
                .labels
                .iter()
                .flatten()
                .any(|(key, _)| key == EXCLUDED_LABEL)
        };
        u32::try_from(self.nodes.iter().filter(is_used).count()).unwrap_or(u32::MAX)
    }
}
