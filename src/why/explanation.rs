//! The explanation: from the observations to text and JSON. Pure.

use std::fmt;

use headgate_core::node::{MAINTENANCE_TAINT, Signal};
use headgate_core::telemetry::escape_line;
use jiff::Timestamp;
use serde::Serialize;

use super::maintenances::MaintenanceRow;
use super::observations::{Observations, ObservedNode};
use super::reasons;
use super::wide::AgentFacts;
use crate::agent_status::{AgentStatus, PathStatus};
use crate::drain::EndedBy;

/// Whether a load balancer that probes `/healthz` sends new connections to the node. What others do is not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum NewConnections {
    /// Probes get 200, and the node is neither excluded nor `Down`.
    Yes,
    /// Probes get 503 or no answer, or the node is excluded from load balancers, or `Down` in its backend pools.
    No,
    /// The agent did not answer, so it is not known what probes get.
    Unknown,
}

/// One reason why new connections are not sent to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reason {
    /// The name of the signal or of the label, `health port`, `kube-proxy` or `admin state`.
    pub name: String,
    /// The start, if it is known.
    pub since: Option<Timestamp>,
    /// What the reason means, as one or two sentences.
    pub meaning: String,
    /// What ends it; completes "Ends with …".
    pub ends: String,
}

/// Why new connections are or are not sent to a node; `-o json` prints this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// The name of the node.
    pub node: String,
    /// Whether a load balancer that probes `/healthz` sends new connections.
    pub sent: NewConnections,
    /// The time of the last change, if it is known.
    pub since: Option<Timestamp>,
    /// The status of `/healthz`, if the agent answered and serves it.
    pub healthz: Option<u16>,
    /// The reasons against new connections.
    pub reasons: Vec<Reason>,
    /// The `NodeMaintenance`s of the node, each with the row of this node.
    pub maintenances: Vec<MaintenanceRow>,
    /// Further facts, one sentence or two each.
    pub notes: Vec<String>,
    /// Whether the agent answered; otherwise only the Node object is known.
    #[serde(rename = "agentAsked")]
    pub agent_answered: bool,
    /// What the agent answered about itself, if it did.
    pub agent: Option<AgentFacts>,
    /// What the API server answered about the Node, if it did.
    pub node_object: Option<ObservedNode>,
    /// The time of the queries.
    #[serde(rename = "askedAt")]
    pub taken_at: Timestamp,
}

/// Explains the node `name` from its observations. Pure.
pub(crate) fn explain(name: &str, observations: &Observations, now: Timestamp) -> Explanation {
    let (mut reasons, mut notes) = (Vec::new(), Vec::new());
    let (mut sent, mut since, mut healthz) = (NewConnections::Unknown, None, None);
    match (&observations.agent, &observations.api) {
        (Ok(agent), api) => {
            explain_agent(name, agent, now, &mut reasons, &mut notes);
            notes.extend(hold_note(agent, api.as_ref().ok()));
            if let Ok(node) = api {
                compare(agent, node, &mut notes);
            }
            if agent.health_port_error().is_none() {
                healthz = agent.healthz.map(|path| path.code);
                since = agent.healthz.and_then(|path| path.since);
            }
            sent = if healthz == Some(200) {
                NewConnections::Yes
            } else {
                NewConnections::No
            };
        }
        (Err(error), Ok(node)) => {
            notes.push(format!(
                "The agent did not answer: {error}. If probes get no answer either, load balancers take the node out."
            ));
            reasons.extend(
                node.signals
                    .iter()
                    .map(|status| reasons::signal(name, &status.parse(), status.since)),
            );
            if !node.signals.is_empty() {
                sent = NewConnections::No;
            }
        }
        (Err(_), Err(_)) => {}
    }
    match &observations.api {
        Err(error) => notes.push(format!(
            "The API server did not answer ({error}); this is the agent's status alone."
        )),
        Ok(node) => {
            notes.extend(node.marker.as_ref().map(reasons::marker_note));
            if node.cordoned {
                notes.push(reasons::cordon_note(node.marker.as_ref()).to_owned());
            }
            if let Some(reason) = node
                .marker
                .as_ref()
                .and_then(|marker| reasons::admin_state(marker, now))
            {
                since = since.filter(|_| sent == NewConnections::No).or(reason.since);
                sent = NewConnections::No;
                reasons.push(reason);
            }
            if node.excluded {
                reasons.push(reasons::exclude_label(name));
                // The time of the label is not known; the time since which probes fail is.
                since = since.filter(|_| sent == NewConnections::No);
                sent = NewConnections::No;
            }
        }
    }
    // Where the node shows no trace of one, a token that may not list them is no news.
    let may_be_maintained =
        |node: &ObservedNode| node.cordoned || node.taints.iter().any(|key| key == MAINTENANCE_TAINT);
    if let (Ok(node), Err(error)) = (&observations.api, &observations.maintenances)
        && may_be_maintained(node)
    {
        notes.push(format!("NodeMaintenances are not known: {error}"));
    }
    let maintenances = observations.maintenances.clone().unwrap_or_default();
    for reason in reasons.iter_mut().filter(|reason| reason.name == MAINTENANCE_TAINT) {
        explain_maintenance_taint(reason, &maintenances);
    }
    reasons.sort_by(|a, b| a.name.cmp(&b.name));
    Explanation {
        maintenances,
        node: name.to_owned(),
        sent,
        since,
        healthz,
        reasons,
        notes,
        agent_answered: observations.agent.is_ok(),
        agent: observations.agent.as_ref().ok().map(AgentFacts::new),
        node_object: observations.api.as_ref().ok().cloned(),
        taken_at: now,
    }
}

