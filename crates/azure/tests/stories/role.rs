//! The Azure role of the manifests covers the client's requests: the role has the action of every request of every test
//! here, and no other action except those that its README documents as requests of other resources.

use std::collections::BTreeSet;
use std::path::Path;

use headgate_azure::NetworkInterfaceId;
use serde_json::{Value, json};

use super::{NO_POOLS, TestBed, edited, group, load_balancer, permit, soon};

/// The action that ARM requires for a request; `None` for one outside of every subscription, such as a token request.
fn action(method: &str, path: &str) -> Option<String> {
    let path = path.split('?').next()?;
    if !path.to_lowercase().starts_with("/subscriptions/") {
        return None;
    }
    // A path without a provider becomes an action that no role has.
    let resource = path.rsplit_once("/providers/").map_or(path, |(_, resource)| resource);
    let parts: Vec<&str> = resource.split('/').collect();
    // After the provider, types and names alternate.
    let mut action = vec![parts[0]];
    action.extend(parts[1..].iter().step_by(2));
    action.push(match method {
        "GET" | "HEAD" => "read",
        "PUT" | "PATCH" => "write",
        "DELETE" => "delete",
        // The last type is the action's name.
        "POST" => "action",
        other => panic!("{other}"),
    });
    Some(action.join("/"))
}

#[test]
fn actions_have_azures_names() {
    let network = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network";
    let operation = "/subscriptions/s/providers/Microsoft.Network/locations/eastus/operations/1?t=2";
    let pools = "loadBalancers/b/backendAddressPools/p";
    let join = "virtualNetworks/n/joinLoadBalancer";
    let of_operation = action("GET", operation).unwrap();
    assert_eq!(of_operation, "Microsoft.Network/locations/operations/read");
    for (method, path, expected) in [
        ("GET", "loadBalancers", "loadBalancers/read"),
        ("GET", "loadBalancers/b?api-version=1", "loadBalancers/read"),
        ("PUT", "loadBalancers/b", "loadBalancers/write"),
        ("GET", "loadBalancers/b/probes", "loadBalancers/probes/read"),
        ("PUT", pools, "loadBalancers/backendAddressPools/write"),
        ("DELETE", pools, "loadBalancers/backendAddressPools/delete"),
        ("POST", join, "virtualNetworks/joinLoadBalancer/action"),
    ] {
        let found = action(method, &format!("{network}/{path}"));
        assert_eq!(found, Some(format!("Microsoft.Network/{expected}")));
    }
    assert_eq!(action("POST", "/tenant/oauth2/v2.0/token"), None);
    assert_eq!(action("GET", "/metadata/endpoints"), None);
}

fn text(path: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/azure");
    std::fs::read_to_string(directory.join(path)).unwrap()
}

/// The actions of the role.
fn granted() -> BTreeSet<String> {
    let role: Value = serde_json::from_str(&text("role.json")).unwrap();
    let listed: Vec<String> = serde_json::from_value(role["Actions"].clone()).unwrap();
    let set: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(set.len(), listed.len(), "none twice");
    set
}

/// The rows of the README's table: an action and its evidence.
fn documented() -> Vec<(String, String)> {
    let readme = text("README.md");
    let row = |line: &str| {
        let cells = line.strip_prefix("| `Microsoft.")?.strip_suffix(" |")?;
        let cells: Vec<&str> = cells.split(" | ").collect();
        let [action, _, evidence] = cells[..] else {
            panic!("{line}")
        };
        let action = format!("Microsoft.{}", action.trim_end_matches('`'));
        Some((action, evidence.to_owned()))
    };
    readme.lines().filter_map(row).collect()
}

/// The actions of all requests that headgate itself has sent in this test.
fn requested(bed: &TestBed) -> BTreeSet<String> {
    let ours = |request: &&Value| {
        let agent = request["userAgent"].as_str().unwrap_or_default();
        agent.starts_with("headgate/")
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let journal = bed.control("GET", "journal?limit=1000", &Value::Null);
    let entries = journal["entries"].as_array().unwrap();
    assert!(entries.len() < 1000, "the journal is complete");
    let requests = entries.iter().filter(|entry| entry["kind"] == "request").filter(ours);
    let action = |request: &Value| action(&text(&request["method"]), &text(&request["path"]));
    requests.filter_map(action).collect()
}

/// At the end of every test.
impl Drop for TestBed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (requested, granted) = (requested(self), granted());
            let missing: Vec<_> = requested.difference(&granted).collect();
            assert!(missing.is_empty(), "not in manifests/azure/role.json: {missing:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn role_has_the_actions_of_the_client_and_of_its_readme() {
    let interface = "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/networkInterfaces/nic";
    let nic = json!({"id": interface, "location": "eastus", "properties": {"ipConfigurations": [{"name": "c", "properties": {}}]}});
    let bed = TestBed::new(&[load_balancer("lb", 2), nic]).await;
    let interface = NetworkInterfaceId::parse(interface).unwrap();
    let machine = bed.arm.get_interface_virtual_machine(&interface, soon()).await;
    assert_eq!(machine.unwrap(), None);
    let (group, mut machines) = (group(), Vec::new());
    let listed = bed.arm.list_interface_virtual_machines(&group, soon(), &mut machines);
    listed.await.unwrap();
    assert_eq!(machines, []);
    let (found, arm) = (bed.list(&group).await.unwrap(), &bed.arm);
    arm.get_load_balancer(&found[0].id, |_| (), soon()).await.unwrap();
    let parts = arm.get_load_balancer_in_parts(&found[0].id, &NO_POOLS, |_| (), soon());
    parts.await.unwrap();
    let scope = group.path();
    let permissions = arm.list_permissions(&group, &scope, soon()).await.unwrap();
    assert!(permissions[0].contains("Microsoft.Network/loadBalancers/read"));
    let denied = arm.list_deny_assignments(&group, &scope, soon()).await.unwrap();
    assert_eq!(denied, []);
    let pool = edited(&bed).await;
    bed.write(&pool, permit(), soon()).await.unwrap();

    let rows = documented();
    let all: BTreeSet<String> = rows.iter().map(|(action, _)| action.clone()).collect();
    assert_eq!((&all, all.len()), (&granted(), rows.len()));
    let by = |word: &str| -> BTreeSet<String> {
        let found = rows.iter().filter(|(_, evidence)| evidence.starts_with(word));
        found.map(|(action, _)| action.clone()).collect()
    };
    assert_eq!(by("sent: "), requested(&bed));
    let linked = ["Microsoft.Network/virtualNetworks/joinLoadBalancer/action".to_owned()];
    // An action on another resource than the request's.
    assert_eq!(by("documented: "), linked.into());
}

#[test]
fn role_definition_grants_nothing_else() {
    let role: Value = serde_json::from_str(&text("role.json")).unwrap();
    let keys: BTreeSet<&str> = role.as_object().unwrap().keys().map(String::as_str).collect();
    let texts = ["AssignableScopes", "Description", "IsCustom", "Name"];
    let actions = ["Actions", "DataActions", "NotActions", "NotDataActions"];
    assert_eq!(keys, texts.into_iter().chain(actions).collect());
    for key in ["NotActions", "DataActions", "NotDataActions"] {
        assert_eq!(role[key], json!([]), "{key}");
    }
    assert_eq!(role["IsCustom"], true);
    assert!(granted().iter().all(|action| !action.contains('*')));
}
