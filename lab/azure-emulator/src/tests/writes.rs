//! Writes: documents, preconditions, operations, supersession.

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Client, DELAY, TestResponse, addresses, admin_states, lb_path, lb1, lb1_pool, load_balancer, pool_document,
    pool_path,
};
use crate::{AdminStateNone, Settings};

fn client() -> Client {
    Client::new(&[
        load_balancer("lb1", &[("a", &["n1", "n2"]), ("b", &["n1"])]),
        load_balancer("lb2", &[("a", &["n1"])]),
    ])
}

/// The final status of the operation that a write started.
async fn end(client: &Client, written: &TestResponse) -> Value {
    client.wait_for_operation(written).await["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_put_replaces_the_pool_and_nothing_else() {
    let client = client();
    let before = client.read(&lb1()).await;
    let mut sent = client.read(&lb1_pool("a")).await;
    sent["etag"] = json!("W/\"stale\"");
    sent["properties"]["drainPeriodInSeconds"] = 30.into();
    sent["properties"]["unknown"] = json!({"kept": [1, null]});
    addresses(&mut sent)[1]["unknown"] = json!("too");
    addresses(&mut sent)[1]["properties"]["adminState"] = "DOWN".into();
    let mut written = client.put(&lb1_pool("a"), &sent).await;
    assert_eq!(written.body["properties"]["provisioningState"], "Updating");
    let first = &addresses(&mut written.body)[0];
    assert_eq!(first["properties"]["provisioningState"], "Updating");
    client.wait_for_operation(&written).await;
    let after = client.read(&lb1()).await;
    let shown = &after["properties"]["backendAddressPools"][0]["properties"];
    assert_eq!(shown["drainPeriodInSeconds"], 30);
    assert_eq!(shown["unknown"], json!({"kept": [1, null]}));
    let second = &shown["loadBalancerBackendAddresses"][1];
    assert_eq!(second["unknown"], "too");
    assert_eq!(second["properties"]["adminState"], "Down", "in Azure's spelling");
    // Everything besides the pool is unchanged, except for the etag.
    for part in ["frontendIPConfigurations", "loadBalancingRules", "probes"] {
        let text = |whole: &Value| {
            whole["properties"][part]
                .to_string()
                .replace(&whole["etag"].to_string(), "")
        };
        assert_eq!(text(&before), text(&after));
    }

    let fewer = json!({"properties": {"loadBalancerBackendAddresses": [{"name": "n2"}]}});
    client.put_to_end(&lb1_pool("a"), &fewer).await;
    let after = client.read(&lb1_pool("a")).await;
    assert_eq!(admin_states(&after), [("n2".to_owned(), None)]);
    for field in ["drainPeriodInSeconds", "unknown"] {
        assert_eq!(
            after["properties"].get(field),
            None,
            "fields that are not sent are lost"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_etag_for_the_load_balancer_and_its_children_changes_twice_a_write() {
    let client = client();
    let etags = async || {
        let whole = client.get(&lb1()).await;
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
        assert_eq!(client.get(&lb1_pool("b")).await.header("etag"), etag.as_str());
        etag
    };
    let other = client.read(&lb_path("lb2")).await["etag"].clone();
    let first = etags().await;
    let written = client.put(&lb1_pool("a"), &json!({})).await;
    let accepted = etags().await;
    assert_eq!(written.body["etag"], accepted);
    client.wait_for_operation(&written).await;
    let ended = etags().await;
    assert!(first != accepted && accepted != ended && first != ended);
    let unchanged = &client.read(&lb_path("lb2")).await["etag"];
    assert_eq!(unchanged, &other, "the etag of another load balancer does not change");
}

#[tokio::test(start_paused = true)]
async fn if_match_guards_against_writers_of_other_pools() {
    let client = client();
    let etag = client.get(&lb1_pool("b")).await.header("etag").unwrap().to_owned();
    let written = client.put_if_match(&lb1_pool("a"), &etag, &json!({})).await;
    assert_eq!(written.status, 200);
    let refused = client.put_if_match(&lb1_pool("b"), &etag, &json!({})).await;
    assert_eq!((refused.status, refused.code()), (412, "PreconditionFailed"));
    // A read during the update has a matching etag, and the write supersedes the other one.
    let matching = client.get(&lb1_pool("b")).await.header("etag").unwrap().to_owned();
    let second = client.put_if_match(&lb1_pool("b"), &matching, &json!({})).await;
    assert_eq!(second.status, 200);
    assert_eq!(end(&client, &written).await, "Canceled");
    assert_eq!(end(&client, &second).await, "Succeeded");
    for (path, given, status) in [
        (lb1_pool("new"), "*", 201),
        (lb1_pool("new"), "*", 200),
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
    let before = client.read(&lb1_pool("a")).await;
    let mut sent = before.clone();
    sent["properties"]["provisioningState"] = "Failed".into();
    sent["etag"] = "W/\"stale\"".into();
    addresses(&mut sent)[0]["properties"]["provisioningState"] = "Updating".into();
    let written = client.put(&lb1_pool("a"), &sent).await;
    assert_eq!((written.status, &written.body), (200, &before), "nothing else was sent");
}

#[tokio::test(start_paused = true)]
async fn a_write_stops_a_deletion_that_is_under_way() {
    let client = client();
    for (gone, path, body) in [
        (lb_path("lb2"), lb_path("lb2"), json!({"location": "eastus"})),
        (lb1_pool("b"), lb1_pool("b"), json!({})),
        (lb1(), lb1_pool("a"), json!({})),
    ] {
        let deleted = client.delete(&gone).await;
        let written = client.put(&path, &body).await;
        assert_eq!((deleted.status, written.status), (202, 200), "{path}");
        assert_eq!(end(&client, &deleted).await, "Canceled", "{path}");
        assert_eq!(end(&client, &written).await, "Succeeded", "{path}");
        assert_eq!(client.get(&gone).await.status, 200, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn different_load_balancers_do_not_supersede_each_other() {
    let client = client();
    let first = client.put(&lb1_pool("a"), &json!({})).await;
    let second = client.put(&pool_path("lb2", "a"), &json!({})).await;
    assert_eq!(end(&client, &first).await, "Succeeded");
    assert_eq!(end(&client, &second).await, "Succeeded");
}

#[tokio::test(start_paused = true)]
async fn an_operation_ends_after_its_delay_and_can_be_polled_for_a_day() {
    let client = client();
    let written = client.put(&lb1_pool("a"), &pool_document("a", &["n1"])).await;
    let url = written.header("azure-asyncoperation").unwrap().to_owned();
    assert_eq!(written.header("retry-after"), Some("1"));
    for (state, status, retry_after) in [("Updating", "InProgress", Some("1")), ("Succeeded", "Succeeded", None)] {
        sleep(DELAY / 2).await;
        assert_eq!(client.state(&lb1()).await, state);
        let answer = client.get(&url).await;
        assert_eq!(answer.body["status"], status);
        assert_eq!(answer.header("retry-after"), retry_after);
    }
    sleep(std::time::Duration::from_hours(25)).await;
    assert_eq!(client.get(&url).await.code(), "OperationNotFound");
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
        let mut sent = client.read(&lb1_pool("a")).await;
        for state in ["up", "none"] {
            addresses(&mut sent)[0]["properties"]["adminState"] = state.into();
            client.put_to_end(&lb1_pool("a"), &sent).await;
        }
        let states = admin_states(&client.read(&lb1_pool("a")).await);
        assert_eq!(states, [("n1".to_owned(), expected), ("n2".to_owned(), None)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_of_five_thousand_loses_nothing() {
    let client = client();
    let entries: Vec<Value> = (0..5000)
        .map(|number| {
            json!({"name": format!("node-{number}"), "unknown": number, "properties": {
                "ipAddress": format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256),
                "adminState": if number % 2 == 0 { "Up" } else { "Down" }, "subnet": {"id": "s"}, "later": {"deep": [number, {"x": null}]}}})
        })
        .collect();
    let sent = json!({"name": "a", "unknown": true, "properties": {
        "loadBalancerBackendAddresses": entries, "virtualNetwork": {"id": "v", "unknown": 1}, "syncMode": "Manual", "later": [[]]}});
    client.put_to_end(&lb1_pool("a"), &sent).await;
    let read = client.read(&lb1_pool("a")).await;
    // What was read is written back, as Microsoft's clients do, and read again.
    client.put_to_end(&lb1_pool("a"), &read).await;
    let again = client.read(&lb1_pool("a")).await;
    assert_eq!(again, read, "a write that changes nothing");
    let mut bare = read.clone();
    for field in ["id", "etag", "type"] {
        bare.as_object_mut().unwrap().remove(field);
        for address in addresses(&mut bare) {
            address.as_object_mut().unwrap().remove(field);
            let properties = address["properties"].as_object_mut().unwrap();
            properties.remove("provisioningState");
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
    let inside = |kind: &str, name: &str| json!({"id": format!("{}/{kind}/{name}", lb1())});
    with_outbound["properties"]["outboundRules"] = json!([{"name": "out", "properties": {"protocol": "All",
        "frontendIPConfigurations": [inside("frontendIPConfigurations", "frontend")],
        "backendAddressPool": inside("backendAddressPools", "b")}}]);
    let client = Client::new(&[with_outbound]);
    let refused = client.delete(&lb1_pool("b")).await;
    assert_eq!(refused.code(), "InUseResourceCannotBeDeleted");

    // As when a Service with several load balancers becomes one: first the pool, then the rule in the load balancer.
    let deleted = client.delete(&lb1_pool("A")).await;
    assert_eq!(deleted.status, 202, "{}", deleted.body);
    assert_eq!(end(&client, &deleted).await, "Succeeded");
    assert_eq!(client.get(&lb1_pool("a")).await.status, 404);
    let read = client.get(&lb1()).await;
    let mut sent = read.body.clone();
    let rule = &mut sent["properties"]["loadBalancingRules"][0]["properties"];
    assert!(rule.get("backendAddressPool").is_none(), "{rule}");
    assert!(rule["probe"]["id"].is_string(), "{rule}");
    let other = client.put(&lb1_pool("b"), &pool_document("b", &["n1", "n2"])).await;
    assert_eq!(other.status, 200, "{}", other.body);
    client.wait_for_operation(&other).await;
    let etag = client.read(&lb1()).await["etag"].as_str().unwrap().to_owned();
    rule["backendAddressPool"] = inside("backendAddressPools", "b");
    let written = client.put_if_match(&lb1(), &etag, &sent).await;
    assert_eq!(written.status, 200, "{}", written.body);
}
