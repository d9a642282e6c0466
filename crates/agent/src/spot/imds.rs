//! Polls IMDS for Scheduled Events: each second, or as soon as the poll before has ended.
//!
//! The first response may take two minutes, because the request switches the service on, and so may the first one
//! after the service has switched itself off (after 24 h without a request). So the oldest request without a response stays open for
//! that long. Further ones are sent beside it, because IMDS may never answer that one; each has a short timeout. The first document counts.
//! Responses are complete documents without validators, so no request is conditional. Redirects are not followed.
//!
//! A poll without a document is logged once that has lasted as long; `/statusz` shows each.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, OptionFuture};
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{AzureNotice, NodeReport};
use headgate_http::client::{HttpError, Limits, PlainClient};
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Timing;
use super::document::{EventsDocument, ScheduledEvent};
use super::metrics::Metrics;
use super::notice::{NoticeTracker, VmName};
use super::snapshot::{EventsSnapshot, ImdsError, ImdsErrorReason};

/// The newest version of the API; it has every field that is read.
const PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";
/// Timeout of the oldest request: the two minutes that the first document may take, with a margin.
const FIRST_DOCUMENT_TIMEOUT: Duration = Duration::from_secs(150);
const LIMITS: Limits = Limits {
    // IMDS is on the VM's host.
    connect_timeout: Duration::from_secs(5),
    timeout: FIRST_DOCUMENT_TIMEOUT,
    // More than the events of a whole placement group.
    max_body_bytes: 256 * 1024,
};
/// Timeout of a poll.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a poll got no document, or one that is not complete.
#[derive(Clone, Debug)]
struct PollError {
    reason: ImdsErrorReason,
    error: String,
}

impl PollError {
    fn new(reason: ImdsErrorReason, error: impl Into<String>) -> Self {
        Self {
            reason,
            error: error.into(),
        }
    }
}

