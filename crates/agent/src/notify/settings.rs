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
    /// The `Content-Type` of the body.
    pub content_type: String,
    /// A file with the authorities that are trusted instead of the system's.
    pub authorities_file: Option<PathBuf>,
    /// For how long a notice is tried again.
    pub retry_timeout: Duration,
}

impl NotificationSettings {
    /// The content type of a JSON body.
    pub const JSON: &'static str = "application/json";
    /// The events that are sent by default: what happens to a node, without failures that the leader retries.
    pub const DEFAULT_EVENTS: [&'static str; 4] = [
        "NodeSignalled",
        "NodeSignalsEnded",
        "LoadBalancerAdminStateDown",
        "LoadBalancerAdminStateNone",
    ];

    /// Whether an event is sent.
    #[must_use]
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
            content_type: Self::JSON.to_owned(),
            authorities_file: None,
            retry_timeout: Duration::from_mins(10),
        }
    }
}
