//! The chart and the manifests render the same objects: every overlay, example and component has a row here.
//!
//! Four things differ and are left out: the labels of a release (`profiles` has them); kustomize puts a hash into the names of the settings' `ConfigMap` and the Secret where the
//! chart has an annotation of the pod template; the settings are compared as values; helm creates the namespace itself.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use super::{LABELS, files, merged, of_kind, overlay_of, render, rendered, repository, text};

/// One installation, both ways.
struct Row {
    /// The folders of the manifests that it uses; those of others that they include need not be named.
    folders: &'static [&'static str],
    /// The folder that kustomize renders; with components, an overlay of it.
    on: &'static str,
    components: &'static [&'static str],
    /// Settings of the overlay; empty: those of the folder.
    settings: &'static str,
    namespace: &'static str,
    values: Value,
}

impl Row {
    /// A folder as it is.
    fn folder(folder: &'static str, values: Value) -> Self {
        Self {
            folders: &[],
            on: folder,
            components: &[],
            settings: "",
            namespace: "kube-system",
            values,
        }
    }

    /// An overlay of a folder with components and settings.
    fn overlay(on: &'static str, components: &'static [&'static str], settings: &'static str, values: Value) -> Self {
        Self {
            components,
            settings,
            ..Self::folder(on, values)
        }
    }

    /// The folders that this row covers.
    fn covers(&self) -> Vec<String> {
        let components = self.components.iter().map(|name| format!("components/{name}"));
        let others = self.folders.iter().copied().chain([self.on]).map(str::to_owned);
        components.chain(others).collect()
    }

    fn of_kustomize(&self) -> Vec<Value> {
        if self.components.is_empty() && self.settings.is_empty() {
            return render(&repository("manifests").join(self.on));
        }
        let components: Vec<String> = self
            .components
            .iter()
            .map(|name| format!("  - @/components/{name}\n"))
            .collect();
        let components = components.concat();
        let overlay = format!(
            "resources: [\"@/{}\"]\ncomponents:\n{components}configMapGenerator:\n  - name: headgate-settings\n    \
             namespace: kube-system\n    behavior: replace\n    files: [settings.yaml]\n",
            self.on
        );
        render(&overlay_of(&overlay, &[("settings.yaml", self.settings)]))
    }

    fn name(&self) -> String {
        format!("{} {:?}", self.on, self.components)
    }
}

/// azure.json of an example.
fn azure_json(example: &str) -> Value {
    serde_json::from_str(&text(&format!("manifests/examples/{example}/azure.json"))).unwrap()
}

fn image() -> Value {
    json!({"image": {"repository": "registry.example.com/headgate"}})
}

/// The profile `aks` with all that it switches on switched off, and azure.json in a Secret.
fn hardened() -> Value {
    json!({"profile": "aks", "azure": {"existingSecret": "headgate-azure"}, "outOfLoadBalancers": {"enabled": false},
        "evictionNotices": {"enabled": false}, "connections": {"enabled": false}, "signals": {"kubeletShutdown": false, "cordon": false}})
}

fn on_nodes() -> Value {
    merged(hardened(), json!({"azure": {"leaderOnNodes": true}}))
}

/// Workload identity with azure.json of an example.
fn identity(example: &str) -> Value {
    json!({"azure": {"existingSecret": "", "config": azure_json(example), "workloadIdentity": "token"}})
}

/// The Node condition, and nothing that waits for it.
fn condition() -> Value {
    json!({"outOfLoadBalancers": {"enabled": true}, "delayTermination": {"clusterAutoscaler": false, "karpenter": false}})
}

fn rows() -> Vec<Row> {
    [rows_of_folders(), rows_of_components()]
        .into_iter()
        .flatten()
        .collect()
}

/// The bases, overlays and examples.
fn rows_of_folders() -> Vec<Row> {
    let webhook = json!({"azure": {"existingSecret": "", "config": azure_json("azure-workload-identity-webhook"),
        "workloadIdentity": "webhook", "clientId": "00000000-0000-0000-0000-000000000003"}});
    let webhook = merged(on_nodes(), webhook);
    let without_kube_proxy = json!({"serviceHealth": "nodePorts",
        "settings": {"node": {"healthzBindAddress": "[::]:10256", "proxy": {"healthzUrl": "off"}}}});
    vec![
        Row::folder("base", json!({})),
        Row {
            folders: &["components/controller", "components/network-policy"],
            ..Row::folder("overlays/hardened", hardened())
        },
        Row::folder(
            "examples/hardened",
            merged(merged(image(), hardened()), identity("hardened")),
        ),
        Row::folder(
            "examples/azure-workload-identity",
            merged(merged(image(), on_nodes()), identity("azure-workload-identity")),
        ),
        Row::folder("examples/azure-workload-identity-webhook", merged(image(), webhook)),
        Row::folder(
            "examples/marker",
            merged(merged(image(), hardened()), merged(identity("marker"), condition())),
        ),
        Row::folder("examples/no-kube-proxy", merged(image(), without_kube_proxy)),
        Row::folder(
            "examples/podmonitor",
            merged(image(), json!({"podMonitor": {"enabled": true}})),
        ),
        Row::folder(
            "examples/spot",
            merged(image(), json!({"evictionNotices": {"enabled": true}})),
        ),
        Row {
            namespace: "headgate",
            ..Row::folder("examples/other-namespace", json!({}))
        },
        Row::folder(
            "examples/autoscalers",
            merged(
                merged(image(), hardened()),
                merged(
                    identity("autoscalers"),
                    json!({"outOfLoadBalancers": {"enabled": true}, "settings": {"holdDeletion": {"timeout": "2m"}}}),
                ),
            ),
        ),
    ]
}

/// The components, each on what it needs, and all of them together.
#[allow(clippy::too_many_lines, reason = "one table")]
fn rows_of_components() -> Vec<Row> {
    let leader = merged(
        on_nodes(),
        json!({"azure": {"existingSecret": "", "configSecret": "azure-cloud-provider"}}),
    );
    let maintenance = json!({"maintenance": {"enabled": true, "keepCRDs": false}});
    vec![
        Row::overlay("base", &["azure"], "{}", on_nodes()),
        Row::overlay(
            "base",
            &["azure", "azure-workload-identity"],
            "{}",
            merged(
                on_nodes(),
                json!({"azure": {"existingSecret": "headgate-azure", "workloadIdentity": "token"}}),
            ),
        ),
        Row::overlay(
            "base",
            &["leader", "azure-config-secret"],
            "azure: {configSecret: kube-system/azure-cloud-provider}",
            leader,
        ),
        Row::overlay(
            "base",
            &["service-health"],
            "node: {serviceHealth: path}",
            json!({"serviceHealth": "path"}),
        ),
        Row::overlay(
            "base",
            &["connections"],
            "node: {countConnections: true}",
            json!({"connections": {"enabled": true}}),
        ),
        Row::overlay("base", &["podmonitor"], "{}", json!({"podMonitor": {"enabled": true}})),
        Row::overlay("base", &["dashboards"], "{}", json!({"dashboards": {"enabled": true}})),
        Row::overlay("base", &["alerts"], "{}", json!({"prometheusRule": {"enabled": true}})),
        Row::overlay(
            "base",
            &["azure", "alerts", "alerts-azure"],
            "{}",
            merged(on_nodes(), json!({"prometheusRule": {"enabled": true}})),
        ),
        Row::overlay(
            "base",
            &["spot"],
            "node: {scheduledEvents: true}",
            json!({"evictionNotices": {"enabled": true}}),
        ),
        Row::overlay(
            "overlays/hardened",
            &["marker"],
            "marker: {mode: adminState}",
            merged(hardened(), condition()),
        ),
        Row::overlay(
            "overlays/hardened",
            &["marker", "delay-deletion", "hold"],
            "{marker: {mode: adminState}, holdDeletion: {clusterAutoscaler: candidates}}",
            merged(hardened(), json!({"outOfLoadBalancers": {"enabled": true}})),
        ),
        Row::overlay(
            "overlays/hardened",
            &["maintenance"],
            "maintenance: {enabled: true}",
            merged(hardened(), maintenance.clone()),
        ),
        Row::overlay(
            "overlays/hardened",
            &["maintenance", "automatic"],
            "maintenance: {enabled: true, automatic: [preempt, autoscaler]}",
            merged(
                hardened(),
                merged(
                    maintenance.clone(),
                    json!({"maintenance": {"automatic": ["preempt", "autoscaler"]}}),
                ),
            ),
        ),
        Row::overlay(
            "overlays/hardened",
            &["maintenance", "automatic", "cluster-api"],
            "maintenance: {enabled: true, automatic: [machine]}",
            merged(
                hardened(),
                merged(maintenance.clone(), json!({"maintenance": {"automatic": ["machine"]}})),
            ),
        ),
        Row::overlay(
            "overlays/hardened",
            &["maintenance", "rollout"],
            "maintenance: {enabled: true}",
            merged(
                hardened(),
                merged(maintenance.clone(), json!({"maintenance": {"rollout": true}})),
            ),
        ),
        Row::overlay(
            "overlays/hardened",
            &["service-health", "spot", "marker", "maintenance", "podmonitor"],
            "{node: {scheduledEvents: true, serviceHealth: path}, marker: {mode: adminState}, maintenance: {enabled: true}}",
            merged(
                merged(merged(hardened(), condition()), maintenance),
                json!({"serviceHealth": "path", "evictionNotices": {"enabled": true}, "podMonitor": {"enabled": true}}),
            ),
        ),
    ]
}

/// Removes the hash that kustomize appends to names of what it generates.
fn without_hash(text: &str) -> String {
    for name in ["headgate-settings", "headgate-azure"] {
        let hash = text.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        if hash.is_some_and(|hash| hash.len() == 10 && hash.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            return name.to_owned();
        }
    }
    text.to_owned()
}

fn normal(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_hash(&text)),
        Value::Array(items) => items.into_iter().map(normal).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, normal(value)));
            let fields = fields.filter(|(key, _)| !key.starts_with("checksum/"));
            // Without the checksums, nothing may be left of the annotations.
            let fields = fields.filter(|(key, value)| key != "annotations" || *value != json!({}));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// The objects by kind, namespace and name, in the form in which they are compared.
