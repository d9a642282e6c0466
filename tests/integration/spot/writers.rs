//! Writes to the Node: headgate's taint for a notice that begins and ends. The tasks of the spot module run in this
//! process.

use std::time::{Duration, Instant};

use headgate_agent::spot::{EventsSnapshot, Timing};
use headgate_core::clock::Clock;
use headgate_core::node::{AzureNotice, NodeReader, NodeReport, SignalRules};
use headgate_kubernetes::{NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use headgate_test_kubernetes::{control_plane, eventually, met, set_taints};
use kube::Client;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::imds::{Fault, Imds, document, event};
use super::{DRAINING, LATER, LATER_STILL, OTHER, SOON, create, state, tainted};

/// The tasks of the spot module with another grace, and polls so often that a test waits for them; dropping it ends them.
struct SpotTasks {
    snapshots: watch::Receiver<EventsSnapshot>,
    _tasks: JoinSet<()>,
}

impl SpotTasks {
    fn start(name: &str, client: Client, imds: &Imds, grace: Duration) -> Self {
        let clock = Clock::System;
        let mut registry = Registry::default();
        let reports = watch::Sender::new(NodeReport::initial(None, &SignalRules::default(), clock.now()));
        let (sender, snapshots) = watch::channel(EventsSnapshot::default());
        let metrics = headgate_agent::spot::Metrics::register(&mut registry, snapshots.clone());
        let node_metrics = headgate_agent::own_node::Metrics::register(&mut registry);
        let (own, timing) = (
            reports.subscribe(),
            Timing {
                poll_interval: Duration::from_millis(50),
                grace,
            },
        );
        let reporter = node_metrics.watch_reporter(name, &clock);
        let mut tasks = JoinSet::new();
        tasks.spawn(headgate_agent::own_node::watch_own_node(
            client.clone(),
            name.to_owned(),
            NodeReader::own(SignalRules::default()),
            reports,
            node_metrics,
            reporter,
            clock.clone(),
        ));
        let writer = NodeWriter::new(client, NodeWriteMetrics::register(&mut registry), clock.clone());
        let intents = NodeIntents::default();
        tasks.spawn(headgate_agent::spot::reconcile_taint(
            name.to_owned(),
            own.clone(),
            snapshots.clone(),
            intents.field(NodeField::DrainingTaint),
            clock.clone(),
        ));
        tasks.spawn(writer.run(intents));
        tasks.spawn(headgate_agent::spot::poll_imds(
            imds.address.to_string(),
            own,
            sender,
            [AzureNotice::Preempt].into(),
            timing,
            metrics,
            clock,
        ));
        Self {
            snapshots,
            _tasks: tasks,
        }
    }

    async fn signalled(&mut self, signalled: bool) {
        let waited = self
            .snapshots
            .wait_for(|snapshot| snapshot.signals().is_empty() != signalled);
        drop(tokio::time::timeout(SOON, waited).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_withdrawn_notice_removes_only_headgates_taint_after_the_grace_period() {
    let cluster = control_plane();
    let client = cluster.client();
    let imds = Imds::start().await;
    create(&client, "spot-gone").await;
    let mut spot_tasks = SpotTasks::start("spot-gone", client.clone(), &imds, 2 * SOON);
    let a = document(2, &[event("a", "Preempt", LATER, &["spot-gone_3"])]);
    imds.set(Fault::None(a.clone()));
    spot_tasks.signalled(true).await;
    tainted(&client, "spot-gone", true).await;

    // Within the grace period nothing changes.
    imds.set(Fault::None(document(3, &[])));
    imds.asked(2).await;
    imds.set(Fault::None(a.clone()));
    imds.asked(2).await;
    assert_eq!(spot_tasks.snapshots.borrow().signals().len(), 1);
    tainted(&client, "spot-gone", true).await;

    // After a restart, with a grace that can be waited for.
    drop(spot_tasks);
    let grace = Duration::from_secs(2);
    let mut spot_tasks = SpotTasks::start("spot-gone", client.clone(), &imds, grace);
    spot_tasks.signalled(true).await;
    let gone = Instant::now();
    imds.set(Fault::None(document(4, &[])));
    spot_tasks.signalled(false).await;
    assert!(gone.elapsed() >= grace, "{:?}", gone.elapsed());
    assert_eq!(tainted(&client, "spot-gone", false).await.tainted_at, None);

    // The same notice again is a signal but sets no taint.
    imds.set(Fault::None(a));
    spot_tasks.signalled(true).await;
    imds.asked(5).await;
    tainted(&client, "spot-gone", false).await;

    // A taint that another writer has set is not treated as headgate's, neither before the notice nor after.
    let theirs = json!([{"key": OTHER, "value": "v", "effect": "NoSchedule"},
        {"key": DRAINING, "value": "spot-eviction", "effect": "NoSchedule"}]);
    set_taints(&client, "spot-gone", theirs).await;
    imds.set(Fault::None(document(
        5,
        &[event("b", "Preempt", LATER_STILL, &["spot-gone_3"])],
    )));
    eventually(SOON, "the new notice is recorded", async || {
        let (_, record) = state(&client, "spot-gone").await;
        met(
            record.as_ref().is_some_and(|record| record.event_id == "b"),
            format!("{record:?}"),
        )
    })
    .await;
    imds.set(Fault::None(document(6, &[])));
    spot_tasks.signalled(false).await;
    imds.asked(5).await;
    assert_eq!(
        tainted(&client, "spot-gone", true).await.tainted_at,
        None,
        "theirs is left"
    );
}
