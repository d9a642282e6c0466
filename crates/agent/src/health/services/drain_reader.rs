//! Reads the other nodes of the Services with endpoints on this node, while the node has signals that may be taken back.
//!
//! At rest it reads nothing. A round lists the EndpointSlices of each such Service and gets the Nodes that they name, until one keeps
//! serving. Both come from storage and not from the API server's cache, as `drain` requires. The next round follows after 5 s, or when
//! a Service appears that was not read. A round that fails changes nothing: what was read before expires.

use headgate_core::service::{NamespacedName, SERVICE_NAME_LABEL};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeObject, NodeReader, SignalRules};
use headgate_kubernetes::{Decoded, split_list};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::failed_probes::ServiceAnswers;
use super::super::verdict::VerdictInputs;
use super::drain::{DrainReads, OtherNodes, OwnState, ServiceRead, Signals};
use super::index::ServiceTable;
use super::service_drains::own_state;
use super::slim_objects::{LABEL_SELECTOR, SlimEndpointSlice};

/// Time between two rounds: several fit into the validity of a read.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);
/// Time for one request, so that one without an answer leaves time for the next round.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The Nodes with the first names that are read for one Service in a round, and as many others, which change from round to round. It
/// bounds what a cordon of many nodes costs.
const MAX_NODES: usize = 16;
/// The interval in which answers about deleted Services are forgotten at rest.
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
    /// Those about Services that are gone are forgotten.
    pub answers: ServiceAnswers,
    /// Receives the reads.
    pub reads: watch::Sender<Option<Arc<DrainReads>>>,
    /// The clock of the own state.
    pub clock: Clock,
}

/// The Nodes that were read in one round; `None` for one that does not exist or cannot be decoded.
type NodesRead = BTreeMap<String, Option<Node>>;

impl DrainReader {
    /// Reads and publishes until the task is aborted; never ends by itself.
    pub async fn run(mut self) {
        let mut round = 0;
        let mut is_failing = false;
        loop {
            let (state, signals) = self.own();
            if state != OwnState::Signalled {
                self.reads.send_replace(None);
                if let Some(table) = &*self.tables.borrow() {
                    self.answers.retain(table);
                }
                // A hold ends without a change of the Node.
                let is_at_rest = state == OwnState::Eligible;
                let pause = if is_at_rest { FORGET_INTERVAL } else { ROUND_INTERVAL };
                self.wait(Instant::now() + pause, |_| false, |_| true).await;
                continue;
            }
            let known = self.reads.borrow().clone();
            let mut reads = match known.filter(|known| known.continues_with(&signals)) {
                Some(known) => DrainReads {
                    signals,
                    ..DrainReads::clone(&known)
                },
                None => DrainReads::new(signals, Instant::now()),
            };
            let next_round = Instant::now() + ROUND_INTERVAL;
            let outcome = self.read(&reads, round).await;
            if let Err(error) = &outcome
                && !is_failing
            {
                tracing::info!(
                    error,
                    "other nodes of Local Services not read; what was read last counts"
                );
            }
            is_failing = outcome.is_err();
            reads.services = outcome.unwrap_or(reads.services);
            round += 1;
            let reads = Arc::new(reads);
            self.reads.send_replace(Some(Arc::clone(&reads)));
            // A round that failed is repeated at its time, whatever changes.
            let is_read = |table: &ServiceTable| is_failing || reads.covers(table);
            self.wait(next_round, |signals| reads.continues_with(signals), is_read)
                .await;
        }
    }

    fn own(&mut self) -> (OwnState, Signals) {
        let state = own_state(&self.inputs, self.clock.now().mono);
        let signals = self.inputs.node.borrow_and_update().signals().clone();
        (state, signals)
    }

    /// Waits until a time, or until a change after which `continues` does not hold for the signals or `is_read` not for the Services.
    async fn wait(
        &mut self,
        until: Instant,
        continues: impl Fn(&Signals) -> bool,
        is_read: impl Fn(&ServiceTable) -> bool,
    ) {
        loop {
            let (changed, is_over) = tokio::select! {
                () = sleep_until(until) => return,
                changed = self.inputs.node.changed() => (changed, !continues(self.inputs.node.borrow_and_update().signals())),
                changed = self.tables.changed() => (changed, !self.tables.borrow_and_update().as_deref().is_none_or(&is_read)),
            };
            if changed.is_err() {
                // The sender was dropped: the process stops, and aborts this task.
                return std::future::pending().await;
            }
            if is_over {
                return;
            }
        }
    }

