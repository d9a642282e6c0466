//! `headgate sysdump`: what is in the archive, and that no planted secret is.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use headgate_test_kubernetes::{assert_contains, scratch};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::Api;
use serde_json::json;

use super::headgate;
use crate::harness::{objects, refused, stdout_of};
use crate::status::world::World;

/// Secrets that no archive may have; this word is in each of them.
const PLANTED: &str = "planted";

async fn plant(world: &World) {
    let azure = json!({"aadClientSecret": format!("{PLANTED}-client-secret"), "tenantId": "t"}).to_string();
    let secret =
        json!({"metadata": {"name": "headgate-azure"}, "stringData": {"azure.json": azure, "cloud-config": azure}});
    let secrets = Api::<Secret>::namespaced(world.client.clone(), "kube-system");
    objects::create(&secrets, secret).await;
    let text = format!(
        "azure: {{configSecret: kube-system/headgate-azure}}\nnotifications:\n  urlFile: /etc/headgate/webhook\n  \
         proxyUrl: http://user:{PLANTED}@proxy.example.com:3128\n  webhookUrl: https://hooks.example.com/services/{PLANTED}?sig={PLANTED}\n"
    );
    let settings =
        json!({"metadata": {"name": "headgate-settings"}, "data": {"settings.yaml": text, "other": PLANTED}});
    let maps = Api::<ConfigMap>::namespaced(world.client.clone(), "kube-system");
    objects::create(&maps, settings).await;
    // A message of the API server with a webhook in it.
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "node-1", "namespace": "kube-system"},
        "reason": "Failed", "message": format!("POST https://hooks.example.com/services/{PLANTED} failed"), "type": "Warning"});
    let events = Api::<Event>::namespaced(world.client.clone(), "kube-system");
    objects::create(&events, event).await;
}

/// The files of an archive, by their path below its directory.
fn files(archive: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(std::fs::File::open(archive).unwrap()));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path.split_once('/').unwrap().1.to_owned(), text)
    };
    archive.entries().unwrap().map(read).collect()
}

pub(super) async fn sysdump(world: &World, viewer: &Path) {
    plant(world).await;
    let directory = scratch("sysdump");
    let run = |kubeconfig: &Path, name: &str| {
        let path = directory.join(name);
        let said = stdout_of(headgate(
            kubeconfig,
            &["sysdump", "--timeout=40s", "-f", path.to_str().unwrap()],
        ));
        (said, files(&path))
    };
    let (said, found) = run(world.control_plane.kubeconfig(), "all.tar.gz");
    println!("{said}{}", found["contents.txt"]);
    for path in [
        "versions.json",
        "status.txt",
        "status.json",
        "check.txt",
        "settings.yaml",
        "nodes.json",
        "pods.json",
        "leases.json",
        "ledger.json",
        "events/headgate.json",
        "events/nodes.json",
        "statusz/headgate-controller-x.json",
    ] {
        assert!(found.contains_key(path), "{path} is not in {:?}", found.keys());
    }
    for (path, text) in &found {
        assert!(!text.contains(PLANTED), "{path}: {text}");
    }
    assert!(found["status.txt"].contains("Down ours"), "{}", found["status.txt"]);
    assert!(found["settings.yaml"].contains("/etc/headgate/webhook"));
    assert!(found["events/headgate.json"].contains("POST https://hooks.example.com/[cut] failed"));
    let own = found["events/nodes.json"].as_str();
    assert!(own.contains("Down in kubernetes/kubernetes"), "{own}");
    // There is no kubelet, and one agent is away.
    for missing in [
        "  logs/headgate-controller-x_headgate.log: ",
        "  statusz/headgate-y.json: ",
    ] {
        assert!(found["contents.txt"].contains(missing), "{}", found["contents.txt"]);
    }
    // With less rights there is less in it.
    let (said, found) = run(viewer, "less.tar.gz");
    assert!(
        found.contains_key("status.json") && !found.contains_key("events/headgate.json"),
        "{said}"
    );
    assert_contains!(said, "missing: events/headgate.json: events is forbidden");
    let again = headgate(
        viewer,
        &["sysdump", "-f", directory.join("less.tar.gz").to_str().unwrap()],
    );
    // An archive is not replaced.
    refused(&again, 1, &["File exists"]);
}
