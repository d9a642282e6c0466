//! An API server whose versions go backwards, in paused time.

use bytes::Bytes;
use futures::StreamExt as _;
use headgate_core::clock::Clock;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::super::{WatchErrorCounter, WatchReporter, watch_events};
use super::*;

const HOUR: Duration = Duration::from_hours(1);

/// An API server with one Node and no changes.
#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// When everything was listed, also by a streaming list, which is a watch besides; and the version that the list showed.
    lists: Vec<(Instant, u64)>,
    checks: usize,
    watches: usize,
    /// Whether the connection is refused.
    is_away: bool,
    /// Whether watches get a 503.
    refuses_watches: bool,
    /// Whether streaming lists get a 422.
    lacks_streaming_lists: bool,
}

impl ApiServer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Accepts connections again, with this version.
    fn come_back(&self, version: u64) {
        let mut state = self.state();
        (state.is_away, state.version) = (false, version);
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let response = this.answer(request.uri().query().unwrap_or_default());
            async move { response }
        });
        Client::new(service, "default")
    }

    fn answer(&self, query: &str) -> Result<Response<UnsyncBoxBody<Bytes, std::io::Error>>, std::io::Error> {
        let mut state = self.state();
        if state.is_away {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let parameter = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
        };
        if parameter("watch") == Some("true") {
            let is_lacking = state.lacks_streaming_lists && parameter("sendInitialEvents").is_some();
            if is_lacking || state.refuses_watches {
                let mut refused = Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
                *refused.status_mut() = if is_lacking {
                    hyper::StatusCode::UNPROCESSABLE_ENTITY
                } else {
                    hyper::StatusCode::SERVICE_UNAVAILABLE
                };
                return Ok(refused);
            }
            let is_streaming_list = parameter("sendInitialEvents").is_some();
            if is_streaming_list {
                assert_eq!(parameter("resourceVersion"), None);
                let version = state.version;
                state.lists.push((Instant::now(), version));
            }
            state.watches += 1;
            let seconds: u64 = parameter("timeoutSeconds").map_or(290, |seconds| seconds.parse().unwrap());
            let version = state.version;
            let first = is_streaming_list.then(|| Ok(Frame::data(initial_events(version).into())));
            let frames = futures::stream::iter(first).chain(futures::stream::once(async move {
                sleep(Duration::from_secs(seconds)).await;
                Ok(Frame::data(Bytes::new()))
            }));
            return Ok(Response::new(StreamBody::new(frames).boxed_unsync()));
        }
        let version = state.version;
        if parameter("limit") == Some("1") {
            // No selector that the API server has to search for, and no version.
            assert_eq!(query, "limit=1");
            state.checks += 1;
        } else {
            state.lists.push((Instant::now(), version));
        }
        let text = format!(
            r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},
                "items":[{{"metadata":{{"name":"n","resourceVersion":"{version}"}}}}]}}"#
        );
        let body = Full::from(text).map_err(|never| match never {});
        Ok(Response::new(body.boxed_unsync()))
    }
}

/// What a streaming list of the Node begins with.
fn initial_events(version: u64) -> String {
    format!(
        r#"{{"type":"ADDED","object":{{"metadata":{{"name":"n","resourceVersion":"{version}"}}}}}}
{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}
"#
    )
}

/// Reads a stream in the background, and returns its failure.
fn read(api_server: &ApiServer, config: watcher::Config) -> watch::Receiver<Option<super::super::WatchFailure>> {
    let reporter = WatchReporter::new("nodes", WatchErrorCounter::default(), Clock::System);
    let failure = reporter.failure();
    let mut events = watch_events::<Node>(&api_server.client(), Api::all, config, reporter);
    tokio::spawn(async move { while events.next().await.is_some() {} });
    failure
}

