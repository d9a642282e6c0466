//! What people are told, and what is put on record once they were: one event for each transition of a Node. Pure.
//!
//! That a `Down` is complete, or gone, follows from what every load balancer shows; the ledger says whether it was told.
//! A failure is told when it begins, when it becomes another one, and every 5 min; one that somebody has to mend
//! only once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{AdminState, ErrorClass, PoolId};
use headgate_clock::Moment;
use headgate_node::DRAINING_TAINT;
use tokio::time::Instant;

use super::desired::{Desired, Wish};
use super::editor::Observed;
use super::ledger::{Book, Line, Record, Stage};
use super::plan::{Probed, Standing};
use crate::admin_state::AdminStateMode;
use crate::pool::{ClusterNode, Trouble};

/// Until a failure that goes on is told again.
const AGAIN: Duration = Duration::from_mins(5);
/// Until one that has become another of its class is told: in an outage they take turns.
const ANOTHER: Duration = Duration::from_mins(1);
/// Pools that are named in one event: a note has room for 1,024 bytes.
const NAMED: usize = 8;

/// Kinds of events, by their reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Down,
    None,
    UpdateFailed,
    NoEligibleAddress,
}

impl Kind {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Down => "LoadBalancerAdminStateDown",
            Self::None => "LoadBalancerAdminStateNone",
            Self::UpdateFailed => "LoadBalancerAdminStateUpdateFailed",
            Self::NoEligibleAddress => "LoadBalancerPoolHasNoEligibleAddress",
        }
    }

    pub(super) fn is_warning(self) -> bool {
        matches!(self, Self::UpdateFailed | Self::NoEligibleAddress)
    }
}

/// Something to tell about a Node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Announcement {
    pub(super) node: Arc<ClusterNode>,
    pub(super) kind: Kind,
    pub(super) note: String,
}

impl Announcement {
    /// The work could not even begin.
    pub(super) fn not_begun(node: &Arc<ClusterNode>, why: &str) -> Self {
        Self {
            node: Arc::clone(node),
            kind: Kind::UpdateFailed,
            note: cut(format!(
                "Admin state not updated: {why}; it is tried again now and then."
            )),
        }
    }
}

/// What follows from what is seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) events: Vec<Announcement>,
    pub(super) lines: Vec<Line>,
    /// From a Node's signal being seen to its `Down` being confirmed everywhere.
    pub(super) took: Vec<Duration>,
}

/// What was told of a failure.
#[derive(Clone, Debug)]
struct Failure {
    class: ErrorClass,
    code: String,
    at: Instant,
}

/// What was told in this term, as far as the ledger does not say.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    /// By the Node's UID.
    failures: HashMap<String, Failure>,
    /// Pools without an eligible address.
    exhausted: BTreeSet<PoolId>,
}

/// What is seen.
pub(super) struct Sight<'a> {
    pub(super) desired: &'a Desired,
    pub(super) book: &'a Book,
    /// Of all load balancers.
    pub(super) observed: &'a [Observed],
    /// What keeps load balancers from being seen at all.
    pub(super) blocked: Option<&'a Trouble>,
    pub(super) mode: AdminStateMode,
    pub(super) now: Moment,
}

/// An entry of a Node's.
struct Seen<'a> {
    standing: &'a Standing,
    observed: &'a Observed,
    /// What the ledger says of it now.
    record: Option<Record>,
}

impl Sight<'_> {
    /// The entries that matter, by the Node's UID.
    fn nodes(&self) -> BTreeMap<&str, Vec<Seen<'_>>> {
        let mut nodes: BTreeMap<&str, Vec<Seen<'_>>> = BTreeMap::new();
        for observed in self.observed {
            // Pool after pool, so that each is looked up once.
            for standings in observed.standings.chunk_by(|one, other| one.pool == other.pool) {
                let page = standings.first().map(|first| self.book.page(&first.pool));
                for standing in standings {
                    let record = page.as_ref().and_then(|page| page.record(&standing.key));
                    nodes.entry(&standing.node.uid).or_default().push(Seen {
                        standing,
                        observed,
                        record,
                    });
                }
            }
        }
        nodes
    }

    /// The Nodes that are to be `Down`, and are not found in a pool of which nobody knows whose all entries are.
    fn maybe_unread<'s>(
        &'s self,
        nodes: &'s BTreeMap<&str, Vec<Seen<'_>>>,
    ) -> impl Iterator<Item = (&'s Arc<ClusterNode>, &'s Trouble)> {
        let each = |observed: &'s Observed| observed.unread.iter().map(move |unread| (observed, unread));
        self.observed.iter().flat_map(each).flat_map(move |(observed, unread)| {
            let is_missing = move |node: &&Arc<ClusterNode>| {
                let mut seen = nodes.get(&*node.uid).into_iter().flatten();
                node.excluded.is_none() && !seen.any(|seen| seen.standing.pool == unread.pool)
            };
            let is_known = move |node: &&Arc<ClusterNode>| {
                let began = self.desired.episode(node).map(|episode| episode.generation);
                began.is_some_and(|began| observed.generation.is_some_and(|seen| seen >= began))
            };
            let all = self.desired.cluster.nodes();
            let waiting = all.filter(|node| self.wish(node) == Wish::Down);
            let missing = waiting.filter(is_known).filter(is_missing);
            missing.map(|node| (node, &unread.trouble))
        })
    }

    fn wish(&self, node: &ClusterNode) -> Wish {
        self.desired.wish(node, self.now.mono).in_mode(self.mode)
    }
}

