//! The ledger: which `Down` is headgate's, from before it is written until no stale write can bring it back. Pure but for
//! `store` (docs/dev/decisions.md 10, 30).
//!
//! It is one `ConfigMap`, so that it outlives a Node: a Node that is created again under the same name and address finds its
//! entry `Down`, and nothing on the Node says who set it. It never contains target states; those are computed from the Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{LoadBalancerId, PoolId};
use headgate_core::clock::whole_seconds;
use headgate_core::lower_case;
use headgate_core::telemetry::words;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::pool::{EntryKey, FingerprintSet};

mod ages;
mod format;
mod store;

pub(super) use ages::LedgerAges;
pub(super) use store::LedgerStore;
pub use store::{LedgerError, read, read_of_verify};

/// How long a stale write of another writer may bring a restored `Down` back: cloud-controller-manager caches load
/// balancers for 2 min, and one of its reconciles may take as long again.
const STALE_WRITE_WINDOW: Duration = Duration::from_mins(5);
/// How long a pool entry with a new ledger entry may be missing from lists: ARM may lag.
const LIST_LAG: Duration = Duration::from_mins(2);

words! {
    /// What has happened to a `Down` of headgate's.
    #[derive(PartialOrd, Ord)]
    pub enum LedgerStage {
        /// It is about to be written, or was; its event is not recorded yet.
        Intended = "intended",
        /// A read showed it, and its event is recorded.
        Down = "down",
        /// A read showed that it is gone; a stale write may bring it back.
        Restored = "restored",
    }
}

/// What the ledger has about one pool entry; as text `STAGE TIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LedgerEntry {
    /// How far the entry has come, from the intent to the restore.
    pub stage: LedgerStage,
    /// When the stage began by the clock of the leader then, to the second.
    pub since: Timestamp,
}

impl LedgerEntry {
    /// An entry whose stage began then.
    #[must_use]
    pub fn new(stage: LedgerStage, since: Timestamp) -> Self {
        Self { stage, since }
    }
}

impl fmt::Display for LedgerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}", self.stage.as_str(), self.since)
    }
}

impl From<LedgerEntry> for String {
    fn from(entry: LedgerEntry) -> Self {
        entry.to_string()
    }
}

impl TryFrom<String> for LedgerEntry {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is not a ledger entry; allowed: intended, down or restored, followed by a space and a time"
            )
        };
        let (stage, since) = text.split_once(' ').ok_or_else(bad)?;
        let stage = LedgerStage::ALL.into_iter().find(|known| known.as_str() == stage);
        let since = since.parse().map_err(|_| bad())?;
        Ok(Self::new(stage.ok_or_else(bad)?, since))
    }
}

/// The ledger's key of a pool: its id in lower case.
fn pool_key(pool: &PoolId) -> String {
    lower_case(&pool.to_string())
}

/// All ledger entries, by pool and pool entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "format::Grouped<String>")]
pub struct Ledger {
    /// Shared with the ledgers before and after: most changes are of one pool.
    pools: BTreeMap<String, Arc<BTreeMap<String, LedgerEntry>>>,
}

/// One ledger entry to write or remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerChange {
    pool: String,
    key: String,
    entry: Option<LedgerEntry>,
}

impl LedgerChange {
    /// Writes the ledger entry of a pool entry; removes it if `entry` is `None`.
    #[must_use]
    pub fn new(pool: &PoolId, key: &EntryKey, entry: Option<LedgerEntry>) -> Self {
        Self {
            pool: pool_key(pool),
            key: key.to_string(),
            entry,
        }
    }
}

impl Ledger {
    /// The ledger entry of a pool entry.
    #[must_use]
    pub fn entry(&self, pool: &PoolId, key: &EntryKey) -> Option<LedgerEntry> {
        self.pools.get(&pool_key(pool))?.get(key.as_str()).copied()
    }

