//! SIGTERM, SIGINT and SIGHUP.

use headgate_test_kubernetes::{control_plane, create_node};
use nix::sys::signal::Signal;

use super::SOON;
use crate::harness::AgentOptions;

#[tokio::test]
async fn a_signal_ends_the_process_at_once_with_0() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "sigterm").await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
        agent.signal(signal);
        let status = agent.wait(SOON).await.unwrap();
        let log = agent.log();
        assert!(status.success(), "{signal}: {log}");
        assert!(log.contains("handing over the health port"), "{signal}: {log}");
    }
}
