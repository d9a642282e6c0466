//! Measures blackhole seconds on the nodes under maintenance: from the snapshot of each turn to the metric and an event.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::node::{NodeTraffic, Unproved};
use headgate_core::telemetry::first_names;
use headgate_kubernetes::EventKind;
use jiff::Timestamp;

use super::events::MAINTAIN_NODE;
use super::executor::Executor;
use crate::api::LoadBalancerState;
use crate::blackhole::{Blackhole, BlackholeMeter, DrainedNode};
use crate::snapshot::{PodFacts, Snapshot};

/// A node could not serve what load balancers may have sent to it.
const CONNECTIONS_AT_RISK: EventKind = EventKind::warning("ConnectionsAtRisk", MAINTAIN_NODE);
/// Below it, the event is not worth its place.
const MIN_REPORTED: Duration = Duration::from_secs(1);
/// Services that an event names.
const MAX_NAMES: usize = 8;

/// Adopts the state of a turn, and reports what has ended.
pub(super) fn measure(meter: &mut BlackholeMeter, snapshot: &Snapshot, executor: &Executor, now: Timestamp) {
    let services = executor.caches.services.borrow();
    let Some(services) = services.as_ref() else { return };
    let services = services.values().map(|service| &**service);
    for (node, results) in meter.update(&drained_nodes(snapshot), services, now) {
        for result in &results {
            executor.writer.metrics.observe_blackhole(result.policy, result.lasted);
        }
        if let Some(note) = note(&results) {
            let uid = executor.node_uid(&node);
            let events = &executor.writer.events;
            events.about_node(&node, &uid, CONNECTIONS_AT_RISK, &note);
        }
    }
}

/// The nodes that a maintenance drains, as their statuses show them.
fn drained_nodes(snapshot: &Snapshot) -> Vec<DrainedNode<'_>> {
    let draining = snapshot.maintenances.iter().filter(|one| one.is_draining());
    let statuses = draining.flat_map(|object| object.status.iter().flat_map(|status| &status.node_statuses));
    let mut drained: BTreeMap<&str, bool> = BTreeMap::new();
    for status in statuses {
        if let Some(gate) = &status.load_balancer {
            *drained.entry(&status.node_ref.name).or_default() |= gate.state == LoadBalancerState::Out;
        }
    }
    if drained.is_empty() {
        return Vec::new();
    }
    let mut pods: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
    for pod in &snapshot.pods {
        pods.entry(&pod.node).or_default().push(pod);
    }
    let nodes = snapshot.nodes.iter().filter_map(|node| {
        let was_out = *drained.get(node.name.as_str())?;
        Some(DrainedNode {
            name: &node.name,
            is_ready: node.ready,
            pods: pods.remove(node.name.as_str()).unwrap_or_default(),
            observation: snapshot.load_balancers.get(&node.name).unwrap_or(&UNKNOWN),
            was_out,
        })
    });
    nodes.collect()
}

/// Nothing was read yet.
static UNKNOWN: NodeTraffic = NodeTraffic::Unknown(Unproved::NotPlanned);

/// What was at risk, in words; `None` for nothing.
fn note(results: &[Blackhole]) -> Option<String> {
    let at_risk: Vec<_> = results.iter().filter(|result| result.lasted >= MIN_REPORTED).collect();
    let described = at_risk.iter().map(|result| {
        let (seconds, policy) = (result.lasted.as_secs_f64(), result.policy.as_str());
        format!("{} ({seconds:.1} s, {policy})", result.service)
    });
    let names = first_names(described, MAX_NAMES);
    (!names.is_empty()).then(|| {
        format!("Load balancers may have sent connections to the node after it could not serve them any more, for these Services: {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blackhole::TrafficPolicy;

    #[test]
    fn the_note_names_what_lost_a_second_or_more() {
        let result = |name: &str, millis| Blackhole {
            service: format!("shop/{name}"),
            policy: TrafficPolicy::Local,
            lasted: Duration::from_millis(millis),
        };
        assert_eq!(note(&[result("a", 0), result("b", 999)]), None);
        let found = note(&[result("a", 0), result("b", 12_340)]).unwrap();
        assert!(found.ends_with(": shop/b (12.3 s, local)"), "{found}");
        let many: Vec<_> = (0..20).map(|n| result(&format!("s{n}"), 2000)).collect();
        assert!(note(&many).unwrap().ends_with("s7 (2.0 s, local), 12 more"));
    }
}
