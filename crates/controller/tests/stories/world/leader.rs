//! A leader in the test's own process, which can be stopped and killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use headgate_controller::admin_state::{
    self, ClusterConnection, ClusterTarget, Policy, STALE_NODES_TIMEOUT, TargetSource,
};
use headgate_controller::local_pools;
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::{ListScope, read_node};
use headgate_controller::preempt_events::{self, PreemptEvents};
use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeObject, NodeReader};
use headgate_kubernetes::leader::{
    CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaderMetrics, LockMetrics, Term,
};
use headgate_kubernetes::{EventSink, NodeWriteMetrics, TermAccess, TermStores, WatchReporter};
use headgate_test_kubernetes::{event_sink, series_value};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Spy, World};

/// The world's load balancers, or why they cannot be reached.
#[derive(Clone)]
struct WorldTarget {
    target: ClusterTarget,
    unreachable: Option<&'static str>,
    reconfigured: watch::Receiver<Option<ListScope>>,
}

impl TargetSource for WorldTarget {
    type Error = &'static str;

    async fn connect(&self) -> Result<ClusterConnection, &'static str> {
        if let Some(unreachable) = self.unreachable {
            return Err(unreachable);
        }
        let (mut target, mut reconfigured) = (self.target.clone(), self.reconfigured.clone());
        if let Some(scope) = reconfigured.borrow_and_update().clone() {
            target.scope = scope;
        }
        let config_changed = async move {
            if reconfigured.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        Ok(ClusterConnection {
            target,
            config_changed: config_changed.boxed(),
        })
    }
}

/// A process that may lead.
pub(crate) struct Leader {
    stop: CancellationToken,
    pub(crate) terms: watch::Receiver<Option<Term>>,
    task: AbortOnDropHandle<()>,
    pub(crate) registry: Registry,
    /// The errors of the terms whose work failed.
    pub(crate) failures: Arc<Mutex<Vec<String>>>,
    /// Whether the story wants such terms.
    may_fail: AtomicBool,
}

/// No term fails unless the story wants it, or the API server is away for longer than the ledger is tried to be read: another would lead,
/// and the story would end as if nothing had happened.
impl Drop for Leader {
    fn drop(&mut self) {
        if self.may_fail.load(Ordering::Relaxed) || std::thread::panicking() {
            return;
        }
        let errors = self.failures.lock().unwrap().clone();
        let is_away = |error: &&String| error.contains("could not be read") && error.contains("connection refused");
        let away = errors.iter().filter(is_away).count();
        for (reason, allowed) in [("error", away), ("returned", 0), ("panic", 0)] {
            let series = format!("headgate_leader_failed_terms_total{{reason=\"{reason}\"}}");
            let failed: usize = series_value(&self.registry, &series);
            assert!(failed <= allowed, "{failed} terms failed: {reason}, {errors:?}");
        }
    }
}

impl Leader {
    /// Starts a candidate with a client of its own.
    pub(crate) async fn start(world: &World, client: Client, name: &str, policy: Policy) -> Self {
        Self::start_with_spy(world, client, name, policy, |_| Arc::new(|_| ())).await
    }

