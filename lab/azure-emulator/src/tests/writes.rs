//! Writes: documents, preconditions, operations, supersession.

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Client, DELAY, admin_states, lb_path, load_balancer, pool_document, pool_path};
use crate::{AdminStateNone, Settings};

fn client() -> Client {
    Client::new(&[
        load_balancer("lb1", &[("a", &["n1", "n2"]), ("b", &["n1"])]),
        load_balancer("lb2", &[("a", &["n1"])]),
    ])
}

#[tokio::test(start_paused = true)]
async fn a_put_replaces_the_pool_and_nothing_else() {
    let client = client();
    let before = client.get(&lb_path("lb1")).await.body;
    let mut sent = client.get(&pool_path("lb1", "a")).await.body;
    sent["etag"] = json!("W/\"stale\"");
    sent["properties"]["drainPeriodInSeconds"] = 30.into();
    sent["properties"]["unknown"] = json!({"kept": [1, null]});
    sent["properties"]["loadBalancerBackendAddresses"][1]["unknown"] = json!("too");
    sent["properties"]["loadBalancerBackendAddresses"][1]["properties"]["adminState"] = "DOWN".into();
    let written = client.put(&pool_path("lb1", "a"), &sent).await;
    assert_eq!(written.body["properties"]["provisioningState"], "Updating");
    assert_eq!(
        written.body["properties"]["loadBalancerBackendAddresses"][0]["properties"]["provisioningState"],
        "Updating"
    );
    client.wait_for_operation(&written).await;
    let after = client.get(&lb_path("lb1")).await.body;
    let shown = &after["properties"]["backendAddressPools"][0]["properties"];
    assert_eq!(shown["drainPeriodInSeconds"], 30);
    assert_eq!(shown["unknown"], json!({"kept": [1, null]}));
    assert_eq!(shown["loadBalancerBackendAddresses"][1]["unknown"], "too");
    assert_eq!(
        shown["loadBalancerBackendAddresses"][1]["properties"]["adminState"], "Down",
        "in Azure's spelling"
    );
    // Everything besides the pool is unchanged, except for the etag.
    let text = |value: &Value, etag: &Value| value.to_string().replace(&etag.to_string(), "");
    for part in ["frontendIPConfigurations", "loadBalancingRules", "probes"] {
        assert_eq!(
            text(&before["properties"][part], &before["etag"]),
            text(&after["properties"][part], &after["etag"])
        );
    }

    let written = client
        .put(
            &pool_path("lb1", "a"),
            &json!({"properties": {"loadBalancerBackendAddresses": [{"name": "n2"}]}}),
        )
        .await;
    client.wait_for_operation(&written).await;
    let after = client.get(&pool_path("lb1", "a")).await.body;
    assert_eq!(admin_states(&after), [("n2".to_owned(), None)]);
    assert_eq!(
        (
            after["properties"].get("drainPeriodInSeconds"),
            after["properties"].get("unknown")
        ),
        (None, None),
        "fields that are not sent are lost"
    );
}

#[tokio::test(start_paused = true)]
async fn one_etag_for_the_load_balancer_and_its_children_changes_twice_a_write() {
    let client = client();
    let etags = async || {
        let whole = client.get(&lb_path("lb1")).await;
        let body = &whole.body;
        let etag = body["etag"].clone();
        assert_eq!(whole.header("etag"), etag.as_str());
        for child in [
            "/properties/backendAddressPools/0/etag",
            "/properties/backendAddressPools/1/etag",
            "/properties/backendAddressPools/1/properties/loadBalancerBackendAddresses/0/etag",
            "/properties/frontendIPConfigurations/0/etag",
            "/properties/probes/0/etag",
        ] {
            assert_eq!(body.pointer(child), Some(&etag), "{child}");
        }
        assert_eq!(client.get(&pool_path("lb1", "b")).await.header("etag"), etag.as_str());
        etag
    };
    let other = client.get(&lb_path("lb2")).await.body["etag"].clone();
    let first = etags().await;
    let written = client.put(&pool_path("lb1", "a"), &json!({})).await;
    let accepted = etags().await;
    assert_eq!(written.body["etag"], accepted);
    client.wait_for_operation(&written).await;
    let ended = etags().await;
    assert!(first != accepted && accepted != ended && first != ended);
    assert_eq!(
        client.get(&lb_path("lb2")).await.body["etag"],
        other,
        "the etag of another load balancer does not change"
    );
}

