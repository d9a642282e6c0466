//! The writer on a small API server with one resource, in paused time.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response};
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const CONDITION: &str = "headgate.dev/OutOfLoadBalancers";

/// What the API server does with a request about a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Never answers.
    Hangs,
    /// Answers with this status.
    Status(u16),
    /// Answers reads, and this to writes.
    Write(u16),
    /// Answers this to writes of the main resource.
    Main(u16),
    /// Never answers writes of the main resource.
    MainHangs,
    /// Another writer changes the Node between its read and its write, so many times.
    Races(u32),
}

#[derive(Default)]
struct Server {
    nodes: BTreeMap<String, Value>,
    faults: BTreeMap<String, Fault>,
    /// Method, Node and subresource of each request.
    requests: Vec<(Instant, String)>,
    version: u64,
}

impl Server {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let mut parts = path.trim_start_matches("/api/v1/nodes/").split('/');
        let (name, is_status) = (parts.next().unwrap().to_owned(), parts.next().is_some());
        let kind = if is_status { "status " } else { "" };
        self.requests.push((Instant::now(), format!("{method} {kind}{name}")));
        let failed = |code: u16, message: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                "reason": "x", "message": message});
            (code, status)
        };
        let Some(node) = self.nodes.get_mut(&name) else {
            return failed(404, "not found");
        };
        let fault = self.faults.get_mut(&name);
        match fault {
            Some(Fault::Status(code)) => return failed(*code, "injected"),
            Some(Fault::Write(code)) if method == Method::PATCH => return failed(*code, "injected"),
            Some(Fault::Main(code)) if method == Method::PATCH && !is_status => return failed(*code, "injected"),
            Some(Fault::Races(left)) if method == Method::PATCH && *left > 0 => {
                *left -= 1;
                self.version += 1;
                node["metadata"]["resourceVersion"] = json!(self.version.to_string());
            }
            _ => {}
        }
        if method == Method::PATCH {
            let operations: json_patch::Patch = serde_json::from_slice(body).unwrap();
            let mut patched = node.clone();
            if json_patch::patch(&mut patched, &operations).is_err() {
                let message = "the server rejected our request due to an error in our request: testing value failed";
                return failed(422, message);
            }
            // Each request changes one part only.
            let part = if is_status { "status" } else { "spec" };
            let (before, after) = (std::mem::replace(node, patched), node);
            let other = if is_status { "spec" } else { "status" };
            assert_eq!(before[other], after[other], "a patch of {part}");
            self.version += 1;
            after["metadata"]["resourceVersion"] = json!(self.version.to_string());
            return (200, after.clone());
        }
        (200, node.clone())
    }
}

struct World {
    server: Arc<Mutex<Server>>,
    intents: NodeIntents,
    registry: Registry,
    may_send: Arc<AtomicBool>,
    _writer: AbortOnDropHandle<()>,
}

impl World {
    fn new(nodes: &[&str]) -> Self {
        let server = Arc::new(Mutex::new(Server::default()));
        server.lock().unwrap().version = 1;
        for name in nodes {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"}, "spec": {}, "status": {}});
            server.lock().unwrap().nodes.insert((*name).to_owned(), node);
        }
        let shared = Arc::clone(&server);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&shared);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                sleep(Duration::from_millis(5)).await;
                let name = parts.uri.path().split('/').nth(4).unwrap();
                let is_main_write = parts.method == Method::PATCH && !parts.uri.path().ends_with("/status");
                let hangs = match server.lock().unwrap().faults.get(name) {
                    Some(Fault::Hangs) => true,
                    Some(Fault::MainHangs) => is_main_write,
                    _ => false,
                };
                if hangs {
                    let request = (Instant::now(), format!("{} {name}", parts.method));
                    server.lock().unwrap().requests.push(request);
                    std::future::pending::<()>().await;
                }
                let (code, value) = server.lock().unwrap().answer(&parts.method, parts.uri.path(), &body);
                let body = Full::<Bytes>::from(value.to_string());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        let (intents, mut registry) = (NodeIntents::default(), Registry::default());
        let may_send = Arc::new(AtomicBool::new(true));
        let is_permitted = Arc::clone(&may_send);
        let writer = NodeWriter {
            client: Client::new(service, "default"),
            metrics: NodeWriteMetrics::register(&mut registry),
            clock: Clock::System,
            term: None,
            may_send: Arc::new(move || {
                let is_permitted = is_permitted.load(Ordering::Relaxed);
                is_permitted
                    .then_some(())
                    .ok_or_else(|| "the term has ended".to_owned())
            }),
        };
        Self {
            server,
            registry,
            may_send,
            _writer: AbortOnDropHandle::new(tokio::spawn(writer.run(intents.clone()))),
            intents,
        }
    }

    fn fault(&self, node: &str, fault: Option<Fault>) {
        let mut server = self.server.lock().unwrap();
        match fault {
            Some(fault) => drop(server.faults.insert(node.to_owned(), fault)),
            None => drop(server.faults.remove(node)),
        }
    }

    fn node(&self, name: &str) -> Value {
        self.server.lock().unwrap().nodes[name].clone()
    }

    fn has_condition(&self, name: &str) -> bool {
        self.node(name)["status"]["conditions"][0]["type"] == CONDITION
    }

    /// The requests about a Node so far.
    fn requests(&self, node: &str) -> Vec<String> {
        let server = self.server.lock().unwrap();
        let requests = server.requests.iter().map(|(_, request)| request);
        let of_node = requests.filter(|request| request.ends_with(&format!(" {node}")));
        of_node.cloned().collect()
    }

    fn count(&self, field: &str, outcome: &str) -> u64 {
        let series = format!("headgate_node_writes_total{{field=\"{field}\",outcome=\"{outcome}\"}}");
        headgate_test_kubernetes::series_value(&self.registry, &series)
    }
}

