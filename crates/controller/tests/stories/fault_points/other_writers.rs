//! Stories of what else the leader writes: members of pools, conditions and taints of Nodes; and of the agent that waits for it.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use headgate_azure_emulator::{entries_of, pools_in};
use headgate_core::node::{CANDIDATE_TAINT, DRAINING_TAINT};
use headgate_test_kubernetes::{FaultPoints, keep_running};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::super::held_deletions::{self, HARD_TAINT, is_delayed, is_out, start_agent};
use super::super::invariants::Invariants;
use super::super::local_pools::cluster::{LocalCluster, Options, nodes, operations_of};
use super::super::rows::cluster::{SECOND, TestCluster};
use super::super::world::{World, address, load_balancer, pool_path};
use super::admin_states::{FIRST, alone};
use super::stage::{Stage, run_replica, until};

const APPLIANCE: &str = "192.168.7.7";
const NEW_APPLIANCE: &str = "192.168.7.8";

/// The members of a pool follow the endpoints of its Service, although ARM refuses the first write; what another writer adds stays.
pub(super) async fn local_pool_with_refusal(points: FaultPoints) {
    play_local_pool(&points).await;
}

pub(super) async fn local_pool_without_etags(points: FaultPoints) {
    points.ignore_etags();
    play_local_pool(&points).await;
}

async fn play_local_pool(points: &FaultPoints) {
    let members = json!([
        {"name": "node-1", "properties": {"ipAddress": address(1, false)}},
        {"name": "appliance", "properties": {"ipAddress": APPLIANCE}},
    ]);
    let cluster = LocalCluster::with(Options {
        load_balancers: vec![load_balancer("kubernetes", &[("default-web", members)])],
        azure: operations_of(SECOND),
        ..Options::default()
    })
    .await;
    cluster.add_service("web").await;
    cluster.set_slice("web", "web-1", &[1]).await;
    // The leaders of the story have fault points.
    cluster.leader.kill();
    cluster.fake.inject(points);
    let (_act, acts) = watch::channel(0);
    let invariants = Invariants::new(cluster.world.emulator.clone(), cluster.world.guard.minimum_in_service);
    let replica = run_replica(
        (&cluster.fake, &cluster.world),
        FIRST,
        acts,
        |terms| invariants.sender_spy(terms),
        || (),
    );
    let until_members = async |numbers: &[usize], appliances: &[&str]| {
        let appliances = appliances.iter().map(ToString::to_string);
        let expected: BTreeSet<_> = nodes(numbers).into_iter().chain(appliances).collect();
        let what = format!("{expected:?} are members, which are");
        until(
            &what,
            || addresses(&cluster) == expected,
            || format!("{:?}", addresses(&cluster)),
        )
        .await;
    };
    let script = async {
        sleep(40 * SECOND).await;
        let refusal = json!({"answer": {"code": "AnotherOperationInProgress"}});
        cluster.fault("PUT", "/default-web$", Some(1), &refusal);
        cluster.set_slice("web", "web-1", &[1, 2]).await;
        until_members(&[1, 2], &[APPLIANCE]).await;
        cluster.set_slice("web", "web-1", &[1, 2, 3]).await;
        // A read of the next tick that is late shows the state of before.
        sleep(40 * SECOND).await;
        add_appliance(&cluster.world).await;
        until_members(&[1, 2, 3], &[APPLIANCE, NEW_APPLIANCE]).await;
        cluster.set_slice("web", "web-1", &[1, 2, 3, 4]).await;
        until_members(&[1, 2, 3, 4], &[APPLIANCE, NEW_APPLIANCE]).await;
        sleep(40 * SECOND).await;
        until_members(&[1, 2, 3, 4], &[APPLIANCE, NEW_APPLIANCE]).await;
    };
    tokio::select! {
        () = replica => {}
        () = script => {}
    }
    invariants.assert_held(&[]);
    let puts = cluster.world.puts();
    assert_eq!(losing_put(&puts), None, "a member is lost");
}

/// The first PUT that loses a member: in the story none leaves. One that ARM refused may follow an older read.
fn losing_put(puts: &[Value]) -> Option<&Value> {
    let first = BTreeSet::from([APPLIANCE.to_owned(), address(1, false)]);
    let mut members = first.clone();
    puts.iter().find(|put| {
        let list = put["body"]["properties"]["loadBalancerBackendAddresses"].as_array();
        let written: BTreeSet<_> = list.into_iter().flatten().filter_map(ip_of).collect();
        let is_accepted = put["status"].as_u64().is_some_and(|status| status < 300);
        let kept = if is_accepted { &members } else { &first };
        let loses = !kept.is_subset(&written);
        if is_accepted {
            members.extend(written);
        }
        loses
    })
}