/// Says that the leader holds the node back, and why: the agent follows the hold, or answers 503 all the same.
fn hold_note(agent: &AgentStatus, node: Option<&ObservedNode>) -> Option<String> {
    let recorded = node.and_then(|node| node.hold.as_ref());
    let reason = recorded
        .map(|hold| hold.reason.as_str())
        .filter(|reason| !reason.is_empty());
    let signals = &agent.node.signals;
    if let Some(hold) = &agent.node.hold {
        return Some(reasons::hold_note(signals, &hold.pools, reason));
    }
    let recorded = recorded.filter(|hold| !hold.probes_headgate && !signals.is_empty())?;
    let held = reasons::hold_note(signals, &recorded.pools, reason);
    Some(format!("{held} /healthz answers 503 all the same."))
}

/// Adds the reasons and notes that follow from the agent's status.
fn explain_agent(name: &str, agent: &AgentStatus, now: Timestamp, reasons: &mut Vec<Reason>, notes: &mut Vec<String>) {
    notes.extend(reasons::source_note(agent.node.source).map(str::to_owned));
    if let Some(failure) = &agent.node.watch_error {
        let (since, error) = (Since(Some(failure.since), now), &failure.error);
        notes.push(format!(
            "The agent cannot watch the Node{since}: {error}. The last known state stays in use."
        ));
    }
    if agent.node.hold.is_none() {
        let signals = agent.node.signals.iter();
        reasons.extend(signals.map(|status| reasons::signal(name, &status.parse(), status.since)));
    }
    if let Some(PathStatus { since, .. }) = agent.livez.filter(|livez| livez.code != 200) {
        let server = agent.proxy.as_ref().and_then(|proxy| proxy.server.as_deref());
        reasons.push(reasons::unhealthy_kube_proxy(server, since));
    }
    notes.extend(agent.connections.as_ref().and_then(reasons::connections_note));
    reasons.extend(agent.health_port_error().map(reasons::unbound_health_port));
}

/// Adds notes about differences between the agent's signals and those of the Node object.
fn compare(agent: &AgentStatus, node: &ObservedNode, notes: &mut Vec<String>) {
    let is_known = |signal: &str| agent.node.signals.iter().any(|status| status.signal == signal);
    for status in node.signals.iter().filter(|status| !is_known(&status.signal)) {
        notes.push(format!(
            "The Node has {}, which the agent does not act on: it has not observed it yet, or its settings do not list it.",
            status.signal
        ));
    }
    // The agent's settings may list other matchers than those given here; of a taint the Node shows whether it is there.
    let is_in_node = |signal: &str| {
        node.signals.iter().any(|status| status.signal == signal) || node.taints.iter().any(|key| key == signal)
    };
    let in_node_object = agent
        .node
        .signals
        .iter()
        .filter(|status| matches!(status.parse(), Signal::Deletion | Signal::Shutdown | Signal::Taint(_)));
    for status in in_node_object.filter(|status| !is_in_node(&status.signal)) {
        notes.push(format!(
            "The Node no longer has {}, which the agent has not observed yet.",
            status.signal
        ));
    }
}

/// Formats as ", since 2026-01-02T03:04:05Z (12 s)", or as nothing for `None`.
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

