//! The `NodeMaintenance` that `headgate drain` sends: from nodes, by name or by label, and a plan file. Pure.
//!
//! A plan file is a `NodeMaintenance` as `kubectl apply` takes it. Where nodes are given, it needs no `spec.nodeSelector`.
//! Invariant: no key of the file is dropped silently. The order and the ranges of entries are the API server's to check.

use std::collections::BTreeSet;
use std::fmt::Display;

use anyhow::{anyhow, bail, ensure};
use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::api::names::{GROUP, VERSION};
use serde_json::{Map, Value, json};

use super::selector::NodeQuery;

/// The most terms of a node selector.
const MAX_NAMED_NODES: usize = 100;
/// The longest `metadata.name`.
const MAX_NAME: usize = 253;
const KIND: &str = "NodeMaintenance";
/// The label of what `headgate drain` creates, by which `headgate undrain` finds it.
pub(super) const CREATED_BY: (&str, &str) = ("headgate.dev/created-by", "drain");

/// A plan file that was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanFile(Map<String, Value>);

impl PlanFile {
    /// Reads the text of a plan file, as YAML or JSON.
    ///
    /// # Errors
    /// When it is no `NodeMaintenance`.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let file: Value = serde_yaml::from_str(text).map_err(|error| {
            anyhow!("the plan file is not YAML: {error}; write a NodeMaintenance as for kubectl apply")
        })?;
        let text_of = |key: &str| file[key].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text_of("apiVersion"), text_of("kind"));
        match file {
            Value::Object(file) if version == format!("{GROUP}/{VERSION}") && kind == KIND => Ok(Self(file)),
            _ => bail!(
                "the plan file has apiVersion {version:?} and kind {kind:?}; allowed: {GROUP}/{VERSION} and {KIND}"
            ),
        }
    }

    /// Whether the file names the maintenance.
    pub(crate) fn has_name(&self) -> bool {
        self.0
            .get("metadata")
            .is_some_and(|metadata| metadata["name"].is_string())
    }
}

/// What a `NodeMaintenance` is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManifestRequest {
    /// Nodes by name, as [`node_names`] gives them.
    pub(crate) nodes: Vec<String>,
    /// Nodes by their labels, those of later included. Excludes nodes by name.
    pub(crate) query: Option<NodeQuery>,
    /// The plan file.
    pub(crate) file: Option<PlanFile>,
    /// The name of the maintenance; otherwise that of the file, or one that follows from the nodes.
    pub(crate) name: Option<String>,
    /// `spec.reason`, which wins over that of the file.
    pub(crate) reason: Option<String>,
    /// Whether `spec.evacuation.rollout` is `Allow`, whatever the file has.
    pub(crate) rollout: bool,
}

/// The names of nodes without the prefixes that kubectl allows, in order, each once.
pub(crate) fn node_names(given: &[String]) -> Vec<String> {
    let names: BTreeSet<_> = given
        .iter()
        .map(|name| {
            let name = name
                .strip_prefix("node/")
                .or_else(|| name.strip_prefix("nodes/"))
                .unwrap_or(name);
            name.to_owned()
        })
        .collect();
    names.into_iter().collect()
}

