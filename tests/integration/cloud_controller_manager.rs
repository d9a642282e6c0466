//! The emulator before the real cloud-controller-manager of Azure: a test target of its own, run by name only, as
//! `make cloud-controller-manager` does.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test; most of the integration tests' means are not needed here"
)]

mod emulator {
    pub(crate) mod cloud_controller_manager;
    pub(crate) mod process;
    mod real_cloud_controller_manager;
}
mod harness;
