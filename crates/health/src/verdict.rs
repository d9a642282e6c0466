//! The verdict: from what is known of the Node and of the proxy to what is answered. Pure.

use std::collections::BTreeMap;

use headgate_clock::Moment;
use headgate_node::{Report, Source};
use jiff::Timestamp;
use tokio::sync::watch;

use super::proxy::{ProxyHealth, ProxyStatus};

/// The signal shown while `shutdownDelay` runs.
pub const STOPPING: &str = "headgateStopping";

/// The one published snapshot an answer is made from: the latest of each input.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// What is known of the Node.
    pub node: watch::Receiver<Report>,
    /// What is known of the proxy.
    pub proxy: watch::Receiver<ProxyStatus>,
    /// Whether this process was told to stop and drains its node meanwhile.
    pub stopping: watch::Receiver<bool>,
    /// Signals from elsewhere than the Node object, each since when.
    pub notices: watch::Receiver<BTreeMap<String, Timestamp>>,
}

/// What is answered at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The moment.
    pub at: Moment,
    /// Names of the signals in force, sorted.
    pub signals: Vec<String>,
    /// Where the knowledge of the Node comes from.
    pub source: Source,
    /// The proxy's health.
    pub proxy: ProxyHealth,
}

impl Inputs {
    /// The verdict at `now`.
    #[must_use]
    pub fn verdict(&self, now: Moment) -> Verdict {
        let verdict = verdict(&self.node.borrow(), &self.proxy.borrow(), *self.stopping.borrow(), now);
        verdict.with_notices(&self.notices.borrow())
    }
}

/// The verdict on a node: pure.
#[must_use]
pub(super) fn verdict(node: &Report, proxy: &ProxyStatus, stopping: bool, now: Moment) -> Verdict {
    let stopping = stopping.then(|| STOPPING.to_owned());
    Verdict {
        at: now,
        signals: node.signals.keys().map(ToString::to_string).chain(stopping).collect(),
        source: node.source,
        proxy: proxy.health(now),
    }
}

impl Verdict {
    /// The verdict with signals from elsewhere than the Node object.
    #[must_use]
    pub(super) fn with_notices(mut self, notices: &BTreeMap<String, Timestamp>) -> Self {
        if !notices.is_empty() {
            self.signals.extend(notices.keys().cloned());
            self.signals.sort_unstable();
        }
        self
    }

    /// Whether nothing speaks against new connections to this node (`nodeEligible`).
    #[must_use]
    pub fn eligible(&self) -> bool {
        self.signals.is_empty()
    }

    /// Whether `/healthz` answers 200.
    #[must_use]
    pub fn healthz(&self) -> bool {
        self.eligible() && self.livez()
    }

    /// Whether `/livez` answers 200: the proxy alone.
    #[must_use]
    pub fn livez(&self) -> bool {
        self.proxy.healthy
    }
}
