//! The commands of the section "Uninstall" in the manifests' README: the ledger, which alone says which `Down` is headgate's, goes last and
//! by its name only.

use headgate_test_kubernetes::{kubectl, own_control_plane};
use serde_json::json;

use super::caller::{Caller, apply, install};
use super::leader::{LEDGER, MAPS};
use super::rendering::{folder, hardened_with_identity};
use super::{overlay_of, stdout_of, text};

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";

/// The commands, without their comments.
fn commands() -> Vec<String> {
    let readme = text("manifests/README.md");
    let (_, section) = readme.split_once("\n## Uninstall\n").unwrap();
    let mut blocks = section.split("```sh\n").skip(1);
    let block = blocks.find(|block| block.starts_with("kubectl delete -k .")).unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let command = |line: &str| line.split('#').next().unwrap().trim().to_owned();
    block.lines().map(command).collect()
}

#[test]
fn the_ledger_is_deleted_last() {
    let commands = commands();
    let delete = format!("kubectl -n kube-system delete configmap {LEDGER}");
    assert_eq!(commands.first().unwrap(), "kubectl delete -k .");
    assert_eq!(commands.last().unwrap(), &delete);
    assert_eq!(commands.iter().filter(|command| command.contains(LEDGER)).count(), 1);
}

#[tokio::test]
async fn deleting_earlier_settings_and_credentials_leaves_the_ledger() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    let values = hardened_with_identity();
    install(&administrator.kubeconfig, &values);
    let overlay = "resources: [\"@\"]\nconfigMapGenerator:\n  - name: headgate-settings\n    namespace: kube-system\n    \
                   behavior: replace\n    files: [settings.yaml]\nsecretGenerator:\n  - name: headgate-azure\n    namespace: kube-system\n    \
                   behavior: replace\n    files: [azure.json]\n";
    apply(
        &administrator.kubeconfig,
        &overlay_of(
            &folder(&values),
            overlay,
            &[("settings.yaml", "logFormat: Text\n"), ("azure.json", "{}\n")],
        ),
    );
    // As the leader of an earlier version created it; a newer one leaves the name label out.
    let ledger = json!({"metadata": {"name": LEDGER, "labels": {"app.kubernetes.io/name": "headgate"}},
        "data": {"ledger.json": "{\"pools\": {}}"}});
    administrator.post(MAPS, ledger).await;
    let names = async |path: &str| {
        let list = administrator.get(path).await;
        let names = list["items"].as_array().unwrap().iter();
        let names = names.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("headgate")).collect::<Vec<_>>()
    };
    let (maps, secrets) = (names(MAPS).await, names(SECRETS).await);
    assert_eq!((maps.len(), secrets.len()), (3, 2), "{maps:?} {secrets:?}");

    let commands = commands();
    let by_label: Vec<_> = commands.iter().filter(|command| command.contains(" -l ")).collect();
    assert_eq!(by_label.len(), 1, "{commands:?}");
    let arguments = by_label[0].strip_prefix("kubectl ").unwrap().split(' ');
    stdout_of(kubectl(&administrator.kubeconfig).args(arguments));
    assert_eq!(names(MAPS).await, [LEDGER]);
    assert_eq!(names(SECRETS).await, Vec::<String>::new());
    control_plane.stop().await;
}
