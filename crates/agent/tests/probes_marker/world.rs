//! A Node on a fake API server, and an agent's watch of it, health answers and writer of the condition.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use headgate_agent::health::services::{KeptServicesView, ServiceDrains};
use headgate_agent::health::{Metrics, ProbesMarker, ProxyStatus, ServiceAnswers, VerdictInputs, router};
use headgate_agent::own_node::watch_own_node;
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReader, NodeReport, Signal, SignalSettings};
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use headgate_test_kubernetes::{ClientFaults, FakeApi};
use hyper::{Request, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::ServiceExt as _;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
const NODE: &str = "node-1";
const MARKER: &str = "headgate.dev/OutOfLoadBalancers";
const SIGNAL: &str = "ToBeDeletedByClusterAutoscaler";
pub(crate) const REQUIRED: u64 = 3;
/// How long an agent lists Services.
const LIST_TIME: Duration = Duration::from_secs(2);

type Notices = BTreeMap<Signal, Timestamp>;

/// A running agent, as far as the marker concerns it.
pub(crate) struct Agent {
    /// The connection to the API server.
    pub(crate) faults: ClientFaults,
    health: Router,
    tasks: JoinSet<()>,
    /// The writer stops when one of them is dropped.
    _senders: (watch::Sender<ProxyStatus>, watch::Sender<Notices>),
}

pub(crate) struct World {
    pub(crate) fake: FakeApi,
    clock: Clock,
    pub(crate) agent: Agent,
}

impl World {
    pub(crate) async fn start() -> Self {
        let fake = FakeApi::default();
        let nodes = Api::<Node>::all(fake.client().0);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap();
        let created = nodes.create(&PostParams::default(), &node).await.unwrap();
        // The API server ignores the status of a create.
        let metadata = created.metadata;
        let with_status = Node { metadata, ..node };
        nodes
            .replace_status(NODE, &PostParams::default(), &with_status)
            .await
            .unwrap();
        let clock = fake.clock();
        let agent = start_agent(&fake, &clock);
        sleep(5 * SECOND).await;
        Self { fake, clock, agent }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        self.fake.change::<Node>("", NODE, change);
    }

    pub(crate) fn set_signal(&self, has_signal: bool) {
        let taints = if has_signal {
            json!([{"key": SIGNAL, "effect": "NoSchedule"}])
        } else {
            json!([])
        };
        self.change(|node| node["spec"]["taints"] = taints);
    }

    /// Another writer sets the condition.
    pub(crate) fn overwrite(&self, status: &str) {
        let condition = json!({"type": MARKER, "status": status, "reason": "Other", "message": "m"});
        self.change(|node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|known| known["type"] != MARKER);
            conditions.push(condition);
        });
    }

    /// Status and reason of the condition; none if the Node has none.
    pub(crate) fn shown(&self) -> Option<(String, String)> {
        let node = self.fake.peek::<Node>("", NODE)?;
        let conditions = node.status?.conditions?;
        let condition = conditions.into_iter().find(|condition| condition.type_ == MARKER)?;
        Some((condition.status, condition.reason.unwrap_or_default()))
    }

    pub(crate) fn shows(&self, status: &str, reason: &str) -> bool {
        self.shown() == Some((status.to_owned(), reason.to_owned()))
    }

    /// A probe, as a load balancer sends it; returns whether it was answered with 200.
    pub(crate) async fn probe(&self) -> bool {
        let request = Request::get("/healthz").body(Body::empty()).unwrap();
        let response = self.agent.health.clone().oneshot(request).await.unwrap();
        response.status() == StatusCode::OK
    }

    /// As many failed probes as the condition needs, and no more.
    pub(crate) async fn fail_probes(&self) {
        for _ in 0..REQUIRED {
            assert!(!self.probe().await);
            sleep(2 * SECOND).await;
        }
        assert!(self.shows("True", "ProbesFailed"), "{:?}", self.shown());
    }

    pub(crate) fn status_writes(&self) -> usize {
        let requests = self.fake.requests();
        let writes = requests.iter().filter(|request| request.path.ends_with("/status"));
        writes.filter(|request| request.method == "PATCH").count()
    }

    pub(crate) fn restart_agent(&mut self) {
        self.agent.tasks.abort_all();
        self.agent = start_agent(&self.fake, &self.clock);
    }
}

fn start_agent(fake: &FakeApi, clock: &Clock) -> Agent {
    let (client, faults) = fake.client();
    let rules = SignalSettings::default().health();
    let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()));
    let proxy = watch::Sender::new(ProxyStatus::new(Duration::from_mins(1)));
    let notices = watch::Sender::new(Notices::new());
    let inputs = VerdictInputs {
        node: reports.subscribe(),
        proxy: proxy.subscribe(),
        notices: notices.subscribe(),
    };
    let mut registry = Registry::default();
    let last_change = watch::Sender::new(None).subscribe();
    let metrics = Metrics::register(&mut registry, inputs.clone(), last_change, clock.clone());
    let node_metrics = headgate_agent::own_node::Metrics::register(&mut registry);
    let reporter = node_metrics.watch_reporter(NODE, clock);
    // No Services, which are listed later than the Node.
    let tables = watch::Sender::new(None);
    let services = KeptServicesView {
        drains: ServiceDrains {
            inputs: inputs.clone(),
            reads: watch::Sender::new(None).subscribe(),
        },
        tables: tables.subscribe(),
        answers: ServiceAnswers::default(),
        ports: None,
    };
    let marker = ProbesMarker {
        node_name: NODE.to_owned(),
        required: NonZeroU32::new(u32::try_from(REQUIRED).unwrap()).unwrap(),
        inputs: inputs.clone(),
        metrics: metrics.clone(),
        services: Some(services),
        clock: clock.clone(),
    };
    let writer = NodeWriter::new(client.clone(), NodeWriteMetrics::register(&mut registry), clock.clone());
    let intents = NodeIntents::default();
    let mut tasks = JoinSet::new();
    let name = NODE.to_owned();
    tasks.spawn(watch_own_node(
        client,
        name,
        NodeReader::own(rules),
        reports,
        node_metrics,
        reporter,
        clock.clone(),
    ));
    tasks.spawn(async move {
        sleep(LIST_TIME).await;
        tables.send_replace(Some(Arc::default()));
    });
    tasks.spawn(marker.run(intents.field(NodeField::Marker)));
    tasks.spawn(writer.run(intents));
    Agent {
        faults,
        health: router(inputs, metrics, clock.clone()),
        tasks,
        _senders: (proxy, notices),
    }
}
