//! The own-Node watch: one Node by field selector; its latest state is published as a [`NodeReport`].
//!
//! The watch runs until the task is aborted. While it fails, or the Node does not exist, the last report stays. The API server counts as
//! lost while it cannot be reached or cannot answer, not while it refuses. `headgate-kubernetes` retries, counts and logs the failures.

use futures::StreamExt as _;
use headgate_core::clock::Clock;
use headgate_kubernetes::{WatchFailure, WatchReporter, watch_events};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use headgate_core::node::NodeObject;
use headgate_core::node::NodeReader;
use headgate_core::node::NodeReport;
use headgate_core::publish_if_changed;

use super::metrics::Metrics;
use crate::spot::read_node;

/// Watches the Node `name` and publishes its reports until the task is aborted.
pub async fn watch_own_node(
    client: Client,
    name: String,
    reader: NodeReader,
    reports: watch::Sender<NodeReport>,
    metrics: Metrics,
    reporter: WatchReporter,
    clock: Clock,
) {
    let selector = Config::default().fields(&format!("metadata.name={name}"));
    let mut failure = reporter.failure();
    let mut events = watch_events::<NodeObject>(&client, Api::all, selector, reporter);
    let mut listed = None;
    loop {
        let deadline = reports.borrow().next_deadline();
        let event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                let report = reports.borrow().at(clock.now());
                publish(&reports, &name, report);
                continue;
            }
            // The stream owns the sender.
            Ok(()) = failure.changed() => {
                let is_outage = |failure: &WatchFailure| failure.reason.is_outage();
                let is_reachable = !failure.borrow_and_update().as_ref().is_some_and(is_outage);
                let report = reports.borrow().with_api_server(is_reachable, clock.now());
                publish(&reports, &name, report);
                continue;
            }
        };
        let Some(event) = event else { return };
        let node = match event {
            // The stream has reported it.
            Err(_) => continue,
            Ok(Event::Init) => {
                metrics.count_list();
                listed = None;
                continue;
            }
            Ok(Event::InitApply(node)) => {
                listed = Some(node);
                continue;
            }
            Ok(Event::InitDone) => listed.take(),
            Ok(Event::Apply(node)) => Some(node),
            Ok(Event::Delete(_)) => None,
        };
        let report = match node {
            Some(node) => reports.borrow().with_node(read_node(node, &reader), clock.now()),
            None => reports.borrow().without_node(),
        };
        publish(&reports, &name, report);
    }
}

