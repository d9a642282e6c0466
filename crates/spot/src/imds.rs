//! Asking IMDS for Scheduled Events: one question at a time, each second, for ever.
//!
//! The first answer may take two minutes, since it switches the service on, and so may the first after
//! the service went to sleep (24 h without a question); so patience is long until there is a document,
//! short after one, and grows again with each question that ran out of it. Answers are whole documents
//! without validators: nothing is asked for conditionally. A redirect is not followed.

use std::time::Duration;

use headgate_clock::{Clock, Moment};
use headgate_http::fetch::{Fetch, FetchError};
use headgate_node::Report;
use hyper::{StatusCode, Uri};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Timing;
use super::document::{Document, Event, Kind};
use super::metrics::Metrics;
use super::notice::ResourceName;
use super::seen::{Seen, Trouble};

/// The newest version there is; it has every field that is read.
const PATH: &str = "/metadata/scheduledevents?api-version=2020-07-01";
/// More than a placement group full of events.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// IMDS is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The two minutes that the first answer may take, and some.
const LONG_PATIENCE: Duration = Duration::from_secs(150);
/// What any other answer may take.
const SHORT_PATIENCE: Duration = Duration::from_secs(5);

/// Why a question got no document.
#[derive(Debug)]
struct Failure {
    reason: &'static str,
    error: String,
}

impl Failure {
    fn new(reason: &'static str, error: impl Into<String>) -> Self {
        Self {
            reason,
            error: error.into(),
        }
    }
}

/// How long the next answer is waited for, after one question with this patience.
fn patience_after(patience: Duration, outcome: &Result<Document, Failure>) -> Duration {
    match outcome {
        Ok(_) => SHORT_PATIENCE,
        Err(failure) if failure.reason == "timeout" => (2 * patience).min(LONG_PATIENCE),
        Err(_) => patience,
    }
}

/// Asks IMDS at `authority` for ever and publishes what is seen of this VM; never returns of itself.
pub async fn poll(
    authority: String,
    reports: watch::Receiver<Report>,
    seen: watch::Sender<Seen>,
    timing: Timing,
    metrics: Metrics,
    clock: Clock,
) {
    let fetch = Fetch::with_connect_timeout(CONNECT_TIMEOUT, LONG_PATIENCE, MAX_BODY_BYTES);
    let mut ticks = interval(timing.poll_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut patience, mut nameless) = (LONG_PATIENCE, false);
    loop {
        ticks.tick().await;
        let outcome = timeout(patience, ask(&fetch, &authority)).await.unwrap_or_else(|_| {
            let error = format!("no answer within {} s", patience.as_secs());
            Err(Failure::new("timeout", error))
        });
        patience = patience_after(patience, &outcome);
        metrics.poll();
        match &outcome {
            Ok(document) if document.unreadable > 0 => metrics.error("event"),
            Ok(_) => {}
            Err(failure) => metrics.error(failure.reason),
        }
        let provider_id = reports.borrow().facts.as_ref().map(|facts| facts.provider_id.clone());
        let vm = provider_id.as_deref().and_then(ResourceName::from_provider_id);
        if let (Some(provider_id), None, false) = (&provider_id, &vm, nameless) {
            nameless = true;
            tracing::warn!(
                provider_id,
                "the Node's providerID is not that of an Azure VM, so no event can be its own"
            );
        }
        let before = seen.borrow().clone();
        let after = next(&before, outcome, vm.as_ref(), timing.grace, clock.now());
        if after != before {
            announce(&before, &after, &authority);
            seen.send_replace(after);
        }
    }
}

