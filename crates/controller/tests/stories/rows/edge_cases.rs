//! The bullets of "Edge Cases and Mitigations", and what "Non-Goals" leaves alone.

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{GROUP, address, entries, load_balancer, two_load_balancers};
use super::stage::{DOWN, DRAINING, OUT_OF_SERVICE, SECOND, Stage};

#[tokio::test(start_paused = true)]
async fn single_pod_services_go_down_all_the_same() {
    let stage = Stage::with(1, &two_load_balancers(1)).await;
    stage.taint(1, &[OUT_OF_SERVICE]);
    stage.settle(&["node-1"]).await;
    assert_eq!(stage.notes(DOWN, "node-1").await.len(), 1);
    let warnings = stage.notes("LoadBalancerPoolHasNoEligibleAddress", "node-1").await;
    assert_eq!(warnings.len(), 3, "one for each pool: {warnings:?}");
    assert!(
        warnings.iter().all(|note| note.contains("All 1 addresses of pool")),
        "{warnings:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_loses_its_last_address_is_warned_about_once() {
    let stage = Stage::new(3).await;
    for (node, warned) in [(1, 0), (2, 0), (3, 3)] {
        stage.taint(node, &[DRAINING]);
        sleep(30 * SECOND).await;
        let told = stage.told().await;
        let all = told
            .iter()
            .filter(|((reason, _), _)| reason == "LoadBalancerPoolHasNoEligibleAddress");
        assert_eq!(all.map(|(_, count)| count).sum::<usize>(), warned, "{told:?}");
    }
    stage.until_down(&["node-1", "node-2", "node-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn pools_of_local_services_are_served_like_others() {
    // With several load balancers each Service with externalTrafficPolicy: Local has a pool of its own, probed at its
    // health check port; the other pool has a rule of such a Service beside one that is probed at kube-proxy.
    let mut document = load_balancer(
        "kubernetes",
        &[
            ("kubernetes", entries(1..=3, false)),
            ("default-web", entries(2..=3, false)),
        ],
    );
    let id = document["id"].as_str().unwrap().to_owned();
    let properties = &mut document["properties"];
    let probe = json!({"name": "local", "properties": {"protocol": "Http", "port": 32123, "requestPath": "/healthz"}});
    properties["probes"].as_array_mut().unwrap().push(probe);
    let mut rule = properties["loadBalancingRules"][0].clone();
    rule["name"] = json!("local-rule");
    rule["properties"]["frontendPort"] = json!(443);
    rule["properties"]["probe"]["id"] = json!(format!("{id}/probes/local"));
    let rules = properties["loadBalancingRules"].as_array_mut().unwrap();
    rules[1]["properties"]["probe"]["id"] = json!(format!("{id}/probes/local"));
    rules.push(rule);
    let stage = Stage::with(3, &[document]).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    let notes = stage.notes(DOWN, "node-2").await;
    assert!(
        notes[0].contains("kubernetes/default-web, kubernetes/kubernetes"),
        "{notes:?}"
    );
    assert!(!notes[0].contains("no effect"), "{notes:?}");
    assert_eq!(stage.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn freezes_and_other_troubles_are_the_probes_business() {
    let stage = Stage::new(3).await;
    let ready = |status: &'static str| {
        move |node: &mut Value| {
            node["status"]["conditions"] = json!([
                {"type": "Ready", "status": status},
                {"type": "VMEventScheduled", "status": "True", "reason": "FreezeScheduled"}]);
        }
    };
    stage.node(2, ready("False"));
    sleep(10 * SECOND).await;
    stage.node(2, ready("Unknown"));
    sleep(60 * SECOND).await;
    stage.taint(
        2,
        &[
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/memory-pressure",
        ],
    );
    sleep(60 * SECOND).await;
    stage.until_down(&[]).await;
    assert!(stage.puts().is_empty() && stage.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cordons_and_drains_are_no_signals() {
    let stage = Stage::new(3).await;
    for _ in 0..10 {
        stage.node(2, |node| {
            node["spec"] = json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
        });
        sleep(5 * SECOND).await;
        stage.node(2, |node| node["spec"] = json!({}));
        sleep(5 * SECOND).await;
    }
    assert!(stage.puts().is_empty() && stage.world.events().await.is_empty());
}

/// Load balancers of these names, each with these nodes.
fn several(names: &[(&str, std::ops::RangeInclusive<usize>)]) -> Vec<Value> {
    let document = |(name, nodes): &(&str, std::ops::RangeInclusive<usize>)| {
        load_balancer(
            name,
            &[(name.trim_end_matches("-internal"), entries(nodes.clone(), false))],
        )
    };
    names.iter().map(document).collect()
}

#[tokio::test(start_paused = true)]
async fn several_load_balancers_with_their_internal_twins() {
    let names = [
        ("kubernetes", 1..=2),
        ("lb2", 2..=4),
        ("lb2-internal", 1..=4),
        ("foreign", 1..=4),
        ("lb2-other", 1..=4),
    ];
    let mut stage = Stage::set(4, &several(&names)).await;
    stage.world.managed = vec!["kubernetes", "LB2", "absent"];
    stage.lead(super::super::world::ENFORCE).await;
    stage.taint(2, &[DRAINING]);
    let of = |down: &[&str]| {
        let pools = [
            "kubernetes/kubernetes",
            "lb2/lb2",
            "lb2-internal/lb2",
            "foreign/foreign",
            "lb2-other/lb2-other",
        ];
        let is_down = |pool: &str| down.contains(&pool);
        pools
            .map(|pool| {
                (
                    pool.to_owned(),
                    is_down(pool).then(|| "node-2".to_owned()).into_iter().collect(),
                )
            })
            .into()
    };
    let ours = of(&["kubernetes/kubernetes", "lb2/lb2", "lb2-internal/lb2"]);
    stage.until("Down in ours", |stage| stage.down() == ours).await;
    sleep(60 * SECOND).await;
    assert_eq!(stage.down(), ours, "nobody else's");
    assert_eq!(stage.notes(DOWN, "node-2").await.len(), 1);
    stage.taint(2, &[]);
    stage.settle(&[]).await;
    assert_eq!(stage.puts().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_or_pool_that_comes_while_a_node_is_out() {
    let stage = Stage::new(3).await;
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    // A Service has made another; a reconcile has put every node into it.
    let mut document = load_balancer(
        "kubernetes-internal",
        &[("kubernetes", entries(1..=3, false)), ("new", entries(1..=3, true))],
    );
    let path = document["id"].take();
    stage.world.other("PUT", path.as_str().unwrap(), &document).await;
    let took = stage
        .until("all four", |stage| {
            stage.down().len() == 4 && stage.down().values().all(|down| down.len() == 1)
        })
        .await;
    assert!(took < 20 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn dual_stack_by_family() {
    let mut document = two_load_balancers(3).remove(0);
    // A node with one address only stands in one pool only.
    document["properties"]["backendAddressPools"][1]["properties"]["loadBalancerBackendAddresses"] =
        entries([1, 2], true);
    let stage = Stage::with(3, &[document]).await;
    stage.node(3, |node| {
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": address(3, false)}]);
    });
    stage.taint(2, &[DRAINING]);
    stage.settle(&["node-2"]).await;
    assert_eq!(stage.puts().len(), 2, "one for each family");
    stage.taint(3, &[DRAINING]);
    let expected = [
        (
            "kubernetes/kubernetes".to_owned(),
            ["node-2".to_owned(), "node-3".to_owned()].into(),
        ),
        ("kubernetes/kubernetes-IPv6".to_owned(), ["node-2".to_owned()].into()),
    ];
    stage
        .until("by family", |stage| stage.down() == expected.clone().into())
        .await;
    sleep(5 * SECOND).await;
    assert_eq!(stage.puts().len(), 3);
    assert_eq!(stage.notes(DOWN, "node-3").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pool_with_outbound_rules_only_is_left_alone() {
    let mut document = load_balancer(
        "kubernetes",
        &[
            ("kubernetes", entries(1..=3, false)),
            ("aksOutboundBackendPool", entries(1..=3, false)),
        ],
    );
    let id = document["id"].as_str().unwrap().to_owned();
    let properties = &mut document["properties"];
    properties["loadBalancingRules"].as_array_mut().unwrap().truncate(1);
    properties["outboundRules"] = json!([{"name": "out", "properties": {"protocol": "All",
        "frontendIPConfigurations": [{"id": format!("{id}/frontendIPConfigurations/front")}],
        "backendAddressPool": {"id": format!("{id}/backendAddressPools/aksOutboundBackendPool")}}}]);
    let stage = Stage::with(3, &[document]).await;
    stage.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    let down = stage.down();
    assert!(
        down["kubernetes/kubernetes"].len() == 1 && down["kubernetes/aksOutboundBackendPool"].is_empty(),
        "{down:?}"
    );
    assert_eq!(stage.puts().len(), 1);
    let notes = stage.notes(DOWN, "node-2").await;
    assert!(notes.len() == 1 && !notes[0].contains("aksOutbound"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_belong_in_no_load_balancer() {
    for (label, value) in [
        ("node.kubernetes.io/exclude-from-external-load-balancers", ""),
        ("node-role.kubernetes.io/control-plane", ""),
        ("kubernetes.azure.com/managed", "false"),
    ] {
        let stage = Stage::new(3).await;
        let label_it = |node: &mut Value| node["metadata"]["labels"] = json!({label: value});
        stage.node(2, label_it);
        stage.taint(2, &[DRAINING]);
        sleep(60 * SECOND).await;
        stage.until_down(&[]).await;
        assert!(
            stage.puts().is_empty() && stage.world.events().await.is_empty(),
            "{label}"
        );
        // One that is Down already is on its way out: its signal's end is waited for.
        stage.node(2, |node| node["metadata"]["labels"] = json!({}));
        stage.settle(&["node-2"]).await;
        stage.node(2, label_it);
        sleep(60 * SECOND).await;
        stage.until_down(&["node-2"]).await;
        stage.taint(2, &[]);
        stage.settle(&[]).await;
        assert_eq!(stage.puts().len(), 6, "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_load_balancers_and_empty_groups_are_no_trouble() {
    let vnet = json!({"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/v"), "location": "eastus", "properties": {}});
    let stage = Stage::with(2, &[vnet]).await;
    stage.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    assert!(
        stage.puts().is_empty() && stage.world.events().await.is_empty(),
        "{:?}",
        stage.world.events().await
    );
}
