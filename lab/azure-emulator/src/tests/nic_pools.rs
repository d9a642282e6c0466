//! NIC-based pools, whose members come from the interfaces.

use serde_json::{Value, json};

use super::{Client, GROUP, admin_states, lb_path, load_balancer, pool_path};

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

/// A load balancer whose pool `nics` has an interface of a scale set and one of a single machine.
pub(super) fn client() -> Client {
    let nics = [pool_path("lb1", "NICS")];
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
    let path = pool_path("lb1", "nics");
    let before = client.get(&path).await.body;
    let names: Vec<String> = admin_states(&before).into_iter().map(|(name, _)| name).collect();
    assert!(
        names[0].parse::<uuid::Uuid>().is_ok(),
        "a scale set's member has a GUID: {names:?}"
    );
    assert_eq!(names[1], "rg_webNic2ipconfig1");

    // As Microsoft's Python client sends it: without the fields that are read-only in its model.
    let mut sent = before.clone();
    sent["properties"]
        .as_object_mut()
        .unwrap()
        .remove("backendIPConfigurations");
    for address in sent["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap()
    {
        address["properties"] = json!({"provisioningState": "Succeeded"});
    }
    sent["properties"]["loadBalancerBackendAddresses"][0]["properties"]["adminState"] = "Down".into();
    let written = client.put(&path, &sent).await;
    assert_eq!(written.status, 200, "{}", written.body);
    client.wait_for_operation(&written).await;
    let after = client.get(&path).await.body;
    let down = Some("Down".to_owned());
    assert_eq!(
        admin_states(&after),
        [(names[0].clone(), down.clone()), (names[1].clone(), None)]
    );
    assert_eq!(
        after["properties"]["backendIPConfigurations"],
        before["properties"]["backendIPConfigurations"]
    );

    // The load balancer's document may leave out the members; their admin states are then lost.
    let whole = client.get(&lb_path("lb1")).await.body;
    let written = client.put(&lb_path("lb1"), &whole).await;
    assert_eq!(written.status, 200);
    client.wait_for_operation(&written).await;
    assert_eq!(admin_states(&client.get(&path).await.body)[0].1, down);
    let mut bare = whole.clone();
    bare["properties"]["backendAddressPools"][1]["properties"] = json!({});
    let written = client.put(&lb_path("lb1"), &bare).await;
    assert_eq!(written.status, 200, "{}", written.body);
    client.wait_for_operation(&written).await;
    assert_eq!(admin_states(&client.get(&path).await.body)[0].1, None);
}

#[tokio::test(start_paused = true)]
async fn tags_are_patched_with_any_kind_of_pool() {
    let client = client();
    let states = async || admin_states(&client.get(&pool_path("lb1", "nics")).await.body);
    let mut sent = client.get(&pool_path("lb1", "nics")).await.body;
    sent["properties"]["loadBalancerBackendAddresses"][1]["properties"]["adminState"] = "Down".into();
    for patch in [json!({"tags": {"a": "1"}}), json!({"tags": {"a": null, "b": "2"}})] {
        let patched = client
            .send("PATCH", &lb_path("lb1"), &[], patch.to_string().as_bytes())
            .await;
        assert_eq!(patched.status, 200, "{}", patched.body);
        client
            .wait_for_operation(&client.put(&pool_path("lb1", "nics"), &sent).await)
            .await;
    }
    assert_eq!(
        client.get(&lb_path("lb1")).await.body["tags"],
        json!({"owner": "me", "b": "2"})
    );
    assert_eq!(states().await[1].1.as_deref(), Some("Down"));
    let refused = client.send("PATCH", &lb_path("lb1"), &[], b"{\"tags\": 1}").await;
    assert_eq!((refused.status, refused.code()), (400, "InvalidRequestFormat"));
}

#[tokio::test(start_paused = true)]
async fn no_pool_write_changes_the_members() {
    let client = client();
    let path = pool_path("lb1", "nics");
    let before = client.get(&path).await.body;
    let addresses = before["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap()
        .clone();
    let with = |addresses: Value| json!({"name": "nics", "properties": {"loadBalancerBackendAddresses": addresses}});
    let more = [
        addresses.clone(),
        vec![json!({"name": "x", "properties": {"networkInterfaceIPConfiguration": {"id": alone("other")}}})],
    ]
    .concat();
    let mixed = [
        addresses.clone(),
        vec![json!({"name": "x", "properties": {"ipAddress": "10.0.0.1"}})],
    ]
    .concat();
    for sent in [
        with(json!([addresses[0]])),
        with(json!(more)),
        with(json!(mixed)),
        with(json!([])),
        with(Value::Null),
    ] {
        let refused = client.put(&path, &sent).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "ModificationOfNICIpConfigBackendPoolNotSupported"),
            "{sent}"
        );
    }
    let sent = json!({"properties": {"loadBalancerBackendAddresses": [addresses[0]]}});
    let refused = client.put(&pool_path("lb1", "ips"), &sent).await;
    assert_eq!(
        refused.code(),
        "ModificationOfNICIpConfigBackendPoolNotSupported",
        "into an IP-based pool"
    );
    assert_eq!(client.get(&path).await.body, before);
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_loses_one_of_two_configurations_keeps_the_admin_state_of_the_other() {
    let path = pool_path("lb1", "nics");
    let in_pool = |names: &[&str]| {
        let configurations = names
            .iter()
            .map(|name| json!({"name": name, "properties": {"loadBalancerBackendAddressPools": [{"id": path}]}}));
        json!({"id": alone("nic"), "location": "eastus", "properties": {"ipConfigurations": configurations.collect::<Vec<_>>()}})
    };
    let client = Client::new(&[load_balancer("lb1", &[("nics", &[])]), in_pool(&["one", "two"])]);
    let mut sent = client.get(&path).await.body;
    for address in sent["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap()
    {
        address["properties"]["adminState"] = "Down".into();
    }
    client.wait_for_operation(&client.put(&path, &sent).await).await;
    client
        .wait_for_operation(&client.put(&alone("nic"), &in_pool(&["two"])).await)
        .await;
    let left = admin_states(&client.get(&path).await.body);
    assert_eq!(left, [("rg_nictwo".to_owned(), Some("Down".to_owned()))]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_a_scale_set_fills_takes_no_addresses() {
    let client = client();
    let put = async |pool: &str, addresses: &Value| {
        let sent = json!({"properties": {"syncMode": "automatic", "loadBalancerBackendAddresses": addresses}});
        client.put(&pool_path("lb1", pool), &sent).await.status
    };
    let members =
        client.get(&pool_path("lb1", "nics")).await.body["properties"]["loadBalancerBackendAddresses"].clone();
    assert_eq!(put("ips", &json!([])).await, 200);
    assert_eq!(
        put(
            "ips",
            &json!([{"name": "node", "properties": {"ipAddress": "10.0.0.1"}}])
        )
        .await,
        400
    );
    assert_eq!(put("nics", &members).await, 200, "its members stay");
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_with_their_interfaces() {
    let client = client();
    let path = pool_path("lb1", "nics");
    let first = client.get(&path).await.body;
    let mut sent = first.clone();
    for address in sent["properties"]["loadBalancerBackendAddresses"]
        .as_array_mut()
        .unwrap()
    {
        address["properties"]["adminState"] = "Down".into();
    }
    client.wait_for_operation(&client.put(&path, &sent).await).await;
    let down = client.get(&path).await.body;

    let written = client.put(&alone("webNic2"), &interface(&alone("webNic2"), &[])).await;
    client.wait_for_operation(&written).await;
    let left = client.get(&path).await.body;
    assert_eq!(admin_states(&left).len(), 1);
    assert_ne!(left["etag"], down["etag"]);
    client
        .wait_for_operation(
            &client
                .put(
                    &alone("webNic2"),
                    &interface(&alone("webNic2"), std::slice::from_ref(&path)),
                )
                .await,
        )
        .await;
    let back = client.get(&path).await.body;
    assert_eq!(
        admin_states(&back)[1],
        ("rg_webNic2ipconfig1".to_owned(), None),
        "it returns without its admin state"
    );

    client.wait_for_operation(&client.delete(&in_scale_set(0)).await).await;
    assert_eq!(admin_states(&client.get(&path).await.body).len(), 1);
    client.wait_for_operation(&client.delete(&alone("webNic2")).await).await;
    let empty = client.get(&path).await.body;
    assert_eq!(admin_states(&empty), []);
    assert_eq!(empty["properties"].get("backendIPConfigurations"), None);
}
