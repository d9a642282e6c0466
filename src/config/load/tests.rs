//! Files and flags, and the settings or violations that they give.

use std::io::Write as _;
use std::time::Duration;

use headgate_maintenance::automatic::Cause;

use super::super::suggestion::nearest;
use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

const HEADER: &str = "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n";

/// The settings of a file with the version and the kind above this text.
fn from(text: &str) -> Result<Settings, SettingsError> {
    whole(&format!("{HEADER}{text}"))
}

fn whole(text: &str) -> Result<Settings, SettingsError> {
    let file = file(text);
    load(Some(file.path()), &[]).map_err(|violations| {
        let origin = file.path().display().to_string();
        let renamed = |m: Violation| Violation {
            origin: m.origin.replace(&origin, "f.yaml"),
            ..m
        };
        SettingsError(violations.0.into_iter().map(renamed).collect())
    })
}

fn lines(result: Result<Settings, SettingsError>) -> Vec<String> {
    result.unwrap_err().0.iter().map(ToString::to_string).collect()
}

/// The text has these mistakes and no others; of each its line and the beginning are given.
#[track_caller]
fn assert_mistakes(text: &str, wanted: &[&str]) {
    let lines = lines(from(text));
    assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
    for (line, wanted) in lines.iter().zip(wanted) {
        assert!(line.starts_with(&format!("f.yaml:{wanted}")), "{line}");
    }
}

#[test]
fn empty_file_means_defaults() {
    assert_eq!(from(""), Ok(Settings::default()));
    assert_eq!(from("# nothing\n"), Ok(Settings::default()));
}

#[test]
fn printed_settings_can_be_loaded() {
    let text = "kubeProxyHealthzUrl: Disabled\ndelayTermination: {clusterAutoscaler: 1m30s}\n\
        outOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\n\
        adminState: {minimumInService: Disabled}\nmaintenance: {enabled: true, automatic: [preempt, {cause: shutdown, timeout: 1m}]}\n";
    let settings = from(text).unwrap();
    assert_eq!(settings.cluster_autoscaler_delay, Some(Duration::from_secs(90)));
    assert_eq!(settings.kube_proxy.healthz_authority, None);
    assert_eq!(whole(&settings.to_yaml()), Ok(settings));
    assert_eq!(whole(&Settings::default().to_yaml()), Ok(Settings::default()));
}

#[test]
fn all_violations_are_reported_together_each_with_its_line() {
    let text = "healthzBindAddress: nowhere\ndelayTermination:\n  # of old\n  clusterAutoscaler: 5\nconections: {}\noutOfLoadBalancers:\n  \
         failedProbess: 1s\n  failedProbes: '2'\nsignals: off\nlogFormat:\n7: x\n'': y\nstateDir: /a\n";
    let wanted = [
        "3: healthzBindAddress: \"nowhere\" is not allowed; allowed: an IP address with a port",
        "6: delayTermination.clusterAutoscaler: the number 5 is not allowed; allowed: null, or a duration from 10s to 10m",
        "7: conections: did you mean connections? This key is not known (value: a section); allowed: metricsBindAddress, ",
        "9: outOfLoadBalancers.failedProbess: did you mean outOfLoadBalancers.failedProbes? This key is not known (value: \"1s\")",
        "10: outOfLoadBalancers.failedProbes: \"2\" is not allowed; allowed: a whole number from 1 to 100",
        "11: signals: \"off\" is not allowed; allowed: a section with disabled, extra",
        "12: logFormat: nothing is not allowed; allowed: one of Auto, Text, JSON",
        "13: the number 7 is not a key",
        "14: \"\" is not a key",
        "15: stateDir: this is the flag --state-dir of headgate agent and no key; allowed: ",
    ];
    assert_mistakes(text, &wanted);
}

#[test]
fn a_file_full_of_mistakes_is_read_in_time() {
    let text = (0..2_000)
        .map(|number| format!("k{number}: 1"))
        .collect::<Vec<_>>()
        .join("\n");
    let violations = from(&text).unwrap_err().0;
    assert_eq!(violations.len(), 2_000);
    assert_eq!((violations[99].line, violations[100].line), (Some(102), None));
}

#[test]
fn unknown_key_suggests_the_nearest_one() {
    for (path, meant) in [
        ("failedProbes", Some("outOfLoadBalancers.failedProbes")),
        ("signal", Some("signals")),
        ("connection", Some("connections")),
        ("healthzbindaddress", Some("healthzBindAddress")),
        ("kubeProxyHealthzURL", Some("kubeProxyHealthzUrl")),
        ("a", None),
        ("replicas", None),
        ("<<", None),
    ] {
        assert_eq!(nearest(path), meant, "{path}");
    }
}

