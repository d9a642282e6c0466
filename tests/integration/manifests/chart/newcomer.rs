//! The commands with which docs/install-aks.md begins, on a real API server and the emulator: from a bare cluster to the first `Down` by
//! headgate. The test does what kubelet would do with a controller's pod, and stands in for `docker` and Azure's `az`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{assets, eventually, met, scratch, write_program};
use serde_json::{Value, json};

use super::release::{DAEMONSET, DEPLOYMENT, controller, settings};
use super::{SOON, text, tools};
use crate::manifests::azure_setup::AZ;
use crate::manifests::caller::{ApiRequest, CONTROLLER, Caller, acting_on};
use crate::manifests::repository;
use crate::status::world::World;

const MAX_COMMANDS: usize = 6;
const MAX_VALUES: usize = 5;

/// The first block of the page: the values, and the commands.
fn block() -> (Vec<String>, Vec<String>) {
    let page = text("docs/install-aks.md");
    let block = page
        .split("```sh cloud\n")
        .nth(1)
        .unwrap()
        .split("\n```")
        .next()
        .unwrap();
    let joined = block.replace("\\\n", "");
    let mut lines = joined.lines();
    let values = lines.next().unwrap().split_whitespace();
    let names = values.map(|value| value.split_once('=').unwrap().0.to_owned());
    (names.collect(), lines.map(ToOwned::to_owned).collect())
}

/// A directory in which the commands run, with the programs that they need.
struct Laptop {
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl Laptop {
    fn new(administrator: &Caller) -> Self {
        let directory = scratch("newcomer");
        std::fs::create_dir(directory.join("bin")).unwrap();
        symlink(repository("charts"), directory.join("charts")).unwrap();
        symlink(tools().join("helm"), directory.join("bin/helm")).unwrap();
        symlink(assets().program("kubectl").unwrap(), directory.join("bin/kubectl")).unwrap();
        let laptop = Self {
            directory,
            kubeconfig: administrator.kubeconfig.clone(),
        };
        let headgate = env!("CARGO_BIN_EXE_headgate");
        laptop.program("az", &format!("{AZ}az \"$@\""));
        // `run --rm IMAGE` runs the image's program.
        let docker = format!("case \"$1\" in run) shift 3; exec {headgate} \"$@\" ;; buildx) ;; *) exit 1 ;; esac");
        laptop.program("docker", &docker);
        laptop
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.directory.join("bin").join(name);
        let _ = std::fs::remove_file(&path);
        write_program(&path, format!("#!/bin/sh\n{text}\n"));
    }

    /// `kubectl exec` runs the program here, with the files and the token of the pod; everything else is the real kubectl.
    fn with_pod(&self, pod: &Caller, settings: &Path, azure_json: &Path) {
        let (headgate, real) = (env!("CARGO_BIN_EXE_headgate"), assets().program("kubectl").unwrap());
        let text = format!(
            "case \"$*\" in *' exec deployment/headgate-controller -- /headgate '*) ;; *) exec {} \"$@\" ;; esac\n\
             while [ \"$1\" != -- ]; do shift; done\nshift 2\ncommand=$1\nshift\n\
             for word; do\n  shift\n  case $word in /etc/headgate/settings.yaml) word={} ;; /etc/headgate/azure.json) word={} ;; esac\n  \
             set -- \"$@\" \"$word\"\ndone\nexec {headgate} \"$command\" \"$@\" --kubeconfig {}",
            real.display(),
            settings.display(),
            azure_json.display(),
            pod.kubeconfig.display()
        );
        self.program("kubectl", &text);
    }

    async fn run(&self, command: &str) -> Output {
        let mut sh = Command::new("bash");
        sh.args(["-e", "-o", "pipefail", "-c", command])
            .current_dir(&self.directory);
        sh.env(
            "PATH",
            format!("{}:/usr/bin:/bin", self.directory.join("bin").display()),
        );
        sh.env("KUBECONFIG", &self.kubeconfig);
        for (name, value) in [
            ("GROUP", "my-group"),
            ("CLUSTER", "my-cluster"),
            ("IMAGE", "registry.example.com/headgate"),
            ("NODE", "node-2"),
        ] {
            sh.env(name, value);
        }
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            sh.env(variable, self.directory.join("helm"));
        }
        tokio::task::spawn_blocking(move || sh.output().unwrap()).await.unwrap()
    }
}