/// While a maintenance drains the node, its taint comes back where it is removed by hand.
fn explain_maintenance_taint(reason: &mut Reason, maintenances: &[MaintenanceRow]) {
    let draining = maintenances.iter().filter(|row| row.stage == "Drain" && !row.dry_run);
    let names: Vec<_> = draining.map(|row| row.name.as_str()).collect();
    if !names.is_empty() {
        reason.ends = format!(
            "that of NodeMaintenance {}; removed by hand, the taint comes back",
            names.join(", ")
        );
    }
}

impl Explanation {
    /// What a `NodeMaintenance` does with the node, and what it waits for.
    fn write_maintenance(&self, row: &MaintenanceRow, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = escape_line(&row.name);
        let since = Since(row.stage_since, self.taken_at);
        writeln!(f, "\n  NodeMaintenance {name}, stage {}{since}", row.stage_text())?;
        if !row.reason.is_empty() {
            writeln!(f, "    For: {}", escape_line(&row.reason))?;
        }
        for node in &row.nodes {
            let waits = if node.message.is_empty() {
                String::new()
            } else {
                format!("; {}", node.message)
            };
            let pods = match (node.pods_left(), node.pods_evacuating) {
                (1, 0) => "1 pod has to leave".to_owned(),
                (1, _) => "1 pod has to leave and evacuates".to_owned(),
                (left, evacuating) => format!("{left} pods have to leave, {evacuating} of them evacuate"),
            };
            writeln!(
                f,
                "    The node is {}; {pods}{}",
                node.load_balancer_text(),
                escape_line(&waits)
            )?;
            for blocker in &node.blockers {
                let since = Since(Some(blocker.since), self.taken_at);
                writeln!(
                    f,
                    "    {} stays{since}: {}",
                    escape_line(&blocker.pod),
                    escape_line(&blocker.message)
                )?;
            }
            let hidden = node
                .blockers_total
                .saturating_sub(i32::try_from(node.blockers.len()).unwrap_or(i32::MAX));
            if hidden > 0 {
                writeln!(f, "    {hidden} more pods are blocked.")?;
            }
        }
        let node = escape_line(&self.node);
        let ends = match row.ended_by {
            EndedBy::Nothing => return Ok(()),
            EndedBy::Undrain => format!("its deletion: headgate undrain {node}, or kubectl delete hgnm {name}"),
            EndedBy::UndrainLabels => format!(
                "its deletion: headgate undrain with the labels that headgate drain got, or kubectl delete hgnm {name}"
            ),
            EndedBy::Deletion => format!("its deletion, for all of its nodes: kubectl delete hgnm {name}"),
            EndedBy::Completion => format!(
                "the stage Complete (deleted, it is created again): \
                 kubectl patch hgnm {name} --type merge -p '{{\"spec\":{{\"stage\":\"Complete\"}}}}'"
            ),
        };
        writeln!(f, "    Ends with {ends}")
    }
}

/// The text that `headgate why` prints. What agents and the API server sent is escaped for a terminal, and breaks no line.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Since(self.since, self.taken_at);
        let node = escape_line(&self.node);
        let verdict = match self.sent {
            NewConnections::Yes => {
                format!("/healthz answers 200{since}: a load balancer that probes it sends new connections.")
            }
            NewConnections::No if self.healthz == Some(200) => {
                "no new connections should be sent here, though /healthz answers 200.".to_owned()
            }
            NewConnections::No if self.healthz.is_some() => {
                format!("/healthz answers 503{since}: a load balancer that probes it sends no new connections.")
            }
            NewConnections::No if self.agent_answered => {
                "its agent does not serve /healthz: a load balancer that probes it sends no new connections.".to_owned()
            }
            NewConnections::No => "no new connections should be sent here, but its agent did not answer.".to_owned(),
            NewConnections::Unknown => {
                "there is no reason against new connections, but its agent did not answer.".to_owned()
            }
        };
        writeln!(f, "{node}: {verdict}")?;
        for reason in &self.reasons {
            let since = Since(reason.since, self.taken_at);
            writeln!(f, "\n  {}{since}", escape_line(&reason.name))?;
            writeln!(f, "    {}", escape_line(&reason.meaning))?;
            writeln!(f, "    Ends with {}", escape_line(&reason.ends))?;
        }
        for row in &self.maintenances {
            self.write_maintenance(row, f)?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "  {}", escape_line(note))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod named_reasons;
#[cfg(test)]
mod tests;
