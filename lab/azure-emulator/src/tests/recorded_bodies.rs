//! Answers that were recorded or reported from Azure, compared as JSON.

use serde_json::{Value, json};

use super::{BASE, Client, GROUP, lb1, lb1_pool, load_balancer, pool_document};

fn client() -> Client {
    Client::new(&[load_balancer("lb1", &[("bap1", &["addr1"])])])
}

/// Recorded: `azure-cli`'s test of pool addresses, and the shape of a later Go recording.
#[tokio::test(start_paused = true)]
async fn an_ip_based_pool_is_shown_as_recorded() {
    let client = client();
    let answer = client.get(&lb1_pool("bap1")).await;
    let etag = answer.header("etag").unwrap().to_owned();
    let id = lb1_pool("bap1");
    assert_eq!(
        answer.body,
        json!({
            "name": "bap1", "id": id, "etag": etag,
            "properties": {
                "provisioningState": "Succeeded",
                "loadBalancerBackendAddresses": [{
                    "name": "addr1", "id": format!("{id}/loadBalancerBackendAddresses/addr1"), "etag": etag,
                    "properties": {"provisioningState": "Succeeded", "ipAddress": "10.0.0.1"},
                    "type": "Microsoft.Network/loadBalancers/backendAddressPools/loadBalancerBackendAddresses",
                }],
                "loadBalancingRules": [{"id": format!("{}/loadBalancingRules/http", lb1())}],
                "virtualNetwork": {"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/nodes")},
            },
            "type": "Microsoft.Network/loadBalancers/backendAddressPools",
        })
    );
}

/// Recorded: cloud-provider-azure creates an empty pool.
#[tokio::test(start_paused = true)]
async fn an_empty_pool_is_created() {
    let client = client();
    let body = json!({"name": "testResource", "properties": {}});
    let written = client.put(&lb1_pool("testResource"), &body).await;
    assert_eq!(written.status, 201);
    assert_eq!(
        written.body["properties"],
        json!({"provisioningState": "Updating", "loadBalancerBackendAddresses": []})
    );
    assert_eq!(written.header("azure-asyncnotification"), Some("Enabled"));
    assert_eq!(
        (written.header("etag"), written.header("location")),
        (None, None),
        "a PUT's answer has neither"
    );
    let url = written.header("azure-asyncoperation").unwrap();
    let prefix = format!("{BASE}/subscriptions/sub/providers/Microsoft.Network/locations/eastus/operations/");
    assert!(url.starts_with(&prefix), "{url}");
    assert!((2800..3500).contains(&url.len()), "some 3 KB: {}", url.len());
    assert!(
        url.contains("?api-version=2025-05-01&t=") && url.contains("&c=") && url.contains("&s=") && url.contains("&h=")
    );
    assert_eq!(client.read(url).await, json!({"status": "InProgress"}));
    assert_eq!(
        client.wait_for_operation(&written).await,
        json!({"status": "Succeeded"})
    );
    let read = client.get(&lb1_pool("testResource")).await;
    assert_eq!(
        read.body["properties"],
        json!({"provisioningState": "Succeeded", "loadBalancerBackendAddresses": []})
    );
    assert_eq!(read.header("etag"), read.body["etag"].as_str());
    assert_ne!(
        read.body["etag"], written.body["etag"],
        "the etag changes again at the end"
    );
}

/// Recorded: a PUT with `If-Match: invalid`.
#[tokio::test(start_paused = true)]
async fn a_stale_etag_is_answered_as_recorded() {
    let client = client();
    let before = client.get(&lb1()).await;
    let etag = before.header("etag").unwrap();
    let refused = client.put_if_match(&lb1(), "invalid", &before.body).await;
    assert_eq!(refused.status, 412);
    let message = format!(
        "Etag provided in if-match header W/\"invalid\" does not match etag {etag} of resource {} in NRP data store.",
        lb1()
    );
    let expected = json!({"error": {"code": "PreconditionFailed", "message": "Precondition failed.", "details": [
        {"code": "PreconditionFailedEtagMismatch", "message": message}]}});
    assert_eq!(refused.body, expected);
    assert_eq!(refused.header("retry-after"), None);
    assert_eq!(client.read(&lb1()).await, before.body, "no effect");
}

/// Recorded: three kinds of 404.
#[tokio::test(start_paused = true)]
async fn missing_resources_have_three_kinds_of_404() {
    let client = client();
    let gateway = Some("gateway");
    let rows: [(String, Value, Option<&str>); 3] = [
        (
            lb1_pool("missing"),
            json!({"code": "NotFound", "message": format!("Resource {} not found.", lb1_pool("missing")), "details": []}),
            None,
        ),
        (
            format!("{GROUP}/providers/Microsoft.Network/loadBalancers/x"),
            json!({"code": "ResourceNotFound", "message":
                "The Resource 'Microsoft.Network/loadBalancers/x' under resource group 'rg' was not found. For more details \
                 please go to https://aka.ms/ARMResourceNotFoundFix"}),
            gateway,
        ),
        (
            "/subscriptions/sub/resourceGroups/y/providers/Microsoft.Network/loadBalancers/x".to_owned(),
            json!({"code": "ResourceGroupNotFound", "message": "Resource group 'y' could not be found."}),
            gateway,
        ),
    ];
    for (path, error, cause) in rows {
        let answer = client.get(&path).await;
        assert_eq!((answer.status, &answer.body), (404, &json!({"error": error})), "{path}");
        assert_eq!(answer.header("x-ms-failure-cause"), cause, "{path}");
    }
}

