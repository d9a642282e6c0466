//! Deviations, which the control API turns on.

use serde_json::{Value, json};

use super::{Client, DELAY, GROUP, admin_states, lb1, lb1_pool, load_balancer, pool_document};

#[tokio::test(start_paused = true)]
async fn each_deviation_turns_an_assumption_false() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &["node"]), ("b", &["node"])])]);
    let (a, b) = (lb1_pool("a"), lb1_pool("b"));
    let set = |deviations: &[&str]| client.control("PUT", "settings", &json!({"deviations": deviations}));
    assert_eq!(set(&["unknown"]).status, 400);
    let mut down = pool_document("a", &["node"]);
    down["properties"]["loadBalancerBackendAddresses"][0]["properties"]["adminState"] = "Down".into();

    assert_eq!(client.put_if_match(&a, "\"stale\"", &down).await.status, 412);
    set(&[
        "ifMatchIgnored",
        "poolsStaySucceeded",
        "loadBalancersStaySucceeded",
        "poolsHaveOwnEtags",
    ]);
    let etags = [client.get(&a).await, client.get(&b).await].map(|pool| pool.body["etag"].clone());
    let probe = format!("{}/probes/healthz", lb1());
    let (read, whole) = (client.get(&probe).await, client.get(&lb1()).await);
    assert_eq!(read.body["etag"], whole.body["etag"], "they are about pools alone");
    assert_eq!(client.put_if_match(&probe, "\"stale\"", &read.body).await.status, 412);
    let written = client.put_if_match(&a, "\"stale\"", &down).await;
    assert_eq!(written.status, 200);
    let during = [client.get(&a).await, client.get(&b).await];
    for pool in &during {
        assert_eq!(pool.body["properties"]["provisioningState"], "Succeeded");
        assert_eq!(pool.header("etag"), pool.body["etag"].as_str());
    }
    let shown = async || client.state(&lb1()).await;
    assert_eq!(shown().await, "Succeeded");
    set(&["poolsStaySucceeded", "poolsHaveOwnEtags"]);
    assert_eq!(shown().await, "Updating");
    assert_ne!(during[0].body["etag"], etags[0]);
    assert_eq!(during[1].body["etag"], etags[1]);

    set(&["secondWriteRefused"]);
    let refused = client.put(&b, &pool_document("b", &["node", "other"])).await;
    assert_eq!((refused.status, refused.code()), (409, "AnotherOperationInProgress"));
    let mut other_probe = read.body;
    other_probe["properties"]["port"] = 80.into();
    assert_eq!(client.put(&probe, &other_probe).await.status, 200, "no pool");
    tokio::time::sleep(DELAY).await;
    let alone = client.put(&b, &pool_document("b", &["node", "third"])).await;
    assert_eq!(alone.status, 200, "no operation is in progress");
    client.wait_for_operation(&alone).await;

    set(&["loadBalancersHideAdminStates"]);
    let list = client
        .read(&format!("{GROUP}/providers/Microsoft.Network/loadBalancers"))
        .await;
    for whole in [client.read(&lb1()).await, list["value"][0].clone()] {
        let shown = &whole["properties"]["backendAddressPools"][0];
        assert_eq!(admin_states(shown), [("node".to_owned(), None)]);
    }
    let down_in_pool = [("node".to_owned(), Some("Down".to_owned()))];
    assert_eq!(admin_states(&client.read(&a).await), down_in_pool);

    set(&["supersededChangesLost"]);
    client.put(&a, &pool_document("a", &["node", "added"])).await;
    client.put_to_end(&b, &pool_document("b", &["node", "other"])).await;
    let state = |name: &str, state: Option<&str>| (name.to_owned(), state.map(str::to_owned));
    assert_eq!(admin_states(&client.read(&a).await), [state("node", Some("Down"))]);
    assert_eq!(
        admin_states(&client.read(&b).await),
        [state("node", None), state("other", None)]
    );
}

#[tokio::test(start_paused = true)]
async fn deviations_are_about_load_balancers_alone() {
    let gateway = format!("{GROUP}/providers/Microsoft.Network/applicationGateways/gateway");
    let document = json!({"id": gateway, "location": "eastus", "properties": {"backendAddressPools": [{"name": "a"}]}});
    let client = Client::new(&[document]);
    let shown = async || {
        let state = client.control("GET", "state", &Value::Null).body;
        (client.read(&gateway).await, state["resources"].clone())
    };
    let before = shown().await;
    let deviations = json!({"deviations": ["poolsStaySucceeded", "loadBalancersStaySucceeded", "poolsHaveOwnEtags"]});
    client.control("PUT", "settings", &deviations);
    assert_eq!(shown().await, before);
}

#[tokio::test(start_paused = true)]
async fn reads_lag_writes_and_etags_are_checked_against_what_is_there() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &["node"])])]);
    let a = lb1_pool("a");
    client.control("PUT", "settings", &json!({"readLag": "2s", "operationDelay": "1s"}));
    let names = async || {
        let states = admin_states(&client.read(&a).await);
        states.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let old = client.get(&a).await;
    let written = client.put(&a, &pool_document("a", &["node", "added"])).await;
    assert_eq!(admin_states(&written.body).len(), 2, "the answer to a write shows it");
    let begun = client.get(&a).await;
    assert_eq!(
        (names().await, begun.header("etag")),
        (vec!["node".to_owned()], old.header("etag"))
    );
    let etag = old.header("etag").unwrap();
    let stale = client.put_if_match(&a, etag, &pool_document("a", &[])).await;
    assert_eq!(stale.status, 412);
    // The operation ended after 1 s, and reads show each state 2 s later, whenever they come.
    let shown = async || client.state(&a).await;
    for (wait, state, members) in [(1900, "Succeeded", 1), (200, "Updating", 2), (1000, "Succeeded", 2)] {
        tokio::time::sleep(std::time::Duration::from_millis(wait)).await;
        let found = (shown().await, names().await.len());
        assert_eq!(found, (json!(state), members), "after {wait} ms");
    }
}