/// Polls IMDS at `authority` and publishes the events of this VM until the task is aborted. `reports` has the Node's
/// `providerID`. Events of the types `chosen` are notices, all others are shown only.
pub async fn poll_imds(
    authority: String,
    reports: watch::Receiver<NodeReport>,
    snapshots: watch::Sender<EventsSnapshot>,
    chosen: BTreeSet<AzureNotice>,
    timing: Timing,
    metrics: Metrics,
    clock: Clock,
) {
    let client = PlainClient::plain_within(LIMITS);
    let mut ticks = interval(timing.poll_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut oldest, mut foreign_id_logged, mut warned) = (None::<BoxFuture<'_, _>>, false, None);
    loop {
        ticks.tick().await;
        let mut newest = request(&client, &authority).boxed();
        let outcome = tokio::select! {
            outcome = &mut newest => outcome,
            Some(outcome) = OptionFuture::from(oldest.as_mut()) => {
                oldest = None;
                outcome
            }
            () = sleep(DOCUMENT_TIMEOUT) => {
                oldest.get_or_insert(newest);
                let error = format!("no answer within {} s", DOCUMENT_TIMEOUT.as_secs());
                Err(PollError::new(ImdsErrorReason::Timeout, error))
            }
        };
        if outcome.is_ok() {
            // The oldest request would be answered with an earlier state.
            oldest = None;
        }
        metrics.count_poll();
        if let Some(failure) = failure(&outcome) {
            metrics.count_error(failure.reason);
        }
        let provider_id = provider_id(&reports.borrow());
        let vm = provider_id.as_deref().and_then(VmName::from_provider_id);
        if let (Some(provider_id), None, false) = (&provider_id, &vm, foreign_id_logged) {
            foreign_id_logged = true;
            tracing::warn!(
                provider_id,
                "providerID of the Node is not the ID of an Azure VM; no scheduled event counts"
            );
        }
        let (before, now) = (snapshots.borrow().clone(), clock.now());
        let after = next_snapshot(&before, outcome, vm.as_ref(), &chosen, timing.grace, now);
        log_failure(after.last_error.as_ref(), &mut warned, now.wall, &authority);
        if after != before {
            log_changes(&before, &after, &chosen);
            snapshots.send_replace(after);
        }
    }
}

/// The `providerID` of the Node; `None` for one that has none yet.
fn provider_id(report: &NodeReport) -> Option<String> {
    let node = report.node.as_ref().filter(|node| !node.provider_id.is_empty())?;
    Some(node.provider_id.clone())
}

/// What is wrong with the outcome of a poll.
fn failure(outcome: &Result<EventsDocument, PollError>) -> Option<PollError> {
    match outcome {
        Ok(document) if document.unreadable == 0 => None,
        Ok(document) => {
            let error = format!("{} events of the document are not readable", document.unreadable);
            Some(PollError::new(ImdsErrorReason::Event, error))
        }
        Err(failure) => Some(failure.clone()),
    }
}

/// The snapshot after one poll. Pure.
fn next_snapshot(
    before: &EventsSnapshot,
    outcome: Result<EventsDocument, PollError>,
    vm: Option<&VmName>,
    chosen: &BTreeSet<AzureNotice>,
    grace: Duration,
    now: Moment,
) -> EventsSnapshot {
    let unconfirmed = || {
        let after = |_, tracker: &NoticeTracker| tracker.after_unconfirmed_poll(now);
        before.trackers.map(chosen, after)
    };
    let last_error = failure(&outcome).map(|failure| {
        let has_document = |reason| reason == ImdsErrorReason::Event;
        let known = before.last_error.as_ref();
        let known = known.filter(|known| has_document(known.reason) == has_document(failure.reason));
        let first_at = known.map_or(now.wall, |known| known.first_at);
        let known = known.filter(|known| known.reason == failure.reason);
        known.cloned().unwrap_or(ImdsError {
            reason: failure.reason,
            error: failure.error,
            since: now.wall,
            first_at,
        })
    });
    let Ok(document) = outcome else {
        return EventsSnapshot {
            last_error,
            trackers: unconfirmed(),
            ..before.clone()
        };
    };
    let incarnation = document.incarnation;
    let Some(vm) = vm else {
        // Without the VM's name, the document shows neither that a notice exists nor that one has ended.
        return EventsSnapshot {
            incarnation,
            trackers: unconfirmed(),
            last_error,
            ..before.clone()
        };
    };
    let events = vm.own_events(&document);
    EventsSnapshot {
        vm: Some(vm.as_str().to_owned()),
        incarnation,
        trackers: before.trackers.map(chosen, |event_type, tracker| {
            tracker.next(&events, event_type, document.unreadable == 0, grace, now)
        }),
        events,
        last_error,
    }
}

/// Whether a failure is one to warn of, and not of the reason that was `warned` of last. Others than events that are not readable are once they
/// have lasted as long as the first response may take: whatever their reasons for a first warning, of one reason for a further one.
fn is_to_warn(failure: &ImdsError, warned: Option<ImdsErrorReason>, now: Timestamp) -> bool {
    let since = match warned {
        None | Some(ImdsErrorReason::Event) => failure.first_at,
        Some(_) => failure.since,
    };
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let has_lasted = failure.reason == ImdsErrorReason::Event || age >= FIRST_DOCUMENT_TIMEOUT;
    has_lasted && warned != Some(failure.reason)
}

/// Logs a failure of polls once, and its end if it was logged.
fn log_failure(last_error: Option<&ImdsError>, warned: &mut Option<ImdsErrorReason>, now: Timestamp, authority: &str) {
    let Some(failure) = last_error else {
        if warned.take().is_some() {
            tracing::info!(imds = authority, "Scheduled Events received again");
        }
        return;
    };
    if !is_to_warn(failure, *warned, now) {
        return;
    }
    *warned = Some(failure.reason);
    let message = match failure.reason {
        ImdsErrorReason::Event => "Scheduled Events not readable, an eviction may not be noticed",
        _ => {
            "no Scheduled Events from IMDS, an eviction would not be noticed (some clusters block IMDS for Pods without hostNetwork)"
        }
    };
    let (reason, error) = (failure.reason.as_str(), &failure.error);
    tracing::warn!(imds = authority, reason, error, "{message}");
}

fn log_changes(before: &EventsSnapshot, after: &EventsSnapshot, chosen: &BTreeSet<AzureNotice>) {
    let is_new = |event: &&ScheduledEvent| {
        !before
            .events
            .iter()
            .any(|known| known.event_id == event.event_id && known.status == event.status)
    };
    for event in after.events.iter().filter(is_new) {
        let (id, status) = (&event.event_id, event.status);
        let not_before = event.not_before.map(|at| at.to_string());
        let (description, event_type) = (&event.description, event.event_type.as_str());
        let is_chosen = event.event_type.notice().is_some_and(|notice| chosen.contains(&notice));
        let and_then = if is_chosen { "" } else { ", no action taken" };
        tracing::info!(
            event_type,
            id,
            ?status,
            not_before,
            description,
            "scheduled event of this VM announced{and_then}"
        );
    }
    let tracker = after.trackers.gravest();
    match (&before.trackers.gravest().notice, &tracker.notice) {
        (Some(known), Some(current)) if known.is_listed && !current.is_listed => {
            tracing::info!(id = known.latest.event_id, "eviction notice no longer listed");
        }
        (Some(known), None) => tracing::info!(
            id = known.latest.event_id,
            is_confirmed = !tracker.is_unconfirmed,
            "eviction notice ended"
        ),
        _ => {}
    }
}

async fn request(client: &PlainClient, authority: &str) -> Result<EventsDocument, PollError> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(PATH)
        .build();
    let uri = uri.map_err(|error| PollError::new(ImdsErrorReason::Connection, error.to_string()))?;
    let response = client.get(uri, &[("Metadata", "true")]).await;
    let (status, body) = response.map_err(|error| match error {
        HttpError::Timeout(_) => PollError::new(ImdsErrorReason::Timeout, error.to_string()),
        _ => PollError::new(ImdsErrorReason::Connection, error.to_string()),
    })?;
    if status != StatusCode::OK {
        return Err(PollError::new(ImdsErrorReason::Status, format!("it answers {status}")));
    }
    EventsDocument::parse(&body).map_err(|error| PollError::new(ImdsErrorReason::Document, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use headgate_core::node::{Node, Signal, SignalRules};
    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    const GRACE: Duration = Duration::from_mins(1);

    fn preempts() -> BTreeSet<AzureNotice> {
        [AzureNotice::Preempt].into()
    }

    fn vm() -> VmName {
        VmName::from_provider_id("azure:///p/Microsoft.Compute/virtualMachines/vm-a").unwrap()
    }

    fn document(incarnation: i64, events: &str) -> EventsDocument {
        let text = format!(r#"{{"DocumentIncarnation":{incarnation},"Events":[{events}]}}"#);
        EventsDocument::parse(text.as_bytes()).unwrap()
    }

    const OURS: &str = r#"{"EventId":"a","EventType":"Preempt","EventStatus":"Scheduled","Resources":["other","VM-A"],"NotBefore":""}"#;
    const OTHERS: &str =
        r#"{"EventId":"b","EventType":"Preempt","EventStatus":"Scheduled","Resources":["other"],"NotBefore":""}"#;

    /// The snapshot after one poll for `Preempt`.
    fn polled(before: &EventsSnapshot, outcome: Result<EventsDocument, PollError>, now: Moment) -> EventsSnapshot {
        next_snapshot(before, outcome, Some(&vm()), &preempts(), GRACE, now)
    }

    /// The snapshot after a first document.
    fn first(events: &str, now: Moment) -> EventsSnapshot {
        polled(&EventsSnapshot::default(), Ok(document(1, events)), now)
    }

    /// Whether a notice is read from an IMDS that answers some connections, each after a time. In real time: client and server are real.
    async fn is_noticed(answered_after: fn(usize) -> Option<Duration>) -> bool {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let imds = async {
            let mut answers = JoinSet::new();
            for number in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                answers.spawn(async move {
                    let _ = stream.read(&mut [0; 1024]).await.unwrap();
                    let Some(after) = answered_after(number) else {
                        return std::future::pending().await;
                    };
                    sleep(after).await;
                    let body = format!(r#"{{"DocumentIncarnation":1,"Events":[{OURS}]}}"#);
                    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    stream.write_all(answer.as_bytes()).await.unwrap();
                });
            }
        };
        let mut report = NodeReport::initial(None, &SignalRules::default(), Clock::System.now());
        report.node = Some(Node {
            provider_id: "azure:///p/Microsoft.Compute/virtualMachines/vm-a".to_owned(),
            ..Node::default()
        });
        let (_reports, reports) = watch::channel(report);
        let (sender, mut snapshots) = watch::channel(EventsSnapshot::default());
        let metrics = Metrics::register(&mut Registry::default(), snapshots.clone());
        let (timing, clock) = (Timing::default(), Clock::System);
        let polls = poll_imds(authority, reports, sender, preempts(), timing, metrics, clock);
        tokio::select! {
            noticed = snapshots.wait_for(|snapshot| !snapshot.signals().is_empty()) => noticed.is_ok(),
            () = polls => false,
            () = imds => false,
            () = sleep(Duration::from_secs(20)) => false,
        }
    }

    #[tokio::test]
    async fn a_request_without_an_answer_neither_stops_the_polls_nor_is_given_up() {
        let (others_answer, it_answers_late) = tokio::join!(
            is_noticed(|number| (number > 0).then_some(Duration::ZERO)),
            is_noticed(|number| (number == 0).then_some(DOCUMENT_TIMEOUT + Duration::from_secs(2))),
        );
        assert!(others_answer && it_answers_late);
    }

    #[test]
    fn failures_keep_the_notice_for_15_minutes() {
        let now = Clock::System.now();
        let known = first(OURS, now);
        assert!(known.signals().contains_key(&Signal::Azure(AzureNotice::Preempt)));
        for reason in ImdsErrorReason::ALL {
            let mut after = known.clone();
            for (minutes, counts) in [(0, true), (14, true), (15, false), (16, false)] {
                let later = Moment {
                    mono: now.mono + minutes * GRACE,
                    ..now
                };
                after = polled(&after, Err(PollError::new(reason, "x")), later);
                assert_eq!(after.last_error.as_ref().unwrap().reason, reason);
                assert_eq!(
                    after.signals().contains_key(&Signal::Azure(AzureNotice::Preempt)),
                    counts,
                    "{minutes} min"
                );
                assert_eq!(after.expired_notice(&known).is_some(), !counts, "{minutes} min");
                assert_eq!((&after.vm, &after.events), (&known.vm, &known.events));
            }
            assert_eq!(
                polled(&after, Ok(document(1, OURS)), now),
                known,
                "listed again, it counts again"
            );
            let gone = next_snapshot(
                &known,
                Ok(document(2, "")),
                Some(&vm()),
                &preempts(),
                Duration::ZERO,
                now,
            );
            assert!(
                gone.signals().is_empty() && gone.expired_notice(&known).is_none(),
                "an end by a document"
            );
        }
    }

    #[test]
    fn a_failure_that_lasts_is_warned_of_once() {
        let now = Clock::System.now();
        let after = |seconds| now.wall + Duration::from_secs(seconds);
        let failed = |reason| {
            let snapshot = polled(&EventsSnapshot::default(), Err(PollError::new(reason, "x")), now);
            snapshot.last_error.unwrap()
        };
        // A new VM's first document comes within two minutes.
        for (reason, seconds, warned, expected) in [
            (ImdsErrorReason::Timeout, 0, None, false),
            (ImdsErrorReason::Timeout, 149, None, false),
            (ImdsErrorReason::Timeout, 150, None, true),
            (ImdsErrorReason::Timeout, 151, Some(ImdsErrorReason::Timeout), false),
            (ImdsErrorReason::Status, 149, Some(ImdsErrorReason::Timeout), false),
            (ImdsErrorReason::Status, 150, Some(ImdsErrorReason::Timeout), true),
            (ImdsErrorReason::Event, 0, None, true),
            (ImdsErrorReason::Event, 1, Some(ImdsErrorReason::Event), false),
        ] {
            let is_warned = is_to_warn(&failed(reason), warned, after(seconds));
            assert_eq!(is_warned, expected, "{reason:?} {seconds} s {warned:?}");
        }
        // Reasons that alternate.
        let mut snapshot = EventsSnapshot::default();
        let mut warned = vec![];
        for (seconds, reason) in (0..300).zip([ImdsErrorReason::Timeout, ImdsErrorReason::Status].iter().cycle()) {
            let later = Moment {
                wall: after(seconds),
                ..now
            };
            snapshot = polled(&snapshot, Err(PollError::new(*reason, "x")), later);
            let failure = snapshot.last_error.as_ref().unwrap();
            if is_to_warn(failure, warned.last().copied(), later.wall) {
                warned.push(*reason);
            }
            assert_eq!(warned.len(), usize::from(seconds >= 150), "{seconds} s");
        }
    }

    #[test]
    fn document_counts_with_any_incarnation() {
        let now = Clock::System.now();
        for incarnations in [[1, 2], [2, 2], [2, 1], [i64::MAX, 0]] {
            let snapshot = polled(&EventsSnapshot::default(), Ok(document(incarnations[0], "")), now);
            assert!(snapshot.signals().is_empty());
            let snapshot = polled(&snapshot, Ok(document(incarnations[1], OURS)), now);
            assert_eq!(snapshot.signals().len(), 1, "{incarnations:?}");
        }
    }

    #[test]
    fn events_of_other_vms_are_neither_signals_nor_shown() {
        let now = Clock::System.now();
        let snapshot = first(OTHERS, now);
        assert!(snapshot.signals().is_empty() && snapshot.events.is_empty());
        let both = format!("{OTHERS},{OURS}");
        let snapshot = polled(&snapshot, Ok(document(1, &both)), now);
        assert_eq!((snapshot.signals().len(), snapshot.events.len()), (1, 1));
        assert_eq!(snapshot.events[0].event_id, "a");
    }

    #[test]
    fn an_event_that_is_not_readable_is_an_error_and_the_others_count() {
        let now = Clock::System.now();
        let snapshot = first(&format!("{OURS},{{}}"), now);
        let error = snapshot.last_error.as_ref().unwrap();
        assert_eq!(
            (error.reason, &*error.error),
            (ImdsErrorReason::Event, "1 events of the document are not readable")
        );
        assert_eq!(snapshot.signals().len(), 1);
        assert_eq!(polled(&snapshot, Ok(document(1, OURS)), now).last_error, None);
    }

    #[test]
    fn eviction_that_has_started_in_the_first_document_counts() {
        let now = Clock::System.now();
        let started = OURS.replace("Scheduled", "Started");
        assert_ne!(started, OURS);
        let snapshot = first(&started, now);
        assert_eq!(snapshot.signals().len(), 1);
        // A hardware failure without announcement is a Reboot that has started; it is shown only.
        let reboot = started.replace("Preempt", "Reboot");
        let snapshot = first(&reboot, now);
        assert_eq!((snapshot.signals().len(), snapshot.events.len()), (0, 1));
    }

    #[test]
    fn a_graver_event_hides_no_signal() {
        let chosen = [AzureNotice::Preempt, AzureNotice::Reboot].into();
        let reboot = OURS.replace("Preempt", "Reboot").replace("\"a\"", "\"r\"");
        let both = Ok(document(1, &format!("{OURS},{reboot}")));
        let now = Clock::System.now();
        let snapshot = next_snapshot(&EventsSnapshot::default(), both, Some(&vm()), &chosen, GRACE, now);
        let signals: Vec<_> = snapshot.signals().into_keys().collect();
        assert_eq!(signals, chosen.into_iter().map(Signal::Azure).collect::<Vec<_>>());
    }

    #[test]
    fn without_the_vm_name_no_notice_begins_or_ends() {
        let now = Clock::System.now();
        let snapshot = next_snapshot(
            &EventsSnapshot::default(),
            Ok(document(1, OURS)),
            None,
            &preempts(),
            GRACE,
            now,
        );
        assert!(snapshot.signals().is_empty() && snapshot.vm.is_none());
        // A Node has no providerID until the cloud provider has initialized it.
        let joined = NodeReport::initial(None, &SignalRules::default(), now).with_node(Node::default(), now);
        assert_eq!(provider_id(&joined), None);
        let known = polled(&snapshot, Ok(document(1, OURS)), now);
        assert_eq!(known.signals().len(), 1);
        let unknown = next_snapshot(&known, Ok(document(2, "")), None, &preempts(), GRACE, now);
        assert_eq!(unknown.signals().len(), 1);
    }
}