#[tokio::test(start_paused = true)]
async fn if_match_guards_against_writers_of_other_pools() {
    let client = client();
    let etag = client
        .get(&pool_path("lb1", "b"))
        .await
        .header("etag")
        .unwrap()
        .to_owned();
    let written = client.put_if_match(&pool_path("lb1", "a"), &etag, &json!({})).await;
    assert_eq!(written.status, 200);
    let refused = client.put_if_match(&pool_path("lb1", "b"), &etag, &json!({})).await;
    assert_eq!((refused.status, refused.code()), (412, "PreconditionFailed"));
    // A read during the update has a matching etag, and the write supersedes the other one.
    let matching = client
        .get(&pool_path("lb1", "b"))
        .await
        .header("etag")
        .unwrap()
        .to_owned();
    let second = client.put_if_match(&pool_path("lb1", "b"), &matching, &json!({})).await;
    assert_eq!(second.status, 200);
    assert_eq!(client.wait_for_operation(&written).await["status"], "Canceled");
    assert_eq!(client.wait_for_operation(&second).await["status"], "Succeeded");
    for (path, given, status) in [
        (pool_path("lb1", "new"), "*", 201),
        (pool_path("lb1", "new"), "*", 200),
        (lb_path("none"), "*", 412),
        (lb_path("none"), "W/\"x\"", 412),
    ] {
        let answer = client.put_if_match(&path, given, &json!({"location": "eastus"})).await;
        assert_eq!(answer.status, status, "{path} {given}");
    }
}

