//! What the leader knows of each Node with a signal from its last reads: what a maintenance waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_controller::admin_state::{AdminStateMode, Policy};
use headgate_core::node::{NodeTraffic, TrafficByNode, Unproved};
use headgate_test_kubernetes::{Fault, RecordedRequest};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::rows::cluster::TestCluster;
use super::world::{ENFORCE, SECOND, World, arm_error, entries, load_balancer, two_load_balancers};

const MAINTENANCE: &str = "headgate.dev/maintenance";

async fn cluster(nodes: usize) -> TestCluster {
    TestCluster::configured(nodes, &two_load_balancers(nodes), World::publish_traffic).await
}

/// Waits until the read of the first node is as expected.
async fn until(cluster: &TestCluster, expected: impl Fn(&NodeTraffic) -> bool) -> NodeTraffic {
    let deadline = Instant::now() + Duration::from_mins(3);
    loop {
        match cluster.read("node-1") {
            Some(read) if expected(&read) => return read,
            read => assert!(Instant::now() < deadline, "{read:?}"),
        }
        sleep(SECOND / 10).await;
    }
}

fn is_out(read: &NodeTraffic) -> bool {
    matches!(read, NodeTraffic::Out { since: Some(_) })
}

#[tokio::test(start_paused = true)]
async fn a_node_is_out_once_a_read_shows_all_its_entries_down() {
    let cluster = cluster(3).await;
    assert_eq!(
        **cluster.world.traffic.as_ref().unwrap().borrow(),
        TrafficByNode::new(),
        "no node has a signal"
    );
    cluster.taint(1, &[MAINTENANCE]);
    let read = until(&cluster, is_out).await;
    let down = cluster.down();
    assert!(
        down.len() == 3 && down.values().all(|names| names.contains("node-1")),
        "{down:?}"
    );
    let NodeTraffic::Out { since: Some(since) } = read else {
        panic!("{read:?}")
    };
    assert_eq!(since.subsec_nanosecond(), 0);
    // It stays the same while nothing changes.
    sleep(60 * SECOND).await;
    assert_eq!(cluster.read("node-1"), Some(NodeTraffic::Out { since: Some(since) }));
    assert_eq!(cluster.world.traffic.as_ref().unwrap().borrow().len(), 1);

    // Another writer puts the node back into service.
    let mut reads = cluster.world.traffic.as_ref().unwrap().subscribe();
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-1", "None")
        .await;
    let lost = reads.wait_for(|reads| matches!(reads.get("node-1"), Some(NodeTraffic::InService { .. })));
    let lost = timeout(60 * SECOND, lost)
        .await
        .unwrap()
        .unwrap()
        .get("node-1")
        .cloned();
    let detail = "in service in kubernetes/kubernetes".to_owned();
    assert_eq!(lost, Some(NodeTraffic::InService { detail }));
    let NodeTraffic::Out { since: Some(again) } = until(&cluster, is_out).await else {
        unreachable!()
    };
    assert!(again >= since);

    cluster.taint(1, &[]);
    cluster.settle(&[]).await;
    assert_eq!(cluster.read("node-1"), None, "without a signal nothing is known");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_has_the_time_from_the_ledger() {
    let mut cluster = cluster(3).await;
    cluster.taint(1, &[MAINTENANCE]);
    let first = until(&cluster, is_out).await;
    sleep(30 * SECOND).await;
    cluster.stop().await;
    assert_eq!(cluster.read("node-1"), None, "what another term read says nothing");
    sleep(30 * SECOND).await;
    cluster.lead(ENFORCE).await;
    let NodeTraffic::Out { since: Some(since) } = until(&cluster, is_out).await else {
        unreachable!()
    };
    let NodeTraffic::Out { since: Some(before) } = first else {
        unreachable!()
    };
    assert!(since.duration_since(before).as_secs() <= 2, "{before} {since}");
}

#[tokio::test(start_paused = true)]
async fn without_load_balancers_a_node_is_out_only_if_no_service_wants_one() {
    let pools = [load_balancer("other", &[("kubernetes", entries([1, 2], false))])];
    let mut cluster = TestCluster::without_leader(2, &pools).await;
    cluster.world.publish_traffic();
    let services = Api::<Service>::namespaced(cluster.world.client.clone(), "default");
    let service = |class: Option<&str>| {
        let service = json!({"metadata": {"name": "web"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
        serde_json::from_value::<Service>(service).unwrap()
    };
    let params = PostParams::default();
    services.create(&params, &service(None)).await.unwrap();
    cluster.lead(ENFORCE).await;
    cluster.taint(1, &[MAINTENANCE]);
    // Most likely `azure.clusterName` is wrong, and the load balancer sends on.
    let is_unknown = |read: &NodeTraffic| matches!(read, NodeTraffic::Unknown(Unproved::NoLoadBalancer));
    until(&cluster, is_unknown).await;
    sleep(10 * 60 * SECOND).await;
    assert!(
        is_unknown(&cluster.read("node-1").unwrap()),
        "{:?}",
        cluster.read("node-1")
    );
    // One that waits for its load balancer has none, and another controller's Service needs none of cloud-controller-manager.
    let mut waiting = service(None);
    (waiting.metadata.name, waiting.status) = (Some("waiting".to_owned()), None);
    services.create(&params, &waiting).await.unwrap();
    services.delete("web", &DeleteParams::default()).await.unwrap();
    services
        .create(&params, &service(Some("example.com/other")))
        .await
        .unwrap();
    let is_out = |read: &NodeTraffic| *read == NodeTraffic::Out { since: None };
    until(&cluster, is_out).await;
    // The next leader lists first, which takes 10 s here.
    cluster.stop().await;
    cluster.start_leader(ENFORCE).await;
    let is_slow = |request: &RecordedRequest| request.path.ends_with("/endpointslices");
    cluster.line.set_for(Fault::Slow(5 * SECOND), is_slow);
    until(&cluster, |read| matches!(read, NodeTraffic::Unknown(_))).await;
    let began = Instant::now();
    let is_known = |read: &NodeTraffic| {
        !matches!(
            read,
            NodeTraffic::Unknown(Unproved::NotPlanned | Unproved::NotListed(_))
        )
    };
    assert!(is_out(&until(&cluster, is_known).await));
    assert!(began.elapsed() < 12 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lists_that_fail_make_it_unknown_until_they_succeed() {
    let cluster = cluster(2).await;
    cluster.taint(1, &[MAINTENANCE]);
    until(&cluster, is_out).await;
    cluster.fault("GET", "/loadBalancers$", None, &arm_error(403, "AuthorizationFailed"));
    let read = until(&cluster, |read| matches!(read, NodeTraffic::Unknown(_))).await;
    let NodeTraffic::Unknown(reason) = read else {
        unreachable!()
    };
    let reason = reason.to_string();
    assert!(reason.starts_with("load balancers are not listed: "), "{reason}");
    cluster.clear_faults();
    until(&cluster, is_out).await;
}

/// One that is not ARM's, such as the page of a proxy, says nothing about the load balancer, nor about the machine of an interface; and ARM's
/// replicas may lag: one answers that a load balancer is missing which the last list shows.
#[tokio::test(start_paused = true)]
async fn a_404_proves_nothing_that_the_list_disproves() {
    let page = json!({"answer": {"status": 404, "text": "404 page not found"}});
    for (missing, is_down) in [(page, false), (arm_error(404, "ResourceNotFound"), true)] {
        let cluster = cluster(2).await;
        sleep(5 * SECOND).await;
        cluster.fault("GET", "/loadBalancers/[^/]*$", None, &missing);
        cluster.taint(1, &[MAINTENANCE]);
        for _ in 0..600 {
            let read = cluster.read("node-1");
            assert!(!matches!(read, Some(NodeTraffic::Out { .. })), "{missing}: {read:?}");
            sleep(SECOND / 10).await;
        }
        assert!(is_down || cluster.down().values().all(BTreeSet::is_empty), "{missing}");
        cluster.clear_faults();
        until(&cluster, is_out).await;
    }
}

#[tokio::test(start_paused = true)]
async fn modes_that_set_nothing_down_say_so() {
    for (mode, expected) in [
        (AdminStateMode::Observe, "; adminState.mode is Observe"),
        (AdminStateMode::Disabled, "adminState.mode is Disabled"),
    ] {
        let policy = Policy { mode, ..ENFORCE };
        let mut cluster = TestCluster::without_leader(2, &two_load_balancers(2)).await;
        cluster.world.publish_traffic();
        cluster.lead(policy).await;
        cluster.taint(1, &[MAINTENANCE]);
        let says = |read: &NodeTraffic| match read {
            NodeTraffic::InService { detail } => detail.ends_with(expected),
            NodeTraffic::Unknown(why) => why.to_string() == expected,
            _ => false,
        };
        until(&cluster, says).await;
        assert!(cluster.down().values().all(BTreeSet::is_empty), "{mode:?}");
    }
}
