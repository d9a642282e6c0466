//! The preview in the form of `-o json`, built from a snapshot. Pure.

use std::collections::{BTreeMap, BTreeSet};

use headgate_controller::admin_state::AdminStateMode;
use headgate_core::node::Node;
use headgate_maintenance::api::{BlockerReason, DrainPlanEntry, NodeMaintenance, PodType};
use headgate_maintenance::evacuation::annotations::parse_evacuators;
use headgate_maintenance::plan::blockers::blocker;
use headgate_maintenance::plan::phase::{Maintenance, Phase};
use headgate_maintenance::snapshot::{BudgetFacts, PodFacts};
use jiff::Timestamp;
use serde::Serialize;

use super::snapshot::PreviewSnapshot;
use crate::status::report::{EntryRow, NodeRow};
use crate::status::{StatusReport, Word, sort_by_field};

/// What a drain would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Preview {
    /// The time of the snapshot.
    #[serde(rename = "askedAt")]
    pub taken_at: Timestamp,
    /// The `NodeMaintenance` that a drain would create.
    pub maintenance: NodeMaintenance,
    /// The nodes that it selects, by name.
    pub nodes: Vec<PreviewNodeRow>,
    /// How many nodes may be under maintenance at once, by the given settings.
    pub max_concurrent_nodes: String,
    /// The entries of the drain plan that select pods of these nodes, in order. A step begins when the one before has ended on all
    /// nodes.
    pub steps: Vec<StepRow>,
    /// The pods that something would keep on their node now.
    pub blocked: Vec<BlockedPodRow>,
    /// The `PodDisruptionBudget`s of pods that leave.
    pub budgets: Vec<BudgetRow>,
    /// The pools with entries of these nodes.
    pub pools: Vec<PoolPreviewRow>,
    /// `Enforce`, `Observe` or `Disabled`, by the given settings.
    pub admin_state_mode: Option<Word>,
    /// Why the pools are not known.
    pub azure_error: Option<String>,
    /// Entries of pools that may belong to any Node, and why, in phrases.
    pub unattributed: Vec<String>,
    /// Other maintenances of the same nodes.
    pub other_maintenances: Vec<ForeignMaintenanceRow>,
    /// Annotations of pods that register no evacuator.
    pub malformed_annotations: Vec<MalformedAnnotationRow>,
}

/// A node that would be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreviewNodeRow {
    /// Name of the Node.
    pub name: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is unschedulable already, and stays so after the maintenance.
    pub cordoned: bool,
    /// Whether `maintenance.maxConcurrentNodes` has no room for it now, by the given settings.
    pub waiting_for_room: bool,
    /// Pods that leave.
    pub pods: usize,
    /// Pods of `DaemonSet`s that tolerate the maintenance, and stay.
    pub exempt: usize,
    /// Static pods, which stay.
    pub unsupported: usize,
}

/// Pods that leave together.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepRow {
    /// The entry of the drain plan.
    pub entry: DrainPlanEntry,
    /// By node, namespace and name.
    pub pods: Vec<LeavingPodRow>,
}

/// A pod that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeavingPodRow {
    /// The pod, as namespace/name.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Its priority.
    pub priority: i32,
    /// The classes of its evacuators in the order of their turns; without any, the Eviction API is called.
    pub evacuators: Vec<String>,
}

/// A pod that something would keep on its node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockedPodRow {
    /// The pod, as namespace/name.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// For machines, as in the status of a `NodeMaintenance`.
    pub reason: BlockerReason,
    /// In words.
    pub message: String,
}

/// A `PodDisruptionBudget` of pods that leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BudgetRow {
    /// The budget, as namespace/name.
    pub budget: String,
    /// How many pods may be evicted now.
    pub disruptions_allowed: i32,
    /// How many pods of these nodes leave only where it allows a disruption.
    pub pods: usize,
}

