//! SIGTERM, SIGINT and SIGHUP: exit codes and the shutdown delay.

use std::time::{Duration, Instant};

use headgate_test_kubernetes::{control_plane, create_node, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use super::SOON;
use crate::harness::{AgentOptions, http};

#[tokio::test]
async fn sigterm_without_a_delay_ends_at_once_with_0() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "sigterm").await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
        agent.signal(signal);
        let status = agent.wait(SOON).await.unwrap();
        let log = agent.log();
        assert!(status.success(), "{signal}: {log}");
        assert!(
            log.contains("handing over the health port") && !log.contains("answers 503 first"),
            "{signal}: {log}"
        );
    }
}

#[tokio::test]
async fn a_shutdown_delay_answers_503_first_and_a_second_signal_cuts_it_short() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "delay").await;
    let settings = "node: {proxy: {healthzUrl: off}, shutdownDelay: 10m}\n";
    let mut agent = AgentOptions::new(&node, &cluster.kubeconfig)
        .settings(settings)
        .start()
        .await;
    agent.signal(Signal::SIGTERM);
    eventually(SOON, "503", async || {
        let answer = agent.healthz().await;
        let body = answer.json();
        let good =
            answer.status == 503 && body["signals"] == json!(["headgateStopping"]) && body["nodeEligible"] == false;
        if good { Ok(()) } else { Err(body.to_string()) }
    })
    .await;
    assert_eq!(http::get(agent.healthz_address(), "/livez").await.unwrap().status, 200);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait(SOON).await.unwrap().code(), Some(1));

    // Without a second signal the process ends after the delay.
    let settings = "node: {proxy: {healthzUrl: off}, shutdownDelay: 2s}\n";
    let mut agent = AgentOptions::new(&node, &cluster.kubeconfig)
        .settings(settings)
        .start()
        .await;
    let asked = Instant::now();
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait(SOON).await.unwrap().success());
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
}
