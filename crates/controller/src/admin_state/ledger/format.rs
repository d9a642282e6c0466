//! The ledger as text. A node in ten pools has ten entries, and they change together: so the text has each pool, each key and each
//! combination of stages and times once.
//!
//! Invariants: equal ledgers have the same text, and the text of a ledger reads as that ledger with its times to the second. What says
//! two things about one pool entry, or names a pool that is not there, is no ledger.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use headgate_core::clock::whole_seconds;
use headgate_core::lower_case;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Ledger, LedgerEntry, LedgerError};

/// The version of the format.
pub(super) const VERSION: u64 = 1;
/// The API server's limit is 1 MiB for all data of a `ConfigMap`.
pub(super) const MAX_LEDGER_BYTES: usize = 1_000_000;
/// Without this limit a text of that size could stand for a billion entries. 50,000 nodes in ten pools have as many as it.
pub(super) const MAX_ENTRIES: usize = 500_000;

/// The ledger as it is written.
#[derive(Serialize)]
struct Document<'a> {
    version: u64,
    generation: u64,
    #[serde(flatten)]
    ledger: &'a Ledger,
}

/// The ledger as text.
///
/// # Errors
/// If it has more than [`MAX_LEDGER_BYTES`] or [`MAX_ENTRIES`].
pub(super) fn encode(generation: u64, ledger: &Ledger) -> Result<String, LedgerError> {
    let document = Document {
        version: VERSION,
        generation,
        ledger,
    };
    let text = serde_json::to_string(&document).map_err(|error| LedgerError::Malformed(error.to_string()))?;
    let (bytes, entries) = (text.len(), ledger.entries().count());
    if bytes > MAX_LEDGER_BYTES || entries > MAX_ENTRIES {
        return Err(LedgerError::TooLarge { bytes, entries });
    }
    Ok(text)
}

/// What a text contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// 0 if there is no ledger.
    pub(super) generation: u64,
    pub(super) ledger: Ledger,
}

impl Contents {
    /// Reads a text.
    ///
    /// # Errors
    /// If it is not a ledger of this version.
    pub(super) fn parse(text: &str) -> Result<Self, LedgerError> {
        let malformed = |error: serde_json::Error| LedgerError::Malformed(error.to_string());
        // Derived code alone would accept an array for an object.
        let document: Map<String, Value> = serde_json::from_str(text).map_err(malformed)?;
        match document.get("version") {
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(other) => return Err(LedgerError::UnknownVersion(other.to_string())),
            None => return Err(LedgerError::Malformed("version is missing".to_owned())),
        }
        let generation = document.get("generation").and_then(Value::as_u64);
        Ok(Self {
            generation: generation.ok_or_else(|| LedgerError::Malformed("generation is not a number".to_owned()))?,
            ledger: Ledger::deserialize(document).map_err(malformed)?,
        })
    }
}

/// Keys that have the same ledger entries: each ledger entry with the pools it is for, by their places in the list of pools, and then
/// the keys.
type Group<T> = (BTreeMap<LedgerEntry, Vec<usize>>, Vec<T>);

/// The parts of the text that depend on the entries.
#[derive(Serialize, Deserialize)]
pub(super) struct Grouped<T> {
    /// The ids in lower case.
    pools: Vec<T>,
    entries: Vec<Group<T>>,
}

impl<'a> From<&'a Ledger> for Grouped<&'a str> {
    fn from(ledger: &'a Ledger) -> Self {
        let mut by_key: BTreeMap<&str, Vec<(LedgerEntry, usize)>> = BTreeMap::new();
        for (place, entries) in ledger.pools.values().enumerate() {
            for (key, entry) in &**entries {
                by_key.entry(key).or_default().push((*entry, place));
            }
        }
        let mut groups: BTreeMap<Vec<(LedgerEntry, usize)>, Vec<&str>> = BTreeMap::new();
        for (key, mut entries) in by_key {
            entries.sort_unstable();
            groups.entry(entries).or_default().push(key);
        }
        let by_entry = |entries: Vec<(LedgerEntry, usize)>| {
            let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (entry, place) in entries {
                places.entry(entry).or_default().push(place);
            }
            places
        };
        let groups = groups.into_iter();
        Self {
            pools: ledger.pools.keys().map(String::as_str).collect(),
            entries: groups.map(|(entries, keys)| (by_entry(entries), keys)).collect(),
        }
    }
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Grouped::from(self).serialize(serializer)
    }
}

