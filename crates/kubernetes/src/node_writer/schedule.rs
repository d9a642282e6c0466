//! When each field of a Node is written. Pure.
//!
//! Invariants: one attempt of a Node at a time. A value is written when it is new, when its time to be renewed has come, and when the watch
//! shows another one: at once where the watch has shown it before, else once the watch had time to show it. Two writers that disagree cost
//! two writes in that time. Markers are confirmed at a bounded rate, the oldest first: each is a write of a whole Node, which all
//! watches get, and thousands of Nodes may have one. Each field of each Node has a backoff of its own, and a Node whose attempt lasts long
//! takes no place from another.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::intent::{Intents, NodeField, NodeIntent, Shown};

/// How long the watch may take to show a write, and the shortest time between two writes of the same value that it does not show.
pub(super) const ECHO_TIMEOUT: Duration = Duration::from_secs(5);
/// From a failed attempt to the next one; doubles each time.
pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(200);
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(20);
/// Attempts that began in the last [`SLOW_AFTER`]. Older ones wait for an answer that may never come, and do not count.
pub(super) const MAX_NEW_ATTEMPTS: usize = 16;
pub(super) const SLOW_AFTER: Duration = Duration::from_millis(500);
/// For markers that the watch shows. With 5,000 Nodes that have a signal, each is confirmed every 500 s.
pub(super) const MAX_CONFIRMATIONS_PER_SECOND: usize = 10;
/// How long the renewal of a hold may wait for changes: an agent lets a hold end that is not renewed for minutes.
const RENEWAL_SLACK: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// The fields of a Node that are written together.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) node: String,
    pub(super) intents: FieldWrites,
}

type FieldWrites = Vec<(NodeField, NodeIntent)>;

/// The first rank of a Node's due writes and since when it is due, and all of them.
type DueWrites<'a> = ((Rank, Instant), Vec<(NodeField, &'a NodeIntent)>);

/// The order in which due writes start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A hold, a draining taint or a delay of a deletion, also after a failed attempt: there are few, and seconds count.
    Hold,
    /// Any other change, unless its last attempt failed, and a renewal of a hold that waits for [`RENEWAL_SLACK`] or is a leader's first one.
    Change,
    /// Other renewals, and repetitions.
    Other,
}

/// How an attempt to write one field ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The Node has the value, or does not exist.
    Done,
    /// Nothing is to be written before this time.
    NotBefore(Instant),
    /// The attempt is repeated.
    Failed,
}

/// The last attempt that succeeded.
#[derive(Clone, Debug)]
struct Done {
    intent: NodeIntent,
    at: Instant,
    /// Whether the watch has shown the value since.
    is_shown: bool,
    /// Whether the same value was written shortly before: another writer wants another one.
    is_repeated: bool,
}

/// Attempts in a row that failed.
#[derive(Debug)]
struct Failures {
    intent: NodeIntent,
    at: Instant,
    retry_at: Instant,
    delays: ExponentialBackoff,
}

#[derive(Debug, Default)]
struct FieldState {
    done: Option<Done>,
    failures: Option<Failures>,
    not_before: Option<Instant>,
}

/// A field that nothing is known about.
const NEW: FieldState = FieldState {
    done: None,
    failures: None,
    not_before: None,
};

#[derive(Debug, Default)]
struct NodeState {
    /// When the attempt that is under way began.
    started_at: Option<Instant>,
    fields: BTreeMap<NodeField, FieldState>,
}

/// What is known about the writes of all Nodes.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    nodes: BTreeMap<String, NodeState>,
    /// Since when markers are counted that are confirmed, and how many were.
    confirmations: Option<(Instant, usize)>,
}

