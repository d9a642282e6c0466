//! The process from outside: exit codes, mistakes in settings, ports in use, probes,
//! metrics, and signals.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use headgate_test_kubernetes::{assert_contains, assets, control_plane, create_node, eventually, met, scratch};
use serde_json::{Value, json};

use crate::harness::{self, AgentOptions, SOON, http, refused, refused_for};

mod logging;
mod ports;
mod signals;

fn headgate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .args(arguments)
        .env_remove("NODE_NAME")
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null());
    command.output().unwrap()
}

fn settings_file(settings: &str) -> PathBuf {
    let path = scratch("settings").join("settings.yaml");
    std::fs::write(&path, harness::settings_file(settings)).unwrap();
    path
}

#[test]
fn every_mistake_is_reported_at_once_with_exit_code_2() {
    let file = settings_file("delayTermination: {clusterAutoscaler: soon}\noutOfLoadBalancers: {failedProbs: 5}\n");
    let file = file.to_str().unwrap();
    for check in [&["--check-config"][..], &[]] {
        let mut arguments = vec![
            "agent",
            "--node-name",
            "n",
            "--config",
            file,
            "--metrics-bind-address",
            "nowhere",
        ];
        arguments.extend(check);
        let said = refused_for(&check, &headgate(&arguments), 2, &[]);
        assert_contains!(
            said,
            "3 mistakes in the settings",
            &format!(
                "{file}:3: delayTermination.clusterAutoscaler: \"soon\" is not allowed; allowed: null, or a duration"
            ),
            &format!(
                "{file}:4: outOfLoadBalancers.failedProbs: did you mean outOfLoadBalancers.failedProbes? This key is not known (value: the number 5)"
            ),
            "--metrics-bind-address: metricsBindAddress: \"nowhere\" is not allowed; allowed: an IP address"
        );
    }
}

#[test]
fn every_mistake_in_azure_json_is_reported_at_once_with_exit_code_2() {
    let file = scratch("azure").join("azure.json");
    std::fs::write(
        &file,
        r#"{"resourceGroup": "a/b", "aadClientSecret": "hunter2", "useManagedIdentityExtension": "perhaps"}"#,
    )
    .unwrap();
    let flag = format!("--azure-config-file={}", file.display());
    for more in [&["--check-config"][..], &[], &["--role=controller"]] {
        let output = headgate(&[&["agent", "--node-name", "n", &flag], more].concat());
        let key = "useManagedIdentityExtension: \"perhaps\" is not allowed; allowed: true or false";
        let said = refused_for(&more, &output, 2, &[&format!("{}:1: {key}", file.display())]);
        assert!(!said.contains("hunter2"), "{said}");
    }
    std::fs::write(
        &file,
        r#"{"resourceGroup": "a/b", "useManagedIdentityExtension": true}"#,
    )
    .unwrap();
    for (more, code) in [(&["--check-config"][..], 2), (&["--role=agent", "--check-config"], 0)] {
        let output = headgate(&[&["agent", &flag], more].concat());
        let said = refused_for(&more, &output, code, &[]);
        for part in [
            "2 mistakes",
            ": subscriptionId: is missing; allowed: ",
            ":1: resourceGroup: \"a/b\" is not allowed; allowed: ",
        ] {
            assert_eq!(said.contains(part), code == 2, "{part:?} in {said}");
        }
    }
    let output = headgate(&[
        "agent",
        "--check-config",
        "--azure-config-file=/does/not/exist/azure.json",
    ]);
    refused(&output, 2, &[]);
    let output = headgate(&["agent", "--check-config", "--role=controller"]);
    let words = "--role=controller: azure.configSecret: null leaves nothing";
    refused(&output, 2, &[words]);
}

#[test]
fn check_config_prints_the_settings_in_effect() {
    let file = settings_file("logFormat: Text\nmetricsBindAddress: 127.0.0.1:1\n");
    let output = headgate(&[
        "agent",
        "--config",
        file.to_str().unwrap(),
        "--metrics-bind-address",
        "127.0.0.1:2",
        "--check-config",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_yaml::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&printed["logFormat"], &printed["metricsBindAddress"]),
        (&json!("Text"), &json!("127.0.0.1:2"))
    );
    assert_eq!(printed["signals"], json!({"disabled": [], "extra": []}));
}

