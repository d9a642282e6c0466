//! A Service and its EndpointSlices: as they are decoded, by every reader, and what the controllers of a term keep of a Service. Pure.
//!
//! [`ServiceObject`] and [`EndpointSliceObject`] are lenient and without the fields that headgate does not read; what the agent keeps of
//! them is its own. [`Service`] is one of type `LoadBalancer`, for the pools of Local Services, for the guard of rules and for the
//! measurement of blackholes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service as ServiceResource;
use k8s_openapi::api::discovery::v1::EndpointSlice as EndpointSliceResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize};

use crate::telemetry::words;

/// The label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Namespace and name of an object, in lower case: Azure, whose names contain them, has no case.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespacedName {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl NamespacedName {
    /// Both parts are converted to lower case.
    pub fn new(namespace: &str, name: &str) -> Self {
        let lower = |text: &str| {
            if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
                text.to_ascii_lowercase().into()
            } else {
                text.into()
            }
        };
        Self {
            namespace: lower(namespace),
            name: lower(name),
        }
    }

    /// That of an object; `None` without a name, which the API server does not send.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        Some(Self::new(namespace, metadata.name.as_deref()?))
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name without its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

words! {
    /// The family of an IP address, as in `spec.ipFamilies`. A backend pool has addresses of one family only.
    #[derive(PartialOrd, Ord, Hash, Serialize, Deserialize)]
    pub enum IpFamily {
        /// IP version 4.
        IPv4 = "IPv4",
        /// IP version 6.
        IPv6 = "IPv6",
    }
}

impl IpFamily {
    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.as_str() == word)
    }
}

impl From<IpAddr> for IpFamily {
    /// An IPv4 address that is written as an IPv6 address counts as IPv4.
    fn from(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() {
            Self::IPv4
        } else {
            Self::IPv6
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is decoded of metadata. The rest can take many times its bytes in memory: `managedFields`, and labels, whose number has no limit.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimMetadata {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<SlimLabels>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlimLabels {
    #[serde(rename = "kubernetes.io/service-name")]
    service_name: Option<String>,
}

fn service_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = SlimMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        namespace: slim.namespace,
        name: slim.name,
        uid: slim.uid,
        resource_version: slim.resource_version,
        deletion_timestamp: slim.deletion_timestamp,
        annotations: slim.annotations,
        ..ObjectMeta::default()
    })
}

/// Decodes of an EndpointSlice's metadata what names it, its version, and the label with the name of its Service. The labels of a Service
/// are copied to its slices, so who creates Services chooses the size of the rest.
fn slice_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let slim = SlimMetadata::deserialize(deserializer)?;
    let service_name = slim.labels.and_then(|labels| labels.service_name);
    Ok(ObjectMeta {
        namespace: slim.namespace,
        name: slim.name,
        uid: slim.uid,
        resource_version: slim.resource_version,
        labels: service_name.map(|name| [(SERVICE_NAME_LABEL.to_owned(), name)].into()),
        ..ObjectMeta::default()
    })
}

/// A Service object, reduced.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = ServiceResource)]
pub struct ServiceObject {
    /// Namespace, name, UID, `resourceVersion`, `deletionTimestamp` and annotations.
    #[serde(deserialize_with = "service_metadata")]
    pub metadata: ObjectMeta,
    /// The spec, reduced.
    #[serde(default)]
    pub spec: ServiceSpecObject,
    /// The status, reduced.
    #[serde(default)]
    pub status: ServiceStatusObject,
}

/// The fields of a Service's spec that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpecObject {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub r#type: String,
    /// `Local` or `Cluster`.
    pub external_traffic_policy: String,
    /// Who makes its load balancer, if that is not cloud-controller-manager.
    pub load_balancer_class: Option<String>,
    /// 0 without one.
    pub health_check_node_port: u16,
    /// The families, in their order.
    pub ip_families: Vec<String>,
    /// The first address, or the text `None` for a headless Service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All addresses, one for each IP family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// Its pods have these labels; empty if it does not select them.
    pub selector: BTreeMap<String, String>,
    /// Whether the endpoints of pods that are not Ready count as ready.
    pub publish_not_ready_addresses: bool,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// `TCP`, `UDP` or `SCTP`; an empty text means `TCP`.
    pub protocol: String,
    /// The port on the load balancer's addresses.
    pub port: i32,
    /// The port on the node's addresses; zero if there is none.
    pub node_port: i32,
    /// The protocol of the application; empty if it is not stated. Only read from the API server.
    #[serde(skip_serializing)]
    pub app_protocol: String,
}

