//! Notices on the way to real receivers: over HTTP and TLS, through a proxy, and tried again in paused time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what a test cannot do without fails the test"
)]

mod receiver;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_agent::notify::{
    AttemptError, Metrics, Notice, NotificationSettings, Notifier, Template, Webhook, deliver, queue,
};
use headgate_core::clock::Clock;
use headgate_http::client::TrustedRoots;
use headgate_http::proxies::Proxies;
use headgate_test_kubernetes::series_value;
use hyper_util::client::proxy::matcher::Matcher;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use receiver::{Proxy, Receiver, SECRET_PATH};
use tokio::time::{Instant, sleep, timeout};

fn notice(event: &str) -> Notice {
    Notice {
        event: event.to_owned(),
        time: Timestamp::UNIX_EPOCH,
        kind: "Node".to_owned(),
        namespace: String::new(),
        name: "node-1".to_owned(),
        warning: false,
        note: "out of its load balancers".to_owned(),
        signals: vec!["deletionTimestamp".to_owned()],
        reporter: "node-2".to_owned(),
    }
}

/// A sender with its settings, its files and its metrics.
struct World {
    directory: tempfile::TempDir,
    settings: NotificationSettings,
    proxies: Proxies,
    roots: TrustedRoots,
    metrics: Metrics,
    registry: Registry,
}

impl World {
    fn new(url: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url_file = directory.path().join("url");
        std::fs::write(&url_file, url).unwrap();
        let settings = NotificationSettings {
            url_file: Some(url_file),
            ..NotificationSettings::default()
        };
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        Self {
            directory,
            settings,
            proxies: Proxies::from(Matcher::builder().build()),
            roots: TrustedRoots::System,
            metrics,
            registry,
        }
    }

    fn file(&self, name: &str, content: &str) {
        std::fs::write(self.directory.path().join(name), content).unwrap();
    }

    fn webhook(&self) -> Webhook {
        let webhook = Webhook::new(&self.settings, self.proxies.clone(), &self.roots);
        webhook.unwrap().unwrap()
    }

    fn start(&self) -> Notifier {
        let webhook = self.webhook();
        self.start_with(move |body| {
            let webhook = webhook.clone();
            async move { webhook.send(body).await }
        })
    }

    /// Delivers notices by this attempt.
    fn start_with<F>(&self, send: impl Fn(String) -> F + Send + Sync + 'static) -> Notifier
    where
        F: Future<Output = Result<(), AttemptError>> + Send + 'static,
    {
        let (notifier, notices) = queue(&self.settings, &self.metrics);
        let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
        tokio::spawn(deliver(
            notices,
            send,
            self.settings.clone(),
            self.metrics.clone(),
            clock,
        ));
        notifier
    }

    /// The value of a series.
    fn count(&self, series: &str) -> u64 {
        series_value(&self.registry, series)
    }

    /// Waits until a series has this value.
    async fn wait(&self, series: &str, value: u64) {
        let reached = async {
            while self.count(series) != value {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(Duration::from_hours(1), reached).await;
        assert!(waited.is_ok(), "{series} is {} and not {value}", self.count(series));
    }
}

const DELIVERED: &str = "headgate_notifications_total{outcome=\"delivered\"}";
const REJECTED: &str = "headgate_notifications_total{outcome=\"rejected\"}";
const EXPIRED: &str = "headgate_notifications_total{outcome=\"expired\"}";
const DROPPED: &str = "headgate_notifications_total{outcome=\"dropped\"}";

fn failures(reason: &str) -> String {
    format!("headgate_notification_failures_total{{reason=\"{reason}\"}}")
}

#[tokio::test]
async fn a_notice_arrives_as_json_or_as_the_template_says() {
    let receiver = Receiver::plain(&[]).await;
    let mut world = World::new(&receiver.url());
    world.start().notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 1).await;
    world.settings.template = Template::new(r#"{"text": {{ (name ~ ": " ~ note) | tojson }}}"#).unwrap();
    world.start().notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 2).await;
    world.settings.template = Template::new("{{ name }}: {{ note }}").unwrap();
    world.start().notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 3).await;

    let [first, second, third] = &receiver.requests()[..] else {
        panic!("three requests")
    };
    assert_eq!(first.path, SECRET_PATH);
    assert_eq!(first.content_type, "application/json");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&first.body).unwrap(),
        serde_json::json!({
            "event": "NodeSignalled", "time": "1970-01-01T00:00:00Z", "kind": "Node", "namespace": "", "name": "node-1",
            "warning": false, "note": "out of its load balancers", "signals": ["deletionTimestamp"], "reporter": "node-2",
        })
    );
    assert_eq!(second.content_type, "application/json");
    assert_eq!(second.body, r#"{"text": "node-1: out of its load balancers"}"#);
    assert_eq!(third.content_type, "text/plain; charset=utf-8");
    assert_eq!(third.body, "node-1: out of its load balancers");
    assert_eq!(world.count("headgate_notifications_queued"), 0);
}