/// Publishes a report if it differs from the current one. Health answers read it, so no line of the log is written under its lock.
fn publish(reports: &watch::Sender<NodeReport>, name: &str, report: NodeReport) {
    let (before, after) = (reports.borrow().object_state, report.object_state);
    publish_if_changed(reports, report);
    if before != after {
        let (before, after) = (before.as_str(), after.as_str());
        tracing::info!(node = name, before, after, "state of the Node object changed");
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    use headgate_test_kubernetes::blocked_logs;
    use hyper::{Request, Response};
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use serde_json::json;
    use tokio::time::sleep;

    use headgate_core::node::HOLD_ANNOTATION;
    use headgate_core::node::NodeHold;
    use headgate_core::node::SignalRules;

    use super::*;

    /// The watch of the Node `n` over `client`, with the taint key `drain`, and its reports.
    fn start_watch(client: Client) -> (impl Future<Output = ()> + Send, watch::Receiver<NodeReport>) {
        let clock = Clock::System;
        let reports = watch::Sender::new(NodeReport::initial(None, &SignalRules::default(), clock.now()));
        let received = reports.subscribe();
        let metrics = Metrics::register(&mut Registry::default());
        let reporter = metrics.watch_reporter("n", &clock);
        let reader = NodeReader::own(SignalRules::new(["drain"], &[]));
        let watch = watch_own_node(client, "n".to_owned(), reader, reports, metrics, reporter, clock);
        (watch, received)
    }

    /// What the API server answers once it has shown a Node that is held.
    #[derive(Clone, Copy, Debug)]
    enum Answer {
        Status(u16),
        Refused,
        Silence,
        Garbage,
    }

    /// Whether the Node is still held six minutes after the only renewal.
    async fn is_held_after_six_minutes(answer: Answer) -> bool {
        let hold = NodeHold {
            node_uid: "u".to_owned(),
            pools: ["lb/p".to_owned()].into(),
            probes_headgate: true,
            signals: ["drain".to_owned()].into(),
            renewed_at: Clock::System.now().wall,
            ..NodeHold::default()
        };
        let metadata = json!({"name": "n", "uid": "u", "resourceVersion": "7", "annotations": {HOLD_ANNOTATION: hold.to_annotation().unwrap()}});
        let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
            "items": [{"metadata": metadata, "spec": {"taints": [{"key": "drain"}]}}]});
        let first = Arc::new(Mutex::new(Some(list.to_string())));
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_streaming = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("sendInitialEvents"));
            let first = first.lock().unwrap().take_if(|_| !is_streaming);
            async move {
                let body = |text: &str| Body::from(text.as_bytes().to_vec());
                if is_streaming {
                    return Ok(Response::builder().status(422).body(body("")).unwrap());
                }
                if let Some(list) = first {
                    return Ok(Response::new(body(&list)));
                }
                match answer {
                    Answer::Status(code) => {
                        let status =
                            json!({"kind": "Status", "status": "Failure", "reason": "x", "message": "m", "code": code});
                        Ok(Response::builder()
                            .status(code)
                            .body(body(&status.to_string()))
                            .unwrap())
                    }
                    Answer::Refused => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
                    Answer::Silence => {
                        sleep(Duration::from_secs(30)).await;
                        Err(std::io::Error::from(std::io::ErrorKind::TimedOut))
                    }
                    Answer::Garbage => Ok(Response::new(body("garbage\n"))),
                }
            }
        });
        let (watch, mut reports) = start_watch(Client::new(service, "default"));
        let watching = tokio::spawn(watch);
        let drained = reports.wait_for(|report| !report.is_eligible()).await.unwrap().clone();
        assert!(drained.is_held(&[], Instant::now()), "{answer:?}");
        sleep(Duration::from_mins(4)).await;
        assert!(reports.borrow().is_held(&[], Instant::now()), "{answer:?}");
        sleep(Duration::from_mins(2)).await;
        let is_held = reports.borrow().is_held(&[], Instant::now());
        watching.abort();
        is_held
    }

    #[test]
    fn the_report_can_be_read_while_a_line_of_the_log_waits() {
        let (subscriber, blocked) = blocked_logs();
        let reports = watch::Sender::new(NodeReport::initial(None, &SignalRules::default(), Clock::System.now()));
        let received = reports.subscribe();
        let publishing = thread::spawn(move || {
            let report = reports.borrow().without_node();
            tracing::subscriber::with_default(subscriber, || publish(&reports, "n", report));
        });
        let (done, is_read) = mpsc::channel();
        thread::spawn(move || {
            while !received.borrow().is_synced() {
                thread::sleep(Duration::from_millis(1));
            }
            done.send(())
        });
        is_read.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(!publishing.is_finished());
        drop(blocked);
        publishing.join().unwrap();
    }

    /// As other agents and the leader read it: such a node keeps serving for no Service, whatever others do.
    #[tokio::test(start_paused = true)]
    async fn a_condition_that_announces_an_eviction_ends_the_own_node() {
        let condition = json!({"type": "VMEventScheduled", "status": "True",
            "message": "Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. DurationInSeconds: -1."});
        let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
            "items": [{"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}, "status": {"conditions": [condition]}}]});
        let body = list.to_string().into_bytes();
        let service = tower::service_fn(move |_: Request<Body>| {
            let body = body.clone();
            async move { Ok::<_, std::io::Error>(Response::new(Body::from(body))) }
        });
        let (watch, mut reports) = start_watch(Client::new(service, "default"));
        let watching = tokio::spawn(watch);
        let report = reports.wait_for(|report| report.node.is_some()).await.unwrap().clone();
        watching.abort();
        let now = Clock::System.now();
        let stored = serde_json::to_string(&report.remembered(now)).unwrap();
        assert!(report.node.unwrap().ends);
        // An API server that is away after a restart does not change that.
        let restarted = NodeReport::initial(serde_json::from_str(&stored).unwrap(), &SignalRules::default(), now);
        assert!(restarted.node.unwrap().ends, "{stored}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_without_an_api_server_prolongs_a_hold() {
        for (answer, is_held) in [
            (Answer::Refused, true),
            (Answer::Silence, true),
            (Answer::Status(429), true),
            (Answer::Status(500), true),
            (Answer::Status(503), true),
            (Answer::Status(504), true),
            (Answer::Status(400), false),
            (Answer::Status(401), false),
            (Answer::Status(403), false),
            (Answer::Status(404), false),
            (Answer::Garbage, false),
        ] {
            assert_eq!(is_held_after_six_minutes(answer).await, is_held, "{answer:?}");
        }
    }
}