#[tokio::test(start_paused = true)]
async fn operation_urls_contain_the_location_of_the_resource() {
    let client = client();
    for (name, location) in [("new", "West Europe"), ("lb1", "eastus")] {
        let written = client.put(&lb_path(name), &json!({"location": location})).await;
        let url = written.header("azure-asyncoperation").unwrap();
        let place = location.replace(' ', "").to_lowercase();
        assert!(url.contains(&format!("/locations/{place}/operations/")), "{url}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_provisioning_state_in_a_put_is_ignored() {
    let client = client();
    let before = client.get(&pool_path("lb1", "a")).await.body;
    let mut sent = before.clone();
    sent["properties"]["provisioningState"] = "Failed".into();
    sent["etag"] = "W/\"stale\"".into();
    sent["properties"]["loadBalancerBackendAddresses"][0]["properties"]["provisioningState"] = "Updating".into();
    let written = client.put(&pool_path("lb1", "a"), &sent).await;
    assert_eq!((written.status, &written.body), (200, &before), "nothing else was sent");
}

#[tokio::test(start_paused = true)]
async fn a_write_stops_a_deletion_that_is_under_way() {
    let client = client();
    for (gone, path, body) in [
        (lb_path("lb2"), lb_path("lb2"), json!({"location": "eastus"})),
        (pool_path("lb1", "b"), pool_path("lb1", "b"), json!({})),
        (lb_path("lb1"), pool_path("lb1", "a"), json!({})),
    ] {
        let deleted = client.delete(&gone).await;
        let written = client.put(&path, &body).await;
        assert_eq!((deleted.status, written.status), (202, 200), "{path}");
        assert_eq!(
            client.wait_for_operation(&deleted).await["status"],
            "Canceled",
            "{path}"
        );
        assert_eq!(
            client.wait_for_operation(&written).await["status"],
            "Succeeded",
            "{path}"
        );
        assert_eq!(client.get(&gone).await.status, 200, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn different_load_balancers_do_not_supersede_each_other() {
    let client = client();
    let first = client.put(&pool_path("lb1", "a"), &json!({})).await;
    let second = client.put(&pool_path("lb2", "a"), &json!({})).await;
    assert_eq!(client.wait_for_operation(&first).await["status"], "Succeeded");
    assert_eq!(client.wait_for_operation(&second).await["status"], "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn an_operation_ends_after_its_delay_and_can_be_polled_for_a_day() {
    let client = client();
    let written = client.put(&pool_path("lb1", "a"), &pool_document("a", &["n1"])).await;
    let url = written.header("azure-asyncoperation").unwrap().to_owned();
    let status = async || client.get(&url).await;
    sleep(DELAY / 2).await;
    assert_eq!(
        client.get(&lb_path("lb1")).await.body["properties"]["provisioningState"],
        "Updating"
    );
    let answer = status().await;
    assert_eq!(
        (answer.body["status"].as_str(), answer.header("retry-after")),
        (Some("InProgress"), Some("1"))
    );
    sleep(DELAY / 2).await;
    let answer = status().await;
    assert_eq!(
        (answer.body["status"].as_str(), answer.header("retry-after")),
        (Some("Succeeded"), None)
    );
    assert_eq!(
        client.get(&lb_path("lb1")).await.body["properties"]["provisioningState"],
        "Succeeded"
    );
    sleep(std::time::Duration::from_hours(25)).await;
    assert_eq!(status().await.code(), "OperationNotFound");
}

#[tokio::test(start_paused = true)]
async fn admin_state_none_is_omitted_or_shown_by_setting() {
    for (shown, expected) in [
        (AdminStateNone::Omitted, None),
        (AdminStateNone::Shown, Some("None".to_owned())),
    ] {
        let settings = Settings {
            operation_delay: DELAY,
            admin_state_none: shown,
            ..Settings::default()
        };
        let client = Client::with(&[load_balancer("lb1", &[("a", &["n1", "n2"])])], settings);
        let mut sent = client.get(&pool_path("lb1", "a")).await.body;
        for state in ["up", "none"] {
            sent["properties"]["loadBalancerBackendAddresses"][0]["properties"]["adminState"] = state.into();
            client
                .wait_for_operation(&client.put(&pool_path("lb1", "a"), &sent).await)
                .await;
        }
        let states = admin_states(&client.get(&pool_path("lb1", "a")).await.body);
        assert_eq!(states, [("n1".to_owned(), expected), ("n2".to_owned(), None)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_five_thousand_loses_nothing() {
    let client = client();
    let addresses: Vec<Value> = (0..5000)
        .map(|number| {
            json!({"name": format!("node-{number}"), "unknown": number, "properties": {
                "ipAddress": format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256),
                "adminState": if number % 2 == 0 { "Up" } else { "Down" }, "subnet": {"id": "s"}, "later": {"deep": [number, {"x": null}]}}})
        })
        .collect();
    let sent = json!({"name": "a", "unknown": true, "properties": {
        "loadBalancerBackendAddresses": addresses, "virtualNetwork": {"id": "v", "unknown": 1}, "syncMode": "Manual", "later": [[]]}});
    client
        .wait_for_operation(&client.put(&pool_path("lb1", "a"), &sent).await)
        .await;
    let read = client.get(&pool_path("lb1", "a")).await.body;
    // What was read is written back, as Microsoft's clients do, and read again.
    client
        .wait_for_operation(&client.put(&pool_path("lb1", "a"), &read).await)
        .await;
    let again = client.get(&pool_path("lb1", "a")).await.body;
    assert_eq!(again, read, "a write that changes nothing");
    let mut bare = read.clone();
    for field in ["id", "etag", "type"] {
        bare.as_object_mut().unwrap().remove(field);
        for address in bare["properties"]["loadBalancerBackendAddresses"]
            .as_array_mut()
            .unwrap()
        {
            address.as_object_mut().unwrap().remove(field);
            address["properties"]
                .as_object_mut()
                .unwrap()
                .remove("provisioningState");
        }
    }
    for field in ["provisioningState", "loadBalancingRules"] {
        bare["properties"].as_object_mut().unwrap().remove(field);
    }
    assert!(bare == sent, "something was lost or added");
}

#[tokio::test(start_paused = true)]
async fn a_pool_can_be_deleted_before_its_rules_but_not_before_outbound_rules() {
    let mut with_outbound = load_balancer("lb1", &[("a", &["n1"]), ("b", &["n1"])]);
    let inside = |kind: &str, name: &str| json!({"id": format!("{}/{kind}/{name}", lb_path("lb1"))});
    with_outbound["properties"]["outboundRules"] = json!([{"name": "out", "properties": {"protocol": "All",
        "frontendIPConfigurations": [inside("frontendIPConfigurations", "frontend")],
        "backendAddressPool": inside("backendAddressPools", "b")}}]);
    let client = Client::new(&[with_outbound]);
    assert_eq!(
        client.delete(&pool_path("lb1", "b")).await.code(),
        "InUseResourceCannotBeDeleted"
    );

    // As when a Service with several load balancers becomes one: first the pool, then the rule in the load balancer.
    let deleted = client.delete(&pool_path("lb1", "A")).await;
    assert_eq!(deleted.status, 202, "{}", deleted.body);
    assert_eq!(client.wait_for_operation(&deleted).await["status"], "Succeeded");
    assert_eq!(client.get(&pool_path("lb1", "a")).await.status, 404);
    let read = client.get(&lb_path("lb1")).await;
    let mut sent = read.body.clone();
    let rule = &mut sent["properties"]["loadBalancingRules"][0]["properties"];
    assert!(rule.get("backendAddressPool").is_none(), "{rule}");
    assert!(rule["probe"]["id"].is_string(), "{rule}");
    let other = client
        .put(&pool_path("lb1", "b"), &pool_document("b", &["n1", "n2"]))
        .await;
    assert_eq!(other.status, 200, "{}", other.body);
    client.wait_for_operation(&other).await;
    let etag = client.get(&lb_path("lb1")).await.body["etag"]
        .as_str()
        .unwrap()
        .to_owned();
    rule["backendAddressPool"] = inside("backendAddressPools", "b");
    let written = client.put_if_match(&lb_path("lb1"), &etag, &sent).await;
    assert_eq!(written.status, 200, "{}", written.body);
}