    /// The ledger entries of one pool, for many lookups.
    #[must_use]
    pub fn pool(&self, pool: &PoolId) -> PoolLedger<'_> {
        let entries = self.pools.get(&pool_key(pool)).map(Arc::as_ref);
        let keys = entries.into_iter().flat_map(BTreeMap::keys);
        PoolLedger {
            fingerprints: keys.map(String::as_str).collect(),
            entries,
        }
    }

    /// All entries: the pool's id in lower case, the key of the pool entry, the ledger entry.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str, LedgerEntry)> {
        let pools = self.pools.iter();
        pools.flat_map(|(pool, entries)| entries.iter().map(move |(key, entry)| (&**pool, &**key, *entry)))
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Applies one change: sets the entry, with its time to the second as the text has it, or removes it if the change has none.
    pub fn apply(&mut self, change: LedgerChange) {
        match change.entry {
            Some(entry) => {
                let since = whole_seconds(entry.since);
                let entry = LedgerEntry { since, ..entry };
                Arc::make_mut(self.pools.entry(change.pool).or_default()).insert(change.key, entry);
            }
            None => {
                if let Some(entries) = self.pools.get_mut(&change.pool).map(Arc::make_mut) {
                    entries.remove(&change.key);
                    if entries.is_empty() {
                        self.pools.remove(&change.pool);
                    }
                }
            }
        }
    }

    /// The changes that lead from `earlier` to this.
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Vec<LedgerChange> {
        let flat = |ledger: &'_ Self| -> BTreeMap<(String, String), LedgerEntry> {
            let entries = ledger.entries();
            entries
                .map(|(pool, key, entry)| ((pool.to_owned(), key.to_owned()), entry))
                .collect()
        };
        let (now, before) = (flat(self), flat(earlier));
        let change = |(pool, key): &(String, String), entry| LedgerChange {
            pool: pool.clone(),
            key: key.clone(),
            entry,
        };
        let removed = before.keys().filter(|place| !now.contains_key(*place));
        let written = now.iter().filter(|(place, entry)| before.get(*place) != Some(*entry));
        removed
            .map(|place| change(place, None))
            .chain(written.map(|(place, entry)| change(place, Some(*entry))))
            .collect()
    }

    /// This ledger, as another writer left it, with the changes that lead from `earlier` to `own`.
    #[must_use]
    pub(super) fn with_changes(&self, own: &Self, earlier: &Self) -> Self {
        let mut merged = self.clone();
        for change in own.changes_since(earlier) {
            merged.apply(change);
        }
        merged
    }

    /// The load balancers of its pools. A pool's id that is not one is left out.
    #[must_use]
    pub fn load_balancers(&self) -> BTreeSet<LoadBalancerId> {
        let pools = self.pool_ids().into_iter();
        pools.map(|pool| pool.load_balancer().clone()).collect()
    }

    /// The pools that have ledger entries.
    #[must_use]
    pub fn pool_ids(&self) -> BTreeSet<PoolId> {
        self.pools.keys().filter_map(|pool| PoolId::parse(pool).ok()).collect()
    }

    /// The changes that time brings. `observe` gives what is proved about a pool entry, by pool and key; without proof nothing
    /// changes.
    ///
    /// A ledger entry whose pool entry is absent [`LIST_LAG`] later becomes `restored`, at `now`. A restored one is removed if its pool
    /// entry is not `Down` [`STALE_WRITE_WINDOW`] later; that window begins again where it is `Down` again [`LIST_LAG`] later: what ARM
    /// ignores of the writes that give it back is shown for a moment each time.
    #[must_use]
    pub fn expiry_changes(
        &self,
        observe: impl Fn(&str, &str) -> Option<Observation>,
        now: Timestamp,
    ) -> Vec<LedgerChange> {
        let mut changes = Vec::new();
        for (pool, key, entry) in self.entries() {
            let Some(Observation { state, known_for }) = observe(pool, key) else {
                continue;
            };
            let entry = match (entry.stage, state) {
                (LedgerStage::Restored, ObservedState::NotDown | ObservedState::Absent)
                    if known_for >= STALE_WRITE_WINDOW =>
                {
                    None
                }
                (LedgerStage::Intended | LedgerStage::Down, ObservedState::Absent)
                | (LedgerStage::Restored, ObservedState::Down)
                    if known_for >= LIST_LAG =>
                {
                    Some(LedgerEntry::new(LedgerStage::Restored, now))
                }
                _ => continue,
            };
            changes.push(LedgerChange {
                pool: pool.to_owned(),
                key: key.to_owned(),
                entry,
            });
        }
        changes
    }
}

/// What a list, or a read of the load balancer, proves about a pool entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The state that it showed.
    pub state: ObservedState,
    /// For how long the leader had known the ledger entry, as it is, when its request was sent.
    pub known_for: Duration,
}

/// What was shown of a pool entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedState {
    /// The entry is in its pool, and `Down`.
    Down,
    /// The entry is in its pool, and not `Down`.
    NotDown,
    /// The entry is not in its pool, or the pool or its load balancer does not exist; or it is not `Down` and no Node's, so that no
    /// transition of a Node will say so.
    Absent,
}

/// The ledger entries of one pool.
#[derive(Clone, Debug)]
pub struct PoolLedger<'a> {
    entries: Option<&'a BTreeMap<String, LedgerEntry>>,
    /// Of the keys of `entries`: most of thousands of pool entries are in no ledger, and their keys are not read.
    fingerprints: FingerprintSet,
}

