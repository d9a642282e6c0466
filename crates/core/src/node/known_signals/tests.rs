use super::super::signal::DEFAULT_SIGNAL_TAINTS;
use super::*;

fn settings(disabled: &[KnownSignal], extra: &[Value]) -> SignalSettings {
    SignalSettings {
        disabled: disabled.iter().copied().collect(),
        extra: extra.iter().map(|entry| ExtraSignal::parse(entry).unwrap()).collect(),
    }
}

fn names(rules: &SignalRules) -> Vec<String> {
    let none = std::collections::BTreeMap::<_, bool>::new();
    rules.names(&none).map(|(name, _)| name).collect()
}

#[test]
fn defaults_are_the_taints_and_what_the_node_object_says_of_its_end() {
    let mut wanted = DEFAULT_SIGNAL_TAINTS.map(str::to_owned).to_vec();
    wanted.push("deletionTimestamp".to_owned());
    let rules = SignalSettings::default();
    assert_eq!(names(&rules.admin_state()), wanted);
    wanted.extend(["kubelet-shutdown".to_owned(), "preempt".to_owned()]);
    assert_eq!(names(&rules.health()), wanted);
}

#[test]
fn disabled_and_extra_change_one_signal_and_leave_the_others() {
    let mut others = names(&SignalSettings::default().admin_state());
    others.retain(|known| known != "karpenter.sh/disrupted");
    let disabled = settings(&[KnownSignal::Karpenter, KnownSignal::Cordon], &[]);
    assert_eq!(names(&disabled.admin_state()), others);
    assert!(!names(&disabled.health()).contains(&"karpenter.sh/disrupted".to_owned()));
    let narrowed = settings(&[], &[json!({"signal": "karpenter", "for": ["health"]})]);
    assert_eq!(names(&narrowed.admin_state()), others);
    assert_eq!(narrowed.health(), SignalSettings::default().health());
    let extra = [
        json!({"taint": "example.com/*", "for": ["adminState"]}),
        json!({"signal": "cordon", "after": "30s", "for": ["adminState"]}),
        json!({"signal": "kubelet-shutdown", "for": ["health", "adminState"]}),
        json!({"signal": "terminate", "for": ["health"]}),
    ];
    let more = settings(&[], &extra);
    let (rules, health) = (more.admin_state(), more.health());
    let cordon = SignalMatcher::Unschedulable(std::time::Duration::from_secs(30));
    assert_eq!(rules.matchers.len(), DEFAULT_SIGNAL_TAINTS.len() + 4);
    assert!(rules.matchers.contains(&cordon) && rules.matchers.contains(&SignalMatcher::Shutdown));
    assert_eq!(names(&rules)[DEFAULT_SIGNAL_TAINTS.len() + 1], "example.com/*");
    assert!(health.matchers.contains(&SignalMatcher::Azure(AzureNotice::Terminate)));
    assert_eq!(more.contradiction(), None);
    let both = settings(&[KnownSignal::Spot], &[json!({"signal": "spot", "for": ["health"]})]);
    assert_eq!(both.contradiction(), Some(KnownSignal::Spot));
}

#[test]
fn every_name_can_be_an_entry_and_is_shown_as_it_was_read() {
    for signal in KnownSignal::ALL {
        for effect in signal.default_effects() {
            assert!(signal.allowed_effects().contains(effect), "{signal:?}");
        }
        let effects: Vec<_> = signal.allowed_effects().iter().map(|effect| effect.as_str()).collect();
        let entry = json!({"signal": signal.as_str(), "for": effects});
        let read = ExtraSignal::parse(&entry).unwrap();
        assert_eq!((read.known(), read.name().as_str()), (Some(signal), signal.as_str()));
        assert_eq!(read.to_value(), entry);
    }
    for entry in [
        json!({"signal": "cordon", "after": "1m30s", "for": ["adminState"]}),
        json!({"taint": "example.com/draining", "for": ["health", "adminState"]}),
        json!({"condition": {"type": "T", "status": "True"}, "for": ["health"]}),
        json!({"label": {"key": "a"}, "for": ["health"]}),
        json!({"annotation": {"key": "a", "value": "b"}, "for": ["health"]}),
    ] {
        assert_eq!(ExtraSignal::parse(&entry).unwrap().to_value(), entry);
    }
}

#[test]
fn wrong_entries_say_what_is_allowed() {
    let (health, nth) = (["health"], "aws-node-termination-handler/*");
    let (one_of_all, list) = (
        "one of cluster-autoscaler, out-of-service, ",
        "for: a list of one or both of health, adminState",
    );
    let (for_health, maintenance) = ("for: [health]: the leader sees", "{signal: maintenance, for: …}");
    for (entry, allowed) in [
        (json!("spot"), "an entry such as {taint: "),
        (json!({"for": health}), "exactly one of signal, taint, "),
        (json!({"signal": "spots", "for": health}), one_of_all),
        (json!({"signal": "spot"}), list),
        (json!({"signal": "spot", "for": []}), "for: a list of one or both"),
        (json!({"signal": "spot", "for": "health"}), "for: a list of one or both"),
        (json!({"signal": "spot", "for": ["pods"]}), "for: a list of one or both"),
        (json!({"signal": "preempt", "for": ["adminState"]}), for_health),
        (
            json!({"signal": "spot", "after": "1s", "for": health}),
            "the signal cordon",
        ),
        (
            json!({"signal": "cordon", "after": "2h", "for": health}),
            "a duration from 0s to 1h",
        ),
        (json!({"taint": "headgate.dev/maintenance", "for": health}), maintenance),
        (json!({"taint": nth, "for": health}), "{signal: nth, for: …}"),
        (json!({"unschedulable": true, "for": health}), "exactly one of"),
    ] {
        let error = ExtraSignal::parse(&entry).unwrap_err();
        assert!(error.contains(allowed), "{entry}: {error}");
    }
}
