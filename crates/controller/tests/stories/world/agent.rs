//! The part of a node's agent that writes its Node: it makes the condition unknown, and delays the node's deletion.

use std::time::Duration;

use headgate_agent::own_node::{DeletionDelayMetrics, DeletionDelayTask, Metrics, delay_deletion, watch_own_node};
use headgate_core::clock::Clock;
use headgate_core::node::{MARKER_TTL, NodeReader, NodeReport, SignalRules};
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter, expire_marker};
use headgate_test_kubernetes::event_sink;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// Runs it; `timeout` is its setting `delayTermination.clusterAutoscaler`.
pub(crate) fn run_agent(
    client: Client,
    clock: &Clock,
    node: usize,
    rules: SignalRules,
    timeout: Option<Duration>,
) -> impl Future<Output = ()> + use<> {
    let (name, clock) = (format!("node-{node}"), clock.clone());
    let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()));
    let mut registry = Registry::default();
    let node_writes = NodeWriteMetrics::register(&mut registry);
    let writer = NodeWriter::new(client.clone(), node_writes, clock.clone());
    let intents = NodeIntents::default();
    let marker = intents.field(NodeField::Marker);
    let expire = expire_marker(name.clone(), MARKER_TTL, reports.subscribe(), marker, clock.clone());
    let metrics = Metrics::register(&mut registry);
    let reporter = metrics.watch_reporter(&name, &clock);
    let delay = delay_deletion(DeletionDelayTask {
        node_name: name.clone(),
        timeout,
        reports: reports.subscribe(),
        intents: intents.field(NodeField::DeletionDelay),
        events: event_sink(client.clone(), &name),
        metrics: DeletionDelayMetrics::register(&mut registry, reports.subscribe()),
        clock: clock.clone(),
    });
    let follow = watch_own_node(client, name, NodeReader::own(rules), reports, metrics, reporter, clock);
    async move {
        tokio::join!(follow, expire, delay, writer.run(intents));
    }
}
