//! A leader whose own Node gets a signal hands its term over.

use headgate_core::node::SignalMatcher;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::rows::cluster::{DRAINING, TestCluster};
use super::world::{ENFORCE, SECOND, entries, load_balancer};

/// What becomes of the leader's own Node.
type Change = fn(&mut Value);

/// The election learns of the signal from the agent, a moment before the leader's store of all Nodes shows it.
#[tokio::test(start_paused = true)]
async fn the_signal_that_ends_a_term_is_written_in_it() {
    let stays: Change = |_| {};
    let cordon: Change = |node| node["spec"]["unschedulable"] = json!(true);
    let taint: Change = |node| node["spec"]["taints"] = json!([{"key": DRAINING, "effect": "NoExecute"}]);
    for (name, before, after) in [
        ("known before", taint, stays),
        ("follows", stays, taint),
        ("follows one that does not count yet", cordon, taint),
    ] {
        let pool = ("kubernetes", entries(1..=3, false));
        let mut cluster = TestCluster::without_leader(3, &[load_balancer("kubernetes", &[pool])]).await;
        let matcher = json!({"signal": "cordon", "after": "30s"});
        cluster
            .world
            .rules
            .matchers
            .push(SignalMatcher::parse(&matcher).unwrap());
        cluster.lead_on("node-1", ENFORCE).await;
        cluster.node(1, before);
        sleep(5 * SECOND).await;
        let fake = cluster.fake.clone();
        let signal = tokio::spawn(async move {
            sleep(SECOND / 10).await;
            fake.change::<Node>("", "node-1", after);
        });
        let began = Instant::now();
        cluster.stop().await;
        let took = began.elapsed();
        signal.await.unwrap();
        assert_eq!(cluster.puts().len(), 1, "{name}");
        assert!(took < SECOND / 2, "{name}: {took:?}");
    }
}
