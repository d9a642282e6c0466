//! The verdict: what `/healthz` and `/livez` answer at one moment, and why. Pure.
//!
//! `/healthz` answers 503 when the node has a signal or kube-proxy is not healthy; `/livez` when kube-proxy is not
//! healthy. Signals that the leader's hold covers do not count.

use std::collections::BTreeMap;

use headgate_core::clock::Moment;
use headgate_core::node::{NodeReport, Signal, Source};
use jiff::Timestamp;
use tokio::sync::watch;

use super::proxy_status::{ProxyHealth, ProxyStatus};

/// The latest value of everything that a verdict depends on.
#[derive(Clone, Debug)]
pub struct VerdictInputs {
    /// The report about the own Node, with the signals of its Node object.
    pub node: watch::Receiver<NodeReport>,
    /// What is known of kube-proxy.
    pub proxy: watch::Receiver<ProxyStatus>,
    /// Signals that are not in the Node object, each with its start.
    pub notices: watch::Receiver<BTreeMap<Signal, Timestamp>>,
}

/// What is answered at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The time of the evaluation.
    pub at: Moment,
    /// The names of the node's signals, in the order of the answer.
    pub signals: Vec<String>,
    /// Where the state of the Node is known from.
    pub source: Source,
    /// The health of kube-proxy.
    pub proxy: ProxyHealth,
    /// Whether the leader's hold covers all signals, so that they do not make `/healthz` answer 503.
    pub is_held: bool,
}

impl VerdictInputs {
    /// Evaluates the inputs at `now`.
    pub fn verdict(&self, now: Moment) -> Verdict {
        let (node, notices) = (self.node.borrow(), self.notices.borrow());
        let mut verdict = verdict(&node, &self.proxy.borrow(), now).with_notices(&notices);
        if !verdict.is_eligible() {
            let signals: Vec<_> = verdict.signals.iter().map(String::as_str).collect();
            verdict.is_held = node.is_held(&signals, now.mono);
        }
        verdict
    }
}

pub(super) fn verdict(node: &NodeReport, proxy: &ProxyStatus, now: Moment) -> Verdict {
    Verdict {
        at: now,
        signals: node.signals().keys().map(ToString::to_string).collect(),
        source: node.source,
        proxy: proxy.health(now),
        is_held: false,
    }
}

impl Verdict {
    /// Adds signals that are not in the Node object; all names are sorted then.
    #[must_use]
    pub(super) fn with_notices(mut self, notices: &BTreeMap<Signal, Timestamp>) -> Self {
        if !notices.is_empty() {
            self.signals.extend(notices.keys().map(ToString::to_string));
            self.signals.sort_unstable();
        }
        self
    }

    /// Whether the node has no signal: the field `nodeEligible`.
    pub fn is_eligible(&self) -> bool {
        self.signals.is_empty()
    }

    /// Whether `/healthz` answers 200; otherwise it answers 503.
    pub fn is_healthz_ok(&self) -> bool {
        (self.is_eligible() || self.is_held) && self.is_livez_ok()
    }

    /// Whether `/livez` answers 200; otherwise it answers 503. Signals have no effect on it.
    pub fn is_livez_ok(&self) -> bool {
        self.proxy.healthy
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::clock::Clock;
    use headgate_core::node::{AzureNotice, Node, NodeHold, SignalRules, Taint};

    use super::super::answer::healthz_answer;
    use super::super::fixtures::{Channels, MAINTENANCE};
    use super::*;

    fn inputs(report: NodeReport, notices: &[Signal], now: Moment) -> VerdictInputs {
        let channels = Channels::default();
        channels.node.send_replace(report);
        channels
            .notices
            .send_replace(notices.iter().map(|signal| (signal.clone(), now.wall)).collect());
        channels.inputs()
    }

    fn report(taints: &[&str], now: Moment) -> NodeReport {
        let hold = NodeHold {
            node_uid: "u".into(),
            pools: ["lb/p".to_owned()].into(),
            probes_headgate: true,
            signals: [MAINTENANCE.to_owned(), "preempt".to_owned()].into(),
            renewed_at: now.wall,
            ..NodeHold::default()
        };
        let node = Node {
            uid: "u".into(),
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            hold: Some(hold),
            ..Node::default()
        };
        let keys = SignalRules::new([MAINTENANCE, "other"], &[]);
        NodeReport::initial(None, &keys, now).with_node(node.with_signals(&keys), now)
    }

    #[test]
    fn held_node_answers_200_and_shows_its_signals() {
        let now = Clock::System.now();
        let verdict = |after| {
            let later = Moment {
                mono: now.mono + after,
                ..now
            };
            inputs(report(&[MAINTENANCE], now), &[], now).verdict(later)
        };
        let held = verdict(Duration::ZERO);
        assert!(held.is_healthz_ok() && !held.is_eligible());
        let answer = healthz_answer(&held);
        let body = String::from_utf8(answer.body).unwrap();
        assert_eq!(answer.status, 200);
        let shows = |text| body.contains(text);
        assert!(shows(r#""nodeEligible":false"#) && shows(MAINTENANCE), "{body}");
        assert!(!verdict(Duration::from_mins(5)).is_healthz_ok(), "no renewal arrived");
    }

    #[test]
    fn hold_covers_neither_other_signals_nor_those_of_the_agent() {
        let now = Clock::System.now();
        let is_ok = |inputs: &VerdictInputs| inputs.verdict(now).is_healthz_ok();
        assert!(is_ok(&inputs(report(&[MAINTENANCE], now), &[], now)));
        assert!(!is_ok(&inputs(report(&[MAINTENANCE, "other"], now), &[], now)));
        let preempt = [Signal::Azure(AzureNotice::Preempt)];
        assert!(!is_ok(&inputs(report(&[MAINTENANCE], now), &preempt, now)));
    }
}
