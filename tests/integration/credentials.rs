//! What a kubeconfig says of the caller: an exec credential program may fail or hang without delay of `/healthz`; an impersonated
//! user is the one who asks; writes carry the program's name; requests take its proxy.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headgate_kubernetes::api_server::{Program, build_client, load_config};
use headgate_test_kubernetes::{control_plane, create_node, eventually, scratch, set_taints};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::harness::{AgentOptions, headgate, http};

/// For an answer, and for the end.
const PATIENCE: Duration = Duration::from_secs(25);
const SOON: Duration = Duration::from_secs(30);

/// The kubeconfig with this shell script as its credential program.
fn with_program(kubeconfig: &Path, script: &str) -> PathBuf {
    let program = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        "interactiveMode": "Never"});
    with_user(kubeconfig, |user| {
        *user = serde_yaml::to_value(json!({"exec": program})).unwrap();
    })
}

/// The kubeconfig with its user changed.
fn with_user(kubeconfig: &Path, change: impl FnOnce(&mut serde_yaml::Value)) -> PathBuf {
    changed(kubeconfig, |file| change(&mut file["users"][0]["user"]))
}

fn changed(kubeconfig: &Path, change: impl FnOnce(&mut serde_yaml::Value)) -> PathBuf {
    let mut file: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
    change(&mut file);
    let path = scratch("kubeconfig").join("kubeconfig");
    std::fs::write(&path, serde_yaml::to_string(&file).unwrap()).unwrap();
    path
}

#[tokio::test]
async fn a_hanging_credential_program_delays_nothing_else() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "program-hangs").await;
    let kubeconfig = with_program(&cluster.kubeconfig, "exec sleep 90");
    // The program runs for longer than all three together: the start is given up after 30 s.
    let agent = AgentOptions::new(&node, &kubeconfig).start().await;
    let answer = timeout(PATIENCE, agent.healthz()).await.unwrap();
    assert_eq!((answer.status, answer.json()["source"].clone()), (200, json!("none")));
    assert!(agent.stop(PATIENCE).await.success(), "nor the end");
}

#[tokio::test]
async fn a_failed_credential_program_is_retried() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "program-fails").await;
    let file: serde_yaml::Value = serde_yaml::from_slice(&std::fs::read(&cluster.kubeconfig).unwrap()).unwrap();
    let token = file["users"][0]["user"]["token"].as_str().unwrap();
    let credentials = scratch("program").join("credentials");
    let script = format!("LC_ALL=C cat {}", credentials.display());
    let agent = AgentOptions::new(&node, &with_program(&cluster.kubeconfig, &script))
        .start()
        .await;
    assert_eq!(agent.healthz().await.json()["source"], "none");
    eventually(SOON, "its failure is logged", async || {
        let log = agent.log();
        let is_logged = log.contains("watch failed") && log.contains("No such file");
        is_logged.then_some(()).ok_or(log)
    })
    .await;

    let found =
        json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}});
    std::fs::write(&credentials, found.to_string()).unwrap();
    let taint = json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]);
    set_taints(&client, &node, taint).await;
    let is_seen = |answer: &http::Response| {
        let body = answer.json();
        body["signals"] == json!(["karpenter.sh/disrupted"]) && body["source"] == "watch"
    };
    agent.healthz_becomes(2 * SOON, "the taint is seen", is_seen).await;
}

#[tokio::test]
async fn an_impersonated_user_is_the_one_who_asks() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "impersonated").await;
    let why = |kubeconfig: &Path| headgate(kubeconfig, &["why", &node]);
    let administrator = why(&cluster.kubeconfig);
    assert!(administrator.status.success(), "{administrator:?}");
    let restricted = why(&with_user(&cluster.kubeconfig, |user| user["as"] = "drain-bot".into()));
    let error = String::from_utf8_lossy(&restricted.stderr);
    assert!(!restricted.status.success(), "{restricted:?}");
    assert!(error.contains("drain-bot"), "{error}");
}

