use super::super::fixtures::{DRAIN, hold, node};
use super::*;

fn desired_of(number: u8, signals: &[&str]) -> (String, DesiredHold) {
    let hold = DesiredHold::new(&Arc::new(node(number, &[DRAIN])), hold(&["lb/p"], signals));
    (format!("n{number}"), hold)
}

fn desired(signals: &[&str]) -> DesiredHolds {
    [desired_of(1, signals)].into()
}

/// Nodes that the watch shows with a hold for these signals.
fn recorded_with(nodes: &[(&str, &str)], signals: &[&str]) -> RecordedHolds {
    let pair = |(name, uid): &(&str, &str)| {
        let mut held = node(1, &[DRAIN]);
        (held.name, held.uid) = ((*name).to_owned(), (*uid).to_owned());
        held.hold = Some(hold(&["lb/p"], signals));
        ((*name).to_owned(), Arc::new(held))
    };
    nodes.iter().map(pair).collect()
}

fn recorded(nodes: &[(&str, &str)]) -> RecordedHolds {
    recorded_with(nodes, &[DRAIN])
}

/// Name, UID, whether it is a hold, and whether the watch shows it.
fn summary<'a>(intents: &'a BTreeMap<String, NodeIntent>) -> Vec<(&'a str, &'a str, bool, bool)> {
    let summary = |(name, intent): (&'a String, &'a NodeIntent)| {
        let (is_hold, is_shown) = (!intent.key.is_empty(), intent.shown == Shown::Yes);
        (name.as_str(), intent.uid.as_deref().unwrap(), is_hold, is_shown)
    };
    intents.iter().map(summary).collect()
}

#[test]
fn hold_is_shown_only_as_it_should_be_on_the_same_node() {
    let target = desired(&[DRAIN]);
    for (what, recorded, is_shown) in [
        ("none", recorded(&[]), false),
        ("the hold", recorded(&[("n1", "u1")]), true),
        ("another one", recorded_with(&[("n1", "u1")], &["other"]), false),
        (
            "that of another Node of the name",
            recorded(&[("n1", "another")]),
            false,
        ),
    ] {
        assert_eq!(
            summary(&hold_intents(&target, &recorded)),
            [("n1", "u1", true, is_shown)],
            "{what}"
        );
    }
}

#[test]
fn each_hold_is_a_value_of_its_own_that_is_written_with_the_time() {
    let intents = |signals: &[&str]| hold_intents(&desired(signals), &recorded(&[])).remove("n1").unwrap();
    let (one, other) = (intents(&[DRAIN]), intents(&[DRAIN, "x"]));
    assert_eq!(one.key, intents(&[DRAIN]).key);
    assert_ne!(one.key, other.key);
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    let mut node = Node::default();
    one.edit.edit(&mut node, now);
    let annotations = node.metadata.annotations.clone().unwrap();
    let hold = NodeHold::from_annotations(&annotations, "u1").unwrap();
    assert_eq!((hold.renewed_at, hold.signals.len()), (now, 1));
}

#[test]
fn hold_that_is_over_is_removed_from_the_node_that_has_it() {
    let over = hold_intents(&DesiredHolds::new(), &recorded(&[("n1", "u1"), ("n2", "u2")]));
    assert_eq!(summary(&over), [("n1", "u1", false, false), ("n2", "u2", false, false)]);
    let mut node = Node::default();
    let other = ("a".to_owned(), "b".to_owned());
    node.metadata.annotations = Some([other.clone(), (HOLD_ANNOTATION.to_owned(), "{}".to_owned())].into());
    over["n1"].edit.edit(&mut node, Timestamp::UNIX_EPOCH);
    assert_eq!(node.metadata.annotations, Some([other].into()));
}

#[test]
fn hold_that_no_agent_would_read_is_not_written() {
    let signals: Vec<String> = (0..100).map(|number| format!("example.com/{number:040}")).collect();
    let signals: Vec<&str> = signals.iter().map(String::as_str).collect();
    assert!(hold_intents(&desired(&signals), &recorded(&[])).is_empty());
    // What is there does not cover the Node's signals.
    let removed = hold_intents(&desired(&signals), &recorded(&[("n1", "u1")]));
    assert_eq!(summary(&removed), [("n1", "u1", false, false)]);
}
