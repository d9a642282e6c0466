//! The slices of Services and EndpointSlices that per-Service health is made of, and what of them is
//! kept. Pure.
//!
//! The rules are kube-proxy's: it reads the first address of an endpoint, takes `ready` for true where it
//! is not set, knows nothing of endpoints without a usable port, and serves neither headless Services
//! nor those that are another proxy's. Terminating endpoints are not ready, except those of a Service
//! with `publishNotReadyAddresses`: the EndpointSlice controller says so in `ready`.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use super::per_family::PerFamily;

/// What kube-proxy, too, asks the API server to leave out, of Services and EndpointSlices alike.
pub(super) const LABEL_SELECTOR: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
/// On an EndpointSlice: the Service it belongs to.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A Service without selectors, ports and status.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Service)]
pub struct SlimService {
    /// Name and UID.
    pub metadata: ObjectMeta,
    /// The fields that matter.
    #[serde(default)]
    pub spec: SlimServiceSpec,
}

/// The part of a Service's spec that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimServiceSpec {
    /// `LoadBalancer` is what counts.
    pub r#type: String,
    /// `Local` is what counts.
    pub external_traffic_policy: String,
    /// Zero where there is none.
    pub health_check_node_port: u16,
    /// The first address; `None` for a headless Service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// All addresses, one a family.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
}

/// An EndpointSlice without zones, hints and targets.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = EndpointSlice)]
#[serde(rename_all = "camelCase")]
pub struct SlimSlice {
    /// Name and the Service's.
    pub metadata: ObjectMeta,
    /// `IPv4`, `IPv6`, or something without addresses.
    #[serde(default)]
    pub address_type: String,
    /// The endpoints; the API server writes `null` for none.
    pub endpoints: Option<Vec<SlimEndpoint>>,
    /// The ports; the API server writes `null` for none.
    pub ports: Option<Vec<SlimPort>>,
}

/// The part of an endpoint that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimEndpoint {
    /// Its addresses, of which the first counts.
    pub addresses: Vec<String>,
    /// Its state.
    pub conditions: SlimConditions,
    /// The node it is on.
    pub node_name: Option<String>,
}

/// The part of an endpoint's conditions that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlimConditions {
    /// Not set means true.
    pub ready: Option<bool>,
}

/// The part of a port that is read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlimPort {
    /// Empty is a name, none is not.
    pub name: Option<String>,
    /// Its number.
    pub port: Option<u16>,
}

/// A namespace and a name in it, of a Service or an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
}

impl ObjectKey {
    /// A key.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn of(metadata: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
        Self {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is kept of a Service whose health is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalService {
    /// Its UID, for events.
    pub uid: Box<str>,
    /// Its `healthCheckNodePort`, or zero.
    pub port: u16,
    /// The families it has an address in.
    pub families: PerFamily<bool>,
}

/// What is kept of an EndpointSlice: the addresses on this node that are ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalSlice {
    pub(super) service: ObjectKey,
    pub(super) ready: Box<[IpAddr]>,
}

impl SlimService {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.metadata)
    }

    /// What is kept of it, if load balancers ask for its health node by node.
    #[must_use]
    pub fn local(&self) -> Option<LocalService> {
        let spec = &self.spec;
        let first = Some(&spec.cluster_ip).filter(|_| spec.cluster_ips.is_empty());
        let mut families = PerFamily::default();
        // `None` and an empty text are no addresses.
        for address in spec
            .cluster_ips
            .iter()
            .chain(first)
            .filter_map(|text| text.parse().ok())
        {
            *families.of_mut(address) = true;
        }
        let wanted = spec.r#type == "LoadBalancer" && spec.external_traffic_policy == "Local";
        (wanted && (families.v4 || families.v6)).then(|| LocalService {
            uid: self.metadata.uid.as_deref().unwrap_or_default().into(),
            port: spec.health_check_node_port,
            families,
        })
    }
}

