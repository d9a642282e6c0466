//! Rows of words as columns, each as wide as its widest word. Pure.

/// Between columns.
const GAP: &str = "   ";

/// The rows below their header, a line each.
pub(super) fn columns(header: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(header).chain(rows.iter().map(Vec::as_slice));
    let mut widths = vec![0; header.len()];
    for row in all() {
        for (width, word) in widths.iter_mut().zip(row) {
            *width = (*width).max(word.chars().count());
        }
    }
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (width, word) in widths.iter().zip(row) {
            line.push_str(word);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(word.chars().count())));
            line.push_str(GAP);
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
    fn columns_are_as_wide_as_their_widest_word() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let text = columns(
            &words(&["A", "LONG", "C"]),
            &[words(&["None→Down", "x", "-"]), words(&["", "y", ""])],
        );
        assert_eq!(text, "A           LONG   C\nNone→Down   x      -\n            y\n");
    }
}