/// The next state, after one question. Pure.
fn next(
    before: &Seen,
    outcome: Result<Document, Failure>,
    vm: Option<&ResourceName>,
    grace: Duration,
    now: Moment,
) -> Seen {
    let document = match outcome {
        Ok(document) => document,
        Err(failure) => {
            let same = before
                .trouble
                .clone()
                .filter(|trouble| trouble.reason == failure.reason);
            let trouble = same.unwrap_or(Trouble {
                reason: failure.reason,
                error: failure.error,
                since: now.wall,
            });
            return Seen {
                trouble: Some(trouble),
                ..before.clone()
            };
        }
    };
    let incarnation = document.incarnation;
    let Some(vm) = vm else {
        // Whose events these are cannot be said, so they say nothing.
        return Seen {
            incarnation,
            trouble: None,
            ..before.clone()
        };
    };
    let events = vm.events_of(&document);
    Seen {
        vm: Some(vm.as_str().to_owned()),
        incarnation,
        follow: before.follow.next(&events, document.unreadable == 0, grace, now),
        events,
        trouble: None,
    }
}

/// Says in the log what has changed.
fn announce(before: &Seen, after: &Seen, authority: &str) {
    match (&before.trouble, &after.trouble) {
        (was, Some(trouble)) if was.as_ref() != Some(trouble) => tracing::warn!(
            imds = authority,
            reason = trouble.reason,
            error = trouble.error,
            "IMDS gives no Scheduled Events, so an eviction would not be seen; it is asked again each second (some \
             clusters block it for pods that are not on the host's network)"
        ),
        (Some(_), None) => tracing::info!(imds = authority, "IMDS gives Scheduled Events again"),
        _ => {}
    }
    let told = |event: &&Event| {
        !before
            .events
            .iter()
            .any(|known| known.event_id == event.event_id && known.state == event.state)
    };
    for event in after.events.iter().filter(told) {
        let (id, state) = (&event.event_id, event.state);
        let not_before = event.not_before.map(|at| at.to_string());
        let description = &event.description;
        if event.kind == Kind::Preempt {
            tracing::warn!(
                id,
                ?state,
                not_before,
                description,
                "this VM is to be evicted: /healthz answers 503"
            );
        } else {
            let kind = event.kind.as_str();
            tracing::info!(
                kind,
                id,
                ?state,
                not_before,
                description,
                "a scheduled event, shown and not acted on"
            );
        }
    }
    match (&before.follow.notice, &after.follow.notice) {
        (Some(was), Some(now)) if was.listed && !now.listed => {
            tracing::info!(id = was.latest.event_id, "the notice of eviction is no longer listed");
        }
        (Some(was), None) => tracing::info!(id = was.latest.event_id, "the notice of eviction is gone"),
        _ => {}
    }
}

