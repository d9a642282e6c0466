//! Kubernetes for tests: a fake API server in process ([`FakeApi`]), and a real control plane that the tests of a binary
//! share ([`control_plane`]). Randomised stories follow from their seeds ([`run_seeds`]), objects from their schema and a seed
//! ([`samples`]), and other stories are disturbed at each of their fault points ([`run_fault_points`]).
//!
//! A test creates its own `Client` (it belongs to the test's runtime) and its own Node with [`create_node`], so that tests run
//! in parallel against the same [`control_plane`]. A test that stops kube-apiserver starts an [`own_control_plane`]. Only
//! `[dev-dependencies]` contain this crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a failure of the fixture fails the test"
)]

mod blocked_logs;
mod cluster;
mod fake;
mod fault_points;
mod fault_runs;
mod lab_program;
mod random;
mod recorded_spans;
mod schema_values;
mod scratch;
mod series_value;
mod shared_lease;

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use headgate_kubernetes::{CONTROLLER, EventSink};
use kube::Client;

pub use blocked_logs::blocked_logs;
pub use cluster::{
    Cluster, assets, control_plane, create_node, is_kubernetes_1_30, kubectl, own_cluster, own_control_plane,
    own_control_plane_with, patch_node, set_taints,
};
pub use fake::{ClientFaults, FakeApi, Fault, RecordedRequest, RequestFilter};
pub use fault_points::{FaultPoint, FaultPoints, Pattern, ProcessPoints, keep_running};
pub use fault_runs::{Failure, Story, find_failure, run_fault_points};
pub use lab_program::lab_program;
pub use random::{Random, fixed_seeds, number_from, run_seeds};
pub use recorded_spans::{RecordedSpan, RecordedSpans};
pub use schema_values::{Sample, samples};
pub use scratch::{scratch, write_program};
pub use series_value::series_value;
pub use shared_lease::{CCM, OtherProcess, SHARED_LEASE};

/// A sink of the leader on `node`, whose events are written as long as the test runs.
pub fn event_sink(client: Client, node: &str) -> EventSink {
    let (sink, queue) = EventSink::new(client, node.to_owned());
    tokio::spawn(queue.write_until(std::future::pending()));
    sink.reported_by(CONTROLLER)
}

/// An attempt of [`eventually`] that succeeds if something is so; `seen` is what else there is.
///
/// # Errors
/// When it is not so.
pub fn met(is_met: bool, seen: impl fmt::Display) -> Result<(), String> {
    is_met.then_some(()).ok_or_else(|| seen.to_string())
}

/// Panics unless the text has each of these parts, with the one that it lacks.
#[macro_export]
macro_rules! assert_contains {
    ($text:expr, $($part:expr),+ $(,)?) => {{
        let text: &str = &$text;
        $(
            let part: &str = &$part;
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        )+
    }};
}

/// Repeats `attempt`, with a pause of 20 ms after each failure, until it returns a value. Panics after `within` with
/// `what` and the last failure.
pub async fn eventually<T>(within: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + within;
    let mut last_failure = "the first attempt did not end".to_owned();
    while let Ok(outcome) = timeout_at(deadline, attempt()).await {
        match outcome {
            Ok(value) => return value,
            Err(reason) => last_failure = reason,
        }
        if Instant::now() >= deadline {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("not within {within:?}: {what}; last: {last_failure}");
}
