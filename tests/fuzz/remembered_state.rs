//! The remembered state: any file is usable or refused with its name; a usable one is usable for one node only and can be
//! written again without a loss.

use headgate_agent::own_node::{Boot, RememberedState};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReport, Source};

use crate::mutated_corpus;

const NODE: &str = "node-1";
const WORDS: &[&[u8]] = &[
    b"\"version\":1",
    b"\"version\":2",
    b"\"nodeName\":\"node-1\"",
    b"\"nodeName\":\"node-2\"",
    b"\"node\":{",
    b"\"taints\":[",
    b"\"ToBeDeletedByClusterAutoscaler\"",
    b"\"deletionTimestamp\"",
    b"\"kubelet-shutdown\"",
    b"\"since\":{",
    b"\"isDeleting\":true",
    b"\"ends\":true",
    b"\"writtenAt\":",
    b"null",
    b"true",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\"\"",
    b"\"9999-12-31T23:59:60Z\"",
    b"\"-009999-01-02T01:59:59Z\"",
    b"\"0000-01-01T00:00:00.123456789012Z\"",
    b"\\ud800",
    b"\\u0000",
    b"\xff",
];

#[test]
fn remembered_state_round_trips_and_is_valid_for_its_node_only() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.json");
    let keys = ["ToBeDeletedByClusterAutoscaler".to_owned(), "a.io/b".to_owned()];
    let rules = headgate_core::node::SignalRules::new(keys.clone(), &headgate_core::node::SignalMatcher::BUILT_IN);
    let now = Clock::System.now();
    mutated_corpus::fuzz("remembered_state", WORDS, |bytes| {
        std::fs::write(&file, bytes).unwrap();
        let state = match RememberedState::load(directory.path(), NODE) {
            Ok(state) => state.expect("the file is there"),
            Err(text) => {
                assert!(text.contains("state.json"), "{text}");
                return;
            }
        };
        for other in ["node-2", "", "NODE-1", "node-1 "] {
            let refused = RememberedState::load(directory.path(), other);
            let why = refused.unwrap_err();
            assert!(why.contains("is about Node "), "{other}: {why}");
        }
        state.store(directory.path()).unwrap();
        assert_eq!(
            RememberedState::load(directory.path(), NODE).unwrap().as_ref(),
            Some(&state)
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);

        let report = NodeReport::initial(Some(state.known.clone()), &rules, now);
        assert_eq!((report.source, report.is_synced()), (Source::Remembered, false));
        let node = &state.known.node;
        let tainted = node.taints.iter().any(|taint| keys.contains(&taint.key));
        assert_eq!(
            report.is_eligible(),
            !(node.is_deleting || node.shutting_down || tainted)
        );
        // The stored state of this report has the same Node; keys that are not signals may be missing in `since`.
        let second = RememberedState::from_report(NODE, Boot::default(), &report, now).unwrap();
        assert_eq!(
            serde_json::to_value(&second.known.node).unwrap(),
            serde_json::to_value(&state.known.node).unwrap()
        );
        assert_eq!(NodeReport::initial(Some(second.known), &rules, now), report);
    });
}
