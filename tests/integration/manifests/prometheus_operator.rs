//! The `PodMonitor` and the `PrometheusRule`s against the real Prometheus operator's CRDs: the API server accepts each with strict
//! validation, and keeps every field.

use std::path::{Path, PathBuf};
use std::process::Command;

use headgate_test_kubernetes::{kubectl, own_control_plane, scratch};
use serde_json::{Value, json};

use super::rendering::{hardened, merged, profile, rendered};
use super::{only, repository, stdout_of};
use crate::harness::{refused_for, succeed};

/// The objects of the operator's kinds.
fn objects() -> Vec<Value> {
    let values = json!({"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}});
    let mut objects = rendered("kube-system", &merged(hardened(), values), &[]);
    objects.retain(|object| object["apiVersion"] == "monitoring.coreos.com/v1");
    objects
}

/// The names of the containers of which Prometheus makes a target each, by the role `pod` of its discovery, and that the relabelings keep.
/// A container with ports has one target for each of them.
fn targets(pod: &Value, relabelings: &[Value]) -> Vec<String> {
    let lists = ["containers", "initContainers"].map(|list| pod[list].as_array().cloned().unwrap_or_default());
    let mut names = Vec::new();
    for container in lists.concat() {
        let ports = container["ports"].as_array().map_or(0, Vec::len).max(1);
        let name = container["name"].as_str().unwrap().to_owned();
        names.extend(std::iter::repeat_n(name, ports));
    }
    for rule in relabelings.iter().filter(|rule| rule["action"] == "keep") {
        assert_eq!(
            rule["sourceLabels"],
            json!(["__meta_kubernetes_pod_container_name"]),
            "{rule}"
        );
        names.retain(|name| rule["regex"] == name.as_str());
    }
    names
}

#[test]
fn each_pod_is_one_target() {
    let more = json!({"podMonitor": {"enabled": true}});
    for name in ["azure", "aks", "everything"] {
        let objects = rendered("kube-system", &merged(profile(name), more.clone()), &[]);
        let monitor = &only(&objects, "PodMonitor")["spec"];
        let relabelings = monitor["podMetricsEndpoints"][0]["relabelings"].as_array().unwrap();
        let selected = monitor["selector"]["matchExpressions"][0]["values"].as_array().unwrap();
        let templates = objects.iter().map(|object| &object["spec"]["template"]);
        let templates = templates
            .filter(|template| selected.contains(&template["metadata"]["labels"]["app.kubernetes.io/component"]));
        let found: Vec<_> = templates
            .map(|template| targets(&template["spec"], relabelings))
            .collect();
        assert_eq!(found, [["headgate"], ["headgate"]], "{name}");
    }
}

/// A file with an object.
fn file_of(object: &str) -> PathBuf {
    let file = scratch("operator").join("object.yaml");
    std::fs::write(&file, object).unwrap();
    file
}

/// The directory with the operator's CRDs, which tests/prometheus-operator/build.sh prints.
pub(super) fn definitions() -> PathBuf {
    let printed = succeed(&mut Command::new(repository("tests/prometheus-operator/build.sh")));
    PathBuf::from(printed.trim_end())
}

/// The part of an object that has the keys of `given`: without the defaults that the CRD adds.
fn without_defaults(created: &Value, given: &Value) -> Value {
    match (created, given) {
        (Value::Object(_), Value::Object(given)) => {
            let kept = given
                .iter()
                .map(|(key, value)| (key.clone(), without_defaults(&created[key.as_str()], value)));
            Value::Object(kept.collect())
        }
        (Value::Array(created), Value::Array(given)) if created.len() == given.len() => {
            let pairs = created.iter().zip(given);
            Value::Array(pairs.map(|(created, given)| without_defaults(created, given)).collect())
        }
        _ => created.clone(),
    }
}

#[tokio::test]
async fn operator_accepts_monitors_and_rules_and_keeps_every_field() {
    let control_plane = own_control_plane().await;
    let run = |arguments: &[&str], file: Option<&Path>| {
        let mut command = kubectl(control_plane.kubeconfig());
        command.args(arguments).args(file.map(|_| "-f")).args(file);
        command
    };
    let definitions = definitions();
    stdout_of(&mut run(&["create"], Some(&definitions)));
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    stdout_of(&mut run(&established, Some(&definitions)));

    let strict = ["create", "--validate=strict", "-o", "json"];
    let objects = objects();
    assert_eq!(objects.len(), 3);
    for given in &objects {
        let file = file_of(&given.to_string());
        let created: Value = serde_json::from_str(&stdout_of(&mut run(&strict, Some(&file)))).unwrap();
        assert_eq!(
            without_defaults(&created["spec"], &given["spec"]),
            given["spec"],
            "{given}"
        );
    }

    // The validation is the operator's: a field that it does not have, and a value that it refuses.
    let mut podmonitor = only(&objects, "PodMonitor").clone();
    podmonitor["metadata"]["name"] = json!("other");
    let podmonitor = serde_yaml::to_string(&podmonitor).unwrap();
    for (from, to, expected) in [
        (
            "  selector:\n",
            "  unknownField: 1\n  selector:\n",
            "unknown field \"spec.unknownField\"",
        ),
        ("action: replace", "action: nowhere", "Unsupported value: \"nowhere\""),
    ] {
        assert!(podmonitor.contains(from), "{podmonitor}");
        let file = file_of(&podmonitor.replacen(from, to, 1));
        let output = run(&strict, Some(&file)).output().unwrap();
        refused_for(&to, &output, 1, &[expected]);
    }
    control_plane.stop().await;
}
