//! Lists in pages, and paths in any case.

use serde_json::{Value, json};

use super::{BASE, Client, GROUP, lb_path, lb1, lb1_pool, load_balancer, pool_path};

/// All items of a list, and the number of its pages.
async fn all(client: &Client, path: &str) -> (Vec<Value>, usize) {
    let (mut items, mut pages, mut next) = (Vec::new(), 0, path.to_owned());
    loop {
        let page = client.get(&next).await;
        assert_eq!(page.status, 200, "{next}: {}", page.body);
        assert_eq!(page.header("etag"), None, "lists have no etag");
        items.extend(page.body["value"].as_array().unwrap().clone());
        pages += 1;
        let Some(link) = page.body.get("nextLink").and_then(Value::as_str) else {
            return (items, pages);
        };
        assert!(
            link.starts_with(&format!("{BASE}{}", path.split('?').next().unwrap())),
            "absolute: {link}"
        );
        assert!(link.contains("api-version="), "{link}");
        next = link.to_owned();
    }
}

fn names(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_list_is_complete_in_pages_of_three() {
    let lbs: Vec<Value> = (1..=7)
        .map(|number| {
            load_balancer(
                &format!("lb{number}"),
                &[("a", &["n"]), ("b", &[]), ("c", &[]), ("d", &[])],
            )
        })
        .collect();
    let mut other = load_balancer("far", &[("a", &[])]);
    other["id"] = "/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/loadBalancers/far".into();
    // Its references are to a load balancer in another group; seeds are not checked.
    let client = Client::new(&[lbs, vec![other]].concat());
    let expected: Vec<String> = (1..=7).map(|number| format!("lb{number}")).collect();
    let (group, pages) = all(&client, &format!("{GROUP}/providers/Microsoft.Network/loadBalancers")).await;
    assert_eq!(
        (names(&group), pages),
        (expected.iter().map(String::as_str).collect(), 3)
    );
    assert_eq!(group[0], client.read(&lb1()).await, "whole documents");
    let (subscription, _) = all(
        &client,
        "/subscriptions/SUB/providers/microsoft.network/LOADBALANCERS?api-version=2026-03-01",
    )
    .await;
    assert_eq!(subscription.len(), 8);
    let (pools, pages) = all(&client, &format!("{}/backendAddressPools", lb1())).await;
    assert_eq!((names(&pools), pages), (vec!["a", "b", "c", "d"], 2));
    assert_eq!(pools[0], client.read(&lb1_pool("a")).await);
    let (groups, _) = all(&client, "/subscriptions/sub/resourcegroups").await;
    assert_eq!(names(&groups), ["other", "rg"]);
    let (none, _) = all(
        &client,
        &format!("{GROUP}/providers/Microsoft.Network/privateLinkServices"),
    )
    .await;
    assert!(none.is_empty());
    for path in [
        "/subscriptions/missing/providers/Microsoft.Network/loadBalancers",
        "/subscriptions/sub/resourceGroups/none/providers/Microsoft.Network/loadBalancers",
    ] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn paging_continues_after_concurrent_writes() {
    let lbs: Vec<Value> = (1..=5)
        .map(|number| load_balancer(&format!("lb{number}"), &[("a", &[])]))
        .collect();
    let client = Client::new(&lbs);
    let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers");
    let first = client.read(&path).await;
    client.delete_to_end(&lb_path("lb3")).await;
    client.put_to_end(&lb_path("lb0"), &json!({"location": "eastus"})).await;
    let second = client.read(first["nextLink"].as_str().unwrap()).await;
    assert_eq!(names(second["value"].as_array().unwrap()), ["lb4", "lb5"]);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_skip_token_is_refused() {
    let client = Client::new(&[load_balancer("lb1", &[("a", &[])])]);
    for token in ["!", "%ff", "AP8", ""] {
        let path = format!("{GROUP}/providers/Microsoft.Network/loadBalancers?$skiptoken={token}");
        let refused = client.get(&path).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidSkipToken"), "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn paths_ignore_case_and_keep_the_first_spelling() {
    let client = Client::new(&[load_balancer("Lb", &[("Pool", &["Node"])])]);
    let shown = client.get("/SUBSCRIPTIONS/SUB/resourcegroups/RG/PROVIDERS/microsoft.network/LoadBalancers/lB/backendaddresspools/pOOL").await;
    assert_eq!(shown.body["id"], pool_path("Lb", "Pool"));
    let path = pool_path("LB", "POOL").to_uppercase();
    let written = client.put(&path, &json!({"name": "POOL", "properties": {}})).await;
    assert_eq!(
        (written.status, &written.body["id"], &written.body["name"]),
        (200, &json!(pool_path("Lb", "Pool")), &json!("Pool"))
    );
    let written = client.put(&lb_path("LB"), &json!({"location": "eastus"})).await;
    assert_eq!((written.status, &written.body["id"]), (200, &json!(lb_path("Lb"))));
}
