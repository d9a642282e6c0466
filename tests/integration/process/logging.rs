//! What a process logs by its settings, and what it says of former spellings.

use serde_json::Value;

use super::{headgate, settings_file};

/// What an agent writes to standard error that cannot reach its cluster.
fn log(settings: &str) -> String {
    let file = settings_file(settings);
    let arguments = [
        "agent",
        "--node-name",
        "n",
        "--kubeconfig",
        "/does/not/exist",
        "--config",
    ];
    let output = headgate(&[&arguments[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn logging_settings_choose_format_and_levels() {
    let text = log("logging: {format: text}\nshutdownDelay: 1s\n");
    assert!(
        text.contains(" WARN ") && text.contains("shutdownDelay: is now node.shutdownDelay"),
        "{text}"
    );
    for settings in ["shutdownDelay: 1s\n", "logging: {format: json}\nshutdownDelay: 1s\n"] {
        let text = log(settings);
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(first["level"], "WARN", "{text}");
        assert!(
            first["notice"].as_str().unwrap().contains("has no apiVersion and kind"),
            "{text}"
        );
    }
    let text = log("logging: {format: text, filter: error}\nshutdownDelay: 1s\n");
    assert!(!text.contains("WARN"), "{text}");
}

#[test]
fn check_config_warns_of_former_spellings_on_standard_error() {
    let file = settings_file("proxy: {pollInterval: 2s}\nazure: {configFile: none}\n");
    let output = headgate(&["agent", "--check-config", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    let path = file.display();
    for part in [
        format!("warning: {path}: has no apiVersion and kind"),
        format!("warning: {path}: proxy.pollInterval: is now node.proxy.pollInterval; "),
        format!("warning: {path}: azure.configFile: none is now null; "),
    ] {
        assert!(said.contains(&part), "{part:?} in {said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
    let again = settings_file(&String::from_utf8(output.stdout).unwrap());
    let output = headgate(&["agent", "--check-config", "--config", again.to_str().unwrap()]);
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]));
}

#[test]
fn a_controller_that_may_not_lead_is_a_mistake() {
    let file = settings_file(
        "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nleaderElection: {leaderElect: false}\n",
    );
    let file = file.to_str().unwrap();
    for (role, code) in [("controller", 2), ("all", 0), ("agent", 0)] {
        let output = headgate(&["agent", "--check-config", "--role", role, "--config", file]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{role}: {said}");
        let wanted =
            "--role=controller: leaderElection.leaderElect: \"false\" leaves nothing to be done; allowed: true";
        assert_eq!(said.contains(wanted), code == 2, "{said}");
    }
}
