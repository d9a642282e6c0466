//! Tests of the election and of the ARM lock. They are one binary, so that they share one control plane.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails where a precondition does"
)]

mod arm_lock;
mod leader;
