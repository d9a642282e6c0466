//! The text of `headgate status`: the leader, a table of nodes and pools, a table of pools and probes, and notes.
//! Pure.
//!
//! Invariant: names and errors of others (agents, ARM, the API server) are escaped for a terminal, and none breaks a line.
//!
//! In the table of nodes, pools are columns with numbers, because their names are long; `-o wide` shows the names and
//! the ledger's stages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headgate_controller::pool::ProbeTarget;
use headgate_core::node::Unproved;
use headgate_core::telemetry::escape_line;
use jiff::Timestamp;
use serde_json::Value;

use crate::agent_status::ConnectionsStatus;
use crate::report::{Detail, Report};

use super::local_pools;
use super::maintenances_text::render_maintenances;
use super::report::{EntryRow, LoadBalancerRow, NodeRow, Owner, PoolRow, ProbeRow, Selection, StatusReport};
use super::text_format::{format_age, format_columns};

/// Pool columns in a narrow table. With more pools, only those with a notable entry are shown.
const MAX_POOL_COLUMNS: usize = 8;
/// Notes below the tables.
const MAX_NOTES: usize = 10;

/// The names of a load balancer and its pool in lower case, as the ledger has them.
type PoolNames = (String, String);

/// The column of a pool.
#[derive(Clone, Debug)]
struct PoolColumn {
    number: usize,
    /// `LOAD BALANCER/POOL` in the original spelling.
    name: String,
}

fn pool_names(load_balancer: &str, pool: &str) -> PoolNames {
    (load_balancer.to_ascii_lowercase(), pool.to_ascii_lowercase())
}

impl Report for StatusReport {
    const IS_COLOURED: bool = true;
    const KIND: Option<&'static str> = Some("Status");

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    fn text(&self, detail: Detail) -> String {
        if self.no_headers {
            let (_, rows, _) = node_rows(self, &pool_columns(self), detail);
            format_columns(&[], &rows)
        } else {
            render(self, detail)
        }
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("node/{}", node.name)).collect()
    }

    /// Without the times of the read, of the Lease's renewal and of the leader's last list.
    fn comparable(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["askedAt"] = Value::Null;
        if let Some(leader) = json["leader"].as_object_mut() {
            leader.remove("renewed");
        }
        if let Some(work) = json["leaderWork"].as_object_mut() {
            work.remove("listedAt");
        }
        json
    }
}

/// Renders the report as text.
fn render(report: &StatusReport, detail: Detail) -> String {
    let mut text = render_header(report);
    let columns = pool_columns(report);
    if !report.nodes.is_empty() {
        text.push('\n');
        text += &render_nodes(report, &columns, detail);
    }
    text.push('\n');
    text += &render_selection(report);
    for part in [
        render_pools(report, &columns, detail),
        render_local_pools(report, detail),
        render_maintenances(report),
        render_notes(report),
    ] {
        if !part.is_empty() {
            text.push('\n');
            text += &part;
        }
    }
    text
}

