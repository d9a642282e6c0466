//! kube-proxy's own tests, under their upstream names.

use headgate_agent::health::ProxyPart;

use super::Server;

#[tokio::test(start_paused = true)]
async fn test_server() {
    let mut server = Server::new();
    server.sync_services(&[]).await;
    assert_eq!(server.services(), 0);
    server.sync_endpoints(&[]).await;
    assert_eq!(server.services(), 0);
    server.sync_endpoints(&[("a/b", 93)]).await;
    assert_eq!((server.services(), server.sockets.open().len()), (0, 0), "unknown");

    server.sync_endpoints(&[]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    assert_eq!(
        (server.services(), server.sockets.open()),
        (1, vec!["0.0.0.0:9376".to_owned()])
    );
    server.expect("a/b", "0.0.0.0:9376", 0, true).await;
    for count in [18, 0, 11] {
        server.sync_endpoints(&[("a/b", count)]).await;
        server.expect("a/b", "0.0.0.0:9376", u32::from(count), true).await;
    }
    server.sync_endpoints(&[]).await;
    server.expect("a/b", "0.0.0.0:9376", 0, true).await;
    server.sync_endpoints(&[("a/b", 18)]).await;
    server.sync_services(&[]).await;
    assert_eq!((server.services(), server.sockets.open().len()), (0, 0));

    server.sync_endpoints(&[]).await;
    server
        .sync_services(&[("a/b", 9376), ("c/d", 12909), ("e/f", 11113)])
        .await;
    assert_eq!((server.services(), server.sockets.open().len()), (3, 3));
    for (key, address) in [
        ("a/b", "0.0.0.0:9376"),
        ("c/d", "0.0.0.0:12909"),
        ("e/f", "0.0.0.0:11113"),
    ] {
        server.expect(key, address, 0, true).await;
    }
    server.sync_endpoints(&[("a/b", 9), ("c/d", 3), ("e/f", 7)]).await;
    for (key, address, count) in [
        ("a/b", "0.0.0.0:9376", 9),
        ("c/d", "0.0.0.0:12909", 3),
        ("e/f", "0.0.0.0:11113", 7),
    ] {
        server.expect(key, address, count, true).await;
    }
    let before = server.sockets.inside().attempts;
    server
        .sync_services(&[("c/d", 12909), ("e/f", 11114), ("g/h", 11878)])
        .await;
    assert_eq!(server.services(), 3);
    assert_eq!(
        server.sockets.open(),
        ["0.0.0.0:11114", "0.0.0.0:11878", "0.0.0.0:12909"]
    );
    assert_eq!(
        server.sockets.inside().attempts,
        before + 2,
        "what is open is left alone"
    );
    server.expect("c/d", "0.0.0.0:12909", 3, true).await;
    // Upstream: 0 until the counts are set right afterwards.
    server.expect("e/f", "0.0.0.0:11114", 7, true).await;
    server.expect("g/h", "0.0.0.0:11878", 0, true).await;
    server
        .sync_endpoints(&[("a/b", 9), ("c/d", 3), ("e/f", 7), ("g/h", 6)])
        .await;
    assert_eq!(server.services(), 3);
    for (key, address, count) in [
        ("c/d", "0.0.0.0:12909", 3),
        ("e/f", "0.0.0.0:11114", 7),
        ("g/h", "0.0.0.0:11878", 6),
    ] {
        server.expect(key, address, count, true).await;
    }
    server.sync_endpoints(&[("e/f", 7), ("g/h", 6)]).await;
    let counts = [
        ("c/d", "0.0.0.0:12909", 0),
        ("e/f", "0.0.0.0:11114", 7),
        ("g/h", "0.0.0.0:11878", 6),
    ];
    for healthy in [true, false, true] {
        if healthy {
            server
                .proxy
                .send_modify(|status| status.mark_updated(ProxyPart::Whole, "2026-01-02T03:04:05Z".parse().unwrap()));
        } else {
            server
                .proxy
                .send_modify(|status| status.mark_failing(ProxyPart::Whole, None));
        }
        for (key, address, count) in counts {
            server.expect(key, address, count, healthy).await;
        }
    }
    assert_eq!(server.counted("headgate_service_health_services"), 3);
    assert_eq!(server.counted("headgate_service_ports{state=\"open\"}"), 3);
    server.stop.cancel();
    server.serving.await.unwrap().unwrap();
    assert_eq!(server.sockets.open().len(), 0);
}
