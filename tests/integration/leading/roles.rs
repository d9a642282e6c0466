//! The roles `agent`, `controller` and `all`.

use super::*;

/// Time within which a candidate reads the Lease, and acquires it if it is free; the first read comes within 5 s.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(8);

#[tokio::test]
async fn role_agent_never_leads_and_role_all_hands_over_on_sigterm() {
    let lease = ExclusiveLease::free().await;
    let before = lease.version().await;
    let mut agent = Instance::start(program(), &["--role=agent"], &[]).await;
    let healthz = agent.address("healthz").await;
    tokio::time::sleep(FIRST_READ_TIMEOUT).await;
    assert_eq!(lease.version().await, before, "its log:\n{}", agent.log());
    assert_eq!(
        agent.statusz().await["leader"],
        json!({"role": "agent", "stands": false})
    );
    assert!(
        !agent.metrics().await.contains("headgate_leader"),
        "it does not count what it does not do"
    );
    assert_eq!(http::get(healthz, "/healthz").await.unwrap().status, 200);

    // Cross-check: with the same settings a candidate acquires the Lease, in the term after the last one: nobody led in between.
    let mut all = Instance::start(program(), &[], &[]).await;
    let node = all.node.clone();
    let holder = lease.held_by(&node).await;
    for line in [
        "headgate_leader 1",
        "headgate_leader_candidate 1",
        "headgate_leader_term 5",
        "headgate_leader_transitions_total{to=\"leader\"} 1",
        "headgate_leader_transitions_total{to=\"follower\"} 0",
    ] {
        all.shows(line).await;
    }
    let statusz = all.statusz().await;
    assert_eq!(
        (&statusz["leader"]["role"], &statusz["leader"]["term"]),
        (&json!("all"), &json!(5)),
        "{statusz}"
    );
    let text = http::get(all.address("metrics").await, "/statusz")
        .await
        .unwrap()
        .text();
    assert!(text.contains("role       all, leads in term 5 since "), "{text}");
    assert!(all.log().contains("connected to Azure"), "{}", all.log());

    // The Lease is released, so that others do not wait until it expires.
    let version = lease.version().await;
    let status = all.stop().await;
    assert!(status.success(), "{status}");
    let left = lease.read().await;
    let spec = left.spec.unwrap();
    assert_eq!(spec.holder_identity.unwrap_or_default(), "", "it was {holder}'s");
    assert_ne!(left.metadata.resource_version.unwrap(), version);
    assert_eq!(spec.lease_transitions, Some(5));
    assert!(agent.stop().await.success());
}

#[tokio::test]
async fn role_controller_leads_without_a_health_port() {
    let lease = ExclusiveLease::free().await;
    let free = crate::harness::own_address();
    let healthz = free.to_string();
    let arguments = ["--role", "controller", "--healthz-bind-address", &healthz];
    // A missing OTLP collector has no effect.
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")];
    let mut controller = Instance::start(program(), &arguments, &environment).await;
    let node = controller.node.clone();
    lease.held_by(&node).await;
    controller.shows("headgate_leader 1").await;
    let addresses = controller.addresses().await;
    assert!(addresses.get("healthz").is_none(), "{addresses}");
    assert!(std::net::TcpStream::connect(free).is_err(), "no process listens there");
    let statusz = controller.statusz().await;
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
    let metrics = controller.metrics().await;
    for absent in ["proxy_healthz", "headgate_healthy", "listener=\"healthz\""] {
        assert!(!metrics.contains(absent), "{metrics}");
    }
    let address = controller.address("metrics").await;
    for path in ["/livez", "/readyz"] {
        let answer = http::get(address, path).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert!(
        !controller.directory.join("state.json").exists(),
        "it remembers nothing for answers it does not give"
    );

    // With a signal on its own node, the leader hands over if another candidate can take over.
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
    headgate_test_kubernetes::set_taints(&control_plane().client(), &node, taint).await;
    eventually(SOON, "its node's signal", async || {
        let statusz = controller.statusz().await;
        let signals = statusz["node"]["signals"].as_array().unwrap().len();
        met(signals == 1, statusz)
    })
    .await;
    let log = controller.log();
    assert!(
        log.lines().all(|line| line.trim_start().starts_with("{\"timestamp\"")),
        "{log}"
    );
    assert!(controller.stop().await.success());
    assert_eq!(lease.holder().await, "");
}
