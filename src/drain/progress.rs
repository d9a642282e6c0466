//! From each state of a `NodeMaintenance` to lines of text, and to the end. Pure.
//!
//! A node has one line: its pods, its load balancers, what it waits for, also for how many connections, and what blocks which pod. The
//! line is printed whenever it has changed. While nothing changes, [`Progress::remind`] repeats those of the nodes that are not drained.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_maintenance::api::{
    LoadBalancerState, LoadBalancerStatus, NodeMaintenance, NodeMaintenanceNodeStatus, NodeMaintenanceStatus, Stage,
};
use headgate_maintenance::plan::conditions::{DRAINED, NO_NODES, PROGRESSING, find};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;

/// After so long without a status, no controller seems to run.
pub(super) const UNANSWERED_AFTER: Duration = Duration::from_secs(15);
/// Between two reminders.
pub(super) const REMIND_INTERVAL: Duration = Duration::from_secs(30);
/// Nodes in one reminder.
const MAX_NODES_REMINDED: usize = 10;

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All pods have left all nodes.
    Drained,
    /// The maintenance has `spec.dryRun`, and its status shows what would be done.
    Shown,
    /// It ended, or selects other nodes by now, before its nodes were drained.
    NotDrained(String),
    /// It selects no node, and stays: it drains those that it selects later.
    NoNodes,
}

/// What was reported of a `NodeMaintenance`.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    name: String,
    uid: Option<String>,
    node_selector: NodeSelector,
    started_at: Timestamp,
    status: Option<NodeMaintenanceStatus>,
    /// The last line of each node.
    node_lines: BTreeMap<String, String>,
    is_unanswered_reported: bool,
    last_line_at: Timestamp,
}

impl Progress {
    /// Nothing is reported yet of `object`.
    pub(crate) fn new(object: &NodeMaintenance, now: Timestamp) -> Self {
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            uid: object.metadata.uid.clone(),
            node_selector: object.spec.node_selector.clone(),
            started_at: now,
            status: None,
            node_lines: BTreeMap::new(),
            is_unanswered_reported: false,
            last_line_at: now,
        }
    }

    /// What is new with this state, and whether it is the last one. `None` stands for an object that does not exist.
    pub(crate) fn update(
        &mut self,
        object: Option<&NodeMaintenance>,
        now: Timestamp,
    ) -> (Vec<String>, Option<Outcome>) {
        let Some(object) = object.filter(|object| object.metadata.uid == self.uid) else {
            return (Vec::new(), Some(Outcome::NotDrained("it was deleted".to_owned())));
        };
        // Such as by `headgate undrain` for one of several nodes, whose pods stay.
        if object.spec.node_selector != self.node_selector {
            let why = "its nodeSelector was changed; it goes on for the nodes that it selects now".to_owned();
            return (Vec::new(), Some(Outcome::NotDrained(why)));
        }
        let mut lines = Vec::new();
        let is_first = self.status.is_none();
        if let Some(status) = &object.status {
            let known = self.status.iter().flat_map(|known| &known.stage_statuses);
            let known: Vec<Stage> = known.map(|stage| stage.name).collect();
            let new = status
                .stage_statuses
                .iter()
                .filter(|stage| !known.contains(&stage.name));
            lines.extend(new.map(|stage| format!("{}: stage {} started", self.prefix(), stage.name.as_str())));
            for node in &status.node_statuses {
                let line = node_line(node);
                if self.node_lines.get(&node.node_ref.name) != Some(&line) {
                    self.node_lines.insert(node.node_ref.name.clone(), line.clone());
                    lines.push(line);
                }
            }
            self.status = Some(status.clone());
        }
        let outcome = outcome(object);
        match &outcome {
            Some(Outcome::Drained) => {
                // What was so when the command began took none of its time.
                let when = match self.drained_since().filter(|_| is_first) {
                    Some(since) => format!("since {since:.0}"),
                    None => format!("after {}", elapsed_text(self.started_at, now)),
                };
                lines.push(format!("{} drained, {when}", self.prefix()));
            }
            Some(Outcome::Shown) => lines.push(format!("{}: dry run, nothing is changed", self.prefix())),
            Some(Outcome::NotDrained(_) | Outcome::NoNodes) | None => {}
        }
        if !lines.is_empty() {
            self.last_line_at = now;
        }
        (lines, outcome)
    }

    /// What is waited for, where nothing has changed for [`REMIND_INTERVAL`].
    pub(crate) fn remind(&mut self, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        if self.status.is_none() {
            let is_late = elapsed(self.started_at, now) >= UNANSWERED_AFTER;
            if is_late && !self.is_unanswered_reported {
                self.is_unanswered_reported = true;
                lines.push(unanswered_line(&self.name));
            }
        } else if elapsed(self.last_line_at, now) >= REMIND_INTERVAL {
            lines = self.unfinished();
        }
        if !lines.is_empty() {
            self.last_line_at = now;
        }
        lines
    }

    /// The lines of the nodes that are not drained: those of the first few, and how many more there are.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let all = self.status.iter().flat_map(|status| &status.node_statuses);
        let unfinished: Vec<_> = all.filter(|node| !is_done(node)).collect();
        let first = unfinished.iter().take(MAX_NODES_REMINDED);
        let mut lines: Vec<_> = first.map(|node| node_line(node)).collect();
        let more = unfinished.len().saturating_sub(MAX_NODES_REMINDED);
        if more > 0 {
            lines.push(format!("{}: {more} more nodes are not drained", self.prefix()));
        }
        lines
    }

    fn drained_since(&self) -> Option<Timestamp> {
        let condition = find(&self.status.as_ref()?.conditions, DRAINED)?;
        Some(condition.last_transition_time.0)
    }

    fn prefix(&self) -> String {
        format!("nodemaintenance/{}", self.name)
    }
}

