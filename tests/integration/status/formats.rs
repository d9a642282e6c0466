//! The conventions of `kubectl` that `headgate status` and `why` follow: formats, order, watching, entries of the kubeconfig.

use std::process::{Command, Stdio};
use std::time::Duration;

use headgate_test_kubernetes::assert_contains;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use super::DRAIN;
use super::world::World;
use crate::harness::{refused, refused_for, stdout_of};

/// A command that follows the cluster, and the lines that it prints. It ends with the test.
fn start_watch(world: &World, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut watch = Command::new(env!("CARGO_BIN_EXE_headgate"));
    watch.args(arguments).args(["-w", "--interval=1s", "--kubeconfig"]);
    watch.arg(world.control_plane.kubeconfig()).stdin(Stdio::null());
    let mut watch = tokio::process::Command::from(watch);
    let mut watch = watch.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    (watch, lines)
}

async fn next_line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = timeout(Duration::from_secs(30), lines.next_line()).await;
    line.expect("nothing is printed").unwrap().expect("the watch has ended")
}

#[tokio::test]
async fn conventions_of_kubectl() {
    let world = World::start().await;
    formats_order_and_watch_are_kubectls(&world).await;
    world.taint("node-2", json!([])).await;
    why_and_plan_have_the_formats_and_the_watch_too(&world).await;
    a_watch_ends_when_its_output_has_no_reader(&world).await;
    entries_of_the_kubeconfig_are_chosen_as_with_kubectl(&world);
    a_service_is_named_with_its_namespace_or_by_n(&world);
    names_of_nodes_are_completed(&world);
    world.control_plane.stop().await;
}

async fn why_and_plan_have_the_formats_and_the_watch_too(world: &World) {
    let agents = ["--agents-via", "direct"];
    let why = |format: &str| stdout_of(world.headgate(&[&["why", "node/node-2", "-o", format][..], &agents].concat()));
    assert_eq!(why("name"), "node/node-2\n");
    let wide = why("wide");
    assert_contains!(wide, "\n  Taints:             none\n  Cordoned:           no\n");
    let yaml: Value = serde_yaml::from_str(&why("yaml")).unwrap();
    assert_eq!(
        (&yaml["node"], &yaml["nodeObject"]["taints"]),
        (&json!("node-2"), &json!([]))
    );
    let names = stdout_of(world.headgate(&["plan", "node-3", "node/node-1", "-o", "name"]));
    assert_eq!(names, "node/node-1\nnode/node-3\n");

    // The first print is the state, and the next one, below the time, the change.
    let (_watch, mut lines) = start_watch(world, &[&["why", "node-2", "-o", "wide"][..], &agents].concat());
    let first = next_line(&mut lines).await;
    assert!(first.starts_with("node-2: "), "{first:?}");
    world
        .taint("node-2", json!([{"key": DRAIN, "effect": "NoSchedule"}]))
        .await;
    let expected = format!("  Taints:             {DRAIN}");
    while next_line(&mut lines).await != expected {}
}

async fn formats_order_and_watch_are_kubectls(world: &World) {
    let names = stdout_of(world.headgate(&["status", "--no-agents", "--all", "-o", "name"]));
    assert_eq!(names, "node/node-1\nnode/node-2\nnode/node-3\n");

    // A watch prints what changes.
    let (watch, mut lines) = start_watch(world, &["status", "--no-agents", "-o", "name"]);
    world
        .taint("node-2", json!([{"key": DRAIN, "effect": "NoSchedule"}]))
        .await;
    assert_eq!(next_line(&mut lines).await, "node/node-2");
    drop((watch, lines));

    let sorted = |field: &str| {
        let arguments = ["status", "--no-agents", "--all", "-o", "name", "--sort-by", field];
        world.headgate(&arguments)
    };
    let by_answer = "node/node-1\nnode/node-3\nnode/node-2\n";
    assert_eq!(stdout_of(sorted(".verdict.healthz")), by_answer);
    assert_eq!(stdout_of(sorted("{.signals}")), by_answer);
    assert_eq!(stdout_of(sorted(".name")), names);
    let words = "no node has the field \".spec.replicas\"; allowed: a field";
    refused(&sorted(".spec.replicas"), 2, &[words]);

    let json = world.json(&["--all"]);
    let yaml: Value = serde_yaml::from_str(&world.status(&["--all", "-o", "yaml"])).unwrap();
    for field in ["nodes", "loadBalancers", "mode", "nodesTotal"] {
        assert_eq!(yaml[field], json[field], "{field}");
    }
    // Standard output is no terminal.
    assert!(!world.status(&["--all"]).contains('\u{1b}'));
}

