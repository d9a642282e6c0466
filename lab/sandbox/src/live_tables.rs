//! The live tables: redrawn in place, at most as high and wide as the terminal.

use std::io;

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use console::Term;
use headgate_core::settings::format_duration;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};

use super::arm_callers::CallerRows;
use super::leader_row::LeaderRow;
use super::node_health::{HealthAnswer, NodeRow, NodeRows};
use super::pools::PoolRow;

/// Width of the tables; wider ones are not easier to read.
const MAX_WIDTH: u16 = 120;

/// The tables on a terminal.
#[derive(Debug)]
pub(super) struct LiveTables {
    term: Term,
    drawn: Vec<String>,
    layout: Layout,
}

/// The rows to draw.
#[derive(Debug)]
pub(super) struct Snapshot<'a> {
    pub(super) nodes: &'a NodeRows,
    pub(super) pools: &'a [PoolRow],
    pub(super) callers: &'a CallerRows,
    pub(super) leader: Option<&'a LeaderRow>,
}

/// The layout of the tables.
#[derive(Debug)]
struct Layout {
    /// Time zone of the times of day.
    zone: TimeZone,
    colors: bool,
    width: u16,
}

impl LiveTables {
    /// A table that begins at the line of the cursor. `term` must be buffered, so that a redraw does not flicker.
    pub(super) fn new(term: Term) -> Self {
        Self {
            term,
            drawn: Vec::new(),
            layout: Layout {
                zone: TimeZone::system(),
                colors: console::colors_enabled(),
                width: 0,
            },
        }
    }

    /// Draws the rows over the previous drawing.
    pub(super) fn draw(&mut self, snapshot: &Snapshot<'_>, now: Timestamp) -> io::Result<()> {
        let (height, width) = self.term.size();
        let rows: Vec<&NodeRow> = snapshot.nodes.rows().collect();
        self.layout.width = width.min(MAX_WIDTH);
        let height: usize = height.saturating_sub(1).into();
        let mut below = self.layout.pool_lines(snapshot.pools, now, height / 2);
        let calls = self.layout.caller_lines(snapshot, now);
        // Only if there is room beside the nodes and pools.
        if height > 2 * (below.len() + calls.len()) {
            below.extend(calls);
        }
        let mut lines = self.layout.node_lines(&rows, now, height.saturating_sub(below.len()));
        lines.extend(below);
        if lines == self.drawn {
            return Ok(());
        }
        if self.drawn.is_empty() {
            self.term.hide_cursor()?;
        }
        self.term.move_cursor_up(self.drawn.len())?;
        for line in &lines {
            self.term.clear_line()?;
            self.term.write_line(line)?;
        }
        self.term.clear_to_end_of_screen()?;
        self.drawn = lines;
        self.term.flush()
    }
}

impl Drop for LiveTables {
    fn drop(&mut self) {
        // The terminal may be closed.
        let _ = self.term.show_cursor();
        let _ = self.term.flush();
    }
}

impl Layout {
    /// The lines of the nodes' table, at most `height`. If there is no room for all, healthy nodes are left out.
    fn node_lines(&self, rows: &[&NodeRow], now: Timestamp, height: usize) -> Vec<String> {
        let mut rows = rows.to_vec();
        let mut hidden = 0;
        loop {
            let mut lines: Vec<String> = self.table(&rows, now).lines().collect();
            if hidden > 0 {
                lines.push(format!(" and {hidden} more, all in"));
            }
            let removable = rows.iter().rposition(|row| row.answer.healthz == Some(200));
            match removable {
                Some(last) if lines.len() > height => {
                    rows.remove(last);
                    hidden += 1;
                }
                _ => {
                    lines.truncate(height);
                    return lines;
                }
            }
        }
    }

