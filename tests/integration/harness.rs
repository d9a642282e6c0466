//! What the integration tests stand on: a shared control plane, agents, plain HTTP, network namespaces,
//! and waiting with a bound.
//!
//! A test makes its own `Client` (it belongs to the test's runtime) and its own Node with [`create_node`],
//! so tests run side by side against the one [`control_plane`]. A test that stops kube-apiserver starts an
//! [`own_control_plane`]. Processes end with the thread that starts them, so a test starts its agents
//! from the thread it runs on: `#[tokio::test]` as it is, never `flavor = "multi_thread"`.

#![allow(
    dead_code,
    unused_imports,
    reason = "what a test needs next is here before the test is"
)]

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout_at};

pub(crate) mod agent;
pub(crate) mod cluster;
pub(crate) mod http;
pub(crate) mod network;
pub(crate) mod scratch;

pub(crate) use agent::AgentOptions;
pub(crate) use cluster::{assets, control_plane, own_control_plane};
pub(crate) use network::in_own_network;
pub(crate) use scratch::scratch;

/// Makes a Node of the test's own, ready and without taints; gives its name, which starts with `prefix`.
pub(crate) async fn create_node(client: &Client, prefix: &str) -> String {
    static MADE: AtomicU8 = AtomicU8::new(1);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("{prefix}-{number}");
    let node = headgate_sandbox::nodes::node(&name, number, "integration");
    Api::<Node>::all(client.clone())
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    name
}

/// Tries again, every 20 ms and at once after a failure, until `attempt` gives a value; panics after `within`
/// with what was waited for and what was last in the way.
pub(crate) async fn eventually<T>(
    within: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + within;
    let mut obstacle = "the first attempt did not end".to_owned();
    while let Ok(outcome) = timeout_at(deadline, attempt()).await {
        match outcome {
            Ok(value) => return value,
            Err(reason) => obstacle = reason,
        }
        if Instant::now() >= deadline {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("not within {within:?}: {what}; last: {obstacle}");
}
