//! Not in kube-proxy's tests: ports that open, close or cannot be opened, and equal answers on the path.

use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{NodeReport, SignalRules};
use hyper::Method;
use tokio::time::sleep;

use super::{Server, ask, assert_answer, body, service, slices};

/// Not tested upstream, where two families did not work until after 1.35.
#[tokio::test(start_paused = true)]
async fn each_family_has_its_own_socket_and_count() {
    let mut server = Server::synced().await;
    let dual = service("a/b", 9376, &["10.0.0.1", "fd00::1"]);
    server
        .list_services(vec![dual, service("c/d", 9377, &["fd00::2"])])
        .await;
    assert_eq!(server.sockets.open(), ["0.0.0.0:9376", "[::]:9376", "[::]:9377"]);
    let both = |v4, v6| {
        [
            slices("a/b", "IPv4", v4),
            slices("a/b", "IPv6", v6),
            slices("c/d", "IPv4", 4),
        ]
        .concat()
    };
    for (v4, v6, any) in [(2, 0, 2), (2, 3, 3), (0, 1, 1), (0, 0, 0)] {
        server.list_slices(both(v4, v6)).await;
        server.expect("a/b", "0.0.0.0:9376", v4.into(), true).await;
        server.expect("a/b", "[::]:9376", v6.into(), true).await;
        server.expect("c/d", "[::]:9377", 0, true).await;
        let (status, text) = server.at_path(Method::GET, "/healthz/services/a/b").await;
        assert_eq!(
            (status, text),
            (if any > 0 { 200 } else { 503 }, body("a/b", any, true))
        );
    }
    // One family fails while the other works; a Service that loses a family closes its port.
    server.sockets.taken("[::]:9376", true);
    server.list_services(vec![service("a/b", 9376, &["10.0.0.1"])]).await;
    assert_eq!(server.sockets.open(), ["0.0.0.0:9376"]);
    server
        .list_services(vec![service("a/b", 9376, &["10.0.0.1", "fd00::1"])])
        .await;
    assert_eq!(server.sockets.open(), ["0.0.0.0:9376"]);
    assert_eq!(server.ports.borrow().failed.len(), 1);
}

/// In kube-proxy a request to a server whose Service is gone gets an empty 200.
#[tokio::test(start_paused = true)]
async fn an_open_connection_to_a_service_just_removed_gets_503() {
    let mut server = Server::synced().await;
    server.sync_endpoints(&[("a/b", 2), ("c/d", 1)]).await;
    server.sync_services(&[("a/b", 9376), ("c/d", 9377)]).await;
    let mut removed = server.sockets.connect("0.0.0.0:9376");
    let mut moved = server.sockets.connect("0.0.0.0:9377");
    for connection in [&mut removed, &mut moved] {
        assert!(ask(connection, "GET /").await.starts_with("HTTP/1.1 200"));
    }
    server.sync_services(&[("c/d", 9378)]).await;
    for (connection, key) in [(&mut removed, "a/b"), (&mut moved, "c/d")] {
        let answer = ask(connection, "GET /").await;
        assert_answer(&answer, key, 0, true);
        assert!(answer.contains("Connection: close"), "{answer}");
    }
    server.expect("c/d", "0.0.0.0:9378", 1, true).await;
}