/// A pool with entries of the nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PoolPreviewRow {
    /// The name of the load balancer.
    pub load_balancer: String,
    /// The name of the pool.
    pub pool: String,
    /// The number of entries.
    pub entries: usize,
    /// Entries that are `Down` now.
    pub down: usize,
    /// Entries of these nodes that would become `Down`.
    pub leaving: usize,
    /// Entries that would not be `Down`.
    pub remaining: usize,
    /// How many entries `adminState.minimumInService` keeps in service, by the given settings.
    pub minimum_in_service: usize,
    /// How many entries `adminState.maxNewDown` lets go within 5 minutes, by the given settings.
    pub max_new_down: usize,
    /// The nodes of the leaving entries.
    pub nodes: Vec<String>,
    /// The other nodes, where admin states are enforced.
    pub kept: Vec<KeptNodesRow>,
}

/// Nodes whose entries of a pool would stay in service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptNodesRow {
    /// Whether the guard would hold them back.
    pub held_back: bool,
    /// Why they stay, in a phrase.
    pub reason: String,
    /// Their names.
    pub nodes: BTreeSet<String>,
}

/// Another maintenance of the same nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForeignMaintenanceRow {
    /// Its name.
    pub name: String,
    /// Its `spec.stage`.
    pub stage: String,
    /// The nodes of both.
    pub nodes: Vec<String>,
}

/// An annotation that registers no evacuator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MalformedAnnotationRow {
    /// The pod, as namespace/name.
    pub pod: String,
    /// What is wrong.
    pub message: String,
}

fn full_name(pod: &PodFacts) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

impl Preview {
    /// The preview of a snapshot.
    pub(crate) fn from_snapshot(snapshot: &PreviewSnapshot) -> Self {
        let maintenance = Maintenance::new(&snapshot.maintenance, &snapshot.nodes);
        let mut pods: Vec<&PodFacts> = snapshot.pods.iter().filter(|pod| !pod.is_finished).collect();
        pods.retain(|pod| maintenance.nodes.contains(&pod.node));
        pods.sort_by(|a, b| (&a.node, &a.namespace, &a.name).cmp(&(&b.node, &b.namespace, &b.name)));
        let leaving: Vec<&PodFacts> = pods.iter().copied().filter(|pod| pod.has_to_leave()).collect();
        let nodes: Vec<_> = snapshot
            .nodes
            .iter()
            .filter(|node| maintenance.nodes.contains(&node.name))
            .collect();
        let waiting_for_room = snapshot.waiting_for_room();
        let mut preview = Self {
            taken_at: snapshot.now,
            maintenance: snapshot.maintenance.clone(),
            nodes: nodes
                .iter()
                .map(|node| node_row(node, &pods, &waiting_for_room))
                .collect(),
            max_concurrent_nodes: snapshot.max_concurrent_nodes.to_string(),
            steps: steps(&maintenance, &leaving),
            blocked: blocked(snapshot, &nodes, &leaving),
            budgets: budgets(&snapshot.budgets, &leaving),
            pools: Vec::new(),
            admin_state_mode: None,
            azure_error: None,
            unattributed: Vec::new(),
            other_maintenances: other_maintenances(snapshot, &maintenance.nodes),
            malformed_annotations: malformed_annotations(&leaving),
        };
        preview.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        match &snapshot.load_balancers {
            Ok(report) => {
                preview.admin_state_mode = Some(report.mode);
                preview.azure_error.clone_from(&report.azure_error);
                preview.unattributed.clone_from(&report.unattributed);
                preview.pools = pools(report, &maintenance.nodes, &waiting_for_room, snapshot);
            }
            Err(error) => preview.azure_error = Some(error.clone()),
        }
        preview
    }

    /// Sorts the nodes by a field of their JSON.
    ///
    /// # Errors
    /// When no node has the field.
    pub(crate) fn sort_nodes_by(&mut self, field: &str) -> anyhow::Result<()> {
        sort_by_field(&mut self.nodes, field, ".name, .pods, .ready or .cordoned")
    }
}