fn compared(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for object in objects.into_iter().filter(|object| object["kind"] != "Namespace") {
        let mut object = normal(object);
        let metadata = &object["metadata"];
        let key = format!(
            "{} {} {}/{}",
            object["apiVersion"], object["kind"], metadata["namespace"], metadata["name"]
        );
        if object["data"]["settings.yaml"].is_string() {
            let yaml: serde_yaml::Value =
                serde_yaml::from_str(object["data"]["settings.yaml"].as_str().unwrap()).unwrap();
            let mut settings = if yaml.is_null() { json!({}) } else { json!(yaml) };
            // An overlay of this test leaves them out.
            let fields = settings.as_object_mut().unwrap();
            for (key, value) in [
                ("apiVersion", "config.headgate.dev/v1alpha1"),
                ("kind", "HeadgateConfiguration"),
            ] {
                fields.entry(key).or_insert_with(|| json!(value));
            }
            object["data"]["settings.yaml"] = settings;
        }
        if object["kind"] == "Secret" {
            // kustomize folds it.
            let text = object["data"]["azure.json"].as_str().unwrap().replace('\n', "");
            let bytes: ByteString = serde_json::from_value(json!(text)).unwrap();
            object["data"]["azure.json"] = serde_json::from_slice(&bytes.0).unwrap();
        }
        assert_eq!(found.insert(key.clone(), object), None, "{key} twice");
    }
    found
}

