//! Admin states: the leader's work on the ARM emulator, with the Kubernetes API made up and real.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

mod bad_input;
mod journey;
mod rival;
mod rows;
mod stories;
mod truth;
mod world;
mod writers;
