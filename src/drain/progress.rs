//! From each state of a `NodeMaintenance` to lines of text, and to the end. Pure.
//!
//! A line says what has changed since the state before. While nothing changes, [`Progress::remind`] repeats what is waited for.

use std::fmt::Write as _;
use std::time::Duration;

use headgate_maintenance::api::names::MAX_NODES;
use headgate_maintenance::api::{
    Blocker, LoadBalancerState, LoadBalancerStatus, NodeMaintenance, NodeMaintenanceNodeStatus, NodeMaintenanceStatus,
    Stage,
};
use headgate_maintenance::plan::conditions::{DRAINED, NO_NODES, PROGRESSING, TOO_MANY_NODES, find};
use jiff::Timestamp;

/// After so long without a status, no controller seems to run.
const UNANSWERED_AFTER: Duration = Duration::from_secs(15);
/// Between two reminders.
pub(super) const REMIND_INTERVAL: Duration = Duration::from_secs(30);
/// Nodes in one reminder.
const MAX_NODES_REMINDED: usize = 10;

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All pods have left all nodes.
    Drained,
    /// The maintenance has `spec.dryRun`, and its status shows what would be done.
    Shown,
    /// It ended before its nodes were drained, or selects no node or too many.
    NotDrained(String),
}

/// What was reported of a `NodeMaintenance`.
#[derive(Clone, Debug)]
pub struct Progress {
    name: String,
    uid: Option<String>,
    started_at: Timestamp,
    reported: NodeMaintenanceStatus,
    has_status: bool,
    is_unanswered_reported: bool,
    last_line_at: Timestamp,
}

impl Progress {
    /// Nothing is reported yet of `object`.
    #[must_use]
    pub fn new(object: &NodeMaintenance, now: Timestamp) -> Self {
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            uid: object.metadata.uid.clone(),
            started_at: now,
            reported: NodeMaintenanceStatus::default(),
            has_status: false,
            is_unanswered_reported: false,
            last_line_at: now,
        }
    }

    /// What is new with this state, and whether it is the last one. `None` stands for an object that does not exist.
    pub fn update(&mut self, object: Option<&NodeMaintenance>, now: Timestamp) -> (Vec<String>, Option<Outcome>) {
        let Some(object) = object.filter(|object| object.metadata.uid == self.uid) else {
            return (Vec::new(), Some(Outcome::NotDrained("it was deleted".to_owned())));
        };
        let mut lines = Vec::new();
        if let Some(status) = &object.status {
            self.has_status = true;
            for stage in &status.stage_statuses {
                if !self
                    .reported
                    .stage_statuses
                    .iter()
                    .any(|known| known.name == stage.name)
                {
                    lines.push(format!("{}: stage {} started", self.prefix(), stage.name.as_str()));
                }
            }
            for node in &status.node_statuses {
                let mut known = self.reported.node_statuses.iter();
                let known = known.find(|known| known.node_ref == node.node_ref);
                lines.extend(changes(known, node, now));
            }
            self.reported = status.clone();
        }
        let outcome = self.outcome(object);
        match &outcome {
            Some(Outcome::Drained) => {
                let took = age(self.started_at, now);
                lines.push(format!("{} drained, after {took}", self.prefix()));
            }
            Some(Outcome::Shown) => lines.push(format!("{}: dry run, nothing is changed", self.prefix())),
            Some(Outcome::NotDrained(_)) | None => {}
        }
        if !lines.is_empty() {
            self.last_line_at = now;
        }
        (lines, outcome)
    }

    /// What is waited for, where nothing has changed for [`REMIND_INTERVAL`].
    pub fn remind(&mut self, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.has_status {
            let is_late = elapsed(self.started_at, now) >= UNANSWERED_AFTER;
            if is_late && !self.is_unanswered_reported {
                self.is_unanswered_reported = true;
                lines.push(format!(
                    "{}: no controller has answered yet. Is maintenance.enabled set, and does a pod of components/controller lead? \
                     headgate status shows the leader",
                    self.prefix()
                ));
            }
        } else if elapsed(self.last_line_at, now) >= REMIND_INTERVAL {
            let all = &self.reported.node_statuses;
            let unfinished: Vec<_> = all.iter().filter(|node| !is_done(node)).collect();
            for node in unfinished.iter().take(MAX_NODES_REMINDED) {
                lines.push(pods_line(node));
                lines.extend(waiting_line(node));
                lines.extend(node.blockers.iter().map(|blocker| blocker_line(node, blocker, now)));
            }
            let more = unfinished.len().saturating_sub(MAX_NODES_REMINDED);
            if more > 0 {
                lines.push(format!("{}: {more} more nodes are not drained", self.prefix()));
            }
        }
        if !lines.is_empty() {
            self.last_line_at = now;
        }
        lines
    }

    fn prefix(&self) -> String {
        format!("nodemaintenance/{}", self.name)
    }

    fn outcome(&self, object: &NodeMaintenance) -> Option<Outcome> {
        let is_current = self.reported.observed_generation >= object.metadata.generation;
        let conditions = &self.reported.conditions;
        let drained = find(conditions, DRAINED).filter(|_| is_current);
        if object.metadata.deletion_timestamp.is_some() {
            return Some(Outcome::NotDrained("it is being deleted".to_owned()));
        }
        if object.spec.stage == Stage::Complete {
            return Some(Outcome::NotDrained("its stage was set to Complete".to_owned()));
        }
        let progressing = find(conditions, PROGRESSING).filter(|_| is_current);
        for condition in drained.iter().chain(&progressing) {
            match condition.reason.as_str() {
                NO_NODES => return Some(Outcome::NotDrained("it selects no node".to_owned())),
                TOO_MANY_NODES => {
                    let why = format!("it selects more than {MAX_NODES} nodes");
                    return Some(Outcome::NotDrained(why));
                }
                _ => {}
            }
        }
        if drained.is_some_and(|condition| condition.status == "True") {
            return Some(Outcome::Drained);
        }
        (object.spec.dry_run && progressing.is_some_and(|condition| condition.reason == "DryRun"))
            .then_some(Outcome::Shown)
    }
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