/// Reported: a write of a load balancer supersedes one of its pool.
#[tokio::test(start_paused = true)]
async fn a_superseded_write_is_answered_as_reported() {
    let client = client();
    let first = client
        .put(&lb1_pool("bap1"), &pool_document("bap1", &["addr1", "addr2"]))
        .await;
    let whole = client.read(&lb1()).await;
    let mut changed = whole.clone();
    changed["tags"] = json!({"owner": "you"});
    let second = client.put(&lb1(), &changed).await;
    assert_eq!((first.status, second.status), (200, 200), "both are accepted");
    let guid = |answer: &super::TestResponse| {
        let url = answer.header("azure-asyncoperation").unwrap().to_owned();
        let path = url.split('?').next().unwrap().to_owned();
        path.rsplit('/').next().unwrap().to_owned()
    };
    let message = format!(
        "Operation PutLoadBalancerBackendAddressPoolOperation ({}) was canceled and superseded by operation \
         PutLoadBalancerOperation ({}).",
        guid(&first),
        guid(&second)
    );
    let expected = json!({"status": "Canceled", "error": {"code": "Canceled", "message": "Operation was canceled.", "details": [
        {"code": "CanceledAndSupersededDueToAnotherOperation", "message": message}]}});
    assert_eq!(client.wait_for_operation(&first).await, expected);
    assert_eq!(client.wait_for_operation(&second).await, json!({"status": "Succeeded"}));
}

/// Recorded: a PUT that changes nothing has succeeded when it is answered, and its operation can be polled.
#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_is_answered_as_recorded() {
    let client = client();
    let before = client.read(&lb1_pool("bap1")).await;
    let written = client.put(&lb1_pool("bap1"), &before).await;
    assert_eq!((written.status, &written.body), (200, &before));
    assert_eq!(
        client.wait_for_operation(&written).await,
        json!({"status": "Succeeded"})
    );
}

/// Recorded: 202 without a body, with both headers.
#[tokio::test(start_paused = true)]
async fn a_delete_is_answered_as_recorded() {
    let client = client();
    client.put(&lb1_pool("spare"), &json!({})).await;
    tokio::time::sleep(super::DELAY).await;
    let deleted = client.delete(&lb1_pool("spare")).await;
    assert_eq!((deleted.status, &deleted.body), (202, &Value::Null));
    assert_eq!(client.state(&lb1_pool("spare")).await, "Deleting");
    for path in [lb1(), lb1_pool("bap1")] {
        let state = client.state(&path).await;
        assert_eq!(state, "Updating", "{path}");
    }
    let location = deleted.header("location").unwrap().to_owned();
    assert!(location.contains("/operationResults/"), "{location}");
    assert_eq!(client.get(&location).await.status, 202);
    assert_eq!(
        client.wait_for_operation(&deleted).await,
        json!({"status": "Succeeded"})
    );
    assert_eq!(client.get(&location).await.status, 204);
    assert_eq!(client.get(&lb1_pool("spare")).await.status, 404);
    assert_eq!(client.delete(&lb1_pool("spare")).await.status, 204);
}

/// Reported: the members of a NIC-based pool, and the error for a write that changes them.
#[tokio::test(start_paused = true)]
async fn a_nic_based_pool_is_shown_as_reported() {
    let client = super::nic_pools::client();
    let id = lb1_pool("nics");
    let shown = client.read(&id).await;
    let configuration =
        format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/webNic2/ipConfigurations/ipconfig1");
    assert_eq!(
        shown["properties"]["loadBalancerBackendAddresses"][1],
        json!({
            "name": "rg_webNic2ipconfig1", "id": format!("{id}/loadBalancerBackendAddresses/rg_webNic2ipconfig1"), "etag": shown["etag"],
            "properties": {"provisioningState": "Succeeded", "networkInterfaceIPConfiguration": {"id": configuration}},
            "type": "Microsoft.Network/loadBalancers/backendAddressPools/loadBalancerBackendAddresses",
        })
    );
    let refused = client.put(&id, &json!({"name": "nics", "properties": {}})).await;
    let message = format!(
        "Operation on backend pool {id} not allowed since it adds/modifies/deletes backend address pool members that are \
         specified with a network interface IP configuration."
    );
    let expected = json!({"error": {"code": "ModificationOfNICIpConfigBackendPoolNotSupported", "message": message, "details": []}});
    assert_eq!((refused.status, refused.body), (400, expected));
}
