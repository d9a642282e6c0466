//! The election and the ARM lock, on the Kubernetes API made up and real: one binary, with one control plane for all of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

mod arm_lock;
mod leader;