fn render_header(report: &StatusReport) -> String {
    let now = report.taken_at;
    let leader = match (&report.leader, &report.leader_error) {
        (_, Some(error)) => format!("not known: {error}"),
        (None, None) => "none: there is no Lease".to_owned(),
        (Some(leader), None) => {
            let renewed = leader
                .renewed
                .map_or_else(|| "never".to_owned(), |at| format!("{} ago", format_age(at, now)));
            match (&leader.holder, leader.since) {
                (Some(holder), Some(since)) if leader.alive => format!(
                    "{holder} since {since:.0} ({}), term {}, renewed {renewed}",
                    format_age(since, now),
                    leader.term
                ),
                (Some(holder), _) => format!("none: {holder} was the last one, and renewed the Lease {renewed}"),
                (None, _) => format!("none: the Lease was released {renewed}"),
            }
        }
    };
    let mut text = format!(
        "Leader:        {}\nAdmin states:  mode {}, foreign Down: {}{}\n",
        escape_line(&leader),
        report.mode,
        report.foreign_down,
        if report.leader_work.is_some() {
            ""
        } else {
            ", by the given settings"
        }
    );
    if let Some(work) = &report.leader_work {
        let listed = work
            .listed_at
            .map_or_else(|| "not yet".to_owned(), |at| format!("{} ago", format_age(at, now)));
        let error = work.list_error.as_ref();
        let error = error.map_or_else(String::new, |error| format!("; since then: {}", escape_line(error)));
        let _ = writeln!(text, "Listed:        {listed}, by the leader{error}");
        if let Some(since) = work.nodes_stale_since {
            let _ = writeln!(
                text,
                "Nodes:         not confirmed since {since:.0}: nothing is written"
            );
        }
    }
    if let Some(error) = &report.azure_error {
        let _ = writeln!(
            text,
            "Azure:         not queried: {}\n               The rest is what Kubernetes alone shows.",
            escape_line(error)
        );
    }
    if let Some(error) = &report.ledger_error {
        let _ = writeln!(
            text,
            "Ledger:        {}\n               The owner of a Down is not known.",
            escape_line(error)
        );
    }
    if let Some(error) = &report.services_error {
        let _ = writeln!(
            text,
            "Services:      {}\n               What the guard keeps in service for Local Services is not shown.",
            escape_line(error)
        );
    }
    text
}

/// The column of each pool.
fn pool_columns(report: &StatusReport) -> BTreeMap<PoolNames, PoolColumn> {
    let pools = report.load_balancers.iter();
    let pools = pools.flat_map(|found| found.pools.iter().map(|pool| (&found.name, &pool.name)));
    // Without Azure, entries come from the ledger; otherwise these are pools that no rule uses any more.
    let entries = report.nodes.iter().flat_map(|node| &node.entries);
    let entries = entries.map(|entry| (&entry.load_balancer, &entry.pool));
    let mut columns = BTreeMap::new();
    for (load_balancer, pool) in pools.chain(entries) {
        let number = columns.len() + 1;
        let column = || PoolColumn {
            number,
            name: format!("{load_balancer}/{pool}"),
        };
        columns.entry(pool_names(load_balancer, pool)).or_insert_with(column);
    }
    columns
}

fn node_rows(
    report: &StatusReport,
    columns: &BTreeMap<PoolNames, PoolColumn>,
    detail: Detail,
) -> (Vec<String>, Vec<Vec<String>>, usize) {
    let is_wide = detail == Detail::Wide;
    let mut shown: Vec<(&PoolNames, &PoolColumn)> = columns.iter().collect();
    shown.sort_by_key(|(_, column)| column.number);
    let mut hidden = 0;
    if !is_wide && shown.len() > MAX_POOL_COLUMNS {
        let is_notable = |entry: &&EntryRow| {
            entry.pending || entry.held_back || entry.stage.is_some() || entry.admin_state != Some("None")
        };
        let entries = report.nodes.iter().flat_map(|node| &node.entries).filter(is_notable);
        let notable: BTreeSet<PoolNames> = entries
            .map(|entry| pool_names(&entry.load_balancer, &entry.pool))
            .collect();
        hidden = shown.len();
        shown.retain(|(names, _)| notable.contains(names));
        shown.truncate(MAX_POOL_COLUMNS);
        hidden -= shown.len();
    }
    let mut header = vec!["NODE".to_owned(), "/healthz".to_owned(), "SIGNALS".to_owned()];
    if is_wide {
        header.push("ANSWERED".to_owned());
    }
    let has_markers = report.nodes.iter().any(|node| node.out_of_load_balancers.is_some());
    if has_markers {
        header.push("OUT".to_owned());
    }
    let counts = report.nodes.iter().any(|node| node.verdict.connections.is_some());
    if counts {
        header.push("CONNECTIONS".to_owned());
    }
    header.extend(shown.iter().map(|(_, column)| {
        if is_wide {
            column.name.clone()
        } else {
            column.number.to_string()
        }
    }));
    let rows = report.nodes.iter().map(|node| {
        let mut row = vec![node.name.clone(), format_healthz(node), format_signals(node, is_wide)];
        if is_wide {
            let why = node.verdict.why.clone().unwrap_or_else(|| "no".to_owned());
            row.push(if node.verdict.answered { "yes".to_owned() } else { why });
        }
        if has_markers {
            row.push(format_marker(node, is_wide));
        }
        if counts {
            let connections = node.verdict.connections.as_ref();
            row.push(connections.map_or_else(|| "-".to_owned(), ConnectionsStatus::cell));
        }
        row.extend(shown.iter().map(|(names, _)| format_cell(report, node, names, is_wide)));
        row
    });
    (header, rows.collect(), hidden)
}