fn node_row(node: &Node, pods: &[&PodFacts], waiting_for_room: &BTreeSet<String>) -> PreviewNodeRow {
    let count = |is_counted: &dyn Fn(&PodFacts) -> bool| {
        pods.iter()
            .filter(|pod| pod.node == node.name && is_counted(pod))
            .count()
    };
    PreviewNodeRow {
        name: node.name.clone(),
        ready: node.ready,
        cordoned: node.was_unschedulable.unwrap_or(node.unschedulable),
        waiting_for_room: waiting_for_room.contains(&node.name),
        pods: count(&PodFacts::has_to_leave),
        exempt: count(&PodFacts::is_exempt),
        unsupported: count(&|pod| pod.pod_type == PodType::Static),
    }
}

/// Each pod belongs to the first entry at which it is targeted.
fn steps(maintenance: &Maintenance<'_>, leaving: &[&PodFacts]) -> Vec<StepRow> {
    let plan = &maintenance.plan;
    let mut left: Vec<&PodFacts> = leaving.to_vec();
    let mut steps = Vec::new();
    for (index, entry) in plan.entries().iter().enumerate() {
        let targets = plan.targets(index);
        let (targeted, later): (Vec<&PodFacts>, Vec<_>) = left.into_iter().partition(|pod| pod.is_targeted(&targets));
        left = later;
        if targeted.is_empty() {
            continue;
        }
        let pods = targeted.into_iter().map(|pod| LeavingPodRow {
            pod: full_name(pod),
            node: pod.node.clone(),
            priority: pod.priority,
            evacuators: parse_evacuators(&pod.evacuators)
                .evacuators
                .into_iter()
                .map(|evacuator| evacuator.evacuator_class)
                .collect(),
        });
        steps.push(StepRow {
            entry: entry.clone(),
            pods: pods.collect(),
        });
    }
    steps
}

fn blocked(snapshot: &PreviewSnapshot, nodes: &[&Node], leaving: &[&PodFacts]) -> Vec<BlockedPodRow> {
    let ready: BTreeMap<&str, bool> = nodes.iter().map(|node| (node.name.as_str(), node.ready)).collect();
    let rows = leaving.iter().filter_map(|pod| {
        let is_ready = ready.get(pod.node.as_str()).copied().unwrap_or(false);
        let (reason, message) = blocker(pod, None, &snapshot.budgets, is_ready, snapshot.now)?;
        Some(BlockedPodRow {
            pod: full_name(pod),
            node: pod.node.clone(),
            reason,
            message,
        })
    });
    rows.collect()
}

fn budgets(budgets: &[BudgetFacts], leaving: &[&PodFacts]) -> Vec<BudgetRow> {
    let evicted = || leaving.iter().filter(|pod| pod.pod_type != PodType::DaemonSet);
    let mut rows: Vec<_> = budgets
        .iter()
        .filter_map(|budget| {
            let needs_room = |pod: &&&PodFacts| budget.is_about(pod) && (pod.is_ready || !budget.lets_unready_go);
            let pods = evicted().filter(needs_room).count();
            (pods > 0).then(|| BudgetRow {
                budget: format!("{}/{}", budget.namespace, budget.name),
                disruptions_allowed: budget.disruptions_allowed,
                pods,
            })
        })
        .collect();
    rows.sort_by(|a, b| (a.disruptions_allowed, &a.budget).cmp(&(b.disruptions_allowed, &b.budget)));
    rows
}

