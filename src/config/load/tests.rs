//! Files and flags, and the settings or violations that they give.

use std::io::Write as _;
use std::time::Duration;

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

#[test]
fn empty_file_means_defaults() {
    assert_eq!(from(""), Ok(Settings::default()));
    assert_eq!(from("# nothing\n"), Ok(Settings::default()));
}

#[test]
fn printed_settings_can_be_loaded() {
    let settings = from("node: {shutdownDelay: 5s, proxy: {healthzUrl: off}}\nsignals: {health: [a.io/b]}\n").unwrap();
    assert_eq!(settings.shutdown_delay, Duration::from_secs(5));
    assert_eq!(settings.proxy.healthz_authority, None);
    assert_eq!(whole(&settings.to_yaml()), Ok(settings));
    assert_eq!(whole(&Settings::default().to_yaml()), Ok(Settings::default()));
}

#[test]
fn all_violations_are_reported_together() {
    let violations = from(
        "node:\n  healthzBindAddress: nowhere\n  shutdownDelay: 5\n  proxi: {}\n  proxy:\n    pollIntervall: 1s\n    \
         healthTimeout: 0s\nsignals: off\nstateDir:\n7: x\n'': y\n",
    )
    .unwrap_err();
    let lines: Vec<String> = violations.0.iter().map(ToString::to_string).collect();
    let starts = [
        "f.yaml: node.healthzBindAddress: \"nowhere\" is not allowed; allowed: an IP address with a port",
        "f.yaml: node.shutdownDelay: \"5\" is not allowed; allowed: a duration from 0s to 10m",
        "f.yaml: node.proxi: did you mean node.proxy? This key is not known (value: a section); allowed: those in docs/",
        "f.yaml: node.proxy.pollIntervall: did you mean node.proxy.pollInterval? This key is not known (value: \"1s\")",
        "f.yaml: node.proxy.healthTimeout: \"0s\" is not allowed; allowed: a duration from 1s to 1h",
        "f.yaml: signals: \"off\" is not allowed; allowed: a section with health, healthBuiltIn, adminState, adminStateBuiltIn",
        "f.yaml: stateDir: nothing is not allowed; allowed: an absolute path",
        "f.yaml: \"7\" is not a key",
        "f.yaml: \"\" is not a key",
    ];
    assert_eq!(lines.len(), starts.len(), "{lines:#?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn unknown_key_suggests_the_nearest_one() {
    for (path, meant) in [
        ("healthTimeout", Some("node.proxy.healthTimeout")),
        ("signal", Some("signals")),
        ("nod", Some("node")),
        ("node.proxi", Some("node.proxy")),
        ("healthzbindaddress", Some("node.healthzBindAddress")),
        ("node.proxy.healthzURL", Some("node.proxy.healthzUrl")),
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
        let loaded = from(&format!("guard: {{minimumInService: {value}}}\n"));
        loaded.map(|settings| settings.guard.minimum_in_service).ok()
    };
    for (value, expected) in [
        ("0", Some(Int(0))),
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
    let max_new_down =
        |value: &str| from(&format!("guard: {{maxNewDown: {value}}}\n")).map(|settings| settings.guard.max_new_down);
    assert_eq!(max_new_down("3").ok(), Some(Int(3)));
    assert_eq!(max_new_down("100%").ok(), Some(IntOrPercent::ALL));
    assert!(max_new_down("0").is_err(), "nothing would ever become Down");
}

#[test]
fn every_invalid_item_of_a_list_is_reported() {
    let violations = from("signals: {health: [a.io/b, key=value, a.io/b, 7]}\n").unwrap_err();
    let lines: Vec<String> = violations.0.iter().map(ToString::to_string).collect();
    let key = "a taint key such as example.com/draining";
    let wanted = [
        format!(
            "f.yaml: signals.health: item 2, \"key=value\", is not allowed; allowed: {key}, without value and effect"
        ),
        "f.yaml: signals.health: item 3, \"a.io/b\", is not allowed; allowed: each taint key once".to_owned(),
        format!(
            "f.yaml: signals.health: item 4, \"7\", is not allowed; allowed: {key}, or a matcher: {key}, {{taint: "
        ),
    ];
    assert_eq!(lines[..2], wanted[..2]);
    assert!(lines.len() == 3 && lines[2].starts_with(&wanted[2]), "{lines:?}");
}

#[test]
fn matchers_and_built_in_signals_are_read_and_shown() {
    let text = "signals:\n  health:\n  - a.io/b\n  - taint: aws-node-termination-handler/*\n  - condition: {type: VMEventScheduled, \
        status: 'True', messagePrefix: 'Preempt Scheduled:'}\n  - label: {key: a.io/c, value: d}\n  - annotation: {key: a.io/e}\n  \
        - {unschedulable: true, for: 30s}\n  healthBuiltIn: [azurePreempt]\n  adminState: []\n  adminStateBuiltIn: [nodeShutdown, deletionTimestamp]\n";
    let settings = from(text).unwrap();
    let names: Vec<_> = settings
        .signals
        .health
        .matchers
        .iter()
        .map(ToString::to_string)
        .collect();
    let wanted = [
        "a.io/b",
        "aws-node-termination-handler/*",
        "condition:VMEventScheduled=True,message=Preempt Scheduled:*",
        "label:a.io/c=d",
        "annotation:a.io/e",
        "unschedulable",
    ];
    assert_eq!(names, wanted);
    assert_eq!(
        settings.signals.health.built_in,
        [headgate_core::node::BuiltInSignal::Azure(
            headgate_core::node::AzureNotice::Preempt
        )]
        .into()
    );
    assert_eq!(settings.signals.admin_state.built_in.len(), 2);
    assert_eq!(whole(&settings.to_yaml()).unwrap(), settings, "{}", settings.to_yaml());
    let none = from("signals: {health: [], healthBuiltIn: []}\n")
        .unwrap()
        .signals
        .health;
    assert_eq!(none, headgate_core::node::SignalRules::default());
}

#[test]
fn wrong_matchers_name_key_value_and_what_is_allowed() {
    let text = "signals:\n  health: [{taint: '*'}, {label: {key: a}}, {label: {key: a}}, {unschedulable: true, for: 2h}]\n  \
        healthBuiltIn: [deletion]\n  adminState: off\n  adminStateBuiltIn: [azurePreempt, nodeShutdown, nodeShutdown]\n";
    let lines: Vec<String> = from(text).unwrap_err().0.iter().map(ToString::to_string).collect();
    let wanted = [
        "signals.health: item 1, {\"taint\":\"*\"}, is not allowed; allowed: a taint key such as example.com/draining, or how it begins",
        "signals.health: item 3, {\"label\":{\"key\":\"a\"}}, is not allowed; allowed: each matcher once; label:a is listed before",
        "signals.health: item 4, {\"unschedulable\":true,\"for\":\"2h\"}, is not allowed; allowed: a duration from 0s to 1h",
        "signals.healthBuiltIn: item 1, \"deletion\", is not allowed; allowed: one of deletionTimestamp, nodeShutdown, \
         azurePreempt, azureTerminate, azureRedeploy, azureReboot",
        "signals.adminState: \"off\" is not allowed; allowed: a list of taint keys and other matchers",
        "signals.adminStateBuiltIn: item 1, \"azurePreempt\", is not allowed; allowed: one of deletionTimestamp, nodeShutdown",
        "signals.adminStateBuiltIn: item 3, \"nodeShutdown\", is not allowed; allowed: each signal once",
    ];
    assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
    for (line, wanted) in lines.iter().zip(wanted) {
        assert!(line.starts_with(&format!("f.yaml: {wanted}")), "{line}");
    }
}

#[test]
fn causes_of_maintenances_need_somebody_who_acts_on_them() {
    let settings = from("maintenance: {enabled: true, automatic: [machine, preempt]}\n")
        .unwrap()
        .maintenance
        .automatic;
    assert_eq!(settings.causes.len(), 2);
    assert_eq!(settings.shutdown_grace_period, Duration::from_secs(30));
    for (text, wanted) in [
        (
            "maintenance: {automatic: [preempt]}\n",
            "maintenance.automatic: a cause is not allowed without maintenance.enabled; allowed: an empty list",
        ),
        (
            "maintenance: {enabled: true, automatic: [spot]}\n",
            "maintenance.automatic: item 1, \"spot\", is not allowed; allowed: one of preempt, terminate, shutdown, autoscaler, machine",
        ),
        (
            "maintenance: {enabled: true, automatic: [preempt, preempt]}\n",
            "maintenance.automatic: item 2, \"preempt\", is not allowed; allowed: each cause once",
        ),
        (
            "maintenance: {enabled: true, shutdownGracePeriod: 0s}\n",
            "maintenance.shutdownGracePeriod: \"0s\" is not allowed; allowed: a duration from 1s to 1h",
        ),
    ] {
        let lines: Vec<String> = from(text).unwrap_err().0.iter().map(ToString::to_string).collect();
        let [line] = &lines[..] else { panic!("{lines:#?}") };
        assert!(line.starts_with(&format!("f.yaml: {wanted}")), "{line}");
    }
}

#[test]
fn broken_yaml_names_the_line() {
    let violations = from("stateDir: /a\n  bindAddressHardFail: [\n").unwrap_err();
    assert!(violations.0[0].message.contains("line 4"), "{violations}");
    let violations = from("stateDir: /a\nstateDir: /b\n").unwrap_err();
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
        "{HEADER}stateDir: /file\nnode: {{healthzBindAddress: 127.0.0.1:1}}\n"
    ));
    let flag = |value: &str| FlagOverride {
        flag: "--state-dir",
        key: "stateDir",
        value: value.to_owned(),
    };
    let settings = load(Some(file.path()), &[flag("/flag")]).unwrap();
    assert_eq!(settings.state_dir, Path::new("/flag"));
    assert_eq!(settings.healthz_bind_address.to_string(), "127.0.0.1:1");
    let violations = load(None, &[flag("relative")]).unwrap_err();
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
        printed.starts_with(HEADER) && !printed.contains("none") && printed.contains("configFile: null"),
        "{printed}"
    );
    let error = from("azure: {configFile: none}\n").unwrap_err();
    assert_eq!(
        error.0[0].message,
        "\"none\" is not allowed; allowed: null, or the absolute path of a file, such as /etc/kubernetes/azure.json"
    );
}

