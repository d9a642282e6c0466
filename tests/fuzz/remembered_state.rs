//! The remembered state: any file is of use or is refused by name; what is of use is that node's alone and
//! survives being written.

use headgate_clock::Clock;
use headgate_node::{Memory, RememberedError, Report, Source};

use crate::like;

const NODE: &str = "node-1";
const WORDS: &[&[u8]] = &[
    b"\"version\":1",
    b"\"version\":2",
    b"\"nodeName\":\"node-1\"",
    b"\"nodeName\":\"node-2\"",
    b"\"facts\":{",
    b"\"taints\":[",
    b"\"ToBeDeletedByClusterAutoscaler\"",
    b"\"deletionTimestamp\"",
    b"\"nodeShutdown\"",
    b"\"since\":{",
    b"\"deleting\":true",
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
fn a_memory_is_of_use_to_its_node_alone_and_survives_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.json");
    let keys = ["ToBeDeletedByClusterAutoscaler".to_owned(), "a.io/b".to_owned()];
    let now = Clock::System.now();
    like::fuzz("remembered_state", WORDS, |bytes| {
        std::fs::write(&file, bytes).unwrap();
        let memory = match Memory::load(directory.path(), NODE) {
            Ok(memory) => memory.expect("the file is there"),
            Err(error) => {
                let told = error.to_string();
                assert!(told.contains("state.json"), "{told}");
                return;
            }
        };
        for other in ["node-2", "", "NODE-1", "node-1 "] {
            let refused = Memory::load(directory.path(), other);
            assert!(
                matches!(refused, Err(RememberedError::Foreign { .. })),
                "{other}: {refused:?}"
            );
        }
        memory.store(directory.path()).unwrap();
        assert_eq!(Memory::load(directory.path(), NODE).unwrap().as_ref(), Some(&memory));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);

        let report = Report::initial(Some(memory.clone()), &keys, now);
        assert_eq!((report.source, report.synced()), (Source::Remembered, false));
        let facts = &memory.facts;
        let tainted = facts.taints.iter().any(|taint| keys.contains(taint));
        assert_eq!(report.eligible(), !(facts.deleting || facts.shutting_down || tainted));
        // What is remembered of it is the same again, but for what is no signal by these keys.
        let second = Memory::of(NODE, &report, now).unwrap();
        assert_eq!(second.facts, memory.facts);
        assert_eq!(Report::initial(Some(second), &keys, now), report);
    });
}
