//! Holds the instance of a node that Karpenter removes: how long the pod of `headgate hold` goes on after SIGTERM.
//!
//! Karpenter terminates an instance once the pods that it must wait for are gone. So the pod goes on while Karpenter removes the node and
//! nothing shows that it has left its load balancers, or its agent counts connections that pass through it. It ends at once if nothing
//! removes the node: a roll of its `DaemonSet` or a reboot is not delayed. [`release_reason`] decides; pure. As long as the present Node is
//! not known, the hold goes on, up to its timeout.

use std::time::Duration;

use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_core::telemetry::{MetricTable, words};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use headgate_core::node::KARPENTER_TAINT;
use headgate_core::node::SignalRules;
use headgate_core::node::{NodeObjectState, NodeReader, NodeReport, Source};

use super::metrics::Metrics;
use super::watch::watch_own_node;

words! {
    /// Why a hold ends before its timeout.
    pub enum ReleaseReason {
        /// The node has left its load balancers, and no connection is known to pass through it.
        Out = "out of load balancers",
        /// The Node is neither being deleted nor tainted by Karpenter.
        NotDisrupted = "node is not being removed",
        /// The Node object is gone.
        NodeGone = "node object is gone",
    }
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldOutcome {
    /// In time.
    Released(ReleaseReason),
    /// The timeout is over.
    TimedOut {
        /// The UID of the Node, if it is known.
        uid: Option<String>,
        /// What is still to come, as the Node said last.
        waits_for: Option<String>,
    },
}

/// Why the instance need not be held; `None` while it is held.
fn release_reason(report: &NodeReport) -> Option<ReleaseReason> {
    if matches!(report.object_state, NodeObjectState::Missing | NodeObjectState::Deleted) {
        return Some(ReleaseReason::NodeGone);
    }
    let node = report.node.as_ref().filter(|_| report.source == Source::Watch)?;
    if !node.is_deleting && !node.has_taint(KARPENTER_TAINT) {
        return Some(ReleaseReason::NotDisrupted);
    }
    node.may_go().then_some(ReleaseReason::Out)
}

/// Follows the Node `name` until its instance need not be held, `timeout` at most.
pub async fn hold_termination(client: Client, name: &str, timeout: Duration, clock: Clock) -> HoldOutcome {
    let rules = SignalRules::default();
    let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()));
    let observed = reports.subscribe();
    let metrics = Metrics::register(MetricTable::unregistered());
    let reporter = metrics.watch_reporter(name, &clock);
    let reader = NodeReader::own(rules);
    let follow = watch_own_node(client, name.to_owned(), reader, reports, metrics, reporter, clock);
    let wait = wait_for_release(observed, timeout);
    tokio::pin!(wait);
    tokio::select! {
        outcome = &mut wait => outcome,
        // It does not end by itself; if it did, only the timeout would be left.
        () = follow => wait.await,
    }
}

