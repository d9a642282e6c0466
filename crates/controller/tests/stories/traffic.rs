//! What the leader knows of each Node with a signal from its last reads: what a maintenance waits for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_controller::admin_state::{AdminStateMode, Policy};
use headgate_core::node::{NodeTraffic, TrafficByNode, Unproved};
use headgate_test_kubernetes::{Fault, RecordedRequest};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::rows::cluster::{TestCluster, entry};
use super::world::{ENFORCE, SECOND, entries, load_balancer, two_load_balancers};

const MAINTENANCE: &str = "headgate.dev/maintenance";

struct Scene {
    cluster: TestCluster,
    reads: watch::Receiver<Arc<TrafficByNode>>,
}

impl Scene {
    async fn new(mut cluster: TestCluster, policy: Policy) -> Self {
        let sender = watch::Sender::new(Arc::default());
        let reads = sender.subscribe();
        cluster.world.traffic = Some(sender);
        cluster.lead(policy).await;
        Self { cluster, reads }
    }

    fn read(&self, node: &str) -> Option<NodeTraffic> {
        self.reads.borrow().get(node).cloned()
    }

    /// Waits until the read of a node is as expected.
    async fn until(&self, node: &str, expected: impl Fn(&NodeTraffic) -> bool) -> NodeTraffic {
        let deadline = Instant::now() + Duration::from_mins(3);
        loop {
            match self.read(node) {
                Some(read) if expected(&read) => return read,
                read => assert!(Instant::now() < deadline, "{node}: {read:?}"),
            }
            sleep(SECOND / 10).await;
        }
    }
}

fn is_out(read: &NodeTraffic) -> bool {
    matches!(read, NodeTraffic::Out { since: Some(_) })
}

