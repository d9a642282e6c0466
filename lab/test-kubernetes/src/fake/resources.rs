//! The resources of the API, and the objects that a request path names.

use serde_json::Value;

/// A resource, and how kube-apiserver handles its updates.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResourceKind {
    pub(super) api_version: &'static str,
    pub(super) plural: &'static str,
    pub(super) name: &'static str,
    pub(super) is_namespaced: bool,
    /// Whether a PUT without `resourceVersion` is accepted.
    pub(super) allows_unconditional_update: bool,
    /// Whether a PUT creates a missing object.
    pub(super) allows_create_on_update: bool,
}

impl ResourceKind {
    /// A resource with namespaces, whose objects a PUT without `resourceVersion` updates and does not create.
    const fn of(api_version: &'static str, plural: &'static str, name: &'static str) -> Self {
        Self {
            api_version,
            plural,
            name,
            is_namespaced: true,
            allows_unconditional_update: true,
            allows_create_on_update: false,
        }
    }

    const fn without_namespace(mut self) -> Self {
        self.is_namespaced = false;
        self
    }

    /// A PUT needs `resourceVersion`.
    const fn updated_by_version(mut self) -> Self {
        self.allows_unconditional_update = false;
        self
    }

    /// A PUT creates what is missing.
    const fn created_by_update(mut self) -> Self {
        self.allows_create_on_update = true;
        self
    }

    /// Whether it has the subresource `status`.
    pub(super) fn has_status(&self) -> bool {
        let names = [
            "Node",
            "Pod",
            "PodDisruptionBudget",
            "Deployment",
            "NodeMaintenance",
            "Evacuation",
        ];
        names.contains(&self.name)
    }

    /// The `generation` after a change; kinds without a status have none, and that of pods is left out. It counts the changes of the
    /// spec, the beginning of the deletion, and as the only annotations those of Deployments.
    pub(super) fn next_generation(&self, before: &Value, after: &Value) -> Option<u64> {
        if !self.has_status() || ["Node", "Pod"].contains(&self.name) {
            return None;
        }
        let differs = |at: &str| before.pointer(at) != after.pointer(at);
        let is_changed = before.is_null()
            || differs("/spec")
            || differs("/metadata/deletionTimestamp")
            || (self.name == "Deployment" && differs("/metadata/annotations"));
        let generation = before["metadata"]["generation"].as_u64().unwrap_or_default();
        Some(generation + u64::from(is_changed))
    }
}

static RESOURCES: [ResourceKind; 17] = [
    ResourceKind::of("cluster.x-k8s.io/v1beta2", "machines", "Machine"),
    ResourceKind::of("v1", "nodes", "Node").without_namespace(),
    ResourceKind::of("v1", "pods", "Pod"),
    ResourceKind::of("v1", "serviceaccounts", "ServiceAccount"),
    ResourceKind::of("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget").updated_by_version(),
    ResourceKind::of("apps/v1", "deployments", "Deployment"),
    ResourceKind::of("apps/v1", "replicasets", "ReplicaSet"),
    ResourceKind::of("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ResourceKind::of("headgate.dev/v1alpha1", "nodemaintenances", "NodeMaintenance")
        .without_namespace()
        .updated_by_version(),
    ResourceKind::of("headgate.dev/v1alpha1", "evacuations", "Evacuation").updated_by_version(),
    ResourceKind::of("v1", "configmaps", "ConfigMap"),
    ResourceKind::of("v1", "services", "Service").created_by_update(),
    ResourceKind::of("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    ResourceKind::of("v1", "secrets", "Secret"),
    ResourceKind::of("coordination.k8s.io/v1", "leases", "Lease")
        .updated_by_version()
        .created_by_update(),
    ResourceKind::of("v1", "events", "Event").created_by_update(),
    ResourceKind::of("events.k8s.io/v1", "events", "Event").created_by_update(),
];

/// A part of an object with a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subresource {
    Status,
    /// Of pods.
    Eviction,
}

/// What a list or watch selects.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    /// By resource, namespace and name.
    pub(super) key: ObjectKey,
    /// Fields with their values.
    pub(super) fields: Vec<(&'static str, String)>,
    /// Labels of pods with their values.
    pub(super) labels: Vec<(String, String)>,
}

impl Selector {
    /// Whether it selects this object.
    pub(super) fn matches(&self, key: &ObjectKey, object: &Value) -> bool {
        let has = |(field, value): &(&str, String)| {
            let found = field.split('.').fold(object, |object, key| &object[key]);
            found == value.as_str()
        };
        key.matches(&self.key)
            && self.fields.iter().all(has)
            && self
                .labels
                .iter()
                .all(|(label, value)| object["metadata"]["labels"][label] == **value)
    }
}

/// The object that a request names. With an empty name or namespace it selects all objects that match the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    pub(super) kind: &'static ResourceKind,
    /// Empty for all namespaces, and for resources without a namespace.
    pub(super) namespace: String,
    /// Empty for all objects.
    pub(super) name: String,
}

impl ObjectKey {
    pub(super) fn new(api_version: &str, plural: &str, namespace: &str, name: &str) -> Self {
        let kind = RESOURCES
            .iter()
            .find(|kind| kind.api_version == api_version && kind.plural == plural);
        let kind = kind.unwrap_or_else(|| panic!("the fake has no {plural} of {api_version}"));
        let namespace = if kind.is_namespaced { namespace } else { "" };
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Parses a request path. The second value is the subresource, if the path names one.
    pub(super) fn parse_path(path: &str) -> (Self, Option<Subresource>) {
        let unknown = || format!("the fake has no path {path}");
        let rest = path.strip_prefix("/api/").or_else(|| path.strip_prefix("/apis/"));
        let mut parts: Vec<_> = rest.unwrap_or_else(|| panic!("{}", unknown())).split('/').collect();
        let versions = if path.starts_with("/apis/") { 2 } else { 1 };
        let api_version = parts.drain(..versions.min(parts.len())).collect::<Vec<_>>().join("/");
        let namespace = if parts.first() == Some(&"namespaces") {
            parts.drain(..2).nth(1).unwrap_or_default()
        } else {
            ""
        };
        match *parts {
            [plural] => (Self::new(&api_version, plural, namespace, ""), None),
            [plural, name] => (Self::new(&api_version, plural, namespace, name), None),
            [plural, name, "status"] => {
                let key = Self::new(&api_version, plural, namespace, name);
                assert!(key.kind.has_status(), "{path}");
                (key, Some(Subresource::Status))
            }
            ["pods", name, "eviction"] => {
                let key = Self::new(&api_version, "pods", namespace, name);
                (key, Some(Subresource::Eviction))
            }
            _ => panic!("{}", unknown()),
        }
    }

    /// Whether a selector selects this object.
    pub(super) fn matches(&self, selector: &Self) -> bool {
        let is_selected = |own: &str, selected: &str| selected.is_empty() || own == selected;
        self.kind == selector.kind
            && is_selected(&self.namespace, &selector.namespace)
            && is_selected(&self.name, &selector.name)
    }
}
