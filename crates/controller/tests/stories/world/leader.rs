//! A leader in the test's own process, which can be stopped and killed.

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_controller::admin_state::{
    self, ClusterConnection, ClusterTarget, Policy, STALE_NODES_TIMEOUT, TargetSource,
};
use headgate_controller::local_service;
use headgate_controller::other_nodes::OtherNodes;
use headgate_controller::pool::{ListScope, node_store};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReader, NodeReport, SignalRules};
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term};
use headgate_kubernetes::{
    NodeIntents, NodeWriteMetrics, NodeWriter, ServiceStore, WatchErrorCounter, WatchReporter, service_store,
};
use headgate_test_kubernetes::event_sink;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

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
    task: JoinHandle<()>,
    pub(crate) registry: Registry,
    /// The errors of the terms whose work failed.
    pub(crate) failures: Arc<Mutex<Vec<String>>>,
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
        let report = NodeReport::initial(None, &SignalRules::default(), world.clock.now());
        let reports = watch::Sender::new(report);
        let elector = LeaderElector::new(headgate_kubernetes::leader::LeaderElectionConfig {
            client: client.clone(),
            lease: LeaseName::default(),
            identity: name.to_owned(),
            placement: CandidatePlacement::Replicas,
            reports: reports.subscribe(),
            metrics: LeaderMetrics::default(),
            clock: world.clock.clone(),
        });
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
        let watched = {
            let (client, clock, events) = (client.clone(), world.clock.clone(), events.clone());
            let errors = metrics.watch_errors();
            move || {
                let reporter = WatchReporter::new("nodes", errors.clone(), clock.clone());
                node_store(&client, reporter.with_events(Some(events.clone())), reader.clone())
            }
        };
        let services = services(client.clone(), world.clock.clone(), metrics.watch_errors());
        let context = admin_state::WorkContext {
            events: events.clone(),
            client,
            nodes: watched().0,
            services: services().0,
            policy,
            guard: world.guard.clone(),
            list_failure_timeout: world.list_failure_timeout,
            stale_nodes_timeout: STALE_NODES_TIMEOUT,
            node_name: name.to_owned(),
            metrics,
            local_pools: world.local_pools_settings,
            local_pools_metrics: local_service::Metrics::register(&mut registry),
            lock_metrics: LockMetrics::register(&mut registry),
            clock: world.clock.clone(),
            preempt_events: None,
            traffic: world.traffic.clone(),
            marker: world
                .marker
                .then(|| OtherNodes::new(events, CandidatePlacement::Replicas)),
            node_intents: NodeIntents::default(),
        };
        let node_writes = NodeWriteMetrics::register(&mut registry);
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let failures = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&failures);
        let task = tokio::spawn(async move {
            let _reports = reports;
            let work = move |term: Term| {
                let (noted, source, mut context) = (Arc::clone(&noted), source.clone(), context.clone());
                context.node_intents = NodeIntents::default();
                let (nodes, watch_nodes) = watched();
                context.nodes = nodes;
                let (services, watch_services) = services();
                context.services = services;
                let writer =
                    NodeWriter::new(context.client.clone(), node_writes.clone(), context.clock.clone()).in_term(&term);
                let run_writer = writer.run(context.node_intents.clone());
                async move {
                    let outcome = tokio::select! {
                        outcome = admin_state::run(term, &source, context) => outcome,
                        () = run_writer => unreachable!("it never ends"),
                        () = watch_nodes => unreachable!("it never ends"),
                        () = watch_services => unreachable!("it never ends"),
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
            task,
            registry,
            failures,
        }
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

    pub(crate) fn metrics(&self) -> String {
        headgate_core::telemetry::encode_metrics(&self.registry, headgate_core::telemetry::MetricsFormat::OpenMetrics)
            .unwrap()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The Services of each term, and their watch.
fn services(
    client: Client,
    clock: Clock,
    errors: WatchErrorCounter,
) -> impl Fn() -> (ServiceStore, BoxFuture<'static, ()>) {
    move || {
        let reporter = WatchReporter::new("services", errors.clone(), clock.clone());
        let (store, watch) = service_store(&client, reporter);
        (store, watch.boxed())
    }
}
