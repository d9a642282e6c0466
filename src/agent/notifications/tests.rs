use std::collections::BTreeMap;
use std::sync::Mutex;

use headgate_agent::health::ProxyStatus;
use headgate_agent::notify::NotificationSettings;
use headgate_core::node::{AzureNotice, Node, NodeReport, Signal, SignalRules, Taint};
use headgate_kubernetes::ObservedEvent;
use headgate_test_kubernetes::FakeApi;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;

const AT: &str = "2026-01-02T03:04:05Z";

fn clock() -> Clock {
    Clock::anchored(AT.parse().unwrap())
}

fn second(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A notifier of all events, and the notices that it has delivered.
fn notifier() -> (Notifier, Arc<Mutex<Vec<Value>>>) {
    let settings = NotificationSettings {
        events: BTreeSet::new(),
        ..NotificationSettings::default()
    };
    let metrics = Metrics::register(&mut Registry::default());
    let (notifier, notices) = queue(&settings, &metrics);
    let delivered = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&delivered);
    let send = move |body: String| {
        received.lock().unwrap().push(serde_json::from_str(&body).unwrap());
        async { Ok(()) }
    };
    tokio::spawn(deliver(notices, send, settings, metrics, clock()));
    (notifier, delivered)
}

/// At this second the Node has these taints; it is not known before the first change.
type Change = (u64, &'static [&'static str]);
/// Second, event, note, signals.
type Reported = (u64, String, String, Vec<String>);