#[test]
fn a_write_that_loses_a_member_is_found() {
    let put = |status: u16, addresses: &[&str]| {
        let entry = |ip: &&str| json!({"properties": {"ipAddress": ip}});
        let entries: Vec<_> = addresses.iter().map(entry).collect();
        json!({"status": status, "body": {"properties": {"loadBalancerBackendAddresses": entries}}})
    };
    let [one, two] = [1, 2].map(|number| address(number, false));
    let (small, large) = ([APPLIANCE, &one], [APPLIANCE, &one, &two]);
    for (puts, is_found) in [
        ([put(200, &small), put(200, &large)], false),
        ([put(200, &large), put(200, &small)], true),
        ([put(201, &large), put(412, &small)], false),
        ([put(409, &large), put(200, &small)], false),
        ([put(200, &large), put(412, &[APPLIANCE, &two])], true),
    ] {
        assert_eq!(losing_put(&puts), is_found.then_some(&puts[1]));
    }
}

/// Another writer adds a member, once ARM accepts it.
async fn add_appliance(world: &World) {
    let path = pool_path("kubernetes", "default-web");
    let is_added = async || {
        let mut pool = world.get(&path).await;
        let etag = pool["etag"].as_str().unwrap().to_owned();
        let members = pool["properties"]["loadBalancerBackendAddresses"].as_array_mut();
        let appliance = json!({"name": "new-appliance", "properties": {"ipAddress": NEW_APPLIANCE}});
        members.unwrap().push(appliance);
        world.put(&path, &pool, Some(&etag)).await.status().is_success()
    };
    while !is_added().await {
        sleep(SECOND).await;
    }
}

/// The addresses of the pool's members.
fn addresses(cluster: &LocalCluster) -> BTreeSet<String> {
    let state = cluster.control("GET", "state", &Value::Null);
    pools_in(&state).flat_map(entries_of).filter_map(ip_of).collect()
}

fn ip_of(entry: &Value) -> Option<String> {
    Some(entry["properties"]["ipAddress"].as_str()?.to_owned())
}

/// Cluster Autoscaler waits for the agent, which waits for the marker; then it keeps the node.
pub(super) async fn marker_and_autoscaler_delay(points: FaultPoints) {
    let stage = Stage::new(&points, |world| world.marker = true).await;
    let agent = keep_running(async |_| {
        let (agent, line) = start_agent(&stage.cluster, Some(60 * SECOND));
        (AbortOnDropHandle::new(agent), line)
    });
    let processes: Vec<LocalBoxFuture<'_, ()>> = alone(&stage).into_iter().chain([agent.boxed_local()]).collect();
    let taint = |keys: &[&str]| {
        held_deletions::set_taints(&stage.cluster, keys);
        stage.invariants.set_taints(2, keys);
    };
    let script = async {
        taint(&[CANDIDATE_TAINT]);
        stage.until("the deletion is delayed", is_delayed).await;
        taint(&[CANDIDATE_TAINT, HARD_TAINT]);
        stage.until_down(&["node-2"]).await;
        stage
            .until("out and no longer delayed", |cluster| {
                is_out(cluster) && !is_delayed(cluster)
            })
            .await;
        taint(&[]);
        stage.until_down(&[]).await;
        stage
            .until("in service again", |cluster| !is_out(cluster) && !is_delayed(cluster))
            .await;
        stage.until_calm().await;
        assert!(!is_out(&stage.cluster) && !is_delayed(&stage.cluster));
    };
    stage.play(processes, script).await;
}

fn is_tainted(cluster: &TestCluster) -> bool {
    let node = cluster.fake.peek::<Node>("", "node-2").unwrap();
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    taints.iter().any(|taint| taint.key == DRAINING_TAINT)
}

/// An eviction notice in a Node's events taints the Node, which leaves its load balancers until the machine has started again.
pub(super) async fn spot_notice(points: FaultPoints) {
    let stage = Stage::new(&points, |world| world.preempt_events = true).await;
    let cluster = &stage.cluster;
    cluster.node(2, |node| {
        node["metadata"]["labels"] = json!({"kubernetes.azure.com/scalesetpriority": "spot"});
        node["status"]["nodeInfo"] = json!({"bootID": "boot-1"});
    });
    let script = async {
        sleep(10 * SECOND).await;
        stage.invariants.set_taints(2, &[DRAINING_TAINT]);
        let message = "Preempt Scheduled: Sat, 21 Nov 2026 10:30:00 GMT. DurationInSeconds: -1. EventId: A1";
        let event = json!({"metadata": {"name": "node-2.a1", "namespace": "default"}, "reason": "PreemptScheduled", "type": "Warning",
            "message": message, "lastTimestamp": format!("{:.0}", cluster.world.clock.now().wall),
            "involvedObject": {"kind": "Node", "name": "node-2", "uid": "node-2"},
            "source": {"component": "custom-scheduledevents-consolidated-preempt-plugin-monitor", "host": "node-2"}});
        let events = Api::<Event>::namespaced(cluster.world.client.clone(), "default");
        let event = serde_json::from_value(event).unwrap();
        events.create(&PostParams::default(), &event).await.unwrap();
        stage.until("the taint", is_tainted).await;
        stage.until_down(&["node-2"]).await;
        cluster.node(2, |node| node["status"]["nodeInfo"] = json!({"bootID": "boot-2"}));
        stage.until("no taint", |cluster| !is_tainted(cluster)).await;
        stage.invariants.set_taints(2, &[]);
        stage.until_down(&[]).await;
        stage.until_calm().await;
        assert!(!is_tainted(cluster), "the same notice acts again");
    };
    stage.play(alone(&stage), script).await;
}
