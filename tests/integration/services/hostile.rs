//! Hostile peers on many Services' ports of one process.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Server;

/// The number of Services, and of incomplete requests to each: below the limit of one port.
const SERVICES: u16 = 40;
const OF_EACH: usize = 200;
/// The connection limit of all ports together.
const MAX_CONNECTIONS: usize = 512;

#[tokio::test(start_paused = true)]
async fn all_service_ports_share_one_connection_limit() {
    let mut server = Server::synced().await;
    let keys: Vec<(String, u16)> = (0..SERVICES).map(|n| (format!("a/s{n}"), 30000 + n)).collect();
    let services: Vec<_> = keys.iter().map(|(key, port)| (key.as_str(), *port)).collect();
    let counts: Vec<_> = keys.iter().map(|(key, _)| (key.as_str(), 1)).collect();
    server.sync_endpoints(&counts).await;
    server.sync_services(&services).await;
    let address = |port: u16| format!("0.0.0.0:{port}");
    let mut half = Vec::new();
    for _ in 0..OF_EACH {
        for (_, port) in &keys {
            let mut stream = server.sockets.connect(&address(*port));
            stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            half.push(stream);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut open = 0;
    for stream in &mut half {
        let read = timeout(Duration::from_micros(1), stream.read_u8()).await;
        open += usize::from(read.is_err());
    }
    assert!(open <= MAX_CONNECTIONS, "{open} of {} are open", half.len());
    let evicted = server.counted("headgate_listener_closed_total{listener=\"service\",reason=\"evicted\"}");
    assert_eq!(usize::try_from(evicted).unwrap(), half.len() - open);
    // A complete probe is answered on every port.
    for (key, port) in &keys {
        server.expect(key, &address(*port), 1, true).await;
    }
}
