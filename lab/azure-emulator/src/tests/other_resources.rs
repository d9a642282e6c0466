//! Resources other than load balancers, as the cloud-controller-manager and other clients need them.

use serde_json::{Value, json};

use super::{Client, GROUP, lb_path, load_balancer};

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
    let read = client.get(&path).await.body;
    let address = read["properties"]["ipAddress"].as_str().unwrap().to_owned();
    assert!(address.starts_with("198.18."), "{address}");
    assert_eq!(
        read["properties"]["dnsSettings"]["fqdn"],
        "me.eastus.cloudapp.azure.com"
    );
    assert_eq!(
        read["properties"]["ipConfiguration"]["id"],
        format!("{}/frontendIPConfigurations/frontend", lb_path("lb1"))
    );
    let mut again = read.clone();
    again["tags"] = json!({"service": "default/web"});
    again["properties"]["ipAddress"] = "1.2.3.4".into();
    client.wait_for_operation(&client.put(&path, &again).await).await;
    assert_eq!(
        client.get(&path).await.body["properties"]["ipAddress"],
        address.as_str()
    );
    assert_eq!(client.delete(&path).await.code(), "PublicIPAddressCannotBeDeleted");
    let v6 = network("publicIPAddresses", "six");
    let written = client
        .put(
            &v6,
            &json!({"location": "eastus", "properties": {"publicIPAddressVersion": "IPv6"}}),
        )
        .await;
    assert!(
        written.body["properties"]["ipAddress"]
            .as_str()
            .unwrap()
            .starts_with("2001:db8::")
    );
    client.wait_for_operation(&client.delete(&lb_path("lb1")).await).await;
    client.wait_for_operation(&client.delete(&path).await).await;
    assert_eq!(client.get(&path).await.status, 404);
    let written = client
        .put(&network("publicIPAddresses", "next"), &json!({"location": "eastus"}))
        .await;
    assert_eq!(
        written.body["properties"]["ipAddress"],
        address.as_str(),
        "the address is free again"
    );
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
    assert_eq!(
        client
            .put_if_match(&group, before.header("etag").unwrap(), &sent)
            .await
            .status,
        412
    );
    let subnet = client
        .get(&format!("{}/subnets/nodes", network("virtualNetworks", "vnet")))
        .await;
    assert_eq!(
        (subnet.status, subnet.body["properties"]["addressPrefix"].as_str()),
        (200, Some("10.0.0.0/16"))
    );
    let route = format!("{}/routes/node-1", network("routeTables", "routes"));
    let written = client
        .put(
            &route,
            &json!({"properties": {"addressPrefix": "10.244.0.0/24", "nextHopType": "VirtualAppliance"}}),
        )
        .await;
    assert_eq!(written.status, 201, "{}", written.body);
    client.wait_for_operation(&written).await;
    client.wait_for_operation(&client.delete(&route).await).await;
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
    let view = client.get(&compute("virtualMachines/vm/instanceView")).await.body;
    assert_eq!(view["statuses"][1]["code"], "PowerState/running");
    let plain = client.get(&instance).await.body;
    assert_eq!(plain["properties"].get("instanceView"), None);
    let expanded = client.get(&format!("{instance}?$expand=instanceView")).await.body;
    assert_eq!(
        expanded["properties"]["instanceView"]["statuses"][0]["code"],
        "PowerState/stopped"
    );
    let listed = client
        .get(&format!(
            "{}?$expand=instanceView",
            compute("virtualMachineScaleSets/vmss/virtualMachines")
        ))
        .await
        .body;
    assert_eq!(listed["value"][0], expanded);
    for path in [
        "virtualMachineScaleSets/vmss/networkInterfaces",
        "virtualMachineScaleSets/vmss/virtualMachines/0/networkInterfaces",
    ] {
        let listed = client
            .get(&format!("{}?api-version=2018-10-01", compute(path)))
            .await
            .body;
        assert_eq!(listed["value"][0]["id"], nic, "{path}");
    }
    let configuration = client.get(&format!("{nic}/ipConfigurations/ip")).await.body;
    assert!(
        configuration["properties"]["privateIPAddress"]
            .as_str()
            .unwrap()
            .starts_with("10.255.")
    );
    let sets = client
        .get("/subscriptions/sub/providers/Microsoft.Compute/virtualMachineScaleSets")
        .await
        .body;
    assert_eq!(sets["value"].as_array().unwrap().len(), 1);
    let provider = client
        .get("/subscriptions/sub/providers/microsoft.compute?api-version=2021-04-01")
        .await
        .body;
    assert_eq!(
        (
            provider["namespace"].as_str(),
            provider["resourceTypes"][0]["zoneMappings"][0]["zones"][2].as_str()
        ),
        (Some("Microsoft.Compute"), Some("3"))
    );
    let missing = client
        .put(&compute("virtualMachineScaleSets/none/virtualMachines/0"), &json!({}))
        .await;
    assert_eq!(missing.code(), "ResourceNotFound");
    for (nested, status) in [
        ("virtualMachineScaleSets/vmss/virtualMachines/1", 201),
        (
            "virtualMachineScaleSets/vmss/virtualMachines/1/networkInterfaces/nic",
            201,
        ),
        (
            "virtualMachineScaleSets/vmss/virtualMachines/2/networkInterfaces/nic",
            404,
        ),
    ] {
        let written = client.put(&compute(nested), &json!({"location": "eastus"})).await;
        assert_eq!(written.status, status, "{nested}: {}", written.body);
    }
    // Instance views are of machines alone, and nothing else at a machine is a view.
    let disk = compute("disks/disk");
    client.put(&disk, &json!({"location": "eastus"})).await;
    let expanded = client.get(&format!("{disk}?$expand=instanceView")).await.body;
    assert_eq!(expanded["properties"].get("instanceView"), None);
    for path in ["disks/disk/instanceView", "virtualMachines/vm/extensions"] {
        assert_eq!(client.get(&compute(path)).await.body, json!({"value": []}), "{path}");
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
        let shown = written["properties"]["frontendIPConfigurations"]
            .as_array()
            .unwrap()
            .clone();
        let addresses = shown
            .iter()
            .map(|shown| shown["properties"]["privateIPAddress"].clone());
        json!(addresses.collect::<Vec<_>>())
    };
    let six = frontend("six", &json!({"privateIPAddressVersion": "IPv6"}));
    let given = frontend("given", &json!({"privateIPAddress": "10.255.0.2"}));
    let public = json!({"name": "public", "properties": {}});
    let [one, two] = ["one", "two"].map(|name| frontend(name, &json!({})));
    let first = put("lb1", &[given, one.clone(), six.clone(), public]).await;
    assert_eq!(first, json!(["10.255.0.2", "10.255.0.1", "fd00::1", null]));
    let next = frontend("next", &json!({"privateIPAddress": "10.255.0.3"}));
    assert_eq!(
        put("lb2", &[one.clone(), two.clone(), next]).await,
        json!(["10.255.0.4", "10.255.0.5", "10.255.0.3"])
    );
    let again = put("lb1", &[two, one, six]).await;
    assert_eq!(again, json!(["10.255.0.6", "10.255.0.1", "fd00::1"]));
}

