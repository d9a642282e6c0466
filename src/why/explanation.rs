//! The explanation: from the two views to words and to JSON. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::reasons;
use super::views::{AgentView, ApiView, Views};

/// Whether new connections are sent, as far as probes and the Node's labels decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Sent {
    /// Probes are told that the node is good.
    Yes,
    /// Probes are told, or must conclude, that it is not; or it is left out of load balancers.
    No,
    /// The agent could not be asked, so it is not known what probes are told.
    Unknown,
}

/// One thing that speaks against the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    /// The signal or the label, `health port`, or `kube-proxy`.
    pub name: String,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
    /// What it means.
    pub meaning: String,
    /// What would end it.
    pub ends: String,
}

/// Why traffic is or is not sent to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The node.
    pub node: String,
    /// Whether traffic is sent.
    pub sent: Sent,
    /// Since when it is so, where that is known.
    pub since: Option<Timestamp>,
    /// What `/healthz` answers, where its agent was asked and serves it.
    pub healthz: Option<u16>,
    /// What speaks against it.
    pub reasons: Vec<Reason>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
    /// Whether its agent was asked, or this is the API server's word alone.
    pub agent_asked: bool,
    /// When this was asked.
    pub asked_at: Timestamp,
}

/// Explains a node. Pure.
#[must_use]
pub fn explain(node: &str, views: &Views, now: Timestamp) -> Explanation {
    let (mut reasons, mut notes) = (Vec::new(), Vec::new());
    let (mut sent, mut since, mut healthz) = (Sent::Unknown, None, None);
    match (&views.agent, &views.api) {
        (Ok(agent), api) => {
            heed_agent(node, agent, now, &mut reasons, &mut notes);
            if let Ok(api) = api {
                compare(agent, api, &mut notes);
            }
            if agent.health_port_trouble().is_none() {
                healthz = Some(agent.healthz.code);
                since = agent.healthz.since;
            }
            sent = if healthz == Some(200) { Sent::Yes } else { Sent::No };
        }
        (Err(why), Ok(api)) => {
            notes.push(format!(
                "Asking its agent: {why}. If probes get no answer either, load balancers take the node out."
            ));
            reasons.extend(
                api.signals
                    .iter()
                    .map(|view| reasons::signal(node, &view.signal, view.since)),
            );
            if !api.signals.is_empty() {
                sent = Sent::No;
            }
        }
        (Err(_), Err(_)) => {}
    }
    match &views.api {
        Err(why) => notes.push(format!(
            "The API server could not be asked ({why}); this is the agent's word alone."
        )),
        Ok(api) => {
            if api.cordoned {
                notes.push("It is cordoned. That keeps new Pods away, not traffic.".to_owned());
            }
            if api.excluded {
                reasons.push(reasons::excluded(node));
                // Since when somebody labelled it is not known; since when probes fail is.
                since = since.filter(|_| sent == Sent::No);
                sent = Sent::No;
            }
        }
    }
    reasons.sort_by(|a, b| a.name.cmp(&b.name));
    Explanation {
        node: node.to_owned(),
        sent,
        since,
        healthz,
        reasons,
        notes,
        agent_asked: views.agent.is_ok(),
        asked_at: now,
    }
}

/// What the agent says of itself.
fn heed_agent(node: &str, agent: &AgentView, now: Timestamp, reasons: &mut Vec<Reason>, notes: &mut Vec<String>) {
    if agent.node.source != "watch" {
        notes.push(reasons::known_from(&agent.node.source).to_owned());
    }
    if let Some(trouble) = &agent.node.watch_error {
        let (since, error) = (Since(trouble.since, now), &trouble.error);
        notes.push(format!(
            "Its agent cannot watch the Node{since}: {error}. What it knows goes on."
        ));
    }
    let signals = agent.node.signals.iter();
    reasons.extend(signals.map(|view| reasons::signal(node, &view.signal, view.since)));
    if agent.livez.code != 200 {
        reasons.push(reasons::stale_proxy(agent.proxy.server.as_deref(), agent.livez.since));
    }
    reasons.extend(agent.health_port_trouble().map(reasons::health_port));
}

/// Where the two do not agree.
fn compare(agent: &AgentView, api: &ApiView, notes: &mut Vec<String>) {
    let seen = |signal: &str| agent.node.signals.iter().any(|view| view.signal == signal);
    for view in api.signals.iter().filter(|view| !seen(&view.signal)) {
        notes.push(format!(
            "The Node carries {}, which its agent does not act on: it has not seen it yet, or its settings leave it out.",
            view.signal
        ));
    }
    // By any taint: the agent's settings may list others than were given here.
    let carried = |signal: &str| {
        api.signals.iter().any(|view| view.signal == signal) || api.taints.iter().any(|key| key == signal)
    };
    let old = agent.node.signals.iter().map(|view| view.signal.as_str());
    for signal in old.filter(|signal| !reasons::is_agents_own(signal) && !carried(signal)) {
        notes.push(format!(
            "The Node no longer carries {signal}, which its agent has not seen yet."
        ));
    }
}

/// "since 2026-01-02T03:04:05Z (12 s)", or nothing.
struct Since(Option<Timestamp>, Timestamp);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some(since) => write!(
                f,
                ", since {since:.0} ({} s)",
                self.1.duration_since(since).as_secs().max(0)
            ),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Since(self.since, self.asked_at);
        let node = &self.node;
        match self.sent {
            Sent::Yes => writeln!(f, "{node}: new connections are sent here{since}: /healthz answers 200.")?,
            Sent::No if self.healthz == Some(200) => {
                writeln!(
                    f,
                    "{node}: no new connections should be sent here, though /healthz answers 200."
                )?;
            }
            Sent::No if self.healthz.is_some() => {
                writeln!(
                    f,
                    "{node}: no new connections are sent here{since}: /healthz answers 503."
                )?;
            }
            Sent::No if self.agent_asked => {
                writeln!(
                    f,
                    "{node}: no new connections should be sent here: its agent does not serve /healthz."
                )?;
            }
            Sent::No => writeln!(
                f,
                "{node}: no new connections should be sent here, but its agent could not be asked."
            )?,
            Sent::Unknown => writeln!(
                f,
                "{node}: nothing speaks against it, but its agent could not be asked."
            )?,
        }
        for reason in &self.reasons {
            writeln!(f, "\n  {}{}", reason.name, Since(reason.since, self.asked_at))?;
            writeln!(f, "    {}", reason.meaning)?;
            writeln!(f, "    Ends with {}", reason.ends)?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
