//! The leader's part of the page: what a person on call keeps open. Nodes with signals and what each waits for, their connections, the
//! last writes, throttling.

use std::collections::BTreeMap;

use jiff::Timestamp;
use maud::{Markup, html};

use super::statusz::Past;
use super::statusz_page::badge;
use crate::status::format_age;
use crate::status::report::{LeaderWork, NodeRow, StatusReport};

/// Rows of the table of nodes: as many as a page can have that is read and sent in no time.
const MAX_NODES: usize = 1000;
/// How many of them are laid out together: a browser leaves out those that are not on the screen.
const SCREEN: usize = 50;
/// Rows about what the leader did.
const MAX_EVENTS: usize = 20;

/// The connections of a node: the last number, and a greater or smaller one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trend {
    now: u64,
    before: Option<u64>,
}

/// The connections of the nodes, by the name of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trends(BTreeMap<String, Trend>);

impl Trends {
    /// Adopts the numbers of a report; a node that has none is forgotten.
    pub(super) fn observe(&mut self, report: &StatusReport) {
        let counted = report.nodes.iter().filter_map(|node| {
            let now = node.open_connections().filter(|_| !node.signals.is_empty())?;
            let before = match self.0.get(&node.name) {
                Some(trend) if trend.now == now => trend.before,
                known => known.map(|trend| trend.now),
            };
            Some((node.name.clone(), Trend { now, before }))
        });
        self.0 = counted.collect();
    }

    fn cell(&self, node: &str) -> String {
        match self.0.get(node) {
            None => "-".to_owned(),
            Some(Trend { now, before: None }) => now.to_string(),
            Some(Trend {
                now,
                before: Some(before),
            }) => format!("{before} → {now}"),
        }
    }
}

/// What the page shows of the cluster.
pub(super) fn cluster(report: &StatusReport, trends: &Trends) -> Markup {
    let mut nodes: Vec<_> = report.nodes.iter().filter(|node| node.is_notable()).collect();
    // Those that wait longest first; what is only to be restored has no start.
    nodes.sort_by_key(|node| (node.signals.is_empty(), node.signalled_since));
    let signalled = nodes.iter().filter(|node| !node.signals.is_empty()).count();
    let hidden = nodes.len().saturating_sub(MAX_NODES);
    nodes.truncate(MAX_NODES);
    html! {
        h2 { "Nodes" }
        (troubles(report))
        p {
            (signalled) " of " (report.nodes_total) " nodes have a signal. Admin states: mode " (report.mode)
            ", foreign Down: " (report.foreign_down) "."
        }
        @if !nodes.is_empty() {
            table.long {
                thead { tr { th { "node" } th { "signals" } th { "since" } th { "Down" } th { "waits for" } th { "connections" } } }
                @for screen in nodes.chunks(SCREEN) { tbody { @for node in screen { (node_row(report, node, trends)) } } }
            }
        }
        @if hidden > 0 { p { (hidden) " more are not shown: headgate status has all." } }
        (pools(report))
        @if let Some(work) = &report.leader_work { (work_of(work, report.taken_at)) }
        (maintenances(report))
    }
}

fn node_row(report: &StatusReport, node: &NodeRow, trends: &Trends) -> Markup {
    let down = node
        .entries
        .iter()
        .filter(|entry| entry.admin_state == Some("Down"))
        .count();
    let signals: Vec<_> = node.signals.iter().map(|signal| signal.name.as_str()).collect();
    html! {
        tr {
            td { (node.name) }
            td { (signals.join(", ")) }
            td { @if let Some(since) = node.signalled_since { (format_age(since, report.taken_at)) } }
            td { (down) "/" (node.entries.len()) }
            td { (node.waits_for(report)) }
            td { (trends.cell(&node.name)) }
        }
    }
}

/// What keeps the leader from its work.
fn troubles(report: &StatusReport) -> Markup {
    let work = report.leader_work.as_ref();
    let list_error = work.and_then(|work| work.list_error.as_deref());
    let until =
        |what: &str, until: Option<Timestamp>| until.map(|until| format!("ARM throttles {what} until {until:.0}"));
    let throttled = work.into_iter().flat_map(|work| {
        [
            until("reads", work.reads_throttled_until),
            until("writes", work.writes_throttled_until),
        ]
    });
    let stale = work.and_then(|work| work.nodes_stale_since);
    let busy = report.load_balancers.iter().filter(|found| found.busy);
    let all = (list_error
        .map(|error| format!("load balancers are not listed: {error}"))
        .into_iter())
    .chain(throttled.flatten())
    .chain(stale.map(|since| format!("Nodes are not confirmed since {since:.0}: nothing is written")))
    .chain((report.unattributed.iter()).map(|why| format!("pool entries may belong to any Node: {why}")))
    .chain(busy.map(|found| format!("ARM is busy with {}", found.name)));
    html! { @for trouble in all { p { (badge(&trouble, false)) } } }
}

fn pools(report: &StatusReport) -> Markup {
    html! {
        @if !report.load_balancers.is_empty() {
            h2 { "Pools" }
            table {
                tr { th { "load balancer" } th { "pool" } th { "entries" } th { "Down" } th { "wanted Down" } th { "held back" } }
                @for found in &report.load_balancers {
                    @for pool in &found.pools {
                        tr {
                            td { (found.name) }
                            td { (pool.name) }
                            td { (pool.entries) }
                            td { (pool.down) }
                            td { (pool.desired_down) }
                            td { (pool.held_back) }
                        }
                    }
                }
            }
        }
    }
}