fn condition(node: &mut Node, _: Timestamp) -> Edited {
    let status = node.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    if conditions.is_empty() {
        conditions.push(NodeCondition {
            type_: CONDITION.to_owned(),
            status: "True".to_owned(),
            ..NodeCondition::default()
        });
    }
    Edited::Done
}

fn taint(node: &mut Node, _: Timestamp) -> Edited {
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    if taints.is_empty() {
        taints.push(Taint {
            key: "t".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    Edited::Done
}

fn intent(name: &str, shown: Shown, edit: impl NodeEdit + 'static) -> (String, NodeIntent) {
    let intent = NodeIntent {
        uid: Some(format!("uid-{name}")),
        key: "a".to_owned(),
        shown,
        renew_interval: None,
        edit: Arc::new(edit),
    };
    (name.to_owned(), intent)
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_and_repeated_with_backoff_until_the_node_has_the_value() {
    for (what, fault, outcome, first_minute, is_written) in [
        ("a node that does not exist", Fault::Status(404), "gone", 12, false),
        ("a right that is missing", Fault::Write(403), "refused", 9, false),
        ("a policy that refuses", Fault::Write(422), "refused", 9, false),
        ("an API server that fails", Fault::Status(500), "error", 9, false),
        ("an API server that hangs", Fault::Hangs, "timeout", 7, false),
        ("another writer was faster twice", Fault::Races(2), "conflict", 3, true),
        ("others all the time", Fault::Races(u32::MAX), "conflict", 54, false),
    ] {
        let world = World::new(&["one"]);
        world.fault("one", Some(fault));
        let marker = world.intents.field(NodeField::Marker);
        // The watch never shows it.
        marker.publish([intent("one", Shown::No, condition)].into());
        sleep(4 * SECOND).await;
        assert_eq!(world.has_condition("one"), is_written, "{what}");
        sleep(56 * SECOND).await;
        let failures = world.count("marker", outcome);
        if is_written {
            assert_eq!((failures, world.count("marker", "written")), (2, 1), "{what}");
        } else {
            assert_eq!(world.count("marker", "written"), 0, "{what}");
            let is_expected = failures >= 4 && failures.abs_diff(first_minute) <= 1;
            assert!(is_expected, "{what}: {failures} failures");
        }
        world.fault("one", None);
        sleep(MAX_WAIT).await;
        assert!(world.has_condition("one"), "{what}");
    }
}

/// The longest backoff, and a request that hangs.
const MAX_WAIT: Duration = Duration::from_secs(26);

#[tokio::test(start_paused = true)]
async fn hanging_nodes_delay_no_other() {
    let names: Vec<_> = (0..400).map(|number| format!("node-{number:03}")).collect();
    let world = World::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (hanging, healthy) = names.split_at(100);
    for name in hanging {
        world.fault(name, Some(Fault::Hangs));
    }
    let marker = world.intents.field(NodeField::Marker);
    let intents = |names: &[String]| names.iter().map(|name| intent(name, Shown::No, condition)).collect();
    marker.publish(intents(hanging));
    sleep(10 * SECOND).await;
    marker.publish(intents(&names));
    // 300 healthy ones, 16 at a time, two requests of 5 ms each; the hanging ones take places for half a second.
    sleep(2 * SECOND).await;
    let late: Vec<_> = healthy.iter().filter(|name| !world.has_condition(name)).collect();
    assert!(late.is_empty(), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_without_a_permit() {
    let world = World::new(&["one"]);
    world.may_send.store(false, Ordering::Relaxed);
    let marker = world.intents.field(NodeField::Marker);
    marker.publish([intent("one", Shown::No, condition)].into());
    sleep(5 * SECOND).await;
    let requests = world.requests("one");
    assert!(requests.iter().all(|request| request == "GET one"), "{requests:?}");
    assert!(world.count("marker", "not_permitted") >= 2);
    world.may_send.store(true, Ordering::Relaxed);
    sleep(MAX_WAIT).await;
    assert!(world.has_condition("one"));
}

#[tokio::test(start_paused = true)]
async fn another_node_of_the_name_is_not_written() {
    let world = World::new(&["one"]);
    let marker = world.intents.field(NodeField::Marker);
    let (name, mut other) = intent("one", Shown::No, condition);
    other.uid = Some("uid-of-another".to_owned());
    marker.publish([(name, other)].into());
    sleep(SECOND).await;
    assert_eq!(world.requests("one"), ["GET one"]);
    assert_eq!(world.count("marker", "gone"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_is_left_alone_and_a_change_is_written_at_once() {
    let world = World::new(&["one"]);
    let marker = world.intents.field(NodeField::Marker);
    marker.publish([intent("one", Shown::Yes, condition)].into());
    sleep(60 * SECOND).await;
    assert!(world.requests("one").is_empty());
    marker.publish([intent("one", Shown::No, condition)].into());
    sleep(SECOND).await;
    assert_eq!(world.requests("one"), ["GET one", "PATCH status one"]);
    drop(marker);
    sleep(60 * SECOND).await;
    assert_eq!(world.requests("one").len(), 2, "nothing wants it any more");
}

#[tokio::test(start_paused = true)]
async fn an_edit_may_wait_or_be_outdated() {
    let world = World::new(&["one", "two"]);
    let marker = world.intents.field(NodeField::Marker);
    let at = Instant::now() + 7 * SECOND;
    let waits = move |node: &mut Node, now| {
        condition(node, now);
        if Instant::now() < at {
            Edited::NotBefore(at)
        } else {
            Edited::Done
        }
    };
    let outdated = |node: &mut Node, now| {
        condition(node, now);
        Edited::Outdated
    };
    marker.publish([intent("one", Shown::No, waits), intent("two", Shown::No, outdated)].into());
    sleep(6 * SECOND).await;
    assert!(!world.has_condition("one"));
    sleep(2 * SECOND).await;
    assert!(world.has_condition("one") && !world.has_condition("two"));
    assert!(world.count("marker", "conflict") > 2);
}

struct Reported(Arc<Mutex<BTreeSet<String>>>, Arc<Mutex<usize>>);

impl NodeEdit for Reported {
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited {
        condition(node, now)
    }

    fn failed(&self, why: &str) {
        assert!(!why.is_empty());
        *self.1.lock().unwrap() += 1;
    }

    fn written(&self, before: &Node, after: &Node) {
        assert_ne!(before, after);
        let name = after.metadata.name.clone().unwrap();
        assert!(self.0.lock().unwrap().insert(name), "once");
    }
}

#[tokio::test(start_paused = true)]
async fn an_accepted_change_is_reported_once_and_each_failed_write() {
    let world = World::new(&["one"]);
    let reported = Arc::<Mutex<BTreeSet<String>>>::default();
    let failed = Arc::<Mutex<usize>>::default();
    let marker = world.intents.field(NodeField::Marker);
    world.fault("one", Some(Fault::Write(500)));
    marker.publish(
        [intent(
            "one",
            Shown::No,
            Reported(Arc::clone(&reported), Arc::clone(&failed)),
        )]
        .into(),
    );
    sleep(3 * SECOND).await;
    assert!(reported.lock().unwrap().is_empty());
    let failures = *failed.lock().unwrap();
    assert!(failures > 0 && failures == usize::try_from(world.count("marker", "error")).unwrap());
    world.fault("one", None);
    sleep(60 * SECOND).await;
    assert_eq!(*reported.lock().unwrap(), ["one".to_owned()].into());
    assert_eq!(*failed.lock().unwrap(), failures);
}

#[tokio::test(start_paused = true)]
async fn fields_of_a_node_are_written_together_and_each_alone_if_that_fails() {
    for (fault, outcome, most_seconds) in [
        (Fault::Main(403), "refused", 0),
        (Fault::Main(400), "error", 0),
        (Fault::Main(500), "error", 0),
        (Fault::MainHangs, "timeout", 11),
    ] {
        fields_are_written_unless_they_fail_alone(fault, outcome, most_seconds * SECOND).await;
    }
}

/// Within this time, where this fault of the second Node has this outcome.
async fn fields_are_written_unless_they_fail_alone(fault: Fault, outcome: &str, most: Duration) {
    let world = World::new(&["one", "two"]);
    world.fault("two", Some(fault));
    let marker = world.intents.field(NodeField::Marker);
    let taints = world.intents.field(NodeField::DrainingTaint);
    marker.publish(["one", "two"].map(|name| intent(name, Shown::No, condition)).into());
    taints.publish(["one", "two"].map(|name| intent(name, Shown::No, taint)).into());
    sleep(SECOND / 10).await;
    assert_eq!(world.requests("one"), ["GET one", "PATCH one", "PATCH status one"]);
    sleep(most).await;
    assert!(world.has_condition("one") && world.has_condition("two"), "{fault:?}");
    assert_eq!(world.node("one")["spec"]["taints"][0]["key"], "t");
    assert_eq!(world.count("marker", "written"), 2);
    let failures = ["marker", "draining_taint"].map(|field| world.count(field, outcome));
    assert_eq!(failures, [0, 1], "{fault:?}");
}
