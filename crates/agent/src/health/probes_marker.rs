//! Publishes the marker of the own Node from failed probes, where settings say that no leader manages Azure.
//!
//! Invariants: the condition is `True` only while the node has a signal, and after the configured number of probes was answered with 503.
//! A Node that has neither a signal nor the condition is never written. The counts of deleted Services are forgotten. `failed_probes`
//! counts, `headgate_kubernetes::MarkerState` says when it is written.

use std::num::NonZeroU32;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{MarkerFact, NodeObjectState, NodeReport};
use headgate_kubernetes::FieldIntents;
use headgate_kubernetes::MarkerState;
use tokio::time::{Instant, sleep};

use super::failed_probes::{FailedProbes, LocalServices};
use super::metrics::Metrics;
use super::services::KeptServicesView;
use super::verdict::VerdictInputs;

/// Time between two looks at the counts while the node has a signal.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The same while it has none: the counts of deleted Services are forgotten.
const FORGET_INTERVAL: Duration = Duration::from_mins(5);

/// What the marker by probes is written from.
#[derive(Debug)]
pub struct ProbesMarker {
    /// The name of the own Node.
    pub node_name: String,
    /// The probes in a row that must have been answered with 503: `outOfLoadBalancers.failedProbes`.
    pub required: NonZeroU32,
    /// The signals of the node.
    pub inputs: VerdictInputs,
    /// The counters of answers.
    pub metrics: Metrics,
    /// The Services whose probes this process answers; `None` if it answers none.
    pub services: Option<KeptServicesView>,
    /// The clock of the answers.
    pub clock: Clock,
}

impl ProbesMarker {
    /// Keeps the condition published until the task is aborted; never ends by itself.
    pub async fn run(mut self, intents: FieldIntents) {
        let mut probes: Option<FailedProbes> = None;
        let started_at = self.clock.now().mono;
        loop {
            let intent = self
                .state(&mut probes, started_at)
                .map(|state| (self.node_name.clone(), state.own_intent()));
            intents.publish(intent.into_iter().collect());
            let pause = if probes.is_none() {
                FORGET_INTERVAL
            } else {
                COUNT_INTERVAL
            };
            let is_running = tokio::select! {
                changed = self.inputs.node.changed() => changed.is_ok(),
                changed = self.inputs.notices.changed() => changed.is_ok(),
                () = sleep(pause) => true,
            };
            if !is_running {
                // A sender was dropped: the process stops, and aborts this task.
                return std::future::pending().await;
            }
        }
    }

    /// What the condition should say; `None` if the Node is not known, or needs none.
    fn state(&mut self, probes: &mut Option<FailedProbes>, started_at: Instant) -> Option<MarkerState> {
        let report = self.inputs.node.borrow_and_update().clone();
        let has_notice = !self.inputs.notices.borrow_and_update().is_empty();
        let local_services = self.local_services();
        let healthz = self.metrics.healthz_counts();
        let has_signal = !report.signals().is_empty() || has_notice;
        if !has_signal {
            *probes = None;
        }
        let (uid, shown) = known_node(&report)?;
        if !has_signal {
            return shown.is_some().then(|| MarkerState::without_signal(uid, shown));
        }
        let probes = probes.get_or_insert_with(|| {
            let is_out = shown
                .as_ref()
                .is_some_and(|shown| shown.is_out() && shown.reason == "ProbesFailed");
            FailedProbes::new(self.required, healthz, &local_services, is_out).started_at(started_at)
        });
        let wanted = probes.update(healthz, &local_services, self.clock.now().mono);
        Some(MarkerState::new(uid, wanted, shown))
    }

    fn local_services(&self) -> LocalServices {
        match &self.services {
            None => LocalServices::NotServed,
            Some(services) => {
                let table = services.tables.borrow().clone();
                table.map_or(LocalServices::NotListed, |table| {
                    services.answers.retain(&table);
                    LocalServices::Served(table, services.answers.clone(), services.kept(self.clock.now()))
                })
            }
        }
    }
}

/// The UID and the marker of the Node, if this process has observed it and it exists.
fn known_node(report: &NodeReport) -> Option<(String, Option<MarkerFact>)> {
    let is_present = report.object_state == NodeObjectState::Present;
    let node = report.node.as_ref().filter(|_| is_present)?;
    Some((node.uid.clone(), node.marker.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use headgate_core::node::SignalRules;
    use headgate_kubernetes::{NodeField, NodeIntents};
    use prometheus_client::registry::Registry;
    use tokio::sync::watch;

    use super::super::failed_probes::ServiceAnswers;
    use super::super::proxy_status::ProxyStatus;
    use super::super::services::{ServedService, ServiceDrains, ServiceTable};
    use super::*;
    use headgate_core::service::NamespacedName;

    fn table(services: std::ops::Range<u32>) -> Arc<ServiceTable> {
        let named = |number| NamespacedName::new("a", &format!("service-{number}"));
        let served = services.map(|number| (named(number), ServedService::example(0)));
        Arc::new(served.collect())
    }

    #[tokio::test(start_paused = true)]
    async fn answers_about_deleted_services_are_forgotten_without_a_signal() {
        let clock = Clock::System;
        let node = watch::Sender::new(NodeReport::initial(None, &SignalRules::default_health(), clock.now()));
        let proxy = watch::Sender::new(ProxyStatus::new(Duration::from_mins(1)));
        let notices = watch::Sender::new(BTreeMap::new());
        let inputs = VerdictInputs {
            node: node.subscribe(),
            proxy: proxy.subscribe(),
            notices: notices.subscribe(),
        };
        let last_change = watch::Sender::new(None).subscribe();
        let metrics = Metrics::register(&mut Registry::default(), inputs.clone(), last_change, clock);
        let (tables, answers) = (watch::Sender::new(None), ServiceAnswers::default());
        let services = KeptServicesView {
            drains: ServiceDrains {
                inputs: inputs.clone(),
                reads: watch::Sender::new(None).subscribe(),
            },
            tables: tables.subscribe(),
            answers: answers.clone(),
            ports: None,
        };
        let marker = ProbesMarker {
            node_name: "n".to_owned(),
            required: NonZeroU32::MIN,
            inputs,
            metrics,
            services: Some(services),
            clock: Clock::System,
        };
        let running = tokio::spawn(marker.run(NodeIntents::default().field(NodeField::Marker)));
        for number in 0..100 {
            tables.send_replace(Some(table(number..number + 2)));
            answers.count(
                &NamespacedName::new("a", &format!("service-{number}")),
                false,
                Instant::now(),
            );
            sleep(10 * COUNT_INTERVAL).await;
        }
        // Those of one interval, and the two of the table.
        assert!(answers.len() <= 32, "{}", answers.len());
        tables.send_replace(Some(table(0..0)));
        sleep(FORGET_INTERVAL + COUNT_INTERVAL).await;
        assert_eq!(answers.len(), 0);
        running.abort();
    }
}
