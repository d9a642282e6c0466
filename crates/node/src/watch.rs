//! The own-Node watch: one object by field selector, its latest state published as a [`Report`].
//!
//! Runs for ever with kube's backoff and jitter. While the API server cannot be reached, refuses, or
//! has no such Node, the last report stays; the trouble is logged when it starts, changes and ends,
//! and counted each time.

use futures::StreamExt as _;
use headgate_clock::{Clock, Moment};
use headgate_kubernetes::api_server::ApiServer;
use headgate_kubernetes::{EXPIRED, Pauses, is_answer, watch_error_reason};
use jiff::Timestamp;
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::Metrics;
use super::object::SlimNode;
use super::report::Report;

/// Why the Node cannot be watched just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind, as in metrics.
    pub reason: &'static str,
    /// The first error of this kind.
    pub error: String,
    /// When it began.
    pub since: Timestamp,
}

/// Where the watch publishes what it learns.
#[derive(Debug)]
pub struct Outlet {
    /// The state of the Node.
    pub reports: watch::Sender<Report>,
    /// The state of the watch itself.
    pub trouble: watch::Sender<Option<Trouble>>,
}

/// Watches the Node `name` and publishes what it says; never returns of itself.
pub async fn run(
    api_server: ApiServer,
    name: String,
    taint_keys: Vec<String>,
    outlet: Outlet,
    metrics: Metrics,
    clock: Clock,
) {
    let ApiServer {
        client,
        mut node_answers,
    } = api_server;
    let selector = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(Api::<SlimNode>::all(client), selector).boxed();
    let mut pauses = Pauses::default();
    let mut listed = None;
    loop {
        let event = tokio::select! {
            // Answers first: one that is followed by an error must not take the error back.
            biased;
            answered = node_answers.changed() => {
                if answered.is_ok() {
                    outlet.ended(&name);
                    continue;
                }
                // The client lives as long as the watcher, so this cannot be; without it events suffice.
                events.next().await
            }
            event = events.next() => event,
        };
        if let Some(Ok(event)) = &event
            && is_answer(event)
        {
            pauses.answered();
        }
        let node = match event {
            None => return,
            Some(Ok(watcher::Event::Init)) => {
                metrics.list();
                listed = None;
                continue;
            }
            Some(Ok(watcher::Event::InitApply(node))) => {
                listed = Some(node);
                continue;
            }
            Some(Ok(watcher::Event::InitDone)) => listed.take(),
            Some(Ok(watcher::Event::Apply(node))) => Some(node),
            Some(Ok(watcher::Event::Delete(_))) => None,
            Some(Err(error)) => {
                let reason = watch_error_reason(&error);
                metrics.error(reason);
                if reason != EXPIRED {
                    outlet.began(&name, reason, &error, clock.now());
                }
                sleep(pauses.after(reason)).await;
                continue;
            }
        };
        let report = match node {
            Some(node) => outlet.reports.borrow().observed(node.facts(), &taint_keys, clock.now()),
            None => outlet.reports.borrow().absent(),
        };
        outlet.report(&name, report);
    }
}

impl Outlet {
    /// Publishes a report, if it is news.
    fn report(&self, name: &str, report: Report) {
        self.reports.send_if_modified(|current| {
            if *current == report {
                return false;
            }
            if current.presence != report.presence {
                let (was, now) = (current.presence.as_str(), report.presence.as_str());
                tracing::info!(node = name, was, now, "the Node object");
            }
            *current = report;
            true
        });
    }

    /// The watch is in trouble; told when its kind is news.
    fn began(&self, name: &str, reason: &'static str, error: &watcher::Error, now: Moment) {
        if self
            .trouble
            .borrow()
            .as_ref()
            .is_some_and(|trouble| trouble.reason == reason)
        {
            return;
        }
        let error = headgate_telemetry::chain(error);
        tracing::warn!(
            node = name,
            reason,
            error,
            "the own Node cannot be watched; its last known state goes on"
        );
        let since = now.wall;
        self.trouble.send_replace(Some(Trouble { reason, error, since }));
    }

