//! `headgate plan`, `drain`, `undrain`, `status` and `why` about maintenances: the real program, a controller, the real API server, Azure's emulator.

use std::path::{Path, PathBuf};
use std::process::Command;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{assert_contains, eventually, met, own_cluster, scratch};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Controller, Emulator, SOON, api, apply_kinds, azure_json, populate, seed};
use crate::harness::{objects, refused_for, settings_file};

/// The command line against one cluster.
struct CommandLine {
    kubeconfig: PathBuf,
    azure: PathBuf,
    directory: PathBuf,
}

impl CommandLine {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(arguments).arg("--kubeconfig").arg(&self.kubeconfig);
        if matches!(arguments.first(), Some(&("plan" | "status"))) {
            command.arg("--azure-config-file").arg(&self.azure);
        }
        command
    }

    /// Standard output of a command that succeeds.
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.done(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], code: i32, words: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        refused_for(&arguments, &output, code, words);
    }

    /// A command that goes on, and its output.
    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        Process::start(name, self.command(arguments), &self.directory.join(name)).unwrap()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Waits until a command has printed something.
async fn prints(process: &Process, part: &str) {
    eventually(SOON, part, async || {
        let text = std::fs::read_to_string(process.log()).unwrap_or_default();
        met(text.contains(part), text)
    })
    .await;
}

/// The pod of node-1 becomes Ready, and a budget is about it.
async fn protect(client: &Client) {
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let pods = Api::<Pod>::namespaced(client.clone(), "default");
    let label = json!({"metadata": {"labels": {"app": "web"}}});
    objects::merge(&pods, "web", label).await;
    objects::merge_status(&pods, "web", ready).await;
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), "default");
    objects::create(&budgets, budget).await;
    allow(client, 0).await;
}

/// What the controller of budgets would report.
async fn allow(client: &Client, allowed: i32) {
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
        "desiredHealthy": 1, "expectedPods": 1 + allowed}});
    let budgets = Api::<PodDisruptionBudget>::namespaced(client.clone(), "default");
    objects::merge_status(&budgets, "web", status).await;
}

async fn maintenances(client: &Client) -> Vec<String> {
    let all = api(client, "NodeMaintenance")
        .list(&ListParams::default())
        .await
        .unwrap();
    all.items
        .into_iter()
        .filter_map(|object| object.metadata.name)
        .collect()
}

fn previews(headgate: &CommandLine, plan: &str) {
    let text = headgate.done(&["plan", "node/node-1", "--plan", plan]);
    println!("{text}");
    assert_contains!(
        text,
        "1 pod would leave 1 node. Nothing was written.",
        "1. Out of the load balancers. No pod leaves before a read confirms it, and 2 s have passed.",
        "kubernetes      kubernetes   2         0      1         1",
        "2. Pods of priority 5 or lower: 1 pod.",
        "default/web",
        "Blocked now: pod default/web on node-1: PodDisruptionBudget web allows 0 disruptions; nothing replaces the pod: "
    );
    let both = headgate.json(&["plan", "node-1", "node-2", "-o", "json"]);
    assert_eq!(
        (&both["pools"][0]["remaining"], &both["pools"][0]["kept"][0]["reason"]),
        (&json!(1), &json!("too few others can serve"))
    );
    assert_eq!(both["steps"][0]["pods"][0]["pod"], "default/web");
    assert_eq!(
        both["maintenance"]["metadata"]["name"].as_str().unwrap().len(),
        "drain-2-nodes-01234567".len()
    );
    let yaml = headgate.done(&["plan", "node-2", "-o", "yaml"]);
    assert_contains!(yaml, "remaining: 1", "azureError: null");
    let names = |more: &[&str]| headgate.done(&[&["plan", "node-1", "node-2", "-o", "name"], more].concat());
    assert_eq!(names(&[]), "node/node-1\nnode/node-2\n");
    assert_eq!(names(&["--sort-by", ".pods"]), "node/node-2\nnode/node-1\n");
    let wide = headgate.done(&["plan", "node-1", "-o", "wide"]);
    assert!(wide.contains("NODES THAT LEAVE") && wide.contains("node-1\n"), "{wide}");
    let settings = settings_file("maintenance: {enabled: true, maxConcurrentNodes: 50%}\n");
    let settings = headgate.file("limited.yaml", &settings);
    let limited = headgate.done(&["plan", "node-1", "node-2", "--config", &settings]);
    assert_contains!(
        limited,
        "maintenance.maxConcurrentNodes (50%) has no room for 1 node: node-2. It waits until other nodes",
        "keeps node-2 in service: maintenance.maxConcurrentNodes has no room for it now.",
        "kubernetes      kubernetes   2         0      1         1"
    );
    assert!(!limited.contains("too few others"), "{limited}");
    headgate.refused(&["plan", "node-1", "nowhere"], 1, &["there is no Node \"nowhere\""]);
    headgate.refused(&["plan"], 2, &[]);
}

