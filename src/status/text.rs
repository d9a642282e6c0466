//! The report for people: who leads, a table of nodes and pools, a table of pools and their probes, and what to mind.
//! Pure.
//!
//! Pools are columns by number, since their names are long; `-o wide` has the names, and the ledger's word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::ages::age;
use super::columns::columns;
use super::reaches::Reaches;
use super::report::{EntryRow, LoadBalancerRow, NodeRow, Owner, PoolRow, ProbeRow, Report, Selection};

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What fits a terminal.
    Narrow,
    /// Everything.
    Wide,
}

/// Columns of pools in a narrow table; beyond, only those with something in them.
const MOST_POOLS: usize = 8;
/// Lines of one kind below the tables.
const MOST_LINES: usize = 10;

/// A pool by its load balancer's name and its own, in lower case: the ledger's spelling is that.
type Place = (String, String);

/// A pool's column.
#[derive(Clone, Debug)]
struct Column {
    number: usize,
    /// Its names as they are spelled.
    name: String,
}

fn place(load_balancer: &str, pool: &str) -> Place {
    (load_balancer.to_ascii_lowercase(), pool.to_ascii_lowercase())
}

/// The report in words.
#[must_use]
pub fn text(report: &Report, detail: Detail) -> String {
    let mut text = head(report);
    let places = places(report);
    if !report.nodes.is_empty() {
        text.push('\n');
        text += &nodes(report, &places, detail);
    }
    text.push('\n');
    text += &shown(report);
    let pools = pools(report, &places, detail);
    if !pools.is_empty() {
        text.push('\n');
        text += &pools;
    }
    let notes = notes(report);
    if !notes.is_empty() {
        text.push('\n');
        text += &notes;
    }
    text
}

fn head(report: &Report) -> String {
    let now = report.asked_at;
    let leads = match (&report.leader, &report.leader_error) {
        (_, Some(why)) => format!("not known: {why}"),
        (None, None) => "nobody: there is no Lease".to_owned(),
        (Some(leader), None) => {
            let renewed = leader
                .renewed
                .map_or_else(|| "never".to_owned(), |at| format!("{} ago", age(at, now)));
            match (&leader.holder, leader.since) {
                (Some(holder), Some(since)) if leader.alive => format!(
                    "{holder} since {since:.0} ({}), term {}, renewed {renewed}",
                    age(since, now),
                    leader.term
                ),
                (Some(holder), _) => format!("nobody: {holder} did, and renewed its Lease {renewed}"),
                (None, _) => format!("nobody: the Lease was given back {renewed}"),
            }
        }
    };
    let mut text = format!(
        "Leader:        {leads}\nAdmin states:  mode {}, others' Down: {}\n",
        report.mode, report.foreign_down
    );
    if let Some(why) = &report.azure_error {
        let _ = writeln!(
            text,
            "Azure:         not asked: {why}\n               What follows is what Kubernetes alone knows."
        );
    }
    if let Some(why) = &report.ledger_error {
        let _ = writeln!(
            text,
            "Ledger:        {why}\n               Whose a Down is, is not known."
        );
    }
    text
}

/// The pools by number.
fn places(report: &Report) -> BTreeMap<Place, Column> {
    let known = report.load_balancers.iter();
    let known = known.flat_map(|found| found.pools.iter().map(|pool| (&found.name, &pool.name)));
    // Where Azure was not asked, the ledger's; otherwise those of pools that no rule uses any more.
    let entries = report.nodes.iter().flat_map(|node| &node.entries);
    let entries = entries.map(|entry| (&entry.load_balancer, &entry.pool));
    let mut places = BTreeMap::new();
    for (load_balancer, pool) in known.chain(entries) {
        let number = places.len() + 1;
        let column = || Column {
            number,
            name: format!("{load_balancer}/{pool}"),
        };
        places.entry(place(load_balancer, pool)).or_insert_with(column);
    }
    places
}