/// The fields of a Service's status that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatusObject {
    /// `status.loadBalancer`.
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Its frontends.
    pub ingress: Vec<Ingress>,
}

/// A frontend of the load balancer. Both texts are empty if they are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// The address.
    pub ip: String,
    /// The DNS name, of load balancers without a fixed address.
    pub hostname: String,
}

impl ServiceObject {
    /// Whether `spec.type` is `LoadBalancer`.
    pub fn is_load_balancer(&self) -> bool {
        self.spec.r#type == "LoadBalancer"
    }

    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub fn is_local(&self) -> bool {
        self.spec.external_traffic_policy == "Local"
    }
}

/// An EndpointSlice without zones, hints and targets.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = EndpointSliceResource)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSliceObject {
    /// Namespace, name, UID, version and the label with the Service's name.
    #[serde(deserialize_with = "slice_metadata")]
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6`, or a type without IP addresses.
    #[serde(default)]
    pub address_type: String,
    /// The endpoints; the API server sends `null` for an empty list.
    pub endpoints: Option<Vec<EndpointObject>>,
    /// The ports; the API server sends `null` for an empty list.
    pub ports: Option<Vec<EndpointPortObject>>,
}

/// The fields of an endpoint that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointObject {
    /// The first of the endpoint's addresses, which alone counts; `None` if it is no IP address.
    #[serde(rename = "addresses", deserialize_with = "first_address")]
    pub address: Option<IpAddr>,
    /// The endpoint's conditions, reduced.
    pub conditions: EndpointConditionsObject,
    /// The name of the node that the endpoint is on.
    pub node_name: Option<String>,
}

/// The fields of an endpoint's conditions that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointConditionsObject {
    /// Whether the endpoint is ready; `None` means true.
    pub ready: Option<bool>,
}

/// The fields of a port of an EndpointSlice that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPortObject {
    /// The port's name. An empty name is valid, a missing one is not.
    pub name: Option<String>,
    /// The port number; `None` means all ports.
    pub port: Option<i32>,
}

fn first_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let addresses = Option::<Vec<String>>::deserialize(deserializer)?;
    Ok(addresses.and_then(|addresses| addresses.first()?.parse().ok()))
}

impl EndpointSliceObject {
    /// The Service that it is a part of; `None` without the label, and where that is empty.
    pub fn service(&self) -> Option<NamespacedName> {
        let name = self.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        (!name.is_empty()).then(|| NamespacedName::new(namespace, name))
    }

    /// The family of its addresses; `None` for a type without IP addresses.
    pub fn family(&self) -> Option<IpFamily> {
        IpFamily::parse(&self.address_type)
    }

    /// The ready endpoints on nodes that kube-proxy would use: the name of the node, which may come several times, and the first address of
    /// each. Without a usable port there is none: the EndpointSlice controller writes such a slice for pods that lack the Service's named port.
    pub fn ready_endpoints(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        let is_usable = |port: &EndpointPortObject| {
            port.name.is_some() && port.port.is_some_and(|number| (1..=65_535).contains(&number))
        };
        let has_port = self.ports.iter().flatten().any(is_usable);
        let family = self.family();
        let is_of_type = move |address: &IpAddr| match family {
            Some(IpFamily::IPv4) => address.is_ipv4(),
            Some(IpFamily::IPv6) => address.is_ipv6(),
            None => false,
        };
        let endpoints = self.endpoints.iter().flatten().filter(move |_| has_port);
        endpoints
            .filter(|endpoint| endpoint.is_ready())
            .filter_map(|endpoint| Some((endpoint.node_name.as_deref()?, endpoint.address?)))
            .filter(move |(_, address)| is_of_type(address))
    }
}

impl EndpointObject {
    /// Whether it is ready; it is if that is not set.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready.unwrap_or(true)
    }
}

/// What is kept of a Service of type `LoadBalancer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is said by another field of the object"
)]
pub struct Service {
    /// Its namespace and name.
    pub name: NamespacedName,
    /// `metadata.uid`: its rules on the load balancer are named for it.
    pub uid: String,
    /// Whether `spec.loadBalancerClass` names another controller than cloud-controller-manager.
    pub has_class: bool,
    /// How many frontends its status has; none before a load balancer was made.
    pub frontends: usize,
    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub is_local: bool,
    /// Whether `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// `spec.ipFamilies`, in their order.
    pub ip_families: Vec<IpFamily>,
    /// `spec.healthCheckNodePort` of a Local Service; 0 without one.
    pub health_check_port: u16,
    /// `spec.selector`; empty for one that does not select its pods.
    pub selector: BTreeMap<String, String>,
    /// `spec.publishNotReadyAddresses`: kube-proxy also sends to its pods that are not Ready.
    pub publishes_not_ready: bool,
}