    /// The lines of the pools' table after an empty one, at most `height`. Pools without Down entries are left out
    /// first.
    fn pool_lines(&self, rows: &[PoolRow], now: Timestamp, height: usize) -> Vec<String> {
        let mut rows: Vec<&PoolRow> = rows.iter().collect();
        loop {
            if rows.is_empty() {
                return Vec::new();
            }
            let mut table = self.with_header(["LOAD BALANCER", "POOL", "IN", "STATE", "OUT", "SINCE"]);
            for row in &rows {
                let pool = &row.pool;
                let (out, color) = if pool.down.is_empty() {
                    ("-".to_owned(), Color::Green)
                } else {
                    (pool.nodes_down.join(" "), Color::Red)
                };
                table.add_row([
                    Cell::new(&pool.load_balancer),
                    Cell::new(&pool.name),
                    Cell::new(pool.addresses - pool.down.len()),
                    Cell::new(&pool.provisioning_state),
                    Cell::new(out).fg(color),
                    Cell::new(since(row.since, now, &self.zone)),
                ]);
            }
            // Only the column with the nodes' names wraps.
            keep_content_width(&mut table, &[0, 1, 2, 3, 5]);
            let lines: Vec<String> = table.lines().collect();
            if lines.len() < height {
                return [vec![String::new()], lines].concat();
            }
            let removable = rows.iter().rposition(|row| row.pool.down.is_empty());
            rows.remove(removable.unwrap_or(rows.len() - 1));
        }
    }

    /// The leader and the callers of ARM, after an empty line.
    fn caller_lines(&self, snapshot: &Snapshot<'_>, now: Timestamp) -> Vec<String> {
        let lead = match snapshot.leader {
            Some(LeaderRow {
                leader: Some(leader),
                since: at,
                term,
            }) => format!("Leader: {leader}, since {}, term {term}", since(*at, now, &self.zone)),
            _ => "Leader: none".to_owned(),
        };
        let mut table = self.with_header(["ARM CALLER", "READS", "WRITES", "LAST"]);
        for row in snapshot.callers.rows() {
            let counts = [row.reads, row.writes].map(Cell::new);
            let last = Cell::new(since(row.last, now, &self.zone));
            table.add_row([vec![Cell::new(&row.caller)], counts.to_vec(), vec![last]].concat());
        }
        keep_content_width(&mut table, &[1, 2, 3]);
        let mut lines = vec![String::new(), format!(" {lead}")];
        if snapshot.callers.rows().next().is_some() {
            lines.extend(table.lines());
        }
        lines
    }

