//! Resources other than load balancers, as the cloud-controller-manager and other clients need them.

use serde_json::{Value, json};

use super::{Client, GROUP, lb_path, lb1, load_balancer};

fn network(kind: &str, name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/{kind}/{name}")
}

fn compute(path: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/{path}")
}

#[tokio::test(start_paused = true)]
async fn a_public_address_is_assigned_kept_and_released() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    let path = network("publicIPAddresses", "lb1-ip");
    let sent = json!({"location": "eastus", "sku": {"name": "Standard"}, "properties": {
        "publicIPAllocationMethod": "Static", "dnsSettings": {"domainNameLabel": "me"}}});
    let written = client.put(&path, &sent).await;
    assert_eq!(written.status, 201);
    client.wait_for_operation(&written).await;
    let read = client.read(&path).await;
    let address = read["properties"]["ipAddress"].as_str().unwrap().to_owned();
    assert!(address.starts_with("198.18."), "{address}");
    let name = &read["properties"]["dnsSettings"]["fqdn"];
    assert_eq!(name, "me.eastus.cloudapp.azure.com");
    let frontend = format!("{}/frontendIPConfigurations/frontend", lb1());
    assert_eq!(read["properties"]["ipConfiguration"]["id"], frontend);
    let mut again = read.clone();
    again["tags"] = json!({"service": "default/web"});
    again["properties"]["ipAddress"] = "1.2.3.4".into();
    client.put_to_end(&path, &again).await;
    assert_eq!(client.read(&path).await["properties"]["ipAddress"], address.as_str());
    assert_eq!(client.delete(&path).await.code(), "PublicIPAddressCannotBeDeleted");
    let v6 = json!({"location": "eastus", "properties": {"publicIPAddressVersion": "IPv6"}});
    let written = client.put(&network("publicIPAddresses", "six"), &v6).await;
    let assigned = written.body["properties"]["ipAddress"].as_str().unwrap();
    assert!(assigned.starts_with("2001:db8::"), "{assigned}");
    client.delete_to_end(&lb1()).await;
    client.delete_to_end(&path).await;
    assert_eq!(client.get(&path).await.status, 404);
    let next = network("publicIPAddresses", "next");
    let written = client.put(&next, &json!({"location": "eastus"})).await;
    let assigned = &written.body["properties"]["ipAddress"];
    assert_eq!(assigned, address.as_str(), "the address is free again");
}

#[tokio::test(start_paused = true)]
async fn children_of_other_resources_have_ids_names_and_etags() {
    let group = network("networkSecurityGroups", "nsg");
    let rule = json!({"name": "web", "properties": {"priority": 500, "direction": "Inbound"}});
    let client = Client::new(&[
        json!({"id": group, "location": "eastus", "properties": {"securityRules": []}}),
        json!({"id": network("virtualNetworks", "vnet"), "location": "eastus", "properties": {
            "addressSpace": {"addressPrefixes": ["10.0.0.0/8"]}, "subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.0.0.0/16"}}]}}),
        json!({"id": network("routeTables", "routes"), "location": "eastus"}),
    ]);
    let before = client.get(&group).await;
    let mut sent = before.body.clone();
    sent["properties"]["securityRules"] = json!([rule]);
    let written = client.put_if_match(&group, before.header("etag").unwrap(), &sent).await;
    assert_eq!(written.status, 200);
    let shown = &written.body["properties"]["securityRules"][0];
    assert_eq!(shown["id"], format!("{group}/securityRules/web"));
    assert_eq!(shown["type"], "Microsoft.Network/networkSecurityGroups/securityRules");
    assert_eq!(shown["etag"], written.body["etag"]);
    let late = client.put_if_match(&group, before.header("etag").unwrap(), &sent).await;
    assert_eq!(late.status, 412);
    let subnet = client.read(&network("virtualNetworks", "vnet/subnets/nodes")).await;
    assert_eq!(subnet["properties"]["addressPrefix"], "10.0.0.0/16");
    let route = network("routeTables", "routes/routes/node-1");
    let document = json!({"properties": {"addressPrefix": "10.244.0.0/24", "nextHopType": "VirtualAppliance"}});
    let written = client.put(&route, &document).await;
    assert_eq!(written.status, 201, "{}", written.body);
    client.wait_for_operation(&written).await;
    client.delete_to_end(&route).await;
    assert_eq!(client.get(&route).await.code(), "NotFound");
}

