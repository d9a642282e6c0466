//! The answer about one Service, byte for byte kube-proxy's (upstream: `service_health.go`). Pure.

use hyper::StatusCode;

use super::object::ObjectKey;

/// Status, weight and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAnswer {
    /// 200 or 503, never another.
    pub status: StatusCode,
    /// `X-Load-Balancing-Endpoint-Weight`: the count, whatever the status.
    pub weight: u32,
    /// The body.
    pub body: String,
}

/// The answer about a Service with that many ready endpoints on this node.
#[must_use]
pub fn answer(service: &ObjectKey, endpoints: u32, proxy_healthy: bool) -> ServiceAnswer {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let good = endpoints > 0 && proxy_healthy;
    ServiceAnswer {
        status: if good {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        weight: endpoints,
        body: format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\
             \"serviceProxyHealthy\": {proxy_healthy}\n}}",
            quoted(&service.namespace),
            quoted(&service.name)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_for_byte() {
        let key = ObjectKey::new("a", "b");
        let good = answer(&key, 18, true);
        let body = "{\n\t\"service\": {\n\t\t\"namespace\": \"a\",\n\t\t\"name\": \"b\"\n\t},\n\t\"localEndpoints\": 18,\n\t\"serviceProxyHealthy\": true\n}";
        assert_eq!((good.status.as_u16(), good.weight, good.body.as_str()), (200, 18, body));
        for (endpoints, healthy) in [(0, true), (18, false), (0, false)] {
            let bad = answer(&key, endpoints, healthy);
            assert_eq!((bad.status.as_u16(), bad.weight), (503, endpoints));
            let parsed: serde_json::Value = serde_json::from_str(&bad.body).unwrap();
            assert_eq!(parsed["localEndpoints"], endpoints);
            assert_eq!(parsed["serviceProxyHealthy"], healthy);
        }
    }
}
