//! The load balancer's model for the page: the table of lab/drill/README.md, so that both say the same.

use std::fmt::Write as _;

use super::page::escape;

const DOCUMENT: &str = include_str!("../../../../lab/drill/README.md");
const HEADING: &str = "## The load balancer's model";

/// The cells of one row.
type Row = Vec<&'static str>;

/// The rows of the first table below the heading; the first is its header.
fn rows() -> Vec<Row> {
    let section = DOCUMENT.split_once(HEADING).map_or("", |(_, section)| section);
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let table = lines.take_while(|line| line.starts_with('|'));
    table
        .filter(|line| !line.starts_with("|---"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

/// The table as HTML.
pub(super) fn table() -> String {
    let mut html = String::from("<table id=\"model\">\n");
    for (index, row) in rows().into_iter().enumerate() {
        let (opening, closing) = if index == 0 {
            ("<th scope=\"col\">", "</th>")
        } else {
            ("<td>", "</td>")
        };
        html.push_str("<tr>");
        for cell in row {
            // Writing to a String does not fail.
            let _ = write!(html, "{opening}{}{closing}", inline(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
    html
}

/// Text as HTML, with Markdown's code spans; there is no other markup in the table or in the command line's help.
pub(super) fn inline(cell: &str) -> String {
    let parts = cell.split('`').enumerate().map(|(index, part)| {
        let part = escape(part);
        if index % 2 == 1 {
            format!("<code>{part}</code>")
        } else {
            part
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_model_is_a_table_of_behaviour_evidence_and_difference() {
        let rows = rows();
        assert!(rows.len() > 8, "{rows:?}");
        assert_eq!(rows[0], ["behaviour", "evidence", "how Azure may differ"]);
        assert!(rows.iter().all(|row| row.len() == 3), "{rows:?}");
        let table = table();
        assert!(table.contains("<td>admin state Up or Down decides"), "{table}");
        assert!(table.contains("<code>--propagation-delay</code>"), "{table}");
    }
}
