//! The roles `agent`, `controller` and `all`.

use headgate_sandbox::process::last_log_lines;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::*;

#[tokio::test]
async fn role_agent_never_leads_and_role_all_hands_over_on_sigterm() {
    let lease = ExclusiveLease::free().await;
    let (options, _) = candidate().await;
    let agent = options.argument("--role=agent").start().await;
    assert_eq!(
        agent.statusz().await["leader"],
        json!({"role": "agent", "stands": false})
    );
    let text = agent.metrics().await;
    let lines = text.lines().filter(|line| line.starts_with("headgate_leader"));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["headgate_leader_expected 1"],
        "it does not count what it does not do"
    );
    assert_eq!(agent.healthz().await.status, 200);

    // Cross-check: with the same settings a candidate acquires the Lease, in the term after the last one: nobody led in between.
    let (options, node) = candidate().await;
    let all = options.start().await;
    let holder = lease.held_by(&node).await;
    for line in [
        "headgate_leader 1",
        "headgate_leader_candidate 1",
        "headgate_leader_expected 1",
        "headgate_leader_term 5",
        "headgate_leader_transitions_total{to=\"leader\"} 1",
        "headgate_leader_transitions_total{to=\"follower\"} 0",
    ] {
        shows(all.metrics_address(), line).await;
    }
    let statusz = all.statusz().await;
    assert_eq!(
        (&statusz["leader"]["role"], &statusz["leader"]["term"]),
        (&json!("all"), &json!(5)),
        "{statusz}"
    );
    let text = http::get(all.metrics_address(), "/statusz").await.unwrap().text();
    assert!(text.contains("role       all, leads in term 5 since "), "{text}");
    // The term's work starts after the metrics show the term.
    eventually(SOON, "connected to Azure", async || {
        met(all.log().contains("connected to Azure"), all.log())
    })
    .await;

    // The Lease is released, so that others do not wait until it expires.
    let version = lease.version().await;
    let status = all.stop(SOON).await;
    assert!(status.success(), "{status}");
    let left = lease.read().await;
    let spec = left.spec.unwrap();
    assert_eq!(spec.holder_identity.unwrap_or_default(), "", "it was {holder}'s");
    assert_ne!(left.metadata.resource_version.unwrap(), version);
    assert_eq!(spec.lease_transitions, Some(5));
    assert!(agent.stop(SOON).await.success());
}

#[tokio::test]
async fn role_controller_leads_without_a_health_port() {
    let lease = ExclusiveLease::free().await;
    let free = crate::harness::own_address();
    let (options, node) = candidate().await;
    // A missing OTLP collector has no effect.
    let options = options.environment("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    let options = options.healthz(free);
    let mut controller = options.start_controller().await;
    let address = controller.metrics;
    lease.held_by(&node).await;
    shows(address, "headgate_leader 1").await;
    let addresses = std::fs::read(options.directory().join("addresses.json")).unwrap();
    let addresses: Value = serde_json::from_slice(&addresses).unwrap();
    assert!(addresses.get("healthz").is_none(), "{addresses}");
    assert!(std::net::TcpStream::connect(free).is_err(), "no process listens there");
    let statusz = http::statusz(address).await;
    assert_eq!(statusz["leader"]["role"], "controller");
    for absent in ["healthz", "livez", "proxy", "services"] {
        assert!(statusz.get(absent).is_none(), "{statusz}");
    }
    assert_eq!(statusz["node"]["source"], "watch", "{statusz}");
    let tasks: Vec<_> = statusz["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        tasks,
        [
            "events",
            "addresses-file",
            "probe-socket",
            "operations",
            "policies",
            "leader",
            "node-watch"
        ]
    );
    let metrics = http::get(address, "/metrics").await.unwrap().text();
    for absent in [
        "proxy_healthz",
        "headgate_healthy",
        "headgate_node_object",
        "headgate_node_signal",
        "listener=\"healthz\"",
    ] {
        assert!(!metrics.contains(absent), "{metrics}");
    }
    for path in ["/livez", "/readyz"] {
        let answer = http::get(address, path).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert!(
        !options.directory().join("state.json").exists(),
        "it remembers nothing for answers it does not give"
    );

    // With a signal on its own node, the leader hands over if another candidate can take over.
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
    headgate_test_kubernetes::set_taints(&control_plane().client(), &node, taint).await;
    eventually(SOON, "its node's signal", async || {
        let statusz = http::statusz(address).await;
        let signals = statusz["node"]["signals"].as_array().unwrap().len();
        met(signals == 1, statusz)
    })
    .await;
    let log = last_log_lines(controller.process.log());
    assert!(
        log.lines().all(|line| line.trim_start().starts_with("{\"timestamp\"")),
        "{log}"
    );
    controller.process.signal(Signal::SIGTERM);
    let status = controller.process.wait(SOON).await;
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(lease.holder().await, "");
}