    /// The API server has answered.
    fn ended(&self, name: &str) {
        if self.trouble.send_if_modified(|trouble| trouble.take().is_some()) {
            tracing::info!(node = name, "the own Node is watched again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use hyper::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// Requests that an API server was sent: a watch or a list, and when.
    type Seen = Arc<Mutex<Vec<(bool, Instant)>>>;

    /// An API server that is away for the first watches, then finds the watch too old; the list after that
    /// holds a tainted Node.
    fn answer(seen: &Seen, request: &Request<Body>) -> Result<Response<Body>, std::io::Error> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.push((is_watch, Instant::now()));
        let watches = seen.iter().filter(|(is_watch, _)| *is_watch).count();
        let taints = if watches > 5 {
            r#"[{"key":"drain","effect":"NoSchedule"}]"#
        } else {
            "[]"
        };
        let node =
            format!(r#"{{"metadata":{{"name":"n","uid":"u","resourceVersion":"7"}},"spec":{{"taints":{taints}}}}}"#);
        let text = match (is_watch, watches) {
            (false, _) => {
                format!(
                    r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"7"}},"items":[{node}]}}"#
                )
            }
            (true, ..=5) => return Err(std::io::ErrorKind::ConnectionRefused.into()),
            (true, _) => {
                let status =
                    r#"{"status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
                format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n")
            }
        };
        Ok(Response::new(Body::from(text.into_bytes())))
    }

    #[tokio::test(start_paused = true)]
    async fn lists_that_are_refused_come_further_and_further_apart() {
        let seen = Seen::default();
        let asked = Arc::clone(&seen);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            asked.lock().unwrap().push((is_watch, Instant::now()));
            let status = r#"{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429}"#;
            let answer = Response::builder()
                .status(429)
                .body(Body::from(status.as_bytes().to_vec()));
            std::future::ready(answer)
        });
        let client = Client::new(service, "default");
        let (_answers, node_answers) = watch::channel(0);
        let clock = Clock::System;
        let outlet = Outlet {
            reports: watch::Sender::new(Report::initial(None, &[], clock.now())),
            trouble: watch::Sender::new(None),
        };
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::register(&mut registry, outlet.reports.subscribe(), Vec::new());
        let api_server = ApiServer {
            client: client.clone(),
            node_answers,
        };
        let watching = run(api_server, "n".into(), Vec::new(), outlet, metrics, clock);
        assert!(timeout(Duration::from_mins(10), watching).await.is_err());
        let own = std::mem::take(&mut *seen.lock().unwrap()).len();

        let events = watcher(Api::<SlimNode>::all(client), watcher::Config::default());
        let mut events = headgate_kubernetes::pausing(events, is_answer);
        let reading = async { while events.next().await.is_some() {} };
        assert!(timeout(Duration::from_mins(10), reading).await.is_err());
        let others = seen.lock().unwrap().len();
        assert!((10..60).contains(&own) && (10..60).contains(&others), "{own} {others}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_was_too_old_begins_anew_at_once() {
        let seen = Seen::default();
        let asked = Arc::clone(&seen);
        let service = tower::service_fn(move |request| std::future::ready(answer(&asked, &request)));
        let (_answers, node_answers) = watch::channel(0);
        let api_server = ApiServer {
            client: Client::new(service, "default"),
            node_answers,
        };
        let clock = Clock::System;
        let initial = Report::initial(None, &[], clock.now());
        let outlet = Outlet {
            reports: watch::Sender::new(initial),
            trouble: watch::Sender::new(None),
        };
        let mut reports = outlet.reports.subscribe();
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = Metrics::register(&mut registry, reports.clone(), Vec::new());
        let watching = tokio::spawn(run(
            api_server,
            "n".into(),
            vec!["drain".into()],
            outlet,
            metrics,
            clock,
        ));
        let drained = timeout(Duration::from_mins(10), reports.wait_for(|report| !report.eligible()));
        drained.await.unwrap().unwrap();
        sleep(Duration::from_secs(20)).await;
        watching.abort();

        let seen = seen.lock().unwrap();
        let expired = seen.iter().filter(|(is_watch, _)| *is_watch).nth(5).unwrap().1;
        let lists: Vec<_> = seen
            .iter()
            .filter(|(is_watch, _)| !is_watch)
            .map(|(_, at)| *at)
            .collect();
        assert_eq!(lists[1] - expired, Duration::ZERO, "no pause between the two");
        assert!(lists.len() < 30, "{} lists where each watch is too old", lists.len());
        assert!(
            expired - seen[1].1 > Duration::from_secs(10),
            "pauses grow while it is away"
        );
    }
}