async fn a_watch_ends_when_its_output_has_no_reader(world: &World) {
    let (mut watch, mut lines) = start_watch(world, &["status", "--no-agents", "--all"]);
    let first = next_line(&mut lines).await;
    assert!(first.starts_with("Leader: "), "{first:?}");
    // As `head -1` does; nothing changes that the watch would print.
    drop(lines);
    let ended = timeout(Duration::from_secs(10), watch.wait()).await;
    assert_eq!(ended.expect("it still runs").unwrap().code(), Some(0));
}

fn entries_of_the_kubeconfig_are_chosen_as_with_kubectl(world: &World) {
    let text = std::fs::read_to_string(world.control_plane.kubeconfig()).unwrap();
    let file: Value = serde_yaml::from_str(&text).unwrap();
    let name = |kind: &str| file[kind][0]["name"].as_str().unwrap().to_owned();
    let (context, cluster, user) = (name("contexts"), name("clusters"), name("users"));
    let arguments = [
        "status",
        "--no-agents",
        "--context",
        &context,
        "--cluster",
        &cluster,
        "--user",
        &user,
    ];
    stdout_of(world.headgate(&arguments));
    for flag in ["--context", "--cluster", "--user"] {
        let status = world.headgate(&["status", "--no-agents", flag, "nowhere"]);
        refused_for(&flag, &status, 2, &["nowhere", "kubeconfig"]);
    }
}

fn a_service_is_named_with_its_namespace_or_by_n(world: &World) {
    let file = world.azure_json.to_str().unwrap().to_owned();
    let why = |arguments: &[&str]| {
        let all = [&["why", "service"], arguments, &["--azure-config-file", &file]].concat();
        world.headgate(&all)
    };
    let full = stdout_of(why(&["shop/web"]));
    assert_eq!(stdout_of(why(&["web", "-n", "shop"])), full);
    assert_eq!(stdout_of(why(&["shop/web", "-n", "shop"])), full);
    for name in ["web", "a/b/c"] {
        let words = format!("{name:?} is not a Service; allowed: NAMESPACE/NAME");
        refused_for(&name, &why(&[name]), 2, &[&words]);
    }
    let words = "\"shop/web\" is not in the namespace other";
    refused(&why(&["shop/web", "-n", "other"]), 2, &[words]);
    let yaml: Value = serde_yaml::from_str(&stdout_of(why(&["shop/web", "-o", "yaml"]))).unwrap();
    assert_eq!(yaml, json!([]));
}

fn names_of_nodes_are_completed(world: &World) {
    let complete = |words: &[&str], kubeconfig: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.arg("__complete").args(words).env("KUBECONFIG", kubeconfig);
        stdout_of(command.stdin(Stdio::null()).output().unwrap())
    };
    let kubeconfig = world.control_plane.kubeconfig();
    let nodes = "node-1\nnode-2\nnode-3\n:4\n";
    for command in ["why", "status", "restore", "drain", "plan"] {
        assert_eq!(complete(&[command, "node"], kubeconfig), nodes, "{command}");
    }
    assert_eq!(complete(&["why", "node-2"], kubeconfig), "node-2\n:4\n");
    assert_eq!(complete(&["statu"], kubeconfig), "status\n:4\n");
    assert!(complete(&["status", "--agents-via", "d"], kubeconfig).starts_with("direct\n"));
    // Without a cluster there are no names, and no error.
    let none = std::path::Path::new("/does/not/exist");
    assert_eq!(complete(&["why", "node"], none), ":4\n");
    // The same in a shell.
    let mut shell = Command::new(env!("CARGO_BIN_EXE_headgate"));
    shell
        .args(["--", "headgate", "why", "node"])
        .env("COMPLETE", "fish")
        .env("KUBECONFIG", kubeconfig);
    let text = stdout_of(shell.stdin(Stdio::null()).output().unwrap());
    assert!(text.contains("node-1\n") && text.contains("node-3"), "{text}");
}
