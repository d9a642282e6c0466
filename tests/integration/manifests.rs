//! The shipped manifests: that they agree with the program (here, in `settings`
//! and, for Azure, in `identity`), that a real cluster accepts them (`apply`), that their permissions suffice
//! for the agent (`rights`) and the leader (`leader`) and each is needed, that their policies hold
//! whatever RBAC grants (`policy`, `leader_policy`, `leader_updates`, `leader_work`, `holds`), that maintenances run with their rights (`maintenance`) and restart rollouts (`rollout`), what the hardened overlay adds (`hardened`),
//! the Node condition that other tools wait for (`marker`),
//! the Helm chart (`chart`) that renders them (`rendering`), and the ports that the `NetworkPolicy` opens (`network_policy`), what makes autoscalers wait (`autoscalers`),
//! what `headgate check` finds with them and with faults (`check`), the commands of `headgate azure-setup` (`azure_setup`),
//! the mounts of the webhook's URL (`webhook`), and the kinds of the Prometheus operator (`prometheus_operator`).

use std::path::{Path, PathBuf};
use std::process::Command;

use headgate::config::{HEALTHZ_PORT, METRICS_PORT, Settings};
use headgate_test_kubernetes::assets;
use serde::Deserialize as _;
use serde_json::{Value, json};

use self::rendering::{folder, hardened, merged, on_nodes, rendered};
use crate::harness::SOON;

mod apply;
mod automatic;
mod autoscalers;
mod azure_setup;
mod caller;
mod chart;
mod check;
mod cluster_api;
mod hardened;
mod holds;
mod identity;
mod leader;
mod leader_policy;
mod leader_updates;
mod leader_work;
mod maintenance;
mod marker;
mod network_policy;
mod policy;
mod preempt_events;
mod prometheus_operator;
pub(crate) mod rendering;
mod rights;
mod rollout;
mod settings;
mod uninstall;
mod webhook;

/// A file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

/// The standard output of a command, which must succeed without a warning.
fn stdout_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success() && err.is_empty(), "{command:?}: {err}{out}");
    out
}

/// The objects that kustomize renders from a folder.
fn render(folder: &Path) -> Vec<Value> {
    let mut kustomize = Command::new(assets().program("kubectl").unwrap());
    let yaml = stdout_of(kustomize.arg("kustomize").arg(folder));
    serde_yaml::Deserializer::from_str(&yaml)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// The only object of a kind.
fn only<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    match (found.next(), found.next()) {
        (Some(object), None) => object,
        _ => panic!("not exactly one {kind}"),
    }
}

/// All files of the manifests, by their paths in there.
fn files() -> Vec<(String, String)> {
    let root = repository("manifests");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// An overlay of a folder, which `text` names `@`, with further files, in a fresh directory.
fn overlay_of(folder: &Path, text: &str, others: &[(&str, &str)]) -> PathBuf {
    let directory = headgate_test_kubernetes::scratch("overlay").canonicalize().unwrap();
    let folder = settings::relative(&directory, folder);
    let text = text.replace('@', &folder.display().to_string());
    for (name, text) in [("kustomization.yaml", text.as_str())].iter().chain(others) {
        std::fs::write(directory.join(name), text).unwrap();
    }
    directory
}

fn base() -> Vec<Value> {
    render(&repository("manifests/healthz"))
}

/// The part of `whole` that has the keys of `part`.
fn same_part(whole: &Value, part: &Value) -> Value {
    let Value::Object(part) = part else {
        return whole.clone();
    };
    let picked = part
        .iter()
        .map(|(key, part)| (key.clone(), same_part(&whole[key.as_str()], part)));
    Value::Object(picked.collect())
}

#[track_caller]
fn assert_says(whole: &Value, part: &Value) {
    assert_eq!(&same_part(whole, part), part);
}

#[test]
fn the_daemonset_runs_on_every_linux_node_and_surges_on_updates() {
    let objects = base();
    let daemonset = only(&objects, "DaemonSet");
    assert_says(
        daemonset,
        &json!({"metadata": {"namespace": "kube-system"}, "spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/enable-ds-eviction": "false"}},
                "spec": {
                    "hostNetwork": true,
                    "dnsPolicy": "Default",
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "serviceAccountName": "headgate",
                },
            },
        }}),
    );
    let pod = &daemonset["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!((containers.len(), pod.get("initContainers")), (1, None));
    assert_eq!(
        containers[0].get("ports"),
        None,
        "on the host network they would keep the second pod of a roll off the node"
    );
    assert_eq!(containers[0]["resources"]["limits"].get("cpu"), None);
}

