//! headgate with the real Cluster Autoscaler and the real Karpenter, on a real control plane with kwok for the kubelets and the emulator for
//! Azure: a test target of its own, run by name only, as `make autoscalers` does.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "an unmet requirement fails the test; this target uses only a part of the integration tests' harness"
)]

mod emulator {
    pub(crate) mod emulator_process;
}
mod harness;
mod real_autoscalers {
    mod azure;
    mod cluster;
    mod cluster_autoscaler;
    mod held_pods;
    mod karpenter;
    mod timeline;
}
