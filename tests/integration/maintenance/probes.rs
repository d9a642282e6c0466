//! What `headgate status` learns from a leader without load balancers.

use std::path::Path;
use std::process::Command;

use headgate_test_kubernetes::{assert_contains, eventually, kubectl, own_cluster};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{Controller, SOON, apply_kinds, populate};
use crate::harness::network::in_network_namespace;
use crate::harness::{headgate, stdout_of, succeed};

const SETTINGS: &str = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\nmaintenance: {enabled: true}\n";

/// The address of the controller's pod; the API server sends no request to one of loopback.
const POD: &str = "10.99.0.1";

/// The Pod of the controller, which runs on node-2.
async fn create_pod(client: &Client, kubeconfig: &Path) {
    succeed(kubectl(kubeconfig).args(["-n", "kube-system", "create", "serviceaccount", "headgate"]));
    let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": "controller"});
    let pod = json!({"metadata": {"name": "headgate-controller-x", "labels": labels},
        "spec": {"nodeName": "node-2", "hostNetwork": true, "serviceAccountName": "headgate", "automountServiceAccountToken": false,
            "containers": [{"name": "headgate", "image": "headgate"}]}});
    let pods = Api::<Pod>::namespaced(client.clone(), "kube-system");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
        .await
        .unwrap();
    let status = json!({"status": {"phase": "Running", "podIP": POD, "podIPs": [{"ip": POD}], "hostIP": POD}});
    pods.patch_status("headgate-controller-x", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

#[test]
#[ignore = "needs network namespaces"]
fn all_is_settled_where_the_leader_has_no_load_balancers() {
    in_network_namespace(
        "maintenance::probes::all_is_settled_where_the_leader_has_no_load_balancers",
        async || {
            succeed(Command::new("ip").args(["addr", "add", &format!("{POD}/32"), "dev", "lo"]));
            let (control_plane, client) = own_cluster().await;
            let kubeconfig = control_plane.kubeconfig();
            apply_kinds(&control_plane, &client).await;
            populate(&client).await;
            create_pod(&client, kubeconfig).await;
            let metrics = format!("{POD}:10457");
            let controller =
                Controller::start_with(SETTINGS, &[("--metrics-bind-address", Path::new(&metrics))], kubeconfig);
            let status = |flags: &[&str]| headgate(kubeconfig, &[&["status", "--no-agents"], flags].concat());
            let text = eventually(SOON, "it leads", async || {
                let text = stdout_of(status(&[]));
                if text.contains("Leader:        node-2_") && !text.contains("the leader does not serve it") {
                    Ok(text)
                } else {
                    Err(text)
                }
            })
            .await;
            assert_contains!(text, "Azure:         not queried: the leader has no load balancers\n");
            stdout_of(status(&["--exit-code"]));
            stdout_of(status(&["--wait", "--timeout=30s"]));
            // Whoever names a configuration of Azure wants to know what is there.
            let asked = status(&["--exit-code", "--cluster-name=kubernetes"]);
            let errors = String::from_utf8(asked.stderr).unwrap();
            assert_eq!(asked.status.code(), Some(1), "{errors}");
            assert_contains!(errors, "load balancers are not known: give --azure-config-file");
            // Nobody leads, and nobody says what the next leader has.
            controller.ends().await;
            let left = status(&["--exit-code"]);
            let errors = String::from_utf8(left.stderr).unwrap();
            assert_eq!(left.status.code(), Some(1), "{errors}");
            assert_contains!(errors, "no leader is alive");
            control_plane.stop().await;
        },
    );
}