impl ManifestRequest {
    /// The `NodeMaintenance` in the stage `Drain`.
    ///
    /// # Errors
    /// When nodes or names are missing or given twice, or the file has a key that a `NodeMaintenance` does not have.
    pub(crate) fn build(self) -> anyhow::Result<NodeMaintenance> {
        let mut file = self.file.map(|file| file.0).unwrap_or_default();
        let given = Value::Object(file.clone());
        let mut spec = match file.remove("spec") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(spec)) => spec,
            Some(_) => return Err(no_maintenance("spec is no object")),
        };
        let has_selector = spec.get("nodeSelector").is_some_and(|selector| !selector.is_null());
        match (self.nodes.len(), has_selector) {
            (0, false) if let Some(query) = &self.query => {
                let term = json!({"matchExpressions": query.requirements()});
                spec.insert("nodeSelector".to_owned(), json!({"nodeSelectorTerms": [term]}));
            }
            (0, false) => bail!(
                "no nodes are named; name nodes on the command line, select them with -l, or set spec.nodeSelector in the plan file"
            ),
            (0, true) if self.query.is_none() => {}
            (_, true) => {
                bail!("nodes are given on the command line and by spec.nodeSelector in the plan file; use one of them")
            }
            (count, _) if count > MAX_NAMED_NODES => {
                bail!("{count} nodes are named; allowed: {MAX_NAMED_NODES}. Select more by labels, with -l")
            }
            _ => {
                spec.insert("nodeSelector".to_owned(), selector(&self.nodes));
            }
        }
        match spec.get("stage") {
            None | Some(Value::Null) => {}
            Some(Value::String(stage)) if stage == "Drain" => {}
            Some(other) => {
                let stage = other.as_str().unwrap_or_default();
                bail!("spec.stage of the plan file is {stage:?}; allowed: Drain, or none")
            }
        }
        spec.insert("stage".to_owned(), json!("Drain"));
        if let Some(reason) = self.reason {
            spec.insert("reason".to_owned(), json!(reason));
        }
        if self.rollout {
            let evacuation = spec.entry("evacuation").or_insert_with(|| json!({}));
            if let Some(evacuation) = evacuation.as_object_mut() {
                evacuation.insert("rollout".to_owned(), json!("Allow"));
            }
        }
        let in_file = given["metadata"]["name"].as_str().map(str::to_owned);
        let name = match self.name.or(in_file) {
            Some(name) => name,
            None => default_name(&self.nodes, self.query.as_ref())?,
        };
        let metadata = &given["metadata"];
        let mut labels = metadata["labels"].clone();
        if labels.is_null() {
            labels = json!({});
        }
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(CREATED_BY.0.to_owned(), json!(CREATED_BY.1));
        }
        let object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": KIND,
            "metadata": {"name": name, "labels": labels, "annotations": metadata["annotations"]},
            "spec": spec});
        let typed: NodeMaintenance = serde_json::from_value(object.clone()).map_err(no_maintenance)?;
        let sent = serde_json::to_value(&typed).map_err(no_maintenance)?;
        match unknown_key(&given, &sent, "").or_else(|| unknown_key(&object, &sent, "")) {
            Some(key) => Err(no_maintenance(format!("{key} is not a field that can be set"))),
            None => Ok(typed),
        }
    }
}

/// A key or a value of the file is not one of a `NodeMaintenance`.
fn no_maintenance(why: impl Display) -> anyhow::Error {
    anyhow!("the plan file is no {KIND}: {why}")
}

/// One term for each node. The admission policy recognizes nodes that are named like this.
fn selector(nodes: &[String]) -> Value {
    let terms: Vec<_> = nodes
        .iter()
        .map(|node| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}))
        .collect();
    json!({"nodeSelectorTerms": terms})
}

/// A name that the same nodes, or the same labels, always have, so that a command that is repeated finds its maintenance.
fn default_name(nodes: &[String], query: Option<&NodeQuery>) -> anyhow::Result<String> {
    let name = match nodes {
        [] => match query {
            Some(query) => {
                let texts: BTreeSet<_> = query.requirements().iter().map(|one| json!(one).to_string()).collect();
                format!("drain-selected-{:08x}", fingerprint(texts))
            }
            None => bail!("the maintenance has no name; give --name NAME, or set metadata.name in the plan file"),
        },
        [node] => format!("drain-{node}"),
        nodes => format!("drain-{}-nodes-{:08x}", nodes.len(), fingerprint(nodes)),
    };
    ensure!(
        name.len() <= MAX_NAME,
        "the name {name:?} of the maintenance is longer than {MAX_NAME} characters; give --name NAME"
    );
    Ok(name)
}

/// FNV-1a of the texts, each with an end.
fn fingerprint(texts: impl IntoIterator<Item = impl AsRef<str>>) -> u32 {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend(text.as_ref().bytes().chain([b'\n']));
    }
    bytes.into_iter().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The first key of `given` that `sent` does not have. `null` stands for a key that is not set.
