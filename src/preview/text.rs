//! The text of `headgate plan`. Pure.
//!
//! Invariant: names and messages of others are escaped for a terminal, and none breaks a line.

use std::fmt::Write as _;

use headgate_controller::admin_state::AdminStateMode;
use headgate_core::telemetry::{escape_line, first_names};
use headgate_maintenance::api::{ConnectionsPolicy, DrainPlanEntry, LoadBalancerConfirmation, PodType};
use jiff::Timestamp;

use super::report::{PoolPreviewRow, Preview, StepRow};
use crate::report::{Detail, Report};
use crate::status::{counted, format_columns};

/// Pods of one step in a narrow text.
const MAX_PODS: usize = 20;
/// Blocked pods, budgets and annotations in a narrow text.
const MAX_ROWS: usize = 20;

impl Report for Preview {
    const KIND: Option<&'static str> = Some("DrainPreview");

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("node/{}", node.name)).collect()
    }

    /// The narrow text leaves out rows beyond a number, and columns.
    fn text(&self, detail: Detail) -> String {
        let mut text = String::new();
        let nodes = self.nodes.len();
        let pods: usize = self.nodes.iter().map(|node| node.pods).sum();
        let _ = writeln!(
            text,
            "{} would leave {}. Nothing was written.\n",
            counted(pods, "pod"),
            counted(nodes, "node")
        );
        if self.nodes.is_empty() {
            text.push_str("The selector matches no node.\n");
            return text;
        }
        text += &nodes_table(self, detail);
        text.push('\n');
        text += &pools_text(self, detail);
        text.push('\n');
        text += &steps_text(self, detail);
        let below = notes(self, detail);
        if !below.is_empty() {
            text.push('\n');
        }
        for note in below {
            let _ = writeln!(text, "{}", escape_line(&note));
        }
        text
    }
}

