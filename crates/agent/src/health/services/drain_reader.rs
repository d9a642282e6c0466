//! Reads the other nodes of the Services with endpoints on this node, while the node has signals that may be taken back.
//!
//! At rest it reads nothing. A read of one Service lists its EndpointSlices and gets the Nodes that they name, until one keeps serving, and
//! the own one if only nodes with signals serve. All come from storage and not from the API server's cache, as `drain` requires. It is
//! published at once. The next one follows 5 s after its start; a Service that appears is read at once. A few are read at the same time,
//! those of the namespace with the fewest reads under way first, so that many or slow Services of one tenant do not delay the others'. A
//! read that fails changes nothing: what was read of the Service before expires.

use headgate_core::changed;
use headgate_core::service::{EndpointSliceObject, NamespacedName, SERVICE_NAME_LABEL};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeDetail, NodeObject, NodeReader, NodeReport, SignalRules};
use headgate_kubernetes::{Decoded, split_list};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::{OnceCell, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::spot::read_node;

use super::super::failed_probes::ServiceAnswers;
use super::super::ip_family::PerFamily;
use super::super::verdict::VerdictInputs;
use super::drain::{DrainReads, OtherNodes, OwnState, ServiceRead, Signals};
use super::index::ServiceTable;
use super::kept_objects::LABEL_SELECTOR;
use super::service_drains::own_state;

/// From the start of a read of a Service to that of its next: several fit into the validity of a read.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// The Services that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;
/// How long other reads use a Node that was read: less than the interval, so that a Service is not read with the same one twice.
const NODE_TTL: Duration = Duration::from_millis(2500);
/// Time for one request, so that one without an answer leaves time for the next read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The Nodes with the first names that are read for one Service, and as many others, which change from read to read. It bounds what a
/// cordon of many nodes costs.
const MAX_NODES: usize = 16;
/// The interval in which answers about Services that are deleted or not probed any more are forgotten at rest.
const FORGET_INTERVAL: Duration = Duration::from_mins(5);

/// What the reads are made with.
pub struct DrainReader {
    /// A client of the API server.
    pub client: Client,
    /// The name of the own Node.
    pub node_name: String,
    /// What is a signal, on every node.
    pub rules: SignalRules,
    /// Whether one of several nodes with signals leaves although no other is left. Where a leader of Azure decides that, it does not.
    pub relies_on_signalled: bool,
    /// The signals of the own node.
    pub inputs: VerdictInputs,
    /// The Services and the endpoints on this node.
    pub tables: watch::Receiver<Option<Arc<ServiceTable>>>,
    /// Those about Services that are gone are forgotten; at rest, also those about Services that are not probed any more.
    pub answers: ServiceAnswers,
    /// Receives the reads.
    pub reads: watch::Sender<Option<Arc<DrainReads>>>,
    /// The clock of the own state.
    pub clock: Clock,
}

impl DrainReader {
    /// Reads and publishes until the task is aborted; never ends by itself.
    pub async fn run(mut self) {
        loop {
            let (state, signals) = self.own();
            if state == OwnState::Signalled {
                self.read_others(signals).await;
                continue;
            }
            self.reads.send_replace(None);
            if let Some(table) = &*self.tables.borrow() {
                self.answers.retain(table);
            }
            let is_at_rest = state == OwnState::Eligible;
            if is_at_rest {
                self.answers.forget_unprobed(self.clock.now().mono);
            }
            // A hold ends without a change of the Node.
            let pause = if is_at_rest { FORGET_INTERVAL } else { READ_INTERVAL };
            tokio::select! {
                () = sleep(pause) => {}
                () = changed(&mut self.inputs.node) => {}
            }
        }
    }

    fn own(&mut self) -> (OwnState, Signals) {
        let state = own_state(&self.inputs, self.clock.now().mono);
        let signals = self.inputs.node.borrow_and_update().signals().clone();
        (state, signals)
    }

    /// Reads and publishes until all of these signals, which have just been observed, and those that followed them without a gap have ended.
    async fn read_others(&mut self, signals: Signals) {
        self.reads
            .send_replace(Some(Arc::new(DrainReads::new(signals, Instant::now()))));
        // Nothing that was read before the observation is used.
        let reader = OtherNodesReader::new(self);
        let (mut schedule, mut under_way) = (Schedule::default(), FuturesUnordered::new());
        while self.continues() {
            let now = Instant::now();
            let table = self.tables.borrow().clone().unwrap_or_default();
            while under_way.len() < MAX_CONCURRENT_READS
                && let Some(service) = schedule.next(&table, now)
            {
                let known = self.reads.borrow();
                let known = known.as_ref().and_then(|reads| reads.services.get(&*service));
                let known = known.and_then(|known| known.others.without_signal.clone());
                let number = schedule.start(&service, now);
                under_way.push(reader.read(service, known, number));
            }
            // An end of one starts the next.
            let is_full = under_way.len() == MAX_CONCURRENT_READS;
            let wake_at = schedule.due_at(&table).filter(|_| !is_full);
            tokio::select! {
                Some((service, outcome)) = under_way.next() => {
                    let is_first_failure = schedule.finish(&service, outcome.is_err());
                    self.adopt(&service, outcome, is_first_failure);
                }
                () = sleep_until(wake_at.unwrap_or(now + READ_INTERVAL)) => {}
                () = changed(&mut self.inputs.node) => {}
                () = changed(&mut self.tables) => self.forget_others(&mut schedule),
            }
        }
    }

    /// Whether the reads so far count for the present signals, which they adopt.
    fn continues(&mut self) -> bool {
        let (state, signals) = self.own();
        let mut continues = false;
        self.reads.send_if_modified(|reads| {
            let Some(reads) = reads else { return false };
            continues = state == OwnState::Signalled && reads.continues_with(&signals);
            let is_changed = continues && reads.signals != signals;
            if is_changed {
                Arc::make_mut(reads).signals = signals;
            }
            is_changed
        });
        continues
    }

    fn adopt(&self, service: &NamespacedName, outcome: Result<ServiceRead, String>, is_first_failure: bool) {
        match outcome {
            Ok(read) => self.reads.send_modify(|reads| {
                if let Some(reads) = reads {
                    Arc::make_mut(reads).services.insert(service.clone(), read);
                }
            }),
            Err(error) if is_first_failure => tracing::info!(
                %service,
                error,
                "other nodes of a Local Service not read; what was read of it last counts"
            ),
            Err(_) => {}
        }
    }

    /// Forgets the Services without endpoints on this node.
    fn forget_others(&mut self, schedule: &mut Schedule) {
        let table = self.tables.borrow_and_update().clone().unwrap_or_default();
        let here: BTreeSet<&NamespacedName> = table.with_endpoints().map(|service| &**service).collect();
        schedule.retain(&here);
        self.reads.send_modify(|reads| {
            if let Some(reads) = reads {
                Arc::make_mut(reads)
                    .services
                    .retain(|service, _| here.contains(service));
            }
        });
    }
}

/// When each Service is read.
#[derive(Default)]
struct Schedule(BTreeMap<Arc<NamespacedName>, Attempts>);

/// The reads of one Service.
struct Attempts {
    number: usize,
    /// When the last one began.
    last_at: Instant,
    is_under_way: bool,
    has_failed: bool,
}

impl Schedule {
    /// The Service to read next, if one is due: of the namespace with the fewest reads under way, never read or longest ago.
    fn next(&self, table: &ServiceTable, now: Instant) -> Option<Arc<NamespacedName>> {
        let mut under_way: BTreeMap<&str, usize> = BTreeMap::new();
        for (service, _) in self.0.iter().filter(|(_, attempts)| attempts.is_under_way) {
            *under_way.entry(service.namespace()).or_default() += 1;
        }
        let due = table.with_endpoints().filter_map(|service| {
            let attempts = self.0.get(service);
            let is_due = attempts.is_none_or(|attempts| attempts.due_at().is_some_and(|at| at <= now));
            is_due.then(|| (service, attempts.map(|attempts| attempts.last_at)))
        });
        let next = due.min_by_key(|(service, last_at)| (under_way.get(service.namespace()).copied(), *last_at));
        next.map(|(service, _)| Arc::clone(service))
    }

    /// When the next of the Services is due that are not read now; `None` without one.
    fn due_at(&self, table: &ServiceTable) -> Option<Instant> {
        let here = table.with_endpoints().filter_map(|service| self.0.get(service));
        here.filter_map(Attempts::due_at).min()
    }

    /// Begins a read; returns the number of those before.
    fn start(&mut self, service: &Arc<NamespacedName>, now: Instant) -> usize {
        let attempts = self.0.entry(Arc::clone(service)).or_insert(Attempts {
            number: 0,
            last_at: now,
            is_under_way: true,
            has_failed: false,
        });
        attempts.number += 1;
        (attempts.last_at, attempts.is_under_way) = (now, true);
        attempts.number - 1
    }

    /// Ends a read; returns whether it has failed and no other Service's last one had.
    fn finish(&mut self, service: &NamespacedName, has_failed: bool) -> bool {
        let was_failing = self.0.values().any(|attempts| attempts.has_failed);
        if let Some(attempts) = self.0.get_mut(service) {
            (attempts.is_under_way, attempts.has_failed) = (false, has_failed);
        }
        has_failed && !was_failing
    }

    fn retain(&mut self, services: &BTreeSet<&NamespacedName>) {
        self.0
            .retain(|service, attempts| attempts.is_under_way || services.contains(&**service));
    }
}

impl Attempts {
    /// When the next one is due; `None` while one is under way.
    fn due_at(&self) -> Option<Instant> {
        (!self.is_under_way).then(|| self.last_at + READ_INTERVAL)
    }
}

/// Reads the other nodes of Services. Reads share the Nodes that were read lately.
struct OtherNodesReader {
    client: Client,
    own_name: String,
    own: watch::Receiver<NodeReport>,
    rules: SignalRules,
    relies_on_signalled: bool,
    clock: Clock,
    nodes: Mutex<BTreeMap<String, Arc<OnceCell<NodeRead>>>>,
}

/// A Node that was read; `None` if it does not exist or cannot be decoded.
#[derive(Clone)]
struct NodeRead {
    started_at: Instant,
    node: Option<Arc<Node>>,
}

impl OtherNodesReader {
    fn new(reader: &DrainReader) -> Self {
        Self {
            client: reader.client.clone(),
            own_name: reader.node_name.clone(),
            own: reader.inputs.node.clone(),
            rules: reader.rules.clone(),
            relies_on_signalled: reader.relies_on_signalled,
            clock: reader.clock.clone(),
            nodes: Mutex::default(),
        }
    }

    async fn read(
        &self,
        service: Arc<NamespacedName>,
        known: Option<String>,
        number: usize,
    ) -> (Arc<NamespacedName>, Result<ServiceRead, String>) {
        let outcome = self.service(&service, known.as_deref(), number).await;
        (service, outcome)
    }

    /// Reads one Service: no part of it began before the read's `started_at`.
    async fn service(
        &self,
        service: &NamespacedName,
        known: Option<&str>,
        number: usize,
    ) -> Result<ServiceRead, String> {
        let mut started_at = Instant::now();
        let serving = serving_nodes(&self.client, service, &self.own_name).await?;
        let mut others = OtherNodes::default();
        for name in candidates(serving, &self.own_name, known, number) {
            let read = self.node(&name).await?;
            started_at = started_at.min(read.started_at);
            if let Some(node) = &read.node {
                others.add(node, &self.own_name, self.clock.now());
            }
            if others.without_signal.is_some() {
                break;
            }
        }
        if !self.relies_on_signalled {
            others.with_earlier_name = None;
        }
        if others.without_signal.is_none() && others.with_earlier_name.is_some() {
            // From storage as well: what the watch shows may be older than what other nodes have read.
            let read = self.node(&self.own_name).await?;
            started_at = started_at.min(read.started_at);
            if let Some(own) = &read.node {
                others.add(own, &self.own_name, self.clock.now());
            }
        }
        Ok(ServiceRead { started_at, others })
    }

    /// The same Node, excluded if load balancers that have the own one may be without it.
    fn excluded_beside_own(&self, node: Arc<Node>) -> Arc<Node> {
        let report = self.own.borrow();
        let own = report.node.as_ref();
        let node = node.exclude_other_resource_group(own);
        // A load balancer has all control-plane nodes or none.
        if own.is_some_and(|own| own.control_plane.is_some()) {
            node
        } else {
            node.exclude_control_plane()
        }
    }

    /// The Node as it was read at most [`NODE_TTL`] ago, or is read now, for all that ask.
    async fn node(&self, name: &str) -> Result<NodeRead, String> {
        let now = Instant::now();
        let cell = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.retain(|_, cell| match cell.get() {
                Some(read) => now < read.started_at + NODE_TTL,
                None => Arc::strong_count(cell) > 1,
            });
            Arc::clone(nodes.entry(name.to_owned()).or_default())
        };
        let read = async || {
            let started_at = Instant::now();
            let node = node(&self.client, &self.rules, name).await?.map(Arc::new);
            let node = node.map(|node| self.excluded_beside_own(node));
            Ok(NodeRead { started_at, node })
        };
        cell.get_or_try_init(read).await.cloned()
    }
}

