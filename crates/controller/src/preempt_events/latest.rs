//! The latest message about each Node that still counts. Pure.
//!
//! Events carry no usable UID, so an event that is older than the Node is about an earlier one of the same name.

use std::collections::HashMap;

use headgate_agent::spot::PreemptMessage;
use headgate_core::settings::is_subdomain;
use jiff::{SignedDuration, Timestamp};

use super::metrics::{Metrics, Outcome};

/// The detector repeats an event every 2 s while the notice is there; the API server sees most of the repetitions, and at least one in
/// five minutes. An older event is over.
const MAX_EVENT_AGE: SignedDuration = SignedDuration::from_mins(10);
/// How far the clock of the writer of an event may be ahead. An event of a later time would never end.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(2);
/// More Nodes than a cluster has. Events about others are ignored.
const MAX_NODES: usize = 20_000;

/// One event, as it was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedEvent {
    /// The Node's name.
    pub node: String,
    /// The message.
    pub message: String,
    /// The time of the latest repetition.
    pub last_seen: Timestamp,
}

/// The latest message about a Node, and the time of its latest repetition.
#[derive(Clone, Debug)]
pub struct LatestMessage {
    message: PreemptMessage,
    last_seen: Timestamp,
    /// How many messages were new before this one, or before its Node was created again.
    number: u64,
    /// The UID of its Node, once the watch has shown it.
    uid: Option<String>,
}

/// The latest genuine notice about each Node.
#[derive(Clone, Debug, Default)]
pub struct LatestMessages {
    by_node: HashMap<String, LatestMessage>,
    /// How many messages were new.
    count: u64,
}

impl LatestMessage {
    /// The time of its latest repetition.
    pub(super) fn last_seen(&self) -> Timestamp {
        self.last_seen
    }

    /// The message, if it is about the Node that was created at `created`, and is still repeated.
    pub fn about(&self, created: Option<Timestamp>, now: Timestamp) -> Option<&PreemptMessage> {
        let is_about_it = created.is_none_or(|created| self.last_seen >= created);
        (is_about_it && !is_stale(self.last_seen, now)).then_some(&self.message)
    }
}

impl LatestMessages {
    /// Adds an event; returns the name of its Node if that has to be looked at, which a message that still counts and is repeated does
    /// not require.
    pub fn apply(&mut self, event: ObservedEvent, now: Timestamp, metrics: &Metrics) -> Option<String> {
        let message = PreemptMessage::parse(&event.message);
        let ignored = match message {
            _ if is_stale(event.last_seen, now) => Some(Outcome::Stale),
            _ if !is_subdomain(&event.node) => Some(Outcome::Unknown),
            PreemptMessage::QueryFailed => Some(Outcome::QueryFailed),
            PreemptMessage::Advisory => Some(Outcome::Advisory),
            PreemptMessage::Unknown => Some(Outcome::Unknown),
            PreemptMessage::Notice(_) | PreemptMessage::Started { .. } => None,
        };
        if let Some(outcome) = ignored {
            metrics.count(outcome);
            return None;
        }
        let (known, uid) = match self.by_node.get(&event.node) {
            Some(known) if known.last_seen > event.last_seen => return None,
            Some(known) => {
                let is_known = known.message == message && !is_stale(known.last_seen, now);
                (is_known.then_some(known.number), known.uid.clone())
            }
            None => (None, None),
        };
        if self.by_node.len() >= MAX_NODES {
            self.forget_stale(now);
            if self.by_node.len() >= MAX_NODES {
                return None;
            }
        }
        self.count += u64::from(known.is_none());
        let latest = LatestMessage {
            message,
            last_seen: event.last_seen,
            number: known.unwrap_or(self.count),
            uid,
        };
        self.by_node.insert(event.node.clone(), latest);
        known.is_none().then_some(event.node)
    }

    /// Adopts the UIDs of the present Nodes, by name. Returns whether one with a message was created again: its message is a new one.
    pub(super) fn observe_nodes<'a>(&mut self, uid_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        let before = self.count;
        for (name, latest) in &mut self.by_node {
            let Some(uid) = uid_of(name).filter(|uid| latest.uid.as_deref() != Some(*uid)) else {
                continue;
            };
            if latest.uid.replace(uid.to_owned()).is_some() {
                self.count += 1;
                latest.number = self.count;
            }
        }
        self.count != before
    }

    /// The latest message about a Node.
    pub fn get(&self, node: &str) -> Option<&LatestMessage> {
        self.by_node.get(node)
    }

    /// The Nodes with a message that still counts, and the number of each, which no other message has. The others are forgotten.
    pub(super) fn numbers(&mut self, now: Timestamp) -> impl Iterator<Item = (&String, u64)> {
        self.forget_stale(now);
        self.by_node.iter().map(|(node, latest)| (node, latest.number))
    }

    fn forget_stale(&mut self, now: Timestamp) {
        self.by_node.retain(|_, known| !is_stale(known.last_seen, now));
    }

    /// Forgets a Node that does not exist, unless it has a later message than this.
    pub(super) fn forget_missing(&mut self, node: &str, number: u64) {
        if self.by_node.get(node).is_some_and(|latest| latest.number == number) {
            self.forget(node);
        }
    }

    /// Forgets a message about an earlier Node of this name, by when the present one was created.
    pub(super) fn forget_earlier_node(&mut self, node: &str, created: Option<Timestamp>) {
        let is_earlier = |latest: &LatestMessage| created.is_some_and(|created| latest.last_seen < created);
        if self.by_node.get(node).is_some_and(is_earlier) {
            self.forget(node);
        }
    }

    /// Forgets a Node that does not exist.
    pub fn forget(&mut self, node: &str) {
        self.by_node.remove(node);
    }
}