#[tokio::test]
async fn a_write_names_the_program_as_its_field_manager() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "manager").await;
    let config = load_config(Some(&cluster.kubeconfig)).await.unwrap();
    for (program, manager) in [
        (Program::Agent, "headgate-agent"),
        (Program::Controller, "headgate-controller"),
        (Program::Cli, "headgate-cli"),
        (Program::Sandbox, "headgate-sandbox"),
    ] {
        let nodes = Api::<Node>::all(build_client(&config, program).unwrap());
        let key = format!("headgate.dev/{manager}");
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: "1"}}}));
        let written = nodes.patch(&node, &PatchParams::default(), &patch).await.unwrap();
        let entries = written.metadata.managed_fields.unwrap_or_default();
        let managers: Vec<_> = entries.iter().filter_map(|entry| entry.manager.as_deref()).collect();
        assert!(managers.contains(&manager), "{managers:?}");
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_an_error_and_one_that_is_not_there_is_left_out() {
    let directory = scratch("kubeconfigs");
    let (broken, missing) = (directory.join("broken"), directory.join("missing"));
    std::fs::write(&broken, "a: [").unwrap();
    let version = |files: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.env("KUBECONFIG", std::env::join_paths(files).unwrap());
        let output = command.arg("version").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let kubeconfig = &*control_plane().kubeconfig;
    for files in [&[&*broken][..], &[&*broken, kubeconfig], &[kubeconfig, &*broken]] {
        let (code, error) = version(files);
        let is_named = error.contains(&format!("the kubeconfig {} cannot be used", broken.display()));
        assert!(
            code == Some(3) && is_named && !error.contains("Pod"),
            "{code:?} {error}"
        );
    }
    for files in [[&*missing, kubeconfig], [kubeconfig, &*missing]] {
        assert_eq!(version(&files), (Some(0), String::new()));
    }
    let (code, error) = version(&[&*missing]);
    assert!(code == Some(3) && error.contains("this is no Pod"), "{code:?} {error}");
}

/// A proxy that opens tunnels. Returns its address, and how many it has opened.
async fn tunnels() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut lines = Vec::new();
                while lines.last().is_none_or(|line| line != "\r\n") {
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    lines.push(line);
                }
                let target = lines[0].strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap();
                let mut server = TcpStream::connect(target).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    (address, opened)
}

#[tokio::test]
async fn requests_take_the_proxy_of_the_kubeconfig() {
    let cluster = control_plane();
    let (proxy, opened) = tunnels().await;
    let status = async |kubeconfig: &Path, environment: &[(&str, String)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        for name in [
            "HTTPS_PROXY",
            "https_proxy",
            "NO_PROXY",
            "no_proxy",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
            .args(["status", "--no-agents", "-o", "json", "--kubeconfig"])
            .arg(kubeconfig);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let of_environment = [("HTTPS_PROXY", format!("http://{proxy}"))];
    let (succeeded, errors) = status(&cluster.kubeconfig, &of_environment).await;
    assert!(succeeded, "{errors}");
    assert_eq!(opened.load(Ordering::Relaxed), 0, "this machine is reached directly");

    let with_proxy = |url: String| {
        changed(&cluster.kubeconfig, |file| {
            file["clusters"][0]["cluster"]["proxy-url"] = url.into();
        })
    };
    let (succeeded, errors) = status(&with_proxy(format!("http://{proxy}")), &[]).await;
    assert!(succeeded, "{errors}");
    assert!(opened.load(Ordering::Relaxed) > 0);

    let (succeeded, errors) = status(&with_proxy(format!("socks5://user:password@{proxy}")), &[]).await;
    assert!(
        !succeeded && errors.contains("proxy socks5://127.0.0.1, which cannot be used"),
        "{errors}"
    );
    assert!(!errors.contains("password"), "{errors}");
}
