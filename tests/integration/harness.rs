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
pub(crate) mod objects;

pub(crate) use agent::AgentOptions;
pub(crate) use command::{headgate, refused, refused_for, stdout_of, succeed};
pub(crate) use controller::start_controller;
pub(crate) use network::in_network_namespace;

/// Timeout of every wait, long enough for a busy machine.
pub(crate) const SOON: std::time::Duration = std::time::Duration::from_mins(1);

/// A free address that no other test and no connection uses: of 127.0.0.0/8, by the process, and not an ephemeral port.
pub(crate) fn own_address() -> std::net::SocketAddr {
    static NUMBER: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(10_500);
    let [.., high, low] = std::process::id().to_be_bytes();
    let port = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    ([127, 77, high, low], port).into()
}

/// A settings file with these settings.
pub(crate) fn settings_file(settings: &str) -> String {
    format!("apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n{settings}")
}