/// The chart's object without the labels of a release, as far as the manifest has none of them.
fn without_labels_of_a_release(manifest: &Value, chart: &Value) -> Value {
    let mut chart = chart.clone();
    let here = ["/metadata", "/spec/template/metadata"];
    for metadata in here {
        let Some(Value::Object(fields)) = chart.pointer_mut(metadata) else {
            continue;
        };
        let Some(Value::Object(labels)) = fields.get_mut("labels") else {
            continue;
        };
        let theirs = &manifest.pointer(metadata).unwrap_or(&Value::Null)["labels"];
        labels.retain(|label, _| !LABELS.contains(&label.as_str()) || theirs.get(label).is_some());
        if labels.is_empty() {
            fields.remove("labels");
        }
    }
    chart
}

/// Where two values differ, in words.
fn differences(path: &str, manifests: &Value, chart: &Value, found: &mut Vec<String>) {
    match (manifests, chart) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let (one, other) = (one.get(key), other.get(key));
                let (one, other) = (one.unwrap_or(&Value::Null), other.unwrap_or(&Value::Null));
                differences(&format!("{path}/{key}"), one, other, found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(&format!("{path}/{index}"), one, other, found);
            }
        }
        (one, other) if one != other => found.push(format!("{path}: manifests {one}, chart {other}")),
        _ => {}
    }
}

#[test]
fn every_folder_of_the_manifests_has_a_counterpart_in_the_chart() {
    let covered: BTreeSet<String> = rows().iter().flat_map(Row::covers).collect();
    for folder in [of_kind("Kustomization"), of_kind("Component")].concat() {
        assert!(
            covered.contains(&folder),
            "manifests/{folder} has no counterpart in charts/headgate: add a value for it with its objects, and a row with both here"
        );
    }
}

#[test]
fn chart_and_manifests_render_the_same_objects() {
    let mut found = Vec::new();
    for row in rows() {
        let manifests = compared(row.of_kustomize());
        let chart = compared(rendered(row.namespace, &row.values, &["--no-hooks"]));
        let keys: BTreeSet<_> = manifests.keys().chain(chart.keys()).collect();
        for key in keys {
            match (manifests.get(key), chart.get(key)) {
                (Some(one), Some(other)) => {
                    let other = without_labels_of_a_release(one, other);
                    differences(&format!("{}: {key}", row.name()), one, &other, &mut found);
                }
                (Some(_), None) => found.push(format!("{}: {key} is missing in the chart", row.name())),
                (None, _) => found.push(format!("{}: {key} is only in the chart", row.name())),
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn generated_chart_files_are_those_of_the_manifests() {
    let mut copied = BTreeSet::new();
    for (path, text) in files() {
        let name = path.strip_prefix("components/").unwrap_or(&path);
        let target = repository("charts/headgate/files").join(name);
        if target.exists() {
            expect_test::expect_file![target.clone()].assert_eq(&text);
            copied.insert(target);
        }
    }
    let mut folders = vec![repository("charts/headgate/files")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert!(
                    copied.contains(&path),
                    "{} is in no folder of manifests/",
                    path.display()
                );
            }
        }
    }
    assert!(copied.len() >= 12, "{copied:?}");
}