impl Announcer {
    /// What is to be told.
    pub(super) fn look(&mut self, sight: &Sight<'_>) -> Told {
        let mut told = Told::default();
        let nodes = sight.nodes();
        let mut failing = BTreeSet::new();
        for seen in nodes.values() {
            self.node(sight, seen, &mut failing, &mut told);
        }
        if let Some(trouble) = sight.blocked {
            let waiting = sight
                .desired
                .cluster
                .nodes()
                .filter(|node| sight.wish(node) == Wish::Down && !nodes.contains_key(node.uid.as_str()));
            for node in waiting {
                failing.insert(node.uid.clone());
                self.failed(node, trouble, sight.now.mono, &mut told);
            }
        }
        for (node, trouble) in sight.maybe_unread(&nodes) {
            // What is in the way of its other entries comes first.
            if failing.insert(node.uid.clone()) {
                self.failed(node, trouble, sight.now.mono, &mut told);
            }
        }
        self.failures.retain(|uid, _| failing.contains(uid));
        self.pools(sight, &mut told);
        told
    }

    fn node(&mut self, sight: &Sight<'_>, entries: &[Seen<'_>], failing: &mut BTreeSet<String>, told: &mut Told) {
        let Some(first) = entries.first() else { return };
        let node = &first.standing.node;
        let wish = sight.wish(node);
        let episode = sight.desired.episode(node);
        let caught_up = |generation: u64| {
            let mut observed = sight.observed.iter();
            observed.all(|observed| observed.generation.is_some_and(|seen| seen >= generation))
        };
        let pending = entries.iter().filter(|seen| seen.standing.is_pending());
        let in_the_way = pending.clone().find_map(|seen| seen.observed.trouble.as_ref());
        if let Some(trouble) = in_the_way {
            failing.insert(node.uid.clone());
            self.failed(node, trouble, sight.now.mono, told);
        }
        // Some load balancer is looked at with what was known before.
        let outdated = entries.iter().any(|seen| seen.standing.wish != wish)
            || episode.is_some_and(|episode| !caught_up(episode.generation));
        if outdated || pending.count() > 0 {
            return;
        }
        let stage = |seen: &Seen<'_>| seen.record.map(|record| record.stage);
        let is_down = |seen: &Seen<'_>| seen.standing.actual == Some(AdminState::Down);
        let mark = |standing: &Standing, stage| {
            let since = sight.now.wall;
            Line::new(&standing.pool, &standing.key, Some(Record { stage, since }))
        };
        let of = |is: &dyn Fn(&Seen<'_>) -> bool| -> Vec<&Standing> {
            let found = entries.iter().filter(|seen| is(seen));
            found.map(|seen| seen.standing).collect()
        };
        match wish {
            Wish::Down => {
                let new = of(&|seen| is_down(seen) && matches!(stage(seen), Some(Stage::Intended | Stage::Restored)));
                let mut all = entries.iter();
                let known = all.any(|seen| is_down(seen) && stage(seen) == Some(Stage::Down));
                if new.is_empty() {
                    return;
                }
                told.lines
                    .extend(new.iter().map(|standing| mark(standing, Stage::Down)));
                if !known {
                    let signals = episode.map(|episode| episode.signals.iter().cloned().collect::<Vec<_>>());
                    told.took
                        .extend(episode.map(|episode| sight.now.mono.saturating_duration_since(episode.since.mono)));
                    told.events.push(Announcement {
                        node: Arc::clone(node),
                        kind: Kind::Down,
                        note: down_note(&new, &signals.unwrap_or_default()),
                    });
                }
            }
            Wish::Free => {
                let is_gone =
                    |seen: &Seen<'_>| !is_down(seen) && matches!(stage(seen), Some(Stage::Intended | Stage::Down));
                let gone = of(&is_gone);
                told.lines
                    .extend(gone.iter().map(|standing| mark(standing, Stage::Restored)));
                let mut all = entries.iter();
                if all.any(|seen| is_gone(seen) && stage(seen) == Some(Stage::Down)) {
                    let taken_off = episode.is_some_and(|episode| episode.taken_off_ready_node);
                    told.events.push(Announcement {
                        node: Arc::clone(node),
                        kind: Kind::None,
                        note: none_note(&gone, taken_off),
                    });
                }
            }
            Wish::Wait => {}
        }
    }

    fn failed(&mut self, node: &Arc<ClusterNode>, trouble: &Trouble, now: Instant, told: &mut Told) {
        let known = self.failures.get(&node.uid);
        let is_news = known.is_none_or(|known| {
            let again = trouble.class != ErrorClass::Terminal && now >= known.at + AGAIN;
            let another = known.code != trouble.code && now >= known.at + ANOTHER;
            known.class != trouble.class || another || again
        });
        if !is_news {
            return;
        }
        let failure = Failure {
            class: trouble.class,
            code: trouble.code.clone(),
            at: now,
        };
        self.failures.insert(node.uid.clone(), failure);
        let goes_on = match trouble.class {
            ErrorClass::Terminal => "it is tried again now and then, and fails until somebody changes that",
            ErrorClass::Stale | ErrorClass::Retriable => "it is tried again",
        };
        told.events.push(Announcement {
            node: Arc::clone(node),
            kind: Kind::UpdateFailed,
            note: cut(format!("Admin state not updated: {}; {goes_on}.", trouble.text)),
        });
    }

    /// Tells of pools that nobody gets new connections in, once each.
    fn pools(&mut self, sight: &Sight<'_>, told: &mut Told) {
        let pools = || sight.observed.iter().flat_map(|observed| &observed.pools);
        let is_exhausted = |id: &PoolId| {
            let mut found = pools().filter(|counts| counts.pool == *id);
            found.any(|counts| counts.eligible == 0 && counts.desired_down > 0)
        };
        self.exhausted.retain(is_exhausted);
        for counts in pools() {
            if counts.eligible > 0 || counts.desired_down == 0 || !self.exhausted.insert(counts.pool.clone()) {
                continue;
            }
            let standings = sight.observed.iter().flat_map(|observed| &observed.standings);
            let mut here = standings.filter(|standing| standing.pool == counts.pool && standing.wish == Wish::Down);
            let Some(standing) = here.next() else { continue };
            told.events.push(Announcement {
                node: Arc::clone(&standing.node),
                kind: Kind::NoEligibleAddress,
                note: cut(format!(
                    "All {} addresses of pool {} are Down or about to be: nobody gets its new connections.",
                    counts.entries,
                    short(&counts.pool)
                )),
            });
        }
    }
}

