//! What `headgate status` learns from a leader without load balancers.

use std::path::Path;
use std::process::Command;

use headgate_test_kubernetes::{assert_contains, eventually, kubectl, own_cluster};
use kube::Client;

use super::{Controller, SOON, apply_kinds, populate};
use crate::harness::network::in_network_namespace;
use crate::harness::{headgate, objects, refused, stdout_of, succeed};

const SETTINGS: &str = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\nmaintenance: {enabled: true}\n";

/// The address of the controller's pod; the API server sends no request to one of loopback.
const POD: &str = "10.99.0.1";

/// The Pod of the controller, which runs on node-2.
async fn create_pod(client: &Client, kubeconfig: &Path) {
    succeed(kubectl(kubeconfig).args(["-n", "kube-system", "create", "serviceaccount", "headgate"]));
    let controller = ["headgate-controller-x", "controller", env!("CARGO_PKG_VERSION")];
    objects::create_headgate_pod(client, controller, "node-2", POD).await;
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
            let words = "load balancers are not known: give --azure-config-file";
            refused(&asked, 1, &[words]);
            // Nobody leads, and nobody says what the next leader has.
            controller.ends().await;
            refused(&status(&["--exit-code"]), 1, &["no leader is alive"]);
            control_plane.stop().await;
        },
    );
}
