//! Tells people with `kubectl` which Services' ports cannot be opened.

use std::collections::BTreeMap;

use headgate_kubernetes::{NodeEventRecorder, ServiceReference, WarningEvent};
use tokio::sync::watch;

use super::state::{PortKey, Ports};

/// More ports than these fail only for one common reason, such as a kube-proxy that has them all; each
/// node writing an event for each of thousands of Services would be the worse trouble.
const MOST: usize = 25;

/// Writes an event on each Service with a port that cannot be opened, once for each reason, for ever.
pub async fn tell_failures(mut states: watch::Receiver<Ports>, events: NodeEventRecorder, node: String) {
    let mut told: BTreeMap<PortKey, String> = BTreeMap::new();
    loop {
        let failed = states.borrow_and_update().failed.clone();
        told.retain(|key, _| failed.contains_key(key));
        for (key, failure) in failed {
            if told.get(&key) == Some(&failure.error) || told.len() >= MOST {
                continue;
            }
            let (service, port, error) = (&key.service, failure.port, &failure.error);
            let event = WarningEvent {
                reason: "FailedToStartServiceHealthcheck",
                action: "Listen",
                note: format!("node {node} failed to start healthcheck \"{service}\" on port {port}: {error}"),
            };
            let about = ServiceReference {
                namespace: &service.namespace,
                name: &service.name,
                uid: &failure.uid,
            };
            events.record_service_warning(event, about).await;
            told.insert(key, failure.error);
        }
        if states.changed().await.is_err() {
            // The ports are gone: the agent is stopping, and this task with it.
            return std::future::pending().await;
        }
    }
}