fn short(pool: &PoolId) -> String {
    format!("{}/{}", pool.load_balancer().name(), pool.name())
}

/// The pools' names, not more of them than fit.
fn named(standings: &[&Standing]) -> String {
    let pools: BTreeSet<_> = standings.iter().map(|standing| short(&standing.pool)).collect();
    let mut text: Vec<_> = pools.iter().take(NAMED).cloned().collect();
    if pools.len() > NAMED {
        text.push(format!("{} more", pools.len() - NAMED));
    }
    text.join(", ")
}

fn down_note(standings: &[&Standing], signals: &[String]) -> String {
    let of = |probed| -> Vec<&Standing> {
        let found = standings.iter().filter(|standing| standing.probed == probed);
        found.copied().collect()
    };
    let (unprobed, partly) = (of(Probed::None), of(Probed::Some));
    let mut note = format!(
        "Down in {} because of {}: no new connections.",
        named(standings),
        signals.join(", ")
    );
    if !unprobed.is_empty() {
        let _ = write!(
            note,
            " It has no effect in {}: no rule of it has a health probe.",
            named(&unprobed)
        );
    }
    if !partly.is_empty() {
        let _ = write!(
            note,
            " It has no effect on the rules of {} without a health probe.",
            named(&partly)
        );
    }
    cut(note)
}

fn none_note(standings: &[&Standing], taken_off: bool) -> String {
    let mut note = format!("None again in {}: new connections as probes say.", named(standings));
    if taken_off {
        let _ = write!(
            note,
            " The taint node.kubernetes.io/out-of-service went from a Ready node, as cloud-controller-manager takes it off; \
             to keep traffic away from a node that is up, use {DRAINING_TAINT}."
        );
    }
    cut(note)
}

/// To what an event's note has room for.
fn cut(note: String) -> String {
    const MOST: usize = 1000;
    if note.len() <= MOST {
        return note;
    }
    let end = (0..=MOST)
        .rev()
        .find(|end| note.is_char_boundary(*end))
        .unwrap_or_default();
    format!("{}…", &note[..end])
}

#[cfg(test)]
mod tests;
