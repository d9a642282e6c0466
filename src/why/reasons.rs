//! What can keep new connections from a node: what it means, and what ends it. Pure. The text about signals is part
//! of `headgate_core::node::Signal`.

use headgate_core::node::{EXCLUDE_LABEL, MARKER_CONDITION, MARKER_NO_SIGNAL, MARKER_TTL, MarkerFact, Signal, Source};
use headgate_core::settings::Printable;
use jiff::Timestamp;

use super::explanation::Reason;
use crate::agent_status::{ConnectionsStatus, SignalStatus};

/// The note for an agent that does not know the Node from a watch.
pub(super) fn source_note(source: Source) -> Option<&'static str> {
    match source {
        Source::Watch => None,
        Source::Remembered => {
            Some("The agent has not reached the API server since it started and uses its remembered state.")
        }
        Source::None => Some("The agent has never observed its Node, so the node counts as eligible."),
    }
}

/// The leader keeps the node's addresses in these pools in service although it has signals.
pub(super) fn hold_note(
    signals: &[SignalStatus],
    pools: impl IntoIterator<Item = impl AsRef<str>>,
    reason: Option<&str>,
) -> String {
    let signals: Vec<_> = signals.iter().map(|status| status.signal.as_str()).collect();
    let pools: Vec<_> = pools.into_iter().map(|pool| pool.as_ref().to_owned()).collect();
    let reason = reason.unwrap_or("too few others can serve");
    format!(
        "The leader holds the node back in service in {} in spite of {}: {}. The hold ends when others can serve.",
        Printable(&pools.join(", ")),
        Printable(&signals.join(", ")),
        Printable(reason),
    )
}

/// What the Node's condition says to other tools.
pub(super) fn marker_note(marker: &MarkerFact) -> String {
    format!(
        "{MARKER_CONDITION} is {} ({}): {}",
        marker.status.as_str(),
        marker.reason,
        marker.message
    )
}

/// The leader sets a cordoned node `Down` if the cordon is a signal; the Node's condition shows whether the node has one.
pub(super) fn cordon_note(marker: Option<&MarkerFact>) -> &'static str {
    if marker.is_none_or(MarkerFact::is_without_signal) {
        "The node is cordoned. That keeps new Pods away, not traffic."
    } else {
        "The node is cordoned. That keeps new Pods away; with signals.cordon it is a signal, too."
    }
}

/// headgate has set the node `Down`, by its condition. One that nothing confirms any more is left from before.
pub(super) fn admin_state(marker: &MarkerFact, now: Timestamp) -> Option<Reason> {
    let age = |at| now.duration_since(at).unsigned_abs();
    let is_old = marker.confirmed_at.map(age) >= Some(2 * marker.ttl(MARKER_TTL));
    (marker.is_out() && marker.reason == "AdminStateDown" && !is_old).then(|| Reason {
        name: "admin state".to_owned(),
        since: marker.since,
        meaning: "The leader has set the node Down in its backend pools, or it is in none: it gets no new connections, whatever its \
                  probes answer."
            .to_owned(),
        ends: "the node's signals for admin states; headgate status names them".to_owned(),
    })
}

/// What the agent knows of the connections through the node; nothing while it does not count.
pub(super) fn connections_note(connections: &ConnectionsStatus) -> Option<String> {
    let message = connections.message.as_str();
    (connections.reason != MARKER_NO_SIGNAL).then(|| {
        let mut letters = message.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    })
}

/// kube-proxy is unhealthy by the agent's `/livez`.
pub(super) fn unhealthy_kube_proxy(server: Option<&str>, since: Option<Timestamp>) -> Reason {
    let server = server.unwrap_or("its health server");
    Reason {
        name: "kube-proxy".to_owned(),
        since,
        meaning: format!("kube-proxy does not keep the node's rules up to date, or does not answer at {server}."),
        ends: "kube-proxy answering 200 at /livez again; its own log has the cause.".to_owned(),
    }
}

/// The node has a signal.
pub(super) fn signal(node_name: &str, signal: &Signal, since: Option<Timestamp>) -> Reason {
    let explanation = signal.explanation(node_name);
    Reason {
        name: signal.to_string(),
        since,
        meaning: explanation.meaning,
        ends: explanation.ends_with,
    }
}

/// The health port is not bound.
pub(super) fn unbound_health_port(state: &str) -> Reason {
    Reason {
        name: "health port".to_owned(),
        since: None,
        meaning: format!(
            "headgate's health port: {state}. Probes get no answer from headgate, so load balancers take the node out, \
             unless another process answers 200 there."
        ),
        ends: "the port being free; headgate tries to bind it every 5 s".to_owned(),
    }
}

/// The Node has the label that excludes it from load balancers.
pub(super) fn exclude_label(node_name: &str) -> Reason {
    Reason {
        name: EXCLUDE_LABEL.to_owned(),
        since: None,
        meaning:
            "Cloud controllers leave a node with this label out of their load balancers, whatever its probes answer."
                .to_owned(),
        ends: format!("the removal of the label: kubectl label node {node_name} {EXCLUDE_LABEL}-"),
    }
}
