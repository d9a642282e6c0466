//! What the integration tests stand on besides a control plane: agents, plain HTTP and network namespaces.
//!
//! Processes end with the thread that starts them, so a test starts its agents from the thread it runs on:
//! `#[tokio::test]` as it is, never `flavor = "multi_thread"`.

#![allow(
    dead_code,
    unused_imports,
    reason = "what a test needs next is here before the test is"
)]

pub(crate) mod agent;
pub(crate) mod http;
pub(crate) mod network;

pub(crate) use agent::AgentOptions;
pub(crate) use network::in_network_namespace;
