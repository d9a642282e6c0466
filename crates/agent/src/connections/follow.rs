//! The task that has the connections through the own node counted while it has a signal, and publishes what follows.
//!
//! At rest there is no order, no Service is watched, and the counter waits. While the node has a signal, Services of type `LoadBalancer`
//! are watched; they and the Node make the order. What the counts say together is decided in `drained`.

use headgate_core::service::{NamespacedName, ServiceObject};
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::OptionFuture;
use headgate_core::clock::Clock;
use headgate_core::node::{CONNECTIONS_CONDITION, MarkerFact, Node, NodeObjectState, NodeReport, Source};
use headgate_core::publish_if_changed;
use headgate_kubernetes::{
    Decoded, EventKind, EventSink, FieldIntents, LOAD_BALANCER_SERVICES, NodeIntent, ObjectStore, WatchFailure,
    WatchReporter, WatchStream, condition_intent, split_list, watch_events, with_selection_fallback,
};
use ipnet::IpNet;
use kube::api::ListParams;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::count::{CountOrder, NodeFacts};
use super::data_plane::NodeNetwork;
use super::drained::{ConditionPacer, Connections, ConnectionsState, ConnectionsView, NAMED_SERVICES};
use super::exchange::{CountExchange, Counted};
use super::metrics::ConnectionMetrics;
use super::services::{Service, cluster_address};
use crate::health::VerdictInputs;

const CUT: EventKind = EventKind::warning("ConnectionsCut", "CountConnections");
/// For the address of the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an agent that does not count sees a condition before it ends it.
const LEFTOVER_AGE: Duration = Duration::from_secs(30);
/// Objects in one page of a list.
const LIST_PAGE_SIZE: u32 = 100;

/// What the task is started with.
pub struct ConnectionsTask {
    /// A client of the API server.
    pub client: Client,
    /// The name of the own Node.
    pub node_name: String,
    /// The signals of the own node.
    pub inputs: VerdictInputs,
    /// Whose connections do not count, beside those of the node, its pods and Azure's probes.
    pub excluded: Vec<IpNet>,
    /// The way to the counter.
    pub exchange: CountExchange,
    /// Receives what follows from the counts.
    pub view: watch::Sender<ConnectionsView>,
    /// Where the condition is published; `None` where nothing says that the node has left its load balancers.
    pub intents: Option<FieldIntents>,
    /// Makes the reporter of one watch of Services.
    pub reporter: Box<dyn Fn() -> WatchReporter + Send>,
    /// Counts the connections that were cut.
    pub metrics: ConnectionMetrics,
    /// Records the event about them.
    pub events: EventSink,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// The Services, while they are watched.
struct WatchedServices {
    stream: WatchStream<Event<ServiceObject>>,
    failure: watch::Receiver<Option<WatchFailure>>,
    /// Those of type LoadBalancer.
    store: ObjectStore<NamespacedName, Service>,
    api_server: Option<SocketAddr>,
}

impl WatchedServices {
    async fn start(client: &Client, reporter: WatchReporter) -> Self {
        let api_server = match NodeNetwork::look().bypass(false) {
            Some(_) => kubernetes_address(client).await,
            None => None,
        };
        let selecting = with_selection_fallback(client);
        let config = Config::default()
            .fields(LOAD_BALANCER_SERVICES)
            .page_size(LIST_PAGE_SIZE);
        Self {
            failure: reporter.failure(),
            stream: watch_events(&selecting, Api::all, config, reporter),
            store: ObjectStore::default(),
            api_server,
        }
    }

    /// Adopts events until one changes something; never ends.
    async fn next(&mut self) {
        loop {
            let Some(event) = self.stream.next().await else {
                return std::future::pending().await;
            };
            // The stream has reported the error.
            let Ok(event) = event else { return };
            let is_changed = self.store.apply(event, |object| {
                let name = NamespacedName::of(&object.metadata)?;
                Some((name, Service::read(object)))
            });
            if is_changed {
                return;
            }
        }
    }

