//! Ports that are in use, and the addresses file.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use headgate_test_kubernetes::{assert_contains, control_plane, create_node, eventually, scratch};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{SOON, settings_file};
use crate::harness::{AgentOptions, http, own_address};

/// Starts an agent whose health port is taken, without waiting for it to be bound.
fn with_taken_port(
    node: &str,
    kubeconfig: &Path,
    taken: SocketAddr,
    more: &[&str],
    addresses: Option<&Path>,
) -> (std::process::Child, PathBuf) {
    let directory = scratch("taken");
    let settings = settings_file("kubeProxyHealthzUrl: Disabled\nmetricsBindAddress: 127.0.0.1:0\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .arg("agent")
        .args(["--node-name", node])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--config")
        .arg(settings);
    command
        .arg("--state-dir")
        .arg(&directory)
        .arg("--addresses-file")
        .arg(addresses.map_or_else(|| directory.join("addresses.json"), Path::to_owned));
    command.arg("--healthz-bind-address").arg(taken.to_string()).args(more);
    command
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(directory.join("log")).unwrap());
    (command.spawn().unwrap(), directory)
}

#[tokio::test]
async fn a_port_in_use_is_retried_and_reported_as_a_node_event() {
    let cluster = control_plane();
    let client = cluster.client();
    let node = create_node(&client, "taken").await;
    let address = own_address();
    let stranger = TcpListener::bind(address).unwrap();
    let (mut child, directory) = with_taken_port(&node, &cluster.kubeconfig, address, &[], None);
    let events = Api::<Event>::namespaced(client, "default");
    let selector = ListParams::default().fields(&format!("involvedObject.kind=Node,involvedObject.name={node}"));
    let event = eventually(SOON, "an event on the Node", async || {
        events
            .list(&selector)
            .await
            .unwrap()
            .items
            .pop()
            .ok_or_else(|| "none".to_owned())
    })
    .await;
    assert_eq!(
        (event.type_.as_deref(), event.reason.as_deref()),
        (Some("Warning"), Some("FailedToStartHealthServer"))
    );
    let said = event.message.unwrap();
    assert!(
        said.contains(&address.to_string()) && said.contains("Address already in use"),
        "{said}"
    );
    assert_eq!(child.try_wait().unwrap(), None);
    drop(stranger);
    eventually(SOON, "it binds once the port is free", async || {
        http::get(address, "/healthz")
            .await
            .map(|answer| assert_eq!(answer.status, 200))
            .map_err(|e| e.to_string())
    })
    .await;
    eventually(SOON, "the addresses file", async || {
        std::fs::read_to_string(directory.join("addresses.json"))
            .map_err(|error| error.to_string())
            .map(|text| {
                let addresses: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(addresses["healthz"], address.to_string());
                assert!(addresses["metrics"].as_str().unwrap().starts_with("127.0.0.1:"));
            })
    })
    .await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    assert!(
        tokio::task::spawn_blocking(move || child.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn bind_address_hard_fail_exits_with_1_and_names_the_cause() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "hard").await;
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    let hard = ["--bind-address-hard-fail"];
    let (mut child, directory) = with_taken_port(&node, &cluster.kubeconfig, address, &hard, None);
    let status = tokio::task::spawn_blocking(move || child.wait())
        .await
        .unwrap()
        .unwrap();
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert_contains!(log, format!("{address} cannot be bound: Address already in use"));
}

#[tokio::test]
async fn the_addresses_file_exists_while_the_ports_are_bound() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "addresses").await;
    let options = AgentOptions::new(&node, &cluster.kubeconfig);
    let file = options.directory().join("addresses.json");
    let litter = options.directory().join(".addresses-x1y2z3");
    std::fs::write(&litter, "{").unwrap();
    let agent = options.start().await;
    assert!(!litter.exists(), "what a killed process left is removed");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert!(agent.stop(SOON).await.success());
    assert!(!file.exists(), "no process answers at the address any more");

    // The file of a killed process is removed before anything is bound.
    options.start().await.kill().await;
    assert!(file.exists());
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = stranger.local_addr().unwrap();
    let (mut child, directory) = with_taken_port(&node, &cluster.kubeconfig, taken, &[], Some(&file));
    eventually(SOON, "the old addresses are gone", async || {
        if file.exists() {
            Err(std::fs::read_to_string(directory.join("log")).unwrap())
        } else {
            Ok(())
        }
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn an_unwritable_addresses_file_ends_the_process_at_start() {
    let cluster = control_plane();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = stranger.local_addr().unwrap();
    let file = scratch("nowhere").join("missing/addresses.json");
    let (mut child, directory) = with_taken_port("n", &cluster.kubeconfig, taken, &[], Some(&file));
    let status = tokio::task::spawn_blocking(move || child.wait())
        .await
        .unwrap()
        .unwrap();
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    let said = format!("the addresses file {} cannot be written: No such file", file.display());
    assert!(log.contains(&said), "{log}");
}