/// Whether an event is over, or claims a time that no honest clock shows.
fn is_stale(last_seen: Timestamp, now: Timestamp) -> bool {
    let age = now.duration_since(last_seen);
    age > MAX_EVENT_AGE || age < -MAX_CLOCK_SKEW
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event(node: &str, message: &str, second: i64) -> ObservedEvent {
        ObservedEvent {
            node: node.to_owned(),
            message: message.to_owned(),
            last_seen: at(second),
        }
    }

    const NOTICE: &str = "Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.";
    const OTHER: &str = "Preempt Scheduled: Wed, 26 Feb 2025 11:13:13 GMT.";

    #[test]
    fn repetitions_and_false_events_need_no_look_at_the_node() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut latest = LatestMessages::default();
        for (message, second, looks) in [
            (
                "IMDS query failed, exit code: 28\nConnection timed out after 24 seconds.",
                1000,
                false,
            ),
            ("SpotRebalanceRecommendation Advisory", 1001, false),
            ("x", 1002, false),
            (NOTICE, 1003, true),
            (NOTICE, 1005, false),
            (NOTICE, 1007, false),
            (OTHER, 1009, true),
            // Another one at the same time.
            (NOTICE, 1009, true),
            // A relist in another order.
            (NOTICE, 1006, false),
            (OTHER, 1006, false),
            // As old as the API server keeps events.
            (NOTICE, 100, false),
        ] {
            let node = latest.apply(event("n", message, second), at(1010), &metrics);
            assert_eq!(node.is_some(), looks, "{message} {second}");
        }
        // Without repetitions for so long, the message was over.
        for (second, looks) in [(1609, false), (2209, false), (2810, true)] {
            let node = latest.apply(event("n", NOTICE, second), at(second), &metrics);
            assert_eq!(node.is_some(), looks, "{second}");
        }
        assert_eq!(
            latest.apply(event("no Node's name", NOTICE, 1010), at(1010), &metrics),
            None
        );
    }

    #[test]
    fn event_from_the_future_counts_for_nothing_and_hides_no_other() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut latest = LatestMessages::default();
        let last = Timestamp::MAX.as_second();
        for second in [1121, 4_000_000_000, last] {
            assert_eq!(
                latest.apply(event("n", NOTICE, second), at(1000), &metrics),
                None,
                "{second}"
            );
        }
        assert!(latest.apply(event("n", NOTICE, 1120), at(1000), &metrics).is_some());
        let known = latest.get("n").unwrap();
        assert!(known.about(None, at(1000)).is_some());
        assert!(known.about(Some(at(last)), at(last)).is_none());
    }

    #[test]
    fn node_that_does_not_exist_is_forgotten_unless_it_has_a_later_message() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut latest = LatestMessages::default();
        let number = |latest: &mut LatestMessages| latest.numbers(at(1001)).next().map(|(_, number)| number);
        latest.apply(event("n", NOTICE, 1000), at(1000), &metrics);
        let first = number(&mut latest).unwrap();
        latest.apply(event("n", OTHER, 1001), at(1001), &metrics);
        latest.forget_missing("n", first);
        let second = number(&mut latest).unwrap();
        assert_ne!(second, first);
        latest.forget_missing("n", second);
        assert_eq!(number(&mut latest), None);
    }

    #[test]
    fn messages_about_more_nodes_than_a_cluster_has_are_ignored() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut latest = LatestMessages::default();
        for number in 0..MAX_NODES {
            latest.apply(event(&format!("n{number}"), NOTICE, 1000), at(1000), &metrics);
        }
        for (second, is_accepted, count) in [(1600, false, MAX_NODES), (1601, true, 1)] {
            let node = latest.apply(event("more", NOTICE, second), at(second), &metrics);
            assert_eq!(node.is_some(), is_accepted, "{second}");
            assert_eq!(latest.by_node.len(), count);
        }
    }

    #[test]
    fn message_counts_for_the_node_that_exists_and_while_it_is_repeated() {
        let metrics = Metrics::register(&mut Registry::default());
        let mut latest = LatestMessages::default();
        latest.apply(event("n", NOTICE, 1000), at(1000), &metrics);
        let message = |latest: &LatestMessages, created, now| {
            let known = latest.get("n");
            known.is_some_and(|known| known.about(created, at(now)).is_some())
        };
        assert!(message(&latest, None, 1001) && message(&latest, Some(at(1000)), 1001));
        assert!(
            !message(&latest, Some(at(1001)), 1002),
            "about an earlier Node of this name"
        );
        assert!(message(&latest, None, 1600) && !message(&latest, None, 1601));
        assert_eq!(latest.numbers(at(1600)).count(), 1);
        assert_eq!(latest.numbers(at(1601)).count(), 0, "about a Node that may be gone");
        latest.apply(event("n", NOTICE, 1000), at(1000), &metrics);
        latest.forget("n");
        assert!(!message(&latest, None, 1001));
    }
}