#[tokio::test]
async fn only_selected_events_are_sent() {
    let receiver = Receiver::plain(&[]).await;
    let world = World::new(&receiver.url());
    let notifier = world.start();
    notifier.notify(notice("SomethingElse"));
    notifier.notify(notice("LoadBalancerAdminStateDown"));
    world.wait(DELIVERED, 1).await;
    let requests = receiver.requests();
    let events: Vec<_> = requests
        .iter()
        .map(|request| request.body.contains("AdminStateDown"))
        .collect();
    assert_eq!(events, [true]);
    Notifier::off().notify(notice("LoadBalancerAdminStateDown"));
}

/// Outcomes of attempts in their order, then success; and the bodies of all attempts.
#[derive(Clone, Default)]
struct Script {
    outcomes: Arc<Mutex<VecDeque<AttemptError>>>,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn start(&self, world: &World) -> Notifier {
        let script = self.clone();
        world.start_with(move |body| {
            script.bodies.lock().unwrap().push(body);
            let outcome = script.outcomes.lock().unwrap().pop_front();
            async move { outcome.map_or(Ok(()), Err) }
        })
    }

    fn fail(&self, errors: impl IntoIterator<Item = AttemptError>) {
        self.outcomes.lock().unwrap().extend(errors);
    }
}

fn status(status: u16, retry_after: Option<u64>) -> AttemptError {
    AttemptError::Status {
        status,
        retry_after: retry_after.map(Duration::from_secs),
    }
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_repeated_with_growing_pauses() {
    let (world, script) = (World::new(""), Script::default());
    let too_many = status(429, Some(30));
    script.fail([status(503, None), AttemptError::Timeout, too_many, AttemptError::Tls]);
    let started = Instant::now();
    let notifier = script.start(&world);
    notifier.notify(notice("NodeSignalled"));
    notifier.notify(notice("NodeSignalsEnded"));
    world.wait(DELIVERED, 2).await;
    let taken = started.elapsed();
    let bodies = script.bodies.lock().unwrap().clone();
    let first: Vec<_> = bodies.iter().map(|body| body.contains("NodeSignalled\"")).collect();
    assert_eq!(first, [true, true, true, true, true, false], "in order");
    for reason in ["status", "timeout", "tls"] {
        let expected = if reason == "status" { 2 } else { 1 };
        assert_eq!(world.count(&failures(reason)), expected, "{reason}");
    }
    // 1, 2 and 8 s, each up to twice as long; the 429 asks for 30 s in the place of 4.
    assert!(
        (Duration::from_secs(41)..Duration::from_secs(55)).contains(&taken),
        "{taken:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_notice_expires_or_is_rejected_and_the_next_one_is_sent() {
    let (mut world, script) = (World::new(""), Script::default());
    world.settings.retry_timeout = Duration::from_mins(5);
    let no_text = AttemptError::Template(String::new());
    script.fail([status(404, None), status(302, None), no_text]);
    let notifier = script.start(&world);
    for _ in 0..4 {
        notifier.notify(notice("NodeSignalled"));
    }
    world.wait(DELIVERED, 1).await;
    assert_eq!((world.count(REJECTED), script.bodies.lock().unwrap().len()), (3, 4));

    script.fail(std::iter::repeat_n(AttemptError::Proxy, 7));
    let started = Instant::now();
    notifier.notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 2).await;
    assert!(started.elapsed() < Duration::from_mins(5), "{:?}", started.elapsed());

    script.fail(std::iter::repeat_n(AttemptError::UrlFile, 100));
    let started = Instant::now();
    notifier.notify(notice("NodeSignalled"));
    world.wait(EXPIRED, 1).await;
    let taken = started.elapsed();
    assert!(
        (Duration::from_mins(2)..=Duration::from_mins(5)).contains(&taken),
        "{taken:?}"
    );
    let left = script.outcomes.lock().unwrap().len();
    assert!(left > 85, "pauses grow: {left}");
    assert_eq!(world.count("headgate_notifications_queued"), 0);
}

#[tokio::test]
async fn the_url_file_is_read_for_each_attempt() {
    let (first, second) = (Receiver::plain(&[404, 503]).await, Receiver::plain(&[]).await);
    let world = World::new("");
    let webhook = world.webhook();
    assert_eq!(webhook.send(String::new()).await, Err(AttemptError::UrlFile));
    world.file("url", &first.url());
    assert_eq!(webhook.send(String::new()).await, Err(status(404, None)));
    assert_eq!(webhook.send(String::new()).await, Err(status(503, None)));
    world.file("url", &second.url());
    assert_eq!(webhook.send(String::new()).await, Ok(()));
    assert_eq!((first.requests().len(), second.requests().len()), (2, 1));
}

#[tokio::test]
async fn a_full_queue_drops_notices_and_never_waits() {
    let receiver = Receiver::silent().await;
    let world = World::new(&receiver.url());
    let notifier = world.start();
    // The calls return although this thread, which sends as well, sends nothing meanwhile.
    for _ in 0..2000 {
        notifier.notify(notice("NodeSignalled"));
    }
    assert_eq!((world.count(DELIVERED), receiver.requests().len()), (0, 0));
    // 1,000 are queued, and one may be on its way.
    let dropped = world.count(DROPPED);
    assert!((999..=1000).contains(&dropped), "{dropped}");
    assert_eq!(world.count("headgate_notifications_queued"), 2000 - dropped);
}

#[tokio::test]
async fn certificates_are_verified() {
    let (receiver, authority) = Receiver::tls("localhost").await;
    let mut world = World::new(&receiver.url().replace("127.0.0.1", "localhost"));
    world.settings.retry_timeout = Duration::ZERO;
    // The system does not know the authority.
    world.start().notify(notice("NodeSignalled"));
    world.wait(EXPIRED, 1).await;
    assert_eq!((world.count(&failures("tls")), receiver.requests().len()), (1, 0));
    world.roots = TrustedRoots::Pem(authority.into_bytes());
    world.start().notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 1).await;
    assert_eq!(receiver.requests().len(), 1);
    // Another name than the certificate's.
    world.file("url", &receiver.url());
    world.start().notify(notice("NodeSignalled"));
    world.wait(EXPIRED, 2).await;
    assert_eq!((world.count(&failures("tls")), receiver.requests().len()), (2, 1));
}