#[test]
fn the_container_has_least_privilege() {
    let objects = base();
    let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_says(
        pod,
        &json!({"securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }}),
    );
    assert_eq!(
        pod["containers"][0]["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    for volume in pod["volumes"].as_array().unwrap() {
        assert!(
            volume["configMap"].is_object() || volume["emptyDir"].is_object(),
            "{volume}"
        );
    }
    assert_eq!(only(&objects, "ServiceAccount")["automountServiceAccountToken"], false);
}

#[test]
fn the_daemonset_matches_the_commands_paths_and_probes_of_the_program() {
    let objects = base();
    let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let words = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let parse = |mut words: Vec<String>| {
        if words[0] != "/headgate" {
            words.insert(0, "/headgate".to_owned());
        }
        headgate::cli::definition().try_get_matches_from(words).unwrap()
    };

    let mut arguments = words(&container["args"]);
    // In the Pod, this value comes from the environment.
    assert_says(
        &container["env"][0],
        &json!({"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
    );
    arguments.push("--node-name=n".to_owned());
    let agent = parse(arguments);
    let config: &PathBuf = agent.subcommand_matches("agent").unwrap().get_one("config").unwrap();

    for (probe, question) in [
        ("startupProbe", "livez"),
        ("livenessProbe", "livez"),
        ("readinessProbe", "readyz"),
    ] {
        let command = words(&container[probe]["exec"]["command"]);
        assert_eq!(command, ["/headgate", "probe", question], "{probe}");
        parse(command);
    }

    // The settings are mounted at the path of --config; state and probe socket are at the default paths.
    let mounted = |volume: &str| {
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == volume).unwrap();
        (
            PathBuf::from(mount["mountPath"].as_str().unwrap()),
            mount["readOnly"] == true,
        )
    };
    let map = only(&objects, "ConfigMap");
    assert_says(
        &pod["volumes"][0],
        &json!({"configMap": {"name": map["metadata"]["name"]}}),
    );
    let (directory, read_only) = mounted("settings");
    let files: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
    assert_eq!((files.len(), &directory.join(files[0])), (1, config));
    assert!(read_only);
    let defaults = Settings::default();
    assert_eq!(mounted("state"), (defaults.state_dir, false));
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= 10);
}

#[test]
fn ports_and_versions_match_the_program() {
    let objects = render(&folder(&json!({"podMonitor": {"enabled": true}})));
    let monitor = only(&objects, "PodMonitor")["spec"]["podMetricsEndpoints"][0].to_string();
    let port = format!(":{METRICS_PORT}\"");
    assert_eq!(
        (monitor.matches(&port).count(), monitor.matches(":104").count()),
        (2, 2)
    );
    let readme = text("manifests/README.md");
    for port in [HEALTHZ_PORT, METRICS_PORT] {
        assert!(readme.contains(&format!("port {port}")) || readme.contains(&format!("and {port}")));
    }

    let version = env!("CARGO_PKG_VERSION");
    let objects = base();
    let daemonset = only(&objects, "DaemonSet");
    let labels = &daemonset["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/version"], version);
    let image = &daemonset["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, &format!("headgate:{version}"));
    for (file, text) in files() {
        let found = text.lines().filter_map(|line| {
            let line = line.trim();
            let tag = line.strip_prefix("newTag: ");
            tag.or_else(|| line.strip_prefix("app.kubernetes.io/version: "))
        });
        let versions: Vec<&str> = found.map(|version| version.trim_matches('"')).collect();
        let wanted = file == "README.md" || file.ends_with("/headgate.yaml");
        assert!(versions.len() >= usize::from(wanted), "{file}");
        assert!(versions.iter().all(|found| *found == version), "{file}: {versions:?}");
    }
    assert!(readme.contains(&format!("registry.example.com/headgate:{version}")));
}

#[test]
fn another_namespace_keeps_the_roles_for_events_and_leases_in_place() {
    let notices = json!({"evictionNotices": {"enabled": true}});
    for (values, expected) in [
        (json!({}), 1),
        (merged(hardened(), on_nodes()), 2),
        (merged(hardened(), notices), 3),
    ] {
        let objects = rendered("headgate", &values, &["--no-hooks"]);
        let mut roles = 0;
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            let namespace = match object["kind"].as_str().unwrap() {
                "Role" | "RoleBinding" if name == "headgate-leader" => "kube-system",
                "Role" | "RoleBinding" => "default",
                "ServiceAccount"
                | "ConfigMap"
                | "DaemonSet"
                | "Deployment"
                | "PodDisruptionBudget"
                | "NetworkPolicy" => "headgate",
                "ClusterRole"
                | "ClusterRoleBinding"
                | "Namespace"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding" => {
                    assert_eq!(object["metadata"].get("namespace"), None);
                    ""
                }
                other => panic!("where does a {other} belong?"),
            };
            roles += usize::from(object["kind"] == "Role");
            if !namespace.is_empty() {
                assert_eq!(
                    object["metadata"]["namespace"], namespace,
                    "{values}: {} {name}",
                    object["kind"]
                );
            }
            if let Some(subjects) = object["subjects"].as_array() {
                assert_eq!(
                    (subjects.len(), &subjects[0]["namespace"]),
                    (1, &json!("headgate")),
                    "{name}"
                );
            }
        }
        assert_eq!(roles, expected, "{values}");
    }
}
