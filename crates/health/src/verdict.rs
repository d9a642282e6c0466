//! The verdict: what `/healthz` and `/livez` answer at one moment, and why. Pure.
//!
//! `/healthz` answers 503 when the node has a signal or kube-proxy is not healthy; `/livez` when kube-proxy is not
//! healthy.

use std::collections::BTreeMap;

use headgate_clock::Moment;
use headgate_node::{NodeReport, Signal, Source};
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
    /// Whether this process stops and drains its node first.
    pub stopping: watch::Receiver<bool>,
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
}

impl VerdictInputs {
    /// Evaluates the inputs at `now`.
    #[must_use]
    pub fn verdict(&self, now: Moment) -> Verdict {
        let verdict = verdict(&self.node.borrow(), &self.proxy.borrow(), *self.stopping.borrow(), now);
        verdict.with_notices(&self.notices.borrow())
    }
}

#[must_use]
pub(super) fn verdict(node: &NodeReport, proxy: &ProxyStatus, is_stopping: bool, now: Moment) -> Verdict {
    let stopping = is_stopping.then_some(&Signal::Stopping);
    Verdict {
        at: now,
        signals: node.signals.keys().chain(stopping).map(ToString::to_string).collect(),
        source: node.source,
        proxy: proxy.health(now),
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
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.signals.is_empty()
    }

    /// Whether `/healthz` answers 200; otherwise it answers 503.
    #[must_use]
    pub fn is_healthz_ok(&self) -> bool {
        self.is_eligible() && self.is_livez_ok()
    }

    /// Whether `/livez` answers 200; otherwise it answers 503. Signals have no effect on it.
    #[must_use]
    pub fn is_livez_ok(&self) -> bool {
        self.proxy.healthy
    }
}