async fn ask(fetch: &Fetch, authority: &str) -> Result<Document, Failure> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(PATH)
        .build();
    let uri = uri.map_err(|error| Failure::new("connection", error.to_string()))?;
    let answer = fetch.get(uri, &[("Metadata", "true")]).await;
    let (status, body) = answer.map_err(|error| match error {
        FetchError::Timeout(_) => Failure::new("timeout", error.to_string()),
        FetchError::Failed(why) => Failure::new("connection", why),
    })?;
    if status != StatusCode::OK {
        return Err(Failure::new("status", format!("it answers {status}")));
    }
    Document::parse(&body).map_err(|error| Failure::new("document", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_mins(1);

    fn vm() -> ResourceName {
        ResourceName::from_provider_id("azure:///p/Microsoft.Compute/virtualMachines/vm-a").unwrap()
    }

    fn document(incarnation: i64, events: &str) -> Document {
        let text = format!(r#"{{"DocumentIncarnation":{incarnation},"Events":[{events}]}}"#);
        Document::parse(text.as_bytes()).unwrap()
    }

    const OURS: &str = r#"{"EventId":"a","EventType":"Preempt","EventStatus":"Scheduled","Resources":["other","VM-A"],"NotBefore":""}"#;
    const OTHERS: &str =
        r#"{"EventId":"b","EventType":"Preempt","EventStatus":"Scheduled","Resources":["other"],"NotBefore":""}"#;

    #[test]
    fn patience_is_long_until_there_is_a_document_and_after_silence() {
        let silence = || Err(Failure::new("timeout", ""));
        for (patience, outcome, want) in [
            (LONG_PATIENCE, Ok(document(1, "")), SHORT_PATIENCE),
            (LONG_PATIENCE, silence(), LONG_PATIENCE),
            (SHORT_PATIENCE, silence(), 2 * SHORT_PATIENCE),
            (100 * SHORT_PATIENCE, silence(), LONG_PATIENCE),
            (LONG_PATIENCE, Err(Failure::new("status", "")), LONG_PATIENCE),
            (SHORT_PATIENCE, Err(Failure::new("connection", "")), SHORT_PATIENCE),
            (SHORT_PATIENCE, Ok(document(1, "")), SHORT_PATIENCE),
        ] {
            assert_eq!(patience_after(patience, &outcome), want, "{patience:?} {outcome:?}");
        }
    }

    #[test]
    fn failures_change_nothing_but_the_trouble() {
        let now = Clock::System.now();
        let seen = next(&Seen::default(), Ok(document(1, OURS)), Some(&vm()), GRACE, now);
        assert!(seen.signals().contains_key("azurePreempt"));
        let mut after = seen.clone();
        for reason in super::super::metrics::REASONS {
            let later = Moment {
                mono: now.mono + 10 * GRACE,
                ..now
            };
            after = next(&after, Err(Failure::new(reason, "x")), Some(&vm()), GRACE, later);
            assert_eq!(after.trouble.as_ref().unwrap().reason, reason);
            assert_eq!(
                Seen {
                    trouble: None,
                    ..after.clone()
                },
                seen
            );
        }
        assert_eq!(next(&after, Ok(document(1, OURS)), Some(&vm()), GRACE, now), seen);
    }

    #[test]
    fn what_a_document_says_counts_whatever_its_incarnation() {
        let now = Clock::System.now();
        for incarnations in [[1, 2], [2, 2], [2, 1], [i64::MAX, 0]] {
            let seen = next(
                &Seen::default(),
                Ok(document(incarnations[0], "")),
                Some(&vm()),
                GRACE,
                now,
            );
            assert!(seen.signals().is_empty());
            let seen = next(&seen, Ok(document(incarnations[1], OURS)), Some(&vm()), GRACE, now);
            assert_eq!(seen.signals().len(), 1, "{incarnations:?}");
        }
    }

    #[test]
    fn another_vms_events_are_neither_acted_on_nor_shown() {
        let now = Clock::System.now();
        let seen = next(&Seen::default(), Ok(document(1, OTHERS)), Some(&vm()), GRACE, now);
        assert!(seen.signals().is_empty() && seen.events.is_empty());
        let both = format!("{OTHERS},{OURS}");
        let seen = next(&seen, Ok(document(1, &both)), Some(&vm()), GRACE, now);
        assert_eq!((seen.signals().len(), seen.events.len()), (1, 1));
        assert_eq!(seen.events[0].event_id, "a");
    }

    #[test]
    fn an_eviction_that_has_started_at_first_sight_counts() {
        let now = Clock::System.now();
        let started = OURS.replace("Scheduled", "Started");
        assert_ne!(started, OURS);
        let seen = next(&Seen::default(), Ok(document(1, &started)), Some(&vm()), GRACE, now);
        assert_eq!(seen.signals().len(), 1);
        // An unannounced hardware failure is a Reboot that has started: shown only.
        let reboot = started.replace("Preempt", "Reboot");
        let seen = next(&Seen::default(), Ok(document(1, &reboot)), Some(&vm()), GRACE, now);
        assert_eq!((seen.signals().len(), seen.events.len()), (0, 1));
    }

    #[test]
    fn before_the_vm_is_known_nothing_is_its_own_and_nothing_is_gone() {
        let now = Clock::System.now();
        let seen = next(&Seen::default(), Ok(document(1, OURS)), None, GRACE, now);
        assert!(seen.signals().is_empty() && seen.vm.is_none());
        let known = next(&seen, Ok(document(1, OURS)), Some(&vm()), GRACE, now);
        assert_eq!(known.signals().len(), 1);
        let unknown = next(&known, Ok(document(2, "")), None, GRACE, now);
        assert_eq!(unknown.signals().len(), 1);
    }
}