/// Nothing is created by mistakes and dry runs.
fn creates_nothing(headgate: &CommandLine, plan: &str) {
    assert_eq!(
        headgate.done(&["drain", "node-1", "--dry-run"]),
        "nodemaintenance.headgate.dev/drain-node-1 created (dry run)\n"
    );
    assert_eq!(
        headgate.done(&["drain", "node-1", "--dry-run=server"]),
        "nodemaintenance.headgate.dev/drain-node-1 created (server dry run)\n"
    );
    let yaml = headgate.done(&["drain", "node-1", "--plan", plan, "--dry-run=client", "-o", "yaml"]);
    assert_contains!(yaml, "apiVersion: headgate.dev/v1alpha1\n", "name: kernel\n");
    let sent = headgate.json(&[
        "drain",
        "node-1",
        "--dry-run=server",
        "-o",
        "json",
        "--reason",
        "update",
        "--rollout",
    ]);
    assert_eq!(
        (&sent["spec"]["reason"], &sent["kind"]),
        (&json!("update"), &json!("NodeMaintenance"))
    );
    assert_eq!(sent["spec"]["evacuation"]["rollout"], "Allow");
    let broken = headgate.file(
        "broken",
        "apiVersion: headgate.dev/v1alpha1\nkind: NodeMaintenance\nspec: {drainplan: []}\n",
    );
    let unordered = "apiVersion: headgate.dev/v1alpha1\nkind: NodeMaintenance\nspec: {drainPlan: [{podPriority: 5}, {podPriority: 4}]}\n";
    let unordered = headgate.file("unordered", unordered);
    for (arguments, code, words) in [
        (vec!["drain", "nowhere"], 1, "there is no Node \"nowhere\""),
        (vec!["drain"], 2, "no nodes are named"),
        (
            vec!["drain", "node-1", "--plan", &broken],
            2,
            "spec.drainplan is not a field",
        ),
        (
            vec!["drain", "node-1", "--plan", &unordered],
            1,
            "in the order of podType",
        ),
        (
            vec!["drain", "node-1", "--plan", "/nowhere.yaml"],
            2,
            "plan file /nowhere.yaml",
        ),
        (
            vec!["drain", "node-1", "--wait=false", "--timeout", "5s"],
            2,
            "--wait=false does not wait",
        ),
        (vec!["drain", "node-1", "-l", "a=b"], 2, "cannot be used with"),
        (vec!["drain", "-l", "a b"], 2, "allowed: KEY=VALUE"),
        (vec!["drain", "node-1", "-w"], 2, "unexpected argument '-w'"),
        (vec!["undrain"], 2, "required"),
        (vec!["undrain", "nowhere"], 1, "there is no Node \"nowhere\""),
        (vec!["undrain", "-l", "pool=none"], 1, "no node matches -l"),
    ] {
        headgate.refused(&arguments, code, &[words]);
    }
}

/// While a budget has no room.
fn explains(headgate: &CommandLine) {
    let text = headgate.done(&["status", "--no-agents"]);
    println!("{text}");
    assert_contains!(
        text,
        "MAINTENANCE",
        "kernel, node node-1: pod default/web is blocked for ",
        "PodDisruptionBudget web allows 0 disruptions",
        "no: PodsLeft"
    );
    let report = headgate.json(&["status", "node-1", "--no-agents", "-o", "json"]);
    let row = &report["maintenances"][0];
    assert_eq!(
        (&row["name"], &row["stage"], &row["podsLeft"]),
        (&json!("kernel"), &json!("Drain"), &json!(1))
    );
    assert_eq!(row["nodes"][0]["loadBalancer"]["state"], "Out", "{row}");
    let elsewhere = headgate.json(&["status", "node-2", "--no-agents", "-o", "json"]);
    assert_eq!(elsewhere["maintenances"], json!([]));
    let text = headgate.done(&["why", "node/node-1"]);
    println!("{text}");
    assert_contains!(
        text,
        "NodeMaintenance kernel, stage Drain, since ",
        "For: kernel update",
        "The node is out of its load balancers since ",
        "default/web stays, since ",
        "Ends with its deletion: headgate undrain node-1, or kubectl delete hgnm kernel"
    );
    let wide = headgate.done(&["why", "node-1", "-o", "wide"]);
    assert!(wide.contains("  Cordoned:           yes\n"), "{wide}");
    let why = headgate.json(&["why", "node-1", "-o", "json"]);
    assert_eq!(
        why["maintenances"][0]["nodes"][0]["blockers"][0]["pod"], "default/web",
        "{why}"
    );
}

