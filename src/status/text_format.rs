//! Formats for the text of `headgate status`: ages with one unit, and rows in columns. Pure.

use headgate_core::telemetry::escape_line;
use jiff::Timestamp;

const MINUTE_SECONDS: i64 = 60;
const HOUR_SECONDS: i64 = 60 * MINUTE_SECONDS;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;
/// The space between two columns.
const COLUMN_GAP: &str = "   ";

/// The time from `since` to `now` as `12s`, `3m`, `5h` or `2d`; `0s` if another machine's clock is ahead.
pub(crate) fn format_age(since: Timestamp, now: Timestamp) -> String {
    match now.duration_since(since).as_secs().max(0) {
        seconds if seconds < MINUTE_SECONDS => format!("{seconds}s"),
        seconds if seconds < HOUR_SECONDS => format!("{}m", seconds / MINUTE_SECONDS),
        seconds if seconds < 2 * DAY_SECONDS => format!("{}h", seconds / HOUR_SECONDS),
        seconds => format!("{}d", seconds / DAY_SECONDS),
    }
}

/// A number with its noun.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A table with one line for the header, if there is one, and for each row.
pub(crate) fn format_columns(header: &[String], rows: &[Vec<String>]) -> String {
    let header = (!header.is_empty()).then(|| header.to_vec());
    format_rows(&header.into_iter().chain(rows.iter().cloned()).collect::<Vec<_>>())
}

/// A line for each row. Each column is as wide as its widest cell. Names of others in the cells are escaped for a terminal.
pub(crate) fn format_rows(rows: &[Vec<String>]) -> String {
    let escape = |cells: &Vec<String>| {
        cells
            .iter()
            .map(|cell| escape_line(cell).into_owned())
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = rows.iter().map(escape).collect();
    let mut widths = vec![0; rows.iter().map(Vec::len).max().unwrap_or_default()];
    for cells in &rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for cells in &rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(cells) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
            line.push_str(COLUMN_GAP);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_has_one_unit() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (47 * HOUR_SECONDS, "47h"),
            (2 * DAY_SECONDS, "2d"),
        ] {
            let now = Timestamp::from_second(1_000_000 + seconds).unwrap();
            assert_eq!(format_age(Timestamp::from_second(1_000_000).unwrap(), now), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let cells = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let text = format_columns(
            &cells(&["A", "LONG", "C"]),
            &[cells(&["None→Down", "x", "-"]), cells(&["", "y", ""])],
        );
        assert_eq!(text, "A           LONG   C\nNone→Down   x      -\n            y\n");
    }
}
