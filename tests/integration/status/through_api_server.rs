//! `headgate status` and `why` from a machine that reaches the API server only, with the rights of the documentation.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::{eventually, kubectl, met, own_cluster, scratch};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::network::in_network_namespace;
use crate::harness::{headgate, objects, stdout_of, succeed};
use crate::node::with_token;

/// An address that the API server proxies to; it refuses those of loopback.
const AGENT: &str = "10.99.0.1";
/// An address that no route leads to.
const UNREACHABLE: &str = "192.0.2.9";

/// The rights that docs/guides/troubleshooting.md refers to.
pub(super) fn documented_rights() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/viewer.yaml")).unwrap()
}

async fn create_cluster(client: &Client, kubeconfig: &Path) {
    let nodes = Api::<Node>::all(client.clone());
    // Cordoned, so that `why` says it where maintenances are not known.
    let node = json!({"metadata": {"name": "far"}, "spec": {"unschedulable": true}});
    objects::create(&nodes, node).await;
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": UNREACHABLE}]}});
    objects::merge_status(&nodes, "far", address).await;
    succeed(kubectl(kubeconfig).args(["-n", "kube-system", "create", "serviceaccount", "headgate"]));
    succeed(kubectl(kubeconfig).args(["-n", "kube-system", "create", "serviceaccount", "viewer"]));
    let agent = ["headgate-x", "agent", env!("CARGO_PKG_VERSION")];
    objects::create_headgate_pod(client, agent, "far", AGENT).await;
}

fn verdict(kubeconfig: &Path, via: &str) -> Value {
    let output = headgate(kubeconfig, &["status", "far", "-o", "json", "--agents-via", via]);
    let report: Value = serde_json::from_str(&stdout_of(output)).unwrap();
    report["nodes"][0]["verdict"].clone()
}

#[test]
#[ignore = "needs network namespaces"]
fn agents_answer_through_the_api_server() {
    in_network_namespace(
        "status::through_api_server::agents_answer_through_the_api_server",
        async || {
            succeed(Command::new("ip").args(["addr", "add", &format!("{AGENT}/32"), "dev", "lo"]));
            let (control_plane, client) = own_cluster().await;
            let administrator = control_plane.kubeconfig();
            create_cluster(&client, administrator).await;
            let directory = scratch("far-agent");
            let mut command = command_in(env!("CARGO_BIN_EXE_headgate"), &directory);
            let (healthz, metrics) = (format!("{AGENT}:10456"), format!("{AGENT}:10457"));
            command.args(["agent", "--node-name=far", "--healthz-bind-address", &healthz]);
            command
                .args(["--metrics-bind-address", &metrics, "--state-dir"])
                .arg(&directory);
            command.arg("--kubeconfig").arg(administrator);
            let agent = Process::start("agent", command, &directory.join("agent.log")).unwrap();
            eventually(
                Duration::from_secs(30),
                "the agent answers through the API server",
                async || match verdict(administrator, "api-server") {
                    // The port waits for kube-proxy, which does not run here.
                    answered if answered["healthz"] == 200 => Ok(()),
                    other => Err(other.to_string()),
                },
            )
            .await;
            // A user with the documented rights, and none besides.
            let rights = directory.join("rights.yaml");
            std::fs::write(&rights, documented_rights()).unwrap();
            succeed(kubectl(administrator).args(["apply", "-f"]).arg(&rights));
            let token = succeed(kubectl(administrator).args(["-n", "kube-system", "create", "token", "viewer"]));
            let viewer = with_token(administrator, token.trim());
            let found = verdict(&viewer, "auto");
            assert_eq!(
                (&found["asked"], &found["healthz"]),
                (&json!(true), &json!(200)),
                "{found}"
            );
            let direct = verdict(&viewer, "direct");
            assert_eq!(direct["asked"], false, "{direct}");
            assert!(direct["why"].as_str().unwrap().contains(UNREACHABLE), "{direct}");
            let mut why = Command::new(env!("CARGO_BIN_EXE_headgate"));
            let explained = succeed(why.args(["why", "far", "-o", "yaml", "--kubeconfig"]).arg(&viewer));
            let explained: Value = serde_yaml::from_str(&explained).unwrap();
            assert_eq!(explained["sent"], "yes", "{explained}");
            let text = stdout_of(headgate(&viewer, &["why", "far"]));
            assert!(!text.contains("not known"), "{text}");
            // Without the right to list pods, both failures are named.
            succeed(kubectl(administrator).args(["-n", "kube-system", "delete", "rolebinding", "headgate-viewer"]));
            eventually(Duration::from_secs(30), "the right is gone", async || {
                let refused = verdict(&viewer, "auto");
                let why = refused["why"].as_str().unwrap_or_default().to_owned();
                let both = why.contains(UNREACHABLE)
                    && why.contains("through the API server: the pods of kube-system cannot be listed");
                met(refused["asked"] == false && both, refused)
            })
            .await;
            agent.stop(Duration::from_secs(5)).await;
            control_plane.stop().await;
        },
    );
}