fn work_of(work: &LeaderWork, now: Timestamp) -> Markup {
    html! {
        h2 { "Last writes and failures" }
        p {
            "Load balancers were listed "
            @match work.listed_at { Some(at) => (Past(at, now)), None => "not yet" }
            @if work.reads_throttled_until.is_none() && work.writes_throttled_until.is_none() { ". ARM throttles nothing." }
        }
        @if work.events.is_empty() { p { "Nothing was written by this process." } }
        table {
            @for event in work.events.iter().take(MAX_EVENTS) {
                tr {
                    td { (format_age(event.at, now)) " ago" }
                    td { (event.node) }
                    td { @if event.is_warning { (badge(&event.reason, false)) } @else { (event.reason) } }
                    td { (event.note) }
                }
            }
        }
    }
}

fn maintenances(report: &StatusReport) -> Markup {
    html! {
        @if let Some(error) = &report.maintenances_error { p { "NodeMaintenances are not known: " (error) } }
        @if !report.maintenances.is_empty() {
            h2 { "Maintenances" }
            table {
                tr { th { "name" } th { "stage" } th { "nodes" } th { "pods left" } }
                @for row in &report.maintenances {
                    tr {
                        td { (row.name) }
                        td { (row.stage_text()) }
                        td { (row.nodes_total) }
                        td { (row.pods_left) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example_report;
    use crate::status::report::MarkerRow;
    use headgate_controller::admin_state::RecordedEvent;

    /// What no page may have more of, at a thousand nodes with signals.
    const MAX_BYTES: usize = 300_000;

    fn connections(count: u64) -> MarkerRow {
        MarkerRow {
            status: "False".to_owned(),
            reason: "ConnectionsOpen".to_owned(),
            message: format!("{count} connections pass through this node: {count} default/web."),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(node: &str, is_warning: bool) -> RecordedEvent {
        RecordedEvent {
            at: at(990),
            node: node.to_owned(),
            reason: "LoadBalancerAdminStateDown".to_owned(),
            note: "Down in kubernetes/kubernetes because of drain: no new connections.".to_owned(),
            is_warning,
        }
    }

    fn work() -> LeaderWork {
        LeaderWork {
            version: "1.2.3".to_owned(),
            node: "n3".to_owned(),
            listed_at: Some(at(995)),
            list_error: None,
            reads_throttled_until: None,
            writes_throttled_until: Some(at(1060)),
            nodes_stale_since: None,
            events: vec![event("n1", true)],
            updates_local_pools: false,
            queue: Vec::new(),
        }
    }

    #[test]
    fn a_page_has_what_nodes_wait_for_and_what_was_written() {
        let mut report = example_report();
        report.unattributed = vec!["an interface is not known".to_owned()];
        report.leader_work = Some(work());
        report.nodes[0].signalled_since = Some(at(880));
        report.nodes[0].connections_drained = Some(connections(12));
        let mut trends = Trends::default();
        trends.observe(&report);
        report.nodes[0].connections_drained = Some(connections(7));
        trends.observe(&report);
        trends.observe(&report);
        let page = cluster(&report, &trends).into_string();
        for part in [
            "1 of 3 nodes have a signal. Admin states: mode Enforce",
            "<td>n1</td><td>drain, drain</td><td>2m</td><td>1/2</td>",
            "a write of Down in 1 of 2 pools; the end of its connections",
            "<td>12 → 7</td>",
            "<span class=\"bad\">pool entries may belong to any Node: an interface is not known</span>",
            "<span class=\"bad\">ARM throttles writes until 1970-01-01T00:17:40Z</span>",
            "<td>10s ago</td><td>n1</td><td><span class=\"bad\">LoadBalancerAdminStateDown</span>",
            "listed 1970-01-01T00:16:35Z (5 s ago)",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
    }

    #[test]
    fn a_thousand_nodes_fit_on_a_page() {
        let mut report = example_report();
        let node = report.nodes[0].clone();
        report.nodes = (0..5000)
            .map(|number| NodeRow {
                name: format!("aks-nodepool1-12345678-vmss{number:06}"),
                signalled_since: Some(at(number % 900)),
                connections_drained: Some(connections(12_345)),
                signals: node
                    .signals
                    .iter()
                    .take(1)
                    .map(|signal| crate::status::report::SignalRow {
                        name: "ToBeDeletedByClusterAutoscaler".to_owned(),
                        ..signal.clone()
                    })
                    .collect(),
                ..node.clone()
            })
            .collect();
        report.leader_work = Some(LeaderWork {
            events: vec![event("aks-nodepool1-12345678-vmss000001", false); 100],
            ..work()
        });
        let mut trends = Trends::default();
        trends.observe(&report);
        let page = cluster(&report, &trends).into_string();
        assert_eq!(page.matches("ToBeDeletedByClusterAutoscaler").count(), MAX_NODES);
        assert!(page.contains("4000 more are not shown"));
        assert!(page.len() < MAX_BYTES, "{}", page.len());
    }
}