/// The nodes with a ready endpoint of the Service, in each IP family in which `own_name` has one.
async fn serving_nodes(client: &Client, service: &NamespacedName, own_name: &str) -> Result<BTreeSet<String>, String> {
    let slices = Api::<Decoded<EndpointSliceObject>>::namespaced(client.clone(), service.namespace());
    let of_service = ListParams::default().labels(&format!("{SERVICE_NAME_LABEL}={},{LABEL_SELECTOR}", service.name()));
    let listed = timeout(REQUEST_TIMEOUT, slices.list(&of_service)).await;
    let listed = listed.map_err(|_| no_answer())?.map_err(|error| error.to_string())?;
    // One that cannot be decoded shows no node, so this node keeps serving; the watch reports it.
    let (slices, _) = split_list(listed);
    let mut families = PerFamily::<BTreeSet<String>>::default();
    for (name, address) in slices.iter().flat_map(EndpointSliceObject::ready_endpoints) {
        families.get_mut_by_address(address).insert(name.to_owned());
    }
    let PerFamily { v4, v6 } = families;
    Ok(match (v4.contains(own_name), v6.contains(own_name)) {
        (true, true) => &v4 & &v6,
        (true, false) => v4,
        (false, true) => v6,
        (false, false) => &v4 | &v6,
    })
}

