//! The spans of reconciles: the fields of each, and that each call to ARM is below one.

use std::collections::BTreeSet;

use headgate_test_kubernetes::{RecordedSpan, RecordedSpans};
use serde_json::json;

use super::local_pools::cluster::LocalCluster;
use super::marker::cluster;
use super::rows::cluster::DRAINING;

/// Of the span of a pool: term, node, count of nodes, load balancer, pool.
fn subject(span: &RecordedSpan) -> [&str; 5] {
    ["term", "node", "nodes", "load_balancer", "pool"].map(|name| span.field(name))
}

/// The calls to ARM, each with the names of its parents.
fn calls(spans: &RecordedSpans, method: &str) -> Vec<(RecordedSpan, Vec<&'static str>)> {
    let calls = spans.named("arm").into_iter();
    let of_method = calls.filter(|call| call.field("http.request.method") == method);
    of_method.map(|call| (call.clone(), spans.parents(&call))).collect()
}

#[tokio::test(start_paused = true)]
async fn each_call_of_an_admin_state_write_is_below_the_span_of_its_pool_and_term() {
    let (spans, _guard) = RecordedSpans::start();
    let cluster = cluster().await;
    let term = cluster.leader().terms.borrow().as_ref().unwrap().number().to_string();
    cluster.taint(2, &[DRAINING]);
    cluster.until_down(&["node-2"]).await;
    cluster
        .until("the marker", |_| {
            let markers = spans.named("reconcile_node");
            markers.iter().any(|span| span.field("node") == "node-2")
        })
        .await;

    let pools = spans.named("reconcile_pool");
    let subjects: BTreeSet<_> = pools.iter().map(subject).collect();
    let expected = [
        [&term, "node-2", "", "kubernetes", "kubernetes"],
        [&term, "node-2", "", "kubernetes", "kubernetes-IPv6"],
        [&term, "node-2", "", "kubernetes-internal", "kubernetes"],
    ];
    assert_eq!(subjects, expected.into());
    for pool in &pools {
        assert_eq!(spans.parents(pool), ["reconcile_load_balancer"]);
        assert_eq!(pool.field("otel.status_code"), "");
    }
    let puts = calls(&spans, "PUT");
    assert_eq!(puts.len(), 3);
    for (put, parents) in &puts {
        assert_eq!(parents[..], ["reconcile_pool", "reconcile_load_balancer"], "{put:?}");
    }
    let reads = calls(&spans, "GET");
    for expected in ["list_load_balancers", "reconcile_load_balancer", "reconcile_pool"] {
        assert!(
            reads.iter().any(|(_, parents)| parents.first() == Some(&expected)),
            "{expected}"
        );
    }
    assert!(reads.iter().all(|(_, parents)| !parents.is_empty()), "{reads:?}");
    for name in ["list_load_balancers", "reconcile_load_balancer", "reconcile_node"] {
        let found = spans.named(name);
        assert!(found.iter().all(|span| span.field("term") == term), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_write_is_an_error_of_its_pool_and_of_the_attempt() {
    let (spans, _guard) = RecordedSpans::start();
    let cluster = cluster().await;
    let refusal = json!({"answer": {"status": 403}});
    cluster.fault("PUT", "/kubernetes-IPv6$", Some(1), &refusal);
    // Both Nodes of one pool are written by one PUT.
    for node in [1, 2] {
        cluster.taint(node, &[DRAINING]);
    }
    cluster.until_down(&["node-1", "node-2"]).await;

    let is_error = |span: &&RecordedSpan| span.field("otel.status_code") == "ERROR";
    let pools = spans.named("reconcile_pool");
    let failed: Vec<_> = pools.iter().filter(is_error).collect();
    assert_eq!(failed.len(), 1, "{pools:?}");
    assert_eq!(subject(failed[0])[1..], ["", "2", "kubernetes", "kubernetes-IPv6"]);
    assert_eq!(failed[0].field("error.type"), "Forbidden");
    assert!(failed[0].field("otel.status_description").contains("Forbidden"));
    let attempts = spans.named("reconcile_load_balancer");
    let failed: Vec<_> = attempts.iter().filter(is_error).collect();
    assert_eq!(failed.len(), 1, "{attempts:?}");
    assert_eq!(failed[0].field("error.type"), "Forbidden");
    assert!(
        pools
            .iter()
            .filter(|span| span.field("pool") == "kubernetes-IPv6")
            .count()
            > 1,
        "it was repeated"
    );
}

#[tokio::test(start_paused = true)]
async fn update_of_a_local_services_pool_has_the_span_of_its_pool() {
    let (spans, _guard) = RecordedSpans::start();
    let cluster = LocalCluster::start().await;
    cluster.set_slice("web", "web-1", &[1, 2]).await;
    cluster.tick().await;
    assert_eq!(cluster.puts(), 1);
    let pools = spans.named("reconcile_pool");
    assert_eq!(pools.len(), 1);
    assert_eq!(
        subject(&pools[0])[1..],
        ["", "0", "kubernetes", "default-web"],
        "no admin state changes"
    );
    let puts = calls(&spans, "PUT");
    assert_eq!(puts[0].1, ["reconcile_pool", "reconcile_load_balancer"]);
    let ticks = spans.named("reconcile_local_pools");
    assert!(!ticks.is_empty() && ticks.iter().all(|tick| tick.parent.is_none()));
    assert!(ticks.iter().all(|tick| !tick.field("term").is_empty()));
}
