//! The part of the text of `headgate status` about `NodeMaintenance`s: a table, and what keeps their nodes from being drained. Pure.

use std::fmt::Write as _;

use headgate_core::telemetry::escape_line;

use super::report::StatusReport;
use super::text_format::{format_age, format_columns};
use crate::why::{ConditionRow, MaintenanceRow};

/// Lines about nodes and blocked pods.
const MAX_LINES: usize = 10;

/// The table and its lines; empty without a maintenance.
pub(super) fn render_maintenances(report: &StatusReport) -> String {
    let mut text = String::new();
    if let Some(error) = &report.maintenances_error {
        let _ = writeln!(text, "NodeMaintenances are not known: {}", escape_line(error));
    }
    if report.maintenances.is_empty() {
        return text;
    }
    let header = ["MAINTENANCE", "STAGE", "AGE", "NODES", "PODS LEFT", "DRAINED", "OUT"].map(str::to_owned);
    let rows: Vec<_> = report.maintenances.iter().map(|row| cells(report, row)).collect();
    text += &format_columns(&header, &rows);
    let lines: Vec<_> = report.maintenances.iter().flat_map(|row| lines(report, row)).collect();
    for line in lines.iter().take(MAX_LINES) {
        let _ = writeln!(text, "{}", escape_line(line));
    }
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        let _ = writeln!(text, "{more} more lines are not shown; -o json has all.");
    }
    text
}

fn cells(report: &StatusReport, row: &MaintenanceRow) -> Vec<String> {
    // A condition is set from the stage on that it is about.
    let status = |condition: Option<&ConditionRow>| match condition {
        None => "-".to_owned(),
        Some(condition) if condition.status == "True" => "yes".to_owned(),
        Some(condition) => format!("no: {}", condition.reason),
    };
    vec![
        row.name.clone(),
        row.stage_text(),
        row.created
            .map_or_else(|| "-".to_owned(), |created| format_age(created, report.taken_at)),
        row.nodes_total.to_string(),
        row.pods_left.to_string(),
        status(row.condition("Drained")),
        status(row.condition("LoadBalancerOut")),
    ]
}

/// What the nodes of a maintenance wait for.
fn lines(report: &StatusReport, row: &MaintenanceRow) -> Vec<String> {
    let mut lines = Vec::new();
    let is_drained = row
        .condition("Drained")
        .is_some_and(|condition| condition.status == "True");
    for node in row.nodes.iter().filter(|_| !is_drained) {
        if !node.message.is_empty() {
            lines.push(format!(
                "{}, node {}: {} ({} pods left, {})",
                row.name,
                node.node,
                node.message,
                node.pods_left(),
                node.load_balancer_text()
            ));
        }
        for blocker in &node.blockers {
            lines.push(format!(
                "{}, node {}: pod {} is blocked for {}: {}",
                row.name,
                node.node,
                blocker.pod,
                format_age(blocker.since, report.taken_at),
                blocker.message
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use headgate_maintenance::api::NodeMaintenance;
    use serde_json::{Value, json};

    use super::super::text::tests::report;
    use super::*;

    fn row(status: &Value) -> MaintenanceRow {
        let object: NodeMaintenance = serde_json::from_value(json!({"apiVersion": "headgate.dev/v1alpha1",
            "kind": "NodeMaintenance", "metadata": {"name": "kernel", "creationTimestamp": "1970-01-01T00:10:00Z"},
            "spec": {"nodeSelector": {"nodeSelectorTerms": []}, "stage": "Drain"}, "status": status}))
        .unwrap();
        MaintenanceRow::new(&object)
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "1970-01-01T00:10:00Z"})
    }

    fn text(rows: Vec<MaintenanceRow>) -> String {
        render_maintenances(&StatusReport {
            maintenances: rows,
            ..report()
        })
    }

    #[test]
    fn a_drain_shows_what_it_waits_for() {
        let blocker = json!({"podRef": {"namespace": "shop", "name": "web"}, "reason": "DisruptionBudget", "firstObservedTime": "1970-01-01T00:15:00Z",
            "message": "PodDisruptionBudget web allows 0 disruptions"});
        let conditions = json!([
            condition("Drained", "False", "PodsLeft"),
            condition("LoadBalancerOut", "True", "Confirmed")
        ]);
        let mut status = json!({"selectedNodes": 1, "podsLeft": 2, "conditions": conditions, "nodeStatuses": [{"nodeRef": {"name": "n1"},
            "drainMessage": "Evacuating", "podsPendingEvacuation": 1, "podsEvacuating": 1, "blockers": [blocker],
            "loadBalancer": {"state": "Out", "downTime": "1970-01-01T00:11:00Z"}}]});
        assert_eq!(
            text(vec![row(&status)]),
            "MAINTENANCE   STAGE   AGE   NODES   PODS LEFT   DRAINED        OUT\n\
             kernel        Drain   6m    1       2           no: PodsLeft   yes\n\
             kernel, node n1: Evacuating (2 pods left, out of its load balancers since 1970-01-01T00:11:00Z)\n\
             kernel, node n1: pod shop/web is blocked for 1m: PodDisruptionBudget web allows 0 disruptions\n"
        );
        status["conditions"][0]["status"] = json!("True");
        assert_eq!(
            text(vec![row(&status)]).lines().count(),
            2,
            "a drained node waits for nothing"
        );
    }

    #[test]
    fn without_maintenances_nothing_is_shown_but_an_error() {
        assert_eq!(text(Vec::new()), "");
        let failed = StatusReport {
            maintenances_error: Some("forbidden\u{1b}[2J".to_owned()),
            ..report()
        };
        assert_eq!(
            render_maintenances(&failed),
            "NodeMaintenances are not known: forbidden\\u{1b}[2J\n"
        );
    }

    #[test]
    fn lines_are_bounded() {
        let node = |n: i32| json!({"nodeRef": {"name": format!("n{n}")}, "drainMessage": "Evacuating"});
        let nodes: Vec<_> = (0..30).map(node).collect();
        let found = text(vec![row(&json!({"nodeStatuses": nodes}))]);
        assert!(found.contains("20 more lines are not shown"), "{found}");
        assert_eq!(found.lines().count(), 2 + MAX_LINES + 1);
    }
}
