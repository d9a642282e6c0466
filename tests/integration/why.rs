//! `headgate why NODE` with a real agent and the real API server; also as a kubectl plugin.

use std::process::{Command, Output};
use std::time::Duration;

use headgate_test_kubernetes::{assets, control_plane, create_node, eventually, met, patch_node, scratch};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::AgentOptions;

const SOON: Duration = Duration::from_mins(1);

fn why(node: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .args(["why", node])
        .arg("--kubeconfig")
        .arg(&control_plane().kubeconfig)
        .args(more);
    command.output().unwrap()
}

fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn why_explains_a_taint_until_it_is_removed() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "why").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let statusz = format!("http://{}/statusz", agent.metrics_address());
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    assert!(
        text.starts_with(&format!("{node}: /healthz answers 200, since ")),
        "{text}"
    );

    let taint =
        json!({"spec": {"unschedulable": true, "taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}});
    patch_node(&client, &node, taint).await;
    eventually(SOON, "503", async || {
        let answer = agent.healthz().await;
        met(answer.status == 503, answer.text())
    })
    .await;
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    for part in [
        "/healthz answers 503, since ",
        "karpenter.sh/disrupted, since ",
        "Karpenter is about to replace or remove the node.",
        &format!("kubectl taint node {node} karpenter.sh/disrupted-"),
        "The node is cordoned. That keeps new Pods away, not traffic.",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let json: Value = serde_json::from_str(&stdout_of(why(&node, &["--statusz", &statusz, "-o", "json"]))).unwrap();
    assert_eq!(
        (&json["sent"], &json["reasons"][0]["name"]),
        (&json!("no"), &json!("karpenter.sh/disrupted"))
    );

    // Without its agent, only the Node object explains the state.
    agent.kill().await;
    let text = stdout_of(why(&node, &["--statusz", &statusz]));
    assert!(
        text.contains("karpenter.sh/disrupted\n") && text.contains("its agent did not answer"),
        "{text}"
    );
}

#[tokio::test]
async fn why_runs_as_a_kubectl_plugin() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "plugin").await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let plugins = scratch("plugins");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_headgate"), plugins.join("kubectl-headgate")).unwrap();
    let mut command = Command::new(assets().program("kubectl").unwrap());
    command.args([
        "headgate",
        "why",
        &node,
        "--statusz",
        &format!("http://{}/statusz", agent.metrics_address()),
    ]);
    command.env("KUBECONFIG", &cluster.kubeconfig);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", plugins.display()));
    let text = stdout_of(command.output().unwrap());
    assert!(text.contains("sends new connections"), "{text}");
}

#[test]
fn unavailable_sources_are_reported() {
    let output = why("no-such-node", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no Node \"no-such-node\""));
    let output = why("n", &["--statusz", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Answers every request with a status.
async fn serve_statusz(status: Value) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/statusz", listener.local_addr().unwrap());
    let body = status.to_string();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    tokio::spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && peer.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            peer.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_anyone_cannot_control_the_terminal() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "terminal").await;
    let hostile = "a\n\r\u{1b}[2J\u{9b}2J\u{202e}b; reboot #";
    let statusz = serve_statusz(json!({"version": hostile,
        "node": {"name": node, "source": "watch", "signals": [{"signal": hostile, "since": null}],
            "watchError": {"error": hostile, "since": "2026-01-02T03:04:05Z"}},
        "healthz": {"code": 503, "since": null}, "livez": {"code": 503, "since": null},
        "proxy": {"server": hostile, "healthy": false, "lastUpdated": null}, "listeners": {"healthz": hostile}}))
    .await;
    let is_harmless = |text: &str| {
        text.chars()
            .all(|c| c == '\n' || !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c))
    };
    let run = async |more: &'static [&'static str]| {
        let (node, statusz) = (node.clone(), statusz.clone());
        let run = move || why(&node, &[&["--statusz", statusz.as_str()], more].concat());
        stdout_of(tokio::task::spawn_blocking(run).await.unwrap())
    };
    let text = run(&[]).await;
    assert!(is_harmless(&text), "{text:?}");
    assert!(
        text.contains("  a\\n\\r\\u{1b}[2J\\u{9b}2J\\u{202e}b; reboot #\n"),
        "{text}"
    );
    assert!(!text.contains("kubectl taint"), "{text}");
    let json = run(&["-o", "json"]).await;
    assert!(is_harmless(&json), "{json:?}");
    let parsed: Value = serde_json::from_str(&json).unwrap();
    let names = parsed["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reason| &reason["name"]);
    assert!(names.into_iter().any(|name| name == hostile), "{json}");

    // The name of another node is in an error.
    let other = serve_statusz(
        json!({"version": "", "node": {"name": hostile, "source": "watch", "signals": []},
        "healthz": {"code": 200, "since": null}, "livez": {"code": 200, "since": null},
        "proxy": {"server": null, "healthy": true, "lastUpdated": null}}),
    )
    .await;
    let run = move || why(&node, &["--statusz", &other]);
    let text = stdout_of(tokio::task::spawn_blocking(run).await.unwrap());
    assert!(is_harmless(&text) && text.contains("is the agent of "), "{text:?}");
}
