//! What every node last said, and since when it says so. Pure.

use jiff::Timestamp;
use serde::Serialize;

/// One answer of a node's `/healthz`; the default is no answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Said {
    /// The status, if there was an answer.
    pub(super) healthz: Option<u16>,
    /// Why the node is to go.
    pub(super) signals: Vec<String>,
    /// Where the agent knows that from: `watch`, `remembered` or `none`.
    pub(super) source: Option<String>,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// When it began to say this.
    #[serde(rename = "time")]
    pub(super) since: Timestamp,
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) said: Said,
}

/// All nodes that have been heard of, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Board {
    names: Vec<String>,
    rows: Vec<Option<Row>>,
}

impl Board {
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().collect();
        Self {
            rows: names.iter().map(|_| None).collect(),
            names,
        }
    }

    /// Notes what a node said; gives its row if that is something new.
    pub(super) fn hear(&mut self, number: usize, said: Said, now: Timestamp) -> Option<&Row> {
        let node = self.names.get(number)?.clone();
        let row = self.rows.get_mut(number)?;
        if row.as_ref().is_some_and(|row| row.said == said) {
            return None;
        }
        Some(row.insert(Row { since: now, node, said }))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(healthz: u16, signals: &[&str]) -> Said {
        let signals = signals.iter().map(ToString::to_string).collect();
        Said {
            healthz: Some(healthz),
            signals,
            source: Some("watch".to_owned()),
        }
    }

    #[test]
    fn only_changes_are_news() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut board = Board::new(["node-1".to_owned(), "node-2".to_owned()]);
        assert!(board.hear(1, said(200, &[]), at(1)).is_some());
        assert!(board.hear(1, said(200, &[]), at(2)).is_none());
        let line = serde_json::to_string(board.hear(1, said(503, &["drain"]), at(3)).unwrap()).unwrap();
        assert_eq!(
            line,
            r#"{"time":"1970-01-01T00:00:03Z","node":"node-2","healthz":503,"signals":["drain"],"source":"watch"}"#
        );
        let line = serde_json::to_string(board.hear(0, Said::default(), at(4)).unwrap()).unwrap();
        assert_eq!(
            line,
            r#"{"time":"1970-01-01T00:00:04Z","node":"node-1","healthz":null,"signals":[],"source":null}"#
        );
        let since: Vec<_> = board.rows().map(|row| row.since).collect();
        assert_eq!(since, [at(4), at(3)]);
    }
}