/// node-1 is drained, by the maintenance `kernel`.
async fn gives_back(headgate: &CommandLine, client: &Client) {
    let nodes = Api::<Node>::all(client.clone());
    let is_cordoned = async |node: &str| {
        let node = nodes.get(node).await.unwrap();
        node.spec.unwrap_or_default().unschedulable.unwrap_or_default()
    };
    let created = headgate.done(&["drain", "node-1", "node-2", "--wait=false", "--name", "both"]);
    assert_eq!(created, "nodemaintenance.headgate.dev/both created\n");
    eventually(SOON, "the other node is cordoned", async || {
        met(is_cordoned("node-2").await, "not yet")
    })
    .await;
    let both = "nodemaintenance.headgate.dev/both keeps its other nodes\nnodemaintenance.headgate.dev/kernel deleted\n";
    assert_eq!(
        headgate.done(&["undrain", "node-1"]),
        format!("{both}node/node-1 uncordoned\n")
    );
    assert_eq!(
        (is_cordoned("node-1").await, is_cordoned("node-2").await),
        (false, true)
    );
    assert_eq!(
        headgate.done(&["undrain", "node-1"]),
        "node/node-1 is in no maintenance of headgate: nothing was changed\n",
    );

    // Of another author.
    let label = json!({"metadata": {"labels": {"pool": "b"}}});
    objects::merge(&nodes, "node-2", label).await;
    super::drain(&api(client, "NodeMaintenance"), 1).await;
    headgate.refused(&["undrain", "node-1"], 1, &["`kubectl delete hgnm m` ends it"]);
    let given_back = headgate.done(&["undrain", "-l", "pool in (a, b)", "--timeout", "1m"]);
    assert_eq!(
        given_back,
        "nodemaintenance.headgate.dev/both deleted\nnode/node-2 uncordoned\n"
    );

    // By labels. Neither may leave its load balancer while the other one is out.
    let created = headgate.done(&["drain", "-l", "pool=b", "--wait=false", "-o", "name"]);
    assert!(
        created.starts_with("nodemaintenance.headgate.dev/drain-selected-"),
        "{created}"
    );
    headgate.refused(
        &["drain", "-l", "pool=b", "--timeout", "2s"],
        1,
        &["not drained within 2s"],
    );
    assert_eq!(
        headgate.done(&["undrain", "-l", "pool=b", "--wait=false"]),
        created.replace('\n', " deleted\n")
    );
    let given_back = |text: &str| {
        let nothing = text.ends_with("node/node-2 is in no maintenance of headgate: nothing was changed\n");
        assert!(nothing || text.ends_with("node/node-2 uncordoned\n"), "{text}");
    };
    // It may be uncordoned by now.
    given_back(&headgate.done(&["undrain", "node-2"]));

    // One that was completed is no maintenance of the node any more, and has the name.
    headgate.done(&["drain", "node-2", "--wait=false"]);
    let complete = json!({"spec": {"stage": "Complete"}});
    let maintenances = api(client, "NodeMaintenance");
    objects::merge(&maintenances, "drain-node-2", complete).await;
    headgate.refused(
        &["drain", "node-2"],
        1,
        &["its stage is not Drain; `kubectl delete hgnm drain-node-2` ends it"],
    );
    given_back(&headgate.done(&["undrain", "node-2"]));
    assert!(!is_cordoned("node-2").await);

    // Of a node that is gone.
    objects::create(&nodes, json!({"metadata": {"name": "node-9"}})).await;
    headgate.done(&["drain", "node-9", "--wait=false"]);
    nodes.delete("node-9", &DeleteParams::default()).await.unwrap();
    assert_eq!(
        headgate.done(&["undrain", "node-9"]),
        "nodemaintenance.headgate.dev/drain-node-9 deleted\nnode/node-9 does not exist any more\n"
    );
    headgate.refused(&["undrain", "node-9"], 1, &["there is no Node \"node-9\""]);
}

