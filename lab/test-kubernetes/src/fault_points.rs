//! Fault points: every write and every observation of the product's processes, counted, so that one run can disturb each of them.
//!
//! A process is what a crash ends: one client of the API server that was made after [`FakeApi::inject`](crate::FakeApi::inject), and the
//! requests to ARM that are made under its [`ProcessPoints`]. The patterns are Sieve's, as far as a real API server and ARM can show them:
//!
//! | pattern | at each | what happens |
//! |---|---|---|
//! | crash before | write | the request never arrives, and the process is gone; it starts again after a second |
//! | crash after | write | the request takes effect, and the process is gone before it has the answer |
//! | drop | watch event | the watch ends with 410 right before the event, and the next list of the collection takes 5 s: changes until then are seen only as the state that they led to. A watch whose connection stays open loses no event, so none is lost otherwise |
//! | drop | answer | the connection is reset instead of it; a write has taken effect |
//! | delay | watch event | it and all later events of the watch arrive 20 s later |
//! | delay | answer | it arrives 20 s later: that of a list or a GET shows the state of before |
//! | duplicate | watch event, list of a collection | the watch ends with 410 right after it, so the client lists and gets every object again. No API server sends an event twice in one watch |
//! | older version | successful GET to ARM, and each other answer to it so far | the older answer is served. ARM documents no read that is certain to see the last write |
//!
//! The API server may serve an older version only to a list or get that names a `resourceVersion`. The product sends none, and such a
//! request fails the run; what an outdated API server can do to its watches is a delay.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, Response};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::fake::ClientFaults;

/// How much later what is delayed arrives: longer than a Lease lasts, than the interval between lists of load balancers, and than the
/// leader waits for any answer of the API server.
const DELAY: Duration = Duration::from_secs(20);
/// How long the list after a dropped event takes.
const LIST_AFTER_DROP: Duration = Duration::from_secs(5);
/// From a crash to the start of the next process.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Before a write.
    CrashBefore,
    /// After a write.
    CrashAfter,
    /// Of an event or an answer.
    Drop,
    /// Of an event or an answer.
    Delay,
    /// Of an event or a list.
    Duplicate,
    /// An older answer of ARM.
    OlderVersion,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::Drop,
        Self::Delay,
        Self::Duplicate,
        Self::OlderVersion,
    ];
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CrashBefore => "crash before",
            Self::CrashAfter => "crash after",
            Self::Drop => "drop",
            Self::Delay => "delay",
            Self::Duplicate => "duplicate",
            Self::OlderVersion => "older version",
        })
    }
}

/// One point of a run: the `index`th at which this pattern is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultPoint {
    /// What happens.
    pub pattern: Pattern,
    /// From 0.
    pub index: usize,
}

impl fmt::Display for FaultPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pattern, self.index)
    }
}

/// The points of one run. Clones share them.
#[derive(Clone, Default)]
pub struct FaultPoints(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    injected: Vec<FaultPoint>,
    ignores_etags: bool,
    ignores_later_lists: bool,
    /// What the points of each pattern so far are about.
    reached: BTreeMap<Pattern, Vec<String>>,
    /// The injected points that were reached, with what they disturbed.
    hits: Vec<String>,
    /// The answers of ARM so far, by URL.
    answers: BTreeMap<String, Vec<Response<Bytes>>>,
}

impl FaultPoints {
    /// A run that these points disturb.
    pub fn with(injected: Vec<FaultPoint>) -> Self {
        let points = Self::default();
        points.counts().injected = injected;
        points
    }

    /// From now on writes to ARM have no `If-Match`: for tests of the check itself.
    pub fn ignore_etags(&self) {
        self.counts().ignores_etags = true;
    }

    /// From now on what a process lists again is what it listed first, as if it took nothing from a later list: for tests of the check
    /// itself.
    pub fn ignore_later_lists(&self) {
        self.counts().ignores_later_lists = true;
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap()
    }

    /// What the points of each pattern so far are about, by their indexes: requests and events.
    pub fn reached(&self) -> BTreeMap<Pattern, Vec<String>> {
        self.counts().reached.clone()
    }

    /// What was disturbed so far.
    pub fn hits(&self) -> Vec<String> {
        self.counts().hits.clone()
    }

    /// Counts a point; returns whether it is disturbed.
    fn reach(&self, pattern: Pattern, what: impl FnOnce() -> String) -> bool {
        let (mut counts, what) = (self.counts(), what());
        let reached = counts.reached.entry(pattern).or_default();
        let point = FaultPoint {
            pattern,
            index: reached.len(),
        };
        reached.push(what.clone());
        let is_hit = counts.injected.contains(&point);
        if is_hit {
            counts.hits.push(format!("{point}: {what:.300}"));
        }
        is_hit
    }
}

/// What happens to a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventFault {
    None,
    Drop,
    Delay(Duration),
    Duplicate,
}

/// The points of one process. Clones share them.
#[derive(Clone)]
pub struct ProcessPoints {
    points: FaultPoints,
    crashed: watch::Sender<bool>,
    collections: Arc<Mutex<Collections>>,
}

