//! Kubernetes events and the log about Services whose health check node ports cannot be opened. The health thread, which opens them,
//! writes no log: it would wait where nobody reads standard error.

use std::collections::BTreeMap;

use headgate_core::changed;
use headgate_kubernetes::{EventKind, EventSink, service_reference};
use tokio::sync::watch;

use super::ports::{PortKey, PortStates, RETRY_INTERVAL};

/// Services with an event from one node. More failures than this have one common cause, such as a kube-proxy that has
/// the ports, and an event from each node about each of thousands of Services would overload the API server.
const MAX_FAILURE_EVENTS: usize = 25;

const NOT_STARTED: EventKind = EventKind::warning("FailedToStartServiceHealthcheck", "Listen");

/// Logs changes, and writes an event about each Service with a port that cannot be opened, once for each error, until
/// the task is aborted.
pub async fn publish_port_failures(mut states: watch::Receiver<PortStates>, events: EventSink, node_name: String) {
    let mut reported: BTreeMap<PortKey, String> = BTreeMap::new();
    let mut before = PortStates::default();
    loop {
        let after = states.borrow_and_update().clone();
        log_changes(&before, &after);
        let failed = after.failed.clone();
        before = after;
        reported.retain(|key, _| failed.contains_key(key));
        for (key, failure) in failed {
            if reported.get(&key) == Some(&failure.error) || reported.len() >= MAX_FAILURE_EVENTS {
                continue;
            }
            let (service, port, error) = (&key.service, failure.port, &failure.error);
            let note = format!("node {node_name} failed to start healthcheck \"{service}\" on port {port}: {error}");
            let about = service_reference(service.namespace(), service.name(), &failure.uid);
            events.record(about, NOT_STARTED, note);
            reported.insert(key, failure.error);
        }
        changed(&mut states).await;
    }
}

fn log_changes(before: &PortStates, after: &PortStates) {
    for (key, failure) in &after.failed {
        if before.failed.get(key).map(|known| &known.error) != Some(&failure.error) {
            let (service, port, error) = (&key.service, failure.port, &failure.error);
            tracing::warn!(%service, port, error, retry_in = ?RETRY_INTERVAL, "health check node port not opened");
        }
    }
    for key in before.failed.keys().filter(|key| after.open.contains_key(*key)) {
        tracing::info!(service = %key.service, "health check node port opened");
    }
}