    fn with_header<const N: usize>(&self, names: [&str; N]) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(self.width)
            .set_header(names.map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
        if self.colors {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        table
    }

    fn table(&self, rows: &[&NodeRow], now: Timestamp) -> Table {
        let mut table = self.with_header(["NODE", "/healthz", "SIGNALS", "SOURCE", "SINCE"]);
        for row in rows {
            let HealthAnswer { signals, source, .. } = &row.answer;
            let (verdict, color) = verdict(&row.answer);
            let signals = if signals.is_empty() {
                "-".to_owned()
            } else {
                signals.join("\n")
            };
            table.add_row([
                Cell::new(&row.node),
                Cell::new(verdict).fg(color),
                Cell::new(signals),
                Cell::new(source.as_deref().unwrap_or("-")),
                Cell::new(since(row.since, now, &self.zone)),
            ]);
        }
        // Only the column with the signals wraps.
        keep_content_width(&mut table, &[0, 1, 3, 4]);
        table
    }
}

/// Makes columns as wide as their content.
fn keep_content_width(table: &mut Table, columns: &[usize]) {
    for number in columns {
        if let Some(column) = table.column_mut(*number) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
}

fn verdict(answer: &HealthAnswer) -> (String, Color) {
    match answer.healthz {
        Some(200) => ("200 in".to_owned(), Color::Green),
        Some(status) => (format!("{status} out"), Color::Red),
        None => ("no answer".to_owned(), Color::Yellow),
    }
}

/// Time of day and age. After an hour the age has no seconds.
fn since(since: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let clock = since.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string();
    let age = now.duration_since(since);
    let unit = if age.as_hours() > 0 { Unit::Minute } else { Unit::Second };
    let age = age.round(unit).ok().and_then(|age| age.try_into().ok());
    match age {
        Some(age) => format!("{clock} ({})", format_duration(age)),
        None => clock,
    }
}

#[cfg(test)]
mod tests {
    use super::super::pools::Pool;
    use super::*;

    fn row(node: &str, healthz: Option<u16>, signals: &[&str]) -> NodeRow {
        let signals = signals.iter().map(ToString::to_string).collect();
        let answer = HealthAnswer {
            healthz,
            signals,
            source: healthz.map(|_| "watch".to_owned()),
        };
        NodeRow {
            since: Timestamp::UNIX_EPOCH,
            node: node.to_owned(),
            answer,
        }
    }

    const LAYOUT: Layout = Layout {
        zone: TimeZone::UTC,
        colors: false,
        width: 80,
    };

    fn drawn(rows: &[NodeRow], height: usize) -> Vec<String> {
        let now = Timestamp::from_second(3_700).unwrap();
        LAYOUT.node_lines(&rows.iter().collect::<Vec<_>>(), now, height)
    }

    #[test]
    fn the_table_fits_eighty_columns_with_any_signals() {
        let keys = headgate_core::node::DEFAULT_SIGNAL_TAINTS;
        let lines = drawn(&[row("node-50", Some(503), &keys), row("node-2", None, &[])], 100);
        let text = lines.join("\n");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("503 out") && text.contains("no answer"), "{text}");
        assert!(text.contains("00:00:00 (1h2m)"), "{text}");
        assert!(text.contains(keys[0]), "the most common signal needs one line\n{text}");
    }

    #[test]
    fn pools_with_down_entries_stay_visible_on_a_low_terminal() {
        let now = Timestamp::from_second(3_700).unwrap();
        let row = |number| {
            let with_one_down = |name: &str| Vec::from_iter((number == 8).then(|| name.to_owned()));
            let pool = Pool {
                load_balancer: "kubernetes".to_owned(),
                name: format!("kubernetes-{number}"),
                provisioning_state: "Succeeded".to_owned(),
                addresses: 3,
                down: with_one_down("a-guid"),
                up: Vec::new(),
                nodes_down: with_one_down("node-1"),
            };
            let since = Timestamp::UNIX_EPOCH;
            PoolRow { since, pool }
        };
        let rows: Vec<PoolRow> = (1..=9).map(row).collect();
        let lines = LAYOUT.pool_lines(&rows, now, 6);
        let text = lines.join("\n");
        assert!(lines.len() <= 6, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let shows = |line: &String| line.contains("kubernetes-8") && line.contains("node-1");
        assert!(lines.iter().any(shows), "{text}");
        let lowest = LAYOUT.pool_lines(&rows, now, 2);
        assert!(lowest.is_empty() || lowest.iter().any(shows), "{lowest:?}");
    }

    #[test]
    fn the_leader_and_the_callers_are_shown() {
        let mut callers = CallerRows::default();
        let nodes = NodeRows::new([]);
        let leader = LeaderRow {
            since: Timestamp::UNIX_EPOCH,
            leader: Some("node-2_0a1b".to_owned()),
            term: 3,
        };
        let now = Timestamp::from_second(60).unwrap();
        let text = |callers: &CallerRows, leader| {
            let snapshot = Snapshot {
                nodes: &nodes,
                pools: &[],
                callers,
                leader,
            };
            LAYOUT.caller_lines(&snapshot, now).join("\n")
        };
        assert_eq!(text(&callers, None), "\n Leader: none");
        callers.update(&serde_json::json!({"entries": [{"kind": "request", "method": "PUT", "arrived": "1970-01-01T00:00:30Z",
            "path": "/subscriptions/s/providers/Microsoft.Network/x", "userAgent": super::super::arm_callers::user_agent("node-2")}]}));
        let shown = text(&callers, Some(&leader));
        assert!(
            shown.contains("Leader: node-2_0a1b, since 00:00:00 (1m), term 3"),
            "{shown}"
        );
        let row = shown.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row, ["node-2", "0", "1", "00:00:30", "(30s)"]);
    }

    #[test]
    fn unhealthy_nodes_stay_visible_on_a_low_terminal() {
        let rows: Vec<NodeRow> = (1..=50)
            .map(|number| {
                let status = if number == 40 { 503 } else { 200 };
                row(&format!("node-{number}"), Some(status), &[])
            })
            .collect();
        let lines = drawn(&rows, 10);
        assert_eq!(lines.len(), 10, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("node-40 ")), "{lines:#?}");
        assert_eq!(lines[9], " and 42 more, all in");
    }
}