fn render_nodes(report: &StatusReport, columns: &BTreeMap<PoolNames, PoolColumn>, detail: Detail) -> String {
    let (header, rows, hidden) = node_rows(report, columns, detail);
    let mut text = format_columns(&header, &rows);
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} more pools are not shown; -o wide shows all.");
    }
    for node in &report.nodes {
        for kept in &node.verdict.kept_services {
            let (node, service, why) = (
                escape_line(&node.name),
                escape_line(&kept.service),
                escape_line(&kept.why),
            );
            let _ = writeln!(text, "{node} still gets new connections of Service {service}: {why}.");
        }
    }
    text
}

fn format_healthz(node: &NodeRow) -> String {
    let doubt = if node.verdict.answered { "" } else { "?" };
    node.verdict
        .healthz
        .map_or_else(|| "not served".to_owned(), |code| format!("{code}{doubt}"))
}

/// The status of the condition `headgate.dev/OutOfLoadBalancers`.
fn format_marker(node: &NodeRow, is_wide: bool) -> String {
    match &node.out_of_load_balancers {
        None => "-".to_owned(),
        Some(marker) if is_wide => format!("{} {}", marker.status, marker.reason),
        Some(marker) => marker.status.clone(),
    }
}

fn format_signals(node: &NodeRow, is_wide: bool) -> String {
    let mut words: Vec<_> = node.signals.iter().map(|signal| signal.name.clone()).collect();
    if !is_wide && words.len() > 1 {
        let more = words.len() - 1;
        words.truncate(1);
        words.push(format!("+{more}"));
    }
    words.extend(node.excluded.as_ref().map(|label| {
        if is_wide {
            format!("excluded by {label}")
        } else {
            "excluded".to_owned()
        }
    }));
    if words.is_empty() {
        return "-".to_owned();
    }
    words.join(", ")
}

/// The node's entries in one pool; there can be several, for example after a change of address.
fn format_cell(report: &StatusReport, node: &NodeRow, pool: &PoolNames, is_wide: bool) -> String {
    let entries = node.entries.iter();
    let in_pool = entries.filter(|entry| pool_names(&entry.load_balancer, &entry.pool) == *pool);
    let mut words: Vec<_> = in_pool.map(|entry| format_entry(report, entry, is_wide)).collect();
    words.dedup();
    if words.is_empty() {
        return "-".to_owned();
    }
    words.join(" + ")
}

fn format_entry(report: &StatusReport, entry: &EntryRow, is_wide: bool) -> String {
    let mut text = entry.admin_state.unwrap_or("?").to_owned();
    if let Some(becomes) = entry.becomes {
        let _ = write!(text, "→{becomes} pending");
    }
    match entry.owner {
        Some(Owner::Headgate) => text.push_str(" ours"),
        Some(Owner::Foreign) => text.push_str(" foreign"),
        Some(Owner::Unknown) => text.push_str(" owner?"),
        None => {}
    }
    if entry.waiting {
        text.push_str(" waits for adminState.maxNewDown");
    } else if entry.held_back {
        text.push_str(" held back");
        if !entry.held_for.is_empty() {
            let _ = write!(text, " for {}", escape_line(&entry.held_for.join(", ")));
        }
    }
    if let (Some(stage), Some(since)) = (entry.stage, entry.since)
        && (is_wide || entry.admin_state.is_none())
    {
        let _ = write!(text, " ({stage} {})", format_age(since, report.taken_at));
    }
    text
}

