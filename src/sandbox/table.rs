//! The live table: redrawn in place, never taller or wider than the terminal.

use std::io;

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use console::Term;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};

use super::board::{Board, Row, Said};
use crate::config::duration_text;

/// Wider is no easier to read.
const MAX_WIDTH: u16 = 120;

/// A table on a terminal.
#[derive(Debug)]
pub(super) struct LiveTable {
    term: Term,
    drawn: Vec<String>,
    zone: TimeZone,
}

impl LiveTable {
    /// A table that begins at the line the cursor is on. `term` is buffered, so that a redraw does not flicker.
    pub(super) fn new(term: Term) -> Self {
        Self {
            term,
            drawn: Vec::new(),
            zone: TimeZone::system(),
        }
    }

    /// Draws the board over what was drawn before.
    pub(super) fn draw(&mut self, board: &Board, now: Timestamp) -> io::Result<()> {
        let (height, width) = self.term.size();
        let rows: Vec<&Row> = board.rows().collect();
        let lines = lines(&rows, now, &self.zone, width, height.saturating_sub(1).into());
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

/// The table's lines, at most `height`: nodes that are out come first where not all have room.
fn lines(rows: &[&Row], now: Timestamp, zone: &TimeZone, width: u16, height: usize) -> Vec<String> {
    let mut rows = rows.to_vec();
    let mut hidden = 0;
    loop {
        let mut lines: Vec<String> = table(&rows, now, zone, width).lines().collect();
        if hidden > 0 {
            lines.push(format!(" and {hidden} more, all in"));
        }
        if lines.len() <= height || rows.is_empty() {
            lines.truncate(height);
            return lines;
        }
        // The last node that is in gives way; where none is, the last line does.
        let Some(last) = rows.iter().rposition(|row| row.said.healthz == Some(200)) else {
            lines.truncate(height);
            return lines;
        };
        rows.remove(last);
        hidden += 1;
    }
}

fn table(rows: &[&Row], now: Timestamp, zone: &TimeZone, width: u16) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width.min(MAX_WIDTH))
        .set_header(
            ["NODE", "/healthz", "SIGNALS", "SOURCE", "SINCE"].map(|name| cell(name).add_attribute(Attribute::Bold)),
        );
    if console::colors_enabled() {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for row in rows {
        let (verdict, color) = verdict(&row.said);
        table.add_row([
            cell(&row.node),
            cell(verdict).fg(color),
            cell(if row.said.signals.is_empty() {
                "-".to_owned()
            } else {
                row.said.signals.join("\n")
            }),
            cell(row.said.source.as_deref().unwrap_or("-")),
            cell(since(row.since, now, zone)),
        ]);
    }
    table
}

fn cell(text: impl ToString) -> Cell {
    Cell::new(text.to_string())
}

fn verdict(said: &Said) -> (String, Color) {
    match said.healthz {
        Some(200) => ("200 in".to_owned(), Color::Green),
        Some(status) => (format!("{status} out"), Color::Red),
        None => ("no answer".to_owned(), Color::Yellow),
    }
}

/// Time of day and age.
fn since(since: Timestamp, now: Timestamp, zone: &TimeZone) -> String {
    let clock = since.to_zoned(zone.clone()).strftime("%H:%M:%S").to_string();
    let age = now
        .duration_since(since)
        .round(Unit::Second)
        .ok()
        .and_then(|age| age.try_into().ok());
    match age {
        Some(age) => format!("{clock} ({})", duration_text(age)),
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
            source: healthz.map(|_| "remembered".to_owned()),
        };
        Row {
            since: Timestamp::UNIX_EPOCH,
            node: node.to_owned(),
            said,
        }
    }

    fn drawn(rows: &[Row], height: usize) -> Vec<String> {
        let now = Timestamp::from_second(3_700).unwrap();
        let rows: Vec<&Row> = rows.iter().collect();
        let lines = lines(&rows, now, &TimeZone::UTC, 80, height);
        lines
            .iter()
            .map(|line| console::strip_ansi_codes(line).into_owned())
            .collect()
    }

    #[test]
    fn fits_eighty_columns_whatever_the_signals() {
        let keys = crate::config::DEFAULT_SIGNALS;
        let lines = drawn(&[row("node-50", Some(503), &keys), row("node-2", None, &[])], 100);
        let text = lines.join("\n");
        assert!(
            lines.iter().all(|line| console::measure_text_width(line) <= 80),
            "{text}"
        );
        assert!(text.contains("503 out") && text.contains("no answer"), "{text}");
        assert!(text.contains("00:00:00 (1h1m40s)"), "{text}");
        for key in &keys[..2] {
            assert!(text.contains(key), "{text}");
        }
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
