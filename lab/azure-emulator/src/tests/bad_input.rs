//! Requests that no client of Microsoft sends: refused with ARM's errors, and without effect.

use serde_json::json;

use super::{Client, GROUP, lb1, lb1_pool, load_balancer, rows};

/// A request of a table with the paths that it abbreviates.
fn whole(request: &str) -> String {
    request
        .replace("POOL", &lb1_pool("p"))
        .replace("LB", &lb1())
        .replace("GROUP", GROUP)
}

#[tokio::test(start_paused = true)]
async fn invalid_bodies_are_refused() {
    let client = Client::new(&[load_balancer("lb1", &[("p", &["n"])])]);
    let before = client.read(&lb1()).await;
    let long = "n".repeat(81);
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let table = r#"
POOL  → InvalidRequestContent
POOL { → InvalidRequestContent
POOL [] → InvalidRequestContent
POOL null → InvalidRequestContent
POOL DEEP → InvalidRequestContent
POOL {"properties": []} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": {}}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [1]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n"}, {"name": "N"}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n", "properties": 1}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n", "properties": {"ipAddress": "x"}}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n", "properties": {"adminState": "Drain"}}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n", "properties": {"adminState": 1}}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "n", "properties": {"ipAddress": "10.0.0.1"}}]}} → InvalidRequestFormat
POOL {"properties": {"virtualNetwork": {"id": "v"}, "loadBalancerBackendAddresses": [{"name": "n", "properties": {"ipAddress": "10.0.0.1", "virtualNetwork": {"id": "v"}}}]}} → InvalidRequestFormat
POOL {"properties": {"loadBalancerBackendAddresses": [{"name": "LONG", "properties": {}}]}} → InvalidResourceName
LB/backendAddressPools/LONG {} → InvalidResourceName
GROUP/providers/Microsoft.Network/loadBalancers/LONG {} → InvalidResourceName
LB {"properties": {"backendAddressPools": {}}} → InvalidRequestFormat
LB {"properties": {"backendAddressPools": [{}]}} → InvalidRequestFormat
LB {"location": 1} → InvalidRequestFormat
LB {"properties": {"backendAddressPools": [{"name": "a"}, {"name": "A"}]}} → DuplicateResourceName
LB {"properties": {"loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": {"id": "LB/backendAddressPools/x"}}}]}} → InvalidResourceReference
LB {"properties": {"loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": {"id": "x"}}}]}} → InvalidResourceReference
"#;
    for (row, code) in rows(table) {
        let request = whole(row).replace("LONG", &long).replace("DEEP", &deep);
        let (path, body) = request.split_once(' ').expect(row);
        let refused = client.send("PUT", path, &[], body.as_bytes()).await;
        assert_eq!((refused.status, refused.code()), (400, code), "{row}: {}", refused.body);
        assert_ne!(refused.body["error"]["message"].as_str().unwrap(), "", "{row}");
    }
    assert_eq!(client.read(&lb1()).await, before, "no request had an effect");
}

#[tokio::test(start_paused = true)]
async fn invalid_paths_methods_and_versions_are_refused() {
    let client = Client::new(&[load_balancer("lb1", &[("p", &["n"])])]);
    let table = "
GET / → 404 InvalidRequestUri
GET GROUP/providers/Microsoft.Network/loadBalancers/a%2fb → 404 InvalidRequestUri
GET GROUP/providers/Microsoft.Network/loadBalancers/%ff → 404 InvalidRequestUri
GET POOL/x/y/z → 404 ResourceNotFound
POST LB → 405 HttpMethodNotSupported
BREW LB → 405 HttpMethodNotSupported
PUT GROUP/providers/Microsoft.Network/loadBalancers → 405 HttpMethodNotSupported
PATCH POOL → 405 HttpMethodNotSupported
GET LB?api-version= → 400 MissingApiVersionParameter
GET LB?api-version=yesterday → 400 NoRegisteredProviderFound
GET LB?api-version=2021-07-31 → 400 NoRegisteredProviderFound
GET LB?api-version=2025-05-01-rc → 400 NoRegisteredProviderFound
GET /subscriptions/sub/providers/Microsoft.Network/locations/eastus/operations/x → 404 OperationNotFound
";
    for (row, expected) in rows(table) {
        let request = whole(row);
        let (method, path) = request.split_once(' ').expect(row);
        let body: &[u8] = if method == "GET" { b"" } else { b"{}" };
        let answer = client.send(method, path, &[], body).await;
        let found = format!("{} {}", answer.status, answer.code());
        assert_eq!(found, expected, "{row}: {}", answer.body);
    }
    for version in ["2021-08-01", "2026-03-01", "2025-05-01-preview"] {
        let answer = client.get(&format!("{}?api-version={version}", lb1())).await;
        assert_eq!(answer.status, 200, "{version}");
    }
    let written = client.put(&lb1_pool("p"), &json!({})).await;
    let url = written.header("azure-asyncoperation").unwrap().to_owned();
    assert_eq!(
        client.get(&url.replace("&h=", "&h=x")).await.code(),
        "InvalidSignature",
        "the URL must be used unchanged"
    );
}
