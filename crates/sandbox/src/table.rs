//! The live tables: redrawn in place, never taller or wider than the terminal.

use std::io;

use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Table, presets};
use console::Term;
use headgate_settings::format_duration;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};

use super::board::{Board, Row, Said};
use super::calls::Calls;
use super::leads::Lead;
use super::pools;

/// Wider is no easier to read.
const MAX_WIDTH: u16 = 120;

/// A table on a terminal.
#[derive(Debug)]
pub(super) struct LiveTable {
    term: Term,
    drawn: Vec<String>,
    look: Look,
}

/// What is drawn.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) board: &'a Board,
    pub(super) pools: &'a [pools::Row],
    pub(super) calls: &'a Calls,
    pub(super) lead: Option<&'a Lead>,
}

/// How the table is to look.
#[derive(Debug)]
struct Look {
    /// Of the times of day.
    zone: TimeZone,
    colors: bool,
    width: u16,
}

impl LiveTable {
    /// A table that begins at the line the cursor is on. `term` is buffered, so that a redraw does not flicker.
    pub(super) fn new(term: Term) -> Self {
        Self {
            term,
            drawn: Vec::new(),
            look: Look {
                zone: TimeZone::system(),
                colors: console::colors_enabled(),
                width: 0,
            },
        }
    }