/// How many rows are shown where the narrow text has `narrow` at most.
fn limit(detail: Detail, narrow: usize) -> usize {
    match detail {
        Detail::Narrow => narrow,
        Detail::Wide => usize::MAX,
    }
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn nodes_table(preview: &Preview, detail: Detail) -> String {
    let is_wide = detail == Detail::Wide;
    let rows: Vec<_> = preview
        .nodes
        .iter()
        .map(|node| {
            let state = match (node.ready, node.cordoned) {
                (true, false) => "Ready",
                (true, true) => "Ready, cordoned",
                (false, false) => "not Ready",
                (false, true) => "not Ready, cordoned",
            };
            let mut row = vec![
                node.name.clone(),
                state.to_owned(),
                node.pods.to_string(),
                (node.exempt + node.unsupported).to_string(),
            ];
            if is_wide {
                row.extend([node.exempt.to_string(), node.unsupported.to_string()]);
            }
            row
        })
        .collect();
    let mut header = cells(["NODE", "STATE", "PODS THAT LEAVE", "PODS THAT STAY"]);
    if is_wide {
        header.extend(cells(["OF DAEMONSETS", "STATIC"]));
    }
    format_columns(&header, &rows)
}

/// The first step: out of the load balancers.
fn pools_text(preview: &Preview, detail: Detail) -> String {
    let mut text = String::from("1. Out of the load balancers.");
    let gate = preview.maintenance.spec.load_balancer;
    let _ = match gate.confirmation {
        LoadBalancerConfirmation::Required => writeln!(
            text,
            " No pod leaves before a read confirms it, and {} s have passed.",
            gate.connections_drain_seconds
        ),
        LoadBalancerConfirmation::BestEffort => writeln!(
            text,
            " Pods leave {} s after a read confirms it, or after {} s without.",
            gate.connections_drain_seconds, gate.confirmation_timeout_seconds
        ),
    };
    if gate.connections == ConnectionsPolicy::Wait {
        let _ = writeln!(
            text,
            "   Where agents count connections (connections.count), pods also wait for the last one, {} s longer at most.",
            gate.connections_timeout_seconds
        );
    }
    if let Some(error) = &preview.azure_error {
        let _ = writeln!(text, "   The pools are not known: {}", escape_line(error));
        return text;
    }
    for unattributed in &preview.unattributed {
        let _ = writeln!(
            text,
            "   Pool entries may belong to any Node: {}.",
            escape_line(unattributed)
        );
    }
    if preview.pools.is_empty() {
        text.push_str(if preview.unattributed.is_empty() {
            "   No managed pool has an entry of these nodes.\n"
        } else {
            "   No other entry of a managed pool is of these nodes.\n"
        });
        return text;
    }
    let is_wide = detail == Detail::Wide;
    let row = |pool: &PoolPreviewRow| {
        let mut row = vec![
            format!("   {}", pool.load_balancer),
            pool.pool.clone(),
            pool.entries.to_string(),
            pool.down.to_string(),
            pool.leaving.to_string(),
            pool.remaining.to_string(),
        ];
        if is_wide {
            row.extend([pool.minimum_in_service.to_string(), pool.nodes.join(", ")]);
        }
        row
    };
    let rows: Vec<_> = preview.pools.iter().map(row).collect();
    let mut header = cells(["   LOAD BALANCER", "POOL", "ENTRIES", "DOWN", "LEAVING", "REMAINING"]);
    if is_wide {
        header.extend(cells(["MINIMUM", "NODES THAT LEAVE"]));
    }
    text += &format_columns(&header, &rows);
    text
}

/// The steps in which pods leave.
fn steps_text(preview: &Preview, detail: Detail) -> String {
    let mut text = String::new();
    for (index, step) in preview.steps.iter().enumerate() {
        let _ = writeln!(
            text,
            "{}. {}: {}.",
            index + 2,
            entry_text(&step.entry),
            counted(step.pods.len(), "pod")
        );
        text += &pods_text(step, detail);
    }
    if preview.steps.is_empty() {
        text.push_str("2. No pod has to leave.\n");
    }
    text
}

fn entry_text(entry: &DrainPlanEntry) -> String {
    let kind = match entry.pod_type {
        PodType::Default => "Pods",
        PodType::DaemonSet => "Pods of DaemonSets",
        PodType::Static => "Static pods",
    };
    let selector = entry.pod_selector.as_ref().map_or_else(String::new, |selector| {
        let selector = serde_json::to_string(selector).unwrap_or_default();
        format!(" that {} selects", escape_line(&selector))
    });
    format!("{kind} of priority {} or lower{selector}", entry.pod_priority)
}

fn pods_text(step: &StepRow, detail: Detail) -> String {
    let limit = limit(detail, MAX_PODS);
    let row = |pod: &super::report::LeavingPodRow| {
        let by = match step.entry.pod_type {
            PodType::DaemonSet => "deleted".to_owned(),
            _ if pod.evacuators.is_empty() => "Eviction API".to_owned(),
            _ => format!("{}, then Eviction API", pod.evacuators.join(", ")),
        };
        vec![
            format!("   {}", pod.pod),
            pod.node.clone(),
            pod.priority.to_string(),
            by,
        ]
    };
    let rows: Vec<_> = step.pods.iter().take(limit).map(row).collect();
    let mut text = format_columns(&cells(["   POD", "NODE", "PRIORITY", "LEAVES BY"]), &rows);
    let more = step.pods.len().saturating_sub(limit);
    if more > 0 {
        let _ = writeln!(text, "   {more} more pods; -o wide has all.");
    }
    text
}

/// What would stop or slow the drain down, one line for each.
fn notes(preview: &Preview, detail: Detail) -> Vec<String> {
    let limit = limit(detail, MAX_ROWS);
    let mut notes = Vec::new();
    let waiting: Vec<&str> = preview
        .nodes
        .iter()
        .filter(|node| node.waiting_for_room)
        .map(|node| &*node.name)
        .collect();
    if !waiting.is_empty() {
        notes.push(format!(
            "maintenance.maxConcurrentNodes ({}) has no room for {}: {}. {} until other nodes are given back.",
            preview.max_concurrent_nodes,
            counted(waiting.len(), "node"),
            first_names(&waiting, limit),
            if waiting.len() == 1 { "It waits" } else { "They wait" }
        ));
    }
    let not_enforced = preview
        .admin_state_mode
        .filter(|word| *word != AdminStateMode::Enforce.as_str());
    if let Some(word) = not_enforced.filter(|_| !preview.pools.is_empty()) {
        notes.push(format!(
            "adminState.mode is {word}: the leader sets nothing Down, so no read confirms that the nodes are out, and the drain waits."
        ));
    }
    for pool in &preview.pools {
        for kept in &pool.kept {
            let mut note = format!(
                "{}/{} keeps {} in service: {}.",
                pool.load_balancer,
                pool.pool,
                first_names(&kept.nodes, limit),
                kept.reason
            );
            if kept.held_back {
                let _ = write!(
                    note,
                    " Their pods leave only after loadBalancer.confirmationTimeoutSeconds ({} s).",
                    preview.maintenance.spec.load_balancer.confirmation_timeout_seconds
                );
            }
            notes.push(note);
        }
    }
    for pool in preview.pools.iter().filter(|pool| pool.leaving > pool.max_new_down) {
        notes.push(format!(
            "{}/{} loses {} entries, and adminState.maxNewDown lets {} of them go within 5 min: the others wait, and so do their pods.",
            pool.load_balancer, pool.pool, pool.leaving, pool.max_new_down
        ));
    }
    for other in &preview.other_maintenances {
        notes.push(format!(
            "NodeMaintenance {} (stage {}) has the same nodes: {}. The one that is furthest behind decides what leaves.",
            other.name,
            other.stage,
            other.nodes.join(", ")
        ));
    }
    let mut limited = |rows: Vec<String>, what: &str| {
        let more = rows.len().saturating_sub(limit);
        notes.extend(rows.into_iter().take(limit));
        if more > 0 {
            notes.push(format!("{more} more {what}; -o wide has all."));
        }
    };
    let blocked = preview.blocked.iter();
    let blocked = blocked.map(|row| format!("Blocked now: pod {} on {}: {}.", row.pod, row.node, row.message));
    limited(blocked.collect(), "blocked pods");
    let narrow = preview.budgets.iter().filter(|row| {
        let allowed = usize::try_from(row.disruptions_allowed).unwrap_or_default();
        allowed > 0 && allowed < row.pods
    });
    let narrow = narrow.map(|row| {
        format!(
            "PodDisruptionBudget {} allows {} disruptions now, and is about {} of these pods: the others wait for replacements.",
            row.budget, row.disruptions_allowed, row.pods
        )
    });
    limited(narrow.collect(), "budgets");
    let malformed = preview.malformed_annotations.iter();
    let malformed = malformed.map(|row| format!("Pod {}: {}.", row.pod, row.message));
    limited(malformed.collect(), "malformed annotations");
    notes
}