#[tokio::test(start_paused = true)]
async fn a_node_is_out_once_a_read_shows_all_its_entries_down() {
    let scene = Scene::new(TestCluster::without_leader(3, &two_load_balancers(3)).await, ENFORCE).await;
    assert_eq!(**scene.reads.borrow(), TrafficByNode::new(), "no node has a signal");
    scene.cluster.taint(1, &[MAINTENANCE]);
    let read = scene.until("node-1", is_out).await;
    let down = scene.cluster.down();
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
    assert_eq!(scene.read("node-1"), Some(NodeTraffic::Out { since: Some(since) }));
    assert_eq!(scene.reads.borrow().len(), 1);

    // Another writer puts the node back into service.
    let mut reads = scene.reads.clone();
    scene
        .cluster
        .foreign("kubernetes", "kubernetes", |pool| {
            entry(pool, "node-1")["properties"]["adminState"] = json!("None");
        })
        .await;
    let lost = reads.wait_for(|reads| matches!(reads.get("node-1"), Some(NodeTraffic::InService { .. })));
    let lost = tokio::time::timeout(60 * SECOND, lost)
        .await
        .unwrap()
        .unwrap()
        .get("node-1")
        .cloned();
    let detail = "in service in kubernetes/kubernetes".to_owned();
    assert_eq!(lost, Some(NodeTraffic::InService { detail }));
    let NodeTraffic::Out { since: Some(again) } = scene.until("node-1", is_out).await else {
        unreachable!()
    };
    assert!(again >= since);

    scene.cluster.taint(1, &[]);
    scene.cluster.settle(&[]).await;
    assert_eq!(scene.read("node-1"), None, "without a signal nothing is known");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_has_the_time_from_the_ledger() {
    let mut scene = Scene::new(TestCluster::without_leader(3, &two_load_balancers(3)).await, ENFORCE).await;
    scene.cluster.taint(1, &[MAINTENANCE]);
    let first = scene.until("node-1", is_out).await;
    sleep(30 * SECOND).await;
    scene.cluster.stop().await;
    assert_eq!(scene.read("node-1"), None, "what another term read says nothing");
    sleep(30 * SECOND).await;
    scene.cluster.lead(ENFORCE).await;
    let NodeTraffic::Out { since: Some(since) } = scene.until("node-1", is_out).await else {
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
    let cluster = TestCluster::without_leader(2, &pools).await;
    let services = Api::<Service>::namespaced(cluster.world.client.clone(), "default");
    let service = |class: Option<&str>| {
        let service = json!({"metadata": {"name": "web"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
        serde_json::from_value::<Service>(service).unwrap()
    };
    let params = PostParams::default();
    services.create(&params, &service(None)).await.unwrap();
    let mut scene = Scene::new(cluster, ENFORCE).await;
    scene.cluster.taint(1, &[MAINTENANCE]);
    // Most likely `azure.clusterName` is wrong, and the load balancer sends on.
    let is_unknown = |read: &NodeTraffic| matches!(read, NodeTraffic::Unknown(Unproved::NoLoadBalancer));
    scene.until("node-1", is_unknown).await;
    sleep(10 * 60 * SECOND).await;
    assert!(is_unknown(&scene.read("node-1").unwrap()), "{:?}", scene.read("node-1"));
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
    scene.until("node-1", is_out).await;
    // The next leader lists first, which takes 10 s here.
    scene.cluster.stop().await;
    scene.cluster.start_leader(ENFORCE).await;
    let is_slow = |request: &RecordedRequest| request.path.ends_with("/endpointslices");
    scene.cluster.line.set_for(Fault::Slow(5 * SECOND), is_slow);
    scene
        .until("node-1", |read| matches!(read, NodeTraffic::Unknown(_)))
        .await;
    let began = Instant::now();
    let is_known = |read: &NodeTraffic| {
        !matches!(
            read,
            NodeTraffic::Unknown(Unproved::NotPlanned | Unproved::NotListed(_))
        )
    };
    assert!(is_out(&scene.until("node-1", is_known).await));
    assert!(began.elapsed() < 12 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn lists_that_fail_make_it_unknown_until_they_succeed() {
    let scene = Scene::new(TestCluster::without_leader(2, &two_load_balancers(2)).await, ENFORCE).await;
    scene.cluster.taint(1, &[MAINTENANCE]);
    scene.until("node-1", is_out).await;
    let refused =
        json!({"answer": {"status": 403, "body": {"error": {"code": "AuthorizationFailed", "message": "no read"}}}});
    scene.cluster.fault("GET", "/loadBalancers$", None, &refused);
    let read = scene
        .until("node-1", |read| matches!(read, NodeTraffic::Unknown(_)))
        .await;
    let NodeTraffic::Unknown(reason) = read else {
        unreachable!()
    };
    let reason = reason.to_string();
    assert!(reason.starts_with("load balancers are not listed: "), "{reason}");
    scene.cluster.clear_faults();
    scene.until("node-1", is_out).await;
}

/// Such as the page of a proxy: it says nothing about the load balancer, nor about the machine of an interface.
#[tokio::test(start_paused = true)]
async fn a_404_that_is_not_arms_proves_nothing() {
    let scene = Scene::new(TestCluster::without_leader(2, &two_load_balancers(2)).await, ENFORCE).await;
    let page = json!({"answer": {"status": 404, "text": "404 page not found"}});
    scene.cluster.fault("GET", "/loadBalancers/[^/]*$", None, &page);
    scene.cluster.taint(1, &[MAINTENANCE]);
    for _ in 0..600 {
        let read = scene.read("node-1");
        assert!(!matches!(read, Some(NodeTraffic::Out { .. })), "{read:?}");
        sleep(SECOND / 10).await;
    }
    assert!(scene.cluster.down().values().all(BTreeSet::is_empty));
    scene.cluster.clear_faults();
    scene.until("node-1", is_out).await;
}

/// ARM's replicas may lag: one answers that a load balancer is missing which the last list shows.
#[tokio::test(start_paused = true)]
async fn a_404_of_arms_does_not_prove_what_the_list_disproves() {
    let scene = Scene::new(TestCluster::without_leader(2, &two_load_balancers(2)).await, ENFORCE).await;
    sleep(5 * SECOND).await;
    let missing = json!({"answer": {"status": 404, "body": {"error": {"code": "ResourceNotFound", "message": "m"}}}});
    scene.cluster.fault("GET", "/loadBalancers/[^/]*$", None, &missing);
    scene.cluster.taint(1, &[MAINTENANCE]);
    for _ in 0..600 {
        let read = scene.read("node-1");
        assert!(!matches!(read, Some(NodeTraffic::Out { .. })), "{read:?}");
        sleep(SECOND / 10).await;
    }
    scene.cluster.clear_faults();
    scene.until("node-1", is_out).await;
}

#[tokio::test(start_paused = true)]
async fn modes_that_set_nothing_down_say_so() {
    for (mode, expected) in [
        (AdminStateMode::Observe, "; adminState.mode is Observe"),
        (AdminStateMode::Disabled, "adminState.mode is Disabled"),
    ] {
        let policy = Policy { mode, ..ENFORCE };
        let scene = Scene::new(TestCluster::without_leader(2, &two_load_balancers(2)).await, policy).await;
        scene.cluster.taint(1, &[MAINTENANCE]);
        let says = |read: &NodeTraffic| match read {
            NodeTraffic::InService { detail } => detail.ends_with(expected),
            NodeTraffic::Unknown(why) => why.to_string() == expected,
            _ => false,
        };
        scene.until("node-1", says).await;
        assert!(scene.cluster.down().values().all(BTreeSet::is_empty), "{mode:?}");
    }
}
