//! What the operator sets.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::template::Template;

/// Where notices go, which, and in what form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationSettings {
    /// The file with the URL; `None` sends nothing.
    pub url_file: Option<PathBuf>,
    /// The events that are sent; empty sends all.
    pub events: BTreeSet<String>,
    /// The body.
    pub template: Template,
    /// For how long a notice is tried again; no setting.
    pub retry_timeout: Duration,
}

impl NotificationSettings {
    /// The events that are sent by default: what happens to a node, without failures that the leader retries.
    pub(crate) const DEFAULT_EVENTS: [&'static str; 4] = [
        "NodeSignalled",
        "NodeSignalsEnded",
        "LoadBalancerAdminStateDown",
        "LoadBalancerRestored",
    ];

    /// Whether an event is sent.
    pub fn includes(&self, event: &str) -> bool {
        self.events.is_empty() || self.events.contains(event)
    }
}

impl Default for NotificationSettings {
    fn default() -> Self {
        Self {
            url_file: None,
            events: Self::DEFAULT_EVENTS.map(str::to_owned).into(),
            template: Template::default(),
            retry_timeout: Duration::from_mins(10),
        }
    }
}
