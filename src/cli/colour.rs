//! Colours of tables on a terminal. Elsewhere, and with `NO_COLOR`, there are none.

use std::fmt::Write as _;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};

use super::{Failure, written};

/// The style of a cell by its beginning. The first cell of a line is a name, and has none.
const CELLS: &[(&str, Style)] = &[
    ("503", AnsiColor::Red.on_default()),
    ("200", AnsiColor::Green.on_default()),
    ("Down foreign", AnsiColor::Magenta.on_default()),
    ("Down", AnsiColor::Yellow.on_default()),
    ("None held back", AnsiColor::Magenta.on_default()),
    ("None→Down", AnsiColor::Cyan.on_default()),
    ("Down→None", AnsiColor::Cyan.on_default()),
];

/// Writes a text with tables to standard output, with colours on a terminal. A reader that closes early is not a failure.
pub(super) fn print_coloured(text: &str) -> Result<(), Failure> {
    written(anstream::stdout().lock().write_all(coloured(text).as_bytes()))
}

/// The text with a style around each cell that has one. Columns keep their width.
fn coloured(text: &str) -> String {
    let mut styled = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while let Some(gap) = rest.find("  ") {
            let cell = gap + rest[gap..].len() - rest[gap..].trim_start_matches(' ').len();
            styled.push_str(&rest[..cell]);
            rest = &rest[cell..];
            let end = rest.find("  ").unwrap_or_else(|| rest.trim_end().len());
            // The longest beginning decides.
            let found = CELLS.iter().filter(|(start, _)| rest[..end].starts_with(start));
            if let Some((_, style)) = found.max_by_key(|(start, _)| start.len()) {
                // Writing to a String cannot fail.
                let _ = write!(styled, "{style}{}{style:#}", &rest[..end]);
                rest = &rest[end..];
            }
        }
        styled.push_str(rest);
    }
    styled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_coloured_and_names_are_not() {
        let text = "NODE   /healthz   1\nDown   503        Down ours\naks-c  200?       None\n\nDown in two pools\n";
        let styled = coloured(text);
        assert_eq!(anstream::adapter::strip_str(&styled).to_string(), text);
        assert!(
            styled.contains("\u{1b}[31m503\u{1b}[0m        \u{1b}[33mDown ours\u{1b}[0m\n"),
            "{styled:?}"
        );
        assert!(
            styled.contains("aks-c  \u{1b}[32m200?\u{1b}[0m       None\n"),
            "{styled:?}"
        );
        assert!(
            styled.contains("\nDown in two pools\n") && styled.starts_with("NODE   /healthz   1\n"),
            "{styled:?}"
        );
        assert!(
            coloured("a  None→Down pending\n").contains("\u{1b}[36mNone→Down pending"),
            "longest beginning"
        );
        assert_eq!(coloured("  \n a\n"), "  \n a\n");
    }
}
