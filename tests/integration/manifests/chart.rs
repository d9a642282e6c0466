//! The Helm chart: that it renders the objects of the manifests (`objects`), refuses values that cannot work (`values`), what each profile
//! switches on (`profiles`), that every value is documented (`readme`), and that it can be installed, upgraded, rolled back and deleted on a real API server (`release`). All with the real helm.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{SOON, files, of_kind, only, overlay_of, render, repository, stdout_of, text};

mod objects;
mod profiles;
mod readme;
mod release;
mod values;

/// The labels of all objects of the chart.
const LABELS: [&str; 7] = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// The directory with helm and chart-oci-layout, which tests/helm/build.sh prints.
fn tools() -> &'static Path {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let script = repository("tests/helm/build.sh");
        let output = Command::new(&script).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", script.display());
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
    })
}

/// helm with no files of the user's.
fn helm(arguments: &[&str]) -> Command {
    let home = headgate_test_kubernetes::scratch("helm");
    let mut command = Command::new(tools().join("helm"));
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    command.env_remove("KUBECONFIG").args(arguments);
    command
}

fn chart() -> PathBuf {
    repository("charts/headgate")
}

/// The values of one with those of another, which win.
fn merged(mut one: Value, other: Value) -> Value {
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

/// The profile `aks` with azure.json in a Secret.
fn aks() -> Value {
    json!({"profile": "aks", "azure": {"existingSecret": "headgate-azure"}})
}

/// A file with values, in a new directory.
fn values_file(values: &Value) -> PathBuf {
    let file = headgate_test_kubernetes::scratch("values").join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    file
}

/// `helm template` of the chart with these values in a namespace.
fn template(namespace: &str, values: &Value, more: &[&str]) -> Output {
    let mut command = helm(&["template", "headgate"]);
    command.arg(chart()).args(["--namespace", namespace, "--values"]);
    command.arg(values_file(values)).args(more);
    command.output().unwrap()
}

/// The objects that the chart renders; it must.
fn rendered(namespace: &str, values: &Value, more: &[&str]) -> Vec<Value> {
    let output = template(namespace, values, more);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values}: {errors}");
    let yaml = String::from_utf8(output.stdout).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&yaml).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}
