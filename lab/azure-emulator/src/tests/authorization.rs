//! Permissions and deny assignments at scopes.

use headgate_core::clock::Clock;
use serde_json::{Value, json};

use super::{Client, Emulator, GROUP, Settings};

const READ: &str = "Microsoft.Network/loadBalancers/read";

fn client(authorization: &Value) -> Client {
    let network = "/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/virtualNetworks/nodes";
    let mut seed = json!({"resources": [{"id": GROUP}, {"id": network, "location": "eastus", "properties": {}}]});
    if !authorization.is_null() {
        seed["authorization"] = authorization.clone();
    }
    let seed = serde_json::from_value(seed).unwrap();
    let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
    let emulator = Emulator::new(Settings::default(), seed, clock, 1).unwrap();
    Client { emulator }
}

async fn list(client: &Client, scope: &str, kind: &str) -> Value {
    let path = format!("{scope}/providers/Microsoft.Authorization/{kind}?api-version=2022-04-01");
    let answer = client.get(&path).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["value"].clone()
}

#[tokio::test(start_paused = true)]
async fn callers_may_do_what_the_seed_says() {
    let network = "/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/virtualNetworks/nodes";
    let all = client(&Value::Null);
    let everything = json!([{"actions": ["*"], "notActions": [], "dataActions": [], "notDataActions": []}]);
    assert_eq!(list(&all, GROUP, "permissions").await, everything);
    assert_eq!(list(&all, network, "permissions").await, everything);
    assert_eq!(list(&all, GROUP, "denyAssignments").await, json!([]));
    let denied = json!({"id": format!("{GROUP}/providers/Microsoft.Authorization/denyAssignments/1"), "name": "1",
        "type": "Microsoft.Authorization/denyAssignments", "properties": {"denyAssignmentName": "locked", "scope": GROUP}});
    let some = client(&json!({
        "permissions": [{"scope": GROUP.to_uppercase(), "actions": [READ], "notActions": []}],
        "denyAssignments": [denied.clone()]}));
    let read = json!([{"actions": [READ], "notActions": []}]);
    assert_eq!(list(&some, GROUP, "permissions").await, read);
    assert_eq!(list(&some, network, "permissions").await, json!([]));
    assert_eq!(list(&some, GROUP, "denyAssignments").await, json!([denied]));
    assert_eq!(list(&some, network, "denyAssignments").await, json!([]));
    // What is denied above a scope and below it is in its list.
    let below = format!("{GROUP}/providers/Microsoft.Network/loadBalancers/lb");
    assert_eq!(list(&some, &below, "denyAssignments").await[0]["name"], "1");
    let at_network = client(&json!({"denyAssignments": [{"name": "2", "properties": {"scope": network}}]}));
    let other = "/subscriptions/sub/resourceGroups/other";
    assert_eq!(list(&at_network, other, "denyAssignments").await[0]["name"], "2");
    // A group whose name begins with that of the scope is not below it, and a list of another provider is none of these.
    let longer = format!("{GROUP}2");
    some.put(&longer, &json!({"location": "eastus"})).await;
    assert_eq!(list(&some, &longer, "permissions").await, json!([]));
    let of_another = some
        .get(&format!("{network}/providers/Contoso.Widgets/permissions"))
        .await;
    assert_eq!(of_another.status, 404);
}