fn nodes(report: &Report, places: &BTreeMap<Place, Column>, detail: Detail) -> String {
    let wide = detail == Detail::Wide;
    let mut shown: Vec<(&Place, &Column)> = places.iter().collect();
    shown.sort_by_key(|(_, column)| column.number);
    let mut hidden = 0;
    if !wide && shown.len() > MOST_POOLS {
        let is_notable =
            |entry: &&EntryRow| entry.pending || entry.stage.is_some() || entry.admin_state != Some("None");
        let entries = report.nodes.iter().flat_map(|node| &node.entries).filter(is_notable);
        let notable: BTreeSet<Place> = entries.map(|entry| place(&entry.load_balancer, &entry.pool)).collect();
        hidden = shown.len();
        shown.retain(|(place, _)| notable.contains(place));
        shown.truncate(MOST_POOLS);
        hidden -= shown.len();
    }
    let mut header = vec!["NODE".to_owned(), "/healthz".to_owned(), "SIGNALS".to_owned()];
    if wide {
        header.push("ASKED".to_owned());
    }
    header.extend(shown.iter().map(|(_, column)| {
        if wide {
            column.name.clone()
        } else {
            column.number.to_string()
        }
    }));
    let rows = report.nodes.iter().map(|node| {
        let mut row = vec![node.name.clone(), verdict(node), signals(node, wide)];
        if wide {
            let why = node.verdict.why.clone().unwrap_or_else(|| "no".to_owned());
            row.push(if node.verdict.asked { "yes".to_owned() } else { why });
        }
        row.extend(shown.iter().map(|(place, _)| cell(report, node, place, wide)));
        row
    });
    let mut text = columns(&header, &rows.collect::<Vec<_>>());
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} more pools are not shown; -o wide shows all.");
    }
    text
}

fn verdict(node: &NodeRow) -> String {
    let doubt = if node.verdict.asked { "" } else { "?" };
    node.verdict
        .healthz
        .map_or_else(|| "not served".to_owned(), |code| format!("{code}{doubt}"))
}

