//! The PROXY protocol: the listener in paused time, and the agent in place of the health-probe-proxy
//! sidecar, which strips a header and asks kube-proxy (cloud-provider-azure, `health-probe-proxy`).

use std::time::Duration;

use headgate_http::server::Limits;
use headgate_http::server::ProxyProtocol;
use headgate_test_kubernetes::{control_plane, create_node};
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use crate::harness::{AgentOptions, http};
use crate::listener::{REQUEST, SECOND, TestListener, read};

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.4 50000 10356\r\n";
const V1_UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";
/// A header as Azure's Private Link sends it, with the link's ID after the addresses.
const V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x14\xc0\0\x02\x01\x0a\0\0\x04\xc3\x50\x28\x74\xee\0\x05\x01\x04\x03\x02\x01";
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

fn start(proxy_protocol: ProxyProtocol) -> TestListener {
    TestListener::start(Limits {
        proxy_protocol,
        ..Limits::HEALTH
    })
}

fn outcome(listener: &TestListener, outcome: &str) -> String {
    listener.counter(&format!(
        "headgate_listener_proxy_headers_total{{listener=\"test\",outcome=\"{outcome}\"}}"
    ))
}

#[tokio::test(start_paused = true)]
async fn a_proxy_header_and_the_first_request_share_one_15_s_timeout() {
    for setting in [ProxyProtocol::Optional, ProxyProtocol::Required] {
        let listener = start(setting);
        let mut half = listener.connect();
        half.write_all(&V2[..14]).await.unwrap();
        let mut silent = listener.connect();
        let mut patient = listener.connect();
        let mut late = listener.connect();
        for byte in [V1_UNKNOWN, REQUEST].concat().chunks(4) {
            // The whole request takes 10 s, which is within the limit.
            patient.write_all(byte).await.unwrap();
            sleep(SECOND).await;
        }
        assert!(read(&mut patient, Duration::ZERO).await.0.ends_with("good"));
        late.write_all(&V1[..10]).await.unwrap();
        assert!(
            !read(&mut half, 2 * SECOND).await.1,
            "12 s are not too long for half a header"
        );
        for stream in [&mut half, &mut silent, &mut late] {
            assert_eq!(read(stream, 6 * SECOND).await, (String::new(), true));
        }
        assert_eq!(
            (outcome(&listener, "half"), outcome(&listener, "v1")),
            ("2".into(), "1".into())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_proxy_header_delays_no_other_connection() {
    let listener = start(ProxyProtocol::Required);
    let mut slow = Vec::new();
    for _ in 0..2000 {
        let mut stream = listener.connect();
        stream.write_all(&V1[..7]).await.unwrap();
        slow.push(stream);
        // Each connection is read before it can be evicted.
        sleep(Duration::from_millis(1)).await;
    }
    let mut prober = listener.connect();
    prober.write_all(&[V2, REQUEST].concat()).await.unwrap();
    assert!(read(&mut prober, SECOND).await.0.ends_with("good"));
    assert_eq!(
        outcome(&listener, "half"),
        (2001 - Limits::HEALTH.max_connections).to_string(),
        "those that were evicted at the cap"
    );
}

#[tokio::test(start_paused = true)]
async fn a_closing_listener_waits_for_a_proxy_header_no_longer_than_for_a_request() {
    let listener = start(ProxyProtocol::Required);
    let mut stream = listener.connect();
    stream.write_all(&V1[..7]).await.unwrap();
    sleep(SECOND).await;
    listener.close();
    let (answer, closed) = read(&mut stream, 12 * SECOND).await;
    assert!(answer.is_empty() && closed);
    listener.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_header_is_accepted_only_at_the_start_of_a_connection() {
    let listener = start(ProxyProtocol::Optional);
    let mut stream = listener.connect();
    stream.write_all(&[V1, REQUEST, REQUEST].concat()).await.unwrap();
    let (answers, closed) = read(&mut stream, SECOND).await;
    assert_eq!((answers.matches("good").count(), closed), (2, false), "{answers}");
    stream.write_all(&[V1, REQUEST].concat()).await.unwrap();
    let (answer, closed) = read(&mut stream, SECOND).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && closed, "{answer}");
}

/// The bytes before a request, the outcome that is counted, and the status code with `off`, `optional`
/// and `required`; `None` is a closed connection.
type Case<'a> = (&'a [u8], &'static str, [Option<u16>; 3]);

#[tokio::test]
async fn the_agent_replaces_the_health_probe_proxy() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "proxy-protocol").await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let cases: [Case<'_>; 8] = [
        (b"", "none", [Some(200), Some(200), None]),
        (V1, "v1", [Some(400), Some(200), Some(200)]),
        (V1_UNKNOWN, "v1", [Some(400), Some(200), Some(200)]),
        (V2, "v2", [Some(400), Some(200), Some(200)]),
        (V2_LOCAL, "v2", [Some(400), Some(200), Some(200)]),
        (
            b"PROXY TCP9 1.2.3.4 1.2.3.4 1 2\r\n",
            "invalid",
            [Some(400), None, None],
        ),
        (&[V1, V1].concat(), "v1", [Some(400), Some(400), Some(400)]),
        (
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
            "oversized",
            [Some(400), None, None],
        ),
    ];
    for (mode, setting) in ["Disabled", "Optional", "Required"].into_iter().enumerate() {
        let settings = format!("kubeProxyHealthzUrl: Disabled\nproxyProtocol: {setting}\n");
        let agent = AgentOptions::new(&node, &cluster.kubeconfig)
            .settings(&settings)
            .start()
            .await;
        let mut probes = 0;
        for (header, _, codes) in &cases {
            let answer = http::exchange(agent.healthz_address(), &[header, &request[..]].concat()).await;
            let code = answer.ok().map(|answer| answer.status);
            let shown = String::from_utf8_lossy(header);
            assert_eq!(code, codes[mode], "{setting}: {shown:?}");
            probes += u64::from(code == Some(200));
        }
        let metrics = agent.metrics().await;
        let count = |series: &str| {
            metrics
                .lines()
                .find_map(|line| line.strip_prefix(series)?.trim().parse::<u64>().ok())
        };
        assert_eq!(count("proxy_healthz_total{code=\"200\"}"), Some(probes));
        for outcome in ["v1", "v2", "none", "missing", "invalid", "oversized", "half"] {
            let named = |name: &str| cases.iter().filter(|(_, outcome, _)| *outcome == name).count();
            let want = match (setting, outcome) {
                ("Disabled", _) | ("Required", "none") => 0,
                ("Required", "missing") => named("none"),
                (_, outcome) => named(outcome),
            };
            let series = format!("headgate_listener_proxy_headers_total{{listener=\"healthz\",outcome=\"{outcome}\"}}");
            assert_eq!(count(&series), Some(want as u64), "{setting}: {outcome}");
        }

        // The operations port does not accept PROXY headers.
        let request = [V1, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"].concat();
        let answer = http::exchange(agent.metrics_address(), &request).await.unwrap();
        assert_eq!(answer.status, 400, "{setting}");
        assert_eq!(http::get(agent.metrics_address(), "/livez").await.unwrap().status, 200);
    }
}