fn unknown_key(given: &Value, sent: &Value, path: &str) -> Option<String> {
    match (given, sent) {
        (Value::Object(given), Value::Object(sent)) => {
            given
                .iter()
                .filter(|(_, value)| !value.is_null())
                .find_map(|(key, value)| {
                    let path = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    match sent.get(key) {
                        None => Some(path),
                        Some(sent) => unknown_key(value, sent, &path),
                    }
                })
        }
        (Value::Array(given), Value::Array(sent)) => {
            let mut pairs = given.iter().zip(sent).enumerate();
            pairs.find_map(|(index, (given, sent))| unknown_key(given, sent, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use headgate_maintenance::api::{LoadBalancerConfirmation, PodType, RolloutPolicy, Stage};

    use super::*;

    fn request(nodes: &[&str], file: Option<&str>) -> ManifestRequest {
        let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        ManifestRequest {
            nodes: node_names(&nodes),
            file: file.map(|spec| {
                PlanFile::parse(&format!(
                    "apiVersion: headgate.dev/v1alpha1\nkind: NodeMaintenance\n{spec}"
                ))
                .unwrap()
            }),
            ..ManifestRequest::default()
        }
    }

    fn problem(nodes: &[&str], file: Option<&str>) -> String {
        request(nodes, file).build().unwrap_err().to_string()
    }

    #[test]
    fn nodes_are_selected_by_name_one_term_each() {
        let object = request(&["nodes/b", "node/a", "b"], None).build().unwrap();
        let terms = object.spec.node_selector.node_selector_terms;
        let names: Vec<_> = terms
            .iter()
            .map(|term| term.match_fields.as_ref().unwrap()[0].values.clone().unwrap())
            .collect();
        assert_eq!(names, [["a"], ["b"]]);
        assert_eq!(object.spec.stage, Stage::Drain);
        assert!(terms.iter().all(|term| term.match_expressions.is_none()));
    }

    #[test]
    fn the_same_nodes_have_the_same_name() {
        let name = |nodes: &[&str]| request(nodes, None).build().unwrap().metadata.name.unwrap();
        assert_eq!(name(&["one"]), "drain-one");
        assert_eq!(name(&["a", "b"]), name(&["b", "a"]));
        assert_ne!(name(&["a", "b"]), name(&["a", "c"]));
        assert_ne!(name(&["ab", "c"]), name(&["a", "bc"]));
        assert!(name(&["a", "b"]).starts_with("drain-2-nodes-"));
        assert!(problem(&[&"n".repeat(250)], None).contains("--name"));
        let named = ManifestRequest {
            name: Some("update".to_owned()),
            ..request(&["one"], Some("metadata: {name: other}"))
        };
        assert_eq!(named.build().unwrap().metadata.name.as_deref(), Some("update"));
    }

    #[test]
    fn labels_are_one_term_with_a_name_of_its_own() {
        let by = |text: &str, file| ManifestRequest {
            query: Some(NodeQuery::parse(text).unwrap()),
            ..request(&[], file)
        };
        let object = by("pool=a,!gpu", None).build().unwrap();
        let terms = serde_json::to_value(&object.spec.node_selector.node_selector_terms).unwrap();
        let expected = json!([{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]},
            {"key": "gpu", "operator": "DoesNotExist"}]}]);
        assert_eq!(terms, expected);
        let name = |text| by(text, None).build().unwrap().metadata.name.unwrap();
        assert!(name("pool=a").starts_with("drain-selected-"));
        assert_eq!(name("pool=a,!gpu"), name("!gpu,pool=a"));
        assert_ne!(name("pool=a"), name("pool=b"));
        let selector =
            "spec: {nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}]}}";
        let error = by("pool=a", Some(selector)).build().unwrap_err().to_string();
        assert!(error.contains("use one of them"), "{error}");
    }

    #[test]
    fn a_plan_file_gives_everything_else() {
        let file = "metadata: {name: kernel, labels: {team: a}}\nspec:\n  reason: kernel update\n  loadBalancer: {confirmation: BestEffort}\n  \
            drainPlan:\n  - {podPriority: 5, podSelector: {matchLabels: {app: web}}}\n  - {podPriority: 7, podType: DaemonSet}\n";
        let object = request(&["one"], Some(file)).build().unwrap();
        assert_eq!(object.metadata.name.as_deref(), Some("kernel"));
        assert_eq!(object.metadata.labels.as_ref().unwrap()["team"], "a");
        assert_eq!(object.spec.reason, "kernel update");
        assert_eq!(
            object.spec.load_balancer.confirmation,
            LoadBalancerConfirmation::BestEffort
        );
        assert_eq!(object.spec.drain_plan[1].pod_type, PodType::DaemonSet);
        let reason = ManifestRequest {
            reason: Some("by hand".to_owned()),
            ..request(&["one"], Some(file))
        };
        assert_eq!(reason.build().unwrap().spec.reason, "by hand");
        for file in ["spec: {}", "spec: {evacuation: {rollout: Annotated}}"] {
            for (rollout, expected) in [(false, RolloutPolicy::Annotated), (true, RolloutPolicy::Allow)] {
                let request = ManifestRequest {
                    rollout,
                    ..request(&["one"], Some(file))
                };
                assert_eq!(request.build().unwrap().spec.evacuation.rollout, expected, "{file}");
            }
        }
        assert_eq!(object.metadata.labels.unwrap()["headgate.dev/created-by"], "drain");
        let selected = "metadata: {name: m}\nspec: {stage: Drain, nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: pool, \
            operator: In, values: [a]}]}]}}";
        assert!(request(&[], Some(selected)).build().is_ok());
    }

    #[test]
    fn mistakes_name_what_to_change() {
        let selector = "nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}]}";
        let many: Vec<_> = (0..101).map(|n| format!("n{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (nodes, file, expected) in [
            (&[][..], None, "no nodes are named"),
            (&[], Some("spec: {}".to_owned()), "no nodes are named"),
            (&["one"], Some(format!("spec: {{{selector}}}")), "use one of them"),
            (&[], Some(format!("spec: {{{selector}}}")), "give --name NAME"),
            (&many, None, "101 nodes are named"),
            (
                &["one"],
                Some("spec: {stage: Cordon}".to_owned()),
                "\"Cordon\"; allowed: Drain",
            ),
            (&["one"], Some("spec: [1]".to_owned()), "spec is no object"),
            (
                &["one"],
                Some("spec: {drainplan: []}".to_owned()),
                "spec.drainplan is not a field",
            ),
            (&["one"], Some("specs: {}".to_owned()), "specs is not a field"),
            (
                &["one"],
                Some("metadata: {generateName: x}".to_owned()),
                "metadata.generateName is not a field",
            ),
            (&["one"], Some("status: {nodes: 1}".to_owned()), "status is not a field"),
            (
                &["one"],
                Some("spec: {drainPlan: [{podPriority: 1}, {podPriority: 2, podSelecter: {}}]}".to_owned()),
                "spec.drainPlan[1].podSelecter is not a field",
            ),
            (
                &["one"],
                Some("spec: {drainPlan: [{podType: Default}]}".to_owned()),
                "podPriority",
            ),
            (&["one"], Some("spec: {dryRun: maybe}".to_owned()), "maybe"),
        ] {
            let found = problem(nodes, file.as_deref());
            assert!(found.contains(expected), "{expected:?} is not in {found:?}");
        }
        for (text, expected) in [
            ("a: [", "not YAML"),
            ("- a", "kind \"\""),
            ("apiVersion: v1\nkind: Pod", "\"v1\" and kind \"Pod\""),
        ] {
            let found = PlanFile::parse(text).unwrap_err().to_string();
            assert!(found.contains(expected), "{expected:?} is not in {found:?}");
        }
    }
}
