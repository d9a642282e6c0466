//! Streaming lists of a Node, and answers that are none, in paused time.

use std::future::ready;
use std::time::Duration;

use futures::StreamExt as _;
use headgate_core::clock::Clock;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::{Instant, sleep};

use super::super::{WatchErrorCounter, WatchFailure, WatchReporter, watch_object};
use super::*;

const NODE: &str =
    r#"{"type":"ADDED","object":{"kind":"Node","metadata":{"name":"n","resourceVersion":"5"},"spec":{"podCIDR":"a"}}}"#;
const CHANGED: &str =
    r#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"8"},"spec":{"podCIDR":"b"}}}"#;
const DELETED: &str = r#"{"type":"DELETED","object":{"metadata":{"name":"n","resourceVersion":"9"}}}"#;
const BOOKMARK: &str =
    r#"{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"6"}}}"#;
const END: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"7","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#
);
const ERROR: &str =
    r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"InternalError","code":500}}"#;
/// What a list shows.
const LISTED: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"n","resourceVersion":"5"},"spec":{"podCIDR":"list"}}]}"#;
/// A watch that ends late enough not to be too short.
const PERIOD: Duration = Duration::from_secs(290);

/// What the API server answers to a streaming list.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    /// These lines, in frames of so many bytes, and what follows.
    Lines(&'static [&'static str], usize, After),
    Refused,
}

#[derive(Clone, Copy, Debug)]
enum After {
    Ends,
    /// Nothing for the rest of the period.
    IsSilent,
    /// A change every ten seconds.
    Changes,
}
use After::{Changes, Ends, IsSilent};
use Answer::{Lines, Refused, Status};

/// The requests: of streaming lists, of lists, and of watches from a version.
type Requests = Arc<Mutex<[usize; 3]>>;

fn client(answer: Answer, requests: &Requests) -> Client {
    let requests = Arc::clone(requests);
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        assert!(query.contains("fieldSelector=metadata.name%3Dn"), "{query}");
        let kind = [
            query.contains("sendInitialEvents=true"),
            !query.contains("watch=true"),
            true,
        ];
        let kind = kind.iter().position(|is_kind| *is_kind).unwrap();
        requests.lock().unwrap()[kind] += 1;
        let (status, lines, size, after): (_, &[_], _, _) = match (kind, answer) {
            (0, Refused) => return ready(Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))),
            (0, Status(status)) => (status, &[], 100, Ends),
            (0, Lines(lines, size, after)) => (200, lines, size, after),
            (1, _) => (200, &[LISTED], 100, Ends),
            _ => (200, &[], 100, IsSilent),
        };
        let mut text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
        if status != 200 {
            text = format!(r#"{{"kind":"Status","status":"Failure","reason":"x","code":{status}}}"#);
        }
        let frames: Vec<_> = text
            .as_bytes()
            .chunks(size)
            .map(|frame| Ok(Frame::data(Bytes::copy_from_slice(frame))))
            .collect();
        let (times, pause) = match after {
            Ends => (0, Duration::ZERO),
            IsSilent => (1, PERIOD),
            Changes => (29, PERIOD / 29),
        };
        let text = if matches!(after, Changes) {
            format!("{CHANGED}\n")
        } else {
            String::new()
        };
        let rest = stream::iter(0..times).then(move |_| {
            let text = text.clone();
            async move {
                sleep(pause).await;
                Ok::<_, std::io::Error>(Frame::data(text.into()))
            }
        });
        let body = StreamBody::new(stream::iter(frames).chain(rest));
        ready(Ok(Response::builder().status(status).body(body).unwrap()))
    });
    Client::new(service, "default")
}

/// What a stream of the Node shows within this time, as its `podCIDR`, and whether it fails at the end.
async fn states(answer: Answer, within: Duration) -> (Vec<Option<String>>, [usize; 3], Option<WatchFailure>) {
    let requests = Requests::default();
    let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
    let failure = reporter.failure();
    let mut stream = watch_object::<Node>(&client(answer, &requests), Api::all, "n", reporter);
    let (until, mut states) = (Instant::now() + within, Vec::new());
    while let Ok(state) = tokio::time::timeout_at(until, stream.next()).await {
        let Ok(state) = state.unwrap() else { continue };
        let node = state.map(|node| node.into_object().unwrap());
        states.push(node.map(|node| node.spec.unwrap().pod_cidr.unwrap()));
    }
    let requests = *requests.lock().unwrap();
    (states, requests, failure.borrow().clone())
}