/// What is reported of these changes, by an event and a notice each, where Azure has announced an eviction from the start or not.
async fn reported(changes: &[Change], is_evicted: bool) -> Vec<Reported> {
    let (clock, start) = (clock(), Instant::now());
    let rules = SignalRules::new(["drain", "other"], &[]);
    let known: BTreeMap<Signal, Timestamp> = [(Signal::Azure(AzureNotice::Preempt), clock.now().wall)]
        .into_iter()
        .filter(|_| is_evicted)
        .collect();
    let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()));
    let (proxy, notices) = (
        watch::Sender::new(ProxyStatus::new(second(60))),
        watch::Sender::new(known),
    );
    let inputs = VerdictInputs {
        node: reports.subscribe(),
        proxy: proxy.subscribe(),
        notices: notices.subscribe(),
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&events);
    let (sink, _queue) = EventSink::new(FakeApi::default().client().0, "node-1".to_owned());
    let sink = sink.observed_by(Arc::new(move |event| {
        assert_eq!(event.about.name.as_deref(), Some("node-1"));
        let text = (event.kind.reason.to_owned(), event.note.to_owned());
        recorded.lock().unwrap().push((start.elapsed().as_secs(), text));
    }));
    let (notifier, delivered) = notifier();
    let reporting = tokio::spawn(report_signals(
        inputs,
        sink,
        notifier,
        "node-1".to_owned(),
        clock.clone(),
    ));
    for (at, taints) in changes {
        sleep_until(start + second(*at)).await;
        let node = Node {
            uid: "u".into(),
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            ..Node::default()
        };
        let report = reports.borrow().with_node(node.with_signals(&rules), clock.now());
        reports.send_replace(report);
    }
    sleep(second(200)).await;
    assert!(!reporting.is_finished());
    let (events, delivered) = (events.lock().unwrap(), delivered.lock().unwrap());
    assert_eq!(events.len(), delivered.len(), "{delivered:?}");
    let both = events.iter().zip(&*delivered);
    both.map(|((at, (reason, note)), notice)| {
        let time: Timestamp = serde_json::from_value(notice["time"].clone()).unwrap();
        assert_eq!(time.as_second(), clock.now().wall_at(start + second(*at)).as_second());
        let own = json!({"event": reason, "time": time, "kind": "Node", "namespace": "", "name": "node-1", "warning": false,
            "note": note, "signals": notice["signals"], "reporter": "node-1"});
        assert_eq!(*notice, own);
        let signals = serde_json::from_value(notice["signals"].clone()).unwrap();
        (*at, reason.clone(), note.clone(), signals)
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn news_about_the_own_node_is_an_event_and_a_notice_at_its_time() {
    let signalled = |at: u64, new: &str, present: &[&str]| {
        let note = format!("The node has signals: {new}; /healthz answers 503.");
        let present = present.iter().map(|signal| (*signal).to_owned()).collect();
        (at, "NodeSignalled".to_owned(), note, present)
    };
    let ended = |at: u64| {
        let note = "The node has no signal any more; /healthz answers 200.".to_owned();
        (at, "NodeSignalsEnded".to_owned(), note, Vec::new())
    };
    let cases: [(&[Change], bool, Vec<Reported>); 6] = [
        (
            &[(3, &[]), (5, &["drain"]), (9, &[])],
            false,
            vec![signalled(5, "drain", &["drain"]), ended(9)],
        ),
        // Known to an earlier process.
        (&[(3, &["drain"]), (9, &[])], false, vec![ended(9)]),
        (
            &[(3, &[]), (5, &["drain"]), (6, &["drain", "other"])],
            false,
            vec![
                signalled(5, "drain", &["drain"]),
                signalled(6, "other", &["drain", "other"]),
            ],
        ),
        // No change comes at the end of the minute.
        (
            &[(3, &[]), (5, &["drain"]), (6, &[]), (7, &["drain"])],
            false,
            vec![
                signalled(5, "drain", &["drain"]),
                ended(6),
                signalled(65, "drain", &["drain"]),
            ],
        ),
        // While nothing is known of the Node, a notice is no news, and neither is it afterwards.
        (
            &[(3, &[]), (5, &["drain"]), (9, &[])],
            true,
            vec![signalled(5, "drain", &["drain", "preempt"])],
        ),
        (&[], true, Vec::new()),
    ];
    for (changes, is_evicted, expected) in cases {
        assert_eq!(reported(changes, is_evicted).await, expected, "{changes:?}");
    }
}

#[test]
fn the_note_says_what_healthz_answers_also_where_signals_do_not_count() {
    let signals = SignalChange::Signalled(vec!["a".to_owned(), "b".to_owned()]);
    for (change, is_healthz_ok, expected) in [
        (&signals, true, "The node has signals: a, b; /healthz answers 200."),
        (&signals, false, "The node has signals: a, b; /healthz answers 503."),
        (
            &SignalChange::Ended,
            true,
            "The node has no signal any more; /healthz answers 200.",
        ),
        // kube-proxy is not healthy.
        (
            &SignalChange::Ended,
            false,
            "The node has no signal any more; /healthz answers 503.",
        ),
    ] {
        assert_eq!(describe(change, is_healthz_ok).1, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_of_the_leader_is_a_notice_about_its_object() {
    let (notifier, delivered) = notifier();
    let service = ObjectReference {
        kind: Some("Service".to_owned()),
        namespace: Some("default".to_owned()),
        name: Some("web".to_owned()),
        ..ObjectReference::default()
    };
    for (about, kind, expected) in [
        (
            service,
            EventKind::normal("Updated", "Write"),
            ["Updated", "Service", "default", "web"],
        ),
        (
            ObjectReference::default(),
            EventKind::warning("Failed", "Write"),
            ["Failed", "", "", ""],
        ),
    ] {
        let observe = observer(notifier.clone(), "node-1".to_owned(), clock());
        observe(ObservedEvent {
            about: &about,
            kind,
            note: "a sentence",
        });
        sleep(second(1)).await;
        let notice = delivered.lock().unwrap().pop().unwrap();
        let [event, kind_of, namespace, name] = expected;
        assert_eq!(
            notice,
            json!({"event": event, "time": AT, "kind": kind_of, "namespace": namespace, "name": name,
                "warning": kind.is_warning, "note": "a sentence", "signals": [], "reporter": "node-1"})
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_file_no_task_sends_notices_and_one_that_cannot_be_read_ends_none() {
    for (file, expected) in [(None, &[][..]), (Some("/nonexistent".into()), &["notifications"])] {
        let mut tasks = Tasks::new(clock());
        let mut settings = Settings::default();
        settings.notifications.url_file = file;
        let metrics = Metrics::register(&mut Registry::default());
        drop(start(&mut tasks, &settings, metrics, clock()));
        let started: Vec<_> = tasks.started().borrow().iter().map(|task| task.name).collect();
        assert_eq!(started, expected);
        let failed = tokio::time::timeout(second(3600), tasks.failed()).await;
        assert!(failed.is_err(), "{:?}", failed.map(|error| error.to_string()));
    }
}
