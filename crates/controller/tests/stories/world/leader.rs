//! A leader in the test's own process, which can be stopped and killed.

use std::sync::{Arc, Mutex};

use headgate_controller::admin_state::{self, Policy};
use headgate_kubernetes::ClusterEventRecorder;
use headgate_leader::{CandidatePlacement, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term};
use headgate_node::DEFAULT_SIGNAL_TAINTS;
use headgate_node::NodeReport;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Spy, World};

/// A process that may lead.
pub(crate) struct Leader {
    stop: CancellationToken,
    pub(crate) terms: watch::Receiver<Option<Term>>,
    task: JoinHandle<()>,
    pub(crate) registry: Registry,
    /// Why its terms' work failed.
    pub(crate) failures: Arc<Mutex<Vec<String>>>,
}

impl Leader {
    /// One that begins now, with its own way to the API.
    pub(crate) async fn start(world: &World, client: Client, name: &str, policy: Policy) -> Self {
        Self::start_seen(world, client, name, policy, |_| Arc::new(|_| ())).await
    }

    /// One whose requests to ARM are seen by this, which is given its terms.
    pub(crate) async fn start_seen(
        world: &World,
        client: Client,
        name: &str,
        policy: Policy,
        spy: impl FnOnce(watch::Receiver<Option<Term>>) -> Spy,
    ) -> Self {
        let mut registry = Registry::default();
        let report = NodeReport::initial(None, &[], world.clock.now());
        let reports = watch::Sender::new(report);
        let elector = LeaderElector::new(headgate_leader::LeaderElectionConfig {
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
        let reached = world.reached(arm.counted_in(headgate_azure::Metrics::register(&mut registry)));
        let parts = admin_state::Parts {
            events: ClusterEventRecorder::new(client.clone(), name.to_owned()),
            client,
            taint_keys: DEFAULT_SIGNAL_TAINTS.iter().map(ToString::to_string).collect(),
            policy,
            node_name: name.to_owned(),
            metrics: admin_state::Metrics::register(&mut registry),
            lock_metrics: LockMetrics::register(&mut registry),
            clock: world.clock.clone(),
        };
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let failures = Arc::<Mutex<Vec<String>>>::default();
        let (noted, out_of_reach) = (Arc::clone(&failures), world.out_of_reach);
        let task = tokio::spawn(async move {
            let _reports = reports;
            let work = move |term: Term| {
                let (noted, reached, parts) = (Arc::clone(&noted), reached.clone(), parts.clone());
                async move {
                    let outcome = match out_of_reach {
                        Some(why) => {
                            admin_state::not_begun(&term, &parts, why).await;
                            Err(why.to_owned())
                        }
                        None => admin_state::run(term, reached, parts)
                            .await
                            .map_err(|error| error.to_string()),
                    };
                    if let Err(error) = &outcome {
                        noted.lock().unwrap().push(error.clone());
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

    /// SIGKILL.
    pub(crate) fn kill(&self) {
        self.task.abort();
    }

    /// SIGTERM, and the end.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
    }

    pub(crate) fn metrics(&self) -> String {
        headgate_telemetry::encode_metrics(&self.registry, headgate_telemetry::MetricsFormat::OpenMetrics).unwrap()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.kill();
    }
}