    /// One round over all Services with endpoints on this node.
    async fn read(&self, before: &DrainReads, round: usize) -> Result<BTreeMap<NamespacedName, ServiceRead>, String> {
        let started_at = Instant::now();
        let table = self.tables.borrow().clone();
        let here = table.iter().flat_map(|table| table.with_endpoints());
        let (mut nodes, mut services) = (NodesRead::new(), BTreeMap::new());
        for service in here {
            let known = before.services.get(&**service);
            let known = known.and_then(|known| known.others.without_signal.as_deref());
            let names = candidates(
                serving_nodes(&self.client, service).await?,
                &self.node_name,
                known,
                round,
            );
            let mut others = OtherNodes::default();
            for name in names {
                if !nodes.contains_key(&name) {
                    let node = node(&self.client, &self.rules, &name).await?;
                    nodes.insert(name.clone(), node);
                }
                if let Some(Some(node)) = nodes.get(&name) {
                    others.add(node, &self.node_name);
                }
                if others.without_signal.is_some() {
                    break;
                }
            }
            if !self.relies_on_signalled {
                others.with_earlier_name = None;
            }
            services.insert(NamespacedName::clone(service), ServiceRead { started_at, others });
        }
        Ok(services)
    }
}

/// The nodes with a ready endpoint of the Service.
async fn serving_nodes(client: &Client, service: &NamespacedName) -> Result<BTreeSet<String>, String> {
    let slices = Api::<Decoded<SlimEndpointSlice>>::namespaced(client.clone(), service.namespace());
    let of_service = ListParams::default().labels(&format!("{SERVICE_NAME_LABEL}={},{LABEL_SELECTOR}", service.name()));
    let listed = timeout(REQUEST_TIMEOUT, slices.list(&of_service)).await;
    let listed = listed.map_err(|_| no_answer())?.map_err(|error| error.to_string())?;
    // One that cannot be decoded shows no node, so this node is held back rather than let go; the watch reports it.
    let (slices, _) = split_list(listed);
    let names = slices.iter().flat_map(SlimEndpointSlice::serving_nodes);
    Ok(names.map(ToOwned::to_owned).collect())
}

/// The Node of this name; `None` for one that does not exist or cannot be decoded.
async fn node(client: &Client, rules: &SignalRules, name: &str) -> Result<Option<Node>, String> {
    let nodes = Api::<Decoded<NodeObject>>::all(client.clone());
    let reader = NodeReader {
        rules: rules.clone(),
        ..NodeReader::default()
    };
    match timeout(REQUEST_TIMEOUT, nodes.get_opt(name)).await {
        Err(_) => Err(no_answer()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(object)) => {
            let object = object.and_then(|object| object.into_object().ok());
            Ok(object.map(|object| reader.read(object)))
        }
    }
}

fn no_answer() -> String {
    format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())
}