    /// Draws what there is over what was drawn before.
    pub(super) fn draw(&mut self, shown: &Shown<'_>, now: Timestamp) -> io::Result<()> {
        let (height, width) = self.term.size();
        let rows: Vec<&Row> = shown.board.rows().collect();
        self.look.width = width.min(MAX_WIDTH);
        let height: usize = height.saturating_sub(1).into();
        let mut below = self.look.pools(shown.pools, now, height / 2);
        let calls = self.look.calls(shown, now);
        // Only where nodes and pools have room beside them.
        if height > 2 * (below.len() + calls.len()) {
            below.extend(calls);
        }
        let mut lines = self.look.lines(&rows, now, height.saturating_sub(below.len()));
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

impl Drop for LiveTable {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.term.show_cursor();
        let _ = self.term.flush();
    }
}

impl Look {
    /// The table's lines, at most `height`: where not all nodes have room, those that are in give way.
    fn lines(&self, rows: &[&Row], now: Timestamp, height: usize) -> Vec<String> {
        let mut rows = rows.to_vec();
        let mut hidden = 0;
        loop {
            let mut lines: Vec<String> = self.table(&rows, now).lines().collect();
            if hidden > 0 {
                lines.push(format!(" and {hidden} more, all in"));
            }
            let dispensable = rows.iter().rposition(|row| row.said.healthz == Some(200));
            match dispensable {
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

    /// The pools' lines, with an empty one before them, at most `height`: those with nothing out give way.
    fn pools(&self, rows: &[pools::Row], now: Timestamp, height: usize) -> Vec<String> {
        let mut rows: Vec<&pools::Row> = rows.iter().collect();
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
            // Only names wrap.
            keep_whole(&mut table, &[0, 1, 2, 3, 5]);
            let lines: Vec<String> = table.lines().collect();
            if lines.len() < height {
                return [vec![String::new()], lines].concat();
            }
            let dispensable = rows.iter().rposition(|row| row.pool.down.is_empty());
            rows.remove(dispensable.unwrap_or(rows.len() - 1));
        }
    }

    /// Who leads, and who has asked ARM what, with an empty line before them.
    fn calls(&self, shown: &Shown<'_>, now: Timestamp) -> Vec<String> {
        let lead = match shown.lead {
            Some(Lead {
                leader: Some(leader),
                since: at,
                term,
            }) => format!("Leader: {leader}, since {}, term {term}", since(*at, now, &self.zone)),
            _ => "Leader: nobody yet".to_owned(),
        };
        let mut table = self.with_header(["ARM IS ASKED BY", "READS", "WRITES", "LAST"]);
        for row in shown.calls.rows() {
            let counts = [row.reads, row.writes].map(Cell::new);
            let last = Cell::new(since(row.last, now, &self.zone));
            table.add_row([vec![Cell::new(&row.caller)], counts.to_vec(), vec![last]].concat());
        }
        keep_whole(&mut table, &[1, 2, 3]);
        let mut lines = vec![String::new(), format!(" {lead}")];
        if shown.calls.rows().next().is_some() {
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

    fn table(&self, rows: &[&Row], now: Timestamp) -> Table {
        let mut table = self.with_header(["NODE", "/healthz", "SIGNALS", "SOURCE", "SINCE"]);
        for row in rows {
            let Said { signals, source, .. } = &row.said;
            let (verdict, color) = verdict(&row.said);
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
        // Only signals wrap.
        keep_whole(&mut table, &[0, 1, 3, 4]);
        table
    }
}

/// Columns that are as wide as what is in them.
fn keep_whole(table: &mut Table, columns: &[usize]) {
    for number in columns {
        if let Some(column) = table.column_mut(*number) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
}

fn verdict(said: &Said) -> (String, Color) {
    match said.healthz {
        Some(200) => ("200 in".to_owned(), Color::Green),
        Some(status) => (format!("{status} out"), Color::Red),
        None => ("no answer".to_owned(), Color::Yellow),
    }
}

/// Time of day and age; seconds are of no interest after an hour.
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
    use super::*;

    fn row(node: &str, healthz: Option<u16>, signals: &[&str]) -> Row {
        let signals = signals.iter().map(ToString::to_string).collect();
        let said = Said {
            healthz,
            signals,
            source: healthz.map(|_| "watch".to_owned()),
        };
        Row {
            since: Timestamp::UNIX_EPOCH,
            node: node.to_owned(),
            said,
        }
    }

    fn drawn(rows: &[Row], height: usize) -> Vec<String> {
        let now = Timestamp::from_second(3_700).unwrap();
        let look = Look {
            zone: TimeZone::UTC,
            colors: false,
            width: 80,
        };
        look.lines(&rows.iter().collect::<Vec<_>>(), now, height)
    }

    #[test]
    fn fits_eighty_columns_whatever_the_signals() {
        let keys = headgate_node::DEFAULT_SIGNALS;
        let lines = drawn(&[row("node-50", Some(503), &keys), row("node-2", None, &[])], 100);
        let text = lines.join("\n");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("503 out") && text.contains("no answer"), "{text}");
        assert!(text.contains("00:00:00 (1h2m)"), "{text}");
        assert!(text.contains(keys[0]), "the commonest needs one line\n{text}");
    }

    #[test]
    fn pools_with_something_out_keep_their_place_on_a_low_terminal() {
        let now = Timestamp::from_second(3_700).unwrap();
        let look = Look {
            zone: TimeZone::UTC,
            colors: false,
            width: 80,
        };
        let rows: Vec<pools::Row> = (1..=9)
            .map(|number| pools::Row {
                since: Timestamp::UNIX_EPOCH,
                pool: pools::Pool {
                    load_balancer: "kubernetes".to_owned(),
                    name: format!("kubernetes-{number}"),
                    provisioning_state: "Succeeded".to_owned(),
                    addresses: 3,
                    down: if number == 8 {
                        vec!["a-guid".to_owned()]
                    } else {
                        Vec::new()
                    },
                    up: Vec::new(),
                    nodes_down: if number == 8 {
                        vec!["node-1".to_owned()]
                    } else {
                        Vec::new()
                    },
                },
            })
            .collect();
        let lines = look.pools(&rows, now, 6);
        let text = lines.join("\n");
        assert!(
            lines.len() <= 6 && lines.iter().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(
            lines
                .iter()
                .any(|line| line.contains("kubernetes-8") && line.contains("node-1")),
            "{text}"
        );
        assert!(
            look.pools(&rows, now, 2)
                .iter()
                .any(|line| line.contains("kubernetes-8"))
                || look.pools(&rows, now, 2).is_empty()
        );
    }

    #[test]
    fn who_leads_and_who_asks() {
        let look = Look {
            zone: TimeZone::UTC,
            colors: false,
            width: 80,
        };
        let mut calls = Calls::default();
        let board = Board::new([]);
        let lead = Lead {
            since: Timestamp::UNIX_EPOCH,
            leader: Some("node-2_0a1b".to_owned()),
            term: 3,
        };
        let now = Timestamp::from_second(60).unwrap();
        let text = |calls: &Calls, lead| {
            let shown = Shown {
                board: &board,
                pools: &[],
                calls,
                lead,
            };
            look.calls(&shown, now).join("\n")
        };
        assert_eq!(text(&calls, None), "\n Leader: nobody yet");
        calls.see(&serde_json::json!({"entries": [{"kind": "request", "method": "PUT", "arrived": "1970-01-01T00:00:30Z",
            "path": "/subscriptions/s/providers/Microsoft.Network/x", "userAgent": super::super::calls::user_agent("node-2")}]}));
        let told = text(&calls, Some(&lead));
        assert!(
            told.contains("Leader: node-2_0a1b, since 00:00:00 (1m), term 3"),
            "{told}"
        );
        let row = told.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row, ["node-2", "0", "1", "00:00:30", "(30s)"]);
    }

    #[test]
    fn nodes_that_are_out_keep_their_place_on_a_low_terminal() {
        let rows: Vec<Row> = (1..=50)
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