#[tokio::test(start_paused = true)]
async fn any_resource_is_stored_and_its_tags_can_be_changed() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    let path = format!("{GROUP}/providers/Contoso.Widgets/widgets/w");
    let sent = json!({"location": "westus", "sku": {"name": "x"}, "properties": {"a": {"b": [1]}}, "zones": ["1"], "unknown": null});
    let written = client.put(&path, &sent).await;
    assert_eq!(
        (written.status, &written.body["type"]),
        (201, &json!("Contoso.Widgets/widgets"))
    );
    client.wait_for_operation(&written).await;
    let read = client.get(&path).await.body;
    assert_eq!(
        (&read["properties"]["a"], &read["zones"]),
        (&sent["properties"]["a"], &sent["zones"])
    );
    assert_eq!(client.send("HEAD", &path, &[], b"").await.status, 204);
    assert_eq!(client.send("HEAD", &format!("{path}x"), &[], b"").await.status, 404);

    let before = client.get(&lb_path("lb1")).await.body;
    let patched = client
        .send(
            "PATCH",
            &lb_path("lb1"),
            &[],
            json!({"tags": {"owner": null, "team": "net"}}).to_string().as_bytes(),
        )
        .await;
    assert_eq!((patched.status, &patched.body["tags"]), (200, &json!({"team": "net"})));
    assert_ne!(patched.body["etag"], before["etag"]);
    let refused = client
        .send(
            "PATCH",
            &lb_path("lb1"),
            &[],
            json!({"properties": {}}).to_string().as_bytes(),
        )
        .await;
    assert_eq!(refused.status, 400);
}

#[tokio::test(start_paused = true)]
async fn resource_groups_are_created_listed_and_deleted() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    let path = "/subscriptions/sub/resourcegroups/new";
    assert_eq!(client.send("HEAD", path, &[], b"").await.status, 404);
    let made = client
        .put(path, &json!({"location": "westus", "tags": {"a": "b"}}))
        .await;
    assert_eq!(
        (made.status, &made.body["id"]),
        (201, &json!("/subscriptions/sub/resourceGroups/new"))
    );
    assert_eq!(client.put(path, &json!({"location": "westus"})).await.status, 200);
    let inside = format!("{path}/providers/Microsoft.Network/loadBalancers/x");
    assert_eq!(client.put(&inside, &json!({"location": "westus"})).await.status, 201);
    let listed: Value = client.get(&format!("{path}/resources")).await.body;
    assert_eq!(listed["value"][0]["name"], "x");
    assert_eq!(client.delete(path).await.status, 200);
    assert_eq!(client.get(&inside).await.code(), "ResourceGroupNotFound");
    assert_eq!(client.get(&lb_path("lb1")).await.status, 200);
    assert_eq!(client.get("/subscriptions/sub").await.body["subscriptionId"], "sub");
}

#[tokio::test(start_paused = true)]
async fn operations_of_deleted_groups_are_removed() {
    let client = Client::new(&[]);
    assert_eq!(
        client
            .control(
                "PUT",
                "settings",
                &json!({"operationDelay": "24h", "throttle": {"enabled": false}})
            )
            .status,
        200
    );
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
