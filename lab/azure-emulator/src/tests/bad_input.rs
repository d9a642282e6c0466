//! Requests that no client of Microsoft sends: refused with ARM's errors, and without effect.

use serde_json::{Value, json};

use super::{Client, GROUP, lb_path, load_balancer, pool_path};

#[tokio::test(start_paused = true)]
async fn invalid_bodies_are_refused() {
    let client = Client::new(&[load_balancer("lb1", &[("p", &["n"])])]);
    let before = client.get(&lb_path("lb1")).await.body;
    let long = "n".repeat(81);
    let addresses = |addresses: Value| json!({"properties": {"loadBalancerBackendAddresses": addresses}}).to_string();
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let rows: Vec<(String, String, &str)> = vec![
        (pool_path("lb1", "p"), String::new(), "InvalidRequestContent"),
        (pool_path("lb1", "p"), "{".to_owned(), "InvalidRequestContent"),
        (pool_path("lb1", "p"), "[]".to_owned(), "InvalidRequestContent"),
        (pool_path("lb1", "p"), "null".to_owned(), "InvalidRequestContent"),
        (pool_path("lb1", "p"), deep, "InvalidRequestContent"),
        (pool_path("lb1", "p"), json!({"properties": []}).to_string(), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!({})), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([1])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": "n"}, {"name": "N"}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": "n", "properties": 1}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": "n", "properties": {"ipAddress": "x"}}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": "n", "properties": {"adminState": "Drain"}}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": "n", "properties": {"adminState": 1}}])), "InvalidRequestFormat"),
        (pool_path("lb1", "p"), addresses(json!([{"name": long, "properties": {}}])), "InvalidResourceName"),
        (pool_path("lb1", &long), json!({}).to_string(), "InvalidResourceName"),
        (lb_path(&long), json!({}).to_string(), "InvalidResourceName"),
        (lb_path("lb1"), json!({"properties": {"backendAddressPools": {}}}).to_string(), "InvalidRequestFormat"),
        (lb_path("lb1"), json!({"properties": {"backendAddressPools": [{}]}}).to_string(), "InvalidRequestFormat"),
        (lb_path("lb1"), json!({"location": 1}).to_string(), "InvalidRequestFormat"),
        (
            lb_path("lb1"),
            json!({"properties": {"backendAddressPools": [{"name": "a"}, {"name": "A"}]}}).to_string(),
            "DuplicateResourceName",
        ),
        (
            lb_path("lb1"),
            json!({"properties": {"loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": {"id": pool_path("lb1", "x")}}}]}}).to_string(),
            "InvalidResourceReference",
        ),
        (
            lb_path("lb1"),
            json!({"properties": {"loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": {"id": "x"}}}]}}).to_string(),
            "InvalidResourceReference",
        ),
    ];
    for (path, body, code) in rows {
        let shown: String = body.chars().take(100).collect();
        let refused = client.send("PUT", &path, &[], body.as_bytes()).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, code),
            "{shown}: {}",
            refused.body
        );
        assert!(
            refused.body["error"]["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty())
        );
    }
    assert_eq!(
        client.get(&lb_path("lb1")).await.body,
        before,
        "no request had an effect"
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_paths_methods_and_versions_are_refused() {
    let client = Client::new(&[load_balancer("lb1", &[("p", &["n"])])]);
    for (method, path, status, code) in [
        ("GET", "/".to_owned(), 404, "InvalidRequestUri"),
        (
            "GET",
            format!("{GROUP}/providers/Microsoft.Network/loadBalancers/a%2fb"),
            404,
            "InvalidRequestUri",
        ),
        (
            "GET",
            format!("{GROUP}/providers/Microsoft.Network/loadBalancers/%ff"),
            404,
            "InvalidRequestUri",
        ),
        (
            "GET",
            format!("{}/x/y/z", pool_path("lb1", "p")),
            404,
            "ResourceNotFound",
        ),
        ("POST", lb_path("lb1"), 405, "HttpMethodNotSupported"),
        ("BREW", lb_path("lb1"), 405, "HttpMethodNotSupported"),
        (
            "PUT",
            format!("{GROUP}/providers/Microsoft.Network/loadBalancers"),
            405,
            "HttpMethodNotSupported",
        ),
        ("PATCH", pool_path("lb1", "p"), 405, "HttpMethodNotSupported"),
        (
            "GET",
            format!("{}?api-version=", lb_path("lb1")),
            400,
            "MissingApiVersionParameter",
        ),
        (
            "GET",
            format!("{}?api-version=yesterday", lb_path("lb1")),
            400,
            "NoRegisteredProviderFound",
        ),
        (
            "GET",
            format!("{}?api-version=2021-07-31", lb_path("lb1")),
            400,
            "NoRegisteredProviderFound",
        ),
        (
            "GET",
            format!("{}?api-version=2025-05-01-rc", lb_path("lb1")),
            400,
            "NoRegisteredProviderFound",
        ),
        (
            "GET",
            "/subscriptions/sub/providers/Microsoft.Network/locations/eastus/operations/x".to_owned(),
            404,
            "OperationNotFound",
        ),
    ] {
        let body: &[u8] = if method == "GET" { b"" } else { b"{}" };
        let answer = client.send(method, &path, &[], body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{method} {path}: {}",
            answer.body
        );
    }
    for version in ["2021-08-01", "2026-03-01", "2025-05-01-preview"] {
        assert_eq!(
            client
                .get(&format!("{}?api-version={version}", lb_path("lb1")))
                .await
                .status,
            200,
            "{version}"
        );
    }
    let written = client.put(&pool_path("lb1", "p"), &json!({})).await;
    let url = written.header("azure-asyncoperation").unwrap().to_owned();
    assert_eq!(
        client.get(&url.replace("&h=", "&h=x")).await.code(),
        "InvalidSignature",
        "the URL must be used unchanged"
    );
}
