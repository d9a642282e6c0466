//! What may speak against a node: what it means, and what ends it. Pure.

use jiff::Timestamp;

use super::explanation::Reason;
use super::views::EXCLUDE_LABEL;

/// What is known from elsewhere than the watch.
pub(super) fn known_from(source: &str) -> &'static str {
    match source {
        "remembered" => "Its agent has not reached the API server since it started and goes on from what it remembers.",
        _ => "Its agent has never seen its Node, so the node counts as good.",
    }
}

/// kube-proxy, as its own `/livez` has it.
pub(super) fn stale_proxy(server: Option<&str>, since: Option<Timestamp>) -> Reason {
    let server = server.unwrap_or("its health server");
    Reason {
        name: "kube-proxy".to_owned(),
        since,
        meaning: format!("kube-proxy does not bring the node's rules up to date, or does not answer at {server}."),
        ends: "kube-proxy answering 200 at /livez again; its own log says what keeps it from it.".to_owned(),
    }
}

/// What a signal means and what ends it.
pub(super) fn signal(node: &str, signal: &str, since: Option<Timestamp>) -> Reason {
    let untaint = || format!("the taint going away: kubectl taint node {node} {signal}-");
    let (meaning, ends) = match signal {
        "deletionTimestamp" => (
            "The Node object is being deleted.",
            "nothing; a Node that is being deleted stays so until it is gone".to_owned(),
        ),
        "nodeShutdown" => (
            "kubelet says that the node is shutting down.",
            "kubelet reporting Ready again after the restart".to_owned(),
        ),
        "headgateStopping" => (
            "headgate was told to stop and drains the node for its shutdownDelay.",
            "the next headgate on this node".to_owned(),
        ),
        "azurePreempt" => (
            "Azure has announced that it takes this spot VM back.",
            "the notice vanishing from Scheduled Events".to_owned(),
        ),
        "ToBeDeletedByClusterAutoscaler" => (
            "Cluster Autoscaler is about to delete the VM.",
            format!(
                "{}; the autoscaler takes it off itself when a scale-down fails",
                untaint()
            ),
        ),
        "karpenter.sh/disrupted" => ("Karpenter is about to replace or remove the node.", untaint()),
        "node.kubernetes.io/out-of-service" => ("Somebody marked the node as out of service.", untaint()),
        "node.cloudprovider.kubernetes.io/shutdown" => (
            "The cloud says that the VM is shut down.",
            "the VM running again; cloud-controller-manager then takes the taint off".to_owned(),
        ),
        "cloudprovider.azure.microsoft.com/draining" => {
            ("The node is being drained because its VM is going away.", untaint())
        }
        "headgate.dev/maintenance" => ("The node is in maintenance.", untaint()),
        _ => ("This taint is listed in signals.health.", untaint()),
    };
    Reason {
        name: signal.to_owned(),
        since,
        meaning: meaning.to_owned(),
        ends,
    }
}

/// Whether the agent knows a signal from elsewhere than its Node.
pub(super) fn is_agents_own(signal: &str) -> bool {
    matches!(signal, "azurePreempt" | "headgateStopping")
}

/// The health port, which is not served.
pub(super) fn health_port(state: &str) -> Reason {
    Reason {
        name: "health port".to_owned(),
        since: None,
        meaning: format!(
            "headgate's health port: {state}. Probes get no answer from it, so load balancers take the node out, unless \
             somebody else answers 200 there."
        ),
        ends: "the port being free; it is tried every 5 s".to_owned(),
    }
}

/// The label that takes a node out of load balancers.
pub(super) fn excluded(node: &str) -> Reason {
    Reason {
        name: EXCLUDE_LABEL.to_owned(),
        since: None,
        meaning: "Cloud controllers leave a node with this label out of their load balancers, whatever its probes say."
            .to_owned(),
        ends: format!("the label going away: kubectl label node {node} {EXCLUDE_LABEL}-"),
    }
}
