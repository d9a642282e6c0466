//! NIC-based pools, whose members come from the interfaces.

use serde_json::{Value, json};

use super::{Client, GROUP, addresses, admin_states, lb1, lb1_pool, load_balancer};

/// The code of the answer to a write that would change who is in a pool.
const REFUSAL: &str = "ModificationOfNICIpConfigBackendPoolNotSupported";

/// A network interface that is in these pools.
fn interface(id: &str, pools: &[String]) -> Value {
    let pools: Vec<Value> = pools.iter().map(|id| json!({"id": id})).collect();
    json!({"id": id, "location": "eastus", "properties": {"ipConfigurations": [
        {"name": "ipconfig1", "properties": {"privateIPAddress": "10.0.0.9", "loadBalancerBackendAddressPools": pools}}]}})
}

fn alone(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/{name}")
}

fn in_scale_set(instance: u8) -> String {
    format!(
        "{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/vmss/virtualMachines/{instance}/networkInterfaces/nic"
    )
}

/// The pool as it is, with this admin state of each member.
async fn with_states(client: &Client, path: &str, state: &str) -> Value {
    let mut sent = client.read(path).await;
    for address in addresses(&mut sent) {
        address["properties"]["adminState"] = state.into();
    }
    sent
}

/// A load balancer whose pool `nics` has an interface of a scale set and one of a single machine.
pub(super) fn client() -> Client {
    let nics = [lb1_pool("NICS")];
    Client::new(&[
        load_balancer("lb1", &[("ips", &["node"]), ("nics", &[])]),
        interface(&in_scale_set(0), &nics),
        interface(&alone("webNic2"), &nics),
        interface(&alone("other"), &[]),
    ])
}

#[tokio::test(start_paused = true)]
async fn admin_state_can_be_set_by_name_and_stays_with_the_member() {
    let client = client();
    let path = lb1_pool("nics");
    let before = client.read(&path).await;
    let names: Vec<String> = admin_states(&before).into_iter().map(|(name, _)| name).collect();
    let is_guid = names[0].parse::<uuid::Uuid>().is_ok();
    assert!(is_guid, "a scale set's member has a GUID: {names:?}");
    assert_eq!(names[1], "rg_webNic2ipconfig1");

    // As Microsoft's Python client sends it: without the fields that are read-only in its model.
    let mut sent = before.clone();
    let properties = sent["properties"].as_object_mut().unwrap();
    properties.remove("backendIPConfigurations");
    for address in addresses(&mut sent) {
        address["properties"] = json!({"provisioningState": "Succeeded"});
    }
    addresses(&mut sent)[0]["properties"]["adminState"] = "Down".into();
    let written = client.put(&path, &sent).await;
    assert_eq!(written.status, 200, "{}", written.body);
    client.wait_for_operation(&written).await;
    let after = client.read(&path).await;
    let down = Some("Down".to_owned());
    let expected = [(names[0].clone(), down.clone()), (names[1].clone(), None)];
    assert_eq!(admin_states(&after), expected);
    let [before, after] = [before, after].map(|pool| pool["properties"]["backendIPConfigurations"].clone());
    assert_eq!(after, before);

    // The load balancer's document may leave out the members; their admin states are then lost.
    let whole = client.read(&lb1()).await;
    let written = client.put(&lb1(), &whole).await;
    assert_eq!(written.status, 200);
    client.wait_for_operation(&written).await;
    assert_eq!(admin_states(&client.read(&path).await)[0].1, down);
    let mut bare = whole.clone();
    bare["properties"]["backendAddressPools"][1]["properties"] = json!({});
    let written = client.put(&lb1(), &bare).await;
    assert_eq!(written.status, 200, "{}", written.body);
    client.wait_for_operation(&written).await;
    assert_eq!(admin_states(&client.read(&path).await)[0].1, None);
}

#[tokio::test(start_paused = true)]
async fn tags_are_patched_with_any_kind_of_pool() {
    let client = client();
    let states = async || admin_states(&client.read(&lb1_pool("nics")).await);
    let mut sent = client.read(&lb1_pool("nics")).await;
    addresses(&mut sent)[1]["properties"]["adminState"] = "Down".into();
    for patch in [json!({"tags": {"a": "1"}}), json!({"tags": {"a": null, "b": "2"}})] {
        let patched = client.send("PATCH", &lb1(), &[], patch.to_string().as_bytes()).await;
        assert_eq!(patched.status, 200, "{}", patched.body);
        client.put_to_end(&lb1_pool("nics"), &sent).await;
    }
    assert_eq!(client.read(&lb1()).await["tags"], json!({"owner": "me", "b": "2"}));
    assert_eq!(states().await[1].1.as_deref(), Some("Down"));
    let refused = client.send("PATCH", &lb1(), &[], b"{\"tags\": 1}").await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidRequestFormat"));
}

