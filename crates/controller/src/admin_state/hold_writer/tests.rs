use std::collections::BTreeSet;

use headgate_clock::Clock;

use super::super::fixtures::{DRAIN, node};
use super::*;

fn desired(signals: &[&str]) -> DesiredHolds {
    let hold = DesiredHold {
        node: Arc::new(node(1, &[DRAIN])),
        pools: ["lb/p".to_owned()].into(),
        probes_headgate: true,
        signals: signals.iter().map(ToString::to_string).collect(),
        pending: BTreeSet::new(),
    };
    [("n1".to_owned(), hold)].into()
}

fn recorded(nodes: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(name, uid): &(&str, &str)| ((*name).to_owned(), (*uid).to_owned());
    nodes.iter().map(pair).collect()
}

/// The Nodes of the writes, and whether each is a hold.
fn shown(writes: &[HoldWrite]) -> Vec<(&str, bool)> {
    writes
        .iter()
        .map(|write| (write.node.as_str(), write.hold.is_some()))
        .collect()
}

#[test]
fn hold_is_written_when_it_is_new_changed_or_due_for_renewal() {
    let now = Clock::System.now();
    let later = |time| Moment {
        mono: now.mono + time,
        ..now
    };
    let (mut written, none) = (BTreeMap::new(), recorded(&[]));
    // A leader renews the holds of an earlier one at once.
    let due = due_writes(&desired(&[DRAIN]), &recorded(&[("n1", "u1")]), &written, now);
    assert_eq!(shown(&due), [("n1", true)]);
    let record = Written {
        node_uid: "u1".into(),
        hold: due[0].hold.clone(),
        at: now.mono,
    };
    written.insert("n1".to_owned(), record);
    let soon = later(RENEW_INTERVAL / 2);
    assert!(due_writes(&desired(&[DRAIN]), &none, &written, soon).is_empty());
    assert_eq!(
        shown(&due_writes(&desired(&[DRAIN, "x"]), &none, &written, soon)),
        [("n1", true)]
    );
    let renewal = due_writes(&desired(&[DRAIN]), &none, &written, later(RENEW_INTERVAL));
    assert_eq!(shown(&renewal), [("n1", true)]);
}

#[test]
fn hold_that_is_over_is_removed_until_the_watch_shows_it() {
    let now = Clock::System.now();
    let (none, mut written) = (DesiredHolds::new(), BTreeMap::new());
    let recorded = recorded(&[("n1", "u1"), ("n2", "u2")]);
    assert_eq!(
        shown(&due_writes(&none, &recorded, &written, now)),
        [("n1", false), ("n2", false)]
    );
    let removed = |uid: &str| Written {
        node_uid: uid.to_owned(),
        hold: None,
        at: now.mono,
    };
    written.insert("n1".to_owned(), removed("u1"));
    written.insert("n2".to_owned(), removed("another Node of this name"));
    assert_eq!(shown(&due_writes(&none, &recorded, &written, now)), [("n2", false)]);
    let later = Moment {
        mono: now.mono + RETRY_INTERVAL,
        ..now
    };
    assert_eq!(due_writes(&none, &recorded, &written, later).len(), 2);
}
