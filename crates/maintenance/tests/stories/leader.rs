//! A process that stands for election and runs the controllers in its terms.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{NodeDetail, NodeReader};
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElectionConfig, LeaderElector, LeaderMetrics, Term};
use headgate_kubernetes::{NodeWriteMetrics, TermAccess, TermStores, WatchReporter};
use headgate_maintenance::automatic::AutomaticMaintenances;
use headgate_maintenance::controller::{LoadBalancerSource, MaintenanceContext, Metrics, run};
use headgate_test_kubernetes::event_sink;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// What such a process has.
pub(crate) struct Candidate {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) leader_metrics: LeaderMetrics,
    pub(crate) node_writes: NodeWriteMetrics,
    pub(crate) load_balancers: LoadBalancerSource,
    /// From the beginning of a term to its first read of the load balancers.
    pub(crate) first_read_after: Duration,
    pub(crate) automatic: AutomaticMaintenances,
}

impl Candidate {
    /// Starts it; gives its task and its terms.
    pub(crate) fn start(self) -> (JoinHandle<()>, watch::Receiver<Option<Term>>) {
        let Self {
            client,
            clock,
            metrics,
            node_writes,
            ..
        } = self;
        let placement = CandidatePlacement::Replicas;
        let elector = LeaderElector::new(LeaderElectionConfig {
            metrics: self.leader_metrics,
            ..LeaderElectionConfig::new(client.clone(), self.name.clone(), placement, clock.clone())
        });
        let terms = elector.terms();
        let events = event_sink(client.clone(), &self.name);
        let (load_balancers, automatic) = (self.load_balancers, self.automatic);
        let first_read_after = self.first_read_after;
        let task = tokio::spawn(async move {
            let work = move |term: Term| {
                let reader = NodeReader {
                    detail: NodeDetail::MaintenanceByProbes,
                    ..NodeReader::default()
                };
                let reporter = |resource| WatchReporter::new(resource, metrics.watch_errors(), clock.clone());
                let access = TermAccess {
                    client: client.clone(),
                    clock: clock.clone(),
                    read_node: move |node| reader.read(node),
                    node_reporter: reporter("nodes"),
                    service_reporter: reporter("services"),
                    node_writes: node_writes.clone(),
                };
                let (stores, run_stores) = term.stores(access);
                let TermStores {
                    nodes,
                    services,
                    intents,
                } = stores;
                let (load_balancers, run_reads) = reads_of_term(&load_balancers, first_read_after);
                let context = MaintenanceContext {
                    events: events.clone(),
                    client: client.clone(),
                    nodes,
                    services,
                    node_intents: intents,
                    metrics: metrics.clone(),
                    clock: clock.clone(),
                    load_balancers,
                    max_concurrent_nodes: None,
                    automatic: automatic.clone(),
                    pauses_upgrades: false,
                };
                async move {
                    let handed_over = term.clone();
                    tokio::select! {
                        () = run(term, context) => {}
                        () = run_stores => {}
                        () = run_reads => {}
                        () = handed_over.handover_requested() => {}
                    }
                    Ok::<(), String>(())
                }
            };
            elector.run(CancellationToken::new(), work).await;
        });
        (task, terms)
    }
}

/// What a term knows of the load balancers, which is nothing before its first read, and the task that reads.
fn reads_of_term(
    source: &LoadBalancerSource,
    first_after: Duration,
) -> (LoadBalancerSource, impl Future<Output = ()> + use<>) {
    let (sender, own) = watch::channel(Arc::default());
    let (of_term, reads) = match source {
        _ if first_after.is_zero() => (source.clone(), None),
        LoadBalancerSource::Probes => (LoadBalancerSource::Probes, None),
        LoadBalancerSource::Reads(reads) => (LoadBalancerSource::Reads(own), Some(reads.clone())),
    };
    let read = async move {
        let Some(mut reads) = reads else {
            return pending().await;
        };
        sleep(first_after).await;
        loop {
            sender.send_replace(reads.borrow_and_update().clone());
            if reads.changed().await.is_err() {
                return;
            }
        }
    };
    (of_term, read)
}
