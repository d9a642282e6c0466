//! What each Node's entries are to be, as far as the Nodes say. Pure.
//!
//! A taint counts by its key. A signal counts at once; its end counts after a moment without one, so that a taint that is
//! put in another's place does not let traffic in between.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headgate_clock::Moment;
use tokio::time::Instant;

use crate::admin_state::AdminStateMode;
use crate::pool::{Claim, Cluster, ClusterNode, Interfaces};

/// How long a Node has to be without a signal.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// What is told about the end of an episode is told by then.
const REMEMBERED: Duration = Duration::from_mins(10);
/// Kubernetes' own taint for a node that is lost: cloud-controller-manager takes it off a Node that is ready.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What is wished for a Node's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No new connections.
    Down,
    /// Its signal ended a moment ago: all stays as it is.
    Wait,
    /// As the probe says.
    Free,
}

impl Wish {
    /// What becomes of it: where nothing is to be `Down`, no wish is one.
    #[must_use]
    pub fn in_mode(self, mode: AdminStateMode) -> Self {
        if mode == AdminStateMode::Off { Self::Free } else { self }
    }
}

/// From a Node's first signal to a while after its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// The Node's.
    pub uid: String,
    /// The taint keys now, or the last ones.
    pub signals: BTreeSet<String>,
    /// When the first was seen.
    pub since: Moment,
    /// The version of what is desired that its last beginning or end came with.
    pub generation: u64,
    /// When the last was gone.
    pub ended: Option<Instant>,
    /// A ready Node lost its out-of-service taint with effect `NoExecute`.
    pub taken_off_ready_node: bool,
}

/// What all Nodes wish.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// Counted up with each change.
    pub generation: u64,
    /// The Nodes.
    pub cluster: Cluster,
    /// The episodes by the Node's name.
    episodes: HashMap<String, Episode>,
}

impl Desired {
    /// A Node is now like this; whether that is news.
    pub fn apply(&mut self, node: ClusterNode, taint_keys: &[String], now: Moment) -> bool {
        let name = node.name.clone();
        let before = self.cluster.by_name(&name).cloned();
        if !self.cluster.apply(node) {
            return false;
        }
        self.generation += 1;
        if let Some(node) = self.cluster.by_name(&name).cloned() {
            self.follow(&node, before.as_ref(), taint_keys, now);
        }
        true
    }

    /// A Node is gone; whether it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        self.episodes.remove(name);
        let known = self.cluster.remove(name);
        self.generation += u64::from(known);
        known
    }

    fn follow(
        &mut self,
        node: &Arc<ClusterNode>,
        before: Option<&Arc<ClusterNode>>,
        taint_keys: &[String],
        now: Moment,
    ) {
        let signals = signals(node, taint_keys);
        let known = self
            .episodes
            .remove(&node.name)
            .filter(|episode| episode.uid == node.uid);
        let episode = match known {
            None if signals.is_empty() => return,
            Some(mut episode) if signals.is_empty() => {
                if episode.ended.is_none() {
                    episode.ended = Some(now.mono);
                    episode.generation = self.generation;
                    let had = |before: &Arc<ClusterNode>| {
                        let mut taints = before.taints.iter();
                        taints.any(|taint| taint.key == OUT_OF_SERVICE && taint.effect == "NoExecute")
                    };
                    episode.taken_off_ready_node = node.ready && before.is_some_and(had);
                }
                episode
            }
            Some(episode) => Episode {
                signals,
                generation: if episode.ended.is_some() {
                    self.generation
                } else {
                    episode.generation
                },
                ended: None,
                taken_off_ready_node: false,
                ..episode
            },
            None => Episode {
                uid: node.uid.clone(),
                signals,
                since: now,
                generation: self.generation,
                ended: None,
                taken_off_ready_node: false,
            },
        };
        self.episodes.insert(node.name.clone(), episode);
    }

    /// When, after this time, something comes about by time alone. An episode that is over is kept a while longer, for
    /// what is told about its end; that changes nothing of what is wished.
    #[must_use]
    pub fn next_change(&self, after: Instant) -> Option<Instant> {
        let ended = self.episodes.values().filter_map(|episode| episode.ended);
        let changes = ended.flat_map(|ended| [ended + DEBOUNCE, ended + REMEMBERED]);
        changes.filter(|change| *change > after).min()
    }

    /// The time for something has come: those who look look again.
    pub fn touch(&mut self) {
        self.generation += 1;
    }

    /// Forgets what ended long ago.
    pub fn forget(&mut self, now: Instant) {
        self.episodes
            .retain(|_, episode| episode.ended.is_none_or(|ended| ended + REMEMBERED > now));
    }

    /// What is wished for this Node.
    #[must_use]
    pub fn wish(&self, node: &ClusterNode, now: Instant) -> Wish {
        match self.episode(node).map(|episode| episode.ended) {
            Some(None) => Wish::Down,
            Some(Some(ended)) if now < ended + DEBOUNCE => Wish::Wait,
            Some(Some(_)) | None => Wish::Free,
        }
    }

    /// This very Node's episode.
    #[must_use]
    pub fn episode(&self, node: &ClusterNode) -> Option<&Episode> {
        self.episodes.get(&node.name).filter(|episode| episode.uid == node.uid)
    }

    /// By what entries may be recognised whose Nodes have a signal, or had one a moment ago.
    #[must_use]
    pub fn concerned(&self, now: Instant) -> Concerned<'_> {
        let mut concerned = Concerned::default();
        let nodes = self.episodes.keys().filter_map(|name| self.cluster.by_name(name));
        for node in nodes.filter(|node| self.wish(node, now) != Wish::Free) {
            concerned.names.insert(&node.name);
            concerned.addresses.extend(&node.addresses);
            concerned.machines.insert(&node.machine);
        }
        concerned.addresses.sort_unstable();
        concerned
    }

    /// Whether any Node has a signal, or had one a moment ago.
    #[must_use]
    pub fn is_eventful(&self) -> bool {
        !self.episodes.is_empty()
    }

    /// The version that the newest signal, or the newest end of one, came with.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.episodes
            .values()
            .map(|episode| episode.generation)
            .max()
            .unwrap_or_default()
    }

    /// How many Nodes have a signal.
    #[must_use]
    pub fn signalled(&self) -> usize {
        self.episodes.values().filter(|episode| episode.ended.is_none()).count()
    }
}