    /// The same; `spy` makes the observer of its requests to ARM from its terms.
    pub(crate) async fn start_with_spy(
        world: &World,
        client: Client,
        name: &str,
        policy: Policy,
        spy: impl FnOnce(watch::Receiver<Option<Term>>) -> Spy,
    ) -> Self {
        let mut registry = Registry::default();
        let placement = CandidatePlacement::Replicas;
        let config = LeaderElectionConfig {
            metrics: LeaderMetrics::register(&mut registry),
            ..LeaderElectionConfig::new(client.clone(), name.to_owned(), placement, world.clock.clone())
        };
        let elector = LeaderElector::new(config);
        let terms = elector.terms();
        let arm = world.arm(name, spy(terms.clone())).await;
        let source = WorldTarget {
            target: world.target(arm.with_metrics(headgate_azure::Metrics::register(&mut registry))),
            unreachable: world.arm_unreachable,
            reconfigured: world.reconfigured.subscribe(),
        };
        let events = event_sink(client.clone(), name);
        let metrics = admin_state::Metrics::register(&mut registry);
        let reader = NodeReader {
            rules: world.rules.clone(),
            health_rules: world.guard.health_rules.clone(),
            ..NodeReader::default()
        };
        let node_writes = NodeWriteMetrics::register(&mut registry);
        let access = {
            let (client, clock, events, metrics) =
                (client.clone(), world.clock.clone(), events.clone(), metrics.clone());
            move || term_access(&client, &clock, &events, &metrics, node_writes.clone(), reader.clone())
        };
        let context = {
            let (guard, node_name, clock) = (world.guard.clone(), name.to_owned(), world.clock.clone());
            let (local_pools_metrics, lock_metrics) = (
                local_pools::Metrics::register(&mut registry),
                LockMetrics::register(&mut registry),
            );
            let (local_pools_mode, traffic) = (world.local_pools_mode, world.traffic.clone());
            let list_failure_timeout = world.list_failure_timeout;
            let marker = world
                .marker
                .then(|| OtherNodes::new(events.clone(), CandidatePlacement::Replicas));
            let preempt_events = world.preempt_events.then(|| PreemptEvents {
                client: client.clone(),
                events: events.clone(),
                metrics: preempt_events::Metrics::register(&mut registry),
                clock: clock.clone(),
                other_nodes: OtherNodes::new(events.clone(), CandidatePlacement::Replicas),
            });
            move |stores: TermStores| admin_state::WorkContext {
                events: events.clone(),
                client: client.clone(),
                nodes: stores.nodes,
                services: stores.services,
                node_intents: stores.intents,
                policy,
                guard: guard.clone(),
                list_failure_timeout,
                stale_nodes_timeout: STALE_NODES_TIMEOUT,
                node_name: node_name.clone(),
                metrics: metrics.clone(),
                local_pools_mode,
                local_pools_metrics: local_pools_metrics.clone(),
                lock_metrics: lock_metrics.clone(),
                clock: clock.clone(),
                preempt_events: preempt_events.clone(),
                traffic: traffic.clone(),
                marker: marker.clone(),
            }
        };
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let failures = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&failures);
        let task = tokio::spawn(async move {
            let work = move |term: Term| {
                let (noted, source) = (Arc::clone(&noted), source.clone());
                let (stores, run_stores) = term.stores(access());
                let context = context(stores);
                async move {
                    let outcome = tokio::select! {
                        outcome = admin_state::run(term, &source, context) => outcome,
                        () = run_stores => unreachable!("it never ends"),
                    };
                    if let Err(error) = &outcome {
                        noted.lock().unwrap().push(error.to_string());
                    }
                    outcome
                }
            };
            elector.run(stopping, work).await;
        });
        Self {
            stop,
            terms,
            task: AbortOnDropHandle::new(task),
            registry,
            failures,
            may_fail: AtomicBool::new(false),
        }
    }

    /// Allows terms to fail in this story.
    pub(crate) fn allow_failed_terms(&self) {
        self.may_fail.store(true, Ordering::Relaxed);
    }

    /// Aborts it as SIGKILL does.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }

    /// Stops it as SIGTERM does, and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        series_value(&self.registry, name)
    }

    pub(crate) fn metrics(&self) -> String {
        headgate_core::telemetry::encode_metrics(&self.registry, headgate_core::telemetry::MetricsFormat::OpenMetrics)
            .unwrap()
    }
}

/// What each term reads and writes the cluster with.
fn term_access(
    client: &Client,
    clock: &Clock,
    events: &EventSink,
    metrics: &admin_state::Metrics,
    node_writes: NodeWriteMetrics,
    reader: NodeReader,
) -> TermAccess<impl Fn(NodeObject) -> Node + use<>> {
    let reporter = |resource| WatchReporter::new(resource, metrics.watch_errors(), clock.clone());
    TermAccess {
        client: client.clone(),
        clock: clock.clone(),
        read_node: move |node| read_node(node, &reader),
        node_reporter: reporter("nodes").with_events(Some(events.clone())),
        service_reporter: reporter("services"),
        node_writes,
    }
}