impl FieldState {
    /// When the value is to be written; `None` while the Node shows it and it needs no renewal.
    fn due_at(&self, intent: &NodeIntent, now: Instant) -> Option<Instant> {
        let done = self.done.as_ref().filter(|done| done.intent.is_same(intent));
        let renewed_at = |done: &Done| intent.renew_interval.map(|interval| done.at + interval);
        let due_at = match (done, intent.shown) {
            (None, Shown::Yes) if intent.renew_interval.is_none() => None,
            (None, _) => Some(now),
            // Another writer has changed it since.
            (Some(done), Shown::No) if done.is_shown && !done.is_repeated => Some(now),
            (Some(done), Shown::No) => Some(done.at + ECHO_TIMEOUT),
            (Some(done), Shown::Yes | Shown::Unknown) => renewed_at(done),
        }?;
        // Another value does not wait for the backoff.
        let retry_at = self.failures.as_ref().map(|failures| {
            let is_same = failures.intent.is_same(intent);
            if is_same {
                failures.retry_at
            } else {
                failures.at + MIN_BACKOFF
            }
        });
        Some(
            [retry_at, self.not_before]
                .into_iter()
                .flatten()
                .fold(due_at, Instant::max),
        )
    }
}

impl Schedule {
    /// The attempts to start now, and when to ask again if nothing changes until then.
    pub(super) fn start_due(&mut self, intents: &Intents, now: Instant) -> (Vec<Attempt>, Option<Instant>) {
        self.observe(intents);
        let mut next_at: Option<Instant> = None;
        let mut wake_at = |at: Instant| next_at = Some(next_at.map_or(at, |next_at| next_at.min(at)));
        let mut due: BTreeMap<&String, DueWrites<'_>> = BTreeMap::new();
        let mut add = |name, first: (Rank, Instant), field, intent| {
            let (before, intents) = due.entry(name).or_insert_with(|| (first, Vec::new()));
            *before = first.min(*before);
            intents.push((field, intent));
        };
        let mut confirmations = Vec::new();
        for (field, nodes) in intents {
            for (name, intent) in nodes.iter() {
                let node = self.nodes.get(name);
                if node.is_some_and(|node| node.started_at.is_some()) {
                    continue;
                }
                let known = node.and_then(|node| node.fields.get(field)).unwrap_or(&NEW);
                match known.due_at(intent, now) {
                    Some(at) if at <= now && is_confirmation(*field, intent) => {
                        // One that this process has not confirmed yet comes first.
                        let confirmed_at = known.done.as_ref().map(|done| done.at);
                        confirmations.push((confirmed_at, at, name, intent));
                    }
                    Some(at) if at <= now => add(name, (rank(*field, intent, known, now), at), *field, intent),
                    Some(at) => wake_at(at),
                    None => {}
                }
            }
        }
        let (counted_since, confirmed) = self
            .confirmations
            .filter(|(since, _)| now < *since + SECOND)
            .unwrap_or((now, 0));
        confirmations.sort_by_key(|(confirmed_at, ..)| *confirmed_at);
        let left = MAX_CONFIRMATIONS_PER_SECOND.saturating_sub(confirmed);
        if confirmations.len() > left {
            wake_at(counted_since + SECOND);
        }
        for (_, at, name, intent) in confirmations.into_iter().take(left) {
            add(name, (Rank::Other, at), NodeField::Marker, intent);
        }
        // Changes first: a tool may wait for them. Of equal rank what is due longest, so that none waits for ever.
        let mut due: Vec<_> = due.into_iter().collect();
        due.sort_by_key(|(_, (first, _))| *first);
        let slow_at = |node: &NodeState| node.started_at.map(|at| at + SLOW_AFTER).filter(|at| *at > now);
        let new: Vec<_> = self.nodes.values().filter_map(slow_at).collect();
        let left_out = due.split_off(due.len().min(MAX_NEW_ATTEMPTS.saturating_sub(new.len())));
        if !left_out.is_empty() {
            wake_at(new.into_iter().fold(now + SLOW_AFTER, Instant::min));
        }
        let started = due.iter().flat_map(|(_, (_, intents))| intents);
        let started = started.filter(|(field, intent)| is_confirmation(*field, intent));
        self.confirmations = Some((counted_since, confirmed + started.count()));
        let start = |(name, (_, intents)): (&String, DueWrites<'_>)| {
            self.nodes.entry(name.clone()).or_default().started_at = Some(now);
            let intents = intents.into_iter();
            Attempt {
                node: name.clone(),
                intents: intents.map(|(field, intent)| (field, intent.clone())).collect(),
            }
        };
        (due.into_iter().map(start).collect(), next_at)
    }