    /// The order that follows; an error if the Services were never listed, and cannot be.
    fn order(&self, node: NodeFacts, excluded: &[IpNet]) -> Result<Option<CountOrder>, String> {
        if !self.store.is_synced {
            let failure = self.failure.borrow();
            let failed = failure
                .as_ref()
                .map(|failure| format!("Services cannot be listed: {}", failure.error));
            return failed.map_or(Ok(None), Err);
        }
        Ok(Some(CountOrder {
            api_server: self.api_server,
            ..CountOrder::new(node, self.store.objects.values().cloned().collect(), excluded)
        }))
    }
}

/// The address by which pods of every node reach the API server, as long as the process may read it.
pub async fn kubernetes_address(client: &Client) -> Option<SocketAddr> {
    let services = Api::<Decoded<ServiceObject>>::namespaced(client.clone(), "default");
    // With the right to list, which the watch needs as well.
    let named = ListParams::default().fields("metadata.name=kubernetes");
    let listed = timeout(REQUEST_TIMEOUT, services.list(&named)).await.ok()?.ok()?;
    let (services, _) = split_list(listed);
    cluster_address(services.first()?)
}

impl ConnectionsTask {
    /// Runs until the task is aborted; never ends by itself.
    pub async fn run(mut self) {
        let mut counted = self.exchange.counted();
        let (mut connections, mut pacer) = (Connections::default(), ConditionPacer::default());
        let mut services: Option<WatchedServices> = None;
        let (mut was_present, mut newest) = (false, None);
        loop {
            let report = self.inputs.node.borrow_and_update().clone();
            let now = self.clock.now();
            // What an earlier process remembered says neither whose connections count nor what the Node shows.
            let node = report.node.as_ref().filter(|_| report.source == Source::Watch);
            let has_notice = !self.inputs.notices.borrow_and_update().is_empty();
            let is_signalled = is_signalled(&report, has_notice);
            connections.observe_node(is_signalled, node.is_some_and(Node::is_marked_out), now.mono);
            let counted_now = counted.borrow_and_update().clone();
            // Each once: another wake-up brings no new count.
            if let Some(Counted { began_at, outcome }) =
                counted_now.filter(|counted| newest.replace(counted.began_at) != Some(counted.began_at))
            {
                connections.observe_count(began_at, outcome, now.mono, now.wall);
            }
            if !is_signalled {
                services = None;
                self.exchange.order(None);
            } else if let (Some(services), Some(node)) = (&services, node) {
                match services.order(node.into(), &self.excluded) {
                    Ok(order) => {
                        let has_order = order.is_some();
                        if self.exchange.order(order) && has_order {
                            // The time after the change: what was issued before may be the order before.
                            connections.observe_order(self.clock.now().mono);
                        }
                    }
                    Err(error) => connections.observe_count(now.mono, Err(error), now.mono, now.wall),
                }
            }
            let view = connections.view(now.mono);
            let wake_at = self.publish(&view, &report, &mut pacer, now.mono);
            let is_gone = report.object_state == NodeObjectState::Deleted;
            if is_gone && was_present {
                self.report_cut(&view, &report, "its Node was deleted");
            }
            was_present = report.object_state == NodeObjectState::Present;
            publish_if_changed(&self.view, view);
            if is_signalled && services.is_none() {
                services = Some(WatchedServices::start(&self.client, (self.reporter)()).await);
                continue;
            }
            let wake_at = [wake_at, connections.changes_at(now.mono)].into_iter().flatten().min();
            let is_running = tokio::select! {
                changed = self.inputs.node.changed() => changed.is_ok(),
                changed = self.inputs.notices.changed() => changed.is_ok(),
                changed = counted.changed() => changed.is_ok(),
                Some(()) = OptionFuture::from(services.as_mut().map(WatchedServices::next)) => true,
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => true,
            };
            if !is_running {
                // A sender was dropped: the process stops, and aborts this task.
                return std::future::pending().await;
            }
        }
    }

    /// Publishes the condition; returns when it is to be published again.
    fn publish(
        &self,
        view: &ConnectionsView,
        report: &NodeReport,
        pacer: &mut ConditionPacer,
        now: Instant,
    ) -> Option<Instant> {
        let intents = self.intents.as_ref()?;
        let node = report.node.as_ref().filter(|_| report.source == Source::Watch)?;
        let (wanted, again_at) = pacer.next(view.state.condition(), now);
        let shown = node.connections.as_ref();
        let is_needed = match view.state {
            // A node that never had a signal gets no condition.
            ConnectionsState::NoSignal => shown.is_some(),
            // The agent that this one replaces has counted.
            ConnectionsState::NotCountedYet => !shown.is_some_and(MarkerFact::is_pending),
            _ => true,
        };
        let intent: Option<(String, NodeIntent)> = is_needed.then(|| {
            let intent = condition_intent(CONNECTIONS_CONDITION, node.uid.clone(), wanted, shown);
            (self.node_name.clone(), intent)
        });
        intents.publish(intent.into_iter().collect());
        again_at
    }