impl SlimSlice {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.metadata)
    }

    /// What is kept of it on `node`; nothing where no endpoint there is ready.
    pub(super) fn local(&self, node: &str) -> Option<LocalSlice> {
        let service = self.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        let usable = |port: &SlimPort| port.name.is_some() && port.port.is_some_and(|number| number != 0);
        if !self.ports.iter().flatten().any(usable) {
            return None;
        }
        let of_family = |address: &IpAddr| match self.address_type.as_str() {
            "IPv4" => address.is_ipv4(),
            "IPv6" => address.is_ipv6(),
            _ => false,
        };
        let endpoints = self.endpoints.iter().flatten();
        let ready: Box<[IpAddr]> = endpoints
            .filter(|endpoint| endpoint.node_name.as_deref() == Some(node) && endpoint.conditions.ready.unwrap_or(true))
            .filter_map(|endpoint| endpoint.addresses.first()?.parse().ok())
            .filter(of_family)
            .collect();
        (!ready.is_empty()).then(|| LocalSlice {
            service: ObjectKey::new(self.metadata.namespace.as_deref().unwrap_or_default(), service),
            ready,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value) -> Option<LocalService> {
        let service = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": spec});
        serde_json::from_value::<SlimService>(service).unwrap().local()
    }

    #[test]
    fn which_services_need_it() {
        let good = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000,
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let found = service(&good).unwrap();
        assert_eq!((found.port, found.families.v4, found.families.v6), (30000, true, true));
        for (field, value) in [
            ("type", json!("NodePort")),
            ("type", json!("ClusterIP")),
            ("externalTrafficPolicy", json!("Cluster")),
            ("clusterIPs", json!(["None"])),
        ] {
            let mut other = good.clone();
            other[field] = value;
            assert_eq!(service(&other), None, "{other}");
        }
        let old = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "clusterIP": "fd00::1"});
        let found = service(&old).unwrap();
        assert_eq!((found.port, found.families.v4, found.families.v6), (0, false, true));
        assert_eq!(service(&json!({})), None);
    }

    fn slice(kind: &str, endpoints: &Value, ports: &Value) -> Option<Vec<String>> {
        let slice = json!({"metadata": {"namespace": "a", "name": "b-1", "labels": {SERVICE_NAME: "b"}},
            "addressType": kind, "endpoints": endpoints, "ports": ports});
        let local = serde_json::from_value::<SlimSlice>(slice).unwrap().local("here")?;
        assert_eq!(local.service, ObjectKey::new("a", "b"));
        Some(local.ready.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn which_endpoints_count() {
        let ports = json!([{"name": "", "port": 80, "protocol": "TCP"}]);
        let endpoint = |address: &str, node: Value, conditions: Value| json!({"addresses": [address], "nodeName": node, "conditions": conditions});
        for (conditions, counts) in [
            (json!({}), true),
            (json!({"ready": true}), true),
            (json!({"ready": null}), true),
            (json!({"ready": false}), false),
            (json!({"ready": false, "serving": true, "terminating": true}), false),
            // publishNotReadyAddresses
            (json!({"ready": true, "serving": false, "terminating": true}), true),
        ] {
            let endpoints = json!([endpoint("10.0.0.1", json!("here"), conditions.clone())]);
            assert_eq!(slice("IPv4", &endpoints, &ports).is_some(), counts, "{conditions}");
        }
        let endpoints = json!([
            endpoint("10.0.0.1", json!("there"), json!({})),
            endpoint("10.0.0.2", json!(null), json!({})),
            endpoint("fd00::1", json!("here"), json!({})),
            endpoint("nonsense", json!("here"), json!({})),
            {"addresses": ["10.0.0.3", "10.0.0.4"], "nodeName": "here"},
            {"addresses": [], "nodeName": "here"},
        ]);
        assert_eq!(
            slice("IPv4", &endpoints, &ports),
            Some(vec!["10.0.0.3".to_owned()]),
            "the first address alone"
        );
        assert_eq!(slice("IPv6", &endpoints, &ports), Some(vec!["fd00::1".to_owned()]));
        assert_eq!(slice("FQDN", &endpoints, &ports), None);
        for unusable in [
            json!(null),
            json!([]),
            json!([{"port": 80}]),
            json!([{"name": "x"}]),
            json!([{"name": "x", "port": 0}]),
        ] {
            assert_eq!(slice("IPv4", &endpoints, &unusable), None, "{unusable}");
        }
        assert_eq!(slice("IPv4", &json!(null), &ports), None);
    }
}