fn lines(result: Result<Settings, SettingsError>) -> Vec<String> {
    result.unwrap_err().0.iter().map(ToString::to_string).collect()
}

#[test]
fn version_and_kind_come_together_and_have_one_value() {
    for (text, wanted) in [
        (
            "apiVersion: config.headgate.dev/v1alpha1\n",
            "kind: is missing; allowed: HeadgateConfiguration",
        ),
        (
            "kind: HeadgateConfiguration\n",
            "apiVersion: is missing; allowed: config.headgate.dev/v1alpha1",
        ),
        (
            "apiVersion: config.headgate.dev/v2\nkind: HeadgateConfiguration\n",
            "apiVersion: \"config.headgate.dev/v2\" is not allowed; allowed: config.headgate.dev/v1alpha1",
        ),
        (
            "apiVersion: config.headgate.dev/v1alpha1\nkind: [a]\n",
            "kind: a list is not allowed; allowed: HeadgateConfiguration",
        ),
        (
            "apiVersion:\nkind: HeadgateConfiguration\n",
            "apiVersion: nothing is not allowed; allowed: ",
        ),
    ] {
        let lines = lines(whole(text));
        assert!(
            lines.len() == 1 && lines[0].starts_with(&format!("f.yaml: {wanted}")),
            "{text}: {lines:?}"
        );
    }
}