/// The nodes to read, in this order: the one that is known to have no signal, those with the first names, and some of the rest.
fn candidates(mut serving: BTreeSet<String>, own_name: &str, known: Option<&str>, round: usize) -> Vec<String> {
    serving.remove(own_name);
    let known = known.and_then(|known| serving.take(known));
    let mut others: Vec<String> = serving.into_iter().collect();
    let mut rest = others.split_off(MAX_NODES.min(others.len()));
    if !rest.is_empty() {
        let start = round * MAX_NODES % rest.len();
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

    use headgate_core::node::{NodeReport, Taint};

    use super::super::super::proxy_status::ProxyStatus;
    use super::super::index::ServedService;
    use super::*;

    /// A time that a kube-apiserver stores and a `Timestamp` does not hold.
    const FAR: &str = "9999-12-31T23:59:59Z";

    fn slice(name: &str, metadata: &Value, node: &str) -> Value {
        let mut object = json!({"metadata": {"namespace": "default", "name": name}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": node}], "ports": [{"name": "", "port": 80}]});
        json_patch(&mut object["metadata"], metadata);
        object
    }

    fn json_patch(object: &mut Value, fields: &Value) {
        object
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
    }

    /// The API server of the odd objects; it fails for the Service `down`.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, io::Error> {
        let path = request.uri().path().to_owned();
        if request.uri().query().is_some_and(|query| query.contains("down")) {
            return Err(io::Error::other("refused"));
        }
        let body = if path.ends_with("/endpointslices") {
            let odd = json!({"creationTimestamp": FAR, "managedFields": [{"time": FAR, "fieldsV1": {}}]});
            json!({"kind": "EndpointSliceList", "metadata": {"resourceVersion": "7"}, "items": [
                slice("odd", &odd, "n2"),
                slice("broken", &json!({"labels": 7}), "n3"),
                slice("good", &json!({}), "n4"),
            ]})
        } else {
            json!({"kind": "Node", "metadata": {"name": "n2", "uid": "u", "creationTimestamp": FAR},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": FAR}]}})
        };
        Ok(Response::new(Body::from(body.to_string().into_bytes())))
    }

    #[tokio::test]
    async fn one_odd_object_makes_no_other_unreadable() {
        let client = Client::new(tower::service_fn(answer), "default");
        let names = serving_nodes(&client, &NamespacedName::new("default", "web"))
            .await
            .unwrap();
        assert_eq!(names, ["n2".to_owned(), "n4".to_owned()].into());
        let node = node(&client, &SignalRules::default(), "n2").await.unwrap().unwrap();
        let mut others = OtherNodes::default();
        others.add(&node, "n1");
        assert_eq!(others.without_signal.as_deref(), Some("n2"));
        let failed = serving_nodes(&client, &NamespacedName::new("default", "down")).await;
        assert!(failed.unwrap_err().contains("refused"));
    }

    /// A reader of a node with a signal over the API server `answer`, and what it reads and publishes.
    struct Reading {
        tables: watch::Sender<Option<Arc<ServiceTable>>>,
        reads: watch::Receiver<Option<Arc<DrainReads>>>,
        lists: Arc<AtomicUsize>,
        _inputs: (watch::Sender<NodeReport>, watch::Sender<ProxyStatus>),
    }

    impl Reading {
        fn start() -> Self {
            let (clock, rules) = (Clock::System, SignalRules::default_health());
            let drained = Node {
                name: "n1".into(),
                uid: "u".into(),
                taints: vec![Taint::new("headgate.dev/maintenance", "NoSchedule")],
                ..Node::default()
            };
            let report = NodeReport::initial(None, &rules, clock.now());
            let node = watch::Sender::new(report.with_node(drained.with_signals(&rules), clock.now()));
            let proxy = watch::Sender::new(ProxyStatus::new(Duration::from_mins(1)));
            let (tables, reads) = (watch::Sender::new(None), watch::Sender::new(None));
            let lists = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&lists);
            let service = tower::service_fn(move |request: Request<Body>| {
                let is_list = request.uri().path().ends_with("/endpointslices");
                counted.fetch_add(usize::from(is_list), Ordering::Relaxed);
                answer(request)
            });
            let reading = Self {
                tables: tables.clone(),
                reads: reads.subscribe(),
                lists,
                _inputs: (node.clone(), proxy.clone()),
            };
            let reader = DrainReader {
                client: Client::new(service, "default"),
                node_name: "n1".to_owned(),
                rules,
                relies_on_signalled: true,
                inputs: VerdictInputs {
                    node: node.subscribe(),
                    proxy: proxy.subscribe(),
                    notices: watch::Sender::default().subscribe(),
                },
                tables: tables.subscribe(),
                answers: ServiceAnswers::default(),
                reads,
                clock,
            };
            tokio::spawn(reader.run());
            reading
        }

        /// Publishes these Services of the namespace `default`, and waits for less than a round.
        async fn publish(&self, services: &[(&str, u32)]) {
            let services = services
                .iter()
                .map(|(name, endpoints)| (NamespacedName::new("default", name), ServedService::example(*endpoints)));
            self.tables.send_replace(Some(Arc::new(services.collect())));
            sleep(Duration::from_secs(1)).await;
        }

        fn read(&self) -> Vec<String> {
            let reads = self.reads.borrow();
            let services = reads.iter().flat_map(|reads| reads.services.keys());
            services.map(|service| service.name().to_owned()).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_appears_between_two_rounds_is_read_at_once() {
        let reading = Reading::start();
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
