//! Tests against real parts: one control plane (etcd and kube-apiserver) for all of them, real agents as
//! child processes. One binary, so that there is one link and one control plane.
//!
//! `KUBEBUILDER_ASSETS` names the control plane's programs; without it tests/control-plane/build.sh
//! provides them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail the test"
)]

mod harness;
mod sandbox;
