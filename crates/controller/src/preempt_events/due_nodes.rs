//! Which Nodes are looked at next, and which are being looked at. Pure.
//!
//! Invariants: no Node is looked at twice at the same time, and the one that has been due for the longest time is next. So a Node whose
//! requests get no answer takes one place, and no other Node's turn.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

/// Nodes that are looked at together.
const MAX_CONCURRENT_NODES: usize = 16;

/// The Nodes that are due, now or later, and those that are being looked at.
#[derive(Debug, Default)]
pub(super) struct DueNodes {
    due: BTreeMap<String, Instant>,
    running: BTreeSet<String>,
}

impl DueNodes {
    /// Makes a Node due at this time, even if it was due at another one.
    pub(super) fn insert(&mut self, node: String, at: Instant) {
        self.due.insert(node, at);
    }

    /// Makes a Node due at this time unless it is due already.
    pub(super) fn insert_new(&mut self, node: &str, at: Instant) {
        if !self.running.contains(node) && !self.due.contains_key(node) {
            self.due.insert(node.to_owned(), at);
        }
    }

    /// The Nodes to look at from now on, those that have been due for the longest time first.
    pub(super) fn start(&mut self, now: Instant) -> Vec<String> {
        let mut due: Vec<_> = self.waiting().filter(|(at, _)| *at <= now).collect();
        due.sort_unstable();
        due.truncate(MAX_CONCURRENT_NODES.saturating_sub(self.running.len()));
        let started: Vec<_> = due.into_iter().map(|(_, node)| node.to_owned()).collect();
        for node in &started {
            self.due.remove(node);
            self.running.insert(node.clone());
        }
        started
    }

    /// When the next Node is due, or `None` where none is or all places are taken.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let is_full = self.running.len() >= MAX_CONCURRENT_NODES;
        self.waiting().map(|(at, _)| at).min().filter(|_| !is_full)
    }

    /// Ends the look at a Node, which is due again at `again`, or earlier if it has become due since. Returns whether it is due.
    pub(super) fn finish(&mut self, node: String, again: Option<Instant>) -> bool {
        self.running.remove(&node);
        let Some(again) = again else {
            return self.due.contains_key(&node);
        };
        let at = self.due.entry(node).or_insert(again);
        *at = again.min(*at);
        true
    }

    fn waiting(&self) -> impl Iterator<Item = (Instant, &str)> {
        let waiting = self.due.iter().filter(|(node, _)| !self.running.contains(*node));
        waiting.map(|(node, at)| (*at, node.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_node_is_looked_at_twice_at_the_same_time() {
        let begin = Instant::now();
        let mut nodes = DueNodes::default();
        nodes.insert("n".to_owned(), begin);
        assert_eq!(nodes.start(begin), ["n"]);
        nodes.insert("n".to_owned(), begin + SECOND);
        nodes.insert_new("n", begin);
        assert!(nodes.start(begin + SECOND).is_empty());
        assert_eq!(nodes.next_at(), None, "it ends first");
        assert!(nodes.finish("n".to_owned(), None), "an event came since");
        assert_eq!(nodes.start(begin + SECOND), ["n"]);
        nodes.insert("n".to_owned(), begin + SECOND);
        nodes.finish("n".to_owned(), Some(begin + 15 * SECOND));
        assert_eq!(nodes.next_at(), Some(begin + SECOND), "an event came since");
        assert_eq!(nodes.start(begin + SECOND), ["n"]);
        assert!(!nodes.finish("n".to_owned(), None));
        assert_eq!(nodes.next_at(), None);
    }

    #[test]
    fn the_longest_due_come_first_and_places_are_bounded() {
        let begin = Instant::now();
        let mut nodes = DueNodes::default();
        for number in 0..40_u32 {
            nodes.insert(format!("n{number:02}"), begin + (40 - number) * SECOND);
        }
        nodes.insert_new("n39", begin);
        assert_eq!(nodes.next_at(), Some(begin + SECOND));
        let first = nodes.start(begin + 60 * SECOND);
        let expected: Vec<_> = (24..40).rev().map(|number| format!("n{number:02}")).collect();
        assert_eq!(first, expected);
        assert_eq!(nodes.next_at(), None, "all places are taken");
        assert!(nodes.start(begin + 60 * SECOND).is_empty());
        nodes.finish("n39".to_owned(), Some(begin + 62 * SECOND));
        assert_eq!(nodes.start(begin + 61 * SECOND), ["n23"], "not the one that failed");
    }
}
