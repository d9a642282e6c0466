//! The emulator with Azure's real cloud-controller-manager: a test target of its own, run by name only, as
//! `make cloud-controller-manager` does.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "an unmet requirement fails the test; this target uses only a part of the integration tests' harness"
)]

mod chaos;
mod emulator {
    mod beside_cloud_controller_manager;
    pub(crate) mod cloud_controller_manager;
    pub(crate) mod emulator_process;
    mod real_cloud_controller_manager;
}
mod harness;
