//! The facts behind an explanation, which `-o wide` adds to its text, and what of it a watch compares. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headgate_core::node::Source;
use headgate_core::telemetry::escape_line;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::explanation::Explanation;
use crate::agent_status::AgentStatus;
use crate::report::{Detail, Report};

/// What the agent answered about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentFacts {
    /// The version of its program.
    pub version: String,
    /// Where it has the state of the Node from.
    pub source: Source,
    /// The status of `/livez`.
    pub livez: Option<u16>,
    /// The last change of that status, if it is known.
    pub livez_since: Option<Timestamp>,
    /// The address of kube-proxy that it polls, if it polls one.
    pub kube_proxy: Option<String>,
    /// Whether kube-proxy is healthy, or its health unknown.
    pub kube_proxy_healthy: bool,
    /// Its listeners, each with its address or with the reason why it has none.
    pub listeners: BTreeMap<String, String>,
}

impl AgentFacts {
    pub(super) fn new(agent: &AgentStatus) -> Self {
        Self {
            version: agent.version.clone(),
            source: agent.node.source,
            livez: agent.livez.map(|path| path.code),
            livez_since: agent.livez.and_then(|path| path.since),
            kube_proxy: agent.proxy.as_ref().and_then(|proxy| proxy.server.clone()),
            kube_proxy_healthy: agent.proxy.as_ref().is_none_or(|proxy| proxy.healthy),
            listeners: agent.listeners.clone(),
        }
    }
}

impl Report for Explanation {
    const KIND: Option<&'static str> = Some("Explanation");

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    fn names(&self) -> Vec<String> {
        vec![format!("node/{}", self.node)]
    }

    /// The wide text has the facts below the other. What agents and the API server sent is escaped for a terminal, and breaks no line.
    fn text(&self, detail: Detail) -> String {
        let mut text = self.to_string();
        if detail == Detail::Narrow {
            return text;
        }
        text.push('\n');
        let mut row = |name: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {name:<20}{}", escape_line(value));
        };
        let list = |values: &[String]| {
            if values.is_empty() {
                "none".to_owned()
            } else {
                values.join(", ")
            }
        };
        if let Some(node) = &self.node_object {
            let yes = |is: bool| if is { "yes" } else { "no" };
            let address = node
                .address
                .map_or_else(|| "none".to_owned(), |address| address.to_string());
            row("InternalIP:", &address);
            row("Taints:", &list(&node.taints));
            row("Cordoned:", yes(node.cordoned));
            row("Excluded by label:", yes(node.excluded));
        }
        if let Some(agent) = &self.agent {
            row(
                "Agent:",
                &format!("{}, state of the Node from: {}", agent.version, agent.source.as_str()),
            );
            let since = agent
                .livez_since
                .map_or_else(String::new, |at| format!(", since {at:.0}"));
            if let Some(code) = agent.livez {
                row("/livez:", &format!("{code}{since}"));
            }
            let health = if agent.kube_proxy_healthy {
                "healthy or unknown"
            } else {
                "not healthy"
            };
            let proxy = agent.kube_proxy.as_deref().unwrap_or("not polled");
            row("kube-proxy:", &format!("{proxy}, {health}"));
            for (name, state) in &agent.listeners {
                row("Listener:", &format!("{name} {state}"));
            }
        }
        text
    }

    /// Without the time of the queries and the ages in notes.
    fn comparable(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["askedAt"] = Value::Null;
        json["notes"] = self.notes.iter().map(|note| without_ages(note)).collect();
        json
    }
}

/// The text without its ages, such as ` (12 s)`.
fn without_ages(text: &str) -> String {
    let mut parts = text.split(" (");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(" s)") {
            Some((age, rest)) if !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit()) => {
                kept.push_str(rest);
            }
            _ => {
                kept.push_str(" (");
                kept.push_str(part);
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_left_out() {
        assert_eq!(
            without_ages("cannot watch, since 2026-01-02T03:04:05Z (12 s): refused (111)."),
            "cannot watch, since 2026-01-02T03:04:05Z: refused (111)."
        );
        for text in ["", "a (b s) c", "a (", "( s)", "a ( s)"] {
            assert_eq!(without_ages(text), text);
        }
    }
}