/// How the drain has ended by this state; `None` while it goes on.
pub(super) fn outcome(object: &NodeMaintenance) -> Option<Outcome> {
    if object.metadata.deletion_timestamp.is_some() {
        return Some(Outcome::NotDrained("it is being deleted".to_owned()));
    }
    if object.spec.stage == Stage::Complete {
        return Some(Outcome::NotDrained("its stage was set to Complete".to_owned()));
    }
    let status = object.status.as_ref()?;
    if status.observed_generation < object.metadata.generation {
        return None;
    }
    let drained = find(&status.conditions, DRAINED);
    if drained.is_some_and(|condition| condition.reason == NO_NODES) {
        return Some(Outcome::NoNodes);
    }
    if drained.is_some_and(|condition| condition.status == "True") {
        return Some(Outcome::Drained);
    }
    let progressing = find(&status.conditions, PROGRESSING);
    (object.spec.dry_run && progressing.is_some_and(|condition| condition.reason == "DryRun")).then_some(Outcome::Shown)
}

/// After [`UNANSWERED_AFTER`] without a change by a controller.
pub(super) fn unanswered_line(name: &str) -> String {
    format!(
        "nodemaintenance/{name}: no controller has answered yet. Is maintenance.enabled set, and does a controller lead? \
         headgate status shows the leader"
    )
}

fn is_done(node: &NodeMaintenanceNodeStatus) -> bool {
    let is_open = node
        .load_balancer
        .as_ref()
        .is_some_and(|status| matches!(status.state, LoadBalancerState::Out | LoadBalancerState::TimedOut));
    is_open && pods_left(node) == 0
}

fn pods_left(node: &NodeMaintenanceNodeStatus) -> i32 {
    node.pods_pending_evacuation + node.pods_evacuating
}

/// All about a node, on one line.
fn node_line(node: &NodeMaintenanceNodeStatus) -> String {
    let name = &node.node_ref.name;
    if is_done(node) {
        return format!("node/{name} drained{}", left_over(node));
    }
    let parts = [
        pods_text(node),
        node.load_balancer.as_ref().and_then(load_balancer_text),
        waiting_text(node),
        blockers_text(node),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("node/{name}: {}", parts.join("; "))
}

fn pods_text(node: &NodeMaintenanceNodeStatus) -> Option<String> {
    let left = match pods_left(node) {
        // Nothing is known of the pods before the drain has begun.
        0 if node.load_balancer.is_none() => return None,
        0 => "no pod left".to_owned(),
        1 => "1 pod left".to_owned(),
        more => format!("{more} pods left"),
    };
    Some(match node.pods_evacuating {
        0 => left,
        evacuating => format!("{left}, {evacuating} of them evacuating"),
    })
}

fn load_balancer_text(status: &LoadBalancerStatus) -> Option<String> {
    match status.state {
        // What it waits for is in the message.
        LoadBalancerState::Pending => None,
        LoadBalancerState::Draining | LoadBalancerState::Out => Some(match &status.down_time {
            None => "in no load balancer that a read shows".to_owned(),
            Some(since) => format!("out of its load balancers since {:.0}", since.0),
        }),
        LoadBalancerState::TimedOut => {
            Some("no read confirmed that it is out of its load balancers, and pods leave without".to_owned())
        }
    }
}

/// The message of the controller, unless it only says what the number of pods says as well.
fn waiting_text(node: &NodeMaintenanceNodeStatus) -> Option<String> {
    let message = node.drain_message.trim_end_matches('.');
    let mut characters = message.chars();
    let first = characters.next().filter(|_| message != "Evacuating")?;
    Some(format!("{}{}", first.to_lowercase(), characters.as_str()))
}

fn blockers_text(node: &NodeMaintenanceNodeStatus) -> Option<String> {
    let listed = node.blockers.iter().map(|blocker| {
        let since = blocker.first_observed_time.0;
        format!("{} since {since:.0}: {}", blocker.pod_ref, blocker.message)
    });
    let mut listed: Vec<_> = listed.collect();
    let total = usize::try_from(node.blockers_total)
        .unwrap_or_default()
        .max(listed.len());
    let more = total - listed.len();
    if more > 0 {
        listed.push(format!("and {more} more"));
    }
    let verb = if total == 1 {
        "1 pod is"
    } else {
        &format!("{total} pods are")
    };
    (total > 0).then(|| format!("{verb} blocked: {}", listed.join(", ")))
}

/// Pods that stay, after the words that a node is drained.
fn left_over(node: &NodeMaintenanceNodeStatus) -> String {
    let kinds = [
        (node.pods_exempt, "of DaemonSets that tolerate it"),
        (node.pods_unsupported, "static"),
    ];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} {kind}"))
        .collect();
    if kinds.is_empty() {
        String::new()
    } else {
        format!(" (pods that stay: {})", kinds.join(", "))
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Minutes and seconds, as `3m20s`.
fn elapsed_text(since: Timestamp, now: Timestamp) -> String {
    let seconds = elapsed(since, now).as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests;
