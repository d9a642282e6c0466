//! Which resources there are, and what a path names.

/// One resource.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) api_version: &'static str,
    pub(super) plural: &'static str,
    pub(super) name: &'static str,
    pub(super) namespaced: bool,
    /// Whether a PUT without `resourceVersion` is taken.
    pub(super) unconditional: bool,
    /// Whether a PUT makes what is not there.
    pub(super) made_by_put: bool,
}

impl Kind {
    pub(super) fn has_status(&self) -> bool {
        self.name == "Node"
    }
}

static KINDS: [Kind; 5] = [
    Kind {
        api_version: "v1",
        plural: "nodes",
        name: "Node",
        namespaced: false,
        unconditional: true,
        made_by_put: false,
    },
    Kind {
        api_version: "v1",
        plural: "configmaps",
        name: "ConfigMap",
        namespaced: true,
        unconditional: true,
        made_by_put: false,
    },
    Kind {
        api_version: "v1",
        plural: "secrets",
        name: "Secret",
        namespaced: true,
        unconditional: true,
        made_by_put: false,
    },
    Kind {
        api_version: "coordination.k8s.io/v1",
        plural: "leases",
        name: "Lease",
        namespaced: true,
        unconditional: false,
        made_by_put: true,
    },
    Kind {
        api_version: "events.k8s.io/v1",
        plural: "events",
        name: "Event",
        namespaced: true,
        unconditional: true,
        made_by_put: true,
    },
];

/// Which object, or with empty names which objects, a request is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) kind: &'static Kind,
    /// Empty: of all namespaces, or of none.
    pub(super) namespace: String,
    /// Empty: all.
    pub(super) name: String,
}

impl At {
    pub(super) fn new(api_version: &str, plural: &str, namespace: &str, name: &str) -> Self {
        let kind = KINDS
            .iter()
            .find(|kind| kind.api_version == api_version && kind.plural == plural);
        let kind = kind.unwrap_or_else(|| panic!("{plural} of {api_version} are not made up"));
        let namespace = if kind.namespaced { namespace } else { "" };
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// What a path names, and whether it is its status.
    pub(super) fn of_path(path: &str) -> (Self, bool) {
        let unknown = || format!("nothing is made up at {path}");
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
                let at = Self::new(&api_version, plural, namespace, name);
                assert!(at.kind.has_status(), "{path}");
                (at, true)
            }
            _ => panic!("{}", unknown()),
        }
    }

    /// Whether this one object is among those.
    pub(super) fn is_among(&self, those: &Self) -> bool {
        let is = |own: &str, asked: &str| asked.is_empty() || own == asked;
        self.kind == those.kind && is(&self.namespace, &those.namespace) && is(&self.name, &those.name)
    }
}