#[test]
fn a_file_without_version_and_kind_is_a_mistake() {
    for text in ["", "# nothing\n", "stateDir: /a\n"] {
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
    let text = "azure: {configFile: null, configSecret: ~}\ntelemetry: {otlpEndpoint: }\nlogging: {filter: }\n";
    assert_eq!(from(text), Ok(Settings::default()));
    let lines = lines(from("stateDir:\nnode:\n"));
    assert!(
        lines[0].starts_with("f.yaml: stateDir: nothing is not allowed; allowed: an absolute path"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("f.yaml: node: nothing is not allowed; allowed: a section with healthzBindAddress, "),
        "{lines:?}"
    );
}

#[test]
fn conflicts_name_a_key_that_the_file_may_not_have() {
    let key = |text: &str| from(text).unwrap_err().0[0].key.clone();
    let present = "node: {markerProbes: 2}\nmarker: {mode: adminState}\n";
    assert_eq!(key(present).as_deref(), Some("node.markerProbes"));
    let not_in_the_file = "node: {healthzBindAddress: '[::]:10256'}\n";
    assert_eq!(key(not_in_the_file).as_deref(), Some("node.proxy.healthzUrl"));
}

#[test]
fn every_path_is_of_one_key() {
    let mut paths: Vec<_> = keys().map(|key| key.path).collect();
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count);
}
