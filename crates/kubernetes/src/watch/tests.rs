//! The streams against an API server that is a function, in paused time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headgate_core::clock::Clock;
use headgate_core::telemetry::{MetricTable, MetricsFormat, encode_metrics};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, timeout};

use super::*;

type ResponseBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A request that the API server got.
#[derive(Clone, Copy)]
struct Seen {
    is_watch: bool,
    at: Instant,
}

/// An API server: what it got, and what it answers to the request with this number, from 1.
#[derive(Clone)]
struct ApiServer {
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The most bytes that were read of a list of large Nodes.
    most_read: Arc<AtomicUsize>,
    answer: fn(number: usize, is_watch: bool) -> Answer,
}

/// How long a watch lasts that ends at once.
const SOON: Duration = Duration::from_millis(5);
/// The Nodes of a large list; those with a number below the second one have a label of `LARGE_LABEL` bytes.
const LARGE_LIST: [usize; 2] = [400, 12];
const LARGE_LABEL: usize = 1 << 20;
/// One Node.
const LIST: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},
    "items":[{"metadata":{"name":"n","resourceVersion":"7"}}]}"#;
/// Two good Nodes around one whose `spec` is no object.
const LIST_WITH_UNDECODABLE: &str = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[
    {"metadata":{"name":"a","resourceVersion":"1"}},{"metadata":{"name":"odd","resourceVersion":"2"},"spec":7},
    {"metadata":{"name":"z","resourceVersion":"3"}}]}"#;
/// A good Node becomes undecodable; another one can be decoded again, and is deleted as an undecodable one.
const WATCH_WITH_UNDECODABLE: &str = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"8"},"spec":7}}
{"type":"MODIFIED","object":{"metadata":{"name":"odd","resourceVersion":"9"}}}
{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"10"},"spec":7}}
"#;

enum Answer {
    /// A list with one Node.
    List,
    /// The first page of a list.
    Page,
    /// A watch that is accepted and stays silent, or a list whose body does not begin.
    Silence,
    /// A page of `LARGE_LIST`, as the request asks for it.
    LargeList,
    /// The list with one Node, with this time before each byte.
    Slow(Duration),
    /// A watch that is accepted and ends after this time, without an event.
    Ended(Duration),
    /// A watch that is accepted and reports that it is too old.
    Expired,
    /// A watch that is accepted and sends what is no event.
    Malformed,
    /// A list or watch with a Node that cannot be decoded among others.
    Undecodable,
    Status(u16),
    Refused,
}