/// Waits until the instance need not be held, `timeout` at most.
async fn wait_for_release(mut reports: watch::Receiver<NodeReport>, timeout: Duration) -> HoldOutcome {
    let released = async {
        loop {
            let reason = release_reason(&reports.borrow_and_update());
            if let Some(reason) = reason {
                return reason;
            }
            // Only the timeout is left once the watch has ended.
            changed(&mut reports).await;
        }
    };
    if let Ok(reason) = timeout_at(Instant::now() + timeout, released).await {
        return HoldOutcome::Released(reason);
    }
    let node = reports.borrow().node.clone();
    HoldOutcome::TimedOut {
        uid: node.as_ref().map(|node| node.uid.clone()),
        waits_for: node.map(|node| node.waits_for().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn initial() -> NodeReport {
        NodeReport::initial(None, &SignalRules::default(), Clock::System.now())
    }

    /// The report of a Node with these taints, deletion and marker.
    fn report(taints: &[&str], is_deleted: bool, marker: Option<&str>) -> NodeReport {
        report_with(taints, is_deleted, marker, None)
    }

    /// The same, with the status and reason of the condition about connections.
    fn report_with(
        taints: &[&str],
        is_deleted: bool,
        marker: Option<&str>,
        connections: Option<(&str, &str)>,
    ) -> NodeReport {
        let taints: Value = taints
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        let deletion = is_deleted.then_some("2026-01-01T00:00:00Z");
        let marker = marker.map(
            |status| json!({"type": "headgate.dev/OutOfLoadBalancers", "status": status, "reason": "NotDown", "message": "lb/pool"}),
        );
        let connections = connections.map(
            |(status, reason)| json!({"type": "headgate.dev/ConnectionsDrained", "status": status, "reason": reason, "message": "3 open"}),
        );
        let conditions: Value = marker.into_iter().chain(connections).collect();
        let node = json!({"metadata": {"name": "n", "uid": "u", "deletionTimestamp": deletion}, "spec": {"taints": taints},
            "status": {"conditions": conditions}});
        let node = NodeReader::own(SignalRules::default()).read(serde_json::from_value(node).unwrap());
        initial().with_node(node, Clock::System.now())
    }

    #[test]
    fn reasons_to_release() {
        const NOT_READY: &str = "node.kubernetes.io/not-ready";
        use ReleaseReason::{NodeGone, NotDisrupted, Out};
        let gone = report(&[KARPENTER_TAINT], true, None).without_node();
        let missing = initial().without_node();
        let counted = |marker, connections| report_with(&[], true, Some(marker), Some(connections));
        let rows = vec![
            ("not known yet", initial(), None),
            ("a roll of the DaemonSet", report(&[], false, None), Some(NotDisrupted)),
            (
                "kubelet's shutdown",
                report(&[NOT_READY], false, None),
                Some(NotDisrupted),
            ),
            ("out, but stays", report(&[], false, Some("True")), Some(NotDisrupted)),
            ("consolidation", report(&[KARPENTER_TAINT], false, None), None),
            ("not out yet", report(&[KARPENTER_TAINT], true, Some("False")), None),
            ("not confirmed", report(&[KARPENTER_TAINT], true, Some("Unknown")), None),
            ("out", report(&[KARPENTER_TAINT], false, Some("True")), Some(Out)),
            ("deleted before the taint", report(&[], true, None), None),
            ("deleted and out", report(&[], true, Some("True")), Some(Out)),
            ("connections pass", counted("True", ("False", "ConnectionsOpen")), None),
            (
                "the last one has ended",
                counted("True", ("True", "NoConnections")),
                Some(Out),
            ),
            (
                "they cannot be counted",
                counted("True", ("Unknown", "NotCounted")),
                Some(Out),
            ),
            ("none, but not out", counted("False", ("True", "NoConnections")), None),
            ("gone", gone, Some(NodeGone)),
            ("never seen", missing, Some(NodeGone)),
        ];
        for (case, report, expected) in rows {
            assert_eq!(release_reason(&report), expected, "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hold_ends_with_the_marker_or_at_its_timeout() {
        let (sender, reports) = watch::channel(initial());
        let start = Instant::now();
        let hold = tokio::spawn(wait_for_release(reports.clone(), Duration::from_mins(1)));
        tokio::time::sleep(Duration::from_secs(20)).await;
        sender.send_replace(report(&[KARPENTER_TAINT], true, Some("False")));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!hold.is_finished());
        sender.send_replace(report(&[KARPENTER_TAINT], true, Some("True")));
        assert_eq!(hold.await.unwrap(), HoldOutcome::Released(ReleaseReason::Out));
        assert_eq!(start.elapsed(), Duration::from_secs(40));

        sender.send_replace(report(&[KARPENTER_TAINT], true, Some("False")));
        let start = Instant::now();
        let outcome = wait_for_release(reports, Duration::from_mins(1)).await;
        let (uid, waits_for) = (Some("u".to_owned()), Some("lb/pool".to_owned()));
        assert_eq!(outcome, HoldOutcome::TimedOut { uid, waits_for });
        assert_eq!(start.elapsed(), Duration::from_mins(1));
    }
}
