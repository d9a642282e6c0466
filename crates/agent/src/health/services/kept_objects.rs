//! What service health keeps of Services and EndpointSlices. Pure.
//!
//! The rules are kube-proxy's, also those of [`EndpointSliceObject::ready_endpoints`]. Headless Services and those of another proxy are left
//! out. Terminating endpoints are not ready, except those of a Service with `publishNotReadyAddresses`: the EndpointSlice controller sets
//! `ready` accordingly.

use std::net::IpAddr;

use headgate_core::service::{EndpointSliceObject, NamespacedName, ServiceObject};

use super::super::ip_family::PerFamily;

/// The label selector for Services and for EndpointSlices, the same as kube-proxy's.
pub(super) const LABEL_SELECTOR: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// What is kept of a Service with service health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalService {
    /// The Service's UID, for events.
    pub uid: Box<str>,
    /// The Service's `healthCheckNodePort`, or zero.
    pub port: u16,
    /// The IP families in which the Service has an address.
    pub families: PerFamily<bool>,
}

/// What is kept of an EndpointSlice: the ready addresses on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalSlice {
    pub(super) service: NamespacedName,
    pub(super) ready: Box<[IpAddr]>,
}

impl LocalService {
    /// What is kept of the Service, if it has service health.
    pub fn read(object: &ServiceObject) -> Option<Self> {
        let spec = &object.spec;
        let first = Some(&spec.cluster_ip).filter(|_| spec.cluster_ips.is_empty());
        let mut families = PerFamily::default();
        // The text `None` and an empty text are no addresses.
        for address in spec
            .cluster_ips
            .iter()
            .chain(first)
            .filter_map(|text| text.parse().ok())
        {
            *families.get_mut_by_address(address) = true;
        }
        let has_service_health = object.is_load_balancer() && object.is_local();
        (has_service_health && (families.v4 || families.v6)).then(|| Self {
            uid: object.metadata.uid.as_deref().unwrap_or_default().into(),
            port: spec.health_check_node_port,
            families,
        })
    }
}

impl LocalSlice {
    /// What is kept of the slice on the node `node_name`; `None` if no endpoint is ready there.
    pub(super) fn read(slice: &EndpointSliceObject, node_name: &str) -> Option<Self> {
        let service = slice.service()?;
        let here = slice.ready_endpoints().filter(|(node, _)| *node == node_name);
        let ready: Box<[IpAddr]> = here.map(|(_, address)| address).collect();
        (!ready.is_empty()).then_some(Self { service, ready })
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::service::SERVICE_NAME_LABEL;
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value) -> Option<LocalService> {
        let service = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": spec});
        LocalService::read(&serde_json::from_value(service).unwrap())
    }

    #[test]
    fn services_with_service_health() {
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
        let slice = json!({"metadata": {"namespace": "a", "name": "b-1", "labels": {SERVICE_NAME_LABEL: "b"}},
            "addressType": kind, "endpoints": endpoints, "ports": ports});
        let local = LocalSlice::read(&serde_json::from_value(slice).unwrap(), "here")?;
        assert_eq!(local.service, NamespacedName::new("a", "b"));
        Some(local.ready.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn ready_local_endpoints_are_counted() {
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
            "only the first address counts"
        );
        assert_eq!(slice("IPv6", &endpoints, &ports), Some(vec!["fd00::1".to_owned()]));
        assert_eq!(slice("FQDN", &endpoints, &ports), None);
        for unusable in [
            json!(null),
            json!([]),
            json!([{"port": 80}]),
            json!([{"name": "x"}]),
            json!([{"name": "x", "port": 0}]),
            json!([{"name": "x", "port": 65536}]),
        ] {
            assert_eq!(slice("IPv4", &endpoints, &unusable), None, "{unusable}");
        }
        assert_eq!(slice("IPv4", &json!(null), &ports), None);
    }
}