#[tokio::test(start_paused = true)]
async fn no_pool_write_changes_the_members() {
    let client = client();
    let path = lb1_pool("nics");
    let before = client.read(&path).await;
    let members = addresses(&mut before.clone()).clone();
    let with = |addresses: Value| json!({"name": "nics", "properties": {"loadBalancerBackendAddresses": addresses}});
    let plus = |properties: Value| {
        let more = json!({"name": "x", "properties": properties});
        with(json!([&members[..], &[more]].concat()))
    };
    for sent in [
        with(json!([members[0]])),
        plus(json!({"networkInterfaceIPConfiguration": {"id": alone("other")}})),
        plus(json!({"ipAddress": "10.0.0.1"})),
        with(json!([])),
        with(Value::Null),
    ] {
        let refused = client.put(&path, &sent).await;
        assert_eq!((refused.status, refused.code()), (400, REFUSAL), "{sent}");
    }
    let sent = json!({"properties": {"loadBalancerBackendAddresses": [members[0]]}});
    let refused = client.put(&lb1_pool("ips"), &sent).await;
    assert_eq!(refused.code(), REFUSAL, "into an IP-based pool");
    assert_eq!(client.read(&path).await, before);
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_loses_one_of_two_configurations_keeps_the_admin_state_of_the_other() {
    let path = lb1_pool("nics");
    let in_pool = |names: &[&str]| {
        let configurations = names
            .iter()
            .map(|name| json!({"name": name, "properties": {"loadBalancerBackendAddressPools": [{"id": path}]}}));
        json!({"id": alone("nic"), "location": "eastus", "properties": {"ipConfigurations": configurations.collect::<Vec<_>>()}})
    };
    let client = Client::new(&[load_balancer("lb1", &[("nics", &[])]), in_pool(&["one", "two"])]);
    client
        .put_to_end(&path, &with_states(&client, &path, "Down").await)
        .await;
    client.put_to_end(&alone("nic"), &in_pool(&["two"])).await;
    let left = admin_states(&client.read(&path).await);
    assert_eq!(left, [("rg_nictwo".to_owned(), Some("Down".to_owned()))]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_a_scale_set_fills_takes_no_addresses() {
    let client = client();
    let put = async |pool: &str, addresses: &Value| {
        let sent = json!({"properties": {"syncMode": "automatic", "loadBalancerBackendAddresses": addresses}});
        client.put(&lb1_pool(pool), &sent).await.status
    };
    let members = client.read(&lb1_pool("nics")).await["properties"]["loadBalancerBackendAddresses"].clone();
    assert_eq!(put("ips", &json!([])).await, 200);
    let one = json!([{"name": "node", "properties": {"ipAddress": "10.0.0.1"}}]);
    assert_eq!(put("ips", &one).await, 400);
    assert_eq!(put("nics", &members).await, 200, "its members stay");
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_with_their_interfaces() {
    let client = client();
    let path = lb1_pool("nics");
    client
        .put_to_end(&path, &with_states(&client, &path, "Down").await)
        .await;
    let down = client.read(&path).await;

    let nic = alone("webNic2");
    client.put_to_end(&nic, &interface(&nic, &[])).await;
    let left = client.read(&path).await;
    assert_eq!(admin_states(&left).len(), 1);
    assert_ne!(left["etag"], down["etag"]);
    let in_pool = interface(&nic, std::slice::from_ref(&path));
    client.put_to_end(&nic, &in_pool).await;
    let back = admin_states(&client.read(&path).await).remove(1);
    let expected = ("rg_webNic2ipconfig1".to_owned(), None);
    assert_eq!(back, expected, "it returns without its admin state");

    client.delete_to_end(&in_scale_set(0)).await;
    assert_eq!(admin_states(&client.read(&path).await).len(), 1);
    client.delete_to_end(&nic).await;
    let empty = client.read(&path).await;
    assert_eq!(admin_states(&empty), []);
    assert_eq!(empty["properties"].get("backendIPConfigurations"), None);
}