fn render_selection(report: &StatusReport) -> String {
    let (shown, total) = (report.nodes.len(), report.nodes_total);
    let mut text = match report.selection {
        Selection::All => format!("All {total} nodes."),
        Selection::Named => format!("{shown} of {total} nodes."),
        Selection::Notable => {
            format!("{shown} of {total} nodes: those with a signal, an admin state or a ledger entry; --all shows all.")
        }
    };
    if report.nodes.iter().any(|node| !node.verdict.answered) {
        text +=
            " \"?\" means that the agent was not queried or did not answer: the code follows from the Node's signals.";
    }
    text.push('\n');
    text
}

fn render_pools(report: &StatusReport, columns: &BTreeMap<PoolNames, PoolColumn>, detail: Detail) -> String {
    let header = [
        "#",
        "LOAD BALANCER",
        "POOL",
        "ENTRIES",
        "DOWN",
        "RULES",
        "PROBE",
        "TARGET",
    ]
    .map(str::to_owned);
    let mut rows = Vec::new();
    for load_balancer in &report.load_balancers {
        for pool in &load_balancer.pools {
            let column = columns.get(&pool_names(&load_balancer.name, &pool.name));
            let number = column.map_or_else(String::new, |column| column.number.to_string());
            let mut left = [
                number,
                load_balancer.name.clone(),
                pool.name.clone(),
                pool.entries.to_string(),
                pool.down.to_string(),
            ];
            for line in rule_lines(pool, detail) {
                let target = line.target.description().to_owned();
                rows.push([left.as_slice(), &[line.rules, line.probe, target]].concat());
                left = Default::default();
            }
        }
        rows.extend(load_balancer.not_considered.iter().map(|pool| {
            // The pool has a column if one of its entries is in the ledger.
            let (number, note) = match columns.get(&pool_names(&load_balancer.name, pool)) {
                Some(column) if load_balancer.configured => (
                    column.number.to_string(),
                    "no rule uses it any more: headgate restores its own entries",
                ),
                Some(column) => (
                    column.number.to_string(),
                    "not configured: headgate restores its own entries",
                ),
                None if !load_balancer.configured => (String::new(), "not configured"),
                None => (String::new(), "not considered: no rule uses it"),
            };
            let cells = [&*number, &load_balancer.name, pool, "", "", "-", "-", note];
            cells.map(str::to_owned).to_vec()
        }));
    }
    if rows.is_empty() {
        return String::new();
    }
    format_columns(&header, &rows)
}

/// The pools of Local Services with their members.
fn render_local_pools(report: &StatusReport, detail: Detail) -> String {
    if let Some(error) = &report.local_pools_error {
        return format!("Pools of Local Services are not known: {}.\n", escape_line(error));
    }
    if report.local_pools.is_empty() {
        return String::new();
    }
    let (header, rows, hidden) = local_pools::table(&report.local_pools, detail == Detail::Wide);
    let mut text = format_columns(&header, &rows);
    if hidden > 0 {
        let _ = writeln!(
            text,
            "{hidden} more pools of Local Services are not shown; -o wide has all."
        );
    }
    text
}

/// A line for one or several rules with the same probe.
struct RuleLine {
    /// The name of the rule, or the number of rules.
    rules: String,
    probe: String,
    target: ProbeTarget,
}

/// The lines for a pool's rules. In a narrow table, rules with the same probe share a line.
fn rule_lines(pool: &PoolRow, detail: Detail) -> Vec<RuleLine> {
    let mut by_probe: BTreeMap<(ProbeTarget, Option<&ProbeRow>), Vec<&str>> = BTreeMap::new();
    for rule in &pool.rules {
        by_probe
            .entry((rule.target, rule.probe.as_ref()))
            .or_default()
            .push(&rule.name);
    }
    let mut lines = Vec::new();
    for ((target, probe), names) in by_probe {
        let probe = probe.map_or_else(|| "none".to_owned(), format_probe);
        let line = |rules: String| RuleLine {
            rules,
            probe: probe.clone(),
            target,
        };
        match names.as_slice() {
            names if detail == Detail::Wide || names.len() == 1 => {
                lines.extend(names.iter().map(|name| line((*name).to_owned())));
            }
            names => lines.push(line(format!("{} rules", names.len()))),
        }
    }
    lines
}

