//! What the chart renders with the real helm: as objects, and as folders that kustomize takes. `manifests/PROFILE` are such folders,
//! checked in; tests of a single feature render their own with [`folder()`].
//!
//! kustomize generates the `ConfigMap` of the settings and the Secret, so that an overlay replaces them and a new text rolls the pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use headgate_test_kubernetes::scratch;
use k8s_openapi::ByteString;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::repository;
use crate::harness::succeed;

/// The directory with helm and chart-oci-layout, which tests/helm/build.sh prints.
pub(crate) fn tools() -> &'static Path {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let printed = succeed(&mut Command::new(repository("tests/helm/build.sh")));
        PathBuf::from(printed.trim_end())
    })
}

/// helm with no files of the user's.
pub(super) fn helm(arguments: &[&str]) -> Command {
    let home = scratch("helm");
    let mut command = Command::new(tools().join("helm"));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    command.env_remove("KUBECONFIG").args(arguments);
    command
}

pub(super) fn chart() -> PathBuf {
    repository("charts/headgate")
}

/// A file with values, in a new directory.
pub(super) fn values_file(values: &Value) -> PathBuf {
    let file = scratch("values").join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    file
}

/// `helm template` of the chart with these values in a namespace.
pub(super) fn template(namespace: &str, values: &Value, more: &[&str]) -> Output {
    let mut command = helm(&["template", "headgate"]);
    command.arg(chart()).args(["--namespace", namespace, "--values"]);
    command.arg(values_file(values)).args(more);
    command.output().unwrap()
}

