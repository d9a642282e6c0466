//! Publishes the marker of the own Node from failed probes, where settings say that no leader manages Azure.
//!
//! Invariants: the condition is `True` only while the node has a signal, and after the configured number of probes was answered with 503.
//! A Node that has neither a signal nor the condition is never written. The counts of deleted Services are forgotten. `failed_probes`
//! counts, `headgate_kubernetes::MarkerState` says when it is written.

use std::num::NonZeroU32;
use std::time::Duration;

use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_core::node::{MarkerFact, NodeObjectState, NodeReport};
use headgate_kubernetes::FieldIntents;
use headgate_kubernetes::MarkerState;
use tokio::time::{Instant, sleep};

use super::failed_probes::{FailedProbes, LocalServices, PROBES_FAILED};
use super::metrics::Metrics;
use super::services::KeptServicesView;
use super::verdict::VerdictInputs;

/// Time between two looks at the counts while the node has a signal.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The same while it has none: the counts of deleted Services are forgotten.
const FORGET_INTERVAL: Duration = Duration::from_mins(5);
/// From the start of the process: how long a `True` of the process before stays as it is while the answers of this one are not known. With
/// the interval of confirmations it is less than the time for which one counts.
const ANSWERS_KNOWN_TIMEOUT: Duration = Duration::from_mins(1);

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
            let may_wait = self.clock.now().mono < started_at + ANSWERS_KNOWN_TIMEOUT;
            let pause = if probes.is_none() && !may_wait {
                FORGET_INTERVAL
            } else {
                COUNT_INTERVAL
            };
            tokio::select! {
                () = changed(&mut self.inputs.node) => {}
                () = changed(&mut self.inputs.notices) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// What the condition should say; `None` if the Node is not known or needs none, or if the condition stays as it is for now.
    fn state(&mut self, probes: &mut Option<FailedProbes>, started_at: Instant) -> Option<MarkerState> {
        let report = self.inputs.node.borrow_and_update().clone();
        let has_notice = !self.inputs.notices.borrow_and_update().is_empty();
        let mut local_services = self.local_services();
        let healthz = self.metrics.healthz.counts();
        let has_signal = !report.signals().is_empty() || has_notice;
        if !has_signal {
            *probes = None;
        }
        let (uid, shown) = known_node(&report)?;
        if !has_signal {
            return shown.is_some().then(|| MarkerState::without_signal(uid, shown));
        }
        let is_out = shown
            .as_ref()
            .is_some_and(|shown| shown.is_out() && shown.reason == PROBES_FAILED);
        let now = self.clock.now();
        if is_out
            && probes.is_none()
            && let Some(services) = &self.services
        {
            let has_passed = healthz.ok > 0 || services.answers.has_ok();
            if !has_passed && !services.are_known(now) && now.mono < started_at + ANSWERS_KNOWN_TIMEOUT {
                return None;
            }
            services.adopt_answers(now);
            local_services = self.local_services();
        }
        let probes = probes.get_or_insert_with(|| {
            let shares_ports = self.services.as_ref().is_some_and(|services| services.ports.is_none());
            FailedProbes::new(self.required, healthz, &local_services, is_out)
                .started_at(started_at)
                .sharing_ports(shares_ports)
        });
        let wanted = probes.update(healthz, &local_services, now.mono);
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
    use std::sync::Arc;

    use headgate_core::node::{MarkerStatus, Node};
    use headgate_core::service::NamespacedName;
    use headgate_kubernetes::{NodeField, NodeIntents};
    use jiff::Timestamp;
    use prometheus_client::registry::Registry;
    use tokio::sync::watch;

    use super::super::fixtures::{self, Channels, MAINTENANCE, table, tainted, web};
    use super::super::services::DrainReads;
    use super::*;

    /// The machine is about to end.
    const ENDS: &str = "node.kubernetes.io/out-of-service";

    /// The marker of a node, and what it is made from.
    struct Scene {
        marker: ProbesMarker,
        channels: Channels,
        probes: Option<FailedProbes>,
        started_at: Instant,
    }

    impl Scene {
        /// An agent that has just started.
        fn start() -> Self {
            let (clock, channels) = (Clock::System, Channels::default());
            let last_change = watch::Sender::new(None).subscribe();
            let metrics = Metrics::register(&mut Registry::default(), channels.inputs(), last_change, clock.clone());
            let marker = ProbesMarker {
                node_name: "n".to_owned(),
                required: NonZeroU32::MIN,
                inputs: channels.inputs(),
                metrics,
                services: Some(channels.kept_services(None)),
                clock,
            };
            Self {
                marker,
                channels,
                probes: None,
                started_at: Instant::now(),
            }
        }

        /// The watch observes the Node with this taint, and the marker of this status if it has one.
        fn observe(&self, taint: &str, marker: Option<MarkerStatus>) {
            let node = Node {
                marker: marker.map(|status| MarkerFact {
                    status,
                    reason: PROBES_FAILED.to_owned(),
                    since: Some(Timestamp::now() - Duration::from_mins(1)),
                    ..MarkerFact::default()
                }),
                ..tainted(&[taint])
            };
            self.channels.node.send_replace(fixtures::report(node));
        }

        /// The Services, and each one's endpoints here.
        fn list(&self, services: &[(&str, u32)]) {
            self.channels.tables.send_replace(Some(table(services)));
        }

        /// A probe of the Service `web` is answered.
        fn answer(&self, is_ok: bool) {
            self.channels.answers.count(&web(), is_ok, Instant::now());
        }

        /// What the marker should say a second later; `None` if it stays as it is.
        async fn wanted(&mut self) -> Option<&'static str> {
            sleep(COUNT_INTERVAL).await;
            let state = self.marker.state(&mut self.probes, self.started_at)?;
            Some(state.wanted.status.as_str())
        }
    }

    const WEB: &[(&str, u32)] = &[("web", 1)];

    #[tokio::test(start_paused = true)]
    async fn a_restarted_agent_leaves_a_true_marker_until_its_answers_are_known() {
        for has_other_signal in [false, true] {
            leaves_a_true_marker(has_other_signal).await;
        }
    }

    /// Where the other node that serves has no signal, or has one and an earlier name.
    async fn leaves_a_true_marker(has_other_signal: bool) {
        let mut scene = Scene::start();
        assert_eq!(scene.wanted().await, None, "no Node");
        scene.observe(MAINTENANCE, Some(MarkerStatus::True));
        assert_eq!(scene.wanted().await, None, "no Services");
        scene.list(WEB);
        assert_eq!(scene.wanted().await, None, "no other nodes");
        let read = |scene: &Scene| {
            let reads = DrainReads::example(
                &scene.channels.node.borrow(),
                &web(),
                has_other_signal,
                Clock::System.now(),
            );
            scene.channels.reads.send_replace(Some(Arc::new(reads)));
        };
        read(&scene);
        // Its load balancer may have left, and asks this process nothing.
        assert_eq!(scene.wanted().await, Some("True"));
        sleep(2 * ANSWERS_KNOWN_TIMEOUT).await;
        read(&scene);
        assert_eq!(scene.wanted().await, Some("True"));
        scene.answer(true);
        assert_eq!(scene.wanted().await, Some("False"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_agent_that_learns_nothing_takes_a_true_marker_back() {
        let mut scene = Scene::start();
        scene.observe(MAINTENANCE, Some(MarkerStatus::True));
        let mut kept = 0;
        while scene.wanted().await.is_none() {
            kept += 1;
        }
        assert_eq!(COUNT_INTERVAL * (kept + 1), ANSWERS_KNOWN_TIMEOUT);
    }

    /// A load balancer may have taken the node back.
    #[tokio::test(start_paused = true)]
    async fn a_restarted_agent_that_has_answered_200_takes_a_true_marker_back_at_once() {
        for is_healthz in [true, false] {
            let mut scene = Scene::start();
            scene.observe(MAINTENANCE, Some(MarkerStatus::True));
            scene.list(WEB);
            assert_eq!(scene.wanted().await, None);
            if is_healthz {
                scene.marker.metrics.healthz.increment(true);
            } else {
                scene.answer(true);
            }
            let found = scene.wanted().await;
            assert_eq!(found, Some("False"), "{is_healthz}");
        }
    }

    /// It is the work of a process that has not seen a Service, or of nobody.
    #[tokio::test(start_paused = true)]
    async fn only_what_the_process_before_had_seen_counts_as_out() {
        let mut scene = Scene::start();
        scene.observe(ENDS, Some(MarkerStatus::True));
        scene.list(&[]);
        assert_eq!(scene.wanted().await, Some("True"));
        scene.list(WEB);
        assert_eq!(scene.wanted().await, Some("False"), "new here");
        let mut scene = Scene::start();
        scene.observe(ENDS, Some(MarkerStatus::False));
        scene.list(WEB);
        scene.marker.metrics.healthz.increment(false);
        for _ in 0..2 {
            assert_eq!(scene.wanted().await, Some("False"));
            scene.marker.metrics.healthz.increment(false);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_about_a_service_is_no_proof_that_its_load_balancer_asks_here() {
        for (has_own_ports, expected) in [(false, "False"), (true, "True")] {
            let mut scene = Scene::start();
            scene.marker.required = NonZeroU32::new(2).unwrap();
            if let Some(services) = scene.marker.services.as_mut().filter(|_| has_own_ports) {
                services.ports = Some(watch::Sender::default().subscribe());
            }
            scene.observe(ENDS, None);
            scene.list(WEB);
            for _ in 0..4 {
                assert_eq!(scene.wanted().await, Some("False"));
                scene.marker.metrics.healthz.increment(false);
            }
            scene.answer(false);
            assert_eq!(scene.wanted().await, Some("False"));
            sleep(Duration::from_mins(10)).await;
            assert_eq!(scene.wanted().await, Some(expected), "{has_own_ports}");
            scene.answer(false);
            assert_eq!(scene.wanted().await, Some("True"));
            sleep(Duration::from_mins(10)).await;
            assert_eq!(scene.wanted().await, Some("True"), "it has left");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_about_deleted_services_are_forgotten_without_a_signal() {
        let Scene { marker, channels, .. } = Scene::start();
        let list = |services: &[(&str, u32)]| channels.tables.send_replace(Some(table(services)));
        let running = tokio::spawn(marker.run(NodeIntents::default().field(NodeField::Marker)));
        for number in 0..100 {
            let [name, next] = [number, number + 1].map(|number| format!("service-{number}"));
            list(&[(&name, 0), (&next, 0)]);
            channels
                .answers
                .count(&NamespacedName::new("default", &name), false, Instant::now());
            sleep(10 * COUNT_INTERVAL).await;
        }
        // Those of one interval, and the two of the table.
        assert!(channels.answers.len() <= 32, "{}", channels.answers.len());
        list(&[]);
        sleep(FORGET_INTERVAL + COUNT_INTERVAL).await;
        assert_eq!(channels.answers.len(), 0);
        running.abort();
    }
}
