//! Cluster Autoscaler waits until a node has left its load balancers, with the leader and the agent of the node in paused time.
//!
//! It is a model with the measured times (docs/guides/autoscalers.md): it reads the annotation before it decides, waits 5 s after its taint,
//! and then looks every 5 s for 2 min at most.

use std::time::Duration;

use headgate_core::node::{CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION, SignalSettings};
use headgate_test_kubernetes::ClientFaults;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::rows::cluster::TestCluster;
use super::world::{ENFORCE, SECOND, run_agent, two_load_balancers};

pub(crate) const HARD_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const TIMEOUT: Duration = Duration::from_mins(1);
const TIMED_OUT: &str = "DeletionDelayTimedOut";

async fn cluster(has_leader: bool) -> TestCluster {
    let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
    cluster.world.marker = true;
    if has_leader {
        cluster.lead(ENFORCE).await;
    }
    cluster
}

/// The part of node 2's agent that writes its Node, and its connection to the API server.
pub(crate) fn start_agent(cluster: &TestCluster, timeout: Option<Duration>) -> (JoinHandle<()>, ClientFaults) {
    let (client, line) = cluster.fake.client();
    let rules = SignalSettings::default().health();
    let agent = run_agent(client, &cluster.world.clock, 2, rules, timeout);
    (tokio::spawn(agent), line)
}

pub(crate) fn set_taints(cluster: &TestCluster, keys: &[&str]) {
    let now = cluster.world.clock.now().wall.as_second().to_string();
    let taint = |key: &&str| json!({"key": key, "value": now, "effect": "NoSchedule"});
    let taints: Value = keys.iter().map(taint).collect();
    cluster.node(2, |node| node["spec"]["taints"] = taints);
}

fn node_2(cluster: &TestCluster) -> Value {
    serde_json::to_value(cluster.fake.peek::<Node>("", "node-2").unwrap()).unwrap()
}

pub(crate) fn is_delayed(cluster: &TestCluster) -> bool {
    node_2(cluster)["metadata"]["annotations"][DELETION_DELAY_ANNOTATION] == "true"
}

pub(crate) fn is_out(cluster: &TestCluster) -> bool {
    let node = node_2(cluster);
    let conditions = node["status"]["conditions"].as_array().unwrap();
    conditions
        .iter()
        .any(|condition| condition["type"] == "headgate.dev/OutOfLoadBalancers" && condition["status"] == "True")
}

/// Writes of the metadata of node 2 so far.
fn writes(cluster: &TestCluster) -> usize {
    let requests = cluster.fake.requests().into_iter();
    requests
        .filter(|request| request.method == "PATCH" && request.path.ends_with("/nodes/node-2"))
        .count()
}

/// Cluster Autoscaler deletes node 2; returns the time from its taint to the termination of the instance, and whether the node was out.
async fn scale_down(cluster: &TestCluster) -> (Duration, bool) {
    let was_delayed = is_delayed(cluster);
    let tainted_at = Instant::now();
    set_taints(cluster, &[CANDIDATE_TAINT, HARD_TAINT]);
    sleep(5 * SECOND).await;
    let waits_until = Instant::now() + Duration::from_mins(2);
    while was_delayed && Instant::now() < waits_until {
        sleep(5 * SECOND).await;
        if !is_delayed(cluster) {
            break;
        }
    }
    (tainted_at.elapsed(), is_out(cluster))
}

/// Slows ARM down: three pools, two of them in one load balancer, take two operations one after the other.
fn slow_arm(cluster: &TestCluster) {
    let settings = json!({"operationDelay": "8s"});
    cluster.configure(&settings);
}

#[tokio::test(start_paused = true)]
async fn cluster_autoscaler_terminates_only_after_the_node_is_out() {
    // Without the setting.
    let off = cluster(true).await;
    slow_arm(&off);
    let (agent, _) = start_agent(&off, None);
    set_taints(&off, &[CANDIDATE_TAINT]);
    sleep(600 * SECOND).await;
    assert_eq!(scale_down(&off).await, (5 * SECOND, false));
    assert_eq!(writes(&off), 0);
    agent.abort();

    let on = cluster(true).await;
    slow_arm(&on);
    let (agent, _) = start_agent(&on, Some(TIMEOUT));
    sleep(SECOND).await;
    assert!(!is_delayed(&on));
    set_taints(&on, &[CANDIDATE_TAINT]);
    sleep(600 * SECOND).await;
    assert!(is_delayed(&on) && !is_out(&on));
    let (took, was_out) = scale_down(&on).await;
    assert!(
        was_out && took >= 15 * SECOND && took <= 30 * SECOND,
        "{took:?} {was_out}"
    );
    assert_eq!(writes(&on), 2, "one to set it, one to remove it");
    assert!(on.notes(TIMED_OUT, "node-2").await.is_empty());
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn quick_azure_costs_five_seconds() {
    let cluster = cluster(true).await;
    let (agent, _) = start_agent(&cluster, Some(TIMEOUT));
    set_taints(&cluster, &[CANDIDATE_TAINT]);
    sleep(10 * SECOND).await;
    assert_eq!(scale_down(&cluster).await, (10 * SECOND, true));
    agent.abort();
}

/// A limit: the annotation comes after the autoscaler has looked.
#[tokio::test(start_paused = true)]
async fn limit_without_a_soft_taint_nothing_is_delayed() {
    let cluster = cluster(true).await;
    slow_arm(&cluster);
    let (agent, _) = start_agent(&cluster, Some(TIMEOUT));
    sleep(10 * SECOND).await;
    assert_eq!(scale_down(&cluster).await, (5 * SECOND, false));
    assert!(is_delayed(&cluster), "set too late");
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn rollback_removes_the_annotation() {
    let cluster = cluster(false).await;
    let (agent, _) = start_agent(&cluster, Some(TIMEOUT));
    for keys in [&[CANDIDATE_TAINT][..], &[CANDIDATE_TAINT, HARD_TAINT]] {
        set_taints(&cluster, keys);
        cluster.until("it is delayed", is_delayed).await;
        set_taints(&cluster, &[]);
        let took = cluster.until("it is not delayed", |cluster| !is_delayed(cluster)).await;
        assert!(took < SECOND, "{took:?}");
        sleep(10 * SECOND).await;
    }
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn switching_the_setting_off_removes_the_annotation_and_two_agents_do_not_fight() {
    let cluster = cluster(false).await;
    let (on, _) = start_agent(&cluster, Some(TIMEOUT));
    set_taints(&cluster, &[CANDIDATE_TAINT]);
    cluster.until("it is delayed", is_delayed).await;
    // Both agents of a roll.
    let (off, _) = start_agent(&cluster, None);
    sleep(30 * SECOND).await;
    assert!(is_delayed(&cluster) && writes(&cluster) == 1);
    sleep(570 * SECOND).await;
    assert!((1..=25).contains(&writes(&cluster)), "{}", writes(&cluster));
    on.abort();
    sleep(125 * SECOND).await;
    assert!(!is_delayed(&cluster));
    off.abort();
}
