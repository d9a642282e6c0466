//! The listener loop with slow peers, invalid bytes and too many connections, in paused time over in-memory
//! streams, so that timeouts are exact.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use headgate_http::server::{Limits, Metrics, ServeError, serve};
use headgate_test_kubernetes::series_value;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::in_memory_listener::InMemoryListener;

pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

async fn defect() {
    panic!("a defect");
}

/// A listener under test.
pub(crate) struct TestListener {
    hand: mpsc::UnboundedSender<DuplexStream>,
    stop: CancellationToken,
    registry: Registry,
    served: JoinHandle<Result<(), ServeError>>,
}

impl TestListener {
    pub(crate) fn start(limits: Limits) -> Self {
        let (hand, handed) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let router = Router::new()
            .route("/", get(|| async { "good" }))
            .route("/panic", get(defect));
        let served = tokio::spawn(async move {
            serve(
                "test",
                InMemoryListener(Mutex::new(handed)),
                router,
                limits,
                &metrics,
                stopping,
            )
            .await
        });
        Self {
            hand,
            stop,
            registry,
            served,
        }
    }

    pub(crate) fn connect(&self) -> DuplexStream {
        self.connect_with_buffer(64 * 1024)
    }

    /// Requests the listener to close.
    pub(crate) fn close(&self) {
        self.stop.cancel();
    }

    /// Waits until the listener has closed.
    pub(crate) async fn ended(self) {
        self.served.await.unwrap().unwrap();
    }

    fn connect_with_buffer(&self, bytes: usize) -> DuplexStream {
        let (ours, theirs) = duplex(bytes);
        self.hand.send(theirs).unwrap();
        ours
    }

    fn closed(&self, reason: &str) -> String {
        self.counter(&format!(
            "headgate_listener_closed_total{{listener=\"test\",reason=\"{reason}\"}}"
        ))
    }

    /// The value of a series.
    pub(crate) fn counter(&self, series: &str) -> String {
        series_value(&self.registry, series)
    }
}

/// Reads until the server closes or `wait` has passed; returns the bytes and whether it closed.
pub(crate) async fn read(stream: &mut DuplexStream, wait: Duration) -> (String, bool) {
    let mut bytes = Vec::new();
    let closed = timeout(wait, stream.read_to_end(&mut bytes)).await.is_ok();
    (String::from_utf8_lossy(&bytes).into_owned(), closed)
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

async fn ask(stream: &mut DuplexStream) -> String {
    stream.write_all(REQUEST).await.unwrap();
    read(stream, SECOND).await.0
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_request_is_closed_after_15_s() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut silent = listener.connect();
    let mut half = listener.connect();
    half.write_all(&REQUEST[..10]).await.unwrap();
    let mut trickling = listener.connect();
    for byte in REQUEST.iter().take(14) {
        trickling.write_all(&[*byte]).await.unwrap();
        sleep(SECOND).await;
    }
    assert!(!read(&mut half, Duration::ZERO).await.1, "14 s are not too long");
    for stream in [&mut silent, &mut half, &mut trickling] {
        assert_eq!(read(stream, 3 * SECOND).await, (String::new(), true));
    }
    assert_eq!(listener.closed("request-timeout"), "3");
}

#[tokio::test(start_paused = true)]
async fn an_idle_keep_alive_connection_stays_open_for_two_minutes() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut prober = listener.connect();
    for _ in 0..3 {
        assert!(ask(&mut prober).await.ends_with("good"));
        sleep(Duration::from_secs(110)).await;
    }
    assert!(read(&mut prober, 20 * SECOND).await.1);
    assert_eq!(listener.closed("idle"), "1");
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_second_request_is_closed_after_15_s() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut stream = listener.connect();
    assert!(ask(&mut stream).await.ends_with("good"));
    sleep(60 * SECOND).await;
    stream.write_all(&REQUEST[..5]).await.unwrap();
    assert!(read(&mut stream, 17 * SECOND).await.1);
    assert_eq!(listener.closed("request-timeout"), "1");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_nothing_is_closed_after_10_s() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut stream = listener.connect_with_buffer(256);
    let flood = tokio::spawn(async move {
        // The write fails when the server closes.
        while stream.write_all(REQUEST).await.is_ok() {}
    });
    timeout(12 * SECOND, flood).await.unwrap().unwrap();
    assert_eq!(listener.closed("write-timeout"), "1");
}