#[test]
fn wrong_arguments_and_a_missing_cluster_exit_with_2() {
    for (arguments, part) in [
        (&["agent"][..], "--node-name"),
        (&["agent", "--node-name", "n", "--nonsense"], "--nonsense"),
        (&["agent", "--node-name", "n"], "no Pod service account was found"),
        (
            &["agent", "--node-name", "n", "--kubeconfig", "/does/not/exist"],
            "/does/not/exist cannot be used",
        ),
        (
            &["agent", "--node-name", "", "--kubeconfig", "/does/not/exist"],
            "allowed: the name of a Node",
        ),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        refused_for(&arguments, &headgate(arguments), 2, &[part]);
    }
}

#[test]
fn help_completions_and_man_page_are_printed() {
    for (arguments, part) in [
        (&["--help"][..], "agent"),
        (&["agent", "--help"], "--healthz-bind-address"),
        (&["completions", "bash"], "_headgate"),
        (&["completions", "zsh"], "#compdef headgate"),
        (&["completions", "fish"], "complete -c headgate"),
        (&["man"], r"\-\-healthz\-bind\-address"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let output = headgate(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(
            String::from_utf8(output.stdout).unwrap().contains(part),
            "{arguments:?}"
        );
    }
}

fn promlint(text: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(assets().program("promlint").unwrap());
    let mut child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn metrics_pass_promtool_and_count_every_request() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "metrics").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    for (path, times) in [("/healthz", 3), ("/livez", 2), ("/", 4)] {
        for _ in 0..times {
            http::get(agent.healthz_address(), path).await.unwrap();
        }
    }
    let text = agent.metrics().await;
    for line in [
        "proxy_healthz_total{code=\"200\"} 3",
        "proxy_healthz_total{code=\"503\"} 0",
        "proxy_livez_total{code=\"200\"} 2",
        "proxy_livez_total{code=\"503\"} 0",
        "headgate_listener_bound{listener=\"healthz\"} 1",
        "headgate_healthy{path=\"healthz\"} 1",
        "headgate_leader_expected 0",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    let (good, said) = promlint(&text, &[]);
    assert!(good, "{said}");
    let request = |accept: &str| format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    let open = http::exchange(
        agent.metrics_address(),
        request("application/openmetrics-text").as_bytes(),
    )
    .await
    .unwrap();
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(open.text().ends_with("# EOF\n"));
    let plain = http::exchange(agent.metrics_address(), request("text/plain").as_bytes())
        .await
        .unwrap();
    assert_eq!(
        plain.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let (good, said) = promlint("a b c d\n", &["--lint=off"]);
    assert!(!good, "the judge can say no: {said}");
}

#[tokio::test]
async fn headgate_probe_queries_its_own_process() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "probe").await;
    // Longer than a Unix socket's path may be.
    let options = AgentOptions::new(&node, &cluster.kubeconfig).in_subdirectory(&"d".repeat(120));
    let state_dir = options.directory().to_str().unwrap().to_owned();
    let probe = |question: &str| headgate(&["probe", question, "--state-dir", &state_dir]).status.code();
    assert_eq!(probe("livez"), Some(1), "no process serves the probe socket");
    let agent = options.start().await;
    let ready = || async { met(probe("readyz") == Some(0), "not ready") };
    eventually(SOON, "ready", ready).await;
    assert_eq!(probe("livez"), Some(0));
    assert!(Path::new(&state_dir).join("headgate.sock").exists());
    assert!(agent.stop(SOON).await.success());
    assert!(!Path::new(&state_dir).join("headgate.sock").exists());
    assert_eq!(probe("readyz"), Some(1));
    assert_eq!(
        headgate(&["probe", "healthz"]).status.code(),
        Some(2),
        "there is no such question"
    );
}

#[tokio::test]
async fn statusz_is_served_as_text_and_json() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "statusz").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let text = http::get(agent.metrics_address(), "/statusz").await.unwrap().text();
    assert_contains!(
        text,
        &format!("on node {node}"),
        "/healthz   200 since",
        "node-watch",
        "health-thread",
        "kube-proxy not polled"
    );
    let status = async |path| http::get(agent.metrics_address(), path).await.unwrap().status;
    assert_eq!(status("/livez").await, 200);
    // Not before the API server's first answer, for which the ports do not wait longer than 5 s.
    eventually(SOON, "ready", async || {
        let status = status("/readyz").await;
        met(status == 200, status)
    })
    .await;
    assert_eq!(status("/healthz").await, 404);
}