/// Starts a controller as its pod would, and reports both workloads as ready.
async fn pods_run(world: &World, administrator: &Caller, laptop: &Laptop) -> Process {
    for workload in [DAEMONSET, DEPLOYMENT] {
        eventually(SOON, workload, async || {
            match administrator.ask(&ApiRequest::get(workload)).await {
                (200, _) => Ok(()),
                (_, body) => Err(body.to_string()),
            }
        })
        .await;
    }
    let pod = acting_on(&world.control_plane, CONTROLLER, "node-1").await;
    let process = controller(administrator, &pod, world).await;
    let file = laptop.directory.join("settings.yaml");
    std::fs::write(&file, settings(administrator).await).unwrap();
    laptop.with_pod(&pod, &file, &world.azure_json);

    let condition = |name: &str, reason: &str| json!({"type": name, "status": "True", "reason": reason});
    let deployed = json!({"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
        "conditions": [condition("Available", "MinimumReplicasAvailable"), condition("Progressing", "NewReplicaSetAvailable")]});
    let on_nodes = json!({"currentNumberScheduled": 3, "numberMisscheduled": 0, "desiredNumberScheduled": 3, "numberReady": 3,
        "updatedNumberScheduled": 3, "numberAvailable": 3});
    ready(administrator, DEPLOYMENT, deployed).await;
    ready(administrator, DAEMONSET, on_nodes.clone()).await;
    // Of the pods that delay Karpenter there is none, because no node is Karpenter's.
    let none = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
        "updatedNumberScheduled": 0, "numberAvailable": 0});
    ready(administrator, &format!("{DAEMONSET}-hold"), none).await;
    process
}

async fn ready(administrator: &Caller, path: &str, mut status: Value) {
    status["observedGeneration"] = administrator.get(path).await["metadata"]["generation"].clone();
    let request = ApiRequest::merge(&format!("{path}/status"), json!({"status": status}));
    administrator.done(&request).await;
}

#[tokio::test]
async fn the_commands_of_the_page_lead_from_a_bare_cluster_to_the_first_down() {
    let (values, commands) = block();
    assert_eq!(values, ["GROUP", "CLUSTER", "IMAGE", "NODE"]);
    assert!(values.len() <= MAX_VALUES);
    assert!(commands.len() <= MAX_COMMANDS, "{commands:#?}");
    let world = World::start().await;
    let administrator = Caller::administrator(&world.control_plane);
    let laptop = Laptop::new(&administrator);

    let mut running = None;
    let (last, before) = commands.split_last().unwrap();
    for command in before {
        let output = if command.starts_with("helm install") {
            let (output, process) = tokio::join!(laptop.run(command), pods_run(&world, &administrator, &laptop));
            running = Some(process);
            output
        } else {
            laptop.run(command).await
        };
        let shown = format!("{command}: {output:?}");
        // `check` finds that no agent runs here, and rules without a probe.
        let is_check = command.contains("/headgate check");
        assert!(
            output.status.success() || is_check && output.status.code() == Some(1),
            "{shown}"
        );
    }
    eventually(Duration::from_mins(2), "the node is Down in both pools", async || {
        let output = laptop.run(last).await;
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        met(
            output.status.success() && shown.matches("Down ours").count() >= 2,
            format!("{shown}{}", String::from_utf8_lossy(&output.stderr)),
        )
    })
    .await;
    let down = world.all_down().await;
    assert_eq!(
        (&down["kubernetes"], &down["kubernetes-IPv6"]),
        (&vec!["node-2".to_owned()], &vec!["node-2".to_owned()])
    );
    drop(running);
    world.control_plane.stop().await;
}