impl ApiServer {
    fn new(answer: fn(usize, bool) -> Answer) -> Self {
        Self {
            seen: Arc::default(),
            most_read: Arc::default(),
            answer,
        }
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { this.answer(&request) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Request<Body>) -> Result<Response<ResponseBody>, std::io::Error> {
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        // The verification before a watch resumes, and streaming lists, are not what these tests are about.
        let answer = if query == "limit=1" {
            Answer::List
        } else if query.contains("sendInitialEvents") {
            Answer::Status(422)
        } else {
            (self.answer)(self.record(is_watch), is_watch)
        };
        let (status, body) = match answer {
            Answer::List => (200, LIST.to_owned()),
            Answer::Page => (200, LIST.replace(r#""7"}"#, r#""7","continue":"more"}"#)),
            Answer::LargeList => return Ok(Response::new(self.large_page(query))),
            Answer::Slow(pause) => {
                let chunks = stream::iter(LIST.as_bytes().chunks(1)).then(move |byte| async move {
                    sleep(pause).await;
                    Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(byte)))
                });
                return Ok(Response::new(StreamBody::new(chunks).boxed_unsync()));
            }
            Answer::Silence => {
                let chunks = stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
                return Ok(Response::new(StreamBody::new(chunks).boxed_unsync()));
            }
            Answer::Ended(after) => {
                let end = stream::once(sleep(after));
                let chunks = end.filter_map(|()| ready(None::<Result<Frame<Bytes>, std::io::Error>>));
                return Ok(Response::new(StreamBody::new(chunks).boxed_unsync()));
            }
            Answer::Expired => {
                let status =
                    r#"{"status":"Failure","message":"too old resource version","reason":"Expired","code":410}"#;
                (200, format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n"))
            }
            Answer::Malformed => (200, "{\"type\":7}\n".to_owned()),
            Answer::Undecodable if is_watch => (200, WATCH_WITH_UNDECODABLE.to_owned()),
            Answer::Undecodable => (200, LIST_WITH_UNDECODABLE.to_owned()),
            Answer::Status(code) => {
                let status = format!(r#"{{"kind":"Status","status":"Failure","reason":"x","code":{code}}}"#);
                (code, status)
            }
            Answer::Refused => return Err(std::io::ErrorKind::ConnectionRefused.into()),
        };
        let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
        let response = Response::builder().status(status).body(body);
        response.map_err(std::io::Error::other)
    }

    /// A page of `LARGE_LIST`, in a frame for each Node.
    fn large_page(&self, query: &str) -> ResponseBody {
        let parameter = |name| {
            let mut texts = query.split('&').filter_map(|text| text.strip_prefix(name));
            texts.find_map(|text| text.parse::<usize>().ok())
        };
        let [count, large] = LARGE_LIST;
        let first = parameter("continue=").unwrap_or_default();
        let end = parameter("limit=").map_or(count, |limit| count.min(first + limit));
        let next = if end < count { end.to_string() } else { String::new() };
        let head = format!(
            r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"{next}"}},"items":["#
        );
        let node = move |number: usize| {
            let comma = if number == first { "" } else { "," };
            let label = "x".repeat(if number < large { LARGE_LABEL } else { 1 });
            format!(r#"{comma}{{"metadata":{{"name":"n{number}","resourceVersion":"7","labels":{{"l":"{label}"}}}}}}"#)
        };
        let most_read = Arc::clone(&self.most_read);
        let mut read = 0;
        let texts = std::iter::once(head).chain((first..end).map(node));
        let frames = texts.chain(["]}".to_owned()]).map(move |text| {
            read += text.len();
            most_read.fetch_max(read, Ordering::Relaxed);
            Ok(Frame::data(Bytes::from(text)))
        });
        StreamBody::new(stream::iter(frames)).boxed_unsync()
    }

    /// Records a request and returns its number.
    fn record(&self, is_watch: bool) -> usize {
        let mut seen = self.seen.lock().unwrap();
        let at = Instant::now();
        seen.push(Seen { is_watch, at });
        seen.len()
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

type Failure = watch::Receiver<Option<WatchFailure>>;

fn watch_nodes(api_server: &ApiServer) -> (WatchStream<Event<Node>>, Failure, Registry) {
    let mut registry = Registry::default();
    let errors = WatchErrorCounter::declare(&mut MetricTable::from(&mut registry), "errors", "Errors");
    let reporter = WatchReporter::new("nodes", errors, Clock::System);
    let failure = reporter.failure();
    let events = watch_events(&api_server.client(), Api::all, watcher::Config::default(), reporter);
    (events, failure, registry)
}

/// Reads the stream for so long.
async fn read_for<T>(events: &mut WatchStream<T>, time: Duration) {
    let reading = async { while events.next().await.is_some() {} };
    assert!(timeout(time, reading).await.is_err(), "a stream does not end");
}

/// Fails unless the last of these come at much longer intervals than the first.
fn assert_rarer(attempts: &[Seen]) {
    let gaps: Vec<_> = attempts.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!(gaps[0] * 5 < gaps[gaps.len() - 1], "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn attempts_become_rarer_while_lists_are_refused() {
    let api_server = ApiServer::new(|_, _| Answer::Status(429));
    let (mut events, failure, registry) = watch_nodes(&api_server);
    read_for(&mut events, Duration::from_mins(10)).await;
    let attempts = api_server.seen().len();
    assert!((10..60).contains(&attempts), "{attempts}");
    assert_rarer(&api_server.seen());
    let failure = failure.borrow().clone().unwrap();
    assert_eq!(failure.reason, WatchErrorReason::Server);
    let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
    let counted = format!("errors_total{{reason=\"server\"}} {attempts}\n");
    assert!(text.contains(&counted), "{text}");
}

#[tokio::test(start_paused = true)]
async fn lists_become_rarer_while_a_later_page_is_refused() {
    fn page_or(number: usize, status: u16) -> Answer {
        if number % 2 == 1 {
            Answer::Page
        } else {
            Answer::Status(status)
        }
    }
    let refused: fn(usize, bool) -> Answer = |number, _| page_or(number, 429);
    // The token of the next page has expired, when it comes.
    let expired: fn(usize, bool) -> Answer = |number, _| page_or(number, 410);
    for (answer, reason) in [
        (refused, WatchErrorReason::Server),
        (expired, WatchErrorReason::Expired),
    ] {
        let api_server = ApiServer::new(answer);
        let (mut events, failure, _) = watch_nodes(&api_server);
        read_for(&mut events, Duration::from_mins(10)).await;
        let lists: Vec<_> = api_server.seen().into_iter().step_by(2).skip(1).collect();
        assert!((10..60).contains(&lists.len()), "{reason:?}: {}", lists.len());
        let gaps = lists.windows(2).map(|pair| pair[1].at - pair[0].at);
        // After what has expired it lists again at once, now and then.
        assert!(gaps.max() > Some(Duration::from_secs(20)), "{reason:?}");
        let failure = failure.borrow().clone().unwrap();
        assert_eq!(failure.reason, reason);
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_again_at_once_but_not_each_time() {
    let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
        (false, _) => Answer::List,
        (true, ..=6) => Answer::Refused,
        (true, _) => Answer::Expired,
    });
    let (mut events, failure, _) = watch_nodes(&api_server);
    read_for(&mut events, Duration::from_mins(5)).await;
    let seen = api_server.seen();
    let lists: Vec<_> = seen.iter().filter(|seen| !seen.is_watch).map(|seen| seen.at).collect();
    let expired = seen.iter().filter(|seen| seen.is_watch).nth(5).unwrap().at;
    assert_eq!(lists[1] - expired, Duration::ZERO);
    assert!(expired - seen[1].at > Duration::from_secs(10), "the backoff grows");
    let at_once = lists.windows(2).filter(|lists| lists[0] == lists[1]).count();
    // In five minutes, while each watch expires.
    assert!(at_once <= 5, "{at_once} lists without backoff");
    assert_eq!(*failure.borrow(), None, "an expired watch is no failure");
}

#[tokio::test(start_paused = true)]
async fn attempts_become_rarer_while_watches_are_refused_and_lists_succeed() {
    for answer in [
        (|_, is_watch| if is_watch { Answer::Status(503) } else { Answer::List }) as fn(usize, bool) -> Answer,
        |_, is_watch| if is_watch { Answer::Refused } else { Answer::List },
    ] {
        let api_server = ApiServer::new(answer);
        let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
        let mut states = watch_object::<Node>(&api_server.client(), Api::all, "n", reporter);
        read_for(&mut states, Duration::from_mins(10)).await;
        let requests = api_server.seen();
        assert!((10..100).contains(&requests.len()), "{}", requests.len());
        let watches: Vec<_> = requests.into_iter().filter(|seen| seen.is_watch).collect();
        assert_rarer(&watches);
    }
}

#[tokio::test(start_paused = true)]
async fn watches_become_rarer_while_each_one_ends_at_once() {
    for is_of_one in [false, true] {
        let api_server = ApiServer::new(|_, is_watch| if is_watch { Answer::Ended(SOON) } else { Answer::List });
        let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
        let (began, verified_at) = (Instant::now(), reporter.verified_at());
        let client = api_server.client();
        if is_of_one {
            let mut states = watch_object::<Node>(&client, Api::all, "n", reporter);
            read_for(&mut states, Duration::from_mins(10)).await;
        } else {
            let mut events = watch_events::<Node>(&client, Api::all, watcher::Config::default(), reporter);
            read_for(&mut events, Duration::from_mins(10)).await;
            // No watch lasted, and nothing was listed again.
            assert_eq!(*verified_at.borrow(), began);
        }
        let watches: Vec<_> = api_server.seen().into_iter().filter(|seen| seen.is_watch).collect();
        assert!((10..100).contains(&watches.len()), "{is_of_one}: {}", watches.len());
        assert_rarer(&watches);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_after_one_that_lasted_or_expired_starts_at_once() {
    let lasting = Duration::from_secs(5);
    let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
        (false, _) => Answer::List,
        (true, 6) => Answer::Expired,
        (true, 8) => Answer::Ended(Duration::from_secs(5)),
        (true, _) => Answer::Ended(SOON),
    });
    let (mut events, ..) = watch_nodes(&api_server);
    read_for(&mut events, Duration::from_mins(1)).await;
    let seen = api_server.seen();
    let until_next = |number: usize| seen[number].at - seen[number - 1].at;
    assert!(until_next(5) > 3 * until_next(2), "the backoff grows");
    assert_eq!((until_next(6), until_next(7)), (Duration::ZERO, Duration::ZERO));
    assert_eq!(until_next(8), lasting);
    assert!(until_next(9) < 3 * until_next(2), "the backoff starts again");
}

/// The reasons of the failure of a watch as they change, until it is over; each must change within this time.
async fn reasons_until_over(api_server: &ApiServer, within: Duration) -> Vec<Option<WatchErrorReason>> {
    let (mut events, mut failure, _) = watch_nodes(api_server);
    let reading = tokio::spawn(async move { while events.next().await.is_some() {} });
    let mut reasons = Vec::new();
    while reasons.last() != Some(&None) {
        timeout(within, failure.changed()).await.unwrap().unwrap();
        reasons.push(failure.borrow_and_update().as_ref().map(|failure| failure.reason));
    }
    reading.abort();
    reasons
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_over_when_the_watch_is_accepted_though_nothing_changed() {
    let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
        (false, _) => Answer::List,
        (true, ..=3) => Answer::Status(403),
        (true, 4) => Answer::Refused,
        (true, _) => Answer::Silence,
    });
    let reasons = reasons_until_over(&api_server, Duration::from_mins(1)).await;
    let expected = [
        Some(WatchErrorReason::Forbidden),
        Some(WatchErrorReason::Connection),
        None,
    ];
    assert_eq!(reasons, expected, "a second error of one kind is no change");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_not_over_while_accepted_watches_send_what_is_no_event() {
    let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
        (false, _) => Answer::List,
        (true, ..=9) => Answer::Malformed,
        (true, _) => Answer::Silence,
    });
    let reasons = reasons_until_over(&api_server, Duration::from_mins(10)).await;
    assert_eq!(reasons, [Some(WatchErrorReason::Other), None]);
    assert_eq!(api_server.seen().len(), 10, "over when a watch stays");
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_body_stalls_fails_and_a_slow_one_does_not() {
    for is_of_one in [false, true] {
        let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
            (false, 1) | (true, _) => Answer::Silence,
            (false, _) => Answer::Slow(Duration::from_secs(5)),
        });
        let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
        let (mut failure, client) = (reporter.failure(), api_server.client());
        let mut listed = if is_of_one {
            let states = watch_object::<Node>(&client, Api::all, "n", reporter);
            states.map(|state| state.is_ok()).boxed()
        } else {
            let events = watch_events::<Node>(&client, Api::all, watcher::Config::default(), reporter);
            events.map(|event| matches!(event, Ok(Event::InitDone))).boxed()
        };
        let reading = tokio::spawn(async move { while listed.next().await != Some(true) {} });
        let stalled = timeout(Duration::from_mins(1), failure.changed());
        stalled.await.unwrap().unwrap();
        let reason = failure.borrow_and_update().as_ref().map(|failure| failure.reason);
        assert_eq!(reason, Some(WatchErrorReason::Connection));
        // The head of a list shows nothing yet.
        let recovered = timeout(Duration::from_mins(5), failure.changed());
        assert!(recovered.await.is_err(), "recovered before the list had arrived");
        reading.await.unwrap();
        assert_eq!(*failure.borrow(), None, "{is_of_one}");
        assert_eq!(api_server.seen().iter().filter(|seen| !seen.is_watch).count(), 2);
    }
}

/// Who may write objects chooses their size.
#[tokio::test(start_paused = true)]
async fn large_objects_are_listed_in_pages_of_bounded_bytes() {
    for page_size in [None, Some(500)] {
        let api_server = ApiServer::new(|_, is_watch| if is_watch { Answer::Silence } else { Answer::LargeList });
        let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
        let failure = reporter.failure();
        let config = watcher::Config {
            page_size,
            ..watcher::Config::default()
        };
        let mut events = watch_events::<Node>(&api_server.client(), Api::all, config, reporter);
        let mut listed = Vec::new();
        loop {
            match timeout(Duration::from_mins(1), events.next()).await.unwrap().unwrap() {
                Ok(Event::InitApply(node)) => listed.push(node.metadata.name.unwrap()),
                Ok(Event::InitDone) => break,
                _ => {}
            }
        }
        let expected: Vec<_> = (0..LARGE_LIST[0]).map(|number| format!("n{number}")).collect();
        assert_eq!(listed, expected, "each once, in the order of the list");
        let read = api_server.most_read.load(Ordering::Relaxed);
        let limit = (4 << 20) + LARGE_LABEL + 200;
        assert!(read <= limit, "{page_size:?}: {read} bytes of one page");
        let lists = api_server.seen().iter().filter(|seen| !seen.is_watch).count();
        assert!(lists < 40, "{lists}: pages stay small only where objects are large");
        assert_eq!(*failure.borrow(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_skipped_and_stops_no_other() {
    let api_server = ApiServer::new(|number, is_watch| match (is_watch, number) {
        (false, _) | (true, ..=2) => Answer::Undecodable,
        (true, _) => Answer::Silence,
    });
    let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
    let (failure, undecodable) = (reporter.failure(), reporter.undecodable());
    let mut registry = Registry::default();
    register_undecodable_objects(&mut registry);
    let config = watcher::Config::default();
    let mut events = watch_events::<Node>(&api_server.client(), Api::all, config, reporter);
    let mut seen = Vec::new();
    let name = |node: Node| node.metadata.name.unwrap();
    while seen.len() < 6 {
        let event = timeout(Duration::from_mins(1), events.next()).await.unwrap().unwrap();
        seen.push(match event.unwrap() {
            Event::Init => "init".to_owned(),
            Event::InitApply(node) => format!("listed {}", name(node)),
            Event::InitDone => {
                assert_eq!(undecodable.borrow().keys().collect::<Vec<_>>(), ["odd"]);
                let version = undecodable.borrow()["odd"].metadata.resource_version.clone();
                assert_eq!(version.as_deref(), Some("2"));
                let text = encode_metrics(&registry, MetricsFormat::Prometheus).unwrap();
                let line = "headgate_undecodable_objects{kind=\"Node\"} 1";
                assert!(text.lines().any(|found| found == line), "{text}");
                "done".to_owned()
            }
            Event::Apply(node) => {
                assert_eq!(undecodable.borrow().keys().collect::<Vec<_>>(), ["a"]);
                format!("applied {}", name(node))
            }
            Event::Delete(node) => format!("deleted {}", name(node)),
        });
    }
    let expected = ["init", "listed a", "listed z", "done", "applied odd", "deleted a"];
    assert_eq!(seen, expected);
    assert!(undecodable.borrow().is_empty() && failure.borrow().is_none());
}
