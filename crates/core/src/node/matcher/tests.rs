use proptest::prelude::*;

use super::super::reader::NodeReader;
use super::*;

fn parse(text: &str) -> Result<SignalMatcher, String> {
    SignalMatcher::parse(&serde_json::from_str(text).unwrap_or_default())
}

fn rules(matchers: &[&str]) -> SignalRules {
    let matchers = matchers.iter().map(|text| parse(text).unwrap()).collect();
    SignalRules { matchers }
}

fn read(node: Value, rules: &SignalRules) -> Node {
    NodeReader::own(rules.clone()).read(serde_json::from_value(node).unwrap())
}

fn found(node: &Value, rules: &SignalRules) -> Vec<String> {
    let node = read(node.clone(), rules);
    node.signals.keys().map(ToString::to_string).collect()
}

const SCHEDULED: &str = "VMEventScheduled";
const PREEMPT: &str =
    r#"{"condition": {"type": "VMEventScheduled", "status": "True", "messagePrefix": "Preempt Scheduled:"}}"#;

#[test]
fn each_kind_finds_its_facts_and_nothing_else() {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"metadata": {}, "status": {"conditions": [
            {"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}})
    };
    let scheduled = |status: &str, message: &str| condition(SCHEDULED, status, SCHEDULED, message);
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let annotation = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let taint = |key: &str| json!({"metadata": {}, "spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let cordoned = |is_cordoned: bool| json!({"metadata": {}, "spec": {"unschedulable": is_cordoned}});
    let notice = "Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. DurationInSeconds: -1.";
    let freeze = "Freeze Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.";
    let nth = r#"{"taint": "aws-node-termination-handler/*"}"#;
    let by_message = "condition:VMEventScheduled=True,message=Preempt Scheduled:*";
    let no_event = r#"{"condition": {"type": "VMEventScheduled", "status": "False", "reason": "NoVMEventScheduled"}}"#;
    let by_reason = "condition:VMEventScheduled=False,reason=NoVMEventScheduled";
    let by_value = r#"{"label": {"key": "a.io/state", "value": "leaving"}}"#;
    let by_key = r#"{"annotation": {"key": "a.io/leaving"}}"#;
    let (cordon, exact, other) = (
        r#"{"signal": "cordon"}"#,
        r#"{"taint": "a.io/b"}"#,
        r#"{"taint": "a.io/bc"}"#,
    );
    let of_nth = "aws-node-termination-handler/x";
    let no_event_found = condition(SCHEDULED, "False", "NoVMEventScheduled", "");
    // The name of the signal, or nothing.
    let cases = [
        (nth, taint(of_nth), of_nth),
        (nth, taint("aws-node-termination-handler"), ""),
        (nth, taint("other/aws-node-termination-handler/"), ""),
        (PREEMPT, scheduled("True", notice), by_message),
        (PREEMPT, scheduled("True", freeze), ""),
        (PREEMPT, scheduled("False", notice), ""),
        (PREEMPT, scheduled("Unknown", notice), ""),
        (PREEMPT, condition("Other", "True", SCHEDULED, notice), ""),
        (no_event, no_event_found, by_reason),
        (no_event, condition(SCHEDULED, "False", "Other", ""), ""),
        (by_value, label("a.io/state", "leaving"), "label:a.io/state=leaving"),
        (by_value, label("a.io/state", "leaving-soon"), ""),
        (by_value, annotation("a.io/state", "leaving"), ""),
        (by_key, annotation("a.io/leaving", ""), "annotation:a.io/leaving"),
        (by_key, annotation("a.io/leaving", "any"), "annotation:a.io/leaving"),
        (by_key, label("a.io/leaving", ""), ""),
        (cordon, cordoned(true), "unschedulable"),
        (cordon, cordoned(false), ""),
        (exact, taint("a.io/b"), "a.io/b"),
        (exact, taint("a.io/bc"), ""),
        (other, taint("a.io/bc"), "a.io/bc"),
    ];
    let texts = cases.each_ref().map(|(matcher, _, _)| *matcher);
    let all = rules(&texts);
    for (matcher, node, want) in cases {
        let rules = rules(&[matcher]);
        let want: Vec<_> = Some(want).filter(|name| !name.is_empty()).into_iter().collect();
        assert_eq!(found(&node, &rules), want, "{matcher} {node}");
        // The name of every detected signal leads back to it.
        let detected = read(node.clone(), &rules).signals;
        for signal in detected.keys() {
            assert_eq!(signal.to_string().parse::<Signal>().as_ref(), Ok(signal));
        }
        // Of all matchers, only its own has found it.
        let present: Vec<bool> = all.names(&detected).map(|(_, is_present)| is_present).collect();
        let expected = texts.iter().map(|text| !want.is_empty() && *text == matcher);
        assert_eq!(present, expected.collect::<Vec<_>>(), "{matcher} {node}");
    }
}

#[test]
fn names_stand_for_matchers() {
    for (matcher, name) in [
        (r#"{"taint": "a.io/b"}"#, "a.io/b"),
        (r#"{"taint": "a.io/*"}"#, "a.io/*"),
        (r#"{"signal": "cordon", "after": "1m"}"#, "unschedulable"),
        (r#"{"label": {"key": "a"}}"#, "label:a"),
    ] {
        assert_eq!(parse(matcher).unwrap().to_string(), name);
    }
}

#[test]
fn a_bare_true_or_false_of_yaml_is_a_status() {
    for (bare, status) in [("true", "True"), ("false", "False")] {
        let bare = format!(r#"{{"condition": {{"type": "A", "status": {bare}}}}}"#);
        let quoted = format!(r#"{{"condition": {{"type": "A", "status": "{status}"}}}}"#);
        assert_eq!(parse(&bare), parse(&quoted));
        assert!(parse(&bare).is_ok());
    }
}

#[test]
fn only_what_a_matcher_names_is_kept() {
    let node = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "annotations": {"c": "3", "d": "4", "headgate.dev/e": "5"}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "A", "status": "True", "message": "é".repeat(600)}, {"type": "B", "status": "True"},
            {"type": "Drained", "status": "True"}]}});
    let by_default = read(node.clone(), &crate::node::SignalSettings::default().health());
    assert!(by_default.labels.is_empty() && by_default.conditions.is_empty() && !by_default.unschedulable);
    assert_eq!(by_default.annotations.len(), 1);
    let rules = rules(&[
        r#"{"label": {"key": "a"}}"#,
        r#"{"annotation": {"key": "d", "value": "x"}}"#,
        r#"{"condition": {"type": "A", "status": "True"}}"#,
    ]);
    let some = read(node, &rules);
    assert_eq!(some.labels, [("a".to_owned(), "1".to_owned())].into());
    assert_eq!(some.annotations.keys().collect::<Vec<_>>(), ["d", "headgate.dev/e"]);
    assert_eq!(some.conditions.keys().collect::<Vec<_>>(), ["A"]);
    assert!(some.conditions["A"].message.len() <= 512);
}

#[test]
fn an_annotation_with_a_long_value_is_a_signal_by_its_key_alone() {
    let long = "é".repeat(5000);
    let node = json!({"metadata": {"annotations": {"example.com/leaving": long, "headgate.dev/hold": long}}});
    let by_key = rules(&[r#"{"annotation": {"key": "example.com/leaving"}}"#]);
    assert_eq!(found(&node, &by_key), ["annotation:example.com/leaving"]);
    let by_value = rules(&[r#"{"annotation": {"key": "example.com/leaving", "value": "é"}}"#]);
    assert!(found(&node, &by_value).is_empty());
    let node = read(node, &by_key);
    assert_eq!(node.annotations.keys().collect::<Vec<_>>(), ["example.com/leaving"]);
    assert_eq!(node.annotations["example.com/leaving"].len(), 4096);
}

#[test]
fn wrong_matchers_say_what_is_allowed() {
    let other_field = r#"{"condition": {"type": "A", "status": "True", "message": "x"}}"#;
    let wrong_status = r#"{"condition": {"type": "A", "status": "true"}}"#;
    let wrong_value = r#"{"annotation": {"key": "a", "value": "a\nb"}}"#;
    let wrong_field = r#"{"annotation": {"key": "a", "values": "a"}}"#;
    let empty_prefix = r#"{"condition": {"type": "A", "status": "True", "messagePrefix": ""}}"#;
    for (text, allowed) in [
        ("7", "an entry such as"),
        ("null", "an entry such as"),
        (r#""a.io/b""#, "an entry such as"),
        ("{}", "exactly one of"),
        (r#"{"taint": "a", "label": {"key": "b"}}"#, "exactly one of"),
        (r#"{"unschedulable": true}"#, "exactly one of"),
        (r#"{"taint": "a", "after": "10s"}"#, "no field \"after\" beside taint"),
        (r#"{"taint": "*"}"#, "how it begins"),
        (r#"{"taint": "a.io/b*c"}"#, "how it begins"),
        (r#"{"taint": "a.io/b=v"}"#, "how it begins"),
        (r#"{"condition": {"type": "A"}}"#, "the status True, False or Unknown"),
        (wrong_status, "the status True, False or Unknown"),
        (r#"{"condition": {"status": "True"}}"#, "a type"),
        (other_field, "only type, status, reason"),
        (empty_prefix, "a messagePrefix of 1 to 256 bytes"),
        (r#"{"condition": "A"}"#, "type and status"),
        (r#"{"label": {"key": "a b"}}"#, "key: example.com/name"),
        (r#"{"label": {"key": "a", "value": true}}"#, "quote a value"),
        (r#"{"label": {"key": "a", "value": "a b"}}"#, "key: example.com/name"),
        (r#"{"label": {"key": "a", "value": "a/b"}}"#, "key: example.com/name"),
        (wrong_value, "key: example.com/name"),
        (wrong_field, "key: example.com/name"),
        (r#"{"signal": "spot", "after": "1s"}"#, "the signal cordon"),
        (r#"{"signal": "cordon", "after": "2h"}"#, "a duration from 0s to 1h"),
        (r#"{"signal": "cordon", "after": 10}"#, "a duration from 0s to 1h"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(allowed), "{text}: {error}");
    }
}

fn matcher() -> impl Strategy<Value = SignalMatcher> {
    let key = || "[a-z]{1,5}\\.io/[a-zA-Z][a-z]{0,5}";
    let pair = || (key(), proptest::option::of("[a-z]{0,5}")).prop_map(|(key, value)| KeyMatcher { key, value });
    let text = || proptest::option::of("[ -~]{1,20}");
    prop_oneof![
        key().prop_map(SignalMatcher::Taint),
        key().prop_map(SignalMatcher::TaintPrefix),
        pair().prop_map(SignalMatcher::Label),
        pair().prop_map(SignalMatcher::Annotation),
        (0..3600u64).prop_map(|seconds| SignalMatcher::Unschedulable(Duration::from_secs(seconds))),
        ("[A-Z][a-z]{0,9}", "True|False|Unknown", text(), text()).prop_map(|(kind, status, reason, message_prefix)| {
            SignalMatcher::Condition(ConditionMatcher {
                kind,
                status,
                reason,
                message_prefix,
            })
        }),
    ]
}

proptest! {
    #[test]
    fn settings_round_trip(matcher in matcher()) {
        prop_assert_eq!(SignalMatcher::parse(&matcher.to_value()), Ok(matcher));
    }
}

#[test]
fn a_notice_of_azure_comes_from_its_own_matcher_only() {
    let matchers = AzureNotice::ALL.map(SignalMatcher::Azure).to_vec();
    let rules = SignalRules { matchers };
    for notice in AzureNotice::ALL {
        let signals = [(Signal::Azure(notice), ())].into();
        let present = rules.names(&signals).filter(|(_, is_present)| *is_present);
        let present: Vec<String> = present.map(|(name, _)| name).collect();
        assert_eq!(present, [Signal::Azure(notice).to_string()]);
    }
}