#[test]
fn minimum_in_service_is_a_number_or_a_percentage() {
    use headgate_core::settings::IntOrPercent::{self, Int, Percent};
    let minimum = |value: &str| {
        let loaded = from(&format!("adminState: {{minimumInService: {value}}}\n"));
        loaded.map(|settings| settings.guard.minimum_in_service).ok()
    };
    for (value, expected) in [
        ("Disabled", Some(Int(0))),
        ("0", None),
        ("5000", Some(Int(5000))),
        ("'7'", Some(Int(7))),
        ("1%", Some(Percent(1))),
        ("100%", Some(Percent(100))),
        ("5001", None),
        ("0%", None),
        ("101%", None),
        ("-1", None),
        ("1.5", None),
        ("20 %", None),
        ("'%'", None),
        ("'+3'", None),
        ("many", None),
        ("[1]", None),
    ] {
        assert_eq!(minimum(value), expected, "{value}");
    }
    let guard = from("").unwrap().guard;
    assert_eq!((guard.minimum_in_service, guard.max_new_down), (Int(1), Percent(25)));
    let max_new_down = |value: &str| {
        from(&format!("adminState: {{maxNewDown: {value}}}\n")).map(|settings| settings.guard.max_new_down)
    };
    assert_eq!(max_new_down("3").ok(), Some(Int(3)));
    assert_eq!(max_new_down("100%").ok(), Some(IntOrPercent::ALL));
    assert!(max_new_down("0").is_err(), "nothing would ever become Down");
}

#[test]
fn every_invalid_item_of_a_list_is_reported_with_its_line() {
    let text = "signals:\n  extra:\n  - {taint: a.io/b, for: [health]}\n  - {taint: 'key=value', for: [health]}\n  -\n    taint: a.io/b\n    \
        for: [adminState]\n  - 7\n";
    let wanted = [
        "6: signals.extra: item 2, {\"taint\":\"key=value\",\"for\":[\"health\"]}, is not allowed; allowed: a taint key such as \
         example.com/draining, or how it begins",
        "8: signals.extra: item 3, {\"taint\":\"a.io/b\",\"for\":[\"adminState\"]}, is not allowed; allowed: each signal once; a.io/b \
         is listed before",
        "10: signals.extra: item 4, the number 7, is not allowed; allowed: an entry such as {taint: ",
    ];
    assert_mistakes(text, &wanted);
}

#[test]
fn signals_are_read_and_shown() {
    let text = "signals:\n  disabled: [karpenter, preempt]\n  extra:\n  - {taint: 'a.io/*', for: [health]}\n  - condition: {type: \
        VMEventScheduled, status: 'True', messagePrefix: 'Preempt Scheduled:'}\n    for: [health]\n  - {label: {key: a.io/c, value: d}, for: \
        [adminState]}\n  - {annotation: {key: a.io/e}, for: [health, adminState]}\n  - {signal: cordon, after: 30s, for: [health]}\n  \
        - {signal: kubelet-shutdown, for: [adminState]}\n  - {signal: nth, for: [health]}\n";
    let settings = from(text).unwrap();
    let names = |rules: headgate_core::node::SignalRules| -> Vec<String> {
        rules.matchers.iter().map(ToString::to_string).skip(5).collect()
    };
    let wanted = [
        "unschedulable",
        "aws-node-termination-handler/*",
        "a.io/*",
        "condition:VMEventScheduled=True,message=Preempt Scheduled:*",
        "annotation:a.io/e",
        "deletionTimestamp",
    ];
    assert_eq!(names(settings.signals.health()), wanted);
    let wanted = [
        "label:a.io/c=d",
        "annotation:a.io/e",
        "deletionTimestamp",
        "kubelet-shutdown",
    ];
    assert_eq!(names(settings.signals.admin_state()), wanted);
    assert_eq!(whole(&settings.to_yaml()).unwrap(), settings, "{}", settings.to_yaml());
}

#[test]
fn wrong_signals_name_key_value_and_what_is_allowed() {
    let text = "signals:\n  disabled: [deletion, deletions, deletion]\n  extra: [{signal: deletions, for: [health]}, {label: {key: a}, for: \
        [health]}, {label: {key: a}, for: [health]}, {signal: cordon, after: 2h, for: [health]}]\n";
    let wanted = [
        "4: signals.disabled: item 2, \"deletions\", is not allowed; allowed: one of cluster-autoscaler, out-of-service, ",
        "4: signals.disabled: item 3, \"deletion\", is not allowed; allowed: each signal once",
        "5: signals.extra: item 1, {\"signal\":\"deletions\",\"for\":[\"health\"]}, is not allowed; allowed: a signal that is one of ",
        "5: signals.extra: item 3, {\"label\":{\"key\":\"a\"},\"for\":[\"health\"]}, is not allowed; allowed: each signal once; label:a is listed \
         before",
        "5: signals.extra: item 4, {\"signal\":\"cordon\",\"after\":\"2h\",\"for\":[\"health\"]}, is not allowed; allowed: a duration from 0s to 1h",
    ];
    assert_mistakes(text, &wanted);
}