impl TryFrom<Grouped<String>> for Ledger {
    type Error = String;

    fn try_from(text: Grouped<String>) -> Result<Self, String> {
        let count = |(places, keys): &Group<String>| {
            let places: usize = places.values().map(Vec::len).sum();
            places.saturating_mul(keys.len())
        };
        let entries = text.entries.iter().map(count).fold(0, usize::saturating_add);
        if entries > MAX_ENTRIES {
            return Err(format!(
                "it has {entries} entries, and at most {MAX_ENTRIES} are allowed"
            ));
        }
        let mut ledger = Self::default();
        for (places, keys) in &text.entries {
            let places = places
                .iter()
                .flat_map(|(entry, places)| places.iter().map(move |place| (*entry, *place)));
            for (entry, place) in places {
                let since = whole_seconds(entry.since);
                let entry = LedgerEntry { since, ..entry };
                let pool = text.pools.get(place);
                let pool = pool.ok_or_else(|| format!("there is no pool {place} in the list of pools"))?;
                // A person may have written it, in the spelling of ARM.
                let entries = Arc::make_mut(ledger.pools.entry(lower_case(pool)).or_default());
                for key in keys {
                    let address = key.parse::<IpAddr>().map(|address| address.to_string());
                    let known = address.unwrap_or_else(|_| key.to_ascii_lowercase());
                    if entries.insert(known, entry).is_some() {
                        return Err(format!("{key} of {pool} is there twice"));
                    }
                }
            }
        }
        ledger.pools.retain(|_, entries| !entries.is_empty());
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_azure::ResourceGroupId;
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::tests::{entry, ledgers, pool};
    use super::super::{EntryKey, LedgerChange, LedgerStage, PoolId, pool_key};
    use super::*;

    fn set(ledger: &mut Ledger, pool: &PoolId, key: &str, entry: LedgerEntry) {
        ledger.apply(LedgerChange::new(pool, &EntryKey::from_text(key), Some(entry)));
    }

    #[test]
    fn text_has_each_pool_and_key_once() {
        let mut ledger = Ledger::default();
        let [one, two] = ["One", "two"].map(pool);
        for key in ["10.0.0.4", "10.0.0.5"] {
            set(&mut ledger, &one, key, entry(LedgerStage::Down, 1));
            set(&mut ledger, &two, key, entry(LedgerStage::Down, 1));
        }
        set(&mut ledger, &one, "name:n6", entry(LedgerStage::Down, 1));
        set(&mut ledger, &two, "name:n6", entry(LedgerStage::Intended, 2));
        let expected = json!({"version": 1, "generation": 7, "pools": [pool_key(&one), pool_key(&two)], "entries": [
            [{"intended 1970-01-01T00:00:02Z": [1], "down 1970-01-01T00:00:01Z": [0]}, ["name:n6"]],
            [{"down 1970-01-01T00:00:01Z": [0, 1]}, ["10.0.0.4", "10.0.0.5"]],
        ]});
        let text = encode(7, &ledger).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        let generation = 7;
        assert_eq!(Contents::parse(&text).unwrap(), Contents { generation, ledger });
    }

    #[test]
    fn times_are_written_to_the_second() {
        let (mut ledger, mut read) = (Ledger::default(), Ledger::default());
        let down = entry(LedgerStage::Down, 5);
        let since = down.since + Duration::from_millis(900);
        set(&mut ledger, &pool("a"), "1", LedgerEntry { since, ..down });
        set(&mut ledger, &pool("b"), "1", down);
        for pool in ["a", "b"].map(pool) {
            set(&mut read, &pool, "1", down);
        }
        let text = encode(1, &ledger).unwrap();
        headgate_test_kubernetes::assert_contains!(text, r#"[[{"down 1970-01-01T00:00:05Z":[0,1]},["1"]]]"#);
        assert_eq!(Contents::parse(&text).unwrap().ledger, read);
    }

    #[test]
    fn what_is_contradictory_or_incomplete_is_no_ledger() {
        let down = "down 2026-11-21T10:00:00Z";
        for (pools, entries) in [
            (json!(["p"]), json!([[{down: [1]}, ["k"]]])),
            (json!(["p"]), json!([[{down: [-1]}, ["k"]]])),
            (json!(["p"]), json!([[{down: [0, 0]}, ["k"]]])),
            (json!(["p"]), json!([[{down: [0]}, ["k", "k"]]])),
            (json!(["p", "p"]), json!([[{down: [0, 1]}, ["k"]]])),
            (
                json!(["p"]),
                json!([[{down: [0]}, ["k"]], [{"restored 2026-11-21T10:00:00Z": [0]}, ["k"]]]),
            ),
            (json!(["p"]), json!([[{"dwon 2026-11-21T10:00:00Z": [0]}, ["k"]]])),
            (json!(["p"]), json!([[{down: [0]}, "k"]])),
            (json!(["p"]), json!(null)),
            (json!({"p": {"k": down}}), json!([])),
        ] {
            let text = json!({"version": 1, "generation": 1, "pools": pools, "entries": entries}).to_string();
            assert!(
                matches!(Contents::parse(&text), Err(LedgerError::Malformed(_))),
                "{text}"
            );
        }
        for part in ["version", "generation", "pools", "entries"] {
            let mut document = json!({"version": 1, "generation": 1, "pools": [], "entries": []});
            assert_eq!(Contents::parse(&document.to_string()).unwrap().generation, 1);
            document.as_object_mut().unwrap().remove(part);
            assert!(Contents::parse(&document.to_string()).is_err(), "{part}");
        }
        // Pools and groups without entries say nothing.
        let text = json!({"version": 1, "generation": 1, "pools": ["p"], "entries": [[{down: [0]}, []]]});
        assert!(Contents::parse(&text.to_string()).unwrap().ledger.is_empty());
    }

    #[test]
    fn ids_and_addresses_in_another_spelling_are_the_same() {
        let mut ledger = Ledger::default();
        for key in ["fd00::4", "name:n6"] {
            set(&mut ledger, &pool("One"), key, entry(LedgerStage::Down, 1));
        }
        let down = json!({"down 1970-01-01T00:00:01Z": [0]});
        // As az prints an id.
        let text = json!({"version": 1, "generation": 1, "pools": [pool("One").to_string()],
            "entries": [[down, ["FD00:0::4", "name:N6"]]]});
        assert_ne!(pool("One").to_string(), pool_key(&pool("One")));
        assert_eq!(Contents::parse(&text.to_string()).unwrap().ledger, ledger);
    }

    #[test]
    fn other_versions_are_refused() {
        for version in [json!(0), json!(2), json!("1"), json!(null)] {
            let text = json!({"version": version, "generation": 1, "pools": [], "entries": []}).to_string();
            assert!(
                matches!(Contents::parse(&text), Err(LedgerError::UnknownVersion(_))),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn text_reads_as_the_ledger_and_is_the_only_one_of_it(ledger in ledgers(), other in ledgers(), generation: u64) {
            let text = encode(generation, &ledger).unwrap();
            let read = Contents::parse(&text).unwrap();
            prop_assert_eq!(encode(generation, &read.ledger).unwrap(), text.clone());
            prop_assert_eq!(encode(generation, &other).unwrap() == text, other == ledger);
            prop_assert_eq!(read, Contents { generation, ledger });
        }
    }

    const NODES: usize = 5000;
    const POOLS: usize = 10;

    /// The ledger of a cluster with a ledger entry for each node in each pool. As in `benches/scale`, half of the pools have addresses, and
    /// half network interfaces.
    fn large(entry: impl Fn(usize, usize) -> LedgerEntry) -> Ledger {
        let group = ResourceGroupId::new(
            "0b1f6471-1bf0-4dda-aec3-cb9272f09590",
            "MC_production_aks-production_westeurope",
        );
        let group = group.unwrap();
        let mut ledger = Ledger::default();
        for place in 0..POOLS {
            let pool = group
                .load_balancer(&format!("production-{place}"))
                .unwrap()
                .pool("kubernetes")
                .unwrap();
            for node in 0..NODES {
                let address = format!("10.224.{}.{}", node / 250, node % 250 + 4);
                // The name of a scale set's interface.
                let interface = format!("name:{:08x}-3c5f-4b8e-9d2a-6f1e0c7b{node:04x}", node * 429_497);
                let key = if place % 2 == 0 { address } else { interface };
                set(&mut ledger, &pool, &key, entry(node, place));
            }
        }
        assert_eq!(ledger.entries().count(), NODES * POOLS);
        ledger
    }

    fn begun(stage: LedgerStage, second: usize) -> LedgerEntry {
        entry(stage, 1_795_700_000 + i64::try_from(second).unwrap())
    }

    /// The bytes of a ledger; one that is full panics.
    fn size(ledger: &Ledger) -> usize {
        let text = encode(1, ledger).unwrap();
        assert_eq!(&Contents::parse(&text).unwrap().ledger, ledger);
        text.len()
    }

    #[test]
    fn five_thousand_nodes_in_ten_pools_fit_whenever_they_become_down() {
        let down = |second| begun(LedgerStage::Down, second);
        let at_once = large(|_, _| down(0));
        // A pool is written every 3 s, of which 500 nodes become `Down`.
        let by_pool = large(|node, place| begun(LedgerStage::Intended, 300 * (node / 500) + 3 * place));
        let one_by_one = large(|node, _| down(node));
        // The ledger was full at 17,500 entries of this kind when each had its own stage and time.
        for (ledger, most) in [(at_once, 330_000), (by_pool, 340_000), (one_by_one, 800_000)] {
            let bytes = size(&ledger);
            assert!(bytes <= most, "{bytes}");
        }
    }

    #[test]
    fn no_text_is_larger_than_the_api_server_accepts() {
        let ledger = large(|node, place| begun(LedgerStage::Down, node * POOLS + place));
        let bytes = serde_json::to_string(&ledger).unwrap().len();
        let error = encode(1, &ledger).unwrap_err();
        let is_expected = |error: &LedgerError| matches!(error, LedgerError::TooLarge { bytes: found, entries } if *found > bytes && *found < bytes + 100 && *entries == NODES * POOLS);
        assert!(is_expected(&error), "{error}");
        // Up to that size nothing is refused.
        let with_key = |length: usize| {
            let mut ledger = Ledger::default();
            set(
                &mut ledger,
                &pool("p"),
                &"k".repeat(length),
                entry(LedgerStage::Down, 1),
            );
            ledger
        };
        let rest = MAX_LEDGER_BYTES - encode(1, &with_key(0)).unwrap().len();
        assert_eq!(encode(1, &with_key(rest)).unwrap().len(), MAX_LEDGER_BYTES);
        assert!(matches!(
            encode(1, &with_key(rest + 1)),
            Err(LedgerError::TooLarge { .. })
        ));
    }

    #[test]
    fn a_short_text_does_not_stand_for_more_entries_than_memory_holds() {
        let text = |keys: usize| {
            let pools: Vec<_> = (0..1000).map(|place| format!("p{place}")).collect();
            let places: Vec<_> = (0..1000).collect();
            let keys: Vec<_> = (0..keys).map(|key| format!("k{key}")).collect();
            let entries = json!([[{"down 2026-11-21T10:00:00Z": places}, keys]]);
            json!({"version": 1, "generation": 1, "pools": pools, "entries": entries}).to_string()
        };
        let most = Contents::parse(&text(MAX_ENTRIES / 1000)).unwrap();
        assert_eq!(most.ledger.entries().count(), MAX_ENTRIES);
        assert!(encode(1, &most.ledger).is_ok());
        let error = Contents::parse(&text(MAX_ENTRIES / 1000 + 1)).unwrap_err();
        assert!(error.to_string().contains("501000 entries"), "{error}");
        let mut ledger = most.ledger;
        set(&mut ledger, &pool("one"), "more", entry(LedgerStage::Down, 1));
        assert!(matches!(encode(1, &ledger), Err(LedgerError::TooLarge { .. })));
    }
}
