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
    pub(super) fn has_status(&self) -> bool {
        self.name == "Node"
    }
}

static RESOURCES: [ResourceKind; 8] = [
    ResourceKind {
        api_version: "v1",
        plural: "nodes",
        name: "Node",
        is_namespaced: false,
        allows_unconditional_update: true,
        allows_create_on_update: false,
    },
    ResourceKind {
        api_version: "v1",
        plural: "configmaps",
        name: "ConfigMap",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: false,
    },
    ResourceKind {
        api_version: "v1",
        plural: "services",
        name: "Service",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: true,
    },
    ResourceKind {
        api_version: "discovery.k8s.io/v1",
        plural: "endpointslices",
        name: "EndpointSlice",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: false,
    },
    ResourceKind {
        api_version: "v1",
        plural: "secrets",
        name: "Secret",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: false,
    },
    ResourceKind {
        api_version: "coordination.k8s.io/v1",
        plural: "leases",
        name: "Lease",
        is_namespaced: true,
        allows_unconditional_update: false,
        allows_create_on_update: true,
    },
    ResourceKind {
        api_version: "v1",
        plural: "events",
        name: "Event",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: true,
    },
    ResourceKind {
        api_version: "events.k8s.io/v1",
        plural: "events",
        name: "Event",
        is_namespaced: true,
        allows_unconditional_update: true,
        allows_create_on_update: true,
    },
];

/// What a list or watch selects.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    /// By resource, namespace and name.
    pub(super) key: ObjectKey,
    /// The `spec.type` of Services.
    pub(super) service_type: Option<String>,
}

impl Selector {
    /// Whether it selects this object.
    pub(super) fn matches(&self, key: &ObjectKey, object: &Value) -> bool {
        let has_type = |service_type: &String| object["spec"]["type"] == **service_type;
        key.matches(&self.key) && self.service_type.as_ref().is_none_or(has_type)
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

    /// Parses a request path. The second value is true for the `status` subresource.
    pub(super) fn parse_path(path: &str) -> (Self, bool) {
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
            [plural] => (Self::new(&api_version, plural, namespace, ""), false),
            [plural, name] => (Self::new(&api_version, plural, namespace, name), false),
            [plural, name, "status"] => {
                let key = Self::new(&api_version, plural, namespace, name);
                assert!(key.kind.has_status(), "{path}");
                (key, true)
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
