//! The rows of "Edge Cases and Mitigations" and of "Non-Goals".

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{GROUP, address, entries, load_balancer, two_load_balancers};
use super::cluster::{DOWN, DRAINING, OUT_OF_SERVICE, SECOND, TestCluster};

#[tokio::test(start_paused = true)]
async fn single_pod_services_go_down_too() {
    let cluster = TestCluster::with(1, &two_load_balancers(1)).await;
    cluster.taint(1, &[OUT_OF_SERVICE]);
    cluster.settle(&["node-1"]).await;
    assert_eq!(cluster.notes(DOWN, "node-1").await.len(), 1);
    let warnings = cluster.notes("LoadBalancerPoolHasNoEligibleAddress", "node-1").await;
    assert_eq!(warnings.len(), 3, "one for each pool: {warnings:?}");
    assert!(
        warnings.iter().all(|note| note.contains("All 1 addresses of pool")),
        "{warnings:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pool_without_an_eligible_address_gets_one_warning() {
    let cluster = TestCluster::new(3).await;
    for (node, warned) in [(1, 0), (2, 0), (3, 3)] {
        cluster.taint(node, &[DRAINING]);
        sleep(30 * SECOND).await;
        let counts = cluster.event_counts().await;
        let all = counts
            .iter()
            .filter(|((reason, _), _)| reason == "LoadBalancerPoolHasNoEligibleAddress");
        assert_eq!(all.map(|(_, count)| count).sum::<usize>(), warned, "{counts:?}");
    }
    cluster.until_down(&["node-1", "node-2", "node-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn pools_of_local_services_are_written_too() {
    // With several load balancers each Service with `externalTrafficPolicy: Local` has a pool of its own, probed at its health
    // check port. The shared pool has a rule of such a Service and one that probes kube-proxy.
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
    let cluster = TestCluster::with(3, &[document]).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    let notes = cluster.notes(DOWN, "node-2").await;
    assert!(
        notes[0].contains("kubernetes/default-web, kubernetes/kubernetes"),
        "{notes:?}"
    );
    assert!(!notes[0].contains("no effect"), "{notes:?}");
    assert_eq!(cluster.puts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn freezes_and_unready_nodes_are_left_to_probes() {
    let cluster = TestCluster::new(3).await;
    let ready = |status: &'static str| {
        move |node: &mut Value| {
            node["status"]["conditions"] = json!([
                {"type": "Ready", "status": status},
                {"type": "VMEventScheduled", "status": "True", "reason": "FreezeScheduled"}]);
        }
    };
    cluster.node(2, ready("False"));
    sleep(10 * SECOND).await;
    cluster.node(2, ready("Unknown"));
    sleep(60 * SECOND).await;
    cluster.taint(
        2,
        &[
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/memory-pressure",
        ],
    );
    sleep(60 * SECOND).await;
    cluster.until_down(&[]).await;
    assert!(cluster.puts().is_empty() && cluster.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cordons_and_drains_are_no_signals() {
    let cluster = TestCluster::new(3).await;
    for _ in 0..10 {
        cluster.node(2, |node| {
            node["spec"] = json!({"unschedulable": true, "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]});
        });
        sleep(5 * SECOND).await;
        cluster.node(2, |node| node["spec"] = json!({}));
        sleep(5 * SECOND).await;
    }
    assert!(cluster.puts().is_empty() && cluster.world.events().await.is_empty());
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
async fn several_load_balancers_with_internal_twins() {
    let names = [
        ("kubernetes", 1..=2),
        ("lb2", 2..=4),
        ("lb2-internal", 1..=4),
        ("foreign", 1..=4),
        ("lb2-other", 1..=4),
    ];
    let mut cluster = TestCluster::without_leader(4, &several(&names)).await;
    cluster.world.managed = vec!["kubernetes", "LB2", "absent"];
    cluster.lead(super::super::world::ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
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
    cluster.until("Down in ours", |cluster| cluster.down() == ours).await;
    sleep(60 * SECOND).await;
    assert_eq!(cluster.down(), ours, "no other load balancer");
    assert_eq!(cluster.notes(DOWN, "node-2").await.len(), 1);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.puts().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn new_load_balancers_and_pools_while_a_node_is_down() {
    let cluster = TestCluster::new(3).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    // A new Service leads to a new pool with every node.
    let mut document = load_balancer(
        "kubernetes-internal",
        &[("kubernetes", entries(1..=3, false)), ("new", entries(1..=3, true))],
    );
    let path = document["id"].take();
    cluster.world.other("PUT", path.as_str().unwrap(), &document).await;
    let took = cluster
        .until("all four", |cluster| {
            cluster.down().len() == 4 && cluster.down().values().all(|down| down.len() == 1)
        })
        .await;
    assert!(took < 20 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn dual_stack_by_family() {
    let mut document = two_load_balancers(3).remove(0);
    // A node with one address is in one pool.
    document["properties"]["backendAddressPools"][1]["properties"]["loadBalancerBackendAddresses"] =
        entries([1, 2], true);
    let cluster = TestCluster::with(3, &[document]).await;
    cluster.node(3, |node| {
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": address(3, false)}]);
    });
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    assert_eq!(cluster.puts().len(), 2, "one for each family");
    cluster.taint(3, &[DRAINING]);
    let expected = [
        (
            "kubernetes/kubernetes".to_owned(),
            ["node-2".to_owned(), "node-3".to_owned()].into(),
        ),
        ("kubernetes/kubernetes-IPv6".to_owned(), ["node-2".to_owned()].into()),
    ];
    cluster
        .until("by family", |cluster| cluster.down() == expected.clone().into())
        .await;
    sleep(5 * SECOND).await;
    assert_eq!(cluster.puts().len(), 3);
    assert_eq!(cluster.notes(DOWN, "node-3").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pool_with_outbound_rules_only_is_left_alone() {
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
    let cluster = TestCluster::with(3, &[document]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    let down = cluster.down();
    assert!(
        down["kubernetes/kubernetes"].len() == 1 && down["kubernetes/aksOutboundBackendPool"].is_empty(),
        "{down:?}"
    );
    assert_eq!(cluster.puts().len(), 1);
    let notes = cluster.notes(DOWN, "node-2").await;
    assert!(notes.len() == 1 && !notes[0].contains("aksOutbound"), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn excluded_nodes_are_left_alone() {
    for (label, value) in [
        ("node.kubernetes.io/exclude-from-external-load-balancers", ""),
        ("node-role.kubernetes.io/control-plane", ""),
        ("kubernetes.azure.com/managed", "false"),
    ] {
        let cluster = TestCluster::new(3).await;
        let add_label = |node: &mut Value| node["metadata"]["labels"] = json!({label: value});
        cluster.node(2, add_label);
        cluster.taint(2, &[DRAINING]);
        sleep(60 * SECOND).await;
        cluster.until_down(&[]).await;
        assert!(
            cluster.puts().is_empty() && cluster.world.events().await.is_empty(),
            "{label}"
        );
        // An entry that is `Down` already stays so until the signal ends.
        cluster.node(2, |node| node["metadata"]["labels"] = json!({}));
        cluster.settle(&["node-2"]).await;
        cluster.node(2, add_label);
        sleep(60 * SECOND).await;
        cluster.until_down(&["node-2"]).await;
        cluster.taint(2, &[]);
        cluster.settle(&[]).await;
        assert_eq!(cluster.puts().len(), 6, "{label}");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_load_balancers_and_empty_groups_are_no_error() {
    let vnet = json!({"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/v"), "location": "eastus", "properties": {}});
    let cluster = TestCluster::with(2, &[vnet]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    assert!(
        cluster.puts().is_empty() && cluster.world.events().await.is_empty(),
        "{:?}",
        cluster.world.events().await
    );
}