#[tokio::test(start_paused = true)]
async fn machines_and_scale_sets_have_views_and_lists() {
    let instance = compute("virtualMachineScaleSets/vmss/virtualMachines/0");
    let nic = format!("{instance}/networkInterfaces/nic");
    let client = Client::new(&[
        json!({"id": compute("virtualMachines/vm"), "location": "eastus"}),
        json!({"id": compute("virtualMachineScaleSets/vmss"), "location": "eastus", "sku": {"name": "Standard_D2s_v5", "capacity": 1}}),
        json!({"id": instance, "location": "eastus", "instanceId": "0", "properties": {"instanceView": {"statuses": [{"code": "PowerState/stopped"}]}}}),
        json!({"id": nic, "properties": {"ipConfigurations": [{"name": "ip", "properties": {"subnet": {"id": "s"}}}]}}),
    ]);
    let view = client.read(&compute("virtualMachines/vm/instanceView")).await;
    assert_eq!(view["statuses"][1]["code"], "PowerState/running");
    let plain = client.read(&instance).await;
    assert_eq!(plain["properties"].get("instanceView"), None);
    let expanded = client.read(&format!("{instance}?$expand=instanceView")).await;
    let state = &expanded["properties"]["instanceView"]["statuses"][0]["code"];
    assert_eq!(state, "PowerState/stopped");
    let all = compute("virtualMachineScaleSets/vmss/virtualMachines?$expand=instanceView");
    let listed = client.read(&all).await;
    assert_eq!(listed["value"][0], expanded);
    for path in [
        "virtualMachineScaleSets/vmss/networkInterfaces",
        "virtualMachineScaleSets/vmss/virtualMachines/0/networkInterfaces",
    ] {
        let listed = client.read(&format!("{}?api-version=2018-10-01", compute(path))).await;
        assert_eq!(listed["value"][0]["id"], nic, "{path}");
    }
    let configuration = client.read(&format!("{nic}/ipConfigurations/ip")).await;
    let address = configuration["properties"]["privateIPAddress"].as_str().unwrap();
    assert!(address.starts_with("10.255."), "{address}");
    let sets = "/subscriptions/sub/providers/Microsoft.Compute/virtualMachineScaleSets";
    assert_eq!(client.read(sets).await["value"].as_array().unwrap().len(), 1);
    let provider = "/subscriptions/sub/providers/microsoft.compute?api-version=2021-04-01";
    let provider = client.read(provider).await;
    assert_eq!(provider["namespace"], "Microsoft.Compute");
    let zones = &provider["resourceTypes"][0]["zoneMappings"][0]["zones"];
    assert_eq!(zones[2], "3");
    let missing = compute("virtualMachineScaleSets/none/virtualMachines/0");
    assert_eq!(client.put(&missing, &json!({})).await.code(), "ResourceNotFound");
    for (nested, status) in [
        ("1", 201),
        ("1/networkInterfaces/nic", 201),
        ("2/networkInterfaces/nic", 404),
    ] {
        let path = compute(&format!("virtualMachineScaleSets/vmss/virtualMachines/{nested}"));
        let written = client.put(&path, &json!({"location": "eastus"})).await;
        assert_eq!(written.status, status, "{nested}: {}", written.body);
    }
    // Instance views are of machines alone, and nothing else at a machine is a view.
    let disk = compute("disks/disk");
    client.put(&disk, &json!({"location": "eastus"})).await;
    let expanded = client.read(&format!("{disk}?$expand=instanceView")).await;
    assert_eq!(expanded["properties"].get("instanceView"), None);
    for path in ["disks/disk/instanceView", "virtualMachines/vm/extensions"] {
        assert_eq!(client.read(&compute(path)).await, json!({"value": []}), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn configurations_with_a_subnet_get_an_address_of_their_own_and_keep_it() {
    let client = Client::new(&[]);
    client.put(GROUP, &json!({"location": "eastus"})).await;
    let frontend = |name: &str, more: &Value| {
        let mut properties = json!({"subnet": {"id": network("virtualNetworks", "vnet/subnets/nodes")}});
        json_patch::merge(&mut properties, more);
        json!({"name": name, "properties": properties})
    };
    let put = async |name: &str, frontends: &[Value]| {
        let sent = json!({"location": "eastus", "properties": {"frontendIPConfigurations": frontends}});
        let written = client.put(&lb_path(name), &sent).await.body;
        let shown = written["properties"]["frontendIPConfigurations"].as_array().unwrap();
        let address = |shown: &Value| shown["properties"]["privateIPAddress"].clone();
        shown.iter().map(address).collect::<Value>()
    };
    let six = frontend("six", &json!({"privateIPAddressVersion": "IPv6"}));
    let given = frontend("given", &json!({"privateIPAddress": "10.255.0.2"}));
    let public = json!({"name": "public", "properties": {}});
    let [one, two] = ["one", "two"].map(|name| frontend(name, &json!({})));
    let first = put("lb1", &[given, one.clone(), six.clone(), public]).await;
    assert_eq!(first, json!(["10.255.0.2", "10.255.0.1", "fd00::1", null]));
    let next = frontend("next", &json!({"privateIPAddress": "10.255.0.3"}));
    let second = put("lb2", &[one.clone(), two.clone(), next]).await;
    assert_eq!(second, json!(["10.255.0.4", "10.255.0.5", "10.255.0.3"]));
    let again = put("lb1", &[two, one, six]).await;
    assert_eq!(again, json!(["10.255.0.6", "10.255.0.1", "fd00::1"]));
}

#[tokio::test(start_paused = true)]
async fn any_resource_is_stored_and_its_tags_can_be_changed() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    let path = format!("{GROUP}/providers/Contoso.Widgets/widgets/w");
    let sent = json!({"location": "westus", "sku": {"name": "x"}, "properties": {"a": {"b": [1]}}, "zones": ["1"], "unknown": null});
    let written = client.put(&path, &sent).await;
    assert_eq!(written.status, 201);
    assert_eq!(written.body["type"], "Contoso.Widgets/widgets");
    client.wait_for_operation(&written).await;
    let read = client.read(&path).await;
    assert_eq!(read["properties"]["a"], sent["properties"]["a"]);
    assert_eq!(read["zones"], sent["zones"]);
    assert_eq!(client.send("HEAD", &path, &[], b"").await.status, 204);
    assert_eq!(client.send("HEAD", &format!("{path}x"), &[], b"").await.status, 404);

    let before = client.read(&lb1()).await;
    let change = async |body: &[u8]| client.send("PATCH", &lb1(), &[], body).await;
    let patched = change(br#"{"tags": {"owner": null, "team": "net"}}"#).await;
    assert_eq!((patched.status, &patched.body["tags"]), (200, &json!({"team": "net"})));
    assert_ne!(patched.body["etag"], before["etag"]);
    assert_eq!(change(br#"{"properties": {}}"#).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn resource_groups_are_created_listed_and_deleted() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    let path = "/subscriptions/sub/resourcegroups/new";
    assert_eq!(client.send("HEAD", path, &[], b"").await.status, 404);
    let (document, inside) = (
        json!({"location": "westus"}),
        format!("{path}/providers/Microsoft.Network/loadBalancers/x"),
    );
    let made = client.put(path, &document).await;
    assert_eq!(made.status, 201);
    assert_eq!(made.body["id"], "/subscriptions/sub/resourceGroups/new");
    assert_eq!(client.put(path, &document).await.status, 200);
    assert_eq!(client.put(&inside, &document).await.status, 201);
    let listed: Value = client.read(&format!("{path}/resources")).await;
    assert_eq!(listed["value"][0]["name"], "x");
    assert_eq!(client.delete(path).await.status, 200);
    assert_eq!(client.get(&inside).await.code(), "ResourceGroupNotFound");
    assert_eq!(client.get(&lb1()).await.status, 200);
    assert_eq!(client.read("/subscriptions/sub").await["subscriptionId"], "sub");
}

#[tokio::test(start_paused = true)]
async fn operations_of_deleted_groups_are_removed() {
    let client = Client::new(&[]);
    let settings = json!({"operationDelay": "24h", "throttle": {"enabled": false}});
    assert_eq!(client.control("PUT", "settings", &settings).status, 200);
    let document = json!({"location": "eastus", "properties": {}});
    for _ in 0..2 {
        client.put(GROUP, &json!({"location": "eastus"})).await;
        assert_eq!(client.put(&lb_path("lb"), &document).await.status, 201);
        assert_eq!(client.delete(GROUP).await.status, 200);
    }
    let state = client.control("GET", "state", &Value::Null).body;
    let operations = state["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 2);
    for operation in operations {
        assert_eq!(operation["status"], "Succeeded");
    }
}