impl PoolLedger<'_> {
    /// The ledger entry of a pool entry.
    #[must_use]
    pub fn entry(&self, key: &EntryKey) -> Option<LedgerEntry> {
        let may_be_known = self.fingerprints.may_contain(key.fingerprint());
        let entries = self.entries.filter(|_| may_be_known)?;
        entries.get(key.as_str()).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn pool(name: &str) -> PoolId {
        let id = format!(
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/l/backendAddressPools/{name}"
        );
        PoolId::parse(&id).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    pub(super) fn entry(stage: LedgerStage, second: i64) -> LedgerEntry {
        LedgerEntry::new(stage, at(second))
    }

    #[test]
    fn entry_is_a_readable_text() {
        let text = "down 2026-11-21T10:00:00Z";
        let entry = LedgerEntry::try_from(text.to_owned()).unwrap();
        assert_eq!((entry.stage, String::from(entry).as_str()), (LedgerStage::Down, text));
        for bad in [
            "",
            "down",
            "down x",
            "up 2026-11-21T10:00:00Z",
            "down  2026-11-21T10:00:00Z",
        ] {
            assert!(LedgerEntry::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn pool_names_are_case_insensitive_as_in_arm() {
        let mut ledger = Ledger::default();
        let key = EntryKey::from_text("10.0.0.1");
        ledger.apply(LedgerChange::new(
            &pool("Kubernetes"),
            &key,
            Some(entry(LedgerStage::Down, 1)),
        ));
        assert_eq!(
            ledger.entry(&pool("kubernetes"), &key),
            Some(entry(LedgerStage::Down, 1))
        );
        assert_eq!(
            ledger.pool(&pool("KUBERNETES")).entry(&key),
            Some(entry(LedgerStage::Down, 1))
        );
        assert_eq!(ledger.entry(&pool("other"), &key), None);
        assert_eq!(
            (
                ledger.pool_ids().len(),
                ledger.load_balancers().len(),
                ledger.is_empty()
            ),
            (1, 1, false)
        );
        ledger.apply(LedgerChange::new(&pool("kubernetes"), &key, None));
        assert!(ledger.is_empty());
    }

    #[test]
    fn absent_entries_become_restored_and_old_restored_entries_are_removed() {
        let mut ledger = Ledger::default();
        for (key, stage) in [
            ("there", LedgerStage::Down),
            ("gone", LedgerStage::Down),
            ("unseen", LedgerStage::Down),
            ("meant", LedgerStage::Intended),
            ("old", LedgerStage::Restored),
            ("back", LedgerStage::Restored),
        ] {
            ledger.apply(LedgerChange::new(
                &pool("p"),
                &EntryKey::from_text(key),
                Some(entry(stage, 0)),
            ));
        }
        // All entries are known since 0, but for those that become `restored` at 299.
        let list = |requested_at: u64| {
            move |_: &str, key: &str| {
                let state = match key {
                    "there" | "back" => ObservedState::Down,
                    "old" => ObservedState::NotDown,
                    "unseen" => return None,
                    _ => ObservedState::Absent,
                };
                let since = if requested_at > 299 && matches!(key, "gone" | "meant") {
                    299
                } else {
                    0
                };
                let known_for = Duration::from_secs(requested_at - since);
                Some(Observation { state, known_for })
            }
        };
        assert!(ledger.expiry_changes(list(119), at(119)).is_empty(), "a list may lag");
        assert!(
            ledger.expiry_changes(list(119), at(9999)).is_empty(),
            "the list is old, or a clock jumped"
        );
        for change in ledger.expiry_changes(list(299), at(299)) {
            ledger.apply(change);
        }
        let of = |ledger: &Ledger, key: &str| ledger.entry(&pool("p"), &EntryKey::from_text(key));
        assert_eq!(of(&ledger, "there"), Some(entry(LedgerStage::Down, 0)));
        assert_eq!(of(&ledger, "gone"), Some(entry(LedgerStage::Restored, 299)));
        assert_eq!(of(&ledger, "unseen"), Some(entry(LedgerStage::Down, 0)));
        assert_eq!(of(&ledger, "meant"), Some(entry(LedgerStage::Restored, 299)));
        assert_eq!(of(&ledger, "old"), Some(entry(LedgerStage::Restored, 0)));
        assert_eq!(
            of(&ledger, "back"),
            Some(entry(LedgerStage::Restored, 299)),
            "Down again: remembered from now on"
        );
        let is_down = |(.., entry): &(&str, &str, LedgerEntry)| entry.stage != LedgerStage::Restored;
        assert_eq!(ledger.entries().filter(is_down).count(), 2);
        for change in ledger.expiry_changes(list(300), at(300)) {
            ledger.apply(change);
        }
        assert_eq!(of(&ledger, "old"), None);
        assert!(of(&ledger, "gone").is_some());
        assert!(of(&ledger, "back").is_some(), "its pool entry is Down again");
    }

    pub(super) fn ledgers() -> impl Strategy<Value = Ledger> {
        let one = (0..3_u8, 0..3_u8, 0..3_usize, 0..3_i64);
        proptest::collection::vec(one, 0..8).prop_map(|entries| {
            let mut ledger = Ledger::default();
            for (pool_number, key, stage, second) in entries {
                let entry = entry(LedgerStage::ALL[stage], second);
                let key = EntryKey::from_text(&key.to_string());
                ledger.apply(LedgerChange::new(&pool(&format!("p{pool_number}")), &key, Some(entry)));
            }
            ledger
        })
    }

    proptest! {
        #[test]
        fn changes_lead_from_one_ledger_to_the_other(from in ledgers(), to in ledgers()) {
            let mut ledger = from.clone();
            for change in to.changes_since(&from) {
                ledger.apply(change);
            }
            prop_assert_eq!(&ledger, &to);
            prop_assert_eq!(from.with_changes(&to, &from), to);
        }
    }
}
