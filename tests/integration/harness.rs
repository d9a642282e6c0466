//! The harness of the integration tests besides the control plane: agents, plain HTTP and network namespaces.
//!
//! Processes end with the thread that starts them, so a test must start its agents on its own thread: use
//! `#[tokio::test]` without `flavor = "multi_thread"`.

#![allow(
    dead_code,
    unused_imports,
    reason = "a test target may use only a part of the harness"
)]

pub(crate) mod agent;
pub(crate) mod command;
pub(crate) mod controller;
pub(crate) mod http;
pub(crate) mod network;

pub(crate) use agent::AgentOptions;
pub(crate) use command::{headgate, stdout_of, succeed};
pub(crate) use controller::start_controller;
pub(crate) use network::in_network_namespace;

/// A settings file with these settings.
pub(crate) fn settings_file(settings: &str) -> String {
    format!("apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n{settings}")
}
