//! Kubernetes for tests: an API server made up in process ([`FakeApi`]), and a real control plane that the tests of a binary
//! share ([`control_plane`]).
//!
//! A test makes its own `Client` (it belongs to the test's runtime) and its own Node with [`create_node`], so tests run side
//! by side against the one [`control_plane`]. A test that stops kube-apiserver starts an [`own_control_plane`]. Only
//! `[dev-dependencies]` name this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "what a test cannot do without fails the test"
)]

mod cluster;
mod fake;
mod scratch;

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

pub use cluster::{Cluster, assets, control_plane, create_node, kubectl, own_control_plane};
pub use fake::{Asked, FakeApi, Fault, Line, Which};
pub use scratch::scratch;

/// Tries again, every 20 ms and at once after a failure, until `attempt` gives a value; panics after `within`
/// with what was waited for and what was last in the way.
pub async fn eventually<T>(within: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Result<T, String>) -> T {
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