fn format_probe(probe: &ProbeRow) -> String {
    let path = probe.path.as_deref().unwrap_or_default();
    format!("{} :{}{path}", probe.protocol, probe.port)
}

/// What needs attention, one line for each note.
fn render_notes(report: &StatusReport) -> String {
    let mut notes = Vec::new();
    if report.probed_by_headgate == Some(false) {
        notes.push(format!(
            "No rule's probe targets headgate (Http :{}/healthz): only admin states take nodes out.",
            report.health_port
        ));
    }
    for load_balancer in &report.load_balancers {
        notes.extend(load_balancer_notes(load_balancer));
    }
    let of_any = report.unattributed.iter();
    notes.extend(of_any.map(|why| format!("Pool entries may belong to any Node: {why}.")));
    let unidentified = report.nodes.iter().filter(|node| node.unidentified);
    notes.extend(
        unidentified.map(|node| format!("Pool entries may belong to {}: {}.", node.name, Unproved::NotIdentified)),
    );
    for row in &report.unreadable_load_balancers {
        notes.push(format!(
            "The ledger has entries of {}, which cannot be read, so they stay in the ledger: {}.",
            row.id, row.why
        ));
    }
    for row in &report.unmatched_ledger {
        let state = match row.admin_state {
            Some(state) => match &row.unreadable {
                Some(why) => format!("is {state}, and {why}"),
                None => format!("is {state} and belongs to no Node"),
            },
            None if report.azure_error.is_some() => "was not looked for".to_owned(),
            None => "was not found".to_owned(),
        };
        notes.push(format!(
            "The ledger has {} of {}/{} as {} for {}; the pool entry {state}.",
            row.entry,
            row.load_balancer,
            row.pool,
            row.stage,
            format_age(row.since, report.taken_at)
        ));
    }
    let more = notes.len().saturating_sub(MAX_NOTES);
    if more > 1 {
        notes.truncate(MAX_NOTES);
        notes.push(format!("{more} more notes are not shown; -o json has all."));
    }
    notes.iter().flat_map(|note| [escape_line(note), "\n".into()]).collect()
}

fn load_balancer_notes(load_balancer: &LoadBalancerRow) -> Vec<String> {
    let name = &load_balancer.name;
    let mut notes = Vec::new();
    if !load_balancer.configured {
        notes.push(format!(
            "{name} is not one of the load balancers that azure.clusterName and azure.json name: headgate restores its own \
             entries there and writes nothing else."
        ));
    }
    if load_balancer.busy {
        notes.push(format!(
            "ARM is busy with {name}: headgate writes nothing to it in the meantime."
        ));
    }
    for pool in &load_balancer.pools {
        let without_probe = pool
            .rules
            .iter()
            .filter(|rule| rule.target == ProbeTarget::NoProbe)
            .count();
        if without_probe > 0 {
            notes.push(format!(
                "{without_probe} of {} rules of {name}/{} have no probe: Down has no effect on them.",
                pool.rules.len(),
                pool.name
            ));
        }
        if !pool.down_without_node.is_empty() {
            let count = pool.down_without_node.len();
            notes.push(format!(
                "{count} entries of {name}/{} are Down and belong to no Node; headgate leaves them alone: {}.",
                pool.name,
                pool.down_without_node
                    .iter()
                    .take(3)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        if pool.entries > 0 && pool.down == pool.entries {
            notes.push(format!(
                "All entries of {name}/{} are Down: no node gets its new connections.",
                pool.name
            ));
        }
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests;