    fn report_cut(&self, view: &ConnectionsView, report: &NodeReport, why: &str) {
        let Some(note) = cut_note(view, report, why) else {
            return;
        };
        let total = view.last.as_ref().map_or(0, |(count, _)| count.total());
        self.metrics.count_cut(total);
        tracing::warn!(node = self.node_name, connections = total, why, "connections cut");
        let about = self.events.own_node(report.node.as_ref().map(|node| &*node.uid));
        self.events.record(about, CUT, note);
    }
}

/// Whether the node is known to have a signal, for health answers or admin states. The leader's may be others than this agent's, and last
/// longer.
fn is_signalled(report: &NodeReport, has_notice: bool) -> bool {
    let node = report.node.as_ref().filter(|_| report.source == Source::Watch);
    let has_signal = !report.signals().is_empty() || has_notice;
    node.is_some_and(|node| has_signal || !node.health_signals.is_empty() || node.is_marked_out())
}

/// Ends the condition that an agent with the feature on has left on the Node `name`, so that nothing waits for it. During a roll that changes
/// the setting, the other agent of the node still writes it. Never ends by itself.
pub async fn end_condition(name: String, mut reports: watch::Receiver<NodeReport>, intents: FieldIntents) {
    let mut seen_at = None;
    loop {
        let node = reports.borrow_and_update().node.clone();
        let left = node.and_then(|node| Some((node.uid, node.connections.filter(MarkerFact::is_pending)?)));
        seen_at = left.as_ref().map(|_| seen_at.unwrap_or_else(Instant::now));
        let ends_at = seen_at.map(|at| at + LEFTOVER_AGE);
        let is_due = ends_at.is_some_and(|at| at <= Instant::now());
        let left = left.filter(|_| is_due);
        let ended = left.map(|(uid, shown)| {
            let wanted = ConnectionsState::NoSignal.condition();
            (
                name.clone(),
                condition_intent(CONNECTIONS_CONDITION, uid, wanted, Some(&shown)),
            )
        });
        intents.publish(ended.into_iter().collect());
        tokio::select! {
            changed = reports.changed() => if changed.is_err() {
                // The watch of the Node has ended: the process stops, and aborts this task.
                return std::future::pending().await;
            },
            () = sleep_until(ends_at.unwrap_or_else(Instant::now)), if ends_at.is_some() && !is_due => {}
        }
    }
}

/// What to say about connections that still pass through the node at its end; `None` if none is known to.
pub fn cut_note(view: &ConnectionsView, report: &NodeReport, why: &str) -> Option<String> {
    let ConnectionsState::Open(count) = &view.state else {
        return None;
    };
    let node = report.node.as_ref();
    let is_delayed = node.is_some_and(|node| node.is_deletion_delayed() && node.deletion_mark().is_some());
    let flag = if is_delayed {
        "; Cluster Autoscaler went on although headgate delayed it: raise its --node-deletion-delay-timeout"
    } else {
        ""
    };
    Some(format!("When {why}, {}{flag}", count.sentence(NAMED_SERVICES)))
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{NodeReader, SignalRules};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_connections_counted() {
        let now = Clock::System.now();
        for (taint, marker, has_notice, expected) in [
            ("other", "False", false, false),
            ("drain", "False", false, true),
            ("admin", "False", false, true),
            ("other", "False", true, true),
            ("other", "True", false, true),
        ] {
            let condition = json!({"type": "headgate.dev/OutOfLoadBalancers", "status": marker, "reason": "R"});
            let node = json!({"metadata": {"name": "n", "uid": "u"}, "status": {"conditions": [condition]},
                "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]}});
            let rules = SignalRules::new(["drain"], &[]);
            let initial = NodeReport::initial(None, &rules, now);
            assert!(!is_signalled(&initial, has_notice), "nothing is known of the Node");
            let reader = NodeReader {
                health_rules: SignalRules::new(["admin"], &[]),
                ..NodeReader::own(rules)
            };
            let node = reader.read(serde_json::from_value(node).unwrap());
            let report = initial.with_node(node, now);
            assert_eq!(
                is_signalled(&report, has_notice),
                expected,
                "{taint} {marker} {has_notice}"
            );
        }
    }
}