/// Not tested upstream. Upstream publishes an event once; here the port is retried.
#[tokio::test(start_paused = true)]
async fn a_port_that_cannot_be_opened_is_tried_every_5_s_and_at_each_change() {
    let mut server = Server::synced().await;
    server.sockets.taken("0.0.0.0:9376", true);
    server.sync_endpoints(&[("a/b", 2)]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    let attempts = |server: &Server| server.sockets.inside().attempts;
    assert_eq!(attempts(&server), 1);
    let failed = server.ports.borrow().failed.clone();
    let (key, failure) = failed.first_key_value().unwrap();
    assert_eq!(
        (key.service.to_string(), &*failure.uid, failure.port),
        ("a/b".to_owned(), "uid of a/b", 9376)
    );
    assert_eq!(failure.error, "0.0.0.0:9376 cannot be bound: it is in use");
    assert_eq!(server.counted("headgate_service_ports{state=\"failed\"}"), 1);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(attempts(&server), 3);
    server.sync_services(&[("a/b", 9376), ("c/d", 9377)]).await;
    assert_eq!(attempts(&server), 5, "at a change");
    assert_eq!(server.counted("headgate_service_port_bind_failures_total"), 4);
    server.sockets.taken("0.0.0.0:9376", false);
    sleep(Duration::from_secs(5)).await;
    server.expect("a/b", "0.0.0.0:9376", 2, true).await;
    assert!(server.ports.borrow().failed.is_empty());
    sleep(Duration::from_mins(10)).await;
    assert_eq!(attempts(&server), 6, "then no more");
}

/// Not tested upstream. A process that does not know its Node would answer as for one without signals.
#[tokio::test(start_paused = true)]
async fn the_first_ports_open_when_the_node_is_known_or_after_5_s() {
    let clock = Clock::System;
    for after in [2, 60] {
        let mut server = Server::new();
        let unknown = NodeReport::initial(None, &SignalRules::default(), clock.now());
        let known = server.node.send_replace(unknown);
        server.sync_endpoints(&[("a/b", 2)]).await;
        server.sync_services(&[("a/b", 9376)]).await;
        // A second has passed since the first table, and a bit.
        sleep(Duration::from_millis(100)).await;
        for second in 1..=7 {
            let is_open = second > after || second >= 5;
            assert_eq!(
                !server.sockets.open().is_empty(),
                is_open,
                "{second} s, known after {after}"
            );
            if second == after {
                server.node.send_replace(known.clone());
            }
            sleep(Duration::from_secs(1)).await;
        }
        server.expect("a/b", "0.0.0.0:9376", 2, true).await;
    }
}

/// Not tested upstream.
#[tokio::test(start_paused = true)]
async fn no_port_has_two_listeners() {
    let mut server = Server::synced().await;
    server.sync_endpoints(&[("z/first", 1), ("a/second", 2)]).await;
    server.sync_services(&[("z/first", 9376)]).await;
    server.sync_services(&[("z/first", 9376), ("a/second", 9376)]).await;
    server.expect("z/first", "0.0.0.0:9376", 1, true).await;
    let error = server.ports.borrow().failed.values().next().unwrap().error.clone();
    assert_eq!(error, "0.0.0.0:9376 is open for Service z/first");
    server.sync_services(&[("a/second", 9376)]).await;
    server.expect("a/second", "0.0.0.0:9376", 2, true).await;
    for port in [10456, 10457] {
        server.sync_services(&[("a/second", port)]).await;
        assert_eq!(server.sockets.open(), [""; 0]);
        let error = server.ports.borrow().failed.values().next().unwrap().error.clone();
        assert_eq!(error, format!("0.0.0.0:{port} is headgate's own port"));
    }
}

#[tokio::test(start_paused = true)]
async fn every_method_and_path_of_a_port_gets_the_same_answer() {
    let mut server = Server::synced().await;
    server.sync_endpoints(&[("a/b", 2)]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    for line in [
        "GET /",
        "POST /healthz",
        "DELETE /a/../b//c",
        "OPTIONS *",
        "PUT /%ff",
        "GET http://elsewhere/x",
    ] {
        let answer = ask(&mut server.sockets.connect("0.0.0.0:9376"), line).await;
        assert_answer(&answer, "a/b", 2, true);
    }
    let answer = ask(&mut server.sockets.connect("0.0.0.0:9376"), "HEAD /").await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    assert_eq!(server.answered(), [7, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_service_path_serves_only_services_that_need_it() {
    let mut server = Server::new();
    let unknown = server.at_path(Method::GET, "/healthz/services/a/b").await;
    assert_eq!(unknown, (503, body("a/b", 0, true)), "nothing is listed yet");
    assert!(!server.ports.borrow().tried, "and no port is opened");
    server.sync_endpoints(&[("a/b", 2), ("c/d", 1)]).await;
    server.sync_services(&[("a/b", 9376), ("c/d", 0)]).await;
    for method in [Method::GET, Method::POST, Method::OPTIONS] {
        let answer = server.at_path(method, "/healthz/services/a/b?x=1").await;
        assert_eq!(answer, (200, body("a/b", 2, true)));
    }
    assert_eq!(
        server.at_path(Method::GET, "/healthz/services/c/d").await.0,
        200,
        "it needs no port"
    );
    assert_eq!(server.sockets.open(), ["0.0.0.0:9376"]);
    let counts = server.answered();
    for path in [
        "/healthz/services/a/c",
        "/healthz/services/b/b",
        "/healthz/services/a%2Fb/c",
        "/healthz/services/a/%ff",
        "/healthz/services/A/b",
    ] {
        assert_eq!(
            server.at_path(Method::GET, path).await,
            (404, "404 page not found\n".to_owned()),
            "{path}"
        );
    }
    assert_eq!(server.answered(), counts, "not found is counted nowhere");
    server.sync_services(&[]).await;
    assert_eq!(server.at_path(Method::GET, "/healthz/services/a/b").await.0, 404);
}
