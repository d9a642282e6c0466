use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::Node;
use headgate_http::server;
use headgate_test_kubernetes::FakeApi;
use prometheus_client::registry::Registry;
use tokio::time::{sleep, timeout};

use super::super::role::Role;
use super::*;
use crate::config::{ConditionSource, Settings};

const NODE: &str = "node-1";

/// The tasks that write conditions, with these settings.
fn started(settings: Settings) -> Vec<&'static str> {
    let (clock, client) = (Clock::System, FakeApi::default().client().0);
    let channels = Channels::new(&settings, None, &clock);
    let metrics = Metrics::register(&settings, Role::All, &channels, &clock);
    let (events, _queue) = EventSink::new(client.clone(), NODE.to_owned());
    let (mut tasks, mut others) = (Tasks::new(clock.clone()), Tasks::new(clock.clone()));
    let inputs = channels.inputs();
    let health = HealthTasks {
        policies: Policies::start(
            &mut others,
            Vec::new(),
            client.clone(),
            events.clone(),
            inputs.node.clone(),
        ),
        events,
        inputs,
        heartbeat: Heartbeat::new(),
        service_reporters: metrics.services.watch_reporters(&clock),
        metrics,
        process: Process {
            settings: Arc::new(settings),
            role: Role::All,
            client,
            node_name: NODE.to_owned(),
            clock,
        },
    };
    let intents = NodeIntents::default();
    health.spawn_marker(&mut tasks, &channels.services, intents.field(NodeField::Marker));
    let (exchange, view) = (channels.exchange, channels.connections);
    health.spawn_connections(&mut tasks, exchange, view, intents.field(NodeField::Connections));
    tasks.started().borrow().iter().map(|task| task.name).collect()
}

#[tokio::test]
async fn conditions_have_a_task_where_somebody_writes_them_or_counts() {
    for (source, counts, expected) in [
        (ConditionSource::Disabled, false, &[][..]),
        (ConditionSource::Disabled, true, &["connections"]),
        // An agent that does not count ends what one that did has left.
        (ConditionSource::AdminState, false, &["marker", "connections"]),
        (ConditionSource::AdminState, true, &["marker", "connections"]),
        (ConditionSource::FailedProbes, false, &["marker", "connections"]),
        (ConditionSource::FailedProbes, true, &["marker", "connections"]),
    ] {
        let mut settings = Settings::default();
        settings.out_of_load_balancers.source = source;
        settings.count_connections = counts;
        assert_eq!(started(settings), expected, "{source:?}, counts: {counts}");
    }
}

/// The events about these states, which come one after another.
async fn bind_events(
    address: SocketAddr,
    states: watch::Receiver<BindState>,
    publish: impl Future<Output = ()>,
) -> Vec<String> {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&notes);
    let (events, _queue) = EventSink::new(FakeApi::default().client().0, NODE.to_owned());
    let events = events.observed_by(Arc::new(move |event| {
        assert_eq!((event.about.uid.as_deref(), event.kind), (Some("u"), BIND_FAILED));
        recorded.lock().unwrap().push(event.note.to_owned());
    }));
    let node = Node {
        uid: "u".into(),
        ..Node::default()
    };
    let settings = Settings::default();
    let report = NodeReport::initial(None, &settings.signals.health(), Clock::System.now());
    let reports = watch::Sender::new(report.with_node(node, Clock::System.now()));
    let events = publish_bind_failures(states, events, reports.subscribe(), address);
    let both = async { tokio::join!(events, publish) };
    assert!(
        timeout(Duration::from_mins(10), both).await.is_err(),
        "the task ends with the process"
    );
    notes.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn each_error_of_the_health_port_is_an_event() {
    let states = watch::Sender::new(BindState::Waiting);
    let (address, received) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 10456)), states.subscribe());
    let publish = async move {
        let failed = |error: &str| BindState::Failed(error.to_owned());
        for state in [
            failed("a"),
            failed("b"),
            BindState::Bound(address),
            failed("a"),
            BindState::Closing,
        ] {
            sleep(Duration::from_secs(5)).await;
            states.send_replace(state);
        }
        // The listener goes, and with it the sender.
    };
    let notes = bind_events(address, received, publish).await;
    let note =
        |error: &str| format!("headgate cannot serve /healthz on 127.0.0.1:10456: {error}; it tries again every 5 s");
    assert_eq!(notes, ["a", "b", "a"].map(note));
}

#[tokio::test(start_paused = true)]
async fn a_port_that_another_program_has_for_a_minute_is_one_event() {
    let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = stranger.local_addr().unwrap();
    let states = watch::Sender::new(BindState::Waiting);
    let received = states.subscribe();
    let binder = Binder {
        name: "healthz",
        address,
        hard_fail: false,
        state: states.clone(),
        log_runtime: None,
    };
    let publish = async {
        let metrics = server::Metrics::register(&mut Registry::default());
        let free = async move {
            sleep(Duration::from_mins(1)).await;
            drop(stranger);
        };
        let (bound, ()) = tokio::join!(binder.bind(&metrics), free);
        assert_eq!(bound.unwrap().local_addr().unwrap(), address);
    };
    let notes = bind_events(address, received, publish).await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(states.borrow().address(), Some(address));
}