/// What helm prints; it must succeed.
fn text(namespace: &str, values: &Value, more: &[&str]) -> String {
    let output = template(namespace, values, more);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that the chart renders; it must.
pub(super) fn rendered(namespace: &str, values: &Value, more: &[&str]) -> Vec<Value> {
    let yaml = text(namespace, values, more);
    let documents = serde_yaml::Deserializer::from_str(&yaml).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// The values of one with those of another, which win.
pub(super) fn merged(mut one: Value, other: Value) -> Value {
    let (Value::Object(into), Value::Object(from)) = (&mut one, other) else {
        panic!("values are objects");
    };
    for (key, value) in from {
        let merged_value = match into.remove(&key) {
            Some(before) if before.is_object() && value.is_object() => merged(before, value),
            _ => value,
        };
        into.insert(key, merged_value);
    }
    one
}

/// The values of a file of charts/headgate/ci.
pub(super) fn profile(name: &str) -> Value {
    serde_yaml::from_str(&super::text(&format!("charts/headgate/ci/{name}-values.yaml"))).unwrap()
}

/// Two controllers on Azure, with azure.json in a Secret of their own, and nothing that the profile adds to that.
pub(super) fn hardened() -> Value {
    json!({"profile": "aks", "azure": {"existingSecret": "headgate-azure"}, "outOfLoadBalancers": {"enabled": false},
        "evictionNotices": {"enabled": false}, "connections": {"enabled": false}, "signals": {"kubeletShutdown": false, "cordon": false}})
}

/// The same with workload identity.
pub(super) fn hardened_with_identity() -> Value {
    merged(hardened(), identity())
}

/// Agents that lead themselves, with workload identity.
pub(super) fn leading_agents() -> Value {
    merged(hardened_with_identity(), on_nodes())
}

/// The agents lead.
pub(super) fn on_nodes() -> Value {
    json!({"azure": {"leaderOnNodes": true}})
}

fn identity() -> Value {
    let azure = profile("aks")["azure"].clone();
    merged(json!({"azure": azure}), json!({"azure": {"existingSecret": ""}}))
}

/// The Node condition, and nothing that waits for it.
pub(super) fn with_condition() -> Value {
    json!({"outOfLoadBalancers": {"enabled": true}, "delayTermination": {"clusterAutoscaler": false, "karpenter": false}})
}

/// The Node condition, and delays of autoscalers.
pub(super) fn delays() -> Value {
    json!({"outOfLoadBalancers": {"enabled": true}})
}

/// Nodes without kube-proxy: its port, and the Services' `healthCheckNodePort`s.
pub(crate) fn without_kube_proxy() -> Value {
    json!({"serviceHealthChecks": "NodePorts",
        "settings": {"healthzBindAddress": "[::]:10256", "kubeProxyHealthzUrl": "Disabled"}})
}

/// A new folder with what the chart renders in kube-system.
pub(crate) fn folder(values: &Value) -> PathBuf {
    folder_in("kube-system", values)
}

/// The same in another namespace, which it does not create.
pub(super) fn folder_in(namespace: &str, values: &Value) -> PathBuf {
    let directory = scratch("rendered").canonicalize().unwrap();
    for (name, text) in files(namespace, values) {
        std::fs::write(directory.join(name), text).unwrap();
    }
    directory
}

/// The files of a folder, by name.
fn files(namespace: &str, values: &Value) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    let mut objects = String::new();
    for document in text(namespace, values, &["--no-hooks"]).split("---\n") {
        let Ok(object) = serde_yaml::from_str::<Value>(document) else {
            panic!("{document}")
        };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if object["kind"] == "ConfigMap" && name.starts_with("headgate-settings-") {
            let settings = object["data"]["settings.yaml"].as_str().unwrap();
            found.insert("settings.yaml", settings.to_owned());
        } else if object["kind"] == "Secret" {
            let bytes: ByteString = serde_json::from_value(object["data"]["azure.json"].clone()).unwrap();
            found.insert("azure.json", String::from_utf8(bytes.0).unwrap() + "\n");
        } else if !object.is_null() {
            objects.push_str("---\n");
            objects.push_str(&of_no_release(document.trim_end()));
        }
    }
    found.insert("headgate.yaml", objects);
    let generators = ["settings.yaml", "azure.json"].map(|file| found.contains_key(file));
    found.insert("kustomization.yaml", kustomization(namespace, generators[1]));
    assert!(generators[0], "{values}");
    found
}

/// Without what says that Helm manages the object, and with the name of the settings that kustomize completes.
fn of_no_release(document: &str) -> String {
    let lines = document.lines().filter(|line| {
        let line = line.trim();
        !line.starts_with("app.kubernetes.io/managed-by: ") && !line.starts_with("helm.sh/")
    });
    let mut text = String::new();
    for line in lines {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let Some(start) = text.find("headgate-settings-") else {
        return text;
    };
    let name = text[start..].split_whitespace().next().unwrap().to_owned();
    text.replace(&name, "headgate-settings")
}

fn kustomization(namespace: &str, has_secret: bool) -> String {
    let secret =
        format!("secretGenerator:\n  - name: headgate-azure\n    namespace: {namespace}\n    files: [azure.json]\n");
    format!(
        "# Rendered from charts/headgate by `make docs`. In an overlay, replace the files of the generators by your own (behavior: replace)\n\
         # and name your image (images).\n\
         apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [headgate.yaml]\ngeneratorOptions:\n  \
         labels:\n    app.kubernetes.io/name: headgate\n    app.kubernetes.io/component: agent\nconfigMapGenerator:\n  \
         - name: headgate-settings\n    namespace: {namespace}\n    files: [settings.yaml]\n{}",
        if has_secret { &secret } else { "" }
    )
}

/// The folders of `manifests/`, each with the file of charts/headgate/ci from which it is rendered.
pub(super) const PROFILES: [&str; 4] = ["healthz", "azure", "aks", "everything"];

#[test]
fn generated_manifests_are_what_the_chart_renders() {
    for name in PROFILES {
        // The name that an overlay replaces.
        let more = json!({"image": {"repository": "headgate"}, "maintenance": {"keepCRDs": false}});
        let mut expected = files("kube-system", &merged(profile(name), more));
        let objects = expected.get_mut("headgate.yaml").unwrap();
        *objects = format!(
            "# Rendered from charts/headgate with ci/{name}-values.yaml by `make docs`; a test compares it.\n{objects}"
        );
        let directory = repository("manifests").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        for (file, text) in &expected {
            expect_test::expect_file![directory.join(file)].assert_eq(text);
        }
        let known = ["README.md", "role.json"];
        for entry in std::fs::read_dir(&directory).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                expected.contains_key(file.as_str()) || name == "azure" && known.contains(&file.as_str()),
                "manifests/{name}/{file} is not rendered"
            );
        }
    }
    let entries = std::fs::read_dir(repository("manifests")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["README.md", "aks", "azure", "everything", "healthz", "settings.yaml"]
    );
}
