//! Concurrent writes of others to the Node. The tasks of the spot module run in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headgate_agent::spot::{EventsSnapshot, Timing};
use headgate_core::clock::Clock;
use headgate_core::node::{AzureNotice, NodeReport};
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use headgate_test_kubernetes::{control_plane, eventually};
use kube::Client;
use kube::client::Body;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;

use super::imds::{Fault, Imds, document, event};
use super::{LATER, OTHER, SOON, create, other_taint, our_taint, patch, state};

/// Starts the tasks of the spot module, with shorter times; they end with the test.
fn start_spot_tasks(name: &str, watch_client: Client, write_client: Client, imds: &Imds) {
    let clock = Clock::System;
    let mut registry = Registry::default();
    let reports = watch::Sender::new(NodeReport::initial(
        None,
        &headgate_core::node::SignalRules::default(),
        clock.now(),
    ));
    let (sender, snapshots) = watch::channel(EventsSnapshot::default());
    let metrics = headgate_agent::spot::Metrics::register(&mut registry, snapshots.clone());
    let node_metrics = headgate_agent::own_node::Metrics::register(
        &mut registry,
        reports.subscribe(),
        headgate_core::node::SignalRules::default(),
    );
    let (own, timing) = (
        reports.subscribe(),
        Timing {
            poll_interval: Duration::from_millis(50),
            grace: Duration::from_secs(2),
        },
    );
    let reporter = node_metrics.watch_reporter(name, &clock);
    tokio::spawn(headgate_agent::own_node::watch_own_node(
        watch_client,
        name.to_owned(),
        headgate_core::node::SignalRules::default(),
        reports,
        node_metrics,
        reporter,
        clock.clone(),
    ));
    let writer = NodeWriter::new(write_client, NodeWriteMetrics::register(&mut registry), clock.clone());
    let intents = NodeIntents::default();
    tokio::spawn(headgate_agent::spot::reconcile_taint(
        name.to_owned(),
        own.clone(),
        snapshots,
        intents.field(NodeField::DrainingTaint),
        clock.clone(),
    ));
    tokio::spawn(writer.run(intents));
    tokio::spawn(headgate_agent::spot::poll_imds(
        imds.address.to_string(),
        own,
        sender,
        [AzureNotice::Preempt].into(),
        timing,
        metrics,
        clock,
    ));
}

#[tokio::test]
async fn concurrent_writes_to_the_node_are_preserved() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-conflict").await;
    // Another write makes each of the first reads stale.
    let (reads, writes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (admin, counted) = (client.clone(), (Arc::clone(&reads), Arc::clone(&writes)));
    let service = tower::service_fn(move |request: hyper::Request<Body>| {
        let (admin, (reads, writes)) = (admin.clone(), counted.clone());
        async move {
            let reading = request.method() == "GET";
            if !reading {
                // Before its effect can be seen.
                writes.fetch_add(1, Ordering::SeqCst);
            }
            let response = admin.send(request).await?;
            if reading {
                let number = reads.fetch_add(1, Ordering::SeqCst);
                if number < 3 {
                    let taints = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"},
                        {"key": format!("example.com/new-{number}"), "effect": "NoSchedule"}]);
                    patch(&admin, "spot-conflict", json!({"spec": {"taints": taints}})).await;
                }
            }
            Ok::<_, kube::Error>(response)
        }
    });
    start_spot_tasks("spot-conflict", client.clone(), Client::new(service, "default"), &imds);
    imds.set(Fault::None(document(
        2,
        &[event("a", "Preempt", LATER, &["spot-conflict_3"])],
    )));
    let want = [other_taint(), "example.com/new-2=:NoSchedule".to_owned(), our_taint()];
    eventually(SOON, "tainted", async || {
        let (taints, record) = state(&client, "spot-conflict").await;
        if taints == want && record.is_some() {
            Ok(())
        } else {
            Err(format!("{taints:?} {record:?}"))
        }
    })
    .await;
    // After a refused write a read shows that the Node has changed; it made a second one stale, too.
    assert_eq!((reads.load(Ordering::SeqCst), writes.load(Ordering::SeqCst)), (5, 3));
}