impl Service {
    /// What is kept; `None` for a Service of another type, and for an object without a name.
    pub fn read(object: ServiceObject) -> Option<Self> {
        let is_local = object.is_local();
        let name = NamespacedName::of(&object.metadata).filter(|_| object.is_load_balancer())?;
        let ServiceObject { metadata, spec, status } = object;
        Some(Self {
            name,
            uid: metadata.uid.unwrap_or_default(),
            has_class: spec.load_balancer_class.is_some_and(|class| !class.is_empty()),
            frontends: status.load_balancer.ingress.len(),
            is_local,
            is_deleting: metadata.deletion_timestamp.is_some(),
            ip_families: spec
                .ip_families
                .iter()
                .filter_map(|word| IpFamily::parse(word))
                .collect(),
            health_check_port: if is_local { spec.health_check_node_port } else { 0 },
            selector: spec.selector,
            publishes_not_ready: spec.publish_not_ready_addresses,
        })
    }

    /// Whether cloud-controller-manager keeps pools of its own for it, where there are several load balancers.
    pub fn has_local_pools(&self) -> bool {
        !self.has_class && self.is_local && !self.is_deleting
    }

    /// The families of its pools: both where it has more than one family, and IPv4 where it names none
    /// (cloud-provider-azure `newServiceInfo`).
    pub fn pool_families(&self) -> &'static [IpFamily] {
        match self.ip_families.as_slice() {
            [_, _, ..] => &[IpFamily::IPv4, IpFamily::IPv6],
            [IpFamily::IPv6] => &[IpFamily::IPv6],
            [] | [IpFamily::IPv4] => &[IpFamily::IPv4],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: &Value) -> Option<Service> {
        let object = json!({"metadata": {"namespace": "Default", "name": "web", "uid": "u"}, "spec": spec});
        Service::read(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn services_with_local_pools_are_recognised() {
        let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ipFamilies": ["IPv6", "IPv4"],
            "healthCheckNodePort": 32000, "publishNotReadyAddresses": true, "ports": []});
        let found = read(&local).unwrap();
        assert_eq!(found.name.to_string(), "default/web");
        assert_eq!((found.uid.as_str(), found.health_check_port), ("u", 32000));
        assert!(found.publishes_not_ready);
        assert_eq!((found.name.namespace(), found.name.name()), ("default", "web"));
        assert!(found.has_local_pools());
        assert_eq!(found.ip_families, [IpFamily::IPv6, IpFamily::IPv4]);
        for (field, value) in [("externalTrafficPolicy", "Cluster"), ("loadBalancerClass", "other")] {
            let mut other = local.clone();
            other[field] = json!(value);
            assert!(!read(&other).unwrap().has_local_pools(), "{other}");
        }
        let mut other = local.clone();
        other["loadBalancerClass"] = json!("");
        assert!(read(&other).unwrap().has_local_pools(), "an empty class is none");
        other["externalTrafficPolicy"] = json!("Cluster");
        assert_eq!(read(&other).unwrap().health_check_port, 0);
        other["type"] = json!("ClusterIP");
        assert_eq!(read(&other), None);
        let deleting = json!({"metadata": {"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": local});
        let deleting = Service::read(serde_json::from_value(deleting).unwrap()).unwrap();
        assert!(!deleting.has_local_pools());
        let nameless = json!({"metadata": {}, "spec": {"type": "LoadBalancer"}});
        assert_eq!(Service::read(serde_json::from_value(nameless).unwrap()), None);
    }

    /// Who writes an object chooses how many labels and `managedFields` it has.
    #[test]
    fn metadata_keeps_what_is_read() {
        let metadata = json!({"namespace": "a", "name": "b", "uid": "u", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"x": "y", SERVICE_NAME_LABEL: "b"}, "annotations": {"k": "v"}, "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "b", "uid": "u"}],
            "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {}}}]});
        let identity = json!({"namespace": "a", "name": "b", "uid": "u", "resourceVersion": "7"});
        let service: ServiceObject = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let mut expected = identity.clone();
        expected["deletionTimestamp"] = metadata["deletionTimestamp"].clone();
        expected["annotations"] = metadata["annotations"].clone();
        assert_eq!(serde_json::to_value(&service.metadata).unwrap(), expected);
        let slice: EndpointSliceObject = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        let mut expected = identity;
        expected["labels"] = json!({SERVICE_NAME_LABEL: "b"});
        assert_eq!(serde_json::to_value(&slice.metadata).unwrap(), expected);
        let bare = json!({"metadata": {"name": "b", "labels": {"x": "y"}, "annotations": null}});
        let slice: EndpointSliceObject = serde_json::from_value(bare).unwrap();
        assert_eq!(serde_json::to_value(&slice.metadata).unwrap(), json!({"name": "b"}));
    }

    #[test]
    fn endpoints_are_ready_on_a_node_with_an_address_of_the_type_and_a_usable_port() {
        let endpoint = |change: Value| {
            let mut endpoint = json!({"addresses": ["10.1.0.1"], "nodeName": "n1", "conditions": {"ready": true}});
            endpoint
                .as_object_mut()
                .unwrap()
                .append(&mut change.as_object().unwrap().clone());
            endpoint
        };
        let usable = json!({"name": "http", "port": 80});
        for (address_type, port, change, is_ready) in [
            ("IPv4", usable.clone(), json!({}), true),
            ("IPv6", usable.clone(), json!({}), false),
            ("IPv6", usable.clone(), json!({"addresses": ["fd00::1"]}), true),
            ("IPv4", usable.clone(), json!({"addresses": ["fd00::1"]}), false),
            ("FQDN", usable.clone(), json!({}), false),
            ("IPv4", usable.clone(), json!({"addresses": []}), false),
            ("IPv4", usable.clone(), json!({"nodeName": null}), false),
            ("IPv4", usable, json!({"conditions": {"ready": false}}), false),
            ("IPv4", json!({"name": "http"}), json!({}), false),
            ("IPv4", json!({"port": 80}), json!({}), false),
            ("IPv4", json!({"name": "", "port": 65_535}), json!({}), true),
            ("IPv4", json!({"name": "", "port": 65_536}), json!({}), false),
            ("IPv4", json!({"name": "", "port": 0}), json!({}), false),
        ] {
            let object = json!({"metadata": {"name": "web-1"}, "addressType": address_type, "ports": [port], "endpoints": [endpoint(change)]});
            let slice: EndpointSliceObject = serde_json::from_value(object.clone()).unwrap();
            let nodes: Vec<_> = slice.ready_endpoints().map(|(node, _)| node).collect();
            assert_eq!(nodes, vec!["n1"; usize::from(is_ready)], "{object}");
            assert_eq!(slice.family(), IpFamily::parse(address_type), "{address_type}");
        }
    }

    #[test]
    fn slices_are_read_also_without_lists_names_and_conditions() {
        let read = |object: Value| serde_json::from_value::<EndpointSliceObject>(object).unwrap();
        let full = read(
            json!({"metadata": {"namespace": "Default", "name": "web-1", "labels": {SERVICE_NAME_LABEL: "web"}},
            "addressType": "IPv4", "ports": [{"name": "x", "port": 70_000}], "endpoints": [
                {"addresses": ["10.1.0.1", "10.1.0.9"], "nodeName": "n1", "conditions": {"ready": false}},
                {"addresses": ["nonsense"], "conditions": {}}, {"addresses": null}, {}]}),
        );
        assert_eq!(full.service(), Some(NamespacedName::new("default", "web")));
        let endpoints = full.endpoints.iter().flatten();
        let endpoints = endpoints.map(|one| (one.node_name.as_deref(), one.address, one.is_ready()));
        let first = (Some("n1"), Some([10, 1, 0, 1].into()), false);
        let bare = (None, None, true);
        assert_eq!(endpoints.collect::<Vec<_>>(), [first, bare, bare, bare]);
        for service in [json!({}), json!({SERVICE_NAME_LABEL: ""})] {
            let metadata = json!({"name": "web-1", "labels": service});
            let empty = read(json!({"metadata": metadata, "endpoints": null, "ports": null}));
            assert!(empty.service().is_none() && empty.endpoints.is_none() && empty.ports.is_none());
        }
    }

    #[test]
    fn pools_have_one_family_each() {
        for (families, pools) in [
            (json!([]), &[IpFamily::IPv4][..]),
            (json!(["IPv4"]), &[IpFamily::IPv4]),
            (json!(["IPv6"]), &[IpFamily::IPv6]),
            (json!(["IPv6", "IPv4"]), &[IpFamily::IPv4, IpFamily::IPv6]),
        ] {
            let service = read(&json!({"type": "LoadBalancer", "ipFamilies": families})).unwrap();
            assert_eq!(service.pool_families(), pools, "{families}");
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        for (address, family) in [
            ("10.0.0.4", IpFamily::IPv4),
            ("::ffff:10.0.0.4", IpFamily::IPv4),
            ("fd00::4", IpFamily::IPv6),
        ] {
            assert_eq!(IpFamily::from(address.parse::<IpAddr>().unwrap()), family);
        }
    }
}