#[test]
fn causes_of_maintenances_need_somebody_who_acts_on_them() {
    let settings =
        from("maintenance: {enabled: true, automatic: [machine, {cause: shutdown, timeout: 1m}]}\n").unwrap();
    let causes = settings.maintenance.automatic.causes;
    assert_eq!(
        causes,
        [(Cause::Machine, None), (Cause::Shutdown, Some(Duration::from_mins(1)))].into()
    );
    for (text, wanted) in [
        (
            "{automatic: [preempt, machine]}",
            "\"preempt\", \"machine\" without maintenance.enabled is not allowed; allowed: an empty list",
        ),
        (
            "{enabled: true, automatic: [spot]}",
            "item 1, \"spot\", is not allowed; allowed: one of preempt, terminate, shutdown, autoscaler, machine, or {cause: ",
        ),
        (
            "{enabled: true, automatic: [preempt, preempt]}",
            "item 2, \"preempt\", is not allowed; allowed: each cause once",
        ),
        (
            "{enabled: true, automatic: [{cause: shutdown, timeout: 0s}]}",
            "item 1, {\"cause\":\"shutdown\",\"timeout\":\"0s\"}, is not allowed; allowed: a duration from 1s to 24h",
        ),
        (
            "{enabled: true, automatic: [{cause: preempt, timeout: 1m}]}",
            "item 1, {\"cause\":\"preempt\",\"timeout\":\"1m\"}, is not allowed; allowed: one of preempt, ",
        ),
    ] {
        assert_mistakes(
            &format!("maintenance: {text}\n"),
            &[&format!("3: maintenance.automatic: {wanted}")],
        );
    }
}

#[test]
fn a_delay_that_only_its_own_end_would_end_is_none() {
    let probes = "outOfLoadBalancers: {source: FailedProbes}\n";
    let leader = "outOfLoadBalancers: {source: AdminState}\n";
    for (writer, more, is_delayed) in [
        (probes, "", true),
        (probes, "adminState: {mode: Observe}\n", true),
        (probes, "signals: {disabled: [cluster-autoscaler]}\n", false),
        (
            probes,
            "signals: {extra: [{signal: cluster-autoscaler, for: [adminState]}]}\n",
            false,
        ),
        (leader, "", true),
        (leader, "adminState: {mode: Observe}\n", false),
        (leader, "adminState: {mode: Disabled}\n", false),
        (leader, "signals: {disabled: [spot]}\n", true),
        (leader, "signals: {disabled: [cluster-autoscaler]}\n", false),
        (
            leader,
            "signals: {extra: [{signal: cluster-autoscaler, for: [health]}]}\n",
            false,
        ),
        (
            leader,
            "signals: {extra: [{signal: cluster-autoscaler, for: [adminState]}]}\n",
            true,
        ),
    ] {
        let text = format!("delayTermination: {{clusterAutoscaler: 2m}}\n{writer}{more}");
        let delay = from(&text).unwrap().deletion_delay();
        assert_eq!(delay, is_delayed.then(|| Duration::from_mins(2)), "{text}");
    }
}

#[test]
fn broken_yaml_names_the_line() {
    let violations = from("logFormat: Text\n  signals: [\n").unwrap_err();
    assert!(violations.0[0].message.contains("line 4"), "{violations}");
    let violations = from("logFormat: Text\nlogFormat: JSON\n").unwrap_err();
    assert!(violations.0[0].message.contains("duplicate"), "{violations}");
    assert!(
        whole("- a\n")
            .unwrap_err()
            .to_string()
            .contains("holds a list at its top")
    );
}

#[test]
fn flags_win_over_the_file() {
    let file = file(&format!(
        "{HEADER}metricsBindAddress: 127.0.0.1:2\nhealthzBindAddress: 127.0.0.1:1\n"
    ));
    let address = ("--metrics-bind-address", "metricsBindAddress", Some("127.0.0.1:3"));
    let directory = ("--state-dir", "stateDir", Some("/flag"));
    let not_given = ("--healthz-bind-address", "healthzBindAddress", None);
    let settings = load(Some(file.path()), &[address, directory, not_given]).unwrap();
    assert_eq!(settings.state_dir, Path::new("/flag"));
    assert_eq!(settings.metrics_bind_address.to_string(), "127.0.0.1:3");
    assert_eq!(settings.healthz_bind_address.to_string(), "127.0.0.1:1");
    let violations = load(None, &[("--state-dir", "stateDir", Some("relative"))]).unwrap_err();
    assert!(
        violations
            .to_string()
            .contains("--state-dir: stateDir: \"relative\" is not allowed"),
        "{violations}"
    );
}