#[tokio::test]
async fn a_drain_is_planned_created_followed_and_explained() {
    let (control_plane, client) = own_cluster().await;
    let directory = scratch("commands");
    let file = directory.join("seed.json");
    std::fs::write(&file, seed().to_string()).unwrap();
    let emulator = Emulator::start_with_seed(&file, &[]).await;
    let headgate = CommandLine {
        kubeconfig: Path::new(control_plane.kubeconfig()).to_owned(),
        azure: azure_json(&emulator, &directory),
        directory,
    };
    headgate.refused(&["drain", "node-1", "--name", "m"], 1, &[]);
    populate(&client).await;
    headgate.refused(&["drain", "node-1"], 1, &["install headgate with maintenance.enabled"]);
    protect(&client).await;
    let plan = headgate.file(
        "plan",
        "apiVersion: headgate.dev/v1alpha1\nkind: NodeMaintenance\nmetadata: {name: kernel}\nspec:\n  reason: kernel update\n  \
         loadBalancer: {connectionsDrainSeconds: 2}\n  drainPlan: [{podPriority: 5}]\n",
    );
    // Before the kinds are there, a preview works.
    headgate.done(&["plan", "node-1"]);
    apply_kinds(&control_plane, &client).await;
    previews(&headgate, &plan);
    creates_nothing(&headgate, &plan);
    assert_eq!(maintenances(&client).await, Vec::<String>::new());

    // Without a controller.
    let drain = ["drain", "node-1", "--plan", &plan];
    let mut unanswered = headgate.start("unanswered", &drain);
    prints(&unanswered, "no controller has answered yet").await;
    unanswered.signal(Signal::SIGINT);
    assert_eq!(unanswered.wait(SOON).await.and_then(|status| status.code()), Some(130));
    let controller = Controller::start(&emulator, control_plane.kubeconfig());

    // A budget without room: the same command again finds its maintenance, and says what blocks.
    let mut blocked = headgate.start("blocked", &drain);
    for part in [
        "nodemaintenance.headgate.dev/kernel unchanged\n",
        "nodemaintenance/kernel: stage Drain started\n",
        "node/node-1: 1 pod left; ",
        "node/node-1: 1 pod left, 1 of them evacuating; out of its load balancers since ",
        "; 1 pod is blocked: default/web since ",
        ": PodDisruptionBudget web allows 0 disruptions; nothing replaces the pod: ",
    ] {
        prints(&blocked, part).await;
    }
    explains(&headgate);
    blocked.signal(Signal::SIGINT);
    assert_eq!(blocked.wait(SOON).await.and_then(|status| status.code()), Some(130));
    prints(&blocked, "The drain goes on: ").await;
    headgate.refused(
        &[&drain[..], &["--timeout", "1s"]].concat(),
        1,
        &["not drained within 1s. The drain goes on"],
    );
    headgate.refused(&["drain", "node-1", "--name", "kernel"], 1, &["its spec has another "]);

    // Cancelled while it is followed.
    let mut cancelled = headgate.start("cancelled", &drain);
    prints(&cancelled, "is blocked: ").await;
    assert_eq!(
        headgate.done(&["undrain", "node/node-1"]),
        "nodemaintenance.headgate.dev/kernel deleted\nnode/node-1 uncordoned\n",
        "{}",
        controller.log()
    );
    assert_eq!(cancelled.wait(SOON).await.and_then(|status| status.code()), Some(1));
    prints(&cancelled, "ended or changed before its nodes were drained").await;
    assert_eq!(maintenances(&client).await, Vec::<String>::new());

    // With room it ends; only the object is on standard output.
    let mut output = headgate.start("last", &[&drain[..], &["-o", "name"]].concat());
    prints(&output, "is blocked: ").await;
    allow(&client, 1).await;
    assert_eq!(
        output.wait(SOON).await.and_then(|status| status.code()),
        Some(0),
        "{}",
        controller.log()
    );
    prints(&output, "nodemaintenance/kernel drained, after ").await;
    let last = headgate.json(&[&drain[..], &["-o", "json"]].concat());
    let drained = last["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["type"] == "Drained");
    assert_eq!(drained.unwrap()["status"], "True", "{last}");
    assert_eq!(last["metadata"]["managedFields"], Value::Null);
    gives_back(&headgate, &client).await;
    controller.ends().await;
    emulator.stop().await;
    control_plane.stop().await;
}