    /// Records how an attempt ended for each of its fields.
    pub(super) fn finish(&mut self, attempt: Attempt, ended: &[Ended], now: Instant) {
        let node = self.nodes.entry(attempt.node).or_default();
        node.started_at = None;
        for ((field, intent), ended) in attempt.intents.into_iter().zip(ended) {
            let known = node.fields.entry(field).or_default();
            match *ended {
                Ended::Done => {
                    let last = known.done.take().filter(|done| done.intent.is_same(&intent));
                    let is_repeated = last.is_some_and(|done| now < done.at + ECHO_TIMEOUT);
                    *known = FieldState::default();
                    let is_shown = false;
                    known.done = Some(Done {
                        intent,
                        at: now,
                        is_shown,
                        is_repeated,
                    });
                }
                Ended::NotBefore(at) => (known.failures, known.not_before) = (None, Some(at)),
                Ended::Failed => known.fail(intent, now),
            }
        }
    }

    /// Whether the last attempt to write this field failed for any Node.
    pub(super) fn is_failing(&self, field: NodeField) -> bool {
        let mut states = self.nodes.values().filter_map(|node| node.fields.get(&field));
        states.any(|known| known.failures.is_some())
    }

    /// Notes which values the watch shows, and forgets the fields that nothing wants.
    fn observe(&mut self, intents: &Intents) {
        self.nodes.retain(|name, node| {
            node.fields.retain(|field, known| {
                let intent = intents.get(field).and_then(|nodes| nodes.get(name));
                if let (Some(done), Some(intent)) = (&mut known.done, intent) {
                    done.is_shown |= intent.shown == Shown::Yes && done.intent.is_same(intent);
                }
                intent.is_some()
            });
            node.started_at.is_some() || !node.fields.is_empty()
        });
    }
}

fn rank(field: NodeField, intent: &NodeIntent, known: &FieldState, now: Instant) -> Rank {
    let is_hold = matches!(
        field,
        NodeField::Hold | NodeField::DrainingTaint | NodeField::DeletionDelay
    );
    let waits = || {
        let done = known.done.as_ref().zip(intent.renew_interval);
        done.is_none_or(|(done, interval)| now >= done.at + interval + RENEWAL_SLACK)
    };
    match intent.shown {
        Shown::No | Shown::Unknown if is_hold => Rank::Hold,
        Shown::Yes if is_hold && waits() => Rank::Change,
        Shown::No | Shown::Unknown if known.failures.is_none() => Rank::Change,
        Shown::Yes | Shown::No | Shown::Unknown => Rank::Other,
    }
}

/// Whether a write changes nothing but the time of a marker.
fn is_confirmation(field: NodeField, intent: &NodeIntent) -> bool {
    field == NodeField::Marker && intent.shown == Shown::Yes
}

impl FieldState {
    fn fail(&mut self, intent: NodeIntent, now: Instant) {
        let begin = || {
            let builder = ExponentialBuilder::default().with_min_delay(MIN_BACKOFF);
            builder.with_max_delay(MAX_BACKOFF).without_max_times().build()
        };
        let mut delays = self.failures.take().map_or_else(begin, |failures| failures.delays);
        // The backoff has no last element.
        let retry_at = now + delays.next().unwrap_or(MAX_BACKOFF);
        self.failures = Some(Failures {
            intent,
            at: now,
            retry_at,
            delays,
        });
    }
}

#[cfg(test)]
mod tests;