#[test]
fn missing_or_huge_file_is_a_violation() {
    assert!(
        load(Some(Path::new("/does/not/exist")), &[])
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
    assert!(
        from(&"#".repeat(1024 * 1024 + 1))
            .unwrap_err()
            .to_string()
            .contains("larger than")
    );
}

#[test]
fn no_setting_is_the_word_none() {
    let printed = Settings::default().to_yaml();
    assert!(
        printed.starts_with(HEADER) && !printed.contains("none") && printed.contains("configSecret: null"),
        "{printed}"
    );
    let error = from("notifications: {urlFile: none}\n").unwrap_err();
    assert_eq!(
        error.0[0].message,
        "\"none\" is not allowed; allowed: null, or the absolute path of a file, such as /etc/kubernetes/azure.json"
    );
}

#[test]
fn version_and_kind_come_together_and_have_one_value() {
    for (text, wanted) in [
        (
            "apiVersion: config.headgate.dev/v1alpha1\n",
            " kind: is missing; allowed: HeadgateConfiguration",
        ),
        (
            "kind: HeadgateConfiguration\n",
            " apiVersion: is missing; allowed: config.headgate.dev/v1alpha1",
        ),
        (
            "apiVersion: config.headgate.dev/v2\nkind: HeadgateConfiguration\n",
            "1: apiVersion: \"config.headgate.dev/v2\" is not allowed; allowed: config.headgate.dev/v1alpha1",
        ),
        (
            "apiVersion: config.headgate.dev/v1alpha1\nkind: [a]\n",
            "2: kind: a list is not allowed; allowed: HeadgateConfiguration",
        ),
        (
            "apiVersion:\nkind: HeadgateConfiguration\n",
            "1: apiVersion: nothing is not allowed; allowed: ",
        ),
    ] {
        let lines = lines(whole(text));
        assert!(
            lines.len() == 1 && lines[0].starts_with(&format!("f.yaml:{wanted}")),
            "{text}: {lines:?}"
        );
    }
}

#[test]
fn a_file_without_version_and_kind_is_a_mistake() {
    for text in ["", "# nothing\n", "logFormat: Text\n"] {
        let lines = lines(whole(text));
        assert_eq!(
            lines,
            [
                "f.yaml: apiVersion: is missing; allowed: config.headgate.dev/v1alpha1",
                "f.yaml: kind: is missing; allowed: HeadgateConfiguration"
            ],
            "{text}"
        );
    }
}

#[test]
fn null_means_omission_where_a_setting_is_optional_only() {
    let text = "azure: {configSecret: ~}\nnotifications: {template: }\ndelayTermination: {clusterAutoscaler: null}\n";
    assert_eq!(from(text), Ok(Settings::default()));
    let wanted = [
        "3: logFormat: nothing is not allowed; allowed: one of Auto",
        "4: connections: nothing is not allowed; allowed: a section with count, ",
    ];
    assert_mistakes("logFormat:\nconnections:\n", &wanted);
}

#[test]
fn conflicts_name_a_key_that_the_file_may_not_have() {
    let conflict = |text: &str| from(text).unwrap_err().0[0].clone();
    let present = conflict("azure: {configSecret: a/b}\noutOfLoadBalancers:\n  source: FailedProbes\n");
    assert_eq!(
        (present.key.as_deref(), present.line),
        (Some("outOfLoadBalancers.source"), Some(5))
    );
    let not_in_the_file = conflict("healthzBindAddress: '[::]:10256'\n");
    assert_eq!(
        (not_in_the_file.key.as_deref(), not_in_the_file.line),
        (Some("kubeProxyHealthzUrl"), None)
    );
}

#[test]
fn there_are_28_keys() {
    fn leaves(value: &Value) -> usize {
        value
            .as_mapping()
            .map_or(1, |section| section.values().map(leaves).sum())
    }
    let printed: Value = serde_yaml::from_str(&Settings::default().to_yaml()).unwrap();
    let count = leaves(&printed) - HEADER.lines().count();
    assert_eq!(
        (count, keys().count()),
        (28, 28),
        "a new key takes the place of another one"
    );
}

#[test]
fn every_path_is_of_one_key() {
    let mut paths: Vec<_> = keys().chain(flags()).map(|key| key.path).collect();
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count);
}