#[tokio::test(start_paused = true)]
async fn the_connection_limit_evicts_the_longest_waiting_connection() {
    let listener = TestListener::start(Limits {
        max_connections: 3,
        ..Limits::HEALTH
    });
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = listener.connect();
        stream.write_all(&REQUEST[..3]).await.unwrap();
        waiting.push(stream);
        sleep(SECOND).await;
    }
    assert!(
        ask(&mut listener.connect()).await.ends_with("good"),
        "a fresh probe gets in"
    );
    assert!(read(&mut waiting[0], Duration::ZERO).await.1, "the oldest made room");
    for stream in &mut waiting[1..] {
        stream.write_all(&REQUEST[3..]).await.unwrap();
        assert!(
            read(stream, SECOND).await.0.ends_with("good"),
            "the others are still there"
        );
    }
    assert_eq!(listener.closed("evicted"), "1");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_incomplete_requests_block_no_probe() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut peers = Vec::new();
    for number in 0..10_000 {
        let mut stream = listener.connect_with_buffer(64);
        stream.write_all(&REQUEST[..9]).await.unwrap();
        peers.push(stream);
        if number % 1000 == 999 {
            assert!(ask(&mut listener.connect()).await.ends_with("good"));
        }
    }
    sleep(17 * SECOND).await;
    for peer in &mut peers {
        assert!(read(peer, Duration::ZERO).await.1);
    }
}

#[tokio::test(start_paused = true)]
async fn malformed_http_requests_are_refused() {
    let listener = TestListener::start(Limits::HEALTH);
    let huge = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "a: b\r\n".repeat(200));
    for (bytes, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        (
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "400",
        ),
        (
            b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\0\x01\0\x02GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "400",
        ),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 a TLS hello\r\n\r\n", "400"),
        (huge.as_bytes(), "431"),
        (many.as_bytes(), "431"),
    ] {
        let mut stream = listener.connect();
        // A request that is too large is refused before it is complete.
        let _ = stream.write_all(bytes).await;
        let (answer, closed) = read(&mut stream, 2 * SECOND).await;
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{shown:?}: {answer}"
        );
        assert!(closed, "{shown:?} must be closed");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_pipelined_bytes_affect_no_other_connection() {
    let listener = TestListener::start(Limits::HEALTH);
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabcnonsense\n";
    for room in 16..200 {
        let mut stream = listener.connect_with_buffer(room);
        stream.write_all(request).await.unwrap();
        stream.shutdown().await.unwrap();
        sleep(SECOND).await;
        assert!(!listener.served.is_finished(), "room for {room} bytes");
        let (answers, closed) = read(&mut stream, 3 * SECOND).await;
        assert!(answers.starts_with("HTTP/1.1 ") && closed, "{room}: {answers}");
    }
    assert!(ask(&mut listener.connect()).await.ends_with("good"));
}

#[tokio::test(start_paused = true)]
async fn an_http_1_0_request_gets_an_http_1_0_response() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut stream = listener.connect();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let (answer, closed) = read(&mut stream, SECOND).await;
    assert!(
        answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.ends_with("good") && closed,
        "{answer}"
    );
    let mut stream = listener.connect();
    stream
        .write_all(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        .await
        .unwrap();
    let (answer, closed) = read(&mut stream, SECOND).await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && !closed, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_peer_gets_its_response() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut stream = listener.connect();
    stream.write_all(REQUEST).await.unwrap();
    stream.shutdown().await.unwrap();
    let (answer, closed) = read(&mut stream, SECOND).await;
    assert!(answer.ends_with("good") && closed, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_closing_listener_answers_one_last_request_of_each_connection() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut prober = listener.connect();
    let answer = ask(&mut prober).await;
    assert!(
        answer.ends_with("good") && !answer.contains("Connection: close"),
        "{answer}"
    );
    let mut idle = listener.connect();
    assert!(ask(&mut idle).await.ends_with("good"));
    listener.stop.cancel();
    sleep(8 * SECOND).await;
    prober.write_all(REQUEST).await.unwrap();
    let (answer, closed) = read(&mut prober, SECOND).await;
    assert!(
        answer.contains("Connection: close") && answer.ends_with("good") && closed,
        "{answer}"
    );
    assert!(
        !read(&mut idle, Duration::ZERO).await.1,
        "no connection is closed within the linger time"
    );
    assert!(read(&mut idle, 4 * SECOND).await.1);
    listener.served.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn queued_connections_are_served_before_the_listener_closes() {
    let listener = TestListener::start(Limits::OPERATIONS);
    listener.stop.cancel();
    let mut queued: Vec<_> = (0..20).map(|_| listener.connect()).collect();
    for stream in &mut queued {
        let answer = ask(stream).await;
        assert!(
            answer.contains("Connection: close") && answer.ends_with("good"),
            "{answer}"
        );
    }
    timeout(5 * SECOND, listener.served).await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_handler_ends_the_listener_with_an_error() {
    let listener = TestListener::start(Limits::HEALTH);
    let mut stream = listener.connect();
    stream
        .write_all(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let error = timeout(5 * SECOND, listener.served)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("listener test panicked"), "{error}");
}