/// What is about to happen to requests for collections, by path.
#[derive(Default)]
struct Collections {
    /// The next list takes longer.
    slow: BTreeSet<String>,
    /// The next watch gets 410.
    expired: BTreeSet<String>,
    /// The objects of the first list, by URL.
    first: BTreeMap<String, Value>,
}

impl ProcessPoints {
    pub(crate) fn new(points: FaultPoints) -> Self {
        Self {
            points,
            crashed: watch::Sender::new(false),
            collections: Arc::default(),
        }
    }

    fn collections(&self) -> MutexGuard<'_, Collections> {
        self.collections.lock().unwrap()
    }

    /// Whether writes to ARM have no `If-Match`.
    pub fn ignores_etags(&self) -> bool {
        self.points.counts().ignores_etags
    }

    pub(crate) async fn crashed(&self) {
        let mut crashed = self.crashed.subscribe();
        // The sender is in `self`.
        let _ = crashed.wait_for(|crashed| *crashed).await;
    }

    /// Never returns for a process that has crashed.
    pub(crate) async fn alive(&self) {
        if *self.crashed.borrow() {
            pending::<()>().await;
        }
    }

    async fn crash<T>(&self) -> T {
        self.crashed.send_replace(true);
        pending().await
    }

    /// A request and its effect; `None` if the answer is lost.
    pub async fn exchange<T>(&self, method: &Method, url: &str, effect: impl Future<Output = T>) -> Option<T> {
        self.alive().await;
        let reach = |pattern| self.points.reach(pattern, || format!("{method} {url}"));
        let is_write = method != Method::GET;
        let (is_before, is_after) = (
            is_write && reach(Pattern::CrashBefore),
            is_write && reach(Pattern::CrashAfter),
        );
        let (is_lost, is_late) = (reach(Pattern::Drop), reach(Pattern::Delay));
        if is_before {
            return self.crash().await;
        }
        let answer = effect.await;
        if is_after {
            return self.crash().await;
        }
        if is_late {
            sleep(DELAY).await;
        }
        (!is_lost).then_some(answer)
    }

    /// A list of the collection at `path`; `None` if its answer is lost.
    pub(crate) async fn list<T>(&self, path: &str, answer: impl Future<Output = T>) -> Option<T> {
        let is_slow = self.collections().slow.remove(path);
        if is_slow {
            sleep(LIST_AFTER_DROP).await;
        }
        if self.points.reach(Pattern::Duplicate, || format!("list of {path}")) {
            self.collections().expired.insert(path.to_owned());
        }
        self.exchange(&Method::GET, path, answer).await
    }

    /// The answer to a list of this URL, with the objects of the first one where later ones are ignored.
    pub(crate) fn list_answer(&self, url: &str, mut answer: Value) -> Value {
        let objects = answer["items"].clone();
        let first = self
            .collections()
            .first
            .entry(url.to_owned())
            .or_insert(objects)
            .clone();
        if self.points.counts().ignores_later_lists {
            answer["items"] = first;
        }
        answer
    }

    /// Whether a watch of the collection at `path` that starts now gets 410.
    pub(crate) fn take_expired(&self, path: &str) -> bool {
        self.collections().expired.remove(path)
    }

    /// A watch event of the collection at `path`.
    pub(crate) fn event(&self, path: &str, event: &str) -> EventFault {
        let what = || format!("event of {path}: {event}");
        let hit = [
            (Pattern::Drop, EventFault::Drop),
            (Pattern::Delay, EventFault::Delay(DELAY)),
            (Pattern::Duplicate, EventFault::Duplicate),
        ]
        .map(|(pattern, fault)| self.points.reach(pattern, what).then_some(fault));
        let fault = hit.into_iter().flatten().next().unwrap_or(EventFault::None);
        if fault == EventFault::Drop {
            self.collections().slow.insert(path.to_owned());
        }
        fault
    }

    /// The answer of ARM to a GET of `url`, or an older one.
    pub fn arm_answer(&self, url: &str, answer: Response<Bytes>) -> Response<Bytes> {
        if !answer.status().is_success() {
            return answer;
        }
        let known = self.points.counts().answers.get(url).cloned().unwrap_or_default();
        let mut served = None;
        for older in known.iter().filter(|known| known.body() != answer.body()) {
            if self.points.reach(Pattern::OlderVersion, || format!("GET {url}")) {
                served = Some(older.clone());
            }
        }
        if known.iter().all(|known| known.body() != answer.body()) {
            let mut counts = self.points.counts();
            counts.answers.entry(url.to_owned()).or_default().push(answer.clone());
        }
        served.unwrap_or(answer)
    }
}

/// Runs a process as a kubelet does: starts it again after each crash. `start` gets the number of the start, from 1, and returns what
/// ends the process when it is dropped, and the connection of its client.
pub async fn keep_running<P>(mut start: impl AsyncFnMut(usize) -> (P, ClientFaults)) {
    for number in 1.. {
        let (process, line) = start(number).await;
        line.crashed().await;
        drop(process);
        sleep(RESTART_DELAY).await;
    }
}