/// The Node of this name; `None` for one that does not exist or cannot be decoded.
async fn node(client: &Client, rules: &SignalRules, name: &str) -> Result<Option<Node>, String> {
    let nodes = Api::<Decoded<NodeObject>>::all(client.clone());
    let reader = NodeReader {
        rules: rules.clone(),
        // With the times of the marker.
        detail: NodeDetail::MaintenanceByProbes,
        ..NodeReader::default()
    };
    match timeout(REQUEST_TIMEOUT, nodes.get_opt(name)).await {
        Err(_) => Err(no_answer()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(object)) => {
            let object = object.and_then(|object| object.into_object().ok());
            Ok(object.map(|object| read_node(object, &reader)))
        }
    }
}

fn no_answer() -> String {
    format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())
}

/// The nodes to read, in this order: the one that is known to have no signal, those with the first names, and some of the rest.
fn candidates(mut serving: BTreeSet<String>, own_name: &str, known: Option<&str>, number: usize) -> Vec<String> {
    serving.remove(own_name);
    let known = known.and_then(|known| serving.take(known));
    let mut others: Vec<String> = serving.into_iter().collect();
    let mut rest = others.split_off(MAX_NODES.min(others.len()));
    if !rest.is_empty() {
        let start = number * MAX_NODES % rest.len();
        rest.rotate_left(start);
        rest.truncate(MAX_NODES);
    }
    known.into_iter().chain(others).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use headgate_core::node::{MARKER_CONDITION, SignalSettings};

    use super::super::super::fixtures::{self, Channels, MAINTENANCE, table, tainted, web};
    use super::super::drain::{ServiceDrain, service_drain};
    use super::super::index::ServedService;
    use super::*;

    /// A time that a kube-apiserver stores and a `Timestamp` does not hold.
    const FAR: &str = "9999-12-31T23:59:59Z";

    fn slice(name: &str, metadata: &Value, node: &str) -> Value {
        let mut object = json!({"metadata": {"namespace": "default", "name": name}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": node}], "ports": [{"name": "", "port": 80}]});
        let fields = metadata.as_object().unwrap().clone();
        object["metadata"].as_object_mut().unwrap().extend(fields);
        object
    }

    fn response(body: &Value) -> Response<Body> {
        Response::new(Body::from(body.to_string().into_bytes()))
    }

    fn list(slices: &[Value]) -> Value {
        json!({"kind": "EndpointSliceList", "metadata": {"resourceVersion": "7"}, "items": slices})
    }

    /// The API server of the odd objects; it fails for the Service `down`, and does not answer about those of the namespace `busy`.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, io::Error> {
        let path = request.uri().path().to_owned();
        if path.contains("/namespaces/busy/") {
            return std::future::pending().await;
        }
        if request.uri().query().is_some_and(|query| query.contains("down")) {
            return Err(io::Error::other("refused"));
        }
        let body = if path.ends_with("/endpointslices") {
            let odd = json!({"creationTimestamp": FAR, "managedFields": [{"time": FAR, "fieldsV1": {}}]});
            list(&[
                slice("odd", &odd, "n2"),
                slice("broken", &json!({"labels": 7}), "n3"),
                slice("good", &json!({}), "n4"),
            ])
        } else if path.ends_with("/ending") {
            json!({"kind": "Node", "metadata": {"name": "ending", "uid": "u"}, "status": {"conditions": [{"type": "Ready", "status": "True"},
                {"type": "VMEventScheduled", "status": "True", "message": "Preempt Started"}]}})
        } else {
            json!({"kind": "Node", "metadata": {"name": "n2", "uid": "u", "creationTimestamp": FAR},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": FAR},
                    // A leftover.
                    {"type": MARKER_CONDITION, "status": "True", "lastHeartbeatTime": "2020-01-01T00:00:00Z"}]}})
        };
        Ok(response(&body))
    }

    #[tokio::test]
    async fn a_node_takes_the_place_of_another_that_serves_in_no_more_families() {
        let of = |family: &str, address: &str, nodes: &[&str]| {
            let endpoint = |node| json!({"addresses": [address], "nodeName": node});
            let endpoints: Vec<_> = nodes.iter().map(endpoint).collect();
            json!({"metadata": {"namespace": "default", "name": family}, "addressType": family, "endpoints": endpoints,
                "ports": [{"name": "", "port": 80}]})
        };
        let slices = list(&[
            of("IPv4", "10.1.0.1", &["four", "both", "other"]),
            of("IPv6", "fd00::1", &["six", "both", "other"]),
        ]);
        let answer =
            tower::service_fn(move |_: Request<Body>| std::future::ready(Ok::<_, io::Error>(response(&slices))));
        let client = Client::new(answer, "default");
        for (own, expected) in [
            ("four", &["both", "four", "other"][..]),
            ("six", &["both", "other", "six"]),
            ("both", &["both", "other"]),
            ("none", &["both", "four", "other", "six"]),
        ] {
            let names = serving_nodes(&client, &web(), own).await;
            let names: Vec<_> = names.unwrap().into_iter().collect();
            assert_eq!(names, expected, "{own}");
        }
    }

    #[tokio::test]
    async fn one_odd_object_makes_no_other_unreadable() {
        let client = Client::new(tower::service_fn(answer), "default");
        let names = serving_nodes(&client, &web(), "n1").await;
        assert_eq!(names.unwrap(), ["n2".to_owned(), "n4".to_owned()].into());
        let mut others = OtherNodes::default();
        for (name, serving) in [("ending", None), ("n2", Some("n2"))] {
            let node = node(&client, &SignalRules::default(), name).await.unwrap().unwrap();
            others.add(&node, "n1", Clock::System.now());
            assert_eq!(others.without_signal.as_deref(), serving, "{name}");
        }
        let failed = serving_nodes(&client, &NamespacedName::new("default", "down"), "n1").await;
        assert!(failed.unwrap_err().contains("refused"));
    }

    /// A reader of a node with a signal over the API server `answer`, and what it reads and publishes.
    struct Reading {
        channels: Channels,
        lists: Arc<AtomicUsize>,
    }

    impl Reading {
        /// With the time that the API server takes for each request.
        fn start(latency: Duration) -> Self {
            let channels = Channels::default();
            channels.node.send_replace(fixtures::report(tainted(&[MAINTENANCE])));
            let lists = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&lists);
            let service = tower::service_fn(move |request: Request<Body>| {
                let is_list = request.uri().path().ends_with("/endpointslices");
                counted.fetch_add(usize::from(is_list), Ordering::Relaxed);
                async move {
                    sleep(latency).await;
                    answer(request).await
                }
            });
            let reader = DrainReader {
                client: Client::new(service, "default"),
                node_name: "n1".to_owned(),
                rules: SignalSettings::default().health(),
                relies_on_signalled: true,
                inputs: channels.inputs(),
                tables: channels.tables.subscribe(),
                answers: channels.answers.clone(),
                reads: channels.reads.clone(),
                clock: Clock::System,
            };
            tokio::spawn(reader.run());
            Self { channels, lists }
        }

        /// Publishes these Services of the namespace `default`, and waits for less than a round.
        async fn publish(&self, services: &[(&str, u32)]) {
            self.publish_table(table(services)).await;
        }

        async fn publish_table(&self, table: Arc<ServiceTable>) {
            self.channels.tables.send_replace(Some(table));
            sleep(Duration::from_secs(1)).await;
        }

        /// What the answer about the Service `default/web` is made of by the signal.
        fn drain_of_web(&self) -> ServiceDrain {
            let reads = self.channels.reads.borrow();
            service_drain(OwnState::Signalled, reads.as_deref(), &web(), Instant::now())
        }

        fn read(&self) -> Vec<String> {
            let reads = self.channels.reads.borrow();
            let services = reads.iter().flat_map(|reads| reads.services.keys());
            services.map(|service| service.name().to_owned()).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_appears_between_two_rounds_is_read_at_once() {
        let reading = Reading::start(Duration::ZERO);
        let lists = || reading.lists.load(Ordering::Relaxed);
        sleep(Duration::from_millis(100)).await;
        assert!(reading.read().is_empty() && lists() == 0);
        reading.publish(&[("web", 1), ("far", 0)]).await;
        assert_eq!((reading.read(), lists()), (vec!["web".to_owned()], 1));
        // Neither other changes nor a round that fails lead to more of them.
        reading.publish(&[("web", 2), ("far", 0)]).await;
        assert_eq!(lists(), 1);
        for endpoints in 1..4 {
            reading.publish(&[("down", 1), ("web", endpoints)]).await;
            assert_eq!((reading.read(), lists()), (vec!["web".to_owned()], 2), "{endpoints}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_about_services_that_are_not_probed_any_more_are_forgotten_once_the_signal_has_ended() {
        let reading = Reading::start(Duration::ZERO);
        reading.publish(&[("web", 1)]).await;
        let Channels {
            answers, node, reads, ..
        } = &reading.channels;
        answers.count(&web(), true, Instant::now());
        sleep(Duration::from_mins(11)).await;
        assert!(answers.has(&web()));
        node.send_replace(fixtures::report(Node::default()));
        sleep(Duration::from_secs(1)).await;
        assert!(reads.borrow().is_none() && !answers.has(&web()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_is_as_old_as_the_oldest_node_that_it_uses() {
        let reading = Reading::start(Duration::ZERO);
        let started_at = |name: &str| {
            let reads = reading.channels.reads.borrow();
            let services = &reads.as_ref().unwrap().services;
            services[&NamespacedName::new("default", name)].started_at
        };
        reading.publish(&[("first", 1)]).await;
        let first = started_at("first");
        reading.publish(&[("first", 1), ("soon", 1)]).await;
        assert_eq!(started_at("soon"), first, "the same read of the Node");
        sleep(NODE_TTL).await;
        reading.publish(&[("first", 1), ("soon", 1), ("late", 1)]).await;
        assert!(started_at("late") > first + NODE_TTL);
    }

    #[tokio::test(start_paused = true)]
    async fn no_other_services_hold_back_one_that_can_be_read() {
        let numbered = |namespace: &str, count| {
            let names = (0..count).map(|number| NamespacedName::new(namespace, &format!("s{number}")));
            names.collect::<Vec<_>>()
        };
        let fails = vec![NamespacedName::new("default", "down")];
        for (what, latency, others, first) in [
            ("one fails", 0, fails, 1),
            ("many", 100, numbered("default", 300), 10),
            // More than can be read at once in the validity of a read.
            ("those of another tenant hang", 20, numbered("busy", 100), 10),
        ] {
            let reading = Reading::start(Duration::from_millis(latency));
            let all = others.into_iter().chain([web()]);
            let served = all.map(|name| (name, ServedService::example(1)));
            reading.publish_table(Arc::new(served.collect())).await;
            sleep(Duration::from_secs(first)).await;
            for second in first..90 {
                assert_eq!(reading.drain_of_web(), ServiceDrain::Failing, "{what}: {second}");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_own_node_says_which_others_count() {
        let answer = |labels: Value, request: Request<Body>| {
            let (path, old) = (request.uri().path().to_owned(), "2020-01-01T00:00:00Z");
            let taints = json!([{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]);
            let conditions = json!([{"type": "Ready", "status": "True"},
                {"type": MARKER_CONDITION, "status": "True", "reason": "ProbesFailed", "lastTransitionTime": old}]);
            let body = if path.ends_with("/endpointslices") {
                list(&[slice("a", &json!({}), "n1"), slice("b", &json!({}), "n2")])
            } else {
                let name = path.rsplit('/').next();
                json!({"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
                    "status": {"conditions": conditions}})
            };
            std::future::ready(Ok::<_, io::Error>(response(&body)))
        };
        let control_plane = json!({"node-role.kubernetes.io/control-plane": ""});
        let other_group = json!({"kubernetes.azure.com/resource-group": "Other"});
        for (own_name, own_role, own_group, labels_of_all, relies_on_signalled, expected) in [
            ("n2", None, "", json!({}), true, true),
            ("n2", None, "", json!({}), false, false),
            ("n1", None, "", json!({}), true, false),
            // Load balancers may exclude control-plane nodes; if so, all of them.
            ("n2", None, "", control_plane.clone(), true, false),
            ("n2", Some("role"), "", control_plane.clone(), true, true),
            ("n2", Some("role"), "", json!({}), true, true),
            // Those of network interfaces have no node of another resource group.
            ("n2", None, "", other_group.clone(), true, false),
            ("n2", None, "third", other_group.clone(), true, false),
            ("n2", None, "other", other_group.clone(), true, true),
            ("n2", None, "other", json!({}), true, true),
        ] {
            let own = Node {
                control_plane: own_role,
                labels: [("kubernetes.azure.com/resource-group".to_owned(), own_group.to_owned())].into(),
                ..Node::default()
            };
            let labels = labels_of_all.clone();
            let service = tower::service_fn(move |request| answer(labels.clone(), request));
            let reader = OtherNodesReader {
                client: Client::new(service, "default"),
                own_name: own_name.to_owned(),
                own: watch::Sender::new(fixtures::report(own)).subscribe(),
                rules: SignalSettings::default().health(),
                relies_on_signalled,
                clock: Clock::System,
                nodes: Mutex::default(),
            };
            let others = reader.service(&web(), None, 0).await.unwrap().others;
            let found = (others.with_earlier_name.is_some(), others.own_is_long_out);
            let what = format!("{own_name} {own_role:?} {own_group} {labels_of_all} {relies_on_signalled}");
            assert_eq!(found, (expected, expected), "{what}");
        }
    }

    #[test]
    fn nodes_are_read_in_a_bounded_order_that_reaches_all() {
        let names =
            |numbers: std::ops::Range<u32>| numbers.map(|number| format!("n{number:03}")).collect::<BTreeSet<_>>();
        assert_eq!(candidates(names(0..3), "n001", Some("n002"), 7), ["n002", "n000"]);
        assert_eq!(candidates(names(0..2), "n001", Some("gone"), 0), ["n000"]);
        assert!(candidates(names(1..2), "n001", None, 0).is_empty());
        let mut read = BTreeSet::new();
        for round in 0..7 {
            let chosen = candidates(names(0..100), "own", None, round);
            assert_eq!(chosen.len(), 2 * MAX_NODES, "{round}");
            assert_eq!(chosen[0], "n000", "{round}");
            read.extend(chosen);
        }
        assert_eq!(read, names(0..100));
    }
}