/// By what entries may be recognised whose Nodes have a signal, or had one a moment ago: of thousands of entries the others need no closer look.
#[derive(Clone, Debug, Default)]
pub struct Concerned<'a> {
    names: HashSet<&'a str>,
    /// In their order: there are few of them mostly, and they are looked for thousands of times.
    addresses: Vec<IpAddr>,
    machines: HashSet<&'a str>,
}

impl Concerned<'_> {
    /// Whether an entry may be such a Node's.
    #[must_use]
    pub fn may_have(&self, claim: &Claim, interfaces: &Interfaces) -> bool {
        if self.names.is_empty() {
            return false;
        }
        match claim {
            Claim::Address(ip) => self.addresses.binary_search(ip).is_ok(),
            Claim::Machine(machine) => self.machines.contains(machine.as_str()),
            Claim::Interface(id) => interfaces
                .machine_of(id)
                .is_some_and(|machine| self.machines.contains(machine)),
            Claim::Name(name) => self.names.contains(name.as_str()),
            Claim::Nobody => false,
        }
    }
}

/// The taint keys of a Node that count.
#[must_use]
pub fn signals(node: &ClusterNode, taint_keys: &[String]) -> BTreeSet<String> {
    let keys = node.taints.iter().map(|taint| &taint.key);
    keys.filter(|key| taint_keys.contains(key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use headgate_clock::Clock;
    use jiff::Timestamp;

    use super::*;
    use crate::pool::Taint;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(uid: &str, taints: &[&str]) -> ClusterNode {
        let taint = |key: &&str| Taint {
            key: (*key).to_owned(),
            effect: "NoExecute".to_owned(),
        };
        ClusterNode {
            name: "n".into(),
            uid: uid.into(),
            created: Timestamp::UNIX_EPOCH,
            addresses: Vec::new(),
            machine: String::new(),
            excluded: None,
            taints: taints.iter().map(taint).collect(),
            ready: true,
        }
    }

    fn keys() -> Vec<String> {
        vec!["drain".to_owned(), OUT_OF_SERVICE.to_owned()]
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_counts_at_once_and_its_end_a_moment_later() {
        let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
        let mut desired = Desired::default();
        let start = clock.now();
        assert!(desired.apply(node("u", &["other"]), &keys(), start));
        assert_eq!(desired.wish(&node("u", &[]), start.mono), Wish::Free);
        assert!(desired.apply(node("u", &["drain"]), &keys(), start));
        assert!(!desired.apply(node("u", &["drain"]), &keys(), start), "no news");
        assert_eq!(desired.wish(&node("u", &[]), start.mono), Wish::Down);

        tokio::time::advance(SECOND).await;
        desired.apply(node("u", &[]), &keys(), clock.now());
        let cleared = clock.now().mono;
        assert_eq!(desired.wish(&node("u", &[]), cleared), Wish::Wait);
        assert_eq!(desired.next_change(cleared), Some(cleared + DEBOUNCE));
        // Another taint in its place: the same episode goes on.
        desired.apply(node("u", &[OUT_OF_SERVICE]), &keys(), clock.now());
        assert_eq!(desired.wish(&node("u", &[]), cleared), Wish::Down);
        assert_eq!(desired.episode(&node("u", &[])).unwrap().since, start);
        desired.apply(node("u", &[]), &keys(), clock.now());
        assert_eq!(desired.wish(&node("u", &[]), cleared + DEBOUNCE), Wish::Free);
        assert!(desired.episode(&node("u", &[])).unwrap().taken_off_ready_node);
        assert!(desired.is_eventful());
        assert_eq!(desired.next_change(cleared + DEBOUNCE), Some(cleared + REMEMBERED));
        desired.forget(cleared + REMEMBERED - SECOND);
        assert!(desired.is_eventful());
        desired.forget(cleared + REMEMBERED);
        assert!(!desired.is_eventful());
    }

    #[test]
    fn a_node_made_anew_inherits_nothing() {
        let mut desired = Desired::default();
        let now = Clock::System.now();
        desired.apply(node("u1", &["drain"]), &keys(), now);
        assert_eq!(desired.signalled(), 1);
        // The watch may show one object after the other without a deletion between.
        desired.apply(node("u2", &[]), &keys(), now);
        assert_eq!(desired.wish(&node("u2", &[]), now.mono), Wish::Free);
        desired.apply(node("u1", &["drain"]), &keys(), now);
        desired.remove("n");
        assert_eq!(desired.signalled(), 0);
        desired.apply(node("u2", &[]), &keys(), now);
        assert_eq!(desired.wish(&node("u2", &[]), now.mono), Wish::Free);
    }
}