#[tokio::test]
async fn a_proxy_is_used_for_both_schemes() {
    let (receiver, authority) = Receiver::tls("receiver.invalid").await;
    let plain = Receiver::plain(&[]).await;
    let proxy = Proxy::start(true).await;
    let remote = |receiver: &Receiver| receiver.url().replace("127.0.0.1", "receiver.invalid");
    let mut world = World::new(&remote(&receiver));
    world.roots = TrustedRoots::Pem(authority.into_bytes());
    world.proxies = proxy.proxies();
    let notifier = world.start();
    notifier.notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 1).await;
    world.file("url", &remote(&plain));
    notifier.notify(notice("NodeSignalled"));
    world.wait(DELIVERED, 2).await;
    let tunnel = format!("CONNECT receiver.invalid:{} true", receiver.address.port());
    assert_eq!(proxy.requests(), [tunnel, format!("POST {} true", remote(&plain))]);
    assert_eq!((receiver.requests().len(), plain.requests().len()), (1, 1));

    let refusing = Proxy::start(false).await;
    world.file("url", &remote(&receiver));
    world.proxies = refusing.proxies();
    world.settings.retry_timeout = Duration::ZERO;
    world.start().notify(notice("NodeSignalled"));
    world.wait(EXPIRED, 1).await;
    assert_eq!((world.count(&failures("proxy")), receiver.requests().len()), (1, 1));
}

#[tokio::test]
async fn errors_have_no_part_of_the_url() {
    let receiver = Receiver::plain(&[500]).await;
    for url in [
        receiver.url(),
        "http://user:password@secret.invalid/hook".to_owned(),
        "https://127.0.0.1:1/hook".to_owned(),
        "secret-without-a-scheme".to_owned(),
    ] {
        let world = World::new(&url);
        let webhook = Webhook::new(&world.settings, world.proxies.clone(), &world.roots)
            .unwrap()
            .unwrap();
        let error = webhook.send(String::new()).await.unwrap_err();
        let shown = format!("{error} {error:?} {webhook:?}");
        for part in ["secret", "/hook", "127.0.0.1", "password", SECRET_PATH] {
            assert!(!shown.contains(part), "{part} in {shown}");
        }
    }
}
