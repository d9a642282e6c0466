//! The answer about one Service, to the byte as kube-proxy's (upstream: `service_health.go`); one that the node's signals make fail has the
//! field `nodeEligible` in addition. Pure.

use headgate_core::service::NamespacedName;
use hyper::StatusCode;

/// Status, weight and body of an answer about one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAnswer {
    /// The status code, 200 or 503.
    pub(super) status: StatusCode,
    /// The value of `X-Load-Balancing-Endpoint-Weight`: the number of endpoints, with either status.
    pub(super) weight: u32,
    /// The body as JSON with kube-proxy's indentation.
    pub(super) body: String,
}

/// The answer about a Service with `endpoints` ready endpoints on this node. `is_drained` says that the node's signals make it fail.
pub(super) fn service_answer(
    service: &NamespacedName,
    endpoints: u32,
    proxy_healthy: bool,
    is_drained: bool,
) -> ServiceAnswer {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let is_ok = endpoints > 0 && proxy_healthy && !is_drained;
    let node_eligible = if is_drained { ",\n\t\"nodeEligible\": false" } else { "" };
    ServiceAnswer {
        status: if is_ok {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        weight: endpoints,
        body: format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\
             \"serviceProxyHealthy\": {proxy_healthy}{node_eligible}\n}}",
            quoted(service.namespace()),
            quoted(service.name())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_answer_equals_kube_proxys_byte_for_byte() {
        let key = NamespacedName::new("a", "b");
        let good = service_answer(&key, 18, true, false);
        let body = "{\n\t\"service\": {\n\t\t\"namespace\": \"a\",\n\t\t\"name\": \"b\"\n\t},\n\t\"localEndpoints\": 18,\n\t\"serviceProxyHealthy\": true\n}";
        assert_eq!((good.status.as_u16(), good.weight, good.body.as_str()), (200, 18, body));
        for (endpoints, healthy, drained) in [
            (0, true, false),
            (18, false, false),
            (0, false, false),
            (18, true, true),
        ] {
            let bad = service_answer(&key, endpoints, healthy, drained);
            assert_eq!((bad.status.as_u16(), bad.weight), (503, endpoints));
            let parsed: serde_json::Value = serde_json::from_str(&bad.body).unwrap();
            assert_eq!(parsed["localEndpoints"], endpoints);
            assert_eq!(parsed["serviceProxyHealthy"], healthy);
            assert_eq!(parsed.get("nodeEligible"), drained.then_some(&false.into()));
        }
    }
}