fn signals(node: &NodeRow, wide: bool) -> String {
    let mut words: Vec<_> = node.signals.iter().map(|signal| signal.name.clone()).collect();
    if !wide && words.len() > 1 {
        let more = words.len() - 1;
        words.truncate(1);
        words.push(format!("+{more}"));
    }
    words.extend(node.excluded.map(|label| {
        if wide {
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

/// What a Node has in a pool; of several entries in one, such as after a change of address, all.
fn cell(report: &Report, node: &NodeRow, wanted: &Place, wide: bool) -> String {
    let entries = node.entries.iter();
    let here = entries.filter(|entry| place(&entry.load_balancer, &entry.pool) == *wanted);
    let mut words: Vec<_> = here.map(|entry| state(report, entry, wide)).collect();
    words.dedup();
    if words.is_empty() {
        return "-".to_owned();
    }
    words.join(" + ")
}

fn state(report: &Report, entry: &EntryRow, wide: bool) -> String {
    let mut text = entry.admin_state.unwrap_or("?").to_owned();
    if let Some(becomes) = entry.becomes {
        let _ = write!(text, "→{becomes} pending");
    }
    match entry.owner {
        Some(Owner::Headgate) => text.push_str(" ours"),
        Some(Owner::Foreign) => text.push_str(" foreign"),
        Some(Owner::Unknown) => text.push_str(" whose?"),
        None => {}
    }
    if let (Some(stage), Some(since)) = (entry.stage, entry.since)
        && (wide || entry.admin_state.is_none())
    {
        let _ = write!(text, " ({stage} {})", age(since, report.asked_at));
    }
    text
}

fn shown(report: &Report) -> String {
    let (shown, total) = (report.nodes.len(), report.nodes_total);
    let mut text = match report.selection {
        Selection::All => format!("All {total} nodes."),
        Selection::Named => format!("{shown} of {total} nodes."),
        Selection::Notable => format!(
            "{shown} of {total} nodes: those with a signal, an admin state or a line in the ledger; --all shows all."
        ),
    };
    if report.nodes.iter().any(|node| !node.verdict.asked) {
        text += " With \"?\" the agent was not asked, or did not answer: the Node's signals imply it.";
    }
    text.push('\n');
    text
}

fn pools(report: &Report, places: &BTreeMap<Place, Column>, detail: Detail) -> String {
    let header = [
        "#",
        "LOAD BALANCER",
        "POOL",
        "ENTRIES",
        "DOWN",
        "RULES",
        "PROBE",
        "ASKS",
    ]
    .map(str::to_owned);
    let mut rows = Vec::new();
    for load_balancer in &report.load_balancers {
        for pool in &load_balancer.pools {
            let number = places.get(&place(&load_balancer.name, &pool.name));
            let number = number.map_or_else(String::new, |column| column.number.to_string());
            let mut left = [
                number,
                load_balancer.name.clone(),
                pool.name.clone(),
                pool.entries.to_string(),
                pool.down.to_string(),
            ];
            for (rules, probe, reaches) in rules(pool, detail) {
                rows.push([left.as_slice(), &[rules, probe, reaches.words().to_owned()]].concat());
                left = Default::default();
            }
        }
        rows.extend(load_balancer.not_considered.iter().map(|pool| {
            // It is a column where something in it is on record.
            let (number, why) = match places.get(&place(&load_balancer.name, pool)) {
                Some(column) => (
                    column.number.to_string(),
                    "no rule uses it any more: what is ours is given back",
                ),
                None => (String::new(), "not considered: no rule uses it"),
            };
            let words = [&*number, &load_balancer.name, pool, "", "", "-", "-", why];
            words.map(str::to_owned).to_vec()
        }));
    }
    if rows.is_empty() {
        return String::new();
    }
    columns(&header, &rows)
}

/// The rules that ask alike are one line, unless each is wanted.
fn rules(pool: &PoolRow, detail: Detail) -> Vec<(String, String, Reaches)> {
    let mut alike: BTreeMap<(Reaches, Option<&ProbeRow>), Vec<&str>> = BTreeMap::new();
    for rule in &pool.rules {
        alike
            .entry((rule.reaches, rule.probe.as_ref()))
            .or_default()
            .push(&rule.name);
    }
    let mut lines = Vec::new();
    for ((reaches, probe), names) in alike {
        let probe = probe.map_or_else(|| "none".to_owned(), probe_words);
        match names.as_slice() {
            names if detail == Detail::Wide || names.len() == 1 => {
                lines.extend(names.iter().map(|name| ((*name).to_owned(), probe.clone(), reaches)));
            }
            names => lines.push((format!("{} rules", names.len()), probe, reaches)),
        }
    }
    lines
}

fn probe_words(probe: &ProbeRow) -> String {
    let path = probe.path.as_deref().unwrap_or_default();
    format!("{} :{}{path}", probe.protocol, probe.port)
}

/// What is to be minded.
fn notes(report: &Report) -> String {
    let mut notes = Vec::new();
    if report.probed_by_headgate == Some(false) {
        notes.push(format!(
            "No rule's probe asks headgate (Http :{}/healthz): nodes are taken out by admin states alone.",
            report.health_port
        ));
    }
    for load_balancer in &report.load_balancers {
        notes.extend(about(load_balancer));
    }
    for line in &report.unmatched_ledger {
        let state = line
            .admin_state
            .map_or_else(|| "not seen".to_owned(), |state| format!("{state}, of no Node"));
        notes.push(format!(
            "The ledger has {} of {}/{} as {} for {}; the entry is {state}.",
            line.entry,
            line.load_balancer,
            line.pool,
            line.stage,
            age(line.since, report.asked_at)
        ));
    }
    let more = notes.len().saturating_sub(MOST_LINES);
    if more > 1 {
        notes.truncate(MOST_LINES);
        notes.push(format!("And {more} more remarks; -o json has all."));
    }
    notes.iter().flat_map(|note| [note, "\n"]).collect()
}

fn about(load_balancer: &LoadBalancerRow) -> Vec<String> {
    let name = &load_balancer.name;
    let mut notes = Vec::new();
    if load_balancer.busy {
        notes.push(format!(
            "ARM is busy with {name}: nothing is written to it until that is over."
        ));
    }
    for pool in &load_balancer.pools {
        let bare = pool
            .rules
            .iter()
            .filter(|rule| rule.reaches == Reaches::NoProbe)
            .count();
        if bare > 0 {
            notes.push(format!(
                "{bare} of {} rules of {name}/{} have no probe: Down has no effect on them.",
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
                "All entries of {name}/{} are Down: nobody gets its new connections.",
                pool.name
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