#[tokio::test(start_paused = true)]
async fn versions_that_go_backwards_lead_to_a_list_within_one_period_of_the_watch() {
    for (period, checks_in_an_hour) in [(290, 12), (50, 72)] {
        let api_server = ApiServer::default();
        api_server.state().version = 1_000_000;
        let failure = read(&api_server, watcher::Config::default().timeout(period));
        sleep(HOUR).await;
        {
            let state = api_server.state();
            assert_eq!(state.lists.len(), 1, "nothing is wrong");
            // One check for each period but the first.
            assert_eq!(state.watches, state.checks + 1);
            assert!(state.checks.abs_diff(checks_in_an_hour) <= 1, "{}", state.checks);
        }
        api_server.state().version = 900_000;
        let restored = Instant::now();
        let period = Duration::from_secs(period.into());
        sleep(period + Duration::from_secs(2)).await;
        let lists = api_server.state().lists.clone();
        assert!(lists.len() == 2 && lists[1].1 == 900_000, "{lists:?}");
        assert!(lists[1].0 - restored <= period + Duration::from_secs(1), "{lists:?}");
        sleep(HOUR).await;
        assert_eq!(api_server.state().lists.len(), 2, "and no further one");
        assert_eq!(*failure.borrow(), None, "it is no failure of the watch");
    }
}

#[tokio::test(start_paused = true)]
async fn stream_of_one_object_lists_it_in_each_period_with_the_request_of_its_watch() {
    let api_server = ApiServer::default();
    api_server.state().version = 1000;
    let failure = read(&api_server, watcher::Config::default().fields("metadata.name=n"));
    sleep(HOUR).await;
    let state = api_server.state();
    assert_eq!((state.lists.len(), state.watches, state.checks), (13, 13, 0));
    assert_eq!(*failure.borrow(), None);
}

/// Streams of all Nodes and of one, with streaming lists and without, whose watches last so many seconds, and their failures.
fn all_streams(period: u32) -> impl Iterator<Item = (ApiServer, watch::Receiver<Option<super::super::WatchFailure>>)> {
    let streams = [
        (Some("metadata.name=n"), false),
        (Some("metadata.name=n"), true),
        (None, true),
    ];
    streams.into_iter().map(move |(fields, lacks_streaming_lists)| {
        println!("{fields:?} {lacks_streaming_lists}");
        let api_server = ApiServer::default();
        api_server.state().version = 1000;
        api_server.state().lacks_streaming_lists = lacks_streaming_lists;
        let config = watcher::Config::default().timeout(period);
        let failure = read(&api_server, fields.into_iter().fold(config, watcher::Config::fields));
        (api_server, failure)
    })
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_with_a_verification_even_if_it_began_right_after_a_list() {
    for (api_server, failure) in all_streams(20) {
        sleep(Duration::from_secs(5)).await;
        api_server.state().is_away = true;
        sleep(Duration::from_mins(2)).await;
        assert!(failure.borrow().is_some());
        api_server.come_back(900);
        // The longest backoff, with its jitter.
        sleep(Duration::from_secs(65)).await;
        let lists = api_server.state().lists.clone();
        assert!(lists.len() >= 2 && lists[1].1 == 900, "{lists:?}");
        assert_eq!(*failure.borrow(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_right_after_a_verification_ends_with_another_one() {
    for (api_server, failure) in all_streams(3) {
        // The first watch has ended after 3 s.
        sleep(Duration::from_secs(4)).await;
        api_server.state().is_away = true;
        // The second one ends after 6 s.
        sleep(Duration::from_millis(2500)).await;
        assert!(failure.borrow().is_some());
        api_server.come_back(900);
        sleep(Duration::from_secs(3)).await;
        let lists = api_server.state().lists.clone();
        assert!(lists.iter().any(|(_, version)| *version == 900), "{lists:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_are_refused_after_a_list_end_with_a_verification() {
    for (api_server, failure) in all_streams(290) {
        api_server.state().refuses_watches = true;
        sleep(Duration::from_secs(5)).await;
        assert!(failure.borrow().is_some());
        (api_server.state().version, api_server.state().refuses_watches) = (900, false);
        sleep(Duration::from_secs(30)).await;
        let lists = api_server.state().lists.clone();
        assert!(lists.iter().any(|(_, version)| *version == 900), "{lists:?}");
    }
}

#[test]
fn only_a_watch_from_a_version_resumes() {
    let parameters = |uri: &'static str| Parameters::new(&Uri::from_static(uri));
    let watch = parameters("/api/v1/nodes?&watch=true&timeoutSeconds=50&resourceVersion=17&allowWatchBookmarks=true");
    assert_eq!((watch.is_watch, watch.version), (true, Some(17)));
    for list in ["/api/v1/nodes?limit=500&continue=abc", "/api/v1/nodes"] {
        assert_eq!(parameters(list), Parameters::default());
    }
}