/// The pools with entries of these nodes, by load balancer and name.
fn pools(
    report: &StatusReport,
    nodes: &BTreeSet<String>,
    waiting_for_room: &BTreeSet<String>,
    snapshot: &PreviewSnapshot,
) -> Vec<PoolPreviewRow> {
    let is_enforcing = report.mode == AdminStateMode::Enforce.as_str();
    let mut rows = Vec::new();
    for load_balancer in report.load_balancers.iter().filter(|found| found.configured) {
        for pool in &load_balancer.pools {
            let own: Vec<_> = report
                .nodes
                .iter()
                .filter(|node| nodes.contains(&node.name))
                .flat_map(|node| node.entries.iter().map(move |entry| (node, entry)))
                .filter(|(_, entry)| {
                    entry.load_balancer.eq_ignore_ascii_case(&load_balancer.name)
                        && entry.pool.eq_ignore_ascii_case(&pool.name)
                })
                .collect();
            if own.is_empty() {
                continue;
            }
            let in_service = own.iter().filter(|(_, entry)| entry.admin_state != Some("Down"));
            let (leaving, kept): (Vec<_>, Vec<_>) = in_service
                .filter(|_| is_enforcing)
                .partition(|(_, entry)| entry.becomes == Some("Down") || entry.waiting);
            let names: BTreeSet<_> = leaving.iter().map(|(node, _)| node.name.clone()).collect();
            rows.push(PoolPreviewRow {
                load_balancer: load_balancer.name.clone(),
                pool: pool.name.clone(),
                entries: pool.entries,
                down: pool.down,
                leaving: leaving.len(),
                remaining: pool.entries.saturating_sub(pool.down + leaving.len()),
                minimum_in_service: snapshot.minimum_in_service.rounded_up(pool.entries),
                max_new_down: snapshot.max_new_down.rounded_down(pool.entries),
                nodes: names.into_iter().collect(),
                kept: kept_nodes(&kept, waiting_for_room),
            });
        }
    }
    rows
}

/// Nodes whose entries stay in service, by reason.
fn kept_nodes(entries: &[(&NodeRow, &EntryRow)], waiting_for_room: &BTreeSet<String>) -> Vec<KeptNodesRow> {
    let mut kept: BTreeMap<(bool, String), BTreeSet<String>> = BTreeMap::new();
    for (node, entry) in entries {
        let reason = match (&entry.held_reason, entry.admin_state, &node.excluded) {
            (Some(reason), ..) => reason.clone(),
            (None, Some("None"), Some(label)) => format!("the Node has the label {label}"),
            (None, Some("None"), None) if waiting_for_room.contains(&node.name) => {
                "maintenance.maxConcurrentNodes has no room for it now".to_owned()
            }
            (None, Some("None"), None) => "by the given settings a maintenance is no signal for adminState".to_owned(),
            (None, state, _) => format!(
                "the adminState is {}, which headgate leaves as it is",
                state.unwrap_or("unknown")
            ),
        };
        let nodes = kept.entry((entry.held_back, reason)).or_default();
        nodes.insert(node.name.clone());
    }
    let rows = kept.into_iter().map(|((held_back, reason), nodes)| KeptNodesRow {
        held_back,
        reason,
        nodes,
    });
    rows.collect()
}

fn other_maintenances(snapshot: &PreviewSnapshot, nodes: &BTreeSet<String>) -> Vec<ForeignMaintenanceRow> {
    let own = snapshot.maintenance.metadata.name.as_deref();
    let mut rows: Vec<_> = snapshot
        .maintenances
        .iter()
        .filter(|object| object.metadata.name.as_deref() != own)
        .map(|object| Maintenance::new(object, &snapshot.nodes))
        .filter(|other| matches!(other.phase, Phase::Starting | Phase::Cordon | Phase::Drain))
        .filter(|other| !other.nodes.is_disjoint(nodes))
        .map(|other| ForeignMaintenanceRow {
            name: other.name.to_owned(),
            stage: other.object.spec.stage.as_str().to_owned(),
            nodes: other.nodes.intersection(nodes).cloned().collect(),
        })
        .collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

fn malformed_annotations(leaving: &[&PodFacts]) -> Vec<MalformedAnnotationRow> {
    let rows = leaving.iter().flat_map(|pod| {
        let mistakes = parse_evacuators(&pod.evacuators).mistakes.into_iter();
        mistakes.map(|mistake| MalformedAnnotationRow {
            pod: full_name(pod),
            message: mistake.to_string(),
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests;