#[tokio::test(start_paused = true)]
async fn the_list_and_the_changes_after_it_are_one_response() {
    let minute = Duration::from_mins(1);
    for size in [1, 7, 1000] {
        for (lines, expected) in [
            (&[NODE, END][..], &[Some("a")][..]),
            (&[BOOKMARK, NODE, BOOKMARK, END], &[Some("a")]),
            (&[NODE, CHANGED, END], &[Some("b")]),
            (&[NODE, DELETED, END], &[None]),
            (&[END], &[None]),
            (&[NODE, END, CHANGED, DELETED], &[Some("a"), Some("b"), None]),
            (&[END, NODE, BOOKMARK], &[None, Some("a")]),
        ] {
            let (states, requests, failure) = states(Lines(lines, size, IsSilent), minute).await;
            let expected: Vec<_> = expected.iter().map(|state| state.map(str::to_owned)).collect();
            assert_eq!(
                (states, requests, failure),
                (expected, [1, 0, 0], None),
                "{lines:?} {size}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_streaming_list_becomes_a_list() {
    for answer in [
        Status(422),
        Status(400),
        Lines(&[ERROR], 1000, Ends),
        Lines(&[NODE], 1000, Ends),
        Lines(&[], 1000, Ends),
        Lines(&["{}"], 1000, Ends),
        Lines(&[NODE, NODE, END], 1000, IsSilent),
        Lines(&[NODE, "no JSON", END], 1000, Ends),
        Lines(&[r#"{"type":"BOOKMARK","object":{}}"#], 1000, Ends),
    ] {
        // After an hour, in which thirteen periods begin, a streaming list is requested again.
        for (periods, streaming_lists) in [(3, 1), (13, 1), (14, 2)] {
            let (states, requests, failure) = states(answer, (periods - 1) * PERIOD + Duration::from_secs(10)).await;
            let case = format!("{answer:?} {periods}");
            assert!(
                states.iter().all(|state| state.as_deref() == Some("list")),
                "{case} {states:?}"
            );
            let periods = usize::try_from(periods).unwrap();
            let expected = (periods, [streaming_lists, periods, periods], None);
            assert_eq!((states.len(), requests, failure), expected, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_streaming_list_does_not_arrive_is_listed() {
    for answer in [
        Refused,
        Lines(&[], 1000, IsSilent),
        Lines(&[NODE], 1000, IsSilent),
        Lines(&[NODE], 1000, Changes),
    ] {
        let (states, requests, failure) = states(answer, Duration::from_mins(1)).await;
        let expected = (vec![Some("list".to_owned())], [1, 1, 1], None);
        assert_eq!((states, requests, failure), expected, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_is_refused_for_a_while_or_stalls_is_an_error_of_the_list() {
    for (answer, within, is_outage) in [
        (Status(503), Duration::from_secs(5), true),
        (Status(429), Duration::from_secs(5), true),
        (Status(403), Duration::from_secs(5), false),
        (Refused, Duration::from_millis(100), true),
        (Lines(&[NODE], 1000, IsSilent), Duration::from_millis(30_100), true),
        (Lines(&[NODE], 1000, Changes), Duration::from_millis(30_100), true),
    ] {
        let (states, [_, lists, watches], failure) = states(answer, within).await;
        assert_eq!((states, lists, watches), (vec![], 0, 0), "{answer:?}");
        assert_eq!(
            failure.map(|failure| failure.reason.is_outage()),
            Some(is_outage),
            "{answer:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_without_an_end_is_not_read_for_ever() {
    let endless = vec![NODE; MAX_PAGE_BYTES / NODE.len() + 2].leak();
    let (states, requests, _) = states(Lines(endless, 1 << 20, IsSilent), Duration::from_secs(1)).await;
    assert_eq!((states, requests), (vec![Some("list".to_owned())], [1, 1, 1]));
}

#[tokio::test(start_paused = true)]
async fn streaming_lists_become_rarer_while_each_ends_after_its_first_events() {
    let (states, [streaming_lists, ..], _) = states(Lines(&[NODE, END], 1000, Ends), Duration::from_mins(10)).await;
    assert!((5..40).contains(&streaming_lists), "{streaming_lists}");
    assert_eq!(states.len(), streaming_lists);
}