/// The lines about a node whose status was `known`.
fn changes(known: Option<&NodeMaintenanceNodeStatus>, node: &NodeMaintenanceNodeStatus, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let state = |node: &NodeMaintenanceNodeStatus| node.load_balancer.as_ref().map(|status| status.state);
    if known.and_then(state) != state(node)
        && let Some(status) = &node.load_balancer
    {
        lines.extend(load_balancer_line(node, status));
    }
    if known.is_none_or(|known| known.drain_message != node.drain_message) {
        lines.extend(waiting_line(node));
    }
    let count = |node: &NodeMaintenanceNodeStatus| (node.pods_pending_evacuation, node.pods_evacuating);
    let was_done = known.is_some_and(is_done);
    if is_done(node) && !was_done {
        lines.push(format!("node/{} drained{}", node.node_ref.name, left_over(node)));
    } else if !is_done(node) && known.map(count) != Some(count(node)) {
        lines.push(pods_line(node));
    }
    let is_in = |node: &NodeMaintenanceNodeStatus, blocker: &Blocker| {
        let mut all = node.blockers.iter();
        all.any(|one| one.pod_ref == blocker.pod_ref && one.message == blocker.message)
    };
    for blocker in &node.blockers {
        if known.is_none_or(|known| !is_in(known, blocker)) {
            lines.push(blocker_line(node, blocker, now));
        }
    }
    let hidden = |node: &NodeMaintenanceNodeStatus| {
        usize::try_from(node.blockers_total)
            .unwrap_or_default()
            .saturating_sub(node.blockers.len())
    };
    if hidden(node) > 0 && known.map(hidden) != Some(hidden(node)) {
        lines.push(format!(
            "node/{}: {} more pods are blocked",
            node.node_ref.name,
            hidden(node)
        ));
    }
    // With more blockers than are listed, one that is not listed any more may still be one.
    if hidden(node) == 0 {
        let gone = known.into_iter().flat_map(|known| &known.blockers).filter(|blocker| {
            let mut pods = node.blockers.iter();
            !pods.any(|one| one.pod_ref == blocker.pod_ref)
        });
        lines.extend(gone.map(|blocker| {
            format!(
                "node/{}: pod {} is no longer blocked",
                node.node_ref.name, blocker.pod_ref
            )
        }));
    }
    lines
}

fn load_balancer_line(node: &NodeMaintenanceNodeStatus, status: &LoadBalancerStatus) -> Option<String> {
    let name = &node.node_ref.name;
    match status.state {
        // What it waits for is in the message.
        LoadBalancerState::Pending => None,
        LoadBalancerState::Draining | LoadBalancerState::Out => {
            let mut line = format!("node/{name}: ");
            match &status.down_time {
                None => line.push_str("in no load balancer that a read shows"),
                Some(since) => {
                    let _ = write!(line, "out of its load balancers since {:.0}", since.0);
                }
            }
            if let Some(at) = &status.confirmed_time {
                let _ = write!(line, ", confirmed by a read at {:.0}", at.0);
            }
            Some(line)
        }
        LoadBalancerState::TimedOut => Some(format!(
            "node/{name}: no read confirmed that it is out of its load balancers; pods leave without"
        )),
    }
}

fn waiting_line(node: &NodeMaintenanceNodeStatus) -> Option<String> {
    let message = &node.drain_message;
    (!message.is_empty()).then(|| format!("node/{}: {message}", node.node_ref.name))
}

fn pods_line(node: &NodeMaintenanceNodeStatus) -> String {
    format!(
        "node/{}: {} {} left, {} of them evacuating",
        node.node_ref.name,
        pods_left(node),
        if pods_left(node) == 1 { "pod" } else { "pods" },
        node.pods_evacuating
    )
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

fn blocker_line(node: &NodeMaintenanceNodeStatus, blocker: &Blocker, now: Timestamp) -> String {
    let since = blocker.first_observed_time.0;
    format!(
        "node/{}: pod {} is blocked since {since:.0} ({}): {}",
        node.node_ref.name,
        blocker.pod_ref,
        age(since, now),
        blocker.message
    )
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Minutes and seconds, as `3m20s`.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = elapsed(since, now).as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests;
